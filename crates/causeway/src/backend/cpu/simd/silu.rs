//! SiLU and its derivative on vectors.
//!
//! With `exp(-x) = p / s`, `s = 2ⁿ` for an integral n, and p about 1:
//!
//! ```text
//! sigmoid(x)  = 1 / (1 + p / s) = s / (s + p)
//! silu(x)     = x / (s + p) · s
//! silu'(x)    = sigmoid(x) · (1 + x · (1 - sigmoid(x))),    1 - sigmoid(x) = p / (s + p)
//! ```
//!
//! Nothing overflows, and an f32 result that is subnormal is rounded once, by the last multiplication with a power
//! of two.
//!
//! | precision | exponential | relative error | reciprocal | |
//! |---|---|---|---|---|
//! | f32  | `1 + r + r² q(r)`, q of degree 4 | 2⁻²⁸ | estimate, Newton, one correction of the quotient | ≤ 2 ulp |
//! | f16  | `2^f`, degree 4 | 2⁻¹⁸·⁵ | estimate, Newton | < 2⁻¹⁵ |
//! | bf16 | `2^f`, degree 3 | 2⁻¹³·⁷ | estimate | < 2⁻¹² |
//!
//! The polynomials have least relative error on |r| ≤ ln 2 / 2 and |f| ≤ 1/2 (Remez). For 16-bit results the error
//! is less than an eighth of half a unit in the last place.

use super::{Precision, SimdF32};

/// Below, silu(x) rounds to -0 in f32: |x · exp(x)| < 2⁻¹⁵⁰.
const LOWEST: f32 = -110.0;
/// Above, exp(-x) no longer moves 1 + exp(-x).
const HIGHEST: f32 = 64.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few bits, so that its product with n is exact.
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

/// `(p, n)` with `p · 2⁻ⁿ = exp(-x)`.
#[inline(always)]
fn split_exp<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> ([S::Vector; N], [S::Vector; N]) {
    let t = each!(simd, |x| simd.mul(x, simd.splat(LOG2_E)));
    let n = each!(simd, |t| simd.round(t));
    let p = match precision {
        Precision::F32 => {
            let minus_x = each!(simd, |x| simd.mul(x, simd.splat(-1.0)));
            let r = each!(simd, |n, minus_x| simd.mul_add(n, simd.splat(LN_2_HIGH), minus_x));
            let r = each!(simd, |n, r| simd.mul_add(n, simd.splat(LN_2_LOW), r));
            let q = horner(simd, [1.381_454e-3, 8.368_745e-3, 4.166_839e-2, 1.666_652e-1, 4.999_999_3e-1], r);
            let square = each!(simd, |r| simd.mul(r, r));
            let tail = each!(simd, |square, q, r| simd.mul_add(square, q, r));
            each!(simd, |tail| simd.add(simd.splat(1.0), tail))
        }
        // In f = t - n, with the signs that make 2^-f of 2^f.
        Precision::F16 => {
            let f = each!(simd, |t, n| simd.sub(t, n));
            horner(simd, [9.570_054e-3, -5.591_827e-2, 2.402_474_9e-1, -6.931_218e-1, 9.999_993e-1], f)
        }
        Precision::Bf16 => {
            let f = each!(simd, |t, n| simd.sub(t, n));
            horner(simd, [-5.517_134e-2, 2.426_135e-1, -6.932_612e-1, 9.999_279e-1], f)
        }
    };
    (p, n)
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

/// `1 / x`, as exact as the precision needs.
#[inline(always)]
fn reciprocal<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> [S::Vector; N] {
    match precision {
        Precision::Bf16 => each!(simd, |x| simd.estimate_reciprocal(x)),
        _ => each!(simd, |x| simd.reciprocal(x)),
    }
}

#[inline(always)]
pub(super) fn silu<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> [S::Vector; N] {
    let x = each!(simd, |x| simd.at_least(LOWEST, x));
    let (p, n) = split_exp(simd, each!(simd, |x| simd.at_most(HIGHEST, x)), precision);
    let s = each!(simd, |n| simd.scale(simd.splat(1.0), n));
    let divisor = each!(simd, |s, p| simd.add(s, p));
    let reciprocal = reciprocal(simd, divisor, precision);
    if precision != Precision::F32 {
        let sigmoid = each!(simd, |s, reciprocal| simd.mul(s, reciprocal));
        return each!(simd, |x, sigmoid| simd.mul(x, sigmoid));
    }
    let quotient = each!(simd, |x, reciprocal| simd.mul(x, reciprocal));
    // One step of correction: the remainder x - quotient · divisor is exact. An infinite x keeps it infinite only
    // beside a finite quotient.
    let minus_quotient = each!(simd, |quotient| simd.mul(simd.at_most(f32::MAX, quotient), simd.splat(-1.0)));
    let remainder = each!(simd, |minus_quotient, divisor, x| simd.mul_add(minus_quotient, divisor, x));
    let quotient =
        each!(simd, |remainder, reciprocal, quotient| simd.mul_add(remainder, reciprocal, quotient));
    each!(simd, |quotient, n| simd.scale(quotient, n))
}

#[inline(always)]
pub(super) fn silu_slope<S: SimdF32, const N: usize>(
    simd: S,
    x: [S::Vector; N],
    precision: Precision,
) -> [S::Vector; N] {
    let x = each!(simd, |x| simd.at_most(HIGHEST, simd.at_least(LOWEST, x)));
    let (p, n) = split_exp(simd, x, precision);
    let s = each!(simd, |n| simd.scale(simd.splat(1.0), n));
    let divisor = each!(simd, |s, p| simd.add(s, p));
    let reciprocal = reciprocal(simd, divisor, precision);
    let sigmoid = each!(simd, |s, reciprocal| simd.mul(s, reciprocal));
    let complement = each!(simd, |p, reciprocal| simd.mul(p, reciprocal));
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
