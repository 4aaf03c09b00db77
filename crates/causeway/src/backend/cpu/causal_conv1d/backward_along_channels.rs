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
use super::rows::{self, BLOCK, Finished, GROUP, HistoryRows, MAX_WIDTH, ROWS, Rows, Span, Tail, Weights};
use super::sequences::Piece;
use super::tile::write_row;
use crate::backend::cpu::simd::{Accumulator, Kernel, Lanes, Number, Simd};

/// A group of channels of some segments per task.
pub(super) struct AlongChannels<T: Number, const WIDTH: usize> {
    pub partition: Partition,
    pub problem: Problem<T>,
}

/// Sums of a segment, a row of `GROUP` per tap and one for the bias.
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
    fn flush(&mut self, totals: &mut [f64], width: usize) {
        for (channel, totals) in totals.chunks_exact_mut(width + 1).enumerate() {
            let rows = self.taps[..width].iter_mut().chain([&mut self.bias]);
            for (total, row) in totals.iter_mut().zip(rows) {
                *total += std::mem::replace(&mut row[channel], A::ZERO).to_f64();
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
    /// g of the last `width - 1` rows, the newest first.
    g: [[T::Accumulator; GROUP]; MAX_WIDTH - 1],
    sums: SegmentSums<T::Accumulator>,
    /// Where sums go that do not count.
    ignored: SegmentSums<T::Accumulator>,
    /// Gradients of the final states.
    dfinal: [[T; GROUP]; MAX_WIDTH - 1],
    dx: Finished<T>,
}

/// The rows that a block reads.
struct BlockRows<T> {
    /// History first.
    x: Rows<T>,
    /// Null where g is zero.
    dy: Rows<T>,
    /// What is added to dx, if anything.
    added: Rows<T>,
    /// Rows of dy.
    count: usize,
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
            weights: Weights::load(&problem.weight, problem.bias.as_ref(), width, channels.clone()),
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
            buffers.sums.flush(&mut totals, width);
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
            for span in rows::spans(simd, channels) {
                if span.is_tail && span.vectors > 0 {
                    // SAFETY: the rows hold the channels of the task; the rest is less than a vector.
                    unsafe {
                        rows.x = buffers.x_tail.copy(&rows.x, span.first, channels);
                        rows.dy = buffers.dy_tail.copy(&rows.dy, span.first, channels);
                        rows.added = buffers.added_tail.copy(&rows.added, span.first, channels);
                    }
                }
                // SAFETY: rows hold whole vectors from the span's first channel on.
                unsafe { self.walk(simd, span, &rows, from < piece.to, buffers) };
            }
            self.write(simd, piece, first, channels, from, rows.count, &buffers.dx);
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
        let mut rows = BlockRows { x: null, dy: null, added: null, count: (to - from) as usize };
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

    /// Each vector of a span walks down the rows.
    ///
    /// # Safety
    /// Rows that are not null hold the span's vectors; x has `count + width - 1` rows.
    #[inline(always)]
    unsafe fn walk<S>(&self, simd: S, span: Span, rows: &BlockRows<T>, counts: bool, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Buffers { weights, g: waiting, sums, ignored, dx, .. } = buffers;
        let sums = if counts { sums } else { ignored };
        let width = self.width();
        // The next block's rows are asked for one block ahead.
        let x_ahead = self.problem.history.x.strides[2].wrapping_mul(BLOCK as isize);
        let dy_ahead = self.problem.dy.strides[2].wrapping_mul(BLOCK as isize);
        let zero = simd.splat(T::Accumulator::ZERO);
        for vector in 0..span.vectors {
            let offset = vector * S::LANES;
            let channel = span.first + offset;
            // SAFETY: offsets lie in the rows by the caller's promise, and channels in rows of `GROUP`.
            unsafe {
                let bias = simd.load(weights.bias.as_ptr().add(channel));
                let mut dbias = simd.load(sums.bias.as_ptr().add(channel));
                // By age: 0 is the newest position. dx takes the taps in the other order.
                let (mut newest, mut oldest, mut dweight) = ([zero; WIDTH], [zero; WIDTH], [zero; WIDTH]);
                let (mut x, mut g) = ([zero; WIDTH], [zero; WIDTH]);
                for age in 0..WIDTH {
                    if age < width {
                        newest[age] = simd.load(weights.taps[width - 1 - age].as_ptr().add(channel));
                        oldest[age] = simd.load(weights.taps[age].as_ptr().add(channel));
                        dweight[age] = simd.load(sums.taps[width - 1 - age].as_ptr().add(channel));
                    }
                    if age + 1 < width {
                        x[age] = T::load(simd, rows.x[width - 2 - age].add(offset));
                        g[age] = simd.load(waiting[age].as_ptr().add(channel));
                    }
                }
                for (row, dx) in dx[..rows.count].iter_mut().enumerate() {
                    for age in (1..WIDTH).rev() {
                        x[age] = x[age - 1];
                        g[age] = g[age - 1];
                    }
                    let source = rows.x[row + width - 1].wrapping_add(offset);
                    simd.prefetch(source.wrapping_offset(x_ahead).cast());
                    x[0] = T::load(simd, source);
                    g[0] = zero;
                    if !rows.dy[row].is_null() {
                        let dy = rows.dy[row].wrapping_add(offset);
                        simd.prefetch(dy.wrapping_offset(dy_ahead).cast());
                        g[0] = T::load(simd, dy);
                        if self.problem.silu {
                            let mut pre = bias;
                            for age in (0..WIDTH).rev() {
                                if age < width {
                                    pre = simd.mul_add(newest[age], x[age], pre);
                                }
                            }
                            let [slope] = simd.silu_slope([pre], T::PRECISION);
                            g[0] = simd.mul(g[0], slope);
                        }
                    }
                    let mut gradient = zero;
                    if !rows.added[row].is_null() {
                        gradient = T::load(simd, rows.added[row].add(offset));
                    }
                    for age in (0..WIDTH).rev() {
                        if age < width {
                            dweight[age] = simd.mul_add(g[0], x[age], dweight[age]);
                            gradient = simd.mul_add(oldest[age], g[age], gradient);
                        }
                    }
                    dbias = simd.add(dbias, g[0]);
                    T::store(simd, dx.as_mut_ptr().add(channel), gradient);
                }
                simd.store(sums.bias.as_mut_ptr().add(channel), dbias);
                for age in 0..WIDTH {
                    if age < width {
                        simd.store(sums.taps[width - 1 - age].as_mut_ptr().add(channel), dweight[age]);
                    }
                    if age + 1 < width {
                        simd.store(waiting[age].as_mut_ptr().add(channel), g[age]);
                    }
                }
            }
        }
    }

    /// Takes finished rows to dx, those before the sequence to dinitial_states, and none before the piece.
    #[inline(always)]
    fn write<S>(
        &self,
        simd: S,
        piece: &Piece,
        first: i64,
        channels: usize,
        from: i64,
        count: usize,
        dx: &Finished<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let dinitial_states = self.problem.dinitial_states.filter(|_| piece.from == piece.start);
        for (row, position) in dx[..count].iter().zip(from - self.before()..) {
            if position >= piece.from {
                let target = self.problem.dx.at([piece.batch, first, position]);
                // SAFETY: the channels lie in dx, and no other task writes to them at this position.
                unsafe { write_row(simd, &row[..channels], target, self.problem.stream) };
            } else if let Some(states) = dinitial_states {
                let column = position - piece.start + self.before();
                for (&value, channel) in row[..channels].iter().zip(first..) {
                    // SAFETY: positions begin `width - 1` before the sequence; only its first piece writes here.
                    unsafe { *states.at([piece.sequence, channel, column]) = value };
                }
            }
        }
    }
}
