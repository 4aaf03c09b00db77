//! Arguments of the decode update.

use super::arguments::*;
use super::validate::{self, Check};
use super::{Activation, HeadNorm};
use crate::checks;
use crate::error::{Error, Result};
use crate::operation::{check, operation};
use crate::tensor::{Meta, TensorRef};

operation! {
    /// One or more new positions per batch entry, with the state changed in place.
    ///
    /// ```text
    /// row      = conv_state_indices[b], or b
    /// history  = the last width-1 positions of conv_state[row]; with cache_seqlens, the width-1 positions
    ///            before cache_seqlens[b] modulo state_len (a ring buffer)
    /// y[b,c,i] = act(bias[c] + Σ_w weight[c,w] · [history, x[b]][c, i+w])
    /// state    : shifted left by seqlen and x appended; or x[b,·,i] written at (cache_seqlens[b] + i) mod state_len
    /// ```
    ///
    /// With gates, B ⊙ x stands for x, in the sum and in the state, and y is multiplied with C. The state holds B ⊙ x as x's
    /// dtype has it: later calls read it so.
    ///
    /// With a norm, `y = scale · u / √(Σ u² + eps)` of `u = act(…)`, summed over the channels of each head; the state holds x.
    ///
    /// A negative `conv_state_indices[b]` gives `y[b] = 0` and leaves every state alone.
    pub struct Update;
    reads {
        /// `(batch, dim)` or `(batch, dim, seqlen)`.
        x: required POSITIONS, OWN;
        /// `(dim, width)`, of any floating dtype as in forward.
        weight: required TAPS, OWN;
        /// `(dim,)`, of weight's dtype.
        bias: optional CHANNELS, OF_WEIGHT;
        /// `(batch,)` i32, 0 or more: positions seen so far; makes the state a ring buffer.
        cache_seqlens: optional BATCHES, I32;
        /// `(batch,)` i32: the state row of each batch entry.
        conv_state_indices: optional BATCHES, I32;
        /// The shape and dtype of x: the gate that multiplies x.
        b as "B": optional POSITIONS, OF_X;
        /// The shape and dtype of x: the gate that multiplies the activation.
        c as "C": optional POSITIONS, OF_X;
    }
    options {
        /// Applied to the sum.
        activation: Activation;
        /// As in [`Forward`](super::Forward).
        round_products: bool;
        /// Divides the activation by its norm over each head. Without gates.
        norm: Option<HeadNorm>;
    }
    writes {
        /// `(rows, dim, state_len)`, of x's dtype, with `state_len ≥ width - 1`; changed in place.
        conv_state: in_place CACHE, OF_X;
        /// The shape and dtype of x: the result.
        y: required POSITIONS, OF_X;
    }
}

/// The sizes that the arguments of an update agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UpdateSizes {
    /// Batch entries.
    pub batch: i64,
    /// Channels.
    pub dim: i64,
    /// New positions per batch entry; 1 for a two-dimensional x.
    pub seqlen: i64,
    /// Taps per channel.
    pub width: i64,
    /// Rows of conv_state.
    pub rows: i64,
    /// Positions per row of conv_state.
    pub state_len: i64,
}

fn gate<'a>(gate: &'a Option<TensorRef<'_>>) -> Option<&'a Meta> {
    gate.as_ref().map(TensorRef::meta)
}

impl Update<'_> {
    /// Checks every argument against every other one. On the host, index values are checked too.
    ///
    /// # Errors
    /// One [`Error`] variant per cause.
    pub fn validate(&self) -> Result<UpdateSizes> {
        let x = self.x.meta();
        let (batch, dim, seqlen) = match *self.x.shape() {
            [batch, dim] => (batch, dim, 1),
            [batch, dim, seqlen] => (batch, dim, seqlen),
            _ => {
                return Err(Error::Rank {
                    argument: "x",
                    expected: "(batch, dim) or (batch, dim, seqlen)",
                    found: x.shape,
                });
            }
        };
        let width = Check::of_values(&self.x)?.width(dim, &self.weight)?;
        check(self, &[batch, dim, seqlen, width, batch, 0, 0, 0])?;

        let &[rows, _, state_len] = self.conv_state.shape() else { unreachable!("checked by the table") };
        if state_len < width - 1 {
            return Err(Error::StateTooShort { argument: "conv_state", found: state_len, width });
        }
        let alike = [("y", Some(self.y.meta())), ("B", gate(&self.b)), ("C", gate(&self.c))];
        for (argument, meta) in alike {
            if let Some(meta) = meta.filter(|meta| meta.shape != x.shape) {
                return Err(Error::Rank { argument, expected: "the shape of x", found: meta.shape });
            }
        }
        HeadNorm::check(self.norm.as_ref(), dim, &[("B", self.b.is_some()), ("C", self.c.is_some())])?;
        if let Some(lengths) = &self.cache_seqlens {
            let most = i64::from(i32::MAX);
            validate::values_in_range("cache_seqlens", lengths, 0, most, "a count of positions")?;
        }
        match &self.conv_state_indices {
            Some(indices) => validate::row_indices("conv_state_indices", indices, rows)?,
            None => checks::size("conv_state", "batch", rows, batch, "the batch of x")?,
        }
        Ok(UpdateSizes { batch, dim, seqlen, width, rows, state_len })
    }
}
