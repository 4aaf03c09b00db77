//! Channel-last tensors as rows: the channels of one position, neighbours in memory.
//!
//! ```text
//!              channels of a task (GROUP)
//! position    ┌──────────────────────────┐
//!   t-3       │ history: rows of x, or of initial states, or zeros
//!   t-2       │
//!   t-1       │
//!   t         │▒▒▒▒ →                  a pair of vectors takes a BLOCK of rows, then the next pair does;
//!   t+1       │▒▒▒▒                    in several passes (forward/along_channels.rs, backward/passes.rs)
//!   ...       │▒▒▒▒
//!             └──────────────────────────┘
//! ```
//!
//! Every mask of seq_idx and cu_seqlens
//! concerns whole rows, so that it is a choice of pointers: the inner loops know no masks.

use std::ops::Range;
use std::sync::OnceLock;

use super::blocks::{BLOCK, GROUP, MAX_PAIR, MAX_WIDTH};
use super::partition::Partition;
use super::sequences::{Piece, Sequences};
use super::states::History;
use super::tensors::{Parameter, Source, Target};
use super::tile::write_row;
use crate::backend::cpu::simd::{LINE, Lanes, Number, Part, Simd};
use crate::causal_conv1d::Sizes;

/// Pairs from the one that is computed to the one whose rows are asked for meanwhile: far enough for memory to answer, and
/// so near that they are still in the L1 cache. Rows of the next block are not, where strides are a power of two.
const AHEAD: usize = 8;

/// A pair of vectors of channels.
#[derive(Clone, Copy)]
pub(super) struct PairAt {
    /// Its first channel, in the rows that are read.
    pub offset: usize,
    /// The same in the task.
    pub channel: usize,
    /// Channels to the pair that is asked for meanwhile.
    further: isize,
    /// Whether that one is asked for in the rows of the next block.
    in_next_block: bool,
}

impl PairAt {
    #[inline(always)]
    pub fn new<S: Simd>(_: S, span: Span, pair: usize) -> Self {
        let lanes = 2 * S::LANES;
        let ahead = pair + AHEAD.min(span.pairs);
        let in_next_block = ahead >= span.pairs;
        let asked = if in_next_block { ahead - span.pairs } else { ahead };
        PairAt {
            offset: pair * lanes,
            channel: span.first + pair * lanes,
            further: (asked as isize - pair as isize) * lanes as isize,
            in_next_block,
        }
    }

    /// Elements from a row of this pair to what is asked for meanwhile.
    #[inline(always)]
    pub fn ahead(&self, row_stride: isize) -> isize {
        let rows = if self.in_next_block { BLOCK as isize } else { 0 };
        row_stride.wrapping_mul(rows).wrapping_add(self.further)
    }
}

/// Positions of a segment, and at most so many times as many: where a task would have several segments, they are longer,
/// since each has an end of its own.
const SEGMENT: i64 = 128;
const MAX_SEGMENTS: i64 = 4;

pub(super) fn partition(sizes: &Sizes, max_chunks: i64) -> Partition {
    let segments = sizes.batch.saturating_mul(sizes.seqlen / SEGMENT);
    let together = (segments / max_chunks).clamp(1, MAX_SEGMENTS);
    Partition::new(sizes, GROUP as i64, SEGMENT * together, max_chunks)
}

/// Whether tensors with these strides, along (batch, dim, seqlen), are best taken row by row.
pub(super) fn are_rows(sizes: &Sizes, strides: &[&[i64]]) -> bool {
    let neighbours = |axis: usize| strides.iter().all(|strides| strides[axis] == 1);
    let either = neighbours(2) && sizes.seqlen > sizes.dim;
    neighbours(1) && !either && sizes.dim > 1 && sizes.width <= MAX_WIDTH as i64
}

/// Finished rows, on their way to a tensor.
pub(super) type Finished<T> = [[T; GROUP]; BLOCK];

/// Weight and bias of all channels, a row per tap, in the order of the lanes of pairs. Read by the first task that needs
/// them: which order it is depends on the processor.
pub(super) struct Weights<A>(OnceLock<Vec<A>>);

/// Weight and bias of a task's channels.
#[derive(Clone, Copy)]
pub(super) struct TaskWeights<'a, A> {
    values: &'a [A],
    /// From row to row.
    stride: usize,
    first: usize,
    width: usize,
}

impl<A: Number> Weights<A> {
    pub fn new() -> Self {
        Weights(OnceLock::new())
    }

    /// Those of the task that begins with channel `first`, a multiple of `GROUP`.
    #[inline(always)]
    pub fn of_task<S: Simd<Scalar = A>, T: Lanes<S>>(
        &self,
        simd: S,
        weight: &Parameter,
        bias: Option<&Parameter>,
        sizes: (i64, usize),
        first: i64,
    ) -> TaskWeights<'_, A> {
        let (dim, width) = sizes;
        let stride = (dim as usize).next_multiple_of(GROUP);
        let pair = if T::ALTERNATES { 2 * S::LANES } else { 1 };
        if self.0.get().is_none() {
            simd.apart(ReadAll { weights: self, weight, bias, sizes, stride, pair });
        }
        let values = self.0.get().map_or(&[][..], |values| values);
        TaskWeights { values, stride, first: first as usize, width }
    }
}

/// What [`Weights::of_task`] reads the first time; `pair` elements alternate.
struct ReadAll<'a, A> {
    weights: &'a Weights<A>,
    weight: &'a Parameter,
    bias: Option<&'a Parameter>,
    sizes: (i64, usize),
    stride: usize,
    pair: usize,
}

impl<S: Simd> Part<S> for ReadAll<'_, S::Scalar> {
    #[inline(always)]
    fn run(self, simd: S) {
        let ReadAll { weights, weight, bias, sizes: (dim, width), stride, pair } = self;
        weights.0.get_or_init(|| {
            let mut values = vec![S::Scalar::ZERO; (width + 1) * stride];
            for (tap, row) in values.chunks_exact_mut(stride).enumerate() {
                // SAFETY: the channels and taps lie in weight and bias.
                unsafe {
                    match bias {
                        _ if tap < width => weight.read_channels(simd, 0..dim, tap as i64, row, 1),
                        Some(bias) => bias.read_channels(simd, 0..dim, 0, row, 1),
                        None => {}
                    }
                }
                if pair > 1 {
                    alternate(&mut row[..(dim as usize).next_multiple_of(pair)], pair);
                }
            }
            values
        });
    }
}

/// Takes the even elements of each pair before its odd ones, in the order of the lanes of pairs that alternate.
fn alternate<A: Number>(row: &mut [A], pair: usize) {
    for row in row.chunks_exact_mut(pair) {
        let mut elements = [A::ZERO; MAX_PAIR];
        elements[..pair].copy_from_slice(row);
        for i in 0..pair / 2 {
            row[i] = elements[2 * i];
            row[pair / 2 + i] = elements[2 * i + 1];
        }
    }
}

impl<A> TaskWeights<'_, A> {
    /// A row of `GROUP`.
    #[inline(always)]
    pub fn tap(&self, tap: usize) -> *const A {
        self.values[tap * self.stride + self.first..].as_ptr()
    }

    /// A row of `GROUP`.
    #[inline(always)]
    pub fn bias(&self) -> *const A {
        self.tap(self.width)
    }
}

/// Two vectors of a row of `GROUP`.
///
/// # Safety
/// `row` points at `2 · S::LANES` readable scalars.
#[inline(always)]
pub(super) unsafe fn load_lanes<S: Simd>(simd: S, row: *const S::Scalar) -> [S::Vector; 2] {
    // SAFETY: the caller's promise.
    unsafe { [simd.load(row), simd.load(row.add(S::LANES))] }
}

/// As [`load_lanes`].
///
/// # Safety
/// `row` points at `2 · S::LANES` writable scalars.
#[inline(always)]
pub(super) unsafe fn store_lanes<S: Simd>(simd: S, row: *mut S::Scalar, pair: [S::Vector; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        simd.store(row, pair[0]);
        simd.store(row.add(S::LANES), pair[1]);
    }
}

/// Asks for what a pair loads later.
#[inline(always)]
pub(super) fn prefetch_pair<S: Simd, T>(simd: S, address: *const T) {
    for line in 0..(2 * S::LANES * size_of::<T>()).div_ceil(LINE) {
        simd.prefetch(address.cast::<u8>().wrapping_add(line * LINE));
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
    #[inline(always)]
    pub fn new(width: usize) -> Self {
        let rows = [[T::ZERO; GROUP]; MAX_WIDTH - 1];
        HistoryRows { rows, before: width as i64 - 1, zeros: [T::ZERO; GROUP] }
    }

    /// Copies the initial states that a piece sees before its sequence.
    #[inline(never)]
    pub fn load(&mut self, history: &History<T>, sequences: &Sequences, piece: &Piece, channels: Range<i64>) {
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

/// Channels whose pairs are loaded alike.
#[derive(Clone, Copy)]
pub(super) struct Span {
    /// First channel, from the first one of the task.
    pub first: usize,
    /// Pairs of vectors.
    pub pairs: usize,
    /// Whether they are less than a pair, and their rows have to be copied.
    pub is_tail: bool,
}

/// Cuts `channels` into whole pairs and the rest, which is one pair of copies.
pub(super) fn spans<S: Simd>(_: S, channels: usize) -> [Span; 2] {
    let whole = channels / (2 * S::LANES);
    let first = whole * 2 * S::LANES;
    let rest = usize::from(first < channels);
    [Span { first: 0, pairs: whole, is_tail: false }, Span { first, pairs: rest, is_tail: true }]
}

/// Where the results of a block go: straight to the rows of a tensor, or first to a buffer in the cache.
pub(super) struct Destination<T> {
    /// Of the tensor.
    rows: [*mut T; BLOCK],
    /// The rows that go there.
    wanted: Range<usize>,
    /// Whether a walk stores there itself.
    direct: bool,
    stream: bool,
}

impl<T: Number> Destination<T> {
    /// The rows of a tensor for a block at these `positions`, of which those before `first` go elsewhere. Past the caches, if `stream`,
    /// go whole lines only.
    #[inline(never)]
    pub fn new(
        tensor: &Target<T, 3>,
        (batch, channel): (i64, i64),
        positions: Range<i64>,
        first: i64,
        stream: bool,
    ) -> Self {
        let mut rows = [std::ptr::null_mut(); BLOCK];
        let mut direct = positions.start >= first;
        let wanted = (first - positions.start).max(0) as usize..(positions.end - positions.start) as usize;
        for (row, position) in rows.iter_mut().zip(positions) {
            *row = tensor.at([batch, channel, position]);
            direct &= !stream || row.align_offset(LINE) == 0;
        }
        Destination { rows, wanted, direct, stream }
    }

    /// What the walk along a span stores to, and whether past the caches.
    #[inline(never)]
    pub fn of_span(&self, span: Span, buffer: &mut Finished<T>) -> ([*mut T; BLOCK], bool) {
        if self.direct && !span.is_tail {
            (self.rows, self.stream)
        } else {
            (buffer.each_mut().map(|row| row.as_mut_ptr()), false)
        }
    }

    /// Takes what walks have left in the rows of the buffer to the tensor.
    ///
    /// # Safety
    /// The rows have so many channels of the task, which nobody else uses meanwhile.
    #[inline(always)]
    pub unsafe fn finish<S: Simd>(&self, simd: S, buffer: &Finished<T>, channels: usize)
    where
        T: Lanes<S>,
    {
        let first = if self.direct { spans(simd, channels)[1].first } else { 0 };
        if first < channels {
            simd.apart(Finish { to: self, buffer, channels: first..channels });
        }
    }
}

/// What [`Destination::finish`] was called with, and its caller's promise.
struct Finish<'a, T> {
    to: &'a Destination<T>,
    buffer: &'a Finished<T>,
    channels: Range<usize>,
}

impl<S: Simd, T: Lanes<S>> Part<S> for Finish<'_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Finish { to, buffer, channels } = self;
        for row in to.wanted.clone() {
            // SAFETY: the promise.
            unsafe {
                let target = to.rows[row].add(channels.start);
                write_row(simd, &buffer[row][channels.clone()], target, to.stream && !to.direct);
            }
        }
    }
}
