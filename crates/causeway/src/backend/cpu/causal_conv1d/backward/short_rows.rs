//! Backward of short rows; see [`super::super::short_rows`].
//!
//! ```text
//! g     | row of channel 0 | row of channel 1 | …
//! age 2 |             0 0 |             0 0 | …          what dx takes from 2 places behind
//! ```
//!
//! Each place has sums of its own, for dweight and dbias, over the entries of a task. Those of a row are added at the end.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::short_rows::{Block, Cut, Places};
use super::super::tile::{self, STEP, UNROLL};
use super::Problem;
use crate::backend::cpu::simd::{Accumulator, Kernel, Lanes, Number, Part, Simd};

/// Bytes of an array of a block: the taps of width 4, three arrays of bits, the sums, and five more stay in the L1 cache.
pub(super) const BYTES: usize = 1536;

/// Entries whose terms are added in the accumulators: the error does not grow with the size of the batch.
const TOGETHER: usize = 64;

/// Plain rows whose positions are neighbours in memory, without gradients of states.
pub(super) struct ShortRows<T: Number> {
    pub cut: Cut,
    pub problem: Problem<T>,
}

/// What a task works in, for each place.
struct Buffers<A> {
    block: Block<A>,
    dy: Places<A>,
    /// A step more, which is never written to.
    g: Places<A>,
    dx: Places<A>,
    /// Of each tap, by age, one after the other, and then of the bias.
    sums: Places<A>,
    /// The sums of channels, likewise.
    totals: Vec<f64>,
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
        let (places, terms) = (cut.places(), problem.width + 1);
        let mut buffers = Buffers {
            block: Block::new(cut, problem.history.has_initial_states()),
            dy: Places::new(places),
            g: Places::new(places + STEP),
            dx: Places::new(places),
            sums: Places::new(terms * places),
            totals: Vec::new(),
        };
        for channels in cut.blocks(channels) {
            let count = channels.clone().count();
            buffers.totals.clear();
            buffers.totals.resize(terms * count, 0.0);
            buffers.block.load_parameters(simd, &problem.weight, problem.bias.as_ref(), channels.clone());
            let mut summed = 0;
            for column in cut.partition.columns(chunk) {
                self.entry(simd, (column.batch, channels.clone()), &mut buffers);
                summed += 1;
                if summed % TOGETHER == 0 {
                    self.flush(&mut buffers, count);
                }
            }
            self.flush(&mut buffers, count);
            for (age, totals) in buffers.totals.chunks_exact(count).enumerate() {
                let term = if age < problem.width { problem.width - 1 - age } else { age };
                // SAFETY: each task has its own pair of chunk and channels; the sums outlive the tasks.
                unsafe { problem.sums.put(chunk, term, channels.start, totals) };
            }
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
        simd.apart(Gradient::<_, T> {
            block,
            silu: problem.silu,
            exact_slope: problem.exact_slope,
            count: rows.1.clone().count() * cut.seqlen(),
            dy,
            g,
            dx,
            sums,
            of: PhantomData,
        });
        cut.write(simd, dx, &problem.dx, rows, problem.stream);
    }

    /// Adds the sums of places to those of their channels, and starts again.
    fn flush(&self, buffers: &mut Buffers<T::Accumulator>, channels: usize) {
        let (places, seqlen) = (buffers.dy.len(), self.cut.seqlen());
        let sums = buffers.sums.chunks_exact_mut(places).zip(buffers.totals.chunks_exact_mut(channels));
        for (sums, totals) in sums {
            for (sums, total) in sums.chunks_exact_mut(seqlen).zip(totals) {
                *total += sums.iter().map(|sum| sum.to_f64()).sum::<f64>();
            }
            sums.fill(T::Accumulator::ZERO);
        }
    }
}

/// ```text
/// g[i]         = dy[i] · act'(pre[i])
/// sums[k][i]  += g[i] · x[i - k],   sums[width][i] += g[i]
/// dx[i]        = Σ_k weight[width-1-k] · g[i + k]
/// ```
/// of all places, where a tap of age k stays in its row.
struct Gradient<'a, A, T> {
    block: &'a Block<A>,
    silu: bool,
    /// See [`Simd::silu_slope`].
    exact_slope: bool,
    /// Places, rounded up to whole steps.
    count: usize,
    dy: &'a [A],
    g: &'a mut [A],
    dx: &'a mut [A],
    sums: &'a mut [A],
    of: PhantomData<T>,
}

impl<S: Simd, T: Number> Part<S> for Gradient<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Gradient { block, silu, exact_slope, count, dy, g, dx, sums, .. } = self;
        let (step, places, width) = (UNROLL * S::LANES, dy.len(), block.ages().end);
        assert!(g.len() >= places + STEP && count <= places);
        for at in (0..count).step_by(step) {
            let mut results = tile::load::<S, UNROLL>(simd, &dy[at..at + step]);
            if silu {
                // SAFETY: the block has whole steps.
                let slopes = simd.silu_slope::<T, UNROLL>(exact_slope, unsafe { block.sums(simd, at) });
                for (result, slope) in results.iter_mut().zip(slopes) {
                    *result = simd.mul(*result, slope);
                }
            }
            tile::store(simd, results, &mut g[at..at + step]);
            for age in block.ages() {
                let sums = &mut sums[age * places + at..][..step];
                let mut of_places = tile::load::<S, UNROLL>(simd, sums);
                for (i, sum) in of_places.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let x = unsafe { block.taken(simd, age, at + i * S::LANES) };
                    *sum = simd.mul_add(results[i], x, *sum);
                }
                tile::store(simd, of_places, sums);
            }
            let sums = &mut sums[width * places + at..][..step];
            let mut of_places = tile::load::<S, UNROLL>(simd, sums);
            for (sum, g) in of_places.iter_mut().zip(results) {
                *sum = simd.add(*sum, g);
            }
            tile::store(simd, of_places, sums);
        }
        let zero = simd.splat(S::Scalar::ZERO);
        for at in (0..count).step_by(step) {
            let mut results = [zero; UNROLL];
            // As in the other kernels, the newest tap first.
            for age in block.ages() {
                for (at, result) in (at..).step_by(S::LANES).zip(&mut results) {
                    // SAFETY: as above; g has a step more.
                    unsafe {
                        let mut g = simd.load(g.as_ptr().add(at + age));
                        if age > 0 {
                            g = block.inside(simd, (age, at + age), g, zero);
                        }
                        *result = simd.mul_add(block.weight(simd, age, at), g, *result);
                    }
                }
            }
            tile::store(simd, results, &mut dx[at..at + step]);
        }
    }
}
