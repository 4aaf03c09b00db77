//! SiLU and its derivative on vectors.
//!
//! With `exp(-x) = p · 2ⁿ` (n integral, p about 1) and `s = 2⁻ⁿ`:
//!
//! ```text
//! sigmoid(x)  = 1 / (1 + p · 2ⁿ) = s / (s + p)
//! silu(x)     = x / (s + p) · s
//! silu'(x)    = sigmoid(x) · (1 + x · (1 - sigmoid(x))),    1 - sigmoid(x) = p / (s + p)
//! ```
//!
//! Nothing overflows, and results that are subnormal are rounded once, by the last multiplication with a
//! power of two.

use super::SimdF32;

/// Below, silu(x) rounds to -0 in f32: |x · exp(x)| < 2⁻¹⁵⁰.
const LOWEST: f32 = -110.0;
/// Above, exp(-x) no longer moves 1 + exp(-x).
const HIGHEST: f32 = 64.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few bits, so that its product with n is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `(p, n)` with `p · 2ⁿ = exp(-x)`.
///
/// Precise: `exp(r) = 1 + r + r² q(r)` on |r| ≤ ln 2 / 2, q of degree 4 with least relative error (2⁻²⁸).
/// Otherwise `2^f` on |f| ≤ 1/2 by a polynomial of degree 4 (2⁻¹⁸·⁵).
#[inline(always)]
fn split_exp<S: SimdF32>(simd: S, x: S::Vector, precise: bool) -> (S::Vector, S::Vector) {
    let t = simd.mul(x, simd.splat(-LOG2_E));
    let n = simd.round(t);
    let p = if precise {
        let minus_x = simd.mul(x, simd.splat(-1.0));
        let r = simd.mul_add(n, simd.splat(-LN_2_HIGH), minus_x);
        let r = simd.mul_add(n, simd.splat(-LN_2_LOW), r);
        let q = horner(simd, [1.381_454e-3, 8.368_745e-3, 4.166_839e-2, 1.666_652e-1, 4.999_999_3e-1], r);
        let tail = simd.mul_add(simd.mul(r, r), q, r);
        simd.add(simd.splat(1.0), tail)
    } else {
        let f = simd.mul_add(n, simd.splat(-1.0), t);
        horner(simd, [9.570_054e-3, 5.591_827e-2, 2.402_474_9e-1, 6.931_218e-1, 9.999_993e-1], f)
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

#[inline(always)]
pub(super) fn silu<S: SimdF32>(simd: S, x: S::Vector, precise: bool) -> S::Vector {
    let x = simd.at_least(LOWEST, x);
    let (p, n) = split_exp(simd, simd.at_most(HIGHEST, x), precise);
    let minus_n = simd.mul(n, simd.splat(-1.0));
    let divisor = simd.add(simd.scale(simd.splat(1.0), minus_n), p);
    let reciprocal = simd.reciprocal(divisor);
    let mut quotient = simd.mul(x, reciprocal);
    if precise {
        // One step of correction: the remainder x - quotient · divisor is exact. An infinite x keeps it
        // infinite only beside a finite quotient.
        let minus_quotient = simd.mul(simd.at_most(f32::MAX, quotient), simd.splat(-1.0));
        let remainder = simd.mul_add(minus_quotient, divisor, x);
        quotient = simd.mul_add(remainder, reciprocal, quotient);
    }
    simd.scale(quotient, minus_n)
}

#[inline(always)]
pub(super) fn silu_slope<S: SimdF32>(simd: S, x: S::Vector, precise: bool) -> S::Vector {
    let x = simd.at_most(HIGHEST, simd.at_least(LOWEST, x));
    let (p, n) = split_exp(simd, x, precise);
    let s = simd.scale(simd.splat(1.0), simd.mul(n, simd.splat(-1.0)));
    let reciprocal = simd.reciprocal(simd.add(s, p));
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
