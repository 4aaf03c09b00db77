//! What a norm makes of dy: g, the gradient of what the activation is applied to, for all positions. The traversal along the sequence
//! then takes it for dy; see [`super::super::heads`].

use super::super::heads::{Channels, Heads, activate, slope, whole_steps};
use super::super::partition::Partition;
use super::super::sequences::Piece;
use super::super::tensors::{Source, Target};
use super::super::tile;
use super::Problem;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};
use crate::causal_conv1d::Sizes;

/// A head of some segments per task.
pub(super) struct ByHeads<'a, T: Number> {
    pub partition: Partition,
    pub problem: &'a Problem<T>,
    pub heads: Heads<T::Accumulator>,
    pub silu: bool,
    /// `(batch, dim, seqlen)`, row-major.
    pub g: Target<T::Accumulator, 3>,
}

/// Memory for g of all positions.
pub(super) struct Memory<A>(Box<[std::mem::MaybeUninit<A>]>, [isize; 3]);

impl<A> Memory<A> {
    pub fn new(sizes: &Sizes) -> Self {
        let [batch, dim, seqlen] = [sizes.batch, sizes.dim, sizes.seqlen].map(|size| size as usize);
        let strides = [dim * seqlen, seqlen, 1].map(|stride| stride as isize);
        Memory(Box::new_uninit_slice(batch * dim * seqlen), strides)
    }

    /// Where g is written, and where it is read; valid as long as `self` is.
    pub fn views(&mut self) -> (Target<A, 3>, Source<A, 3>) {
        let pointer = self.0.as_mut_ptr().cast::<A>();
        (Target::of(pointer, self.1), Source::of(pointer, self.1))
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

impl<T: Number> Kernel for ByHeads<'_, T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, heads) = (self.problem, &self.heads);
        let line = || vec![T::Accumulator::ZERO; heads.tile];
        let mut buffers = Buffers {
            pre: heads.room(),
            u: heads.room(),
            dy: heads.room(),
            squares: line(),
            projections: line(),
        };
        let parameters = (&problem.weight, problem.bias.as_ref());
        let mut channels =
            Channels::new(&problem.sequences, &problem.history, parameters, problem.width, heads);
        let mut pieces = Vec::new();
        let (of_head, chunk) = self.partition.task(task);
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            // Nobody asks for g of padding.
            for piece in pieces.iter().filter(|piece| !piece.is_padding()) {
                for from in (piece.from..piece.to).step_by(heads.tile) {
                    let to = (from + heads.tile as i64).min(piece.to);
                    self.tile(simd, piece, of_head.start, (from, to), &mut channels, &mut buffers);
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
        let whole = whole_steps(count);
        let Buffers { pre, u, dy, squares, projections } = buffers;
        let (squares, projections) = (&mut squares[..whole], &mut projections[..whole]);
        squares.fill(T::Accumulator::ZERO);
        projections.fill(T::Accumulator::ZERO);
        channels.load(simd, piece, first, &(from..to));
        let lines = || (first..).take(heads.head_dim).zip((0..).step_by(heads.tile));
        for (channel, at) in lines() {
            let (pre, u, dy) = (&mut pre[at..][..whole], &mut u[at..][..whole], &mut dy[at..][..count]);
            channels.convolve(simd, piece, (first, (channel - first) as usize), from..to, pre);
            activate::<S, T>(simd, self.silu, pre, u, squares);
            let source = problem.dy.at([piece.batch, channel, from]);
            // SAFETY: these are positions of the row; dy has the shape of x.
            unsafe { tile::gather(simd, source, problem.dy.strides[2], dy) };
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
                slope::<S, T::Accumulator>(simd, pre, g);
            }
            let target = self.g.at([piece.batch, channel, from]);
            // SAFETY: these are positions of a channel, which no other task writes to, in memory of its own.
            unsafe { target.copy_from_nonoverlapping(g.as_ptr(), count) };
        }
    }
}
