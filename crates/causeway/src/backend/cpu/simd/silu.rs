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

/// `(p, n)` with `p · 2⁻ⁿ = exp(-x)`.
#[inline(always)]
fn split_exp<S: SimdF32>(simd: S, x: S::Vector, precision: Precision) -> (S::Vector, S::Vector) {
    let t = simd.mul(x, simd.splat(LOG2_E));
    let n = simd.round(t);
    let p = match precision {
        Precision::F32 => {
            let minus_x = simd.mul(x, simd.splat(-1.0));
            let r = simd.mul_add(n, simd.splat(LN_2_HIGH), minus_x);
            let r = simd.mul_add(n, simd.splat(LN_2_LOW), r);
            let q = horner(simd, [1.381_454e-3, 8.368_745e-3, 4.166_839e-2, 1.666_652e-1, 4.999_999_3e-1], r);
            let tail = simd.mul_add(simd.mul(r, r), q, r);
            simd.add(simd.splat(1.0), tail)
        }
        // In f = t - n, with the signs that make 2^-f of 2^f.
        Precision::F16 => {
            let f = simd.sub(t, n);
            horner(simd, [9.570_054e-3, -5.591_827e-2, 2.402_474_9e-1, -6.931_218e-1, 9.999_993e-1], f)
        }
        Precision::Bf16 => {
            let f = simd.sub(t, n);
            horner(simd, [-5.517_134e-2, 2.426_135e-1, -6.932_612e-1, 9.999_279e-1], f)
        }
    };
    (p, n)
}

/// The polynomial with these coefficients, highest power first.
#[inline(always)]
fn horner<S: SimdF32, const N: usize>(simd: S, coefficients: [f32; N], x: S::Vector) -> S::Vector {
    let mut sum = simd.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        sum = simd.mul_add(sum, x, simd.splat(coefficient));
    }
    sum
}

/// `1 / x`, as exact as the precision needs.
#[inline(always)]
fn reciprocal<S: SimdF32>(simd: S, x: S::Vector, precision: Precision) -> S::Vector {
    match precision {
        Precision::Bf16 => simd.estimate_reciprocal(x),
        _ => simd.reciprocal(x),
    }
}

#[inline(always)]
pub(super) fn silu<S: SimdF32>(simd: S, x: S::Vector, precision: Precision) -> S::Vector {
    let x = simd.at_least(LOWEST, x);
    let (p, n) = split_exp(simd, simd.at_most(HIGHEST, x), precision);
    let s = simd.scale(simd.splat(1.0), n);
    let divisor = simd.add(s, p);
    let reciprocal = reciprocal(simd, divisor, precision);
    if precision != Precision::F32 {
        return simd.mul(x, simd.mul(s, reciprocal));
    }
    let quotient = simd.mul(x, reciprocal);
    // One step of correction: the remainder x - quotient · divisor is exact.
    let minus_quotient = simd.mul(quotient, simd.splat(-1.0));
    let remainder = simd.mul_add(minus_quotient, divisor, x);
    simd.scale(simd.mul_add(remainder, reciprocal, quotient), n)
}

#[inline(always)]
pub(super) fn silu_slope<S: SimdF32>(simd: S, x: S::Vector, precision: Precision) -> S::Vector {
    let x = simd.at_most(HIGHEST, simd.at_least(LOWEST, x));
    let (p, n) = split_exp(simd, x, precision);
    let s = simd.scale(simd.splat(1.0), n);
    let reciprocal = reciprocal(simd, simd.add(s, p), precision);
    let sigmoid = simd.mul(s, reciprocal);
    let complement = simd.mul(p, reciprocal);
    simd.mul_add(simd.mul(sigmoid, x), complement, sigmoid)
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
