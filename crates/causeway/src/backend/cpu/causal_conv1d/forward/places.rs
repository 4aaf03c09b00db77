//! Forward of places that lie side by side; see [`super::super::places`].

use std::marker::PhantomData;

use super::super::places::Block;
use super::super::tile::{self, UNROLL};
use crate::backend::cpu::simd::{Number, Part, Simd};

/// The convolution of so many places, rounded up to whole steps, and its activation.
#[inline(always)]
pub(super) fn convolve<S: Simd, T: Number>(
    simd: S,
    block: &Block<S::Scalar>,
    silu: bool,
    count: usize,
    y: &mut [S::Scalar],
) {
    simd.apart(Convolve::<_, T> { block, silu, count, y, of: PhantomData });
}

/// See [`convolve`].
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
