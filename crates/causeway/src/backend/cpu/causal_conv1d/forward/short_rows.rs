//! Forward of short rows; see [`super::super::short_rows`].

use std::marker::PhantomData;

use super::super::short_rows::{Block, Cut, Places};
use super::super::tile::{self, UNROLL};
use super::Problem;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Part, Simd};

/// Bytes of an array of a block: the taps of width 4, three arrays of bits, and three more stay in the L1 cache.
pub(super) const BYTES: usize = 2048;

/// Plain rows whose positions are neighbours in memory.
pub(super) struct ShortRows<T: Number> {
    pub cut: Cut,
    pub problem: Problem<T>,
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
        let Problem { history, sequences, .. } = problem;
        let (channels, chunk) = cut.partition.task(task);
        let mut block = Block::new(cut, history.has_initial_states());
        let mut y = Places::new(cut.places());
        for channels in cut.blocks(channels) {
            block.load_parameters(simd, &problem.weight, problem.bias.as_ref(), channels.clone());
            for column in cut.partition.columns(chunk) {
                let rows = (column.batch, channels.clone());
                cut.read(simd, &history.x, rows.clone(), block.x());
                block.load_states(history, sequences, rows.clone());
                let (count, silu) = (channels.clone().count() * cut.seqlen(), problem.silu);
                simd.apart(Convolve::<_, T> { block: &block, silu, count, y: &mut y, of: PhantomData });
                if let Some(residual) = &problem.residual {
                    cut.add(residual, rows.clone(), &mut y);
                }
                cut.write(simd, &y, &problem.y, rows, problem.stream);
            }
        }
        simd.fence();
    }
}

/// The convolution of all places.
struct Convolve<'a, A, T> {
    block: &'a Block<A>,
    silu: bool,
    /// Places, rounded up to whole steps.
    count: usize,
    y: &'a mut [A],
    of: PhantomData<T>,
}

impl<S: Simd, T: Number> Part<S> for Convolve<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        for at in (0..self.count).step_by(UNROLL * S::LANES) {
            // SAFETY: the block has whole steps.
            let mut sums = unsafe { self.block.sums(simd, at) };
            if self.silu {
                sums = simd.silu::<T, UNROLL>(sums);
            }
            tile::store(simd, sums, &mut self.y[at..at + UNROLL * S::LANES]);
        }
    }
}
