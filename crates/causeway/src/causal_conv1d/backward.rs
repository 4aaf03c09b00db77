//! Arguments of the backward operation.

use super::validate::Check;
use super::{Activation, Sizes};
use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{TensorMut, TensorRef};

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
#[derive(Debug)]
pub struct Backward<'a> {
    /// `(batch, dim, seqlen)`, as in forward.
    pub x: TensorRef<'a>,
    /// `(dim, width)`, as in forward.
    pub weight: TensorRef<'a>,
    /// `(dim,)`, as in forward.
    pub bias: Option<TensorRef<'a>>,
    /// `(batch, dim, seqlen)`, of x's dtype: gradient of y.
    pub dy: TensorRef<'a>,
    /// `(sequences, dim, width - 1)`, as in forward.
    pub initial_states: Option<TensorRef<'a>>,
    /// `(batch, seqlen)` i32, as in forward.
    pub seq_idx: Option<TensorRef<'a>>,
    /// `(sequences + 1,)` i32 or i64, as in forward.
    pub cu_seqlens: Option<TensorRef<'a>>,
    /// `(sequences, dim, width - 1)`, of x's dtype: gradient of final_states.
    pub dfinal_states: Option<TensorRef<'a>>,
    /// As in forward.
    pub activation: Activation,
    /// `(batch, dim, seqlen)`, of x's dtype: gradient of x.
    pub dx: TensorMut<'a>,
    /// `(dim, width)`, of weight's dtype, or f32 for the unrounded sums: gradient of weight.
    pub dweight: TensorMut<'a>,
    /// `(dim,)`, of dweight's dtype: gradient of bias. Needs `bias`.
    pub dbias: Option<TensorMut<'a>>,
    /// `(sequences, dim, width - 1)`, of x's dtype: gradient of initial_states. Needs `initial_states`.
    pub dinitial_states: Option<TensorMut<'a>>,
}

impl Backward<'_> {
    /// Checks every argument against every other one; see [`Forward::validate`](super::Forward::validate).
    ///
    /// # Errors
    /// One [`Error`] variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let check = Check::new(&self.x)?;
        let sizes = check.sizes(&self.weight, self.cu_seqlens.as_ref())?;
        check.parameters(&sizes, &self.weight, self.bias.as_ref())?;
        check.sequences(&sizes, self.seq_idx.as_ref(), self.cu_seqlens.as_ref())?;
        check.like_x(&sizes, "dy", self.dy.meta())?;
        if let Some(states) = &self.initial_states {
            check.states(&sizes, "initial_states", states.meta())?;
        }
        if let Some(states) = &self.dfinal_states {
            check.states(&sizes, "dfinal_states", states.meta())?;
        }
        check.like_x(&sizes, "dx", self.dx.meta())?;
        checks::output("dx", self.dx.meta())?;
        check.dweight(&sizes, &self.weight, self.dweight.meta())?;
        checks::output("dweight", self.dweight.meta())?;
        if let Some(dbias) = &self.dbias {
            if self.bias.is_none() {
                return Err(Error::Unexpected { argument: "dbias", because: "there is no bias" });
            }
            check.dbias(&sizes, &self.dweight, dbias.meta())?;
            checks::output("dbias", dbias.meta())?;
        }
        if let Some(states) = &self.dinitial_states {
            if self.initial_states.is_none() {
                return Err(Error::Unexpected {
                    argument: "dinitial_states",
                    because: "there are no initial_states",
                });
            }
            check.states(&sizes, "dinitial_states", states.meta())?;
            checks::output("dinitial_states", states.meta())?;
        }
        Ok(sizes)
    }
}
