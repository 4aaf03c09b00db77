//! Forward with vectors along the channels; see [`super::rows`] for the traversal.

use super::forward::Problem;
use super::partition::Partition;
use super::rows::{self, BLOCK, Finished, GROUP, HistoryRows, MAX_WIDTH, ROWS, Rows, Span, Tail, Weights};
use super::sequences::Piece;
use super::tile::write_row;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// Rows whose SiLU is computed together: a divisor of `BLOCK`.
const INTERLEAVED: usize = 4;

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
            weights: Weights::load(&problem.weight, problem.bias.as_ref(), problem.width, channels.clone()),
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
        for span in rows::spans(simd, channels) {
            if span.is_tail && span.vectors > 0 {
                // SAFETY: the rows hold the channels of the task; the rest is less than a vector.
                unsafe {
                    x = buffers.x_tail.copy(&x, span.first, channels);
                    residual = buffers.residual_tail.copy(&residual, span.first, channels);
                }
            }
            // SAFETY: rows hold whole vectors from the span's first channel on.
            unsafe { self.walk(simd, span, &x, &residual, count, &buffers.weights, &mut buffers.y) };
        }
        for (row, position) in buffers.y[..count].iter().zip(from..) {
            let target = self.problem.y.at([piece.batch, channel, position]);
            // SAFETY: the channels lie in y, and no other task writes to them at this position.
            unsafe { write_row(simd, &row[..channels], target, self.problem.stream) };
        }
    }

    /// Each vector of a span walks down `count` rows.
    ///
    /// # Safety
    /// Rows that are not null hold the span's vectors; x has `count + width - 1` rows or none.
    #[inline(always)]
    unsafe fn walk<S>(
        &self,
        simd: S,
        span: Span,
        x: &Rows<T>,
        residual: &Rows<T>,
        count: usize,
        weights: &Weights<T::Accumulator>,
        y: &mut Finished<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // The next block's rows are asked for one block ahead.
        let ahead = self.problem.history.x.strides[2].wrapping_mul(BLOCK as isize);
        let (width, before) = (self.width(), self.width() - 1);
        let padding = x[0].is_null();
        let zero = simd.splat(T::Accumulator::ZERO);
        for vector in 0..span.vectors {
            let offset = vector * S::LANES;
            let channel = span.first + offset;
            // SAFETY: offsets lie in the rows by the caller's promise, and channels in rows of `GROUP`.
            unsafe {
                let bias = simd.load(weights.bias.as_ptr().add(channel));
                // Both by age: 0 is the output's own position.
                let (mut taps, mut window) = ([zero; WIDTH], [zero; WIDTH]);
                for age in 0..WIDTH {
                    if age < width {
                        taps[age] = simd.load(weights.taps[width - 1 - age].as_ptr().add(channel));
                    }
                    if age < before && !padding {
                        window[age] = T::load(simd, x[before - 1 - age].add(offset));
                    }
                }
                for first in (0..count).step_by(INTERLEAVED) {
                    // Those past the block are zero, and are not stored.
                    let mut sums = [zero; INTERLEAVED];
                    for (i, sum) in sums.iter_mut().enumerate() {
                        if !padding && first + i < count {
                            for age in (1..WIDTH).rev() {
                                window[age] = window[age - 1];
                            }
                            let newest = x[first + i + before].wrapping_add(offset);
                            simd.prefetch(newest.wrapping_offset(ahead).cast());
                            window[0] = T::load(simd, newest);
                            *sum = bias;
                            for age in (0..WIDTH).rev() {
                                if age < width {
                                    *sum = simd.mul_add(taps[age], window[age], *sum);
                                }
                            }
                        }
                    }
                    if self.problem.silu && !padding {
                        sums = simd.silu(sums, T::PRECISION);
                    }
                    for (row, mut sum) in (first..count).zip(sums) {
                        if !residual[row].is_null() {
                            sum = simd.add(sum, T::load(simd, residual[row].add(offset)));
                        }
                        T::store(simd, y[row].as_mut_ptr().add(channel), sum);
                    }
                }
            }
        }
    }
}
