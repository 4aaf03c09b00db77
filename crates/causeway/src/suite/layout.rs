//! Where the elements of a case's tensors lie in memory.

use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::tensor::DType;

/// Bytes of untouched memory that the suites keep before and after every view: one cache line and more.
pub(super) const GUARD_BYTES: i64 = 128;

/// Memory layout of a tensor with logical shape `(batch, dim, seqlen)`; states `(batch, dim, length)` follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Dense `(batch, dim, seqlen)`.
    #[default]
    ChannelFirst,
    /// Dense `(batch, seqlen, dim)`.
    ChannelLast,
    /// Channel-first with three elements between rows, one element off alignment.
    ChannelFirstPadded,
    /// Channel-last with three elements between rows, one element off alignment.
    ChannelLastPadded,
    /// Dense `(seqlen, batch, dim)`, as recurrent networks keep it.
    SeqlenMajor,
    /// Dense `(dim, batch, seqlen)`.
    DimMajor,
    /// Channel-first, using every third element: no axis has stride 1.
    EveryThird,
    /// Channel-first with every axis backwards: all strides are negative.
    Reversed,
    /// Channel-last with the sequence backwards.
    ChannelLastReversed,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 9] = [
        Layout::ChannelFirst,
        Layout::ChannelLast,
        Layout::ChannelFirstPadded,
        Layout::ChannelLastPadded,
        Layout::SeqlenMajor,
        Layout::DimMajor,
        Layout::EveryThird,
        Layout::Reversed,
        Layout::ChannelLastReversed,
    ];

    /// The name that suites use, for example `channel-first`.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::ChannelFirst => "channel-first",
            Layout::ChannelLast => "channel-last",
            Layout::ChannelFirstPadded => "channel-first-padded",
            Layout::ChannelLastPadded => "channel-last-padded",
            Layout::SeqlenMajor => "seqlen-major",
            Layout::DimMajor => "dim-major",
            Layout::EveryThird => "every-third",
            Layout::Reversed => "reversed",
            Layout::ChannelLastReversed => "channel-last-reversed",
        }
    }

    /// A tensor of zeros in this layout, with 128 bytes or more of spare storage on both sides.
    ///
    /// # Errors
    /// If the tensor is larger than memory.
    pub fn zeros(self, dtype: DType, shape: [i64; 3]) -> Result<HostTensor> {
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
            stride *= shape[axis].max(1);
            if depth == 0 {
                stride += padding;
            }
        }
        let backwards: &[usize] = match self {
            Layout::Reversed => &[0, 1, 2],
            Layout::ChannelLastReversed => &[2],
            _ => &[],
        };
        let mut first = misaligned;
        for &axis in backwards {
            first += strides[axis] * (shape[axis] - 1).max(0);
            strides[axis] = -strides[axis];
        }
        let guard = GUARD_BYTES / dtype.size() as i64;
        HostTensor::zeros(dtype, &[guard + misaligned + stride + guard])?.restrided(
            guard + first,
            &shape,
            &strides,
        )
    }
}

impl Layout {
    /// A tensor of zeros with logical shape `(batch, dim)` or `(total, dim)`: this layout with one position, or one
    /// row, of `(batch, dim, seqlen)`.
    ///
    /// # Errors
    /// If the tensor is larger than memory.
    pub fn zeros_2d(self, dtype: DType, shape: [i64; 2]) -> Result<HostTensor> {
        let whole = self.zeros(dtype, [shape[0], shape[1], 1])?;
        let strides = [whole.strides()[0], whole.strides()[1]];
        let offset = whole.offset();
        whole.restrided(offset, &shape, &strides)
    }
}

/// A dense tensor of zeros of any rank, with the same guards.
pub(super) fn dense(dtype: DType, shape: &[i64]) -> Result<HostTensor> {
    let guard = GUARD_BYTES / dtype.size() as i64;
    let strides = crate::tensor::Dims::new(shape)?.contiguous_strides();
    let elements = shape.iter().product::<i64>();
    HostTensor::zeros(dtype, &[guard + elements + guard])?.restrided(guard, shape, &strides)
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Layout {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Layout::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let names: Vec<_> = Layout::ALL.iter().map(|layout| layout.name()).collect();
            format!("layout is {text:?}: expected one of {}", names.join(", "))
        })
    }
}
