//! Error bounds of correct arithmetic, from the data. docs/verification.md derives every formula.

use causeway::tensor::DType;

use super::ulp::Format;

/// Failure probability of [`independent`] is 2·exp(-λ²/2) per element: 2.6e-14.
pub const LAMBDA: f64 = 8.0;

/// Factor of the probabilistic bound of a long sum; see [`Arithmetic::long_sum`]. With φ = 0.98 its failure
/// probability is 2·exp(-φκ) / √(1-φ²) per element: 6.2e-10.
pub const KAPPA: f64 = 24.0;

/// Products of two errors, which the formulas leave out, are far below this part of the bound.
const SECOND_ORDER: f64 = 1.0 + 1.0 / 256.0;

/// Error of evaluating the logistic function, in units of 2u: a few operations of one or two units each.
const SIGMOID_UNITS: f64 = 4.0;

/// The fraction of half a unit in the last place that the activation may use up when results have 16 bits.
const ACTIVATION_FRACTION: f64 = 1.0 / 8.0;

/// Beyond this magnitude of pre, silu is pre or 0, and silu' is 1 or 0, but for [`SATURATED_TAIL`], and 1 plus the exponential is 1, or
/// as large as the exponential.
const SATURATED: f64 = 128.0;

/// More than |p|·exp(-|p|) twice, from there on.
const SATURATED_TAIL: f64 = 1e-52;

/// The floating-point numbers that a backend computes in: f32, or f64 when x is f64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arithmetic {
    accumulator: Format,
    /// Of x: what the activation may be as coarse as.
    data: Format,
    /// u: relative error of one operation.
    unit: f64,
}

/// A value with what is needed to bound its error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Approximate {
    /// The true value.
    pub value: f64,
    /// Largest absolute error of a correct computation.
    pub error: f64,
}

impl Arithmetic {
    /// For x of a floating-point dtype; integers are treated as f64.
    pub fn of(dtype: DType) -> Self {
        const DOUBLE: Format = Format::of(DType::F64).expect("f64 is a floating-point dtype");
        const SINGLE: Format = Format::of(DType::F32).expect("f32 is a floating-point dtype");
        let accumulator = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => SINGLE,
            DType::F64 | DType::I32 | DType::I64 => DOUBLE,
        };
        let data = Format::of(dtype).unwrap_or(DOUBLE);
        Arithmetic { accumulator, data, unit: accumulator.unit_roundoff() }
    }

    /// Error of rounding one result of this magnitude in the accumulator; zero for one that is not finite.
    #[inline(always)]
    pub fn rounding(&self, value: f64) -> f64 {
        if value.is_finite() { self.unit * value.abs() + self.accumulator.smallest() } else { 0.0 }
    }

    /// u: the largest relative error of one operation.
    #[inline(always)]
    pub fn relative(&self) -> f64 {
        self.unit
    }

    /// Whether a partial sum of terms with these magnitudes, taken together, may overflow when it is rounded as often.
    #[inline(always)]
    pub fn may_overflow(&self, terms: usize, magnitude: f64) -> bool {
        magnitude * (1.0 + self.gamma(terms as f64)) >= self.accumulator.max()
    }

    /// The largest error of a factor, an exact number, times something approximate, in the accumulator.
    ///
    /// Infinite where the product may overflow, and where an infinite factor meets what may have either sign.
    #[inline(always)]
    pub fn product(&self, factor: f64, other: Approximate) -> f64 {
        if factor.is_nan() || other.value.is_nan() && other.error == 0.0 {
            return 0.0;
        }
        if !other.error.is_finite() {
            return f64::INFINITY;
        }
        if !other.value.is_finite() {
            return 0.0;
        }
        if factor.is_infinite() {
            let certain = other.error == 0.0 || other.error < other.value.abs();
            return if certain { 0.0 } else { f64::INFINITY };
        }
        let (value, error) = (factor * other.value, factor.abs() * other.error);
        if self.may_overflow(1, value.abs() + error) { f64::INFINITY } else { error + self.rounding(value) }
    }

    /// The same number in this dtype, as a kernel of its own would leave it in memory. Unbounded where that may be an infinity.
    #[inline(always)]
    pub fn kept(&self, number: Approximate, dtype: DType) -> Approximate {
        let error = self.rounded(number, dtype);
        let most = Format::of(dtype).unwrap_or(self.accumulator).max();
        let overflows = number.value.is_finite() && number.value.abs() + error >= most;
        Approximate { error: if overflows { f64::INFINITY } else { error }, ..number }
    }

    /// γₙ = n·u / (1 - n·u): relative error of n operations in a row.
    #[inline(always)]
    fn gamma(&self, operations: f64) -> f64 {
        let product = operations * self.unit;
        if product < 0.5 { product / (1.0 - product) } else { f64::INFINITY }
    }

    /// Worst case of a sum of `terms` products, in any order, fused or not: γₙ·Σ|terms|, n = `terms` (one
    /// rounding of the product and n - 1 sums), and a subnormal number per operation.
    ///
    /// Infinite where a partial sum may overflow. Zero where a term is not finite: what such a sum gives does
    /// not depend on the order. In f64, a sum of magnitudes that is infinite may be either.
    #[inline(always)]
    pub fn sum(&self, terms: usize, magnitude: f64) -> f64 {
        if magnitude.is_nan() || magnitude == f64::INFINITY && self.accumulator.max() < f64::MAX {
            return 0.0;
        }
        if self.may_overflow(terms, magnitude) {
            return f64::INFINITY;
        }
        let operations = terms as f64;
        self.gamma(operations) * magnitude + 2.0 * operations * self.accumulator.smallest()
    }

    /// A sum of `terms` products whose signs are random and independent: the smaller of the worst case and
    /// κ·u·√n·‖terms‖₂, in any order and shape of summation.
    #[inline(always)]
    pub fn long_sum(&self, terms: usize, magnitude: f64, squares: f64) -> f64 {
        let worst = self.sum(terms, magnitude);
        if !magnitude.is_finite() || self.may_overflow(terms, magnitude) {
            return worst;
        }
        let operations = terms as f64;
        let subnormal = 2.0 * operations * self.accumulator.smallest();
        let likely = KAPPA * self.unit * (operations + 1.0).sqrt() * root_of_squares(squares) + subnormal;
        worst.min(likely)
    }

    /// Error of pre · sigmoid(pre), from the error of pre and of evaluating it.
    ///
    /// Infinite at pre = -∞, where equal formulas give 0 or NaN.
    #[inline(always)]
    pub fn silu(&self, pre: Approximate, sigmoid: f64, result: f64) -> f64 {
        if !pre.value.is_finite() {
            return if pre.value == f64::NEG_INFINITY { f64::INFINITY } else { 0.0 };
        }
        let derivative = sigmoid * (1.0 + pre.value * (1.0 - sigmoid));
        let mut inherited = first_order(derivative, pre.error);
        if pre.value.abs() - pre.error > SATURATED {
            // However large pre and its error are: silu is pre itself, or nothing.
            inherited = inherited.min(sigmoid.round() * pre.error + SATURATED_TAIL);
        }
        let units = SIGMOID_UNITS + pre.value.abs() * (1.0 - sigmoid);
        let single = 2.0 * self.unit * units * result.abs() + self.flushed(pre.value, sigmoid);
        inherited + single.max(self.coarse() * self.data.half_ulp(result))
    }

    /// Error of dy · silu'(pre), from the error of pre and of evaluating it. `results`: the dtypes of what it enters;
    /// a backend evaluates it as exactly as the finest of them asks.
    ///
    /// Infinite at pre = ±∞, and where an infinite dy meets silu', which has terms of both signs: equal formulas give the
    /// limit or NaN.
    #[inline(always)]
    pub fn silu_gradient(&self, pre: Approximate, sigmoid: f64, dy: f64, results: &[DType]) -> f64 {
        if pre.value.is_infinite() || dy.is_infinite() && !pre.value.is_nan() {
            return f64::INFINITY;
        }
        if pre.value.is_nan() || !dy.is_finite() {
            return 0.0;
        }
        let magnitude = pre.value.abs();
        let curvature = sigmoid * (1.0 - sigmoid) * (2.0 + pre.value * (1.0 - 2.0 * sigmoid));
        let inherited = first_order(curvature, pre.error);
        // silu' = σ·(1 + p·(1-σ)): the error of σ, then four operations on these magnitudes.
        let parts = sigmoid * (1.0 + magnitude * (1.0 - sigmoid));
        let units = SIGMOID_UNITS + magnitude * (1.0 - sigmoid);
        let sensitivity = sigmoid * (1.0 + magnitude * (1.0 - 2.0 * sigmoid).abs());
        let single = 2.0 * self.unit * (units * sensitivity + 2.0 * parts) + self.flushed(pre.value, sigmoid);
        let evaluated = single.max(self.coarsest(results) * parts);
        let mut derivative_error = inherited + evaluated;
        if magnitude - pre.error > SATURATED {
            // However large pre and its error are: a sigmoid of exactly 1 leaves nothing of pre · (1-σ).
            let rounded = (2.0 * self.unit * SIGMOID_UNITS).max(self.coarsest(results)) * parts;
            derivative_error =
                derivative_error.min(rounded + SATURATED_TAIL + self.flushed(pre.value, sigmoid));
        }
        let error = dy.abs() * derivative_error + self.accumulator.smallest();
        // What may be any number may overflow as well.
        if error < self.accumulator.max() { error } else { f64::INFINITY }
    }

    /// Adds what rounding to the output's dtype can change. Infinite where the error is (or where an infinite one
    /// was multiplied by zero); zero for a value that is not finite.
    #[inline(always)]
    pub fn rounded(&self, exact: Approximate, dtype: DType) -> f64 {
        if exact.error.is_nan() || exact.error.is_infinite() {
            return f64::INFINITY;
        }
        if !exact.value.is_finite() {
            return 0.0;
        }
        let format = Format::of(dtype).unwrap_or(self.accumulator);
        let error = exact.error * SECOND_ORDER;
        let rounding = format.half_ulp(exact.value.abs() + error);
        // The truth itself is rounded to f64.
        let truth = if dtype == DType::F64 { rounding } else { 0.0 };
        error + rounding + truth
    }

    /// 1/8 for 16-bit data, else nothing.
    #[inline(always)]
    fn coarse(&self) -> f64 {
        if self.data.unit_roundoff() > self.unit { ACTIVATION_FRACTION } else { 0.0 }
    }

    /// What rounding hides in every one of these results: 1/8 of the finest one's unit roundoff, or nothing where one of
    /// them is as precise as the accumulator.
    #[inline(always)]
    fn coarsest(&self, results: &[DType]) -> f64 {
        let unit = |&dtype: &DType| Format::of(dtype).unwrap_or(self.accumulator).unit_roundoff();
        let finest = results.iter().map(unit).fold(f64::INFINITY, f64::min);
        if finest > self.unit { ACTIVATION_FRACTION * finest } else { 0.0 }
    }

    /// A sigmoid near or below the smallest normal number may be flushed to zero.
    #[inline(always)]
    fn flushed(&self, pre: f64, sigmoid: f64) -> f64 {
        let near = 4.0 * self.accumulator.smallest() / (2.0 * self.unit);
        // Beyond 1024 the true value is nothing even in f64.
        if sigmoid < near { near * (1.0 + pre.abs().min(1024.0)) } else { 0.0 }
    }
}

/// |f(p + e) - f(p)| for |e| ≤ `error`, where f' at p is `derivative` and |f''| ≤ 1/2 everywhere, as it is for silu and
/// for silu'.
#[inline(always)]
fn first_order(derivative: f64, error: f64) -> f64 {
    derivative.abs() * error + 0.25 * error * error
}

/// Error of a sum whose terms carry errors of random, independent sign: the smaller of the worst case `linear`
/// (Σ of their bounds) and λ·√`squares` (Σ of the squares of their bounds), by Hoeffding's inequality.
#[inline(always)]
pub fn independent(linear: f64, squares: f64) -> f64 {
    linear.min(LAMBDA * root_of_squares(squares))
}

/// √Σ, of squares that may have been too small for f64: what those have lost is nothing beside a sum that is a normal number, and all
/// there is to a smaller one, of which nothing is said.
fn root_of_squares(squares: f64) -> f64 {
    if squares < f64::MIN_POSITIVE { f64::INFINITY } else { squares.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silu(p: f64) -> f64 {
        p / (1.0 + (-p).exp())
    }

    #[test]
    fn second_derivatives_of_silu_and_of_its_derivative_are_below_one_half() {
        // Differences of silu itself, which share nothing with the formulas above.
        let h = 1e-3;
        for i in -20_000..=20_000 {
            let p = f64::from(i) * 1e-3;
            let second = (silu(p + h) - 2.0 * silu(p) + silu(p - h)) / (h * h);
            let third = (silu(p + 2.0 * h) - 2.0 * silu(p + h) + 2.0 * silu(p - h) - silu(p - 2.0 * h))
                / (2.0 * h * h * h);
            assert!(second.abs() <= 0.5 + 1e-6 && third.abs() <= 0.5, "at {p}: {second} {third}");
        }
    }

    #[test]
    fn a_sum_of_plain_numbers_has_the_textbook_bound() {
        let arithmetic = Arithmetic::of(DType::F32);
        let (u, terms) = (0.5f64.powi(24), 5.0);
        let expected = terms * u / (1.0 - terms * u) * 10.0;
        assert!((arithmetic.sum(5, 10.0) / expected - 1.0).abs() < 1e-12);
        assert_eq!(arithmetic.sum(5, f64::INFINITY), 0.0);
        assert!(arithmetic.sum(5, 3.4e38).is_finite());
        // Its roundings take it beyond the largest number.
        assert_eq!(arithmetic.sum(5, f32::MAX.into()), f64::INFINITY);
    }

    #[test]
    fn long_sums_take_the_smaller_bound() {
        let arithmetic = Arithmetic::of(DType::F32);
        assert_eq!(arithmetic.long_sum(4, 4.0, 4.0), arithmetic.sum(4, 4.0));
        let n = 1 << 20;
        let likely = arithmetic.long_sum(n, n as f64, n as f64);
        assert!(likely < arithmetic.sum(n, n as f64) / 10_000.0);
        assert_eq!(arithmetic.long_sum(n, 3.3e38, 1.0), f64::INFINITY);
    }

    #[test]
    fn errors_whose_squares_are_too_small_for_f64_still_count() {
        let error = 1.5e-320;
        assert_eq!(independent(2.0 * error, 2.0 * (error * error)), 2.0 * error);
        assert_eq!(independent(0.0, 0.0), 0.0);
        let (double, term) = (Arithmetic::of(DType::F64), 1e-200);
        assert_eq!(double.long_sum(9, 9.0 * term, 9.0 * (term * term)), double.sum(9, 9.0 * term));
    }

    #[test]
    fn sixteen_bit_activations_may_be_an_eighth_of_a_rounding_off() {
        let pre = Approximate { value: 1.0, error: 0.0 };
        let value = silu(1.0);
        let half = Arithmetic::of(DType::F16).silu(pre, value, value);
        assert_eq!(half, 0.5f64.powi(12) / 8.0);
        let single = Arithmetic::of(DType::F32).silu(pre, value, value);
        assert!(single < 8.0 * f64::from(f32::EPSILON) * value);
    }

    #[test]
    fn a_derivative_far_from_zero_is_bounded_whatever_the_error_of_pre() {
        let arithmetic = Arithmetic::of(DType::F32);
        for (value, sigmoid) in [(1e38, 1.0), (-1e38, 0.0)] {
            let error =
                |error| arithmetic.silu_gradient(Approximate { value, error }, sigmoid, 1e37, &[DType::F32]);
            assert!(error(1e31) < 1e37 * 8.0 * f64::from(f32::EPSILON), "{}", error(1e31));
            assert_eq!(error(2e38), f64::INFINITY);
        }
    }

    #[test]
    fn an_activation_far_from_zero_is_bounded_whatever_the_error_of_pre() {
        let arithmetic = Arithmetic::of(DType::F32);
        let bound = |value, sigmoid: f64, error| {
            arithmetic.silu(Approximate { value, error }, sigmoid, value * sigmoid)
        };
        // As wrong as pre, and then rounded; or nothing.
        assert!(bound(1e37, 1.0, 1e30) < 1e30 + 1e37 * 8.0 * f64::from(f32::EPSILON));
        assert!(bound(-1e37, 0.0, 1e30) < 1e-34);
        assert!(bound(-1e37, 0.0, 2e37) > 1e37);
    }

    #[test]
    fn a_derivative_is_as_exact_as_the_finest_result_it_enters() {
        let arithmetic = Arithmetic::of(DType::BF16);
        let pre = Approximate { value: 1.0, error: 0.0 };
        let sigmoid = silu(1.0);
        let error = |dweight| arithmetic.silu_gradient(pre, sigmoid, 1.0, &[DType::BF16, dweight]);
        let parts = sigmoid * (1.0 + (1.0 - sigmoid));
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-12;
        assert!(near(error(DType::BF16), parts * 0.5f64.powi(8 + 3)));
        assert!(near(error(DType::F16), parts * 0.5f64.powi(11 + 3)));
        assert!(error(DType::F32) < 16.0 * f64::from(f32::EPSILON));
    }
}
