//! Where the elements of a case's tensors lie in memory.

use causeway::error::Result;
use causeway::tensor::{DType, Dims};
use causeway::{Arrangement, HostTensor};

use super::named_enum::named_enum;

/// Bytes of untouched memory that the suites keep before and after every view: one cache line and more.
pub(super) const GUARD_BYTES: i64 = 128;

named_enum! {
    /// Memory layout of a tensor with logical shape `(batch, dim, seqlen)`; states `(batch, dim, length)` follow it.
    pub enum Layout as "layout" {
        /// Dense `(batch, dim, seqlen)`.
        #[default]
        ChannelFirst = "channel-first",
        /// Dense `(batch, seqlen, dim)`.
        ChannelLast = "channel-last",
        /// Channel-first with three elements between rows, one element off alignment.
        ChannelFirstPadded = "channel-first-padded",
        /// Channel-last with three elements between rows, one element off alignment.
        ChannelLastPadded = "channel-last-padded",
        /// Dense `(seqlen, batch, dim)`, as recurrent networks keep it.
        SeqlenMajor = "seqlen-major",
        /// Dense `(dim, batch, seqlen)`.
        DimMajor = "dim-major",
        /// Channel-first, using every third element: no axis has stride 1.
        EveryThird = "every-third",
        /// Channel-first with every axis backwards: all strides are negative.
        Reversed = "reversed",
        /// Channel-last with the sequence backwards.
        ChannelLastReversed = "channel-last-reversed",
    }
}

impl Layout {
    /// Where a tensor in this layout lies, with 128 bytes or more of spare storage on both sides.
    ///
    /// # Errors
    /// As for [`Dims::new`].
    pub fn arrange(self, dtype: DType, shape: [i64; 3]) -> Result<Arrangement> {
        // Axes from the outermost to the innermost in memory, and what the innermost two are padded by.
        let (order, padding, misaligned, step) = match self {
            Layout::ChannelFirst | Layout::Reversed => ([0, 1, 2], 0, 0, 1),
            Layout::ChannelLast | Layout::ChannelLastReversed => ([0, 2, 1], 0, 0, 1),
            Layout::ChannelFirstPadded => ([0, 1, 2], 3, 1, 1),
            Layout::ChannelLastPadded => ([0, 2, 1], 3, 1, 1),
            Layout::SeqlenMajor => ([2, 0, 1], 0, 0, 1),
            Layout::DimMajor => ([1, 0, 2], 0, 0, 1),
            Layout::EveryThird => ([0, 1, 2], 0, 0, 3),
        };
        let mut strides = [0; 3];
        let mut stride = step;
        for (depth, &axis) in order.iter().rev().enumerate() {
            strides[axis] = stride;
            stride = i64::saturating_mul(stride, shape[axis].max(1));
            if depth == 0 {
                stride = stride.saturating_add(padding);
            }
        }
        let backwards: &[usize] = match self {
            Layout::Reversed => &[0, 1, 2],
            Layout::ChannelLastReversed => &[2],
            _ => &[],
        };
        let mut first = misaligned;
        for &axis in backwards {
            first = i64::saturating_add(first, strides[axis].saturating_mul((shape[axis] - 1).max(0)));
            strides[axis] = -strides[axis];
        }
        let guard = GUARD_BYTES / dtype.size() as i64;
        Ok(Arrangement {
            dtype,
            storage: stride.saturating_add(misaligned + 2 * guard),
            offset: first.saturating_add(guard),
            shape: Dims::new(&shape)?,
            strides: Dims::new(&strides)?,
        })
    }

    /// A tensor of zeros in this layout.
    ///
    /// # Errors
    /// If the tensor is larger than memory.
    pub fn zeros(self, dtype: DType, shape: [i64; 3]) -> Result<HostTensor> {
        self.arrange(dtype, shape)?.zeros()
    }

    /// Where a tensor with logical shape `(batch, dim)` or `(total, dim)` lies: this layout with one position, or one
    /// row, of `(batch, dim, seqlen)`.
    ///
    /// # Errors
    /// As for [`Dims::new`].
    pub fn arrange_2d(self, dtype: DType, shape: [i64; 2]) -> Result<Arrangement> {
        let whole = self.arrange(dtype, [shape[0], shape[1], 1])?;
        Ok(Arrangement { shape: Dims::new(&shape)?, strides: Dims::new(&whole.strides[..2])?, ..whole })
    }
}

/// Where a dense tensor of any rank lies, with the same guards.
pub(super) fn dense(dtype: DType, shape: &[i64]) -> Result<Arrangement> {
    Arrangement::dense(dtype, shape, GUARD_BYTES / dtype.size() as i64)
}
