//! Channel-last tensors as rows: the channels of one position, neighbours in memory.
//!
//! ```text
//!              channels of a task (GROUP)
//! position    ┌──────────────────────────┐
//!   t-3       │ history: rows of x, or of initial states, or zeros
//!   t-2       │
//!   t-1       │
//!   t         │▒▒▒▒ → │                  a vector of channels walks down a BLOCK of rows with the last
//!   t+1       │▒▒▒▒   │                  width-1 positions in registers, then the next vector does
//!   ...       │▒▒▒▒   │
//!             └──────────────────────────┘
//! ```
//!
//! Weights and sums of a vector are loaded once per block. Every mask of seq_idx and cu_seqlens concerns whole
//! rows, so that it is a choice of pointers: the inner loops know no masks. Results are collected in the cache
//! and leave it as whole rows, whatever their alignment.

use super::partition::Partition;
use super::sequences::{Piece, Sequences};
use super::states::History;
use super::tensors::{Parameter, Source};
use crate::backend::cpu::simd::{Number, Simd};
use crate::causal_conv1d::Sizes;

/// Widths up to this one keep their taps in registers. Kernels are compiled for width 4, which most models have,
/// and for this one, which passes over the taps that a smaller width lacks.
pub(super) const MAX_WIDTH: usize = 8;
/// Channels of a task: a multiple of every number of lanes.
pub(super) const GROUP: usize = 256;
/// Rows that a vector of channels walks down at a time.
pub(super) const BLOCK: usize = 8;
/// Most lanes of any vector.
const MAX_LANES: usize = 16;

/// Positions of a segment.
const SEGMENT: i64 = 128;

pub(super) fn partition(sizes: &Sizes, max_chunks: i64) -> Partition {
    Partition::new(sizes, GROUP as i64, SEGMENT, max_chunks)
}

/// Whether tensors with these strides, along (batch, dim, seqlen), are best taken row by row.
pub(super) fn are_rows(sizes: &Sizes, strides: &[&[i64]]) -> bool {
    let neighbours = |axis: usize| strides.iter().all(|strides| strides[axis] == 1);
    let either = neighbours(2) && sizes.seqlen > sizes.dim;
    neighbours(1) && !either && sizes.dim > 1 && sizes.width <= MAX_WIDTH as i64
}

/// Rows that a block sees: its own and the history.
pub(super) const ROWS: usize = BLOCK + MAX_WIDTH - 1;

/// Pointers to rows of elements; null stands for a row that counts as nothing.
pub(super) type Rows<T> = [*const T; ROWS];

/// Finished rows, on their way to a tensor.
pub(super) type Finished<T> = [[T; GROUP]; BLOCK];

/// Weight and bias of a task's channels, a row of `GROUP` per tap.
pub(super) struct Weights<A> {
    pub taps: [[A; GROUP]; MAX_WIDTH],
    pub bias: [A; GROUP],
}

impl<A: Number> Weights<A> {
    pub fn load(
        weight: &Parameter,
        bias: Option<&Parameter>,
        width: usize,
        channels: std::ops::Range<i64>,
    ) -> Self {
        let mut weights = Weights { taps: [[A::ZERO; GROUP]; MAX_WIDTH], bias: [A::ZERO; GROUP] };
        for (i, channel) in channels.enumerate() {
            for (tap, row) in weights.taps[..width].iter_mut().enumerate() {
                // SAFETY: channel and tap lie in the weight.
                row[i] = unsafe { weight.read(channel, tap as i64) };
            }
            if let Some(bias) = bias {
                // SAFETY: the channel lies in the bias.
                weights.bias[i] = unsafe { bias.read(channel, 0) };
            }
        }
        weights
    }
}

/// What the rows before a piece point to where they are not rows of x.
pub(super) struct HistoryRows<T> {
    rows: [[T; GROUP]; MAX_WIDTH - 1],
    /// `width - 1`.
    before: i64,
    zeros: [T; GROUP],
}

impl<T: Number> HistoryRows<T> {
    pub fn new(width: usize) -> Self {
        let rows = [[T::ZERO; GROUP]; MAX_WIDTH - 1];
        HistoryRows { rows, before: width as i64 - 1, zeros: [T::ZERO; GROUP] }
    }

    /// Copies the initial states that a piece sees before its sequence.
    pub fn load(
        &mut self,
        history: &History<T>,
        sequences: &Sequences,
        piece: &Piece,
        channels: std::ops::Range<i64>,
    ) {
        for column in (piece.from - piece.start).min(self.before)..self.before {
            for (value, channel) in self.rows[column as usize].iter_mut().zip(channels.clone()) {
                *value = history.initial_state(sequences, piece, channel, column);
            }
        }
    }

    /// The row that a piece's convolution sees at a position, from `width - 1` before its sequence on.
    pub fn row(
        &self,
        x: &Source<T, 3>,
        sequences: &Sequences,
        piece: &Piece,
        channel: i64,
        position: i64,
    ) -> *const T {
        let inside = (piece.from..piece.to).contains(&position);
        if inside || piece.includes(sequences, position) {
            x.at([piece.batch, channel, position])
        } else if position < piece.start {
            self.rows[(position - piece.start + self.before) as usize].as_ptr()
        } else {
            self.zeros.as_ptr()
        }
    }
}

/// Channels whose vectors are loaded alike.
#[derive(Clone, Copy)]
pub(super) struct Span {
    /// First channel, from the first one of the task.
    pub first: usize,
    /// Vectors.
    pub vectors: usize,
    /// Whether they are less than a vector, and their rows have to be copied.
    pub is_tail: bool,
}

/// Cuts `channels` into whole vectors and the rest, which is one vector of copies.
pub(super) fn spans<S: Simd>(_: S, channels: usize) -> [Span; 2] {
    let whole = channels / S::LANES;
    let first = whole * S::LANES;
    let rest = usize::from(first < channels);
    [Span { first: 0, vectors: whole, is_tail: false }, Span { first, vectors: rest, is_tail: true }]
}

/// Rows copied for the channels that do not fill a vector, so that loads stay inside the tensors.
pub(super) struct Tail<T>([[T; MAX_LANES]; ROWS]);

impl<T: Number> Tail<T> {
    pub fn new() -> Self {
        Tail([[T::ZERO; MAX_LANES]; ROWS])
    }

    /// Copies channels `first .. channels` of each row that is not null, and points there.
    ///
    /// # Safety
    /// The rows have that many elements, and `channels - first` is less than `MAX_LANES`.
    pub unsafe fn copy(&mut self, rows: &Rows<T>, first: usize, channels: usize) -> Rows<T> {
        let mut copies = [std::ptr::null(); ROWS];
        for i in (0..ROWS).filter(|&i| !rows[i].is_null()) {
            // SAFETY: the caller's promise.
            unsafe { self.0[i].as_mut_ptr().copy_from_nonoverlapping(rows[i].add(first), channels - first) };
            copies[i] = self.0[i].as_ptr();
        }
        copies
    }
}
