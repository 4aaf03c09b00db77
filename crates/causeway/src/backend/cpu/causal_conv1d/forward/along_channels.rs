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
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Part, Simd};

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

impl<T: Number> Buffers<T> {
    #[inline(never)]
    fn new(width: usize, gated: bool) -> Self {
        Buffers {
            history: HistoryRows::new(width),
            x_tail: Tail::new(),
            residual_tail: Tail::new(),
            y: [[T::ZERO; GROUP]; BLOCK],
            gates: gated.then(GateBuffers::new),
        }
    }
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
            simd,
            &problem.weight,
            problem.bias.as_ref(),
            (self.partition.dim, problem.width),
            channels.start,
        );
        let gated = problem.history.gate.is_some() || problem.gate.is_some();
        let mut buffers = Buffers::new(problem.width, gated);
        let count = channels.clone().count();
        let mut pieces = Vec::new();
        for column in self.partition.columns(chunk) {
            self.problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for piece in &pieces {
                buffers.history.load(&self.problem.history, &self.problem.sequences, piece, channels.clone());
                let mut from = piece.from;
                while from < piece.to {
                    self.block(simd, piece, channels.start, count, from, weights, &mut buffers);
                    from += BLOCK as i64;
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
        let at = (piece.batch, channel);
        let positions = from..from + count as i64;
        let of_y = Destination::new(&self.problem.y, at, positions, from, self.problem.stream);
        let mut rows = self.rows(piece, channel, from, count, buffers);
        for span in rows::spans(simd, channels) {
            if span.is_tail && span.pairs > 0 {
                // SAFETY: the rows hold the channels of the task; the rest is less than a pair.
                unsafe {
                    rows.x = buffers.x_tail.copy(&rows.x, span.first, channels);
                    if let Some(buffers) = &mut buffers.gates {
                        rows.b = buffers.b_tail.copy(&rows.b, span.first, channels);
                        rows.c = buffers.c_tail.copy(&rows.c, span.first, channels);
                    }
                    rows.residual = buffers.residual_tail.copy(&rows.residual, span.first, channels);
                }
            }
            (rows.y, rows.stream) = of_y.of_span(span, &mut buffers.y);
            // SAFETY: rows hold whole pairs from the span's first channel on.
            unsafe { self.walk(simd, span, weights, &rows) };
        }
        // SAFETY: the channels lie in y, and no other task writes to them at these positions.
        unsafe { of_y.finish(simd, &buffers.y, channels) };
    }

    /// The rows that a block reads.
    #[inline(never)]
    fn rows(
        &self,
        piece: &Piece,
        channel: i64,
        from: i64,
        count: usize,
        buffers: &Buffers<T>,
    ) -> BlockRows<T> {
        let problem = &self.problem;
        let null = [std::ptr::null(); ROWS];
        let y = [std::ptr::null_mut(); BLOCK];
        let mut rows = BlockRows { x: null, b: null, c: null, residual: null, count, y, stream: false };
        let before = problem.width as i64 - 1;
        let positions = from..from + count as i64;
        let with_history = from - before..positions.end;
        if !piece.is_padding() {
            for (row, position) in rows.x.iter_mut().zip(with_history.clone()) {
                *row = buffers.history.row(&problem.history.x, &problem.sequences, piece, channel, position);
            }
            if let Some(buffers) = &buffers.gates {
                if let Some(gate) = &problem.history.gate {
                    for (row, position) in rows.b.iter_mut().zip(with_history) {
                        let at = (channel, position);
                        *row = gate.row_of_history(&problem.sequences, piece, at, &buffers.ones);
                    }
                }
                if let Some(gate) = &problem.gate {
                    for (row, position) in rows.c.iter_mut().zip(positions.clone()) {
                        *row = gate.row(piece.batch, channel, position);
                    }
                }
            }
        }
        if let Some(tensor) = &problem.residual {
            for (row, position) in rows.residual.iter_mut().zip(positions) {
                *row = tensor.at([piece.batch, channel, position]);
            }
        }
        rows
    }

    /// Each pair of a span walks down the rows, in two passes over sums that stay in the L1 cache.
    ///
    /// # Safety
    /// Rows that are not null hold the span's pairs; x has `count + width - 1` rows or none, y has `count`.
    #[inline(always)]
    unsafe fn walk<S>(
        &self,
        simd: S,
        span: Span,
        weights: TaskWeights<'_, T::Accumulator>,
        rows: &BlockRows<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        if span.pairs == 0 {
            return;
        }
        let walk = Walk { kernel: self, span, rows, weights };
        // The number of rows is known when the body is compiled, unless it is an end's.
        if rows.count == BLOCK {
            simd.apart(Compiled::<_, true>(walk));
        } else {
            simd.apart(Compiled::<_, false>(walk));
        }
    }

    /// A pair's rows: a block of them if `WHOLE`, and in any case a multiple of `N / 2`.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn column<S, const N: usize, const WHOLE: bool>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        column: PairAt,
        sums: &mut [[S::Vector; 2]; BLOCK],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let convolves = !walk.rows.x[0].is_null();
        let count = if WHOLE { BLOCK } else { walk.rows.count };
        // SAFETY: the caller's promise.
        unsafe {
            if !convolves {
                *sums = [[simd.splat(T::Accumulator::ZERO); 2]; BLOCK];
            } else if WHOLE {
                match (self.problem.width, self.problem.history.gate.is_some()) {
                    (3, false) => self.sums::<S, WHOLE, 3, false>(simd, walk, column, sums),
                    (3, true) => self.sums::<S, WHOLE, 3, true>(simd, walk, column, sums),
                    (4, false) => self.sums::<S, WHOLE, 4, false>(simd, walk, column, sums),
                    (4, true) => self.sums::<S, WHOLE, 4, true>(simd, walk, column, sums),
                    (_, false) => self.sums::<S, WHOLE, MAX_WIDTH, false>(simd, walk, column, sums),
                    (_, true) => self.sums::<S, WHOLE, MAX_WIDTH, true>(simd, walk, column, sums),
                }
            } else {
                self.sums::<S, WHOLE, MAX_WIDTH, true>(simd, walk, column, sums);
            }
            simd.to_memory(sums);
            for (group, sums) in sums[..count].chunks_exact(N / 2).enumerate() {
                let mut results = [simd.splat(T::Accumulator::ZERO); N];
                for (results, sums) in results.chunks_exact_mut(2).zip(sums) {
                    results.copy_from_slice(sums);
                }
                if convolves && self.problem.silu {
                    results = simd.silu::<T, N>(results);
                }
                self.store(simd, walk.rows, column, group * (N / 2), results);
            }
        }
    }

    /// The convolution of a pair's rows, which a gate multiplies if it is there and `GATED`. `MAX_WIDTH` stands for any width: taps that it
    /// lacks are passed over.
    ///
    /// # Safety
    /// As for [`Self::walk`], and x has rows.
    #[inline(always)]
    unsafe fn sums<S, const WHOLE: bool, const WIDTH: usize, const GATED: bool>(
        &self,
        simd: S,
        walk: &Walk<'_, T>,
        column: PairAt,
        sums: &mut [[S::Vector; 2]; BLOCK],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Walk { rows, weights, .. } = walk;
        let count = if WHOLE { BLOCK } else { rows.count };
        let ahead = column.ahead(self.problem.history.x.strides[2]);
        let width = if WIDTH < MAX_WIDTH { WIDTH } else { self.problem.width };
        let before = width - 1;
        let zero = [simd.splat(T::Accumulator::ZERO); 2];
        // By age: 0 is the output's own position.
        let (mut taps, mut window) = ([zero; WIDTH], [zero; WIDTH]);
        // SAFETY: offsets lie in the rows by the caller's promise, and channels in rows of `GROUP`.
        unsafe {
            let bias = load_lanes(simd, weights.bias().add(column.channel));
            for age in 0..WIDTH {
                if age < width {
                    taps[age] = load_lanes(simd, weights.tap(width - 1 - age).add(column.channel));
                }
                if age < before {
                    window[age] = self.tap::<S, GATED>(simd, rows, before - 1 - age, column.offset);
                }
            }
            for (row, sums) in sums[..count].iter_mut().enumerate() {
                let newest = rows.x[row + before].wrapping_add(column.offset);
                prefetch_pair(simd, newest.wrapping_offset(ahead));
                for age in (1..WIDTH).rev() {
                    window[age] = window[age - 1];
                }
                window[0] = self.tap::<S, GATED>(simd, rows, row + before, column.offset);
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
        rows: &BlockRows<T>,
        row: usize,
        offset: usize,
    ) -> [S::Vector; 2]
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise; a gate has a row for each of x.
        unsafe {
            let x = T::load_pair(simd, rows.x[row].add(offset));
            if GATED && let Some(gate) = &self.problem.history.gate {
                return gate.times_pair(simd, rows.b[row].add(offset), x);
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
        rows: &BlockRows<T>,
        column: PairAt,
        first: usize,
        mut results: [S::Vector; N],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            if !rows.c[first].is_null()
                && let Some(gate) = &self.problem.gate
            {
                for row in 0..N / 2 {
                    let kept = gate.kept_pair(simd, [results[2 * row], results[2 * row + 1]]);
                    let factors = rows.c[first + row].add(column.offset);
                    [results[2 * row], results[2 * row + 1]] = gate.times_pair(simd, factors, kept);
                }
            }
            if self.problem.residual.is_some() {
                for row in 0..N / 2 {
                    let added = T::load_pair(simd, rows.residual[first + row].add(column.offset));
                    results[2 * row] = simd.add(results[2 * row], added[0]);
                    results[2 * row + 1] = simd.add(results[2 * row + 1], added[1]);
                }
            }
            for row in 0..N / 2 {
                let target = rows.y[first + row].add(column.channel);
                let pair = [results[2 * row], results[2 * row + 1]];
                if rows.stream {
                    T::store_pair::<true>(simd, target, pair);
                } else {
                    T::store_pair::<false>(simd, target, pair);
                }
            }
        }
    }
}

/// What a block reads and writes.
struct BlockRows<T: Number> {
    /// History first; null for padding.
    x: Rows<T>,
    /// The gates of x, and of results; null where there is none.
    b: Rows<T>,
    c: Rows<T>,
    residual: Rows<T>,
    /// Rows of y.
    count: usize,
    y: [*mut T; BLOCK],
    /// Whether y is stored past the caches.
    stream: bool,
}

/// What [`AlongChannels::walk`] was called with, and its caller's promise.
struct Walk<'a, T: Number> {
    kernel: &'a AlongChannels<T>,
    span: Span,
    rows: &'a BlockRows<T>,
    weights: TaskWeights<'a, T::Accumulator>,
}

/// A walk down a block of rows, or, unless `WHOLE`, down any number.
struct Compiled<W, const WHOLE: bool>(W);

impl<S, T, const WHOLE: bool> Part<S> for Compiled<Walk<'_, T>, WHOLE>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let Walk { kernel, span, .. } = self.0;
        let mut sums = [[simd.splat(T::Accumulator::ZERO); 2]; BLOCK];
        for pair in 0..span.pairs {
            let column = PairAt::new(simd, span, pair);
            // SAFETY: the promise.
            unsafe {
                if const { !WHOLE } {
                    kernel.column::<S, 2, WHOLE>(simd, &self.0, column, &mut sums);
                } else if const { S::LANES == WIDE_LANES } {
                    kernel.column::<S, { 2 * INTERLEAVED }, WHOLE>(simd, &self.0, column, &mut sums);
                } else {
                    kernel.column::<S, INTERLEAVED, WHOLE>(simd, &self.0, column, &mut sums);
                }
            }
        }
    }
}
