//! SiLU and its derivative on vectors.
//!
//! ```text
//! sigmoid(x)  = 1 / (1 + exp(-x))
//! silu(x)     = x · sigmoid(x)
//! silu'(x)    = sigmoid(x) · (1 + x · (1 - sigmoid(x)))
//! ```
//!
//! With n the multiple of `1 / STEPS` nearest to `-x · log₂ e`, `exp(-x) = 2ⁿ · exp(-r)` and `r = x + n · ln 2`: a power
//! at hand (`STEPS` is 1, or 16 where a vector is a table of 16 powers), and a polynomial for |r| ≤ ln 2 / (2 · `STEPS`).
//!
//! | precision | degree for 1, 16 steps | relative error | reciprocal | |
//! |---|---|---|---|---|
//! | f32  | 6, 3 | 2⁻²⁸ | estimate, one correction of the quotient (silu) or of the reciprocal (silu') | ≤ 2 ulp |
//! | f16  | 4, 2 | 2⁻¹⁸·⁵, 2⁻²¹ | estimate, one correction | < 2⁻¹⁵ |
//! | bf16 | 3, 1 | 2⁻¹³·⁷, 2⁻¹³ | estimate | < 2⁻¹² |
//!
//! The polynomials have least relative error (Remez). For 16-bit results the error is less than an eighth of half a unit
//! in the last place.
//!
//! In silu of f32 the power of two is kept apart, so that the sigmoid does not underflow where silu does not: with n of
//! the other sign and `s = 2^⌊n⌋`, `exp(-x) = p / s` and `silu(x) = x / (s + p) · s`, which rounds a subnormal silu once.
//! Elsewhere a sigmoid near the smallest normal number counts as that number or as zero.

use super::{Number, Precision, SimdF32};

/// Below, silu(x) rounds to -0 in f32: |x · exp(x)| < 2⁻¹⁵⁰.
const LOWEST: f32 = -110.0;
/// Above, exp(-x) no longer moves 1 + exp(-x).
const HIGHEST: f32 = 64.0;
/// Larger magnitudes count as this one in silu of bf16: exp(110) is infinite, so that any x beyond has a sigmoid of zero.
const INFINITE: f32 = 110.0;
/// The same where the reciprocal has to be a normal number: in silu of f16, which is zero there anyway, and in silu'.
const NORMAL: f32 = 87.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few bits, so that its product with a multiple of 1/16 is exact.
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

/// `exp(-r)`.
#[inline(always)]
fn small_exp_of_minus<S: SimdF32, const N: usize>(simd: S, r: [S::Vector; N]) -> [S::Vector; N] {
    if const { S::STEPS == 1 } {
        let coefficients =
            [1.381_454e-3, -8.368_745e-3, 4.166_839e-2, -1.666_652e-1, 4.999_999_3e-1, -1.0, 1.0];
        horner(simd, coefficients, r)
    } else {
        horner(simd, [-1.666_627_5e-1, 5.000_195_5e-1, -1.0, 1.0], r)
    }
}

/// `2^-u` for 16-bit results.
#[inline(always)]
fn small_power_of_minus<S: SimdF32, T: Number, const N: usize>(simd: S, u: [S::Vector; N]) -> [S::Vector; N] {
    match (T::PRECISION == Precision::Bf16, S::STEPS) {
        (true, 1) => horner(simd, [-5.517_167e-2, 2.426_111_3e-1, -6.932_61e-1, 9.999_281e-1], u),
        (true, _) => horner(simd, [-6.931_200_6e-1, 1.000_117_3], u),
        (false, 1) => {
            horner(simd, [9.570_102e-3, -5.591_786e-2, 2.402_474_4e-1, -6.931_218e-1, 9.999_993e-1], u)
        }
        (false, _) => horner(simd, [2.402_194_6e-1, -6.931_878e-1, 1.0], u),
    }
}

/// Two factors of `exp(-x)`, for |x| ≤ `INFINITE`, or, if `IS_NORMAL`, `NORMAL`: a power of two, and a number near 1.
#[inline(always)]
fn exp_of_minus<S: SimdF32, T: Number, const N: usize, const IS_NORMAL: bool>(
    simd: S,
    x: [S::Vector; N],
) -> ([S::Vector; N], [S::Vector; N]) {
    let shift = simd.splat(S::SHIFT);
    let shifted = each!(simd, |x| simd.mul_add(x, simd.splat(-LOG2_E), shift));
    let n = each!(simd, |shifted| simd.sub(shifted, shift));
    let rest = if const { matches!(T::PRECISION, Precision::F32) } {
        let r = each!(simd, |n, x| simd.mul_add(n, simd.splat(LN_2_HIGH), x));
        small_exp_of_minus(simd, each!(simd, |n, r| simd.mul_add(n, simd.splat(LN_2_LOW), r)))
    } else {
        let u = each!(simd, |x, n| simd.mul_add(x, simd.splat(LOG2_E), n));
        small_power_of_minus::<S, T, N>(simd, u)
    };
    let power = if IS_NORMAL {
        each!(simd, |shifted, n| simd.normal_power(shifted, n))
    } else {
        each!(simd, |shifted, n| simd.power(shifted, n))
    };
    (power, rest)
}

#[inline(always)]
pub(super) fn silu<S: SimdF32, T: Number, const N: usize>(simd: S, x: [S::Vector; N]) -> [S::Vector; N] {
    if const { matches!(T::PRECISION, Precision::F32) } {
        return silu_f32(simd, x);
    }
    let (power, rest) = if const { matches!(T::PRECISION, Precision::Bf16) } {
        exp_of_minus::<S, T, N, false>(simd, each!(simd, |x| simd.within(INFINITE, x)))
    } else {
        exp_of_minus::<S, T, N, true>(simd, each!(simd, |x| simd.within(NORMAL, x)))
    };
    let divisor = each!(simd, |power, rest| simd.mul_add(power, rest, simd.splat(1.0)));
    let sigmoid = reciprocal::<S, T, N>(simd, divisor);
    if const { matches!(T::PRECISION, Precision::Bf16) } {
        return each!(simd, |x, sigmoid| simd.mul(x, sigmoid));
    }
    // This sigmoid is never zero: it would leave -∞ what it is.
    each!(simd, |x, sigmoid| simd.mul(simd.at_least(LOWEST, x), sigmoid))
}

#[inline(always)]
fn silu_f32<S: SimdF32, const N: usize>(simd: S, x: [S::Vector; N]) -> [S::Vector; N] {
    let shift = simd.splat(S::SHIFT);
    let x = each!(simd, |x| simd.at_least(LOWEST, x));
    let bounded = each!(simd, |x| simd.at_most(HIGHEST, x));
    let shifted = each!(simd, |bounded| simd.mul_add(bounded, simd.splat(LOG2_E), shift));
    let n = each!(simd, |shifted| simd.sub(shifted, shift));
    let mut r = each!(simd, |n, bounded| simd.mul_add(n, simd.splat(-LN_2_HIGH), bounded));
    if const { S::STEPS > 1 } {
        r = each!(simd, |r, shifted| simd.add(r, simd.inverse_fraction_error(shifted)));
    }
    let r = each!(simd, |n, r| simd.mul_add(n, simd.splat(-LN_2_LOW), r));
    let rest = small_exp_of_minus(simd, r);
    let fraction = each!(simd, |shifted| simd.inverse_fraction(shifted));
    let s = each!(simd, |n| simd.scale(simd.splat(1.0), n));
    let divisor = each!(simd, |fraction, rest, s| simd.mul_add(fraction, rest, s));
    let reciprocal = each!(simd, |divisor| simd.estimate_reciprocal(divisor));
    let quotient = each!(simd, |x, reciprocal| simd.mul(x, reciprocal));
    // One step of correction: the remainder x - quotient · divisor is exact. An infinite x keeps it infinite only
    // beside a finite quotient.
    let minus_quotient = each!(simd, |quotient| simd.mul(simd.at_most(f32::MAX, quotient), simd.splat(-1.0)));
    let remainder = each!(simd, |minus_quotient, divisor, x| simd.remainder(minus_quotient, divisor, x));
    let quotient =
        each!(simd, |remainder, reciprocal, quotient| simd.mul_add(remainder, reciprocal, quotient));
    each!(simd, |quotient, n| simd.scale(quotient, n))
}

#[inline(always)]
pub(super) fn silu_derivative<S: SimdF32, T: Number, const N: usize>(
    simd: S,
    exact: bool,
    x: [S::Vector; N],
) -> [S::Vector; N] {
    if exact { derivative::<S, f32, N>(simd, x) } else { derivative::<S, T, N>(simd, x) }
}

#[inline(always)]
fn derivative<S: SimdF32, T: Number, const N: usize>(simd: S, x: [S::Vector; N]) -> [S::Vector; N] {
    let x = each!(simd, |x| simd.at_most(NORMAL, simd.at_least(-NORMAL, x)));
    let (power, rest) = exp_of_minus::<S, T, N, true>(simd, x);
    let e = each!(simd, |power, rest| simd.mul(power, rest));
    let sigmoid = reciprocal::<S, T, N>(simd, each!(simd, |e| simd.add(e, simd.splat(1.0))));
    // The product keeps the relative error of e; a difference from 1 would not, and x multiplies it.
    let complement = each!(simd, |e, sigmoid| simd.mul(e, sigmoid));
    let factor = each!(simd, |x, complement| simd.mul_add(x, complement, simd.splat(1.0)));
    each!(simd, |sigmoid, factor| simd.mul(sigmoid, factor))
}

/// `1 / x` for x from 1 on.
#[inline(always)]
fn reciprocal<S: SimdF32, T: Number, const N: usize>(simd: S, x: [S::Vector; N]) -> [S::Vector; N] {
    if const { matches!(T::PRECISION, Precision::Bf16) } {
        each!(simd, |x| simd.estimate_reciprocal(x))
    } else {
        each!(simd, |x| simd.reciprocal(x))
    }
}

/// In f64, one lane at a time.
pub(super) fn silu_f64(x: f64) -> f64 {
    // Below, the result is -0, and sigmoid's 0 would spoil an infinite x.
    let x = x.clamp(-800.0, f64::INFINITY);
    x * sigmoid_f64(x)
}

/// The derivative of [`silu_f64`].
pub(super) fn silu_derivative_f64(x: f64) -> f64 {
    // Beyond, the derivative is 1 or 0 and x · 0 would spoil an infinite x.
    let x = x.clamp(-800.0, 800.0);
    let sigmoid = sigmoid_f64(x);
    sigmoid + x * sigmoid * sigmoid_f64(-x)
}

/// Without overflow, and without cancellation on either side of zero.
fn sigmoid_f64(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}
