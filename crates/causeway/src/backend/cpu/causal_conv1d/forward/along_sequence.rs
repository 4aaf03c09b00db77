//! Forward with vectors along the sequence; see [`super::super::tile`].

use super::super::partition::Partition;
use super::super::registers::{self, Output, convolve, with_taps};
use super::super::sequences::Piece;
use super::super::tile::{self, Finish, TILE};
use super::Problem;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// One channel at a time, vectors along the sequence: at full speed where positions are neighbours in memory,
/// correct for every stride and width.
pub(super) struct AlongSequence<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
}

/// What a task works in.
struct Buffers<A> {
    /// Weights of each channel of the task, one channel after the other.
    weight: Vec<A>,
    /// Of each channel of the task.
    bias: Vec<A>,
    /// `width - 1` positions of history, then a tile.
    x: Vec<A>,
    /// A tile.
    y: Vec<A>,
    /// Whether positions are neighbours in memory, and nothing is multiplied.
    neighbours: bool,
}

impl<T: Number> Kernel for AlongSequence<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let (channels, chunk) = self.partition.task(task);
        let mut buffers = self.buffers();
        let width = problem.width;
        // SAFETY: the channels and taps lie in weight and bias.
        unsafe {
            for tap in 0..width {
                let taps = &mut buffers.weight[tap..];
                problem.weight.read_channels(simd, channels.clone(), tap as i64, taps, width);
            }
            if let Some(bias) = problem.bias {
                bias.read_channels(simd, channels.clone(), 0, &mut buffers.bias, 1);
            }
        }
        let mut pieces = Vec::new();
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for (i, channel) in channels.clone().enumerate() {
                for piece in &pieces {
                    self.piece(simd, piece, (i, channel), &mut buffers);
                }
            }
        }
        simd.fence();
    }
}

impl<T: Number> AlongSequence<T> {
    #[inline(never)]
    fn buffers(&self) -> Buffers<T::Accumulator> {
        let (problem, zero) = (&self.problem, T::Accumulator::ZERO);
        let width = problem.width;
        let residual_stride = problem.residual.as_ref().map_or(1, |residual| residual.strides[2]);
        let strides = [problem.history.x.strides[2], problem.y.strides[2], residual_stride];
        let gated = problem.history.gate.is_some() || problem.gate.is_some();
        let tile = self.partition.tile(width - 1);
        Buffers {
            weight: vec![zero; self.partition.group() * width],
            bias: vec![zero; self.partition.group()],
            x: vec![zero; width - 1 + tile],
            y: vec![zero; tile],
            neighbours: strides == [1; 3] && !gated,
        }
    }

    #[inline(always)]
    fn piece<S>(
        &self,
        simd: S,
        piece: &Piece,
        (in_task, channel): (usize, i64),
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        problem.history.values(&problem.sequences, piece, channel, &mut buffers.x[..before]);
        let neighbours = buffers.neighbours && !piece.is_padding();
        let mut from = piece.from;
        while from < piece.to {
            let target = problem.y.at([piece.batch, channel, from]);
            let mut count = (piece.to - from) as usize;
            let unaligned = registers::unaligned(target, problem.stream);
            if neighbours && unaligned > 0 {
                count = count.min(unaligned);
            } else if neighbours {
                let whole = registers::whole_pairs(simd, problem.width, count);
                if whole > 0 {
                    self.vectors(simd, piece, (in_task, channel), from, whole, buffers);
                    from += whole as i64;
                    continue;
                }
            }
            count = count.min(TILE);
            if piece.is_padding() {
                buffers.y[..count].fill(T::Accumulator::ZERO);
            } else {
                self.tile(simd, piece, (in_task, channel), from, count, buffers);
            }
            let y = &mut buffers.y[..count];
            if let Some(residual) = &problem.residual {
                let source = residual.at([piece.batch, channel, from]);
                // SAFETY: `from .. from + count` are positions of the row; the residual has the shape of x.
                unsafe { tile::gather_add(source, residual.strides[2], y) };
            }
            // SAFETY: as above, and no other task writes to these positions of this channel.
            unsafe { tile::scatter(simd, y, target, problem.y.strides[2], problem.stream) };
            from += count as i64;
        }
    }

    /// Whole pairs of neighbours, from memory to memory.
    #[inline(always)]
    fn vectors<S>(
        &self,
        simd: S,
        piece: &Piece,
        (in_task, channel): (usize, i64),
        from: i64,
        count: usize,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let index = [piece.batch, channel, from];
        let x = problem.history.x.at(index);
        let residual = problem.residual.as_ref().map_or(std::ptr::null(), |residual| residual.at(index));
        let y = Output { pointer: problem.y.at(index), count, stream: problem.stream };
        let Buffers { weight, x: history, .. } = buffers;
        let (weight, bias) = (&weight[in_task * problem.width..][..problem.width], buffers.bias[in_task]);
        let history = &mut history[..problem.width - 1];
        // SAFETY: these are positions of the row, whole pairs of them; no other task writes to them.
        unsafe {
            with_taps!(
                problem.width,
                convolve::<S, T>(simd, problem.silu, weight, bias, x, residual, history, &y)
            );
        }
    }

    /// A tile of any stride, into `buffers.y`.
    #[inline(always)]
    fn tile<S>(
        &self,
        simd: S,
        piece: &Piece,
        (in_task, channel): (usize, i64),
        from: i64,
        count: usize,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        let source = problem.history.x.at([piece.batch, channel, from]);
        let Buffers { weight, x, y, .. } = buffers;
        let (weight, bias) = (&weight[in_task * problem.width..][..problem.width], buffers.bias[in_task]);
        // SAFETY: `from .. from + count` are positions of the row.
        unsafe { tile::gather(simd, source, problem.history.x.strides[2], &mut x[before..before + count]) };
        if let Some(gate) = problem.history.gate {
            // SAFETY: as above.
            unsafe {
                gate.multiply(simd, [piece.batch, channel, from], 2, &mut x[before..before + count]);
            }
        }
        tile::convolve::<S, T>(simd, (weight, bias), x, count, y, Finish::activation(problem.silu));
        if let Some(gate) = problem.gate {
            let y = &mut y[..count];
            gate.enter(y);
            // SAFETY: as above.
            unsafe { gate.multiply(simd, [piece.batch, channel, from], 2, y) };
        }
        x.copy_within(count..count + before, 0);
    }
}
