//! Forward with vectors along the channels; see [`super::rows`] for the traversal.

use super::forward::Problem;
use super::partition::Partition;
use super::rows::{
    self, BLOCK, Destination, Finished, GROUP, HistoryRows, MAX_WIDTH, ROWS, Rows, Span, Tail, Weights,
    load_lanes, prefetch_pair,
};
use super::sequences::Piece;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// Rows whose SiLU is computed together.
const INTERLEAVED: usize = 2;

/// A group of channels of some segments per task.
pub(super) struct AlongChannels<T: Number, const WIDTH: usize> {
    pub partition: Partition,
    pub problem: Problem<T>,
}

/// What a task works in.
struct Buffers<T: Number> {
    weights: Weights<T::Accumulator>,
    history: HistoryRows<T>,
    x_tail: Tail<T>,
    residual_tail: Tail<T>,
    y: Finished<T>,
}

impl<T: Number, const WIDTH: usize> Kernel for AlongChannels<T, WIDTH> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let (channels, chunk) = self.partition.task(task);
        let mut buffers = Buffers {
            weights: Weights::load::<S, T>(
                &problem.weight,
                problem.bias.as_ref(),
                problem.width,
                channels.clone(),
            ),
            history: HistoryRows::new(problem.width),
            x_tail: Tail::new(),
            residual_tail: Tail::new(),
            y: [[T::ZERO; GROUP]; BLOCK],
        };
        let count = channels.clone().count();
        let mut pieces = Vec::new();
        for column in self.partition.columns(chunk) {
            self.problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for piece in &pieces {
                buffers.history.load(&self.problem.history, &self.problem.sequences, piece, channels.clone());
                for from in (piece.from..piece.to).step_by(BLOCK) {
                    self.block(simd, piece, channels.start, count, from, &mut buffers);
                }
            }
        }
        simd.fence();
    }
}

impl<T: Number, const WIDTH: usize> AlongChannels<T, WIDTH> {
    /// Known when the kernel is compiled, but for the kernel of the greatest width.
    #[inline(always)]
    fn width(&self) -> usize {
        if WIDTH < MAX_WIDTH { WIDTH } else { self.problem.width }
    }

    /// A block of rows of a piece.
    #[inline(always)]
    fn block<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        channels: usize,
        from: i64,
        buffers: &mut Buffers<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let count = (piece.to - from).min(BLOCK as i64) as usize;
        let (mut x, mut residual) = ([std::ptr::null(); ROWS], [std::ptr::null(); ROWS]);
        if !piece.is_padding() {
            for (row, position) in
                x[..count + self.width() - 1].iter_mut().zip(from - (self.width() as i64 - 1)..)
            {
                *row = buffers.history.row(
                    &self.problem.history.x,
                    &self.problem.sequences,
                    piece,
                    channel,
                    position,
                );
            }
        }
        if let Some(tensor) = &self.problem.residual {
            for (row, position) in residual[..count].iter_mut().zip(from..) {
                *row = tensor.at([piece.batch, channel, position]);
            }
        }
        let target = |position| self.problem.y.at([piece.batch, channel, position]);
        let positions = from..from + count as i64;
        let destination = Destination::new(Some(positions.clone().map(target)), self.problem.stream);
        for span in rows::spans(simd, channels) {
            if span.is_tail && span.pairs > 0 {
                // SAFETY: the rows hold the channels of the task; the rest is less than a pair.
                unsafe {
                    x = buffers.x_tail.copy(&x, span.first, channels);
                    residual = buffers.residual_tail.copy(&residual, span.first, channels);
                }
            }
            let (y, stream) = destination.of_span(span, &mut buffers.y);
            let walk = Walk { x: &x, residual: &residual, y, stream, weights: &buffers.weights };
            // SAFETY: rows hold whole pairs from the span's first channel on.
            unsafe { self.walk(simd, span, count, &walk) };
        }
        for (row, position) in buffers.y.iter().zip(positions) {
            // SAFETY: the channels lie in y, and no other task writes to them at this position.
            unsafe { destination.finish(simd, &row[..channels], target(position)) };
        }
    }

    /// Each pair of a span walks down `count` rows.
    ///
    /// # Safety
    /// Rows that are not null hold the span's pairs; x has `count + width - 1` rows or none, y has `count`.
    #[inline(always)]
    unsafe fn walk<S>(&self, simd: S, span: Span, count: usize, walk: &Walk<'_, T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (width, before) = (self.width(), self.width() - 1);
        let zero = [simd.splat(T::Accumulator::ZERO); 2];
        for pair in 0..span.pairs {
            let offset = pair * 2 * S::LANES;
            let channel = span.first + offset;
            // SAFETY: offsets lie in the rows by the caller's promise, and channels in rows of `GROUP`.
            unsafe {
                let bias = load_lanes(simd, walk.weights.bias.as_ptr().add(channel));
                let mut state = Column { offset, channel, bias, taps: [zero; WIDTH], window: [zero; WIDTH] };
                for age in 0..WIDTH {
                    if age < width {
                        let taps = walk.weights.taps[width - 1 - age].as_ptr();
                        state.taps[age] = load_lanes(simd, taps.add(channel));
                    }
                    if age < before && !walk.x[0].is_null() {
                        state.window[age] = T::load_pair(simd, walk.x[before - 1 - age].add(offset));
                    }
                }
                let mut row = 0;
                while row + INTERLEAVED <= count {
                    self.rows::<S, { 2 * INTERLEAVED }>(simd, walk, &mut state, row);
                    row += INTERLEAVED;
                }
                while row < count {
                    self.rows::<S, 2>(simd, walk, &mut state, row);
                    row += 1;
                }
            }
        }
    }

    /// `N / 2` rows of a pair.
    ///
    /// # Safety
    /// As for [`Self::walk`], and `first + N / 2 ≤ count`.
    #[inline(always)]
    unsafe fn rows<S, const N: usize>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        column: &mut Column<S, WIDTH>,
        first: usize,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // The next block's rows are asked for one block ahead.
        let ahead = self.problem.history.x.strides[2].wrapping_mul(BLOCK as isize);
        let (width, offset) = (self.width(), column.offset);
        let mut sums = [simd.splat(T::Accumulator::ZERO); N];
        // SAFETY: the caller's promise.
        unsafe {
            if !walk.x[0].is_null() {
                for (row, sums) in (first..).zip(sums.chunks_exact_mut(2)) {
                    let newest = walk.x[row + width - 1].wrapping_add(offset);
                    prefetch_pair(simd, newest.wrapping_offset(ahead));
                    for age in (1..WIDTH).rev() {
                        column.window[age] = column.window[age - 1];
                    }
                    column.window[0] = T::load_pair(simd, newest);
                    for (part, sum) in sums.iter_mut().enumerate() {
                        *sum = column.bias[part];
                        for age in (0..WIDTH).rev() {
                            if age < width {
                                *sum = simd.mul_add(column.taps[age][part], column.window[age][part], *sum);
                            }
                        }
                    }
                }
                if self.problem.silu {
                    sums = simd.silu::<T, N>(sums);
                }
            }
            if self.problem.residual.is_some() {
                for (row, sums) in (first..).zip(sums.chunks_exact_mut(2)) {
                    let added = T::load_pair(simd, walk.residual[row].add(offset));
                    sums[0] = simd.add(sums[0], added[0]);
                    sums[1] = simd.add(sums[1], added[1]);
                }
            }
            for (row, sums) in (first..).zip(sums.chunks_exact(2)) {
                let target = walk.y[row].add(column.channel);
                if walk.stream {
                    T::store_pair::<true>(simd, target, [sums[0], sums[1]]);
                } else {
                    T::store_pair::<false>(simd, target, [sums[0], sums[1]]);
                }
            }
        }
    }
}

/// What a block reads and writes.
struct Walk<'a, T: Number> {
    /// History first; null for padding.
    x: &'a Rows<T>,
    residual: &'a Rows<T>,
    y: [*mut T; BLOCK],
    /// Whether y is stored past the caches.
    stream: bool,
    weights: &'a Weights<T::Accumulator>,
}

/// A pair of vectors on its way down.
struct Column<S: Simd, const WIDTH: usize> {
    /// In the rows that are read.
    offset: usize,
    /// In the task.
    channel: usize,
    bias: [S::Vector; 2],
    /// By age: 0 is the output's own position.
    taps: [[S::Vector; 2]; WIDTH],
    window: [[S::Vector; 2]; WIDTH],
}
