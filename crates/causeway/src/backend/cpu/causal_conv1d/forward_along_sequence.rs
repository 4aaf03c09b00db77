//! Forward with vectors along the sequence; see [`super::tile`].

use super::forward::Problem;
use super::partition::Partition;
use super::registers::{self, convolve, with_taps};
use super::sequences::Piece;
use super::tile::{self, Keep, Silu, TILE};
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};
use crate::causal_conv1d::Sizes;

/// How kernels that work along the sequence cut a call. Where positions are not neighbours in memory, a
/// group of channels shares the cache lines of a segment.
pub(super) fn partition(sizes: &Sizes, contiguous: bool, max_chunks: i64) -> Partition {
    let segment = if contiguous { 8 * TILE } else { 2 * TILE };
    Partition::new(sizes, 16, segment as i64, max_chunks)
}

/// One channel at a time, vectors along the sequence: at full speed where positions are neighbours in memory,
/// correct for every stride and width.
pub(super) struct AlongSequence<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
}

/// What a task works in.
struct Buffers<A> {
    /// Weights of one channel.
    weight: Vec<A>,
    /// `width - 1` positions of history, then a tile.
    x: Vec<A>,
    /// A tile.
    y: Vec<A>,
}

impl<T: Number> Kernel for AlongSequence<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, zero) = (&self.problem, T::Accumulator::ZERO);
        let mut buffers = Buffers {
            weight: vec![zero; problem.width],
            x: vec![zero; problem.width - 1 + TILE],
            y: vec![zero; TILE],
        };
        let mut pieces = Vec::new();
        let (channels, chunk) = self.partition.task(task);
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for channel in channels.clone() {
                for (tap, weight) in buffers.weight.iter_mut().enumerate() {
                    // SAFETY: channel and tap lie in the weight.
                    *weight = unsafe { problem.weight.read(channel, tap as i64) };
                }
                // SAFETY: the channel lies in the bias.
                let bias = problem.bias.map_or(zero, |bias| unsafe { bias.read(channel, 0) });
                for piece in &pieces {
                    self.piece(simd, piece, channel, bias, &mut buffers);
                }
            }
        }
        simd.fence();
    }
}

impl<T: Number> AlongSequence<T> {
    #[inline(always)]
    fn piece<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        bias: T::Accumulator,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        for (i, value) in buffers.x[..before].iter_mut().enumerate() {
            let position = piece.from - before as i64 + i as i64;
            *value = problem.history.value(&problem.sequences, piece, channel, position);
        }
        let mut from = piece.from;
        while from < piece.to {
            let mut count = (piece.to - from).min(TILE as i64) as usize;
            if piece.is_padding() {
                buffers.y[..count].fill(T::Accumulator::ZERO);
            } else {
                count = self.convolve(simd, piece, channel, from, count, bias, buffers);
            }
            let y = &mut buffers.y;
            if let Some(residual) = &problem.residual {
                let source = residual.at([piece.batch, channel, from]);
                // SAFETY: as above; the residual has the shape of x.
                unsafe { tile::gather_add(source, residual.strides[2], &mut y[..count]) };
            }
            let target = problem.y.at([piece.batch, channel, from]);
            // SAFETY: as above, and no other task writes to these positions of this channel.
            unsafe { tile::scatter(simd, &y[..count], target, problem.y.strides[2], problem.stream) };
            from += count as i64;
        }
    }

    /// Convolves at most `count` positions from `from` on into `buffers.y`, and returns how many.
    #[inline(always)]
    fn convolve<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        from: i64,
        count: usize,
        bias: T::Accumulator,
        buffers: &mut Buffers<T::Accumulator>,
    ) -> usize
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        let source = problem.history.x.at([piece.batch, channel, from]);
        let stride = problem.history.x.strides[2];
        let finish = Silu { precision: T::PRECISION };
        let Buffers { weight, x, y } = buffers;
        let whole = if stride == 1 { registers::whole_vectors(simd, problem.width, count) } else { 0 };
        if whole > 0 {
            let (history, y) = (&mut x[..before], &mut y[..whole]);
            // SAFETY: these are positions of the row, whole vectors of them.
            unsafe {
                if problem.silu {
                    with_taps!(
                        problem.width,
                        convolve::<S, T, Silu>(simd, weight, bias, source, history, y, &finish)
                    );
                } else {
                    with_taps!(
                        problem.width,
                        convolve::<S, T, Keep>(simd, weight, bias, source, history, y, &Keep)
                    );
                }
            }
            return whole;
        }
        // SAFETY: `from .. from + count` are positions of the row.
        unsafe { tile::gather(simd, source, stride, &mut x[before..before + count]) };
        if problem.silu {
            tile::convolve(simd, weight, bias, x, count, y, &finish);
        } else {
            tile::convolve(simd, weight, bias, x, count, y, &Keep);
        }
        x.copy_within(count..count + before, 0);
        count
    }
}
