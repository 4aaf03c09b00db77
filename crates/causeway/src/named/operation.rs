//! The operations that can be called by name, and the tensors that each one knows.

use std::fmt;
use std::str::FromStr;

use super::CallError;
use crate::causal_conv1d::{Backward, Forward, Update};
use crate::gemm::{self, GradA, GradAB, GradB};
use crate::operation::{Argument, Operation as _, Role};

/// What to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// y, and on request final_states.
    Conv1dForward,
    /// dx, dweight, and dbias and dinitial_states where their inputs are given.
    Conv1dBackward,
    /// y and the new conv_state.
    Conv1dUpdate,
    /// C.
    GemmForward,
    /// grad_A.
    GemmGradA,
    /// grad_B.
    GemmGradB,
    /// grad_A and grad_B.
    GemmGradAb,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 7] = [
        Operation::Conv1dForward,
        Operation::Conv1dBackward,
        Operation::Conv1dUpdate,
        Operation::GemmForward,
        Operation::GemmGradA,
        Operation::GemmGradB,
        Operation::GemmGradAb,
    ];

    /// `conv1d-forward`, `gemm-grad-ab` …
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Conv1dForward => "conv1d-forward",
            Operation::Conv1dBackward => "conv1d-backward",
            Operation::Conv1dUpdate => "conv1d-update",
            Operation::GemmForward => "gemm-forward",
            Operation::GemmGradA => "gemm-grad-a",
            Operation::GemmGradB => "gemm-grad-b",
            Operation::GemmGradAb => "gemm-grad-ab",
        }
    }

    /// True for the convolution's operations, false for the products.
    pub const fn is_conv1d(self) -> bool {
        matches!(self, Operation::Conv1dForward | Operation::Conv1dBackward | Operation::Conv1dUpdate)
    }

    fn arguments(self) -> &'static [Argument] {
        match self {
            Operation::Conv1dForward => Forward::ARGUMENTS,
            Operation::Conv1dBackward => Backward::ARGUMENTS,
            Operation::Conv1dUpdate => Update::ARGUMENTS,
            Operation::GemmForward => gemm::Forward::ARGUMENTS,
            Operation::GemmGradA => GradA::ARGUMENTS,
            Operation::GemmGradB => GradB::ARGUMENTS,
            Operation::GemmGradAb => GradAB::ARGUMENTS,
        }
    }

    /// Tensors that have to be there, and those that may be.
    pub fn inputs(self) -> (Vec<&'static str>, Vec<&'static str>) {
        let (required, mut optional) = by_need(self.arguments(), Role::Output);
        optional.extend(self.unread().map(|argument| argument.name));
        (required, optional)
    }

    /// What takes no part in the operation, and is in a file that another one has read: of backward, forward's residual, whose
    /// gradient is dy itself.
    pub(super) fn unread(self) -> impl Iterator<Item = &'static Argument> {
        let known = |name: &str| Backward::ARGUMENTS.iter().any(|argument| argument.name == name);
        Forward::ARGUMENTS.iter().filter(move |argument| {
            self == Operation::Conv1dBackward && argument.role == Role::Input && !known(argument.name)
        })
    }

    /// `x, weight, [bias, …] -> y, [final_states]`: all that it reads and writes, with what may be absent in brackets.
    pub fn signature(self) -> String {
        let text = |(mut required, optional): (Vec<&'static str>, Vec<&'static str>)| {
            let optional = format!("[{}]", optional.join(", "));
            required.extend((optional != "[]").then_some(optional.as_str()));
            required.join(", ")
        };
        format!("{} -> {}", text(self.inputs()), text(by_need(self.arguments(), Role::Input)))
    }

    /// `conv1d-update reads x, conv_state, weight, and where present bias, …`
    pub fn reads(self) -> String {
        let (required, optional) = self.inputs();
        let mut text = format!("{self} reads {}", required.join(", "));
        if !optional.is_empty() {
            text += &format!(", and where present {}", optional.join(", "));
        }
        text
    }
}

/// Names of the arguments that have another role: those that a call has in any case, and those that it may have.
fn by_need(arguments: &'static [Argument], other: Role) -> (Vec<&'static str>, Vec<&'static str>) {
    let wanted = arguments.iter().filter(|argument| argument.role != other);
    let (optional, required): (Vec<_>, Vec<_>) = wanted.partition(|argument| argument.optional);
    let names = |arguments: Vec<&Argument>| arguments.iter().map(|argument| argument.name).collect();
    (names(required), names(optional))
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Operation {
    type Err = CallError;
    fn from_str(text: &str) -> Result<Self, CallError> {
        let found = Operation::ALL.into_iter().find(|operation| operation.name() == text);
        found.ok_or_else(|| CallError::UnknownOperation { found: text.to_string() })
    }
}
