//! What a norm makes of dy: g, the gradient of what the activation is applied to, for all positions. The traversal along the sequence,
//! or along the channels, then takes it for dy; see [`super::super::heads`].

use std::marker::PhantomData;

use super::super::blocks::MAX_PAIR;
use super::super::heads::{Channels, Heads, activate, transpose_in, transpose_out};
use super::super::partition::Partition;
use super::super::sequences::Piece;
use super::super::tensors::{Source, Target};
use super::super::tile;
use super::Problem;
use crate::backend::cpu::simd::{Accumulator, Kernel, Lanes, Number, Simd};
use crate::causal_conv1d::Sizes;
use crate::error::Result;
use crate::host_tensor::HostTensor;

/// A head of some segments per task.
pub(super) struct ByHeads<'a, T: Number> {
    pub partition: Partition,
    pub problem: &'a Problem<T>,
    pub heads: Heads<T::Accumulator>,
    pub silu: bool,
    /// See [`Memory`].
    pub g: Target<T::Accumulator, 3>,
    pub rows: bool,
}

/// Memory for g of all positions, of shape `(batch, dim, seqlen)`.
pub(super) struct Memory<A> {
    values: HostTensor,
    strides: [isize; 3],
    of: PhantomData<A>,
}

impl<A: Accumulator> Memory<A> {
    /// Row-major; for `rows`, whole pairs of channels are neighbours, in the order of the lanes of pairs.
    pub fn new(sizes: &Sizes, rows: bool) -> Result<Self> {
        let Sizes { batch, dim, seqlen, .. } = *sizes;
        let dim = if rows { (dim as usize).next_multiple_of(MAX_PAIR) as i64 } else { dim };
        // Zeros come from the system as they are touched; channels that fill the last pair keep theirs.
        let values = HostTensor::zeros(A::DTYPE, &[batch, dim, seqlen])?;
        let strides = if rows { [dim * seqlen, 1, dim] } else { [dim * seqlen, seqlen, 1] };
        Ok(Memory { values, strides: strides.map(|stride| stride as isize), of: PhantomData })
    }

    /// Where g is written, and where it is read; valid as long as `self` is.
    pub fn views(&mut self) -> (Target<A, 3>, Source<A, 3>) {
        let pointer = self.values.bytes_mut().as_mut_ptr().cast();
        (Target::of(pointer, self.strides), Source::of(pointer, self.strides))
    }
}

/// What a task works in: numbers of a tile, and of its positions.
struct Buffers<A> {
    pre: Vec<A>,
    u: Vec<A>,
    dy: Vec<A>,
    squares: Vec<A>,
    projections: Vec<A>,
}

impl<A: Accumulator> Buffers<A> {
    #[inline(never)]
    fn new(heads: &Heads<A>) -> Self {
        let line = || vec![A::ZERO; heads.tile];
        Buffers {
            pre: heads.buffer(),
            u: heads.buffer(),
            dy: heads.buffer(),
            squares: line(),
            projections: line(),
        }
    }
}

impl<T: Number> Kernel for ByHeads<'_, T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, heads) = (self.problem, &self.heads);
        let mut buffers = Buffers::new(heads);
        let parameters = (&problem.weight, problem.bias.as_ref());
        let mut channels =
            Channels::new(&problem.sequences, &problem.history, parameters, problem.width, heads);
        let mut pieces = Vec::new();
        let (of_head, chunk) = self.partition.task(task);
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            // Nobody asks for g of padding.
            for piece in pieces.iter().filter(|piece| !piece.is_padding()) {
                let mut from = piece.from;
                while from < piece.to {
                    let to = (from + heads.tile as i64).min(piece.to);
                    self.tile(simd, piece, of_head.start, (from, to), &mut channels, &mut buffers);
                    from = to;
                }
            }
        }
    }
}

impl<T: Number> ByHeads<'_, T> {
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
        let (problem, heads) = (self.problem, &self.heads);
        let count = (to - from) as usize;
        let whole = tile::whole_steps(count);
        let Buffers { pre, u, dy, squares, projections } = buffers;
        let (squares, projections) = (&mut squares[..whole], &mut projections[..whole]);
        squares.fill(T::Accumulator::ZERO);
        projections.fill(T::Accumulator::ZERO);
        channels.load(simd, piece, first, &(from..to));
        let has_neighbours = problem.dy.strides[1] == 1;
        if has_neighbours {
            let source = (problem.dy.at([piece.batch, first, from]), problem.dy.strides[2]);
            // SAFETY: dy has the shape of x, and a position the head's channels side by side.
            unsafe { transpose_in(simd, dy, (heads.tile, 0), count, source) };
        }
        let lines = || (first..).take(heads.head_dim).zip((0..).step_by(heads.tile));
        for (channel, at) in lines() {
            let (pre, u, dy) = (&mut pre[at..][..whole], &mut u[at..][..whole], &mut dy[at..][..count]);
            channels.convolve(simd, piece, (first, (channel - first) as usize), from..to, pre);
            activate::<S, T>(simd, self.silu, pre, u, squares);
            if !has_neighbours {
                let source = problem.dy.at([piece.batch, channel, from]);
                // SAFETY: these are positions of the row; dy has the shape of x.
                unsafe { tile::gather(simd, source, problem.dy.strides[2], dy) };
            }
            for ((projection, dy), u) in projections.iter_mut().zip(&*dy).zip(&*u) {
                *projection += *dy * *u;
            }
        }
        heads.invert(squares);
        for (projection, inverse) in projections.iter_mut().zip(&*squares) {
            *projection = *projection * *inverse;
        }
        for (channel, at) in lines() {
            let (pre, u, g) = (&pre[at..][..whole], &u[at..][..whole], &mut dy[at..][..whole]);
            for (((g, u), inverse), projection) in g.iter_mut().zip(u).zip(&*squares).zip(&*projections) {
                *g = heads.scale * *inverse * (*g - *u * *inverse * *projection);
            }
            if self.silu {
                // Sums of 32 bits would show what rounding to 16 bits hides.
                tile::multiply_by_derivative::<S, T>(simd, true, pre, g);
            }
            if !self.rows {
                let target = self.g.at([piece.batch, channel, from]);
                // SAFETY: these are positions of a channel, which no other task writes to, in memory of its own.
                unsafe { target.copy_from_nonoverlapping(g.as_ptr(), count) };
            }
        }
        if self.rows {
            transpose_out(dy, heads.tile, count, |position, channel, values| {
                let target = self.g.at([piece.batch, 0, from + position as i64]);
                for (channel, &value) in (first as usize + channel..).zip(values) {
                    // SAFETY: a position has a place for every channel of whole pairs, and this one's is this task's.
                    unsafe { *target.add(T::lane(channel)) = value };
                }
            });
        }
    }
}
