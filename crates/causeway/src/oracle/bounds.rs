//! Error bounds of correct arithmetic, from the data. docs/verification.md derives every formula.

use super::ulp::Format;
use crate::tensor::DType;

/// Failure probability of [`independent`] is 2·exp(-λ²/2) per element: 2.6e-14.
pub const LAMBDA: f64 = 8.0;

/// Factor of the probabilistic bound of a long sum; see [`Arithmetic::long_sum`]. With φ = 0.98 its failure
/// probability is 2·exp(-φκ) / √(1-φ²) per element: 6.2e-10.
pub const KAPPA: f64 = 24.0;

/// Products of two errors, which the formulas leave out, are far below this part of the bound.
const SECOND_ORDER: f64 = 1.0 + 1.0 / 256.0;

/// Error of evaluating the logistic function, in units of 2u: a few operations of one or two units each.
const SIGMOID_UNITS: f64 = 4.0;

/// The part of half a unit in the last place that the activation may use up when results have 16 bits.
const ACTIVATION_SHARE: f64 = 1.0 / 8.0;

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

    /// u: relative error of one operation.
    pub fn unit(&self) -> f64 {
        self.unit
    }

    /// γₙ = n·u / (1 - n·u): relative error of n operations in a row.
    fn gamma(&self, operations: f64) -> f64 {
        let product = operations * self.unit;
        if product < 0.5 { product / (1.0 - product) } else { f64::INFINITY }
    }

    /// Worst case of a sum of `terms` products, in any order, fused or not: γₙ·Σ|terms|, n = `terms` (one
    /// rounding of the product and n - 1 sums), and a subnormal number per operation.
    ///
    /// Infinite where a partial sum may overflow. Zero where a term is not finite: what such a sum gives does
    /// not depend on the order.
    pub fn sum(&self, terms: usize, magnitude: f64) -> f64 {
        if !magnitude.is_finite() {
            return 0.0;
        }
        if magnitude >= self.accumulator.max() / 2.0 {
            return f64::INFINITY;
        }
        let operations = terms as f64;
        self.gamma(operations) * magnitude + 2.0 * operations * self.accumulator.smallest()
    }

    /// A sum of `terms` products whose signs are random and independent: the smaller of the worst case and
    /// κ·u·√n·‖terms‖₂, in any order and shape of summation.
    pub fn long_sum(&self, terms: usize, magnitude: f64, squares: f64) -> f64 {
        let worst = self.sum(terms, magnitude);
        if !magnitude.is_finite() || worst.is_infinite() && magnitude >= self.accumulator.max() / 2.0 {
            return worst;
        }
        let operations = terms as f64;
        let subnormal = 2.0 * operations * self.accumulator.smallest();
        let likely = KAPPA * self.unit * (operations + 1.0).sqrt() * squares.sqrt() + subnormal;
        worst.min(likely)
    }

    /// Error of pre · sigmoid(pre), from the error of pre and of evaluating it.
    pub fn silu(&self, pre: Approximate, sigmoid: f64, result: f64) -> f64 {
        // |d silu / d pre| ≤ 1.1 everywhere.
        let inherited = 1.1 * pre.error;
        let units = SIGMOID_UNITS + pre.value.abs() * (1.0 - sigmoid);
        let single = 2.0 * self.unit * units * result.abs() + self.flushed(pre.value, sigmoid);
        inherited + single.max(self.coarse() * self.data.half_ulp(result))
    }

    /// Error of dy · silu'(pre), from the error of pre and of evaluating it.
    pub fn silu_gradient(&self, pre: Approximate, sigmoid: f64, dy: f64) -> f64 {
        let magnitude = pre.value.abs();
        // |d² silu / d pre²| ≤ 1/2 everywhere.
        let inherited = 0.5 * pre.error;
        // silu' = σ·(1 + p·(1-σ)): the error of σ, then four operations on these magnitudes.
        let parts = sigmoid * (1.0 + magnitude * (1.0 - sigmoid));
        let units = SIGMOID_UNITS + magnitude * (1.0 - sigmoid);
        let sensitivity = sigmoid * (1.0 + magnitude * (1.0 - 2.0 * sigmoid).abs());
        let single = 2.0 * self.unit * (units * sensitivity + 2.0 * parts) + self.flushed(pre.value, sigmoid);
        let evaluated = single.max(self.coarse() * self.data.unit_roundoff() * parts);
        dy.abs() * (inherited + evaluated) + self.accumulator.smallest()
    }

    /// Adds what rounding to the output's dtype can change. Zero for a value that is not finite.
    pub fn rounded(&self, exact: Approximate, dtype: DType) -> f64 {
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
    fn coarse(&self) -> f64 {
        if self.data.unit_roundoff() > self.unit { ACTIVATION_SHARE } else { 0.0 }
    }

    /// A sigmoid near or below the smallest normal number may be flushed to zero.
    fn flushed(&self, pre: f64, sigmoid: f64) -> f64 {
        let near = 4.0 * self.accumulator.smallest() / (2.0 * self.unit);
        // Beyond 1024 the true value is nothing even in f64.
        if sigmoid < near { near * (1.0 + pre.abs().min(1024.0)) } else { 0.0 }
    }
}

/// Error of a sum whose terms carry errors of random, independent sign: the smaller of the worst case `linear`
/// (Σ of their bounds) and λ·√`squares` (Σ of the squares of their bounds), by Hoeffding's inequality.
pub fn independent(linear: f64, squares: f64) -> f64 {
    linear.min(LAMBDA * squares.sqrt())
}
