//! Forward of short rows; see [`super::super::short_rows`].

use super::super::places::{Block, Places};
use super::super::short_rows::Cut;
use super::Problem;
use super::places::convolve;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

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
        let mut block = Block::new(cut.kind(), problem.width, cut.places(), history.has_initial_states());
        let mut y = Places::new(cut.places());
        for channels in cut.blocks(channels) {
            block.load_parameters(simd, &problem.weight, problem.bias.as_ref(), channels.clone());
            for column in cut.partition.columns(chunk) {
                let rows = (column.batch, channels.clone());
                cut.read(simd, &history.x, rows.clone(), block.x());
                block.load_states(history, sequences, rows.clone());
                let count = channels.clone().count() * cut.seqlen();
                convolve::<S, T>(simd, &block, problem.silu, count, &mut y);
                if let Some(residual) = &problem.residual {
                    cut.add(residual, rows.clone(), &mut y);
                }
                cut.write(simd, &y, &problem.y, rows, problem.stream);
            }
        }
        simd.fence();
    }
}
