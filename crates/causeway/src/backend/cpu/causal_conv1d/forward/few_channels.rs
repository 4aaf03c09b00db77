//! Forward of few channels; see [`super::super::few_channels`].

use super::super::few_channels::Cut;
use super::super::places::{self, Block, Places};
use super::super::tile;
use super::Problem;
use super::places::convolve;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};

/// Bytes of an array of a block: the taps of width 4, and two more stay in the L1 cache.
pub(super) const BYTES: usize = 2048;

/// Plain rows of positions that are neighbours in memory.
pub(super) struct FewChannels<T: Number> {
    pub cut: Cut,
    pub problem: Problem<T>,
}

impl<T: Number> Kernel for FewChannels<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let FewChannels { cut, problem } = self;
        let (channels, chunk) = cut.partition.task(task);
        let mut block = Block::new(cut.kind(), problem.width, cut.places(), false);
        let mut y = Places::new(cut.places());
        block.load_parameters(simd, &problem.weight, problem.bias.as_ref(), channels);
        for column in cut.partition.columns(chunk) {
            cut.load_history(&mut block, &problem.history, &problem.sequences, &column);
            for (from, count) in cut.blocks(column.from..column.to) {
                let index = [column.batch, 0, from];
                // SAFETY: these are all channels of positions of the row, neighbours in memory; the residual has the shape of x, and
                // no other task writes to these positions of y.
                unsafe {
                    tile::widen(simd, problem.history.x.at(index), &mut block.x()[..count]);
                    convolve::<S, T>(simd, &block, problem.silu, count, &mut y);
                    if let Some(residual) = &problem.residual {
                        tile::gather_add(residual.at(index), 1, &mut y[..count]);
                    }
                    places::write(simd, &y[..count], problem.y.at(index), problem.stream);
                }
                block.advance(count);
            }
        }
        simd.fence();
    }
}
