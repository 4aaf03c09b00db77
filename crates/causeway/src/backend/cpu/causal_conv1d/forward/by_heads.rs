//! Forward with a norm: u of a head is computed for a tile of positions, then divided and stored; see [`super::super::heads`].

use super::super::heads::{Channels, Heads, activate, transpose_out};
use super::super::partition::Partition;
use super::super::sequences::Piece;
use super::super::tile;
use super::Problem;
use crate::backend::cpu::simd::{Accumulator, Kernel, Lanes, Number, Simd};

/// A head of some segments per task.
pub(super) struct ByHeads<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
    pub heads: Heads<T::Accumulator>,
}

/// What a task works in: u of a tile, pre of a channel, and Σ u².
struct Buffers<A> {
    u: Vec<A>,
    pre: Vec<A>,
    squares: Vec<A>,
}

impl<A: Accumulator> Buffers<A> {
    #[inline(never)]
    fn new(heads: &Heads<A>) -> Self {
        let line = || vec![A::ZERO; heads.tile];
        Buffers { u: heads.buffer(), pre: line(), squares: line() }
    }
}

impl<T: Number> Kernel for ByHeads<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, heads) = (&self.problem, &self.heads);
        let mut buffers = Buffers::new(heads);
        let parameters = (&problem.weight, problem.bias.as_ref());
        let mut channels =
            Channels::new(&problem.sequences, &problem.history, parameters, problem.width, heads);
        let mut pieces = Vec::new();
        let (of_head, chunk) = self.partition.task(task);
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for piece in &pieces {
                let mut from = piece.from;
                while from < piece.to {
                    let to = (from + heads.tile as i64).min(piece.to);
                    self.tile(simd, piece, of_head.start, (from, to), &mut channels, &mut buffers);
                    from = to;
                }
            }
        }
        simd.fence();
    }
}

impl<T: Number> ByHeads<T> {
    #[inline(always)]
    fn tile<S>(
        &self,
        simd: S,
        piece: &Piece,
        first: i64,
        (from, to): (i64, i64),
        channels: &mut Channels<'_, T>,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, heads) = (&self.problem, &self.heads);
        let count = (to - from) as usize;
        let whole = tile::whole_steps(count);
        let Buffers { u, pre, squares } = buffers;
        let (pre, squares) = (&mut pre[..whole], &mut squares[..whole]);
        let rows = || (first..).take(heads.head_dim);
        if piece.is_padding() {
            u.fill(T::Accumulator::ZERO);
        } else {
            squares.fill(T::Accumulator::ZERO);
            channels.load(simd, piece, first, &(from..to));
            for (index, u) in u.chunks_exact_mut(heads.tile).enumerate() {
                channels.convolve(simd, piece, (first, index), from..to, pre);
                activate::<S, T>(simd, problem.silu, pre, &mut u[..whole], squares);
            }
            heads.invert(squares);
            squares.iter_mut().for_each(|inverse| *inverse = *inverse * heads.scale);
        }
        if !piece.is_padding() {
            for u in u.chunks_exact_mut(heads.tile) {
                u[..count].iter_mut().zip(&*squares).for_each(|(u, factor)| *u = *u * *factor);
            }
        }
        if problem.y.strides[1] == 1 {
            transpose_out(u, heads.tile, count, |position, channel, values| {
                let target = problem.y.at([piece.batch, first + channel as i64, from + position as i64]);
                // SAFETY: a position has the head's channels side by side, which no other task writes to.
                unsafe { tile::narrow(simd, values, target) };
            });
            return;
        }
        for (channel, u) in rows().zip(u.chunks_exact(heads.tile)) {
            let y = &u[..count];
            let target = problem.y.at([piece.batch, channel, from]);
            // SAFETY: these are positions of the row, and no other task writes to them in this channel.
            unsafe { tile::scatter(simd, y, target, problem.y.strides[2], problem.stream) };
        }
    }
}
