//! Forward with vectors along the channels; see [`super::super::rows`] for the traversal.

use super::super::blocks::{BLOCK, GROUP, MAX_WIDTH, ROWS, Rows, Tail};
use super::super::gates::GateBuffers;
use super::super::partition::Partition;
use super::super::registers::{INTERLEAVED, WIDE_LANES};
use super::super::rows::{
    self, Destination, Finished, HistoryRows, PairAt, Span, TaskWeights, Weights, load_lanes, prefetch_pair,
};
use super::super::sequences::Piece;
use super::Problem;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// A group of channels of some segments per task.
pub(super) struct AlongChannels<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
    pub weights: Weights<T::Accumulator>,
}

/// What a task works in.
struct Buffers<T: Number> {
    history: HistoryRows<T>,
    x_tail: Tail<T>,
    residual_tail: Tail<T>,
    y: Finished<T>,
    gates: Option<Box<GateBuffers<T>>>,
}

impl<T: Number> Kernel for AlongChannels<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let (channels, chunk) = self.partition.task(task);
        let weights = self.weights.of_task::<S, T>(
            &problem.weight,
            problem.bias.as_ref(),
            (self.partition.dim, problem.width),
            channels.start,
        );
        let gated = problem.history.gate.is_some() || problem.gate.is_some();
        let mut buffers = Buffers {
            history: HistoryRows::new(problem.width),
            x_tail: Tail::new(),
            residual_tail: Tail::new(),
            y: [[T::ZERO; GROUP]; BLOCK],
            gates: gated.then(GateBuffers::new),
        };
        let count = channels.clone().count();
        let mut pieces = Vec::new();
        for column in self.partition.columns(chunk) {
            self.problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for piece in &pieces {
                buffers.history.load(&self.problem.history, &self.problem.sequences, piece, channels.clone());
                for from in (piece.from..piece.to).step_by(BLOCK) {
                    self.block(simd, piece, channels.start, count, from, weights, &mut buffers);
                }
            }
        }
        simd.fence();
    }
}

impl<T: Number> AlongChannels<T> {
    /// A block of rows of a piece.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn block<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        channels: usize,
        from: i64,
        weights: TaskWeights<'_, T::Accumulator>,
        buffers: &mut Buffers<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let count = (piece.to - from).min(BLOCK as i64) as usize;
        let (mut x, mut residual) = ([std::ptr::null(); ROWS], [std::ptr::null(); ROWS]);
        if !piece.is_padding() {
            for (row, position) in
                x[..count + self.problem.width - 1].iter_mut().zip(from - (self.problem.width as i64 - 1)..)
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
        let (mut b, mut c) = ([std::ptr::null(); ROWS], [std::ptr::null(); ROWS]);
        if !piece.is_padding()
            && let Some(buffers) = &buffers.gates
        {
            let sequences = &self.problem.sequences;
            if let Some(gate) = &self.problem.history.gate {
                let rows = b[..count + self.problem.width - 1].iter_mut();
                for (row, position) in rows.zip(from - (self.problem.width as i64 - 1)..) {
                    *row = gate.row_of_history(sequences, piece, (channel, position), &buffers.ones);
                }
            }
            if let Some(gate) = &self.problem.gate {
                for (row, position) in c[..count].iter_mut().zip(from..) {
                    *row = gate.row(piece.batch, channel, position);
                }
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
                    if let Some(buffers) = &mut buffers.gates {
                        b = buffers.b_tail.copy(&b, span.first, channels);
                        c = buffers.c_tail.copy(&c, span.first, channels);
                    }
                    residual = buffers.residual_tail.copy(&residual, span.first, channels);
                }
            }
            let (y, stream) = destination.of_span(span, &mut buffers.y);
            let walk = Walk { x: &x, b: &b, c: &c, residual: &residual, y, stream, weights };
            // SAFETY: rows hold whole pairs from the span's first channel on.
            unsafe { self.walk(simd, span, count, &walk) };
        }
        for (row, position) in buffers.y.iter().zip(positions) {
            // SAFETY: the channels lie in y, and no other task writes to them at this position.
            unsafe { destination.finish(simd, &row[..channels], target(position)) };
        }
    }

    /// Each pair of a span walks down `count` rows, in two passes over sums that stay in the L1 cache.
    ///
    /// # Safety
    /// Rows that are not null hold the span's pairs; x has `count + width - 1` rows or none, y has `count`.
    #[inline(always)]
    unsafe fn walk<S>(&self, simd: S, span: Span, count: usize, walk: &Walk<'_, T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let mut sums = [[simd.splat(T::Accumulator::ZERO); 2]; BLOCK];
        for pair in 0..span.pairs {
            let column = PairAt::new(simd, span, pair);
            // SAFETY: the caller's promise.
            unsafe {
                // The number of rows is known when the body is compiled, unless it is an end's.
                if count < BLOCK {
                    self.column::<S, 2, false>(simd, walk, column, &mut sums[..count]);
                } else if const { S::LANES == WIDE_LANES } {
                    self.column::<S, { 2 * INTERLEAVED }, true>(simd, walk, column, &mut sums[..BLOCK]);
                } else {
                    self.column::<S, INTERLEAVED, true>(simd, walk, column, &mut sums[..BLOCK]);
                }
            }
        }
    }

    /// A pair's rows, as many as there are sums and a multiple of `N / 2`: a block of them if `WHOLE`.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn column<S, const N: usize, const WHOLE: bool>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        column: PairAt,
        sums: &mut [[S::Vector; 2]],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let convolves = !walk.x[0].is_null();
        // SAFETY: the caller's promise.
        unsafe {
            if !convolves {
                sums.fill([simd.splat(T::Accumulator::ZERO); 2]);
            } else if WHOLE {
                match (self.problem.width, self.problem.history.gate.is_some()) {
                    (3, false) => self.sums::<S, 3, false>(simd, walk, column, sums),
                    (3, true) => self.sums::<S, 3, true>(simd, walk, column, sums),
                    (4, false) => self.sums::<S, 4, false>(simd, walk, column, sums),
                    (4, true) => self.sums::<S, 4, true>(simd, walk, column, sums),
                    (_, false) => self.sums::<S, MAX_WIDTH, false>(simd, walk, column, sums),
                    (_, true) => self.sums::<S, MAX_WIDTH, true>(simd, walk, column, sums),
                }
            } else {
                self.sums::<S, MAX_WIDTH, true>(simd, walk, column, sums);
            }
            simd.to_memory(sums);
            for (group, sums) in sums.chunks_exact(N / 2).enumerate() {
                let mut results = [simd.splat(T::Accumulator::ZERO); N];
                for (results, sums) in results.chunks_exact_mut(2).zip(sums) {
                    results.copy_from_slice(sums);
                }
                if convolves && self.problem.silu {
                    results = simd.silu::<T, N>(results);
                }
                self.store(simd, walk, column, group * (N / 2), results);
            }
        }
    }

    /// The convolution of a pair's rows, which a gate multiplies if it is there and `GATED`. `MAX_WIDTH` stands for any width: taps that it
    /// lacks are passed over.
    ///
    /// # Safety
    /// As for [`Self::walk`], and x has rows.
    #[inline(always)]
    unsafe fn sums<S, const WIDTH: usize, const GATED: bool>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        column: PairAt,
        sums: &mut [[S::Vector; 2]],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let ahead = column.ahead(self.problem.history.x.strides[2]);
        let width = if WIDTH < MAX_WIDTH { WIDTH } else { self.problem.width };
        let before = width - 1;
        let zero = [simd.splat(T::Accumulator::ZERO); 2];
        // By age: 0 is the output's own position.
        let (mut taps, mut window) = ([zero; WIDTH], [zero; WIDTH]);
        // SAFETY: offsets lie in the rows by the caller's promise, and channels in rows of `GROUP`.
        unsafe {
            let bias = load_lanes(simd, walk.weights.bias().add(column.channel));
            for age in 0..WIDTH {
                if age < width {
                    taps[age] = load_lanes(simd, walk.weights.tap(width - 1 - age).add(column.channel));
                }
                if age < before {
                    window[age] = self.tap::<S, GATED>(simd, walk, before - 1 - age, column.offset);
                }
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let newest = walk.x[row + before].wrapping_add(column.offset);
                prefetch_pair(simd, newest.wrapping_offset(ahead));
                for age in (1..WIDTH).rev() {
                    window[age] = window[age - 1];
                }
                window[0] = self.tap::<S, GATED>(simd, walk, row + before, column.offset);
                for part in 0..2 {
                    let mut sum = bias[part];
                    for age in (0..WIDTH).rev() {
                        if age < width {
                            sum = simd.mul_add(taps[age][part], window[age][part], sum);
                        }
                    }
                    sums[part] = sum;
                }
            }
        }
    }

    /// What a tap reads of a row.
    ///
    /// # Safety
    /// As for [`Self::walk`], and x has the row.
    #[inline(always)]
    unsafe fn tap<S, const GATED: bool>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        row: usize,
        offset: usize,
    ) -> [S::Vector; 2]
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise; a gate has a row for each of x.
        unsafe {
            let x = T::load_pair(simd, walk.x[row].add(offset));
            if GATED && let Some(gate) = &self.problem.history.gate {
                return gate.times_pair(simd, walk.b[row].add(offset), x);
            }
            x
        }
    }

    /// Multiplies `N / 2` rows of a pair with the gate, adds the residual, and takes them to y.
    ///
    /// # Safety
    /// As for [`Self::walk`], and the rows from `first` on are among its rows.
    #[inline(always)]
    unsafe fn store<S, const N: usize>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        column: PairAt,
        first: usize,
        mut results: [S::Vector; N],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            if !walk.c[first].is_null()
                && let Some(gate) = &self.problem.gate
            {
                for (row, results) in (first..).zip(results.chunks_exact_mut(2)) {
                    let kept = gate.kept_pair(simd, [results[0], results[1]]);
                    let factors = walk.c[row].add(column.offset);
                    results.copy_from_slice(&gate.times_pair(simd, factors, kept));
                }
            }
            if self.problem.residual.is_some() {
                for (row, results) in (first..).zip(results.chunks_exact_mut(2)) {
                    let added = T::load_pair(simd, walk.residual[row].add(column.offset));
                    results[0] = simd.add(results[0], added[0]);
                    results[1] = simd.add(results[1], added[1]);
                }
            }
            for (row, results) in (first..).zip(results.chunks_exact(2)) {
                let target = walk.y[row].add(column.channel);
                if walk.stream {
                    T::store_pair::<true>(simd, target, [results[0], results[1]]);
                } else {
                    T::store_pair::<false>(simd, target, [results[0], results[1]]);
                }
            }
        }
    }
}

/// What a block reads and writes.
struct Walk<'a, T: Number> {
    /// History first; null for padding.
    x: &'a Rows<T>,
    /// The gates of x, and of results; null where there is none.
    b: &'a Rows<T>,
    c: &'a Rows<T>,
    residual: &'a Rows<T>,
    y: [*mut T; BLOCK],
    /// Whether y is stored past the caches.
    stream: bool,
    weights: TaskWeights<'a, T::Accumulator>,
}
