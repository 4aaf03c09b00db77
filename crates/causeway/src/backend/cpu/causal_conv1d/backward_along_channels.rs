//! Backward with vectors along the channels; see [`super::rows`] for the traversal.
//!
//! ```text
//! row of g     t = from ................................ to-1 | to ... to+width-2
//! row of dx    p = t-(width-1): initial states | this piece ..................... |
//! ```
//!
//! dx lags g by `width - 1` rows; g of the last rows waits in `g`, between blocks too. Past the piece's end, g is
//! computed again for dx, but not summed.

use super::backward::Problem;
use super::partition::Partition;
use super::rows::{
    self, BLOCK, Destination, Finished, GROUP, HistoryRows, MAX_WIDTH, ROWS, Rows, Span, Tail, Weights,
    load_lanes, prefetch_pair, store_lanes,
};
use super::sequences::Piece;
use crate::backend::cpu::simd::{Accumulator, Kernel, Lanes, Number, Simd};

/// Rows whose SiLU is computed together.
const INTERLEAVED: usize = 2;

/// A group of channels of some segments per task.
pub(super) struct AlongChannels<T: Number, const WIDTH: usize> {
    pub partition: Partition,
    pub problem: Problem<T>,
}

/// Sums of a segment, a row of `GROUP` per tap and one for the bias, in the order of the lanes of pairs.
struct SegmentSums<A> {
    taps: [[A; GROUP]; MAX_WIDTH],
    bias: [A; GROUP],
}

impl<A: Accumulator> SegmentSums<A> {
    fn zeros() -> Self {
        SegmentSums { taps: [[A::ZERO; GROUP]; MAX_WIDTH], bias: [A::ZERO; GROUP] }
    }

    /// Adds to totals in f64, `width + 1` per channel, and starts again: the error does not grow with the
    /// length of the sequence.
    fn flush<S: Simd<Scalar = A>, T: Lanes<S>>(&mut self, totals: &mut [f64], width: usize) {
        for (channel, totals) in totals.chunks_exact_mut(width + 1).enumerate() {
            let rows = self.taps[..width].iter_mut().chain([&mut self.bias]);
            for (total, row) in totals.iter_mut().zip(rows) {
                *total += std::mem::replace(&mut row[T::lane(channel)], A::ZERO).to_f64();
            }
        }
    }
}

/// What a task works in.
struct Buffers<T: Number> {
    weights: Weights<T::Accumulator>,
    history: HistoryRows<T>,
    x_tail: Tail<T>,
    dy_tail: Tail<T>,
    added_tail: Tail<T>,
    /// g of the last `width - 1` rows, the newest first, in the order of the lanes of pairs.
    g: [[T::Accumulator; GROUP]; MAX_WIDTH - 1],
    sums: SegmentSums<T::Accumulator>,
    /// Where sums go that do not count.
    ignored: SegmentSums<T::Accumulator>,
    /// Gradients of the final states.
    dfinal: [[T; GROUP]; MAX_WIDTH - 1],
    dx: Finished<T>,
}

/// The rows that a block reads and writes.
struct BlockRows<T> {
    /// History first.
    x: Rows<T>,
    /// Null where g is zero.
    dy: Rows<T>,
    /// What is added to dx, if anything.
    added: Rows<T>,
    /// Rows of dy and dx.
    count: usize,
    /// Where results go.
    dx: [*mut T; BLOCK],
    /// Whether past the caches.
    stream: bool,
}

impl<T: Number, const WIDTH: usize> Kernel for AlongChannels<T, WIDTH> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, width) = (&self.problem, self.problem.width);
        let (channels, chunk) = self.partition.task(task);
        let count = channels.clone().count();
        let zero = T::Accumulator::ZERO;
        let mut buffers = Buffers {
            weights: Weights::load::<S, T>(&problem.weight, problem.bias.as_ref(), width, channels.clone()),
            history: HistoryRows::new(width),
            x_tail: Tail::new(),
            dy_tail: Tail::new(),
            added_tail: Tail::new(),
            g: [[zero; GROUP]; MAX_WIDTH - 1],
            sums: SegmentSums::zeros(),
            ignored: SegmentSums::zeros(),
            dfinal: [[T::ZERO; GROUP]; MAX_WIDTH - 1],
            dx: [[T::ZERO; GROUP]; BLOCK],
        };
        let mut totals = vec![0.0; count * (width + 1)];
        let mut pieces = Vec::new();
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for piece in &pieces {
                if piece.is_padding() {
                    self.padding(piece, channels.start, count);
                } else {
                    self.piece(simd, piece, channels.start, count, &mut buffers);
                }
            }
            buffers.sums.flush::<S, T>(&mut totals, width);
        }
        for (channel, totals) in channels.zip(totals.chunks_exact(width + 1)) {
            // SAFETY: each task has its own pair of chunk and channel; the sums outlive the tasks.
            unsafe { problem.sums.put(chunk, channel, totals) };
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

    /// Positions of history.
    #[inline(always)]
    fn before(&self) -> i64 {
        self.width() as i64 - 1
    }

    /// Padding takes no gradient, and neither do initial states before it.
    fn padding(&self, piece: &Piece, first: i64, channels: usize) {
        for channel in first..first + channels as i64 {
            for position in piece.from..piece.to {
                // SAFETY: the position lies in the row, and no other task writes to it.
                unsafe { *self.problem.dx.at([piece.batch, channel, position]) = T::ZERO };
            }
            if let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) {
                for column in 0..self.before() {
                    // SAFETY: the states have a row per sequence, written with its first piece only.
                    unsafe { *states.at([piece.sequence, channel, column]) = T::ZERO };
                }
            }
        }
    }

    #[inline(always)]
    fn piece<S>(&self, simd: S, piece: &Piece, first: i64, channels: usize, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        buffers.history.load(&problem.history, &problem.sequences, piece, first..first + channels as i64);
        self.load_dfinal(piece, first, channels, buffers);
        buffers.g = [[T::Accumulator::ZERO; GROUP]; MAX_WIDTH - 1];
        // The rows past the end are a block of their own.
        let blocks =
            (piece.from..piece.to).step_by(BLOCK).map(|from| (from, piece.to.min(from + BLOCK as i64)));
        for (from, to) in blocks.chain([(piece.to, piece.to + self.before())]) {
            let mut rows = self.rows(piece, first, from, to, buffers);
            let late = from - self.before()..to - self.before();
            let target = |position| problem.dx.at([piece.batch, first, position]);
            let targets = (late.start >= piece.from).then(|| late.clone().map(target));
            let destination = Destination::new(targets, problem.stream);
            for span in rows::spans(simd, channels) {
                if span.is_tail && span.pairs > 0 {
                    // SAFETY: the rows hold the channels of the task; the rest is less than a pair.
                    unsafe {
                        rows.x = buffers.x_tail.copy(&rows.x, span.first, channels);
                        rows.dy = buffers.dy_tail.copy(&rows.dy, span.first, channels);
                        rows.added = buffers.added_tail.copy(&rows.added, span.first, channels);
                    }
                }
                (rows.dx, rows.stream) = destination.of_span(span, &mut buffers.dx);
                // SAFETY: rows hold whole pairs from the span's first channel on.
                unsafe { self.walk(simd, span, &rows, from < piece.to, buffers) };
            }
            for (row, position) in buffers.dx.iter().zip(late) {
                if position >= piece.from {
                    // SAFETY: the channels lie in dx, and no other task writes to them at this position.
                    unsafe { destination.finish(simd, &row[..channels], target(position)) };
                } else {
                    self.write_dinitial(piece, first, position, &row[..channels]);
                }
            }
        }
    }

    /// Takes a finished row before the piece to dinitial_states, if it is the sequence's first.
    fn write_dinitial(&self, piece: &Piece, first: i64, position: i64, row: &[T]) {
        if let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) {
            let column = position - piece.start + self.before();
            for (&value, channel) in row.iter().zip(first..) {
                // SAFETY: positions begin `width - 1` before the sequence; only its first piece writes here.
                unsafe { *states.at([piece.sequence, channel, column]) = value };
            }
        }
    }

    /// Copies the gradients of the final states, for a piece that may reach them.
    fn load_dfinal(&self, piece: &Piece, first: i64, channels: usize, buffers: &mut Buffers<T>) {
        let Some(states) = self.problem.dfinal_states.filter(|_| piece.to > piece.end - self.before()) else {
            return;
        };
        for (column, row) in buffers.dfinal[..self.width() - 1].iter_mut().enumerate() {
            for (value, channel) in row[..channels].iter_mut().zip(first..) {
                // SAFETY: the states have a row per sequence and `width - 1` columns.
                *value = unsafe { *states.at([piece.sequence, channel, column as i64]) };
            }
        }
    }

    /// The rows for g at `from .. to`, and for dx `width - 1` rows before.
    #[inline(always)]
    fn rows(&self, piece: &Piece, channel: i64, from: i64, to: i64, buffers: &Buffers<T>) -> BlockRows<T> {
        let problem = &self.problem;
        let null = [std::ptr::null(); ROWS];
        let count = (to - from) as usize;
        let dx = [std::ptr::null_mut(); BLOCK];
        let mut rows = BlockRows { x: null, dy: null, added: null, count, dx, stream: false };
        for (row, position) in rows.x.iter_mut().zip(from - self.before()..to) {
            *row = buffers.history.row(&problem.history.x, &problem.sequences, piece, channel, position);
        }
        for (row, position) in rows.dy.iter_mut().zip(from..to) {
            if position < piece.to || piece.includes(&problem.sequences, position) {
                *row = problem.dy.at([piece.batch, channel, position]);
            }
        }
        if problem.dfinal_states.is_some() {
            // The last `width - 1` positions of the sequence are its final states too.
            for (row, position) in rows.added.iter_mut().zip(from - self.before()..to - self.before()) {
                let column = position - (piece.end - self.before());
                if column >= 0 {
                    *row = buffers.dfinal[column as usize].as_ptr();
                }
            }
        }
        rows
    }

    /// Each pair of a span walks down the rows.
    ///
    /// # Safety
    /// Rows that are not null hold the span's pairs; x has `count + width - 1` rows.
    #[inline(always)]
    unsafe fn walk<S>(&self, simd: S, span: Span, rows: &BlockRows<T>, counts: bool, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Buffers { weights, g: waiting, sums, ignored, .. } = buffers;
        let sums = if counts { sums } else { ignored };
        let width = self.width();
        let zero = [simd.splat(T::Accumulator::ZERO); 2];
        for pair in 0..span.pairs {
            let offset = pair * 2 * S::LANES;
            let channel = span.first + offset;
            // SAFETY: offsets lie in the rows by the caller's promise, and channels in rows of `GROUP`.
            unsafe {
                let mut column = Column {
                    offset,
                    channel,
                    bias: load_lanes(simd, weights.bias.as_ptr().add(channel)),
                    taps: [zero; WIDTH],
                    x: [zero; WIDTH],
                    g: [zero; WIDTH],
                    dweight: [zero; WIDTH],
                    dbias: load_lanes(simd, sums.bias.as_ptr().add(channel)),
                };
                // The ages index several arrays, each up to a limit of its own.
                #[allow(clippy::needless_range_loop)]
                for age in 0..WIDTH {
                    if age < width {
                        column.taps[age] = load_lanes(simd, weights.taps[age].as_ptr().add(channel));
                        column.dweight[age] = load_lanes(simd, sums.taps[age].as_ptr().add(channel));
                    }
                    if age + 1 < width {
                        column.x[age] = T::load_pair(simd, rows.x[width - 2 - age].add(offset));
                        column.g[age] = load_lanes(simd, waiting[age].as_ptr().add(channel));
                    }
                }
                let mut row = 0;
                while row + INTERLEAVED <= rows.count {
                    self.rows_of_pair::<S, { 2 * INTERLEAVED }>(simd, rows, &mut column, row);
                    row += INTERLEAVED;
                }
                while row < rows.count {
                    self.rows_of_pair::<S, 2>(simd, rows, &mut column, row);
                    row += 1;
                }
                store_lanes(simd, sums.bias.as_mut_ptr().add(channel), column.dbias);
                #[allow(clippy::needless_range_loop)]
                for age in 0..WIDTH {
                    if age < width {
                        store_lanes(simd, sums.taps[age].as_mut_ptr().add(channel), column.dweight[age]);
                    }
                    if age + 1 < width {
                        store_lanes(simd, waiting[age].as_mut_ptr().add(channel), column.g[age]);
                    }
                }
            }
        }
    }

    /// `N / 2` rows of a pair.
    ///
    /// # Safety
    /// As for [`Self::walk`], and `first + N / 2 ≤ rows.count`.
    #[inline(always)]
    unsafe fn rows_of_pair<S, const N: usize>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        column: &mut Column<S, WIDTH>,
        first: usize,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (width, offset) = (self.width(), column.offset);
        // The next block's rows are asked for one block ahead.
        let x_ahead = self.problem.history.x.strides[2].wrapping_mul(BLOCK as isize);
        let dy_ahead = self.problem.dy.strides[2].wrapping_mul(BLOCK as isize);
        let zero = simd.splat(T::Accumulator::ZERO);
        let (mut taken, mut pre, mut g, mut dx) = ([[zero; WIDTH]; N], [zero; N], [zero; N], [zero; N]);
        // SAFETY: the caller's promise.
        unsafe {
            for row in 0..N / 2 {
                let source = rows.x[first + row + width - 1].wrapping_add(offset);
                prefetch_pair(simd, source.wrapping_offset(x_ahead));
                for age in (1..WIDTH).rev() {
                    column.x[age] = column.x[age - 1];
                }
                column.x[0] = T::load_pair(simd, source);
                let dy = rows.dy[first + row];
                if !dy.is_null() {
                    let dy = dy.wrapping_add(offset);
                    prefetch_pair(simd, dy.wrapping_offset(dy_ahead));
                    [g[2 * row], g[2 * row + 1]] = T::load_pair(simd, dy);
                }
                if !rows.added[first + row].is_null() {
                    let added = rows.added[first + row].add(offset);
                    [dx[2 * row], dx[2 * row + 1]] = T::load_pair(simd, added);
                }
                for part in 0..2 {
                    let i = 2 * row + part;
                    pre[i] = column.bias[part];
                    for age in (0..WIDTH).rev() {
                        if age < width {
                            taken[i][age] = column.x[age][part];
                            pre[i] = simd.mul_add(column.taps[width - 1 - age][part], taken[i][age], pre[i]);
                        }
                    }
                }
            }
        }
        if self.problem.silu {
            let slopes = simd.silu_slope::<T, N>(pre);
            for row in 0..N / 2 {
                // g of rows that take no part is zero, whatever they hold.
                if !rows.dy[first + row].is_null() {
                    for i in [2 * row, 2 * row + 1] {
                        g[i] = simd.mul(g[i], slopes[i]);
                    }
                }
            }
        }
        for row in 0..N / 2 {
            for age in (1..WIDTH).rev() {
                column.g[age] = column.g[age - 1];
            }
            column.g[0] = [g[2 * row], g[2 * row + 1]];
            for part in 0..2 {
                let i = 2 * row + part;
                for age in (0..WIDTH).rev() {
                    if age < width {
                        let dweight = &mut column.dweight[width - 1 - age][part];
                        *dweight = simd.mul_add(g[i], taken[i][age], *dweight);
                        dx[i] = simd.mul_add(column.taps[age][part], column.g[age][part], dx[i]);
                    }
                }
                column.dbias[part] = simd.add(column.dbias[part], g[i]);
            }
            // SAFETY: the caller's promise.
            unsafe {
                let (target, pair) =
                    (rows.dx[first + row].add(column.channel), [dx[2 * row], dx[2 * row + 1]]);
                if rows.stream {
                    T::store_pair::<true>(simd, target, pair);
                } else {
                    T::store_pair::<false>(simd, target, pair);
                }
            }
        }
    }
}

/// A pair of vectors on its way down.
struct Column<S: Simd, const WIDTH: usize> {
    /// In the rows that are read.
    offset: usize,
    /// In the task.
    channel: usize,
    bias: [S::Vector; 2],
    /// In their own order: dx takes the first with the newest g, pre the last with the newest x.
    taps: [[S::Vector; 2]; WIDTH],
    /// By age: 0 is the newest position.
    x: [[S::Vector; 2]; WIDTH],
    g: [[S::Vector; 2]; WIDTH],
    dweight: [[S::Vector; 2]; WIDTH],
    dbias: [S::Vector; 2],
}
