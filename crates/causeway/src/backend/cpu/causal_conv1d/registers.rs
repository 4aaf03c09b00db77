//! Forward of a [`tile`](super::tile) in one pass, for positions that are neighbours in memory and widths up to 8.
//!
//! ```text
//! memory   x: ... |    before     |      now      | ...        pairs of vectors, each loaded once
//! tap of age k:           [ now, shifted in from before by k ]
//! ```
//!
//! Every element is loaded and widened once, every tap is a shift between registers, and each result goes straight to
//! its place: loads and stores are spread evenly over the arithmetic, as in a copy. Lines are asked for `AHEAD` of
//! their use, since the arithmetic fills the processor's window after a few of them, and its own prefetcher stops at
//! every page.

use super::blocks::MAX_PAIR;
use super::rows::{load_lanes, store_lanes};
use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Part, Simd};

/// Widths up to this one. Bodies are compiled for width 4, which most models have, and for this one, which passes
/// over the taps that a smaller width lacks.
pub(super) const MAX_WIDTH: usize = 8;

/// Vectors whose SiLU is computed together, in pairs; twice as many where there are 32 registers of this many lanes.
pub(super) const INTERLEAVED: usize = 4;
pub(super) const WIDE_LANES: usize = 16;

/// Bytes between a load and the line that is asked for: about what arrives in two latencies of the memory.
const AHEAD: usize = 2048;

/// Calls a function with 4 or `MAX_WIDTH` as its constant. [`whole_pairs`] takes no width but 4 in vectors of fewer lanes than `MAX_WIDTH`.
macro_rules! with_taps {
    ($width:expr, $function:ident::<$simd:ty, $type:ty>($($argument:expr),* $(,)?)) => {
        if const { <$simd as $crate::backend::cpu::simd::Simd>::LANES < registers::MAX_WIDTH } || $width == 4 {
            $function::<$simd, $type, 4>($($argument),*)
        } else {
            $function::<$simd, $type, { registers::MAX_WIDTH }>($($argument),*)
        }
    };
}
pub(super) use with_taps;

/// Repeats a block for every age of a tap, up or down, with a literal for the age. It does not count on the compiler to unroll a
/// loop: the body has the shifts by every number of lanes in it until the age is known, and is too long for that.
macro_rules! for_each_age {
    ($age:ident in 0..$width:ident $body:block) => {
        for_each_age!(@ $age, $width, $body, 0 1 2 3 4 5 6 7)
    };
    ($age:ident down from $width:ident $body:block) => {
        for_each_age!(@ $age, $width, $body, 7 6 5 4 3 2 1 0)
    };
    (@ $age:ident, $width:ident, $body:block, $($number:literal)*) => {
        $({
            let $age: usize = $number;
            if $age < $width $body
        })*
    };
}
pub(super) use for_each_age;
const _: () = assert!(MAX_WIDTH == 8);

/// How many of `count` positions the passes below take: whole pairs, if the taps reach back one vector at most.
#[inline(always)]
pub(super) fn whole_pairs<S: Simd>(_: S, width: usize, count: usize) -> usize {
    let reach = if width == 4 { 4 } else { MAX_WIDTH };
    if width <= reach && reach <= S::LANES { count / (2 * S::LANES) * (2 * S::LANES) } else { 0 }
}

/// A pair whose last elements are `history`.
#[inline(always)]
pub(super) fn load_history<S: Simd, T: Lanes<S>>(simd: S, history: &[S::Scalar]) -> [S::Vector; 2] {
    // As at the start of most rows. A vector load from where scalars have just been stored is not forwarded: it waits for the stores.
    if history.iter().all(|value| value.to_f64().to_bits() == 0) {
        return [simd.splat(S::Scalar::ZERO); 2];
    }
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    for (element, &value) in (2 * S::LANES - history.len()..).zip(history) {
        lanes[T::lane(element)] = value;
    }
    // SAFETY: the array is at least a pair.
    unsafe { load_lanes(simd, lanes.as_ptr()) }
}

/// The last elements of a pair.
#[inline(always)]
pub(super) fn store_history<S: Simd, T: Lanes<S>>(simd: S, pair: [S::Vector; 2], history: &mut [S::Scalar]) {
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    // SAFETY: the array is at least a pair.
    unsafe { store_lanes(simd, lanes.as_mut_ptr(), pair) };
    for (element, value) in (2 * S::LANES - history.len()..).zip(history) {
        *value = lanes[T::lane(element)];
    }
}

/// Asks for what a later pair loads.
#[inline(always)]
pub(super) fn prefetch_pair<S: Simd, T>(simd: S, source: *const T) {
    let ahead = source.cast::<u8>().wrapping_add(AHEAD);
    for line in 0..(2 * S::LANES * size_of::<T>()).div_ceil(LINE) {
        simd.prefetch(ahead.wrapping_add(line * LINE));
    }
}

/// Neighbouring elements that results go to.
pub(super) struct Output<T> {
    pub pointer: *mut T,
    pub count: usize,
    /// Past the caches: the pointer is aligned to a line then.
    pub stream: bool,
}

impl<T: Number> Output<T> {
    /// Stores `N` vectors, in pairs.
    ///
    /// # Safety
    /// `at + N · LANES ≤ count`; the elements are those of a tensor, and nobody else uses them meanwhile.
    #[inline(always)]
    pub unsafe fn store<S: Simd, const N: usize>(&self, simd: S, at: usize, vectors: [S::Vector; N])
    where
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            let target = self.pointer.add(at);
            if self.stream {
                for i in 0..N / 2 {
                    let pair = [vectors[2 * i], vectors[2 * i + 1]];
                    T::store_pair::<true>(simd, target.add(2 * i * S::LANES), pair);
                }
            } else {
                for i in 0..N / 2 {
                    let pair = [vectors[2 * i], vectors[2 * i + 1]];
                    T::store_pair::<false>(simd, target.add(2 * i * S::LANES), pair);
                }
            }
        }
    }
}

/// Positions before the first one whose result can be stored past the caches.
pub(super) fn unaligned<T>(target: *const T, stream: bool) -> usize {
    if stream { target.align_offset(LINE) } else { 0 }
}

/// A channel's convolution, in registers where it fits.
pub(super) struct Taps<S: Simd, T, const WIDTH: usize> {
    /// By age: 0 is the newest position.
    pub taps: [S::Vector; WIDTH],
    pub width: usize,
    bias: S::Vector,
    pub x: *const T,
}

impl<S, T, const WIDTH: usize> Taps<S, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    /// The width is known when the body is compiled unless it is that of the greatest width.
    #[inline(always)]
    pub fn new(simd: S, weight: &[S::Scalar], bias: S::Scalar, x: *const T) -> Self {
        let width = if WIDTH < MAX_WIDTH { WIDTH } else { weight.len() };
        let mut taps = [simd.splat(S::Scalar::ZERO); WIDTH];
        for age in 0..WIDTH {
            if age < width {
                taps[age] = simd.splat(weight[width - 1 - age]);
            }
        }
        Taps { taps, width, bias: simd.splat(bias), x }
    }

    /// The convolution of `N` vectors, in pairs.
    ///
    /// # Safety
    /// x has `at + N · LANES` elements, those of a tensor.
    #[inline(always)]
    pub unsafe fn sums<const N: usize>(
        &self,
        simd: S,
        before: &mut [S::Vector; 2],
        at: usize,
    ) -> [S::Vector; N] {
        let mut sums = [self.bias; N];
        for pair in 0..N / 2 {
            // SAFETY: the caller's promise.
            let now = unsafe {
                let source = self.x.add(at + 2 * pair * S::LANES);
                prefetch_pair(simd, source);
                T::load_pair(simd, source)
            };
            for_each_age!(age down from WIDTH {
                if age < self.width {
                    let taken = T::shift_pair_in(simd, *before, now, age);
                    sums[2 * pair] = simd.mul_add(self.taps[age], taken[0], sums[2 * pair]);
                    sums[2 * pair + 1] = simd.mul_add(self.taps[age], taken[1], sums[2 * pair + 1]);
                }
            });
            *before = now;
        }
        sums
    }
}

/// `out[i] = act(bias + Σ_w weight[w] · x[i + w - (width-1)]) + residual[i]`, where `history` holds the
/// `width - 1` positions before x, and then those at its end.
///
/// # Safety
/// `x` and `residual`, unless null, point at as many elements of tensors as `out`, [`whole_pairs`] of the width.
#[inline(always)]
pub(super) unsafe fn convolve<S, T, const WIDTH: usize>(
    simd: S,
    silu: bool,
    weight: &[S::Scalar],
    bias: S::Scalar,
    x: *const T,
    residual: *const T,
    history: &mut [S::Scalar],
    out: &Output<T>,
) where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    simd.apart(Convolve::<_, _, WIDTH> { silu, weight, bias, x, residual, history, out });
}

/// What [`convolve`] was called with, and its caller's promise.
struct Convolve<'a, A, T, const WIDTH: usize> {
    silu: bool,
    weight: &'a [A],
    bias: A,
    x: *const T,
    residual: *const T,
    history: &'a mut [A],
    out: &'a Output<T>,
}

impl<S, T, const WIDTH: usize> Part<S> for Convolve<'_, S::Scalar, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let Convolve { silu, weight, bias, x, residual, history, out } = self;
        let taps = Taps::<S, T, WIDTH>::new(simd, weight, bias, x);
        let source = Convolution { taps, silu, residual, out };
        let mut before = load_history::<S, T>(simd, history);
        // SAFETY: the promise.
        unsafe {
            let mut at = 0;
            if const { S::LANES == WIDE_LANES } {
                (before, at) = source.groups::<{ 2 * INTERLEAVED }>(simd, before, at);
            }
            // What is left of a row, or all of a short one.
            (before, at) = source.groups::<INTERLEAVED>(simd, before, at);
            (before, _) = source.groups::<2>(simd, before, at);
        }
        store_history::<S, T>(simd, before, history);
    }
}

/// What [`convolve`] works on, in registers where it fits.
struct Convolution<'a, S: Simd, T, const WIDTH: usize> {
    taps: Taps<S, T, WIDTH>,
    silu: bool,
    residual: *const T,
    out: &'a Output<T>,
}

impl<S, T, const WIDTH: usize> Convolution<'_, S, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    /// Groups of `N` vectors from `at` on, as many as there are; the last pair of them, and where they end. The sums of a group are taken before
    /// those of the one before it are finished: two chains that do not depend on each other lie side by side, and
    /// the processor's scheduler, which one chain would fill, has work for all of its units.
    ///
    /// # Safety
    /// As for [`convolve`]; `before` is the pair before `at`.
    #[inline(always)]
    unsafe fn groups<const N: usize>(
        &self,
        simd: S,
        mut before: [S::Vector; 2],
        mut at: usize,
    ) -> ([S::Vector; 2], usize) {
        let groups = (self.out.count - at) / (N * S::LANES);
        if groups == 0 {
            return (before, at);
        }
        // SAFETY: the caller's promise; groups end at the count.
        unsafe {
            let mut sums = self.taps.sums::<N>(simd, &mut before, at);
            let last = at + (groups - 1) * N * S::LANES;
            while at <= last {
                let now = sums;
                if at < last {
                    sums = simd.in_step(self.taps.sums::<N>(simd, &mut before, at + N * S::LANES));
                }
                self.finish(simd, now, at);
                at += N * S::LANES;
            }
        }
        (before, at)
    }

    /// Takes the results of `N` vectors to their place.
    ///
    /// # Safety
    /// As for [`convolve`], and `at + N · LANES ≤ out.count`.
    #[inline(always)]
    unsafe fn finish<const N: usize>(&self, simd: S, sums: [S::Vector; N], at: usize) {
        let mut results = if self.silu { simd.silu::<T, N>(sums) } else { sums };
        // SAFETY: the caller's promise.
        unsafe {
            if !self.residual.is_null() {
                for pair in 0..N / 2 {
                    let added = T::load_pair(simd, self.residual.add(at + 2 * pair * S::LANES));
                    results[2 * pair] = simd.add(results[2 * pair], added[0]);
                    results[2 * pair + 1] = simd.add(results[2 * pair + 1], added[1]);
                }
            }
            self.out.store(simd, at, results);
        }
    }
}
