//! Arguments of the states of a packed batch.

use super::arguments::*;
use super::validate::Check;
use crate::error::{Error, Result};
use crate::operation::{check, operation};

operation! {
    /// The last `state_len` positions of every sequence of a packed batch, zero-filled at the front.
    ///
    /// ```text
    /// states[i, c, state_len - k] = x[cu_seqlens[i+1] - k, c]   for 1 ≤ k ≤ min(state_len, length of i), else 0
    /// ```
    pub struct VarlenStates;
    reads {
        /// `(total, dim)`.
        x: required PACKED, OWN;
        /// `(n + 1,)` i32 or i64.
        cu_seqlens: required BOUNDARIES, OF_BOUNDARIES;
    }
    options {}
    writes {
        /// `(n, dim, state_len)`, of x's dtype: the result.
        states: required LAST, OF_X;
    }
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
        let sequences = Check::of_values(&self.x)?.cu_seqlens(total, &self.cu_seqlens)?;
        check(self, &[0, dim, total, 0, sequences, 0, 0, 0])?;
        let &[.., state_len] = self.states.shape() else { unreachable!("checked by the table") };
        Ok(VarlenStatesSizes { total, dim, sequences, state_len })
    }
}
