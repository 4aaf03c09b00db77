//! The operations that can be run, and the tensors that each one knows.

use std::fmt;

use clap::ValueEnum;

/// What to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    #[value(name = "conv1d-forward")]
    Conv1dForward,
    #[value(name = "conv1d-backward")]
    Conv1dBackward,
    #[value(name = "conv1d-update")]
    Conv1dUpdate,
    #[value(name = "gemm-forward")]
    GemmForward,
    #[value(name = "gemm-grad-a")]
    GemmGradA,
    #[value(name = "gemm-grad-b")]
    GemmGradB,
    #[value(name = "gemm-grad-ab")]
    GemmGradAb,
}

impl Operation {
    pub fn is_conv1d(self) -> bool {
        matches!(self, Operation::Conv1dForward | Operation::Conv1dBackward | Operation::Conv1dUpdate)
    }

    /// Tensors that have to be in the file, and those that may be.
    pub fn inputs(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Operation::Conv1dForward => {
                (&["x", "weight"], &["bias", "initial_states", "seq_idx", "cu_seqlens", "residual"])
            }
            Operation::Conv1dBackward => (
                &["x", "weight", "dy"],
                &["bias", "initial_states", "seq_idx", "cu_seqlens", "residual", "dfinal_states"],
            ),
            Operation::Conv1dUpdate => {
                (&["x", "conv_state", "weight"], &["bias", "cache_seqlens", "conv_state_indices"])
            }
            Operation::GemmForward => (&["A", "B"], &[]),
            Operation::GemmGradA => (&["grad_C", "B"], &[]),
            Operation::GemmGradB => (&["grad_C", "A"], &[]),
            Operation::GemmGradAb => (&["grad_C", "A", "B"], &[]),
        }
    }

    /// `conv1d-update reads x, conv_state and weight, and where present bias, …`
    pub fn reads(self) -> String {
        let (required, optional) = self.inputs();
        let mut text = format!("{self} reads {}", required.join(", "));
        if !optional.is_empty() {
            text += &format!(", and where present {}", optional.join(", "));
        }
        text
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}
