//! Arguments of the backward operation.

use super::arguments::*;
use super::validate::Check;
use super::{Activation, HeadNorm, Sizes};
use crate::error::Result;
use crate::operation::{check, operation};

operation! {
    /// Gradients of [`Forward`](super::Forward).
    ///
    /// ```text
    /// g            = dy · act'(pre)                    pre is recomputed, never stored
    /// dx[b,c,t]    = Σ_w weight[c,w] · g[b,c, t+(width-1)-w]  (+ dfinal_states at the last width-1 positions)
    /// dweight[c,w] = Σ_{b,t} g[b,c,t] · x[b,c, t-(width-1)+w]
    /// dbias[c]     = Σ_{b,t} g[b,c,t]
    /// ```
    ///
    /// `dinitial_states` is the sum that gives dx, at the positions before each sequence. The gradient of a
    /// residual is dy itself. Results are bit-identical from run to run.
    ///
    /// With gates, B ⊙ x stands for x above, C ⊙ dy for dy, and the sum that gives dx there is the gradient of B ⊙ x:
    ///
    /// ```text
    /// dC = dy ⊙ act(pre)        dx = B ⊙ d(B ⊙ x)        dB = x ⊙ d(B ⊙ x)
    /// ```
    ///
    /// With a norm, n = u / √(Σ u² + eps) of u = act(pre), and the gradient of u stands for dy above:
    ///
    /// ```text
    /// du = scale / √(Σ u² + eps) · (dy - n · Σ dy·n)
    /// ```
    pub struct Backward;
    reads {
        /// `(batch, dim, seqlen)`, as in forward.
        x: required ROWS, OWN;
        /// `(dim, width)`, as in forward.
        weight: required TAPS, OWN;
        /// `(dim,)`, as in forward.
        bias: optional CHANNELS, OF_WEIGHT;
        /// `(batch, dim, seqlen)`, of x's dtype: gradient of y.
        dy: required ROWS, OF_X;
        /// `(sequences, dim, width - 1)`, as in forward.
        initial_states: optional STATES, OF_X;
        /// `(batch, seqlen)` i32, as in forward.
        seq_idx: optional INDICES, OF_INDICES;
        /// `(sequences + 1,)` i32 or i64, as in forward.
        cu_seqlens: optional BOUNDARIES, OF_BOUNDARIES;
        /// `(sequences, dim, width - 1)`, of x's dtype: gradient of final_states.
        dfinal_states: optional STATES, OF_X;
        /// `(batch, dim, seqlen)`, of x's dtype, as in forward.
        b as "B": optional ROWS, OF_X;
        /// `(batch, dim, seqlen)`, of x's dtype, as in forward.
        c as "C": optional ROWS, OF_X;
    }
    options {
        /// As in forward.
        activation: Activation;
        /// Rounds B ⊙ x, C ⊙ dy, the activation and d(B ⊙ x) to x's dtype, as separate kernels do; without it they stay in
        /// f32. Of no effect without gates.
        round_products: bool;
        /// As in forward.
        norm: Option<HeadNorm>;
    }
    writes {
        /// `(batch, dim, seqlen)`, of x's dtype: gradient of x.
        dx: required ROWS, OF_X;
        /// `(dim, width)`, of weight's dtype, or f32 for the unrounded sums: gradient of weight.
        dweight: required TAPS, OF_WEIGHT_OR_F32;
        /// `(dim,)`, of dweight's dtype: gradient of bias. Needs `bias`.
        dbias: optional CHANNELS, OF_DWEIGHT, needs ("bias", "there is no bias");
        /// `(sequences, dim, width - 1)`, of x's dtype: gradient of initial_states. Needs `initial_states`.
        dinitial_states: optional STATES, OF_X, needs ("initial_states", "there are no initial_states");
        /// `(batch, dim, seqlen)`, of x's dtype: gradient of B. Needs `B`.
        db as "dB": optional ROWS, OF_X, needs ("B", "there is no B");
        /// `(batch, dim, seqlen)`, of x's dtype: gradient of C. Needs `C`.
        dc as "dC": optional ROWS, OF_X, needs ("C", "there is no C");
    }
}

impl Backward<'_> {
    /// Checks every argument against every other one; see [`Forward::validate`](super::Forward::validate).
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let sizes = Check::new(&self.x)?.sizes(&self.weight, self.cu_seqlens.as_ref())?;
        check(self, &sizes.table())?;
        let others = [("B", self.b.is_some()), ("C", self.c.is_some()), ("dC", self.dc.is_some())];
        HeadNorm::check(self.norm.as_ref(), sizes.dim, &others)?;
        Ok(sizes)
    }
}
