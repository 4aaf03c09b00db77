//! Backward of places that lie side by side; see [`super::super::places`].
//!
//! ```text
//! g     | row of channel 0 | row of channel 1 | …
//! age 2 |             0 0 |             0 0 | …          what dx takes from 2 places later, or from 2 positions
//! ```
//!
//! Each place has sums of its own, for dweight and dbias, over the blocks of a task. Those of a channel are added at the end.

use std::marker::PhantomData;

use super::super::places::{Block, Kind, Places};
use super::super::sums::SumsTarget;
use super::super::tile::{self, STEP, UNROLL};
use crate::backend::cpu::simd::{Accumulator, Number, Part, Simd};

/// Blocks whose terms are added in the accumulators: the error does not grow with the size of the batch.
const TOGETHER: usize = 64;

/// Sums of places.
pub(super) struct PlaceSums<A> {
    kind: Kind,
    width: usize,
    places: usize,
    /// Of each tap, by age, one after the other, and then of the bias.
    values: Places<A>,
    /// Blocks in them.
    blocks: usize,
    /// The sums of channels, likewise.
    totals: Vec<f64>,
}

impl<A: Accumulator> PlaceSums<A> {
    #[inline(never)]
    pub fn new(kind: Kind, width: usize, places: usize) -> Self {
        let values = Places::new((width + 1) * places);
        PlaceSums { kind, width, places, values, blocks: 0, totals: Vec::new() }
    }

    /// Adds the terms of `N` vectors of places, whose g is given.
    #[inline(always)]
    fn add<S: Simd<Scalar = A>, const N: usize>(
        &mut self,
        simd: S,
        block: &Block<A>,
        at: usize,
        g: [S::Vector; N],
    ) {
        let count = N * S::LANES;
        for age in block.ages() {
            let sums = &mut self.values[age * self.places + at..][..count];
            let mut of_places = tile::load::<S, N>(simd, sums);
            for (i, sum) in of_places.iter_mut().enumerate() {
                // SAFETY: the vector lies in the slice, and the block has as many places.
                let x = unsafe { block.taken(simd, age, at + i * S::LANES) };
                *sum = simd.mul_add(g[i], x, *sum);
            }
            tile::store(simd, of_places, sums);
        }
        let sums = &mut self.values[self.width * self.places + at..][..count];
        let mut of_places = tile::load::<S, N>(simd, sums);
        for (sum, g) in of_places.iter_mut().zip(g) {
            *sum = simd.add(*sum, g);
        }
        tile::store(simd, of_places, sums);
    }

    /// As [`Self::add`], of one place.
    fn add_one(&mut self, block: &Block<A>, at: usize, g: A) {
        for age in block.ages() {
            self.values[age * self.places + at] += g * block.taken_by_one(age, at);
        }
        self.values[self.width * self.places + at] += g;
    }

    /// Counts a block that has been summed.
    pub fn end_block(&mut self, channels: usize) {
        self.blocks += 1;
        if self.blocks == TOGETHER {
            self.flush(channels);
        }
    }

    /// Adds the sums of places to those of their channels, and starts again.
    #[inline(never)]
    fn flush(&mut self, channels: usize) {
        self.blocks = 0;
        self.totals.resize((self.width + 1) * channels, 0.0);
        let sums = self.values.chunks_exact_mut(self.places).zip(self.totals.chunks_exact_mut(channels));
        for (sums, totals) in sums {
            match self.kind {
                Kind::Rows { seqlen } => {
                    for (sums, total) in sums.chunks_exact(seqlen).zip(totals) {
                        *total += sums.iter().map(|sum| sum.to_f64()).sum::<f64>();
                    }
                }
                Kind::Positions { channels } => {
                    for sums in sums.chunks(channels) {
                        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum.to_f64());
                    }
                }
            }
            sums.fill(A::ZERO);
        }
    }

    /// Puts the sums of channels of a chunk, from the first one on, and starts again with others.
    ///
    /// # Safety
    /// As for [`SumsTarget::put`].
    #[inline(never)]
    pub unsafe fn put(&mut self, target: &SumsTarget, chunk: i64, first: i64, channels: usize) {
        self.flush(channels);
        for (age, totals) in self.totals.chunks_exact(channels).enumerate() {
            let term = if age < self.width { self.width - 1 - age } else { age };
            // SAFETY: the caller's promise.
            unsafe { target.put(chunk, term, first, totals) };
        }
        self.totals.clear();
    }
}

/// ```text
/// g[i]         = dy[i] · act'(pre[i])                           of `count` places, rounded up to whole steps
/// sums[k][i]  += g[i] · x[i - k],   sums[width][i] += g[i]      of `summed` of them
/// ```
/// where a tap of age k stays in its row; from position to position, that is k times the channels.
pub(super) struct Gradient<'a, A> {
    pub block: &'a Block<A>,
    pub silu: bool,
    /// See [`Simd::silu_derivative`].
    pub exact_derivative: bool,
    pub count: usize,
    pub summed: usize,
    pub dy: &'a [A],
    pub g: &'a mut [A],
    pub sums: &'a mut PlaceSums<A>,
}

impl<A: Accumulator> Gradient<'_, A> {
    #[inline(always)]
    pub fn run<S: Simd<Scalar = A>, T: Number>(self, simd: S) {
        simd.apart(Typed::<_, T>(self, PhantomData));
    }
}

/// A [`Gradient`] whose activation is as exact as `T` asks.
struct Typed<'a, A, T>(Gradient<'a, A>, PhantomData<T>);

impl<S: Simd, T: Number> Part<S> for Typed<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Gradient { block, silu, exact_derivative, count, summed, dy, g, sums } = self.0;
        let step = UNROLL * S::LANES;
        for at in (0..count).step_by(step) {
            let mut results = tile::load::<S, UNROLL>(simd, &dy[at..at + step]);
            if silu {
                // SAFETY: the block has whole steps.
                let derivatives =
                    simd.silu_derivative::<T, UNROLL>(exact_derivative, unsafe { block.sums(simd, at) });
                for (result, derivative) in results.iter_mut().zip(derivatives) {
                    *result = simd.mul(*result, derivative);
                }
            }
            tile::store(simd, results, &mut g[at..at + step]);
            if at + step <= summed {
                sums.add::<S, UNROLL>(simd, block, at, results);
                continue;
            }
            let whole = summed - summed % S::LANES;
            for at in (at..whole).step_by(S::LANES) {
                sums.add::<S, 1>(simd, block, at, tile::load(simd, &g[at..at + S::LANES]));
            }
            // One by one: a place past the end would multiply nothing with an x that may be infinite.
            for (at, &g) in g.iter().enumerate().take(summed).skip(at.max(whole)) {
                sums.add_one(block, at, g);
            }
        }
    }
}

/// `dx[i] = Σ_k weight[width-1-k] · g[i + k]` of so many places, rounded up to whole steps, where a tap of age k stays in its row; after
/// them g has the taps and a step more.
#[inline(always)]
pub(super) fn convolve_dx<S: Simd>(
    simd: S,
    block: &Block<S::Scalar>,
    g: &[S::Scalar],
    count: usize,
    dx: &mut [S::Scalar],
) {
    simd.apart(ConvolveDx { block, g, count, dx });
}

/// See [`convolve_dx`].
struct ConvolveDx<'a, A> {
    block: &'a Block<A>,
    g: &'a [A],
    count: usize,
    dx: &'a mut [A],
}

impl<S: Simd> Part<S> for ConvolveDx<'_, S::Scalar> {
    #[inline(always)]
    fn run(self, simd: S) {
        let ConvolveDx { block, g, count, dx } = self;
        assert!(g.len() >= count.next_multiple_of(STEP) + block.before());
        let zero = simd.splat(S::Scalar::ZERO);
        for at in (0..count).step_by(UNROLL * S::LANES) {
            let mut results = [zero; UNROLL];
            // As in the other kernels, the newest tap first.
            for age in block.ages() {
                for (at, result) in (at..).step_by(S::LANES).zip(&mut results) {
                    // SAFETY: the block has whole steps, and g those and the taps.
                    unsafe {
                        let g = block.taking(simd, age, at, g.as_ptr());
                        *result = simd.mul_add(block.weight(simd, age, at), g, *result);
                    }
                }
            }
            tile::store(simd, results, &mut dx[at..at + UNROLL * S::LANES]);
        }
    }
}
