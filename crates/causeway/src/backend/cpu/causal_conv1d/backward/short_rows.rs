//! Backward of short rows; see [`super::super::short_rows`].

use std::ops::Range;

use super::super::places::{Block, Places};
use super::super::short_rows::Cut;
use super::super::tile::{STEP, whole_steps};
use super::Problem;
use super::places::{Gradient, PlaceSums, convolve_dx};
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// Bytes of an array of a block: the taps of width 4, three arrays of bits, the sums, and five more stay in the L1 cache.
pub(super) const BYTES: usize = 1536;

/// Plain rows whose positions are neighbours in memory, without gradients of states.
pub(super) struct ShortRows<T: Number> {
    pub cut: Cut,
    pub problem: Problem<T>,
}

/// What a task works in, for each place.
struct Buffers<A> {
    block: Block<A>,
    dy: Places<A>,
    /// A step and the taps more, which are never written to.
    g: Places<A>,
    dx: Places<A>,
    sums: PlaceSums<A>,
}

impl<T: Number> Kernel for ShortRows<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let ShortRows { cut, problem } = self;
        let (channels, chunk) = cut.partition.task(task);
        let (places, width) = (cut.places(), problem.width);
        let mut buffers = Buffers {
            block: Block::new(cut.kind(), width, places, problem.history.has_initial_states()),
            dy: Places::new(places),
            g: Places::new(places + 2 * STEP),
            dx: Places::new(places),
            sums: PlaceSums::new(cut.kind(), width, places),
        };
        for channels in cut.blocks(channels) {
            let count = channels.clone().count();
            buffers.block.load_parameters(simd, &problem.weight, problem.bias.as_ref(), channels.clone());
            for column in cut.partition.columns(chunk) {
                self.entry(simd, (column.batch, channels.clone()), &mut buffers);
                buffers.sums.end_block(count);
            }
            // SAFETY: each task has its own pair of chunk and channels; the sums outlive the tasks.
            unsafe { buffers.sums.put(&problem.sums, chunk, channels.start, count) };
        }
        simd.fence();
    }
}

impl<T: Number> ShortRows<T> {
    /// The rows of some channels of an entry.
    #[inline(always)]
    fn entry<S>(&self, simd: S, rows: (i64, Range<i64>), buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let ShortRows { cut, problem } = self;
        let Buffers { block, dy, g, dx, sums, .. } = buffers;
        cut.read(simd, &problem.history.x, rows.clone(), block.x());
        cut.read(simd, &problem.dy, rows.clone(), dy);
        block.load_states(&problem.history, &problem.sequences, rows.clone());
        let count = rows.1.clone().count() * cut.seqlen();
        let (silu, exact_derivative) = (problem.silu, problem.exact_derivative);
        // What is summed past the end belongs to no channel.
        let summed = whole_steps(count);
        Gradient { block, silu, exact_derivative, count, summed, dy, g, sums }.run::<S, T>(simd);
        convolve_dx(simd, block, g, count, dx);
        cut.write(simd, dx, &problem.dx, rows, problem.stream);
    }
}
