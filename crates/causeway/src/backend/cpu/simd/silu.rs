//! SiLU and its derivative on vectors.
//!
//! With `t = -x · log₂ e` and f what t is above its floor, `exp(-x) = 2^f · 2^⌊t⌋ = e`:
//!
//! ```text
//! sigmoid(x)  = 1 / (1 + e)
//! silu(x)     = x · sigmoid(x)
//! silu'(x)    = sigmoid(x) · (1 + x · (1 - sigmoid(x))),    1 - sigmoid(x) = e · sigmoid(x)
//! ```
//!
//! For 16-bit results this is computed as it stands. Where e overflows (x below -88.7) the sigmoid is 0; it would be
//! less than 2⁻¹²⁸.
//!
//! For f32 results the power of two is kept apart: with n the integer nearest to `x · log₂ e`, `s = 2ⁿ`, and
//! `p = exp(-r)` of `r = x - n · ln 2`, `exp(-x) = p / s`. Then `sigmoid(x) = s / (s + p)` does not overflow, and
//! `x / (s + p) · s` rounds a subnormal silu once.
//!
//! | precision | 2^f, exp | relative error | reciprocal | |
//! |---|---|---|---|---|
//! | f32  | degree 6 | 2⁻²⁸ | estimate, one correction of the quotient (silu) or of the reciprocal (silu') | ≤ 2 ulp |
//! | f16  | degree 4 | 2⁻¹⁸·⁵ | estimate, one correction | < 2⁻¹⁵ |
//! | bf16 | degree 3 | 2⁻¹³·⁷ | estimate | < 2⁻¹² |
//!
//! The polynomials have least relative error on 0 ≤ f ≤ 1 and |r| ≤ ln 2 / 2 (Remez). For 16-bit results the error is
//! less than an eighth of half a unit in the last place.

use super::{Precision, SimdF32};

/// Below, silu(x) rounds to -0 in f32: |x · exp(x)| < 2⁻¹⁵⁰.
const LOWEST: f32 = -110.0;
/// Above, exp(-x) no longer moves 1 + exp(-x).
const HIGHEST: f32 = 64.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few bits, so that its product with an integer is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Applies one step to every vector: chains of steps that do not depend on each other lie side by side in the program,
/// so that the processor's scheduler, which holds two or three chains in full, works on all of them.
macro_rules! each {
    ($simd:ident, |$($v:ident),+| $step:expr) => {{
        let mut out = [$simd.splat(0.0); N];
        for i in 0..N {
            $(let $v = $v[i];)+
            out[i] = $step;
        }
        out
    }};
}

/// The polynomial with these coefficients, highest power first.
#[inline(always)]
fn horner<S: SimdF32, const N: usize, const TERMS: usize>(
    simd: S,
    coefficients: [f32; TERMS],
    x: [S::Vector; N],
) -> [S::Vector; N] {
    let mut sum = [simd.splat(coefficients[0]); N];
    for &coefficient in &coefficients[1..] {
        sum = each!(simd, |sum, x| simd.mul_add(sum, x, simd.splat(coefficient)));
    }
    sum
}

/// `exp(-x)` and `sigmoid(x)` for 16-bit results.
#[inline(always)]
fn coarse<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> ([S::Vector; N], [S::Vector; N]) {
    let t = each!(simd, |x| simd.mul(x, simd.splat(-LOG2_E)));
    let f = each!(simd, |t| simd.above_floor(t));
    let p = if precision == Precision::Bf16 {
        horner(simd, [7.802_452e-2, 2.260_671_6e-1, 6.958_335_6e-1, 9.999_252e-1], f)
    } else {
        horner(simd, [1.353_416_8e-2, 5.201_146e-2, 2.414_427_6e-1, 6.930_038_3e-1, 1.000_002_6], f)
    };
    let e = each!(simd, |p, t| simd.scale(p, t));
    let divisor = each!(simd, |e| simd.add(simd.splat(1.0), e));
    let sigmoid = if precision == Precision::Bf16 {
        each!(simd, |divisor| simd.estimate_reciprocal(divisor))
    } else {
        each!(simd, |divisor| simd.reciprocal(divisor))
    };
    (e, sigmoid)
}

/// `(p, s)` with `p / s = exp(-x)` and s a power of two, for `LOWEST ≤ x ≤ HIGHEST`; and what [`SimdF32::scale`] takes
/// to multiply with s.
#[inline(always)]
#[allow(clippy::type_complexity)]
fn fine<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
) -> ([S::Vector; N], [S::Vector; N], [S::Vector; N]) {
    let t = each!(simd, |x| simd.mul_add(x, simd.splat(LOG2_E), simd.splat(0.5)));
    let f = each!(simd, |t| simd.above_floor(t));
    let minus_n = each!(simd, |f, t| simd.sub(f, t));
    let r = each!(simd, |minus_n, x| simd.mul_add(minus_n, simd.splat(LN_2_HIGH), x));
    let r = each!(simd, |minus_n, r| simd.mul_add(minus_n, simd.splat(LN_2_LOW), r));
    // exp(-r): odd powers have negative coefficients.
    let p = horner(
        simd,
        [1.381_454e-3, -8.368_745e-3, 4.166_839e-2, -1.666_652e-1, 4.999_999_3e-1, -1.0, 1.0],
        r,
    );
    let s = each!(simd, |t| simd.scale(simd.splat(1.0), t));
    (p, s, t)
}

#[inline(always)]
pub(super) fn silu<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> [S::Vector; N] {
    if precision != Precision::F32 {
        let (_, sigmoid) = coarse(simd, x, precision);
        return each!(simd, |x, sigmoid| simd.mul(x, sigmoid));
    }
    let x = each!(simd, |x| simd.at_least(LOWEST, x));
    let (p, s, t) = fine(simd, each!(simd, |x| simd.at_most(HIGHEST, x)));
    let divisor = each!(simd, |s, p| simd.add(s, p));
    let reciprocal = each!(simd, |divisor| simd.estimate_reciprocal(divisor));
    let quotient = each!(simd, |x, reciprocal| simd.mul(x, reciprocal));
    // One step of correction: the remainder x - quotient · divisor is exact. An infinite x keeps it infinite only
    // beside a finite quotient.
    let minus_quotient = each!(simd, |quotient| simd.mul(simd.at_most(f32::MAX, quotient), simd.splat(-1.0)));
    let remainder = each!(simd, |minus_quotient, divisor, x| simd.mul_add(minus_quotient, divisor, x));
    let quotient =
        each!(simd, |remainder, reciprocal, quotient| simd.mul_add(remainder, reciprocal, quotient));
    each!(simd, |quotient, t| simd.scale(quotient, t))
}

#[inline(always)]
pub(super) fn silu_slope<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> [S::Vector; N] {
    let (x, sigmoid, complement) = if precision == Precision::F32 {
        let x = each!(simd, |x| simd.at_most(HIGHEST, simd.at_least(LOWEST, x)));
        let (p, s, _) = fine(simd, x);
        let reciprocal = each!(simd, |s, p| simd.reciprocal(simd.add(s, p)));
        let sigmoid = each!(simd, |s, reciprocal| simd.mul(s, reciprocal));
        (x, sigmoid, each!(simd, |p, reciprocal| simd.mul(p, reciprocal)))
    } else {
        let (e, sigmoid) = coarse(simd, x, precision);
        // An infinite e, beside a sigmoid of zero, counts for nothing.
        (x, sigmoid, each!(simd, |e, sigmoid| simd.mul(simd.at_most(f32::MAX, e), sigmoid)))
    };
    let product = each!(simd, |sigmoid, x| simd.mul(sigmoid, x));
    each!(simd, |product, complement, sigmoid| simd.mul_add(product, complement, sigmoid))
}

/// In f64, one lane at a time.
pub(super) fn silu_f64(x: f64) -> f64 {
    // Below, the result is -0, and sigmoid's 0 would spoil an infinite x.
    let x = x.clamp(-800.0, f64::INFINITY);
    x * sigmoid_f64(x)
}

/// The derivative of [`silu_f64`].
pub(super) fn silu_slope_f64(x: f64) -> f64 {
    // Beyond, the slope is 1 or 0 and x · 0 would spoil an infinite x.
    let x = x.clamp(-800.0, 800.0);
    let sigmoid = sigmoid_f64(x);
    sigmoid + x * sigmoid * sigmoid_f64(-x)
}

/// Without overflow, and without cancellation on either side of zero.
fn sigmoid_f64(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}
