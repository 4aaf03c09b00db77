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

/// Vectors whose SiLU is computed together.
const INTERLEAVED: usize = 4;

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
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while at + INTERLEAVED * S::LANES <= out.count {
            convolve_vectors::<S, T, F, WIDTH, INTERLEAVED>(
                simd,
                &taps,
                width,
                bias,
                x,
                residual,
                &mut before,
                at,
                out,
                finish,
            );
            at += INTERLEAVED * S::LANES;
        }
        while at < out.count {
            convolve_vectors::<S, T, F, WIDTH, 1>(
                simd,
                &taps,
                width,
                bias,
                x,
                residual,
                &mut before,
                at,
                out,
                finish,
            );
            at += S::LANES;
        }
    }
    store_history(simd, before, history);
}

/// `N` vectors of [`convolve`].
///
/// # Safety
/// As for [`convolve`], and `at + N · LANES ≤ out.count`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn convolve_vectors<S, T, F, const WIDTH: usize, const N: usize>(
    simd: S,
    taps: &[S::Vector; WIDTH],
    width: usize,
    bias: S::Vector,
    x: *const T,
    residual: *const T,
    before: &mut S::Vector,
    at: usize,
    out: &Output<T>,
    finish: &F,
) where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
    F: Finish<S>,
{
    let mut sums = [bias; N];
    // SAFETY: the caller's promise.
    unsafe {
        for (i, sum) in sums.iter_mut().enumerate() {
            let source = x.add(at + i * S::LANES);
            simd.prefetch(source.cast::<u8>().wrapping_add(AHEAD));
            let now = T::load(simd, source);
            for age in (0..WIDTH).rev() {
                if age < width {
                    *sum = simd.mul_add(taps[age], simd.shift_in(*before, now, age), *sum);
                }
            }
            *before = now;
        }
        for (i, mut result) in finish.apply(simd, sums, at).into_iter().enumerate() {
            let at = at + i * S::LANES;
            if !residual.is_null() {
                result = simd.add(result, T::load(simd, residual.add(at)));
            }
            out.store(simd, at, result);
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
    let (mut newest, mut oldest) = ([zero; WIDTH], [zero; WIDTH]);
    for age in 0..WIDTH {
        if age < width {
            newest[age] = simd.splat(weight[width - 1 - age]);
            oldest[age] = simd.splat(weight[age]);
        }
    }
    let source = Gradients { newest, oldest, width, bias: simd.splat(bias), x, dy, dx, silu, precision };
    let mut state = State {
        x: load_history(simd, x_history),
        g: load_history(simd, g_history),
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
            source.vectors::<1>(simd, &mut state, at);
            at += S::LANES;
        }
    }
    for age in 0..WIDTH {
        if age < width {
            sums[width - 1 - age] += simd.sum(state.totals[age]).to_f64();
        }
    }
    sums[width] += simd.sum(state.total).to_f64();
    store_history(simd, state.x, x_history);
    store_history(simd, state.g, g_history);
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
    precision: Precision,
}

/// What [`gradient`] carries from vector to vector.
struct State<S: Simd, const WIDTH: usize> {
    x: S::Vector,
    g: S::Vector,
    totals: [S::Vector; WIDTH],
    total: S::Vector,
}

impl<S, T, const WIDTH: usize> Gradients<S, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    /// `N` vectors.
    ///
    /// # Safety
    /// As for [`gradient`], and `at + N · LANES ≤ dx.count`.
    #[inline(always)]
    unsafe fn vectors<const N: usize>(&self, simd: S, state: &mut State<S, WIDTH>, at: usize) {
        let zero = simd.splat(S::Scalar::ZERO);
        let mut taken = [[zero; WIDTH]; N];
        let (mut pre, mut g) = ([self.bias; N], [zero; N]);
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..N {
                let (x, dy) = (self.x.add(at + i * S::LANES), self.dy.add(at + i * S::LANES));
                simd.prefetch(x.cast::<u8>().wrapping_add(AHEAD));
                simd.prefetch(dy.cast::<u8>().wrapping_add(AHEAD));
                let now = T::load(simd, x);
                for age in (0..WIDTH).rev() {
                    if age < self.width {
                        taken[i][age] = simd.shift_in(state.x, now, age);
                        pre[i] = simd.mul_add(self.newest[age], taken[i][age], pre[i]);
                    }
                }
                g[i] = T::load(simd, dy);
                state.x = now;
            }
            if self.silu {
                let slopes = simd.silu_slope(pre, self.precision);
                for (g, slope) in g.iter_mut().zip(slopes) {
                    *g = simd.mul(*g, slope);
                }
            }
            for i in 0..N {
                let mut sum = zero;
                for age in (0..WIDTH).rev() {
                    if age < self.width {
                        state.totals[age] = simd.mul_add(g[i], taken[i][age], state.totals[age]);
                        sum = simd.mul_add(self.oldest[age], simd.shift_in(state.g, g[i], age), sum);
                    }
                }
                state.total = simd.add(state.total, g[i]);
                self.dx.store(simd, at + i * S::LANES, sum);
                state.g = g[i];
            }
        }
    }
}
