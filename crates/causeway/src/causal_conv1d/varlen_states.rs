//! Arguments of the states of a packed batch.

use super::validate::Check;
use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{TensorMut, TensorRef};

/// The last `state_len` positions of every sequence of a packed batch, zero-filled at the front.
///
/// ```text
/// states[i, c, state_len - k] = x[cu_seqlens[i+1] - k, c]   for 1 ≤ k ≤ min(state_len, length of i), else 0
/// ```
#[derive(Debug)]
pub struct VarlenStates<'a> {
    /// `(total, dim)`.
    pub x: TensorRef<'a>,
    /// `(n + 1,)` i32 or i64.
    pub cu_seqlens: TensorRef<'a>,
    /// `(n, dim, state_len)`, of x's dtype: the result.
    pub states: TensorMut<'a>,
}

/// The sizes that the arguments agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VarlenStatesSizes {
    /// Positions of all sequences together.
    pub total: i64,
    /// Channels.
    pub dim: i64,
    /// Sequences.
    pub sequences: i64,
    /// Positions kept per sequence.
    pub state_len: i64,
}

impl VarlenStates<'_> {
    /// Checks every argument against every other one. On the host, the values of `cu_seqlens` are checked too.
    ///
    /// # Errors
    /// One [`Error`] variant per cause.
    pub fn validate(&self) -> Result<VarlenStatesSizes> {
        let &[total, dim] = self.x.shape() else {
            return Err(Error::Rank { argument: "x", expected: "(total, dim)", found: self.x.meta().shape });
        };
        let check = Check::of_values(&self.x)?;
        let sequences = check.cu_seqlens(total, &self.cu_seqlens)?;
        let states = self.states.meta();
        let &[n, states_dim, state_len] = self.states.shape() else {
            return Err(Error::Rank {
                argument: "states",
                expected: "(n, dim, state_len)",
                found: states.shape,
            });
        };
        checks::size("states", "n", n, sequences, "the number of sequences in cu_seqlens")?;
        checks::size("states", "dim", states_dim, dim, "the dim of x")?;
        check.dtype_of_x("states", states)?;
        check.location("states", states)?;
        checks::output("states", states)?;
        Ok(VarlenStatesSizes { total, dim, sequences, state_len })
    }
}
