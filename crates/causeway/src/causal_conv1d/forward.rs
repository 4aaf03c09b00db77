//! Arguments of the forward operation.

use super::arguments::*;
use super::validate::Check;
use super::{Activation, HeadNorm, Sizes};
use crate::error::Result;
use crate::operation::{check, operation};

operation! {
    /// The convolution, its activation, and what is added to it.
    ///
    /// ```text
    /// pre[b,c,t] = bias[c] + Σ_w weight[c,w] · x[b,c, t-(width-1)+w]     x at t < 0: initial_states, else 0
    /// y[b,c,t]   = act(pre[b,c,t]) + residual[b,c,t]                     act: identity, or pre · sigmoid(pre)
    /// ```
    ///
    /// With gates, what taps read is B ⊙ x, and so is what final_states hold; states are not multiplied again. What the
    /// activation gives is multiplied with C, before the residual is added: `y = C ⊙ act(pre) + residual`.
    ///
    /// With a norm, `y = scale · u / √(Σ u² + eps)` of `u = act(pre)`, summed over the channels of each head.
    ///
    /// The [module](super) says where taps stop between sequences.
    pub struct Forward;
    reads {
        /// `(batch, dim, seqlen)`; f32, f16, bf16, and f64 on a CPU.
        x: required ROWS, OWN;
        /// `(dim, width)`; f32, f16 or bf16 whatever the dtype of x (f64 exactly when x is f64).
        weight: required TAPS, OWN;
        /// `(dim,)`, of weight's dtype.
        bias: optional CHANNELS, OF_WEIGHT;
        /// `(sequences, dim, width - 1)`, of x's dtype: the positions before each sequence.
        initial_states: optional STATES, OF_X;
        /// `(batch, seqlen)` i32.
        seq_idx: optional INDICES, OF_INDICES;
        /// `(sequences + 1,)` i32 or i64; x is then `(1, dim, total)`.
        cu_seqlens: optional BOUNDARIES, OF_BOUNDARIES;
        /// `(batch, dim, seqlen)`, of x's dtype: added after the activation.
        residual: optional ROWS, OF_X;
        /// `(batch, dim, seqlen)`, of x's dtype: the gate that multiplies x.
        b as "B": optional ROWS, OF_X;
        /// `(batch, dim, seqlen)`, of x's dtype: the gate that multiplies the activation.
        c as "C": optional ROWS, OF_X;
    }
    options {
        /// Applied to the sum.
        activation: Activation;
        /// Rounds B ⊙ x, the activation and C ⊙ it to x's dtype, as separate kernels do; without it they stay in f32. Of no
        /// effect without gates.
        round_products: bool;
        /// Divides the activation by its norm over each head. Without gates and residual.
        norm: Option<HeadNorm>;
    }
    writes {
        /// `(batch, dim, seqlen)`, of x's dtype: the result.
        y: required ROWS, OF_X;
        /// `(sequences, dim, width - 1)`, of x's dtype: the last positions of each sequence.
        final_states: optional STATES, OF_X;
    }
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
        let sizes = Check::new(&self.x)?.sizes(&self.weight, self.cu_seqlens.as_ref())?;
        check(self, &sizes.table())?;
        let others =
            [("B", self.b.is_some()), ("C", self.c.is_some()), ("residual", self.residual.is_some())];
        HeadNorm::check(self.norm.as_ref(), sizes.dim, &others)?;
        Ok(sizes)
    }
}
