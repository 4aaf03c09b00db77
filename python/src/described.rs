//! An operation's table, and what follows from it for calls from Python.

use causeway::operation::{self as table, Role};

use crate::dense::Dense;
use crate::table::Entry;
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
            Role::Output => argument.like(arguments),
            Role::Input | Role::InPlace => None,
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
}
