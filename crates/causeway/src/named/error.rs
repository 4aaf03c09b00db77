//! What is wrong with a call by name.

use super::{Layout, Operation};
use crate::error::Error;
use crate::quoted;

/// Everything that can be wrong with a call by name, one variant per cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No operation is named.
    #[error("no operation is named: expected one of {}", operations())]
    MissingOperation,
    /// Text that names no operation.
    #[error("operation is {}: expected one of {}", quoted(found), operations())]
    UnknownOperation {
        /// The text that was given.
        found: String,
    },
    /// Text that names no option.
    #[error(
        "option {} is not known: expected activation, round_products, norm, layout, return_final_states or algorithm",
        quoted(found)
    )]
    UnknownOption {
        /// The text that was given.
        found: String,
    },
    /// An option with a value that it does not take.
    #[error("{option} is {}: expected {expected}", quoted(found))]
    BadOption {
        /// The option.
        option: String,
        /// The value that was given.
        found: String,
        /// The values that it takes.
        expected: &'static str,
    },
    /// An option that the operation does not read.
    #[error("{option} has no meaning for {operation}: it is for {owner}")]
    MisplacedOption {
        /// The option.
        option: &'static str,
        /// The operation.
        operation: Operation,
        /// Whose option it is.
        owner: &'static str,
    },
    /// A tensor that the operation does not read.
    #[error("tensor {} is not an input of {operation}", quoted(name))]
    UnknownTensor {
        /// Its name.
        name: String,
        /// The operation.
        operation: Operation,
    },
    /// A tensor that the operation needs is not there.
    #[error("tensor {name:?} is missing")]
    MissingTensor {
        /// Its name.
        name: &'static str,
        /// The operation.
        operation: Operation,
    },
    /// The operation refused its arguments, or the device failed.
    #[error("{error}")]
    Operation {
        /// How the tensors were read.
        layout: Layout,
        /// The cause.
        error: Error,
    },
}

fn operations() -> String {
    Operation::ALL.map(Operation::name).join(", ")
}

impl CallError {
    /// A stable name of the cause, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::MissingOperation => "missing-operation",
            CallError::UnknownOperation { .. } => "unknown-operation",
            CallError::UnknownOption { .. } => "unknown-option",
            CallError::BadOption { .. } => "bad-option",
            CallError::MisplacedOption { .. } => "misplaced-option",
            CallError::UnknownTensor { .. } => "unknown-tensor",
            CallError::MissingTensor { .. } => "missing-tensor",
            CallError::Operation { error, .. } => error.code(),
        }
    }

    /// What to do about it, where that is not in the sentence itself.
    pub fn help(&self) -> Option<String> {
        match self {
            CallError::UnknownTensor { operation, .. } | CallError::MissingTensor { operation, .. } => {
                Some(operation.reads())
            }
            CallError::Operation { layout, error } => operation_help(*layout, error).map(str::to_string),
            _ => None,
        }
    }
}

/// The layout and the dtype of indices are what callers get wrong first.
fn operation_help(layout: Layout, error: &Error) -> Option<&'static str> {
    match (error, layout) {
        (Error::Size { because: "the dim of x", .. } | Error::Channels { .. }, Layout::ChannelFirst) => {
            Some("x was read as (batch, dim, seqlen); for (batch, seqlen, dim) the layout is channel-last")
        }
        (Error::Size { because: "the dim of x", .. } | Error::Channels { .. }, Layout::ChannelLast) => Some(
            "x was read as (batch, seqlen, dim), since the layout is channel-last; for (batch, dim, seqlen) it is channel-first",
        ),
        (Error::DTypeMismatch { argument: "seq_idx" | "cache_seqlens" | "conv_state_indices", .. }, _) => {
            Some("convert it first: .astype(numpy.int32) or .to(torch.int32)")
        }
        _ => None,
    }
}
