//! Arguments of the forward operation.

use super::validate::Check;
use super::{Activation, Sizes};
use crate::checks;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// `y = act(bias + weight ∗ x) + residual`; see the [module](super) for the formula.
#[derive(Debug)]
pub struct Forward<'a> {
    /// `(batch, dim, seqlen)`; f32, f16, bf16, and f64 on a CPU.
    pub x: TensorRef<'a>,
    /// `(dim, width)`; f32, f16 or bf16 whatever the dtype of x (f64 exactly when x is f64).
    pub weight: TensorRef<'a>,
    /// `(dim,)`, of weight's dtype.
    pub bias: Option<TensorRef<'a>>,
    /// `(sequences, dim, width - 1)`, of x's dtype: the positions before each sequence.
    pub initial_states: Option<TensorRef<'a>>,
    /// `(batch, seqlen)` i32.
    pub seq_idx: Option<TensorRef<'a>>,
    /// `(sequences + 1,)` i32 or i64; x is then `(1, dim, total)`.
    pub cu_seqlens: Option<TensorRef<'a>>,
    /// `(batch, dim, seqlen)`, of x's dtype: added after the activation.
    pub residual: Option<TensorRef<'a>>,
    /// Applied to the sum.
    pub activation: Activation,
    /// `(batch, dim, seqlen)`, of x's dtype: the result.
    pub y: TensorMut<'a>,
    /// `(sequences, dim, width - 1)`, of x's dtype: the last positions of each sequence.
    pub final_states: Option<TensorMut<'a>>,
}

impl Forward<'_> {
    /// Checks every argument against every other one.
    ///
    /// On the host, the values of `cu_seqlens` are checked too; a device's are not read back, and kernels
    /// stay within bounds whatever they hold.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let check = Check::new(&self.x)?;
        let sizes = check.sizes(&self.weight, self.cu_seqlens.as_ref())?;
        check.parameters(&sizes, &self.weight, self.bias.as_ref())?;
        check.sequences(&sizes, self.seq_idx.as_ref(), self.cu_seqlens.as_ref())?;
        if let Some(states) = &self.initial_states {
            check.states(&sizes, "initial_states", states.meta())?;
        }
        if let Some(residual) = &self.residual {
            check.like_x(&sizes, "residual", residual.meta())?;
        }
        check.like_x(&sizes, "y", self.y.meta())?;
        checks::output("y", self.y.meta())?;
        if let Some(states) = &self.final_states {
            check.states(&sizes, "final_states", states.meta())?;
            checks::output("final_states", states.meta())?;
        }
        Ok(sizes)
    }
}
