//! Backward of few channels; see [`super::super::few_channels`].
//!
//! ```text
//! positions    from - (width-1)       from             to         to + (width-1)
//! g                       | before    |  block | block |  halo    |
//! dx                      |- not here -| block | block |
//! ```
//!
//! dx lags g by `width - 1` positions, and g is computed again past the end of a segment, but not summed.

use super::super::few_channels::Cut;
use super::super::partition::Column;
use super::super::places::{self, Block, Places};
use super::super::tile::{self, STEP};
use super::Problem;
use super::places::{Gradient, PlaceSums, convolve_dx};
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// Bytes of an array of a block: the taps of width 4, the sums, and four more stay in the L1 cache.
pub(super) const BYTES: usize = 1536;

/// Plain rows of positions that are neighbours in memory, without gradients of states.
pub(super) struct FewChannels<T: Number> {
    pub cut: Cut,
    pub seqlen: i64,
    pub problem: Problem<T>,
}

/// What a task works in, for each place.
struct Buffers<A> {
    block: Block<A>,
    dy: Places<A>,
    /// As x of the block: after g of the positions before.
    g: Places<A>,
    dx: Places<A>,
    sums: PlaceSums<A>,
}

impl<T: Number> Kernel for FewChannels<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let FewChannels { cut, problem, .. } = self;
        let (channels, chunk) = cut.partition.task(task);
        let (places, width) = (cut.places(), problem.width);
        let mut block = Block::new(cut.kind(), width, places, false);
        block.load_parameters(simd, &problem.weight, problem.bias.as_ref(), channels.clone());
        let mut buffers = Buffers {
            dy: Places::new(places),
            g: Places::new(block.front() + places + STEP),
            dx: Places::new(places),
            sums: PlaceSums::new(cut.kind(), width, places),
            block,
        };
        for column in cut.partition.columns(chunk) {
            self.column(simd, &column, &mut buffers);
        }
        let count = channels.clone().count();
        // SAFETY: each task has its own pair of chunk and channels; the sums outlive the tasks.
        unsafe { buffers.sums.put(&problem.sums, chunk, channels.start, count) };
        simd.fence();
    }
}

impl<T: Number> FewChannels<T> {
    /// A segment of a row.
    #[inline(always)]
    fn column<S>(&self, simd: S, column: &Column, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let FewChannels { cut, problem, .. } = self;
        let (front, before) = (buffers.block.front(), buffers.block.before());
        cut.load_history(&mut buffers.block, &problem.history, &problem.sequences, column);
        buffers.g[front - before..front].fill(T::Accumulator::ZERO);
        for (from, count) in cut.blocks(column.from..column.to) {
            self.g(simd, [column.batch, 0, from], (count, count), buffers);
            buffers.sums.end_block(cut.places_of(1));
            self.dx(simd, column, from, count, buffers);
            buffers.block.advance(count);
            buffers.g.copy_within(front + count - before..front + count, front - before);
        }
        let halo = cut.places_of((self.seqlen - column.to).min(problem.width as i64 - 1));
        self.g(simd, [column.batch, 0, column.to], (halo, 0), buffers);
        buffers.g[front + halo..front + before].fill(T::Accumulator::ZERO);
        self.dx(simd, column, column.to, before, buffers);
    }

    /// g of so many places from an index on, of which some are summed.
    #[inline(always)]
    fn g<S>(
        &self,
        simd: S,
        index: [i64; 3],
        (count, summed): (usize, usize),
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let Buffers { block, dy, g, sums, .. } = buffers;
        // SAFETY: these are all channels of positions of the row, neighbours in memory; dy has the shape of x.
        unsafe {
            tile::widen(simd, problem.history.x.at(index), &mut block.x()[..count]);
            tile::widen(simd, problem.dy.at(index), &mut dy[..count]);
        }
        let g = &mut g[block.front()..];
        let (silu, exact_derivative) = (problem.silu, problem.exact_derivative);
        Gradient { block, silu, exact_derivative, count, summed, dy, g, sums }.run::<S, T>(simd);
    }

    /// dx of as many places as g has from a position on, but so far before as it lags.
    #[inline(always)]
    fn dx<S>(&self, simd: S, column: &Column, from: i64, count: usize, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let Buffers { block, g, dx, .. } = buffers;
        convolve_dx(simd, block, &g[block.front() - block.before()..], count, dx);
        let first = from - (problem.width as i64 - 1);
        let inside = first.max(column.from);
        let skipped = self.cut.places_of(inside - first);
        if skipped < count {
            let target = problem.dx.at([column.batch, 0, inside]);
            // SAFETY: as for x, and no other task writes to these positions of dx.
            unsafe { places::write(simd, &dx[skipped..count], target, problem.stream) };
        }
    }
}
