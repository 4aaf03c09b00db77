//! Heads: all channels of one, over a tile of positions, in accumulators.
//!
//! ```text
//!              tile of positions
//! channel 0   [ u u u u u u u u ]
//! channel 1   [ u u u u u u u u ]      vectors along the sequence, whatever the strides of x
//!   ...
//!               ↓ Σ u² of each position, channel by channel
//! ```
//!
//! Channels are added in their order, so that results do not depend on layouts and threads.

use std::ops::Range;

use super::partition::Partition;
use super::sequences::{Piece, Sequences};
use super::states::History;
use super::tensors::Parameter;
use super::tile::{self, Keep, TILE};
use crate::backend::cpu::simd::{Accumulator, Lanes, Number, Simd};
use crate::causal_conv1d::{HeadNorm, Sizes};

/// Vectors whose activation is computed together.
const TOGETHER: usize = 4;

/// Positions are a multiple of this: `TOGETHER` of the widest vectors.
const STEP: usize = 64;

/// Accumulators of a tile, so that what is computed of one stays in the second-level cache.
const TILE_ELEMENTS: usize = 1 << 15;

/// The norm of a call, in its arithmetic.
#[derive(Clone, Copy)]
pub(super) struct Heads<A> {
    pub head_dim: usize,
    pub eps: A,
    pub scale: A,
    /// Positions of a tile.
    pub tile: usize,
}

impl<A: Accumulator> Heads<A> {
    pub fn new(norm: &HeadNorm) -> Self {
        let head_dim = norm.head_dim as usize;
        let tile = (TILE_ELEMENTS / head_dim / STEP * STEP).clamp(STEP, TILE);
        Heads { head_dim, eps: A::from_f64(norm.eps), scale: A::from_f64(norm.scale), tile }
    }

    /// Tasks of whole heads.
    pub fn partition(&self, sizes: &Sizes) -> Partition {
        Partition::new(sizes, self.head_dim as i64, (4 * self.tile) as i64, i64::MAX)
    }

    /// Room for a number of every channel and position of a tile.
    pub fn room(&self) -> Vec<A> {
        vec![A::ZERO; self.head_dim * self.tile]
    }

    /// `1 / √(Σ u² + eps)` of some sums.
    #[inline(always)]
    pub fn invert(&self, squares: &mut [A]) {
        for sum in squares {
            *sum = A::ONE / (*sum + self.eps).sqrt();
        }
    }
}

/// What convolves the channels of a head: the tensors, and room for one channel.
pub(super) struct Channels<'a, T: Number> {
    pub sequences: &'a Sequences,
    pub history: &'a History<T>,
    pub weight: &'a Parameter,
    pub bias: Option<&'a Parameter>,
    taps: Vec<T::Accumulator>,
    /// `width - 1` positions of history, then a tile.
    x: Vec<T::Accumulator>,
}

impl<'a, T: Number> Channels<'a, T> {
    pub fn new(
        sequences: &'a Sequences,
        history: &'a History<T>,
        (weight, bias): (&'a Parameter, Option<&'a Parameter>),
        width: usize,
        tile: usize,
    ) -> Self {
        let zero = T::Accumulator::ZERO;
        let (taps, x) = (vec![zero; width], vec![zero; width - 1 + tile]);
        Channels { sequences, history, weight, bias, taps, x }
    }

    /// The convolution of a channel at some positions of a piece, at most a tile of them; `out` has whole steps.
    #[inline(always)]
    pub fn convolve<S>(
        &mut self,
        simd: S,
        piece: &Piece,
        channel: i64,
        positions: Range<i64>,
        out: &mut [T::Accumulator],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (before, count) = (self.taps.len() - 1, (positions.end - positions.start) as usize);
        for (tap, weight) in self.taps.iter_mut().enumerate() {
            // SAFETY: channel and tap lie in the weight.
            *weight = unsafe { self.weight.read(channel, tap as i64) };
        }
        // SAFETY: the channel lies in the bias.
        let bias = self.bias.map_or(T::Accumulator::ZERO, |bias| unsafe { bias.read(channel, 0) });
        // What lies in the piece is read with the tile.
        let inside = (positions.start - piece.from).min(before as i64) as usize;
        let first = positions.start - before as i64;
        for (x, position) in self.x[..before - inside].iter_mut().zip(first..) {
            *x = self.history.value(self.sequences, piece, channel, position);
        }
        let source = self.history.x.at([piece.batch, channel, positions.start - inside as i64]);
        let x = &mut self.x[before - inside..before + count];
        // SAFETY: these are positions of the piece, which lie in the row.
        unsafe { tile::gather(simd, source, self.history.x.strides[2], x) };
        tile::convolve(simd, &self.taps, bias, &self.x, count, out, &Keep);
    }
}

/// The activation of whole steps, and Σ u² with it.
#[inline(always)]
pub(super) fn activate<S, T>(
    simd: S,
    silu: bool,
    pre: &[S::Scalar],
    u: &mut [S::Scalar],
    squares: &mut [S::Scalar],
) where
    S: Simd,
    T: Number<Accumulator = S::Scalar>,
{
    let step = TOGETHER * S::LANES;
    let chunks = pre.chunks_exact(step).zip(u.chunks_exact_mut(step)).zip(squares.chunks_exact_mut(step));
    for ((pre, u), squares) in chunks {
        let mut values = load::<S, TOGETHER>(simd, pre);
        if silu {
            values = simd.silu::<T, TOGETHER>(values);
        }
        let sums = load::<S, TOGETHER>(simd, squares);
        for (i, (value, sum)) in values.into_iter().zip(sums).enumerate() {
            // SAFETY: chunks are `TOGETHER` whole vectors.
            unsafe {
                simd.store(u.as_mut_ptr().add(i * S::LANES), value);
                simd.store(squares.as_mut_ptr().add(i * S::LANES), simd.mul_add(value, value, sum));
            }
        }
    }
}

/// Multiplies whole steps with the slope of SiLU.
#[inline(always)]
pub(super) fn slope<S, T>(simd: S, pre: &[S::Scalar], values: &mut [S::Scalar])
where
    S: Simd,
    T: Number<Accumulator = S::Scalar>,
{
    let step = TOGETHER * S::LANES;
    for (pre, values) in pre.chunks_exact(step).zip(values.chunks_exact_mut(step)) {
        let slopes = simd.silu_slope::<T, TOGETHER>(load::<S, TOGETHER>(simd, pre));
        let factors = load::<S, TOGETHER>(simd, values);
        for (i, (slope, factor)) in slopes.into_iter().zip(factors).enumerate() {
            // SAFETY: chunks are `TOGETHER` whole vectors.
            unsafe { simd.store(values.as_mut_ptr().add(i * S::LANES), simd.mul(factor, slope)) };
        }
    }
}

#[inline(always)]
fn load<S: Simd, const N: usize>(simd: S, values: &[S::Scalar]) -> [S::Vector; N] {
    let mut vectors = [simd.splat(S::Scalar::ZERO); N];
    for (vector, chunk) in vectors.iter_mut().zip(values.chunks_exact(S::LANES)) {
        // SAFETY: the chunk is a whole vector.
        *vector = unsafe { simd.load(chunk.as_ptr()) };
    }
    vectors
}

/// Positions rounded up to whole steps.
pub(super) fn whole_steps(count: usize) -> usize {
    count.next_multiple_of(STEP)
}
