//! Arguments of the decode update.

use super::Activation;
use super::validate::{self, Check};
use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{DType, TensorMut, TensorRef};

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
/// A negative `conv_state_indices[b]` gives `y[b] = 0` and leaves every state alone.
#[derive(Debug)]
pub struct Update<'a> {
    /// `(batch, dim)` or `(batch, dim, seqlen)`.
    pub x: TensorRef<'a>,
    /// `(rows, dim, state_len)`, of x's dtype, with `state_len ≥ width - 1`; changed in place.
    pub conv_state: TensorMut<'a>,
    /// `(dim, width)`, of any floating dtype as in forward.
    pub weight: TensorRef<'a>,
    /// `(dim,)`, of weight's dtype.
    pub bias: Option<TensorRef<'a>>,
    /// `(batch,)` i32, 0 or more: positions seen so far; makes the state a ring buffer.
    pub cache_seqlens: Option<TensorRef<'a>>,
    /// `(batch,)` i32: the state row of each batch entry.
    pub conv_state_indices: Option<TensorRef<'a>>,
    /// Applied to the sum.
    pub activation: Activation,
    /// The shape and dtype of x: the result.
    pub y: TensorMut<'a>,
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
        let check = Check::of_values(&self.x)?;
        let width = check.weight_shape(dim, &self.weight)?;
        check.parameter_dtypes(dim, &self.weight, self.bias.as_ref())?;

        let state = self.conv_state.meta();
        let &[rows, state_dim, state_len] = self.conv_state.shape() else {
            return Err(Error::Rank {
                argument: "conv_state",
                expected: "(batch, dim, state_len)",
                found: state.shape,
            });
        };
        checks::size("conv_state", "dim", state_dim, dim, "the dim of x")?;
        if state_len < width - 1 {
            return Err(Error::StateTooShort { argument: "conv_state", found: state_len, width });
        }
        check.dtype_of_x("conv_state", state)?;
        check.location("conv_state", state)?;
        checks::output("conv_state", state)?;

        if x.shape != self.y.meta().shape {
            return Err(Error::Rank {
                argument: "y",
                expected: "the shape of x",
                found: self.y.meta().shape,
            });
        }
        check.dtype_of_x("y", self.y.meta())?;
        check.location("y", self.y.meta())?;
        checks::output("y", self.y.meta())?;

        if let Some(lengths) = &self.cache_seqlens {
            check.index_vector("cache_seqlens", batch, lengths, &[DType::I32])?;
            validate::values_in_range(
                "cache_seqlens",
                lengths,
                0,
                i64::from(i32::MAX),
                "a count of positions",
            )?;
        }
        match &self.conv_state_indices {
            Some(indices) => {
                check.index_vector("conv_state_indices", batch, indices, &[DType::I32])?;
                validate::row_indices("conv_state_indices", indices, rows)?;
            }
            None => checks::size("conv_state", "batch", rows, batch, "the batch of x")?,
        }
        Ok(UpdateSizes { batch, dim, seqlen, width, rows, state_len })
    }
}
