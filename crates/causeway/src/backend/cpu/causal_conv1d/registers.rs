//! The work of a [`tile`](super::tile) in one pass, for positions that are neighbours in memory and widths up to 8.
//!
//! ```text
//! memory   x: ... |  before  |   now    | ...        vectors of LANES positions, each loaded once
//! tap of age k:        [ now, shifted in from before by k lanes ]
//! ```
//!
//! Every element is loaded and widened once, every tap is a shift between two registers, and each result goes
//! straight to its place: loads and stores are spread evenly over the arithmetic, as in a copy. Lines are asked for
//! `AHEAD` of their use, since the arithmetic fills the processor's window after a few of them, and its own
//! prefetcher stops at every page.

use super::tile::Finish;
use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Precision, Simd};

/// Widths up to this one. Bodies are compiled for width 4, which most models have, and for this one, which passes
/// over the taps that a smaller width lacks.
pub(super) const MAX_WIDTH: usize = 8;

/// Bytes between a load and the line that is asked for: about what arrives in two latencies of the memory.
const AHEAD: usize = 2048;

/// Most lanes of any vector.
const MAX_LANES: usize = 16;

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

/// How many of `count` positions the passes below take: whole vectors, if the taps reach back one vector at most.
#[inline(always)]
pub(super) fn whole_vectors<S: Simd>(_: S, width: usize, count: usize) -> usize {
    let reach = if width == 4 { 4 } else { MAX_WIDTH };
    if width <= reach && reach <= S::LANES { count / S::LANES * S::LANES } else { 0 }
}

/// A vector whose last lanes are `history`.
#[inline(always)]
fn load_history<S: Simd>(simd: S, history: &[S::Scalar]) -> S::Vector {
    let mut lanes = [S::Scalar::ZERO; MAX_LANES];
    lanes[S::LANES - history.len()..S::LANES].copy_from_slice(history);
    // SAFETY: the array is at least a vector.
    unsafe { simd.load(lanes.as_ptr()) }
}

/// The last lanes of a vector.
#[inline(always)]
fn store_history<S: Simd>(simd: S, v: S::Vector, history: &mut [S::Scalar]) {
    let mut lanes = [S::Scalar::ZERO; MAX_LANES];
    // SAFETY: the array is at least a vector.
    unsafe { simd.store(lanes.as_mut_ptr(), v) };
    history.copy_from_slice(&lanes[S::LANES - history.len()..S::LANES]);
}

/// `width`, known when the body is compiled unless it is that of the greatest width.
#[inline(always)]
fn known<const WIDTH: usize>(width: usize) -> usize {
    if WIDTH < MAX_WIDTH { WIDTH } else { width }
}

/// Neighbouring elements that results go to.
pub(super) struct Output<T> {
    pub pointer: *mut T,
    pub count: usize,
    /// Past the caches: the pointer is aligned to a vector then.
    pub stream: bool,
}

impl<T: Number> Output<T> {
    /// # Safety
    /// `at + LANES ≤ count`; the elements are those of a tensor, and nobody else uses them meanwhile.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, simd: S, at: usize, v: S::Vector)
    where
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            if self.stream {
                T::stream(simd, self.pointer.add(at), v);
            } else {
                T::store(simd, self.pointer.add(at), v);
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
/// `x` and `residual`, unless null, point at as many elements of tensors as `out`, [`whole_vectors`] of the width.
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
    let bias = simd.splat(bias);
    let mut before = load_history(simd, history);
    for at in (0..out.count).step_by(S::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            simd.prefetch(x.add(at).cast::<u8>().wrapping_add(AHEAD));
            let now = T::load(simd, x.add(at));
            let mut sum = bias;
            for age in (0..WIDTH).rev() {
                if age < width {
                    sum = simd.mul_add(taps[age], simd.shift_in(before, now, age), sum);
                }
            }
            sum = finish.apply(simd, sum, at);
            if !residual.is_null() {
                sum = simd.add(sum, T::load(simd, residual.add(at)));
            }
            out.store(simd, at, sum);
            before = now;
        }
    }
    store_history(simd, before, history);
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
    pub precision: Precision,
}

/// ```text
/// g[i]      = dy[i] · act'(pre[i])
/// dx[i]     = Σ_w weight[w] · g[i - w]                       of position i - (width-1)
/// sums[w]  += Σ_i g[i] · x[i + w - (width-1)],   sums[width] += Σ_i g[i]
/// ```
///
/// # Safety
/// `x` and `dy` point at as many elements of tensors as dx, [`whole_vectors`] of the width.
#[inline(always)]
pub(super) unsafe fn gradient<S, T, const WIDTH: usize>(simd: S, work: Gradient<'_, S::Scalar, T>)
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    let Gradient { weight, bias, x, dy, x_history, g_history, dx, sums, silu, precision } = work;
    let width = known::<WIDTH>(weight.len());
    let zero = simd.splat(S::Scalar::ZERO);
    let (mut newest, mut oldest, mut totals) = ([zero; WIDTH], [zero; WIDTH], [zero; WIDTH]);
    for age in 0..WIDTH {
        if age < width {
            newest[age] = simd.splat(weight[width - 1 - age]);
            oldest[age] = simd.splat(weight[age]);
        }
    }
    let (bias, mut total) = (simd.splat(bias), zero);
    let (mut x_before, mut g_before) = (load_history(simd, x_history), load_history(simd, g_history));
    for at in (0..dx.count).step_by(S::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            simd.prefetch(x.add(at).cast::<u8>().wrapping_add(AHEAD));
            simd.prefetch(dy.add(at).cast::<u8>().wrapping_add(AHEAD));
            let x_now = T::load(simd, x.add(at));
            let mut g_now = T::load(simd, dy.add(at));
            let mut taken = [zero; WIDTH];
            for (age, taken) in taken.iter_mut().enumerate() {
                if age < width {
                    *taken = simd.shift_in(x_before, x_now, age);
                }
            }
            if silu {
                let mut pre = bias;
                for age in (0..WIDTH).rev() {
                    if age < width {
                        pre = simd.mul_add(newest[age], taken[age], pre);
                    }
                }
                g_now = simd.mul(g_now, simd.silu_slope(pre, precision));
            }
            let mut sum = zero;
            for age in (0..WIDTH).rev() {
                if age < width {
                    totals[age] = simd.mul_add(g_now, taken[age], totals[age]);
                    sum = simd.mul_add(oldest[age], simd.shift_in(g_before, g_now, age), sum);
                }
            }
            total = simd.add(total, g_now);
            dx.store(simd, at, sum);
            (x_before, g_before) = (x_now, g_now);
        }
    }
    for age in 0..WIDTH {
        if age < width {
            sums[width - 1 - age] += simd.sum(totals[age]).to_f64();
        }
    }
    sums[width] += simd.sum(total).to_f64();
    store_history(simd, x_before, x_history);
    store_history(simd, g_before, g_history);
}
