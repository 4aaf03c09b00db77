//! An operation's table, and what follows from it for calls from Python.

use causeway::operation::{self as table, MOST, Role};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::dense::Dense;
use crate::table::{Entry, OptionKind, Tensors};
use crate::tensor::Named;

/// An operation of the library.
pub struct Described {
    pub entry: &'static Entry,
    /// How many arguments are inputs: the first ones.
    pub inputs: usize,
    /// The places of the results among the arguments.
    pub results: Vec<usize>,
    /// Whether an argument is changed in place.
    pub changes: bool,
    /// What errors call each argument, and expect of its dtype.
    pub named: Vec<Named>,
    /// The input that each result is made like.
    pub like: Vec<Option<usize>>,
    /// What PyTorch was asked for last, for each argument.
    pub dense: Vec<Dense>,
}

impl Described {
    pub fn new(entry: &'static Entry) -> Self {
        let arguments = entry.arguments;
        let is_result = |at: &usize| arguments[*at].role == Role::Output;
        let named = |argument: &'static table::Argument| Named {
            name: entry.said(argument.name),
            dtypes: argument.dtype_source(arguments).dtypes,
        };
        let like = |argument: &'static table::Argument| match argument.role {
            // A product is row-major, whatever lies transposed.
            Role::Output if entry.option_kind != OptionKind::Algorithm => argument.like(arguments),
            Role::Output | Role::Input | Role::InPlace => None,
        };
        Described {
            entry,
            inputs: arguments.iter().take_while(|argument| argument.role == Role::Input).count(),
            results: (0..arguments.len()).filter(is_result).collect(),
            changes: arguments.iter().any(|argument| argument.role == Role::InPlace),
            named: arguments.iter().map(named).collect(),
            like: arguments.iter().map(like).collect(),
            dense: arguments.iter().map(|_| Dense::default()).collect(),
        }
    }

    /// Its tensors.
    pub fn arguments(&self) -> &'static [table::Argument] {
        self.entry.arguments
    }

    /// Outputs can be written to, and none shares memory with another tensor. Those that are made have memory of their own.
    pub fn check_outputs(&self, tensors: &Tensors) -> PyResult<()> {
        let there = |range: std::ops::Range<usize>| range.filter_map(|at| Some((at, tensors[at].as_ref()?)));
        for (at, output) in there(self.inputs..MOST) {
            output.expect_writable(self.named[at].name)?;
            for (other, tensor) in there(0..at) {
                if tensor.shares_memory(output) {
                    let (name, other) = (self.named[at].name, self.named[other].name);
                    return Err(PyRuntimeError::new_err(format!(
                        "{name} shares memory with {other}: it is written while {other} is in use; pass a clone of \
                         one of them"
                    )));
                }
            }
        }
        Ok(())
    }

    /// What one call changes in place shares no memory with the tensors of another that is launched with it. Their other outputs are
    /// made for them.
    pub fn expect_apart(&self, tensors: &Tensors, others: &Tensors) -> PyResult<()> {
        let changed = self.arguments().iter().enumerate();
        for (at, _) in changed.filter(|(_, argument)| argument.role == Role::InPlace) {
            let Some(tensor) = &tensors[at] else { continue };
            let shared =
                others.iter().position(|other| other.is_some_and(|other| other.shares_memory(tensor)));
            if let Some(other) = shared {
                let (name, other) = (self.named[at].name, self.named[other].name);
                return Err(PyRuntimeError::new_err(format!(
                    "{name} of one call shares memory with {other} of another: they are computed together; pass a clone \
                     of one of them"
                )));
            }
        }
        Ok(())
    }
}
