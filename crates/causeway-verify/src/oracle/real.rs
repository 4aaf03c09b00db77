//! The numbers that the oracle computes in: f64, and pairs of f64 where f64 alone would not be the truth.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number with the operations that the formulas need.
pub(super) trait Real:
    Copy
    + Default
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// Exact.
    fn new(value: f64) -> Self;
    /// The nearest f64.
    fn value(self) -> f64;
    /// e to this power.
    fn exp(self) -> Self;
    /// Of a number that is not negative.
    fn sqrt(self) -> Self;
}

impl Real for f64 {
    #[inline(always)]
    fn new(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn value(self) -> f64 {
        self
    }
    fn exp(self) -> Self {
        f64::exp(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
}

/// An unevaluated sum of two f64, about 106 bits (T. J. Dekker, "A floating-point technique for extending the
/// available precision", 1971). An infinity or NaN is in `high`, with `low` zero.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DoubleDouble {
    high: f64,
    low: f64,
}

const LN_2: DoubleDouble = DoubleDouble { high: std::f64::consts::LN_2, low: 2.319_046_813_846_299_6e-17 };

impl DoubleDouble {
    /// The pair with the same sum whose `high` is that sum rounded.
    #[inline(always)]
    fn normal(high: f64, low: f64) -> Self {
        let sum = high + low;
        if !sum.is_finite() {
            return DoubleDouble { high: sum, low: 0.0 };
        }
        DoubleDouble { high: sum, low: low - (sum - high) }
    }

    #[inline(always)]
    fn scaled(self, factor: f64) -> Self {
        DoubleDouble::normal(self.high * factor, self.low * factor)
    }
}

impl Add for DoubleDouble {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let sum = self.high + other.high;
        if !sum.is_finite() {
            return DoubleDouble { high: sum, low: 0.0 };
        }
        // D. E. Knuth's error of a sum, which needs no order of the two.
        let part = sum - self.high;
        let error = (self.high - (sum - part)) + (other.high - part);
        DoubleDouble::normal(sum, error + (self.low + other.low))
    }
}

impl Neg for DoubleDouble {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        DoubleDouble { high: -self.high, low: -self.low }
    }
}

impl Sub for DoubleDouble {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for DoubleDouble {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        let product = self.high * other.high;
        if !product.is_finite() {
            return DoubleDouble { high: product, low: 0.0 };
        }
        let error = self.high.mul_add(other.high, -product);
        DoubleDouble::normal(product, error + (self.high * other.low + self.low * other.high))
    }
}

impl Div for DoubleDouble {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        let first = self.high / other.high;
        if !first.is_finite() || !other.high.is_finite() {
            return DoubleDouble { high: first, low: 0.0 };
        }
        // Two steps of long division.
        let rest = self - other * DoubleDouble::new(first);
        let second = rest.high / other.high;
        let rest = rest - other * DoubleDouble::new(second);
        DoubleDouble::normal(first, second) + DoubleDouble::new(rest.high / other.high)
    }
}

impl Real for DoubleDouble {
    #[inline(always)]
    fn new(value: f64) -> Self {
        DoubleDouble { high: value, low: 0.0 }
    }

    #[inline(always)]
    fn value(self) -> f64 {
        self.high
    }

    /// exp(x) = 2ᵏ · exp(r)^512 with r = (x - k·ln 2) / 512, and a Taylor series of exp(r) - 1.
    fn exp(self) -> Self {
        // Out of range, or not a number: f64 already gives infinity, zero or NaN.
        if !(-740.0..=709.0).contains(&self.high) {
            return DoubleDouble::new(self.high.exp());
        }
        const HALVINGS: i32 = 9;
        let k = (self.high / LN_2.high).round();
        let r = (self - LN_2 * DoubleDouble::new(k)).scaled(0.5f64.powi(HALVINGS));
        // |r| < 0.0007: the ninth term is below 2⁻¹¹³ of the first.
        let mut series = DoubleDouble::new(0.0);
        for n in (1..=9).rev() {
            series = (series + DoubleDouble::new(1.0)) * r / DoubleDouble::new(f64::from(n));
        }
        // exp(2r) - 1 = 2s + s²: squaring without losing what is small next to 1.
        for _ in 0..HALVINGS {
            series = series.scaled(2.0) + series * series;
        }
        let result = series + DoubleDouble::new(1.0);
        // 2ᵏ in two steps: it may be subnormal where the result is not yet.
        let half = (k / 2.0).trunc();
        result.scaled(half.exp2()).scaled((k - half).exp2())
    }

    /// One step of Newton's from f64's root, which doubles its digits.
    fn sqrt(self) -> Self {
        let root = DoubleDouble::new(self.high.sqrt());
        if root.high == 0.0 || !root.high.is_finite() {
            return root;
        }
        root + (self - root * root) / root.scaled(2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative_difference(a: DoubleDouble, b: DoubleDouble) -> f64 {
        ((a - b).value() / b.value()).abs()
    }

    #[test]
    fn double_double_keeps_what_f64_loses() {
        let (big, small) = (DoubleDouble::new(1e16), DoubleDouble::new(0.25));
        assert_eq!((big + small - big).value(), 0.25);
        let third = DoubleDouble::new(1.0) / DoubleDouble::new(3.0);
        let one = third + third + third;
        assert!((one - DoubleDouble::new(1.0)).value().abs() < 1e-31);
        let product = third * DoubleDouble::new(3.0);
        assert!((product - DoubleDouble::new(1.0)).value().abs() < 1e-31);
    }

    #[test]
    fn exp_agrees_with_its_functional_equation_and_with_f64() {
        for (a, b) in [(0.1, 0.7), (-3.3, 12.5), (40.0, -55.5), (-300.0, 1.0), (1e-9, -1e-7), (20.0, 600.0)] {
            let (a, b) = (DoubleDouble::new(a), DoubleDouble::new(b));
            let difference = relative_difference(a.exp() * b.exp(), (a + b).exp());
            assert!(difference < 1e-27, "{} {}: {difference:e}", a.value(), b.value());
            let double = f64::exp(a.value());
            assert!((a.exp().value() - double).abs() <= 2.0 * f64::EPSILON * double);
        }
        assert_eq!(DoubleDouble::new(0.0).exp().value(), 1.0);
    }

    #[test]
    fn exp_of_one_is_e() {
        // e = 2.71828182845904523536028747135266249775724709…
        let e = DoubleDouble { high: std::f64::consts::E, low: 1.445_646_891_729_250_2e-16 };
        assert!(relative_difference(DoubleDouble::new(1.0).exp(), e) < 1e-29);
    }

    #[test]
    fn a_root_squared_is_the_number() {
        // Of numbers below 1e-275, the low half would be subnormal.
        for value in [2.0, 1e-270, 3e300, 0.7] {
            let value = DoubleDouble::new(value);
            assert!(relative_difference(value.sqrt() * value.sqrt(), value) < 1e-30, "{value:?}");
        }
        assert_eq!(DoubleDouble::new(0.0).sqrt().value(), 0.0);
        assert_eq!(DoubleDouble::new(f64::INFINITY).sqrt().value(), f64::INFINITY);
    }

    #[test]
    fn infinities_and_nan_pass_through() {
        let infinity = DoubleDouble::new(f64::INFINITY);
        let one = DoubleDouble::new(1.0);
        assert_eq!((one + infinity).value(), f64::INFINITY);
        assert_eq!((one / infinity).value(), 0.0);
        assert_eq!((one / (one + infinity)).value(), 0.0);
        assert_eq!(infinity.exp().value(), f64::INFINITY);
        assert_eq!((-infinity).exp().value(), 0.0);
        assert!((infinity - infinity).value().is_nan());
        assert!((infinity * DoubleDouble::new(0.0)).value().is_nan());
        assert!(DoubleDouble::new(f64::NAN).exp().value().is_nan());
    }
}
