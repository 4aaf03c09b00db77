//! The work of a [`tile`](super::tile) in one pass, for positions that are neighbours in memory and widths up to 8.
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

use super::tile::Finish;
use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Simd};

/// Widths up to this one. Bodies are compiled for width 4, which most models have, and for this one, which passes
/// over the taps that a smaller width lacks.
pub(super) const MAX_WIDTH: usize = 8;

/// Vectors whose SiLU is computed together, in pairs; twice as many where there are 32 registers of this many lanes.
const INTERLEAVED: usize = 4;
const WIDE_LANES: usize = 16;

/// Bytes between a load and the line that is asked for: about what arrives in two latencies of the memory.
const AHEAD: usize = 2048;

/// Most lanes of any pair of vectors.
const MAX_PAIR: usize = 32;

/// Calls a method with 4 or `MAX_WIDTH` as its constant.
macro_rules! with_taps {
    ($width:expr, $function:ident::<$($type:ty),*>($($argument:expr),* $(,)?)) => {
        if $width == 4 {
            $function::<$($type,)* 4>($($argument),*)
        } else {
            $function::<$($type,)* { $crate::backend::cpu::causal_conv1d::registers::MAX_WIDTH }>($($argument),*)
        }
    };
}
pub(super) use with_taps;

/// How many of `count` positions the passes below take: whole pairs, if the taps reach back one vector at most.
#[inline(always)]
pub(super) fn whole_pairs<S: Simd>(_: S, width: usize, count: usize) -> usize {
    let reach = if width == 4 { 4 } else { MAX_WIDTH };
    if width <= reach && reach <= S::LANES { count / (2 * S::LANES) * (2 * S::LANES) } else { 0 }
}

/// A pair whose last elements are `history`.
#[inline(always)]
fn load_history<S: Simd, T: Lanes<S>>(simd: S, history: &[S::Scalar]) -> [S::Vector; 2] {
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    for (element, &value) in (2 * S::LANES - history.len()..).zip(history) {
        lanes[T::lane(element)] = value;
    }
    // SAFETY: the array is at least a pair.
    unsafe { [simd.load(lanes.as_ptr()), simd.load(lanes.as_ptr().add(S::LANES))] }
}

/// The last elements of a pair.
#[inline(always)]
fn store_history<S: Simd, T: Lanes<S>>(simd: S, pair: [S::Vector; 2], history: &mut [S::Scalar]) {
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    // SAFETY: the array is at least a pair.
    unsafe {
        simd.store(lanes.as_mut_ptr(), pair[0]);
        simd.store(lanes.as_mut_ptr().add(S::LANES), pair[1]);
    }
    for (element, value) in (2 * S::LANES - history.len()..).zip(history) {
        *value = lanes[T::lane(element)];
    }
}

/// `width`, known when the body is compiled unless it is that of the greatest width.
#[inline(always)]
fn known<const WIDTH: usize>(width: usize) -> usize {
    if WIDTH < MAX_WIDTH { WIDTH } else { width }
}

/// Asks for what a later pair loads.
#[inline(always)]
fn prefetch_pair<S: Simd, T>(simd: S, source: *const T) {
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
    unsafe fn store<S: Simd, const N: usize>(&self, simd: S, at: usize, vectors: [S::Vector; N])
    where
        T: Lanes<S>,
    {
        let pairs = (at..).step_by(2 * S::LANES).zip(vectors.chunks_exact(2));
        // SAFETY: the caller's promise.
        unsafe {
            if self.stream {
                for (at, pair) in pairs {
                    T::store_pair::<true>(simd, self.pointer.add(at), [pair[0], pair[1]]);
                }
            } else {
                for (at, pair) in pairs {
                    T::store_pair::<false>(simd, self.pointer.add(at), [pair[0], pair[1]]);
                }
            }
        }
    }
}

/// Positions before the first one whose result can be stored past the caches.
pub(super) fn unaligned<T>(target: *const T, stream: bool) -> usize {
    if stream { target.align_offset(LINE) } else { 0 }
}

/// `out[i] = finish(bias + Σ_w weight[w] · x[i + w - (width-1)]) + residual[i]`, where `history` holds the
/// `width - 1` positions before x, and then those at its end.
///
/// # Safety
/// `x` and `residual`, unless null, point at as many elements of tensors as `out`, [`whole_pairs`] of the width.
#[inline(always)]
pub(super) unsafe fn convolve<S, T, F, const WIDTH: usize>(
    simd: S,
    weight: &[S::Scalar],
    bias: S::Scalar,
    x: *const T,
    residual: *const T,
    history: &mut [S::Scalar],
    out: &Output<T>,
    finish: &F,
) where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
    F: Finish<S>,
{
    let width = known::<WIDTH>(weight.len());
    let mut taps = [simd.splat(S::Scalar::ZERO); WIDTH];
    for age in 0..WIDTH {
        if age < width {
            taps[age] = simd.splat(weight[width - 1 - age]);
        }
    }
    let source = Convolution { taps, width, bias: simd.splat(bias), x, residual, out, finish };
    let mut before = load_history::<S, T>(simd, history);
    // SAFETY: the caller's promise.
    unsafe {
        let at = if S::LANES == WIDE_LANES {
            source.groups::<{ 2 * INTERLEAVED }>(simd, &mut before, 0)
        } else {
            source.groups::<INTERLEAVED>(simd, &mut before, 0)
        };
        source.groups::<2>(simd, &mut before, at);
    }
    store_history::<S, T>(simd, before, history);
}

/// What [`convolve`] reads, in registers where it fits.
struct Convolution<'a, S: Simd, T, F, const WIDTH: usize> {
    /// By age: 0 is the newest position.
    taps: [S::Vector; WIDTH],
    width: usize,
    bias: S::Vector,
    x: *const T,
    residual: *const T,
    out: &'a Output<T>,
    finish: &'a F,
}

impl<S, T, F, const WIDTH: usize> Convolution<'_, S, T, F, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
    F: Finish<S>,
{
    /// Groups of `N` vectors from `at` on, as many as there are, and where they end. The sums of a group are taken before
    /// those of the one before it are finished: two chains that do not depend on each other lie side by side, and
    /// the processor's scheduler, which one chain would fill, has work for all of its units.
    ///
    /// # Safety
    /// As for [`convolve`].
    #[inline(always)]
    unsafe fn groups<const N: usize>(&self, simd: S, before: &mut [S::Vector; 2], mut at: usize) -> usize {
        let elements = N * S::LANES;
        if at + elements > self.out.count {
            return at;
        }
        // SAFETY: the caller's promise; groups end at the count.
        unsafe {
            let mut sums = self.sums::<N>(simd, before, at);
            while at + 2 * elements <= self.out.count {
                let next = self.sums::<N>(simd, before, at + elements);
                self.finish(simd, sums, at);
                sums = next;
                at += elements;
            }
            self.finish(simd, sums, at);
        }
        at + elements
    }

    /// The convolution of `N` vectors, in pairs.
    ///
    /// # Safety
    /// As for [`convolve`], and `at + N · LANES ≤ out.count`.
    #[inline(always)]
    unsafe fn sums<const N: usize>(&self, simd: S, before: &mut [S::Vector; 2], at: usize) -> [S::Vector; N] {
        let mut sums = [self.bias; N];
        for (pair, sums) in sums.chunks_exact_mut(2).enumerate() {
            // SAFETY: the caller's promise.
            let now = unsafe {
                let source = self.x.add(at + 2 * pair * S::LANES);
                prefetch_pair(simd, source);
                T::load_pair(simd, source)
            };
            for age in (0..WIDTH).rev() {
                if age < self.width {
                    let taken = T::shift_pair_in(simd, *before, now, age);
                    sums[0] = simd.mul_add(self.taps[age], taken[0], sums[0]);
                    sums[1] = simd.mul_add(self.taps[age], taken[1], sums[1]);
                }
            }
            *before = now;
        }
        sums
    }

    /// Takes the results of `N` vectors to their place.
    ///
    /// # Safety
    /// As for [`Self::sums`].
    #[inline(always)]
    unsafe fn finish<const N: usize>(&self, simd: S, sums: [S::Vector; N], at: usize) {
        let mut results = self.finish.apply(simd, sums, at);
        // SAFETY: the caller's promise.
        unsafe {
            if !self.residual.is_null() {
                for (pair, results) in results.chunks_exact_mut(2).enumerate() {
                    let added = T::load_pair(simd, self.residual.add(at + 2 * pair * S::LANES));
                    results[0] = simd.add(results[0], added[0]);
                    results[1] = simd.add(results[1], added[1]);
                }
            }
            self.out.store(simd, at, results);
        }
    }
}

/// What [`gradient`] works on.
pub(super) struct Gradient<'a, A, T> {
    pub weight: &'a [A],
    pub bias: A,
    pub x: *const T,
    pub dy: *const T,
    /// The `width - 1` positions before x, and then those at its end.
    pub x_history: &'a mut [A],
    /// The same of g.
    pub g_history: &'a mut [A],
    /// `width - 1` positions late.
    pub dx: Output<T>,
    /// Sums for the taps and the bias.
    pub sums: &'a mut [f64],
    pub silu: bool,
}

/// ```text
/// g[i]      = dy[i] · act'(pre[i])
/// dx[i]     = Σ_w weight[w] · g[i - w]                       of position i - (width-1)
/// sums[w]  += Σ_i g[i] · x[i + w - (width-1)],   sums[width] += Σ_i g[i]
/// ```
///
/// # Safety
/// `x` and `dy` point at as many elements of tensors as dx, [`whole_pairs`] of the width.
#[inline(always)]
pub(super) unsafe fn gradient<S, T, const WIDTH: usize>(simd: S, work: Gradient<'_, S::Scalar, T>)
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    let Gradient { weight, bias, x, dy, x_history, g_history, dx, sums, silu } = work;
    let width = known::<WIDTH>(weight.len());
    let zero = simd.splat(S::Scalar::ZERO);
    let (mut newest, mut oldest) = ([zero; WIDTH], [zero; WIDTH]);
    for age in 0..WIDTH {
        if age < width {
            newest[age] = simd.splat(weight[width - 1 - age]);
            oldest[age] = simd.splat(weight[age]);
        }
    }
    let source = Gradients { newest, oldest, width, bias: simd.splat(bias), x, dy, dx, silu };
    let mut state = State {
        x: load_history::<S, T>(simd, x_history),
        g: load_history::<S, T>(simd, g_history),
        totals: [zero; WIDTH],
        total: zero,
    };
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while at + INTERLEAVED * S::LANES <= source.dx.count {
            source.vectors::<INTERLEAVED>(simd, &mut state, at);
            at += INTERLEAVED * S::LANES;
        }
        while at < source.dx.count {
            source.vectors::<2>(simd, &mut state, at);
            at += 2 * S::LANES;
        }
    }
    for age in 0..WIDTH {
        if age < width {
            sums[width - 1 - age] += simd.sum(state.totals[age]).to_f64();
        }
    }
    sums[width] += simd.sum(state.total).to_f64();
    store_history::<S, T>(simd, state.x, x_history);
    store_history::<S, T>(simd, state.g, g_history);
}

/// What [`gradient`] reads, in registers where it fits.
struct Gradients<S: Simd, T, const WIDTH: usize> {
    /// Taps by age: 0 is the newest position.
    newest: [S::Vector; WIDTH],
    /// Taps in the other order.
    oldest: [S::Vector; WIDTH],
    width: usize,
    bias: S::Vector,
    x: *const T,
    dy: *const T,
    dx: Output<T>,
    silu: bool,
}

/// What [`gradient`] carries from pair to pair.
struct State<S: Simd, const WIDTH: usize> {
    x: [S::Vector; 2],
    g: [S::Vector; 2],
    totals: [S::Vector; WIDTH],
    total: S::Vector,
}

impl<S, T, const WIDTH: usize> Gradients<S, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    /// `N` vectors, in pairs.
    ///
    /// # Safety
    /// As for [`gradient`], and `at + N · LANES ≤ dx.count`.
    #[inline(always)]
    unsafe fn vectors<const N: usize>(&self, simd: S, state: &mut State<S, WIDTH>, at: usize) {
        let zero = simd.splat(S::Scalar::ZERO);
        let mut taken = [[zero; WIDTH]; N];
        let (mut pre, mut g, mut dx) = ([self.bias; N], [zero; N], [zero; N]);
        // SAFETY: the caller's promise.
        unsafe {
            for i in (0..N).step_by(2) {
                let (x, dy) = (self.x.add(at + i * S::LANES), self.dy.add(at + i * S::LANES));
                prefetch_pair(simd, x);
                prefetch_pair(simd, dy);
                let now = T::load_pair(simd, x);
                for age in (0..WIDTH).rev() {
                    if age < self.width {
                        [taken[i][age], taken[i + 1][age]] = T::shift_pair_in(simd, state.x, now, age);
                        pre[i] = simd.mul_add(self.newest[age], taken[i][age], pre[i]);
                        pre[i + 1] = simd.mul_add(self.newest[age], taken[i + 1][age], pre[i + 1]);
                    }
                }
                [g[i], g[i + 1]] = T::load_pair(simd, dy);
                state.x = now;
            }
            if self.silu {
                let slopes = simd.silu_slope::<T, N>(pre);
                for (g, slope) in g.iter_mut().zip(slopes) {
                    *g = simd.mul(*g, slope);
                }
            }
            for i in (0..N).step_by(2) {
                let now = [g[i], g[i + 1]];
                for age in (0..WIDTH).rev() {
                    if age < self.width {
                        let late = T::shift_pair_in(simd, state.g, now, age);
                        for (part, late) in late.into_iter().enumerate() {
                            let (g, x) = (g[i + part], taken[i + part][age]);
                            state.totals[age] = simd.mul_add(g, x, state.totals[age]);
                            dx[i + part] = simd.mul_add(self.oldest[age], late, dx[i + part]);
                        }
                    }
                }
                state.total = simd.add(state.total, simd.add(g[i], g[i + 1]));
                state.g = now;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.dx.store(simd, at, dx) };
    }
}
