//! A result against the truth.

use std::ops::Range;

use causeway::tensor::{DType, TensorRef};
use serde::{Deserialize, Serialize};

use super::loops::{Loops, map_all, vectorised};
use super::ulp::Format;

/// What every byte of an output is set to before a call: a NaN in every dtype, and one that no arithmetic gives, since
/// those have a positive sign or an empty payload.
pub const POISON: u8 = 0xff;

/// What an output has to be: a value and an error bound for every element, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Dtype of the output.
    pub dtype: DType,
    /// Shape of the output.
    pub shape: Vec<i64>,
    /// The true values, not rounded to the dtype.
    pub values: Vec<f64>,
    /// Largest absolute error that correct arithmetic can have. Zero where the result is a copy; infinite where
    /// f32 sums may overflow although the true value does not, so that nothing can be said.
    pub bounds: Vec<f64>,
}

/// One element of an output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstElement {
    /// Its logical coordinate.
    pub coordinate: Vec<i64>,
    /// What the kernel gave.
    #[serde(with = "number")]
    pub found: f64,
    /// The truth.
    #[serde(with = "number")]
    pub expected: f64,
    /// Absolute difference, infinite if one of both is not a number or they are infinite and differ.
    #[serde(with = "number")]
    pub error: f64,
    /// What is allowed.
    #[serde(with = "number")]
    pub bound: f64,
    /// True if the element still holds what it was poisoned with.
    pub unwritten: bool,
}

impl std::fmt::Display for WorstElement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let coordinate: Vec<_> = self.coordinate.iter().map(i64::to_string).collect();
        write!(f, "[{}] ", coordinate.join(", "))?;
        if self.unwritten {
            return write!(f, "was never written, expected {:.9e}", self.expected);
        }
        write!(f, "is {:.9e}, expected {:.9e}: ", self.found, self.expected)?;
        write!(f, "error {:.3e}, bound {:.3e}", self.error, self.bound)
    }
}

/// How far a result is from the truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of elements.
    pub elements: u64,
    /// Largest absolute error.
    #[serde(with = "number")]
    pub max_error: f64,
    /// Mean absolute error.
    #[serde(with = "number")]
    pub mean_error: f64,
    /// Largest error in units of the last place of the dtype, at the true value or, where that is smaller, at the
    /// mean magnitude of the output: next to a zero of the function every error is many units.
    #[serde(with = "number")]
    pub max_ulps: f64,
    /// Largest bound of any element, as derived from the data; a ceiling may have cut it in the check.
    #[serde(with = "number")]
    pub max_derived_bound: f64,
    /// Largest part of its bound that any element used: 1 or less is a pass.
    #[serde(with = "number")]
    pub fraction: f64,
    /// The element that used the largest part of its bound; `None` when there are no elements.
    pub worst: Option<WorstElement>,
    /// Elements outside their bound.
    pub failures: u64,
    /// Elements (also counted as failures) that still hold what they were poisoned with.
    pub unwritten: u64,
}

impl Comparison {
    /// True when no element is outside its bound.
    pub fn passed(&self) -> bool {
        self.failures == 0
    }
}

impl Expected {
    /// An output whose elements are copies: nothing is rounded.
    pub(crate) fn exact(dtype: DType, shape: &[i64], values: Vec<f64>) -> Self {
        let bounds = vec![0.0; values.len()];
        Expected { dtype, shape: shape.to_vec(), values, bounds }
    }

    /// Compares a result on the host with the truth. An element passes when its absolute error is at most the
    /// smaller of its bound and `ceiling`. A NaN is right exactly where a NaN is expected; an infinity counts as the
    /// smallest magnitude that rounds to it.
    ///
    /// # Panics
    /// If `found` has another shape or dtype, or is not on the host.
    pub fn compare(&self, found: &TensorRef<'_>, ceiling: Option<f64>) -> Comparison {
        assert_eq!(found.shape(), self.shape, "the result has the shape of the output");
        assert_eq!(found.dtype(), self.dtype, "the result has the dtype of the output");
        let rule = Rule {
            truth: self,
            format: Format::of(self.dtype).expect("outputs are floating-point"),
            ceiling: ceiling.unwrap_or(f64::INFINITY),
            unit_at_least: self.mean_magnitude(),
        };
        let count = self.values.len();
        let pieces = (0..count).step_by(PIECE).collect();
        let parts = map_all(count, pieces, |scratch: &mut Scratch, first| {
            let piece = Piece { rule: &rule, found, elements: first..count.min(first + PIECE), scratch };
            vectorised(piece)
        });

        let mut all = Part::default();
        for part in parts {
            all.add(part);
        }
        Comparison {
            elements: count as u64,
            max_error: all.max_error,
            mean_error: all.error_sum / count.max(1) as f64,
            max_ulps: all.max_ulps,
            max_derived_bound: all.max_derived_bound,
            fraction: all.worst.map_or(0.0, |(_, fraction)| fraction),
            worst: all.worst.map(|(i, _)| rule.element(i, found)),
            failures: all.failures,
            unwritten: all.unwritten,
        }
    }

    fn mean_magnitude(&self) -> f64 {
        let pieces = self.values.chunks(PIECE).collect();
        let parts =
            map_all(self.values.len(), pieces, |(): &mut (), values| vectorised(Magnitude { values }));
        let (count, sum) = parts.iter().fold((0, 0.0), |(count, sum), part| (count + part.0, sum + part.1));
        sum / count.max(1) as f64
    }

    fn coordinate(&self, mut index: usize) -> Vec<i64> {
        let mut coordinate = vec![0; self.shape.len()];
        for (axis, &size) in self.shape.iter().enumerate().rev() {
            coordinate[axis] = (index % size as usize) as i64;
            index /= size as usize;
        }
        coordinate
    }
}

/// Elements that are compared at a time: their numbers stay in the first cache. Sums of pieces are added in order, so
/// that results do not depend on the number of cores.
const PIECE: usize = 1 << 10;

/// Sums and maxima that are formed side by side.
const LANES: usize = 8;

/// What an element has to be.
struct Rule<'a> {
    truth: &'a Expected,
    format: Format,
    ceiling: f64,
    /// For [`Comparison::max_ulps`].
    unit_at_least: f64,
}

impl Rule<'_> {
    fn element(&self, i: usize, found: &TensorRef<'_>) -> WorstElement {
        let (expected, coordinate) = (self.truth.values[i], self.truth.coordinate(i));
        let mut value = [0.0];
        found.read_f64(i, &mut value);
        WorstElement {
            found: value[0],
            expected,
            error: absolute_error(value[0], expected, self.format),
            bound: self.truth.bounds[i].min(self.ceiling),
            unwritten: value[0].is_nan() && holds_poison(found, &coordinate),
            coordinate,
        }
    }
}

fn holds_poison(found: &TensorRef<'_>, coordinate: &[i64]) -> bool {
    found.element_bytes(coordinate).iter().all(|&byte| byte == POISON)
}

/// What a comparison says of some elements.
#[derive(Debug, Default)]
struct Part {
    max_error: f64,
    error_sum: f64,
    max_ulps: f64,
    max_derived_bound: f64,
    /// The first element that used the largest part of its bound, and that part.
    worst: Option<(usize, f64)>,
    failures: u64,
    unwritten: u64,
}

impl Part {
    /// Adds the elements that come next.
    fn add(&mut self, next: Part) {
        self.max_error = self.max_error.max(next.max_error);
        self.error_sum += next.error_sum;
        self.max_ulps = self.max_ulps.max(next.max_ulps);
        self.max_derived_bound = self.max_derived_bound.max(next.max_derived_bound);
        self.failures += next.failures;
        self.unwritten += next.unwritten;
        if let Some((i, fraction)) = next.worst
            && self.worst.is_none_or(|(_, largest)| fraction > largest)
        {
            self.worst = Some((i, fraction));
        }
    }
}

/// Numbers of the elements of a piece.
#[derive(Default)]
struct Scratch {
    found: Vec<f64>,
    errors: Vec<f64>,
    fractions: Vec<f64>,
    ulps: Vec<f64>,
}

/// Some elements of an output.
struct Piece<'a> {
    rule: &'a Rule<'a>,
    found: &'a TensorRef<'a>,
    elements: Range<usize>,
    scratch: &'a mut Scratch,
}

impl Loops for Piece<'_> {
    type Output = Part;

    #[inline(always)]
    fn run(self) -> Part {
        let Rule { truth, format, ceiling, unit_at_least } = *self.rule;
        let Scratch { found, errors, fractions, ulps } = self.scratch;
        let (values, bounds) = (&truth.values[self.elements.clone()], &truth.bounds[self.elements.clone()]);
        for numbers in [&mut *found, errors, fractions, ulps] {
            numbers.resize(values.len(), 0.0);
        }
        self.found.read_f64(self.elements.start, found);

        for ((error, &found), &expected) in errors.iter_mut().zip(&*found).zip(values) {
            *error = absolute_error(found, expected, format);
        }
        for ((fraction, &error), &derived) in fractions.iter_mut().zip(&*errors).zip(bounds) {
            let bound = derived.min(ceiling);
            *fraction = if bound == f64::INFINITY || error == 0.0 { 0.0 } else { error / bound };
        }
        for ((ulps, &error), &expected) in ulps.iter_mut().zip(&*errors).zip(values) {
            *ulps = error / format.ulp(expected.abs().max(unit_at_least));
        }
        let mut unwritten = 0;
        if found.iter().fold(false, |any, value| any | value.is_nan()) {
            for (i, fraction) in fractions.iter_mut().enumerate().filter(|(i, _)| found[*i].is_nan()) {
                if holds_poison(self.found, &truth.coordinate(self.elements.start + i)) {
                    *fraction = f64::INFINITY;
                    unwritten += 1;
                }
            }
        }

        let largest = fold(fractions, 0.0, |a, b| if b > a { b } else { a });
        let first = fractions.iter().position(|&fraction| fraction == largest);
        Part {
            max_error: fold(errors, 0.0, |a, b| if b > a { b } else { a }),
            error_sum: fold(errors, 0.0, |a, b| a + b),
            max_ulps: fold(ulps, 0.0, |a, b| if b > a { b } else { a }),
            max_derived_bound: fold(bounds, 0.0, |a, b| if b > a { b } else { a }),
            worst: first.map(|i| (self.elements.start + i, largest)),
            failures: fractions.iter().map(|&fraction| u64::from(fraction > 1.0)).sum(),
            unwritten,
        }
    }
}

/// Number and sum of the finite magnitudes.
struct Magnitude<'a> {
    values: &'a [f64],
}

impl Loops for Magnitude<'_> {
    type Output = (u64, f64);

    #[inline(always)]
    fn run(self) -> (u64, f64) {
        let count = self.values.iter().map(|value| u64::from(value.is_finite())).sum();
        (count, fold(self.values, 0.0, |sum, value| if value.is_finite() { sum + value.abs() } else { sum }))
    }
}

/// All values joined with `start`, in an order that vectors can take.
#[inline(always)]
fn fold(values: &[f64], start: f64, join: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [start; LANES];
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = join(*lane, value);
        }
    }
    rest.iter().chain(&lanes).fold(start, |all, &value| join(all, value))
}

/// Infinite if one of both is not a number, or they are infinite and differ.
#[inline(always)]
fn absolute_error(found: f64, expected: f64, format: Format) -> f64 {
    let difference = if found == expected {
        // Infinities, too.
        0.0
    } else if expected.is_infinite() {
        f64::INFINITY
    } else if found.is_infinite() {
        // Every number from the overflow threshold on rounds to this infinity: the nearest one counts.
        let toward = expected * found.signum();
        (format.overflow() - toward).max(0.0)
    } else {
        (found - expected).abs()
    };
    match (found.is_nan(), expected.is_nan()) {
        (false, false) => difference,
        (true, true) => 0.0,
        _ => f64::INFINITY,
    }
}

/// JSON has no infinities and no NaN: they are written as text.
mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(*value)
        } else {
            serializer.serialize_str(&value.to_string())
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(value) => Ok(value),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway::HostTensor;

    fn expected(dtype: DType, values: &[f64], bound: f64) -> Expected {
        let shape = vec![values.len() as i64];
        Expected { dtype, shape, values: values.to_vec(), bounds: vec![bound; values.len()] }
    }

    fn compare(expected: &Expected, found: &[f64]) -> Comparison {
        let found = HostTensor::from_fn(expected.dtype, &expected.shape, |i| found[i]).unwrap();
        expected.compare(&found.view(), None)
    }

    #[test]
    fn the_worst_element_is_the_one_that_uses_most_of_its_bound() {
        let mut truth = expected(DType::F32, &[1.0, 2.0, 3.0, 4.0], 0.5);
        truth.shape = vec![2, 2];
        truth.bounds[1] = 0.05;
        let found = HostTensor::from_fn(DType::F32, &[2, 2], |i| [1.25, 2.0625, 3.0, 4.0][i]).unwrap();
        let result = truth.compare(&found.view(), None);
        assert_eq!((result.failures, result.max_error, result.unwritten), (1, 0.25, 0));
        let worst = result.worst.unwrap();
        assert_eq!(
            (worst.coordinate.as_slice(), worst.found, worst.bound),
            ([0, 1].as_slice(), 2.0625, 0.05)
        );
    }

    #[test]
    fn a_ceiling_cuts_the_bound() {
        let truth = expected(DType::F32, &[1.0], 0.5);
        let found = HostTensor::from_slice(&[1.25f32], &[1]).unwrap();
        assert!(truth.compare(&found.view(), None).passed());
        assert!(!truth.compare(&found.view(), Some(0.125)).passed());
    }

    #[test]
    fn nan_is_right_exactly_where_it_is_expected() {
        let nan = f64::NAN;
        assert!(compare(&expected(DType::F16, &[nan], 0.0), &[nan]).passed());
        assert!(!compare(&expected(DType::F16, &[nan], 1.0), &[1.0]).passed());
        assert!(!compare(&expected(DType::F16, &[1.0], 1.0), &[nan]).passed());
    }

    #[test]
    fn infinity_is_accepted_only_within_the_bound() {
        let infinity = f64::INFINITY;
        assert!(compare(&expected(DType::F16, &[65519.0], 1.0), &[infinity]).passed());
        assert!(!compare(&expected(DType::F16, &[65500.0], 1.0), &[infinity]).passed());
        assert!(!compare(&expected(DType::F16, &[65519.0], 1.0), &[-infinity]).passed());
        assert!(compare(&expected(DType::F16, &[infinity], 0.0), &[infinity]).passed());
        assert!(!compare(&expected(DType::F16, &[infinity], 9.0), &[65504.0]).passed());
    }

    #[test]
    fn an_infinite_bound_says_nothing_but_an_unwritten_element_still_fails() {
        let truth = expected(DType::F32, &[1.0], f64::INFINITY);
        assert!(compare(&truth, &[f64::NAN]).passed());
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let mut found = HostTensor::zeros(dtype, &[1]).unwrap();
            found.fill_bytes(POISON);
            let result = expected(dtype, &[1.0], f64::INFINITY).compare(&found.view(), None);
            assert_eq!((result.failures, result.unwritten), (1, 1), "{dtype}");
            assert!(result.worst.unwrap().to_string().contains("never written"));
        }
    }

    #[test]
    fn other_nans_are_results() {
        for bits in [0x7fc0_0000, 0xffc0_0000, 0x7fff_ffff, 0xffff_fffe] {
            let found = HostTensor::from_slice(&[f32::from_bits(bits)], &[1]).unwrap();
            let result = expected(DType::F32, &[f64::NAN], 0.0).compare(&found.view(), None);
            assert_eq!((result.failures, result.unwritten), (0, 0), "{bits:x}");
        }
    }

    #[test]
    fn ulps_are_those_of_the_output() {
        let result = compare(&expected(DType::F16, &[1.0], 1.0), &[1.0 + 3.0 / 1024.0]);
        assert_eq!(result.max_ulps, 3.0);
        // Beside numbers of size 1, an error of 1/1024 at zero is one unit, not thousands.
        let result = compare(&expected(DType::F16, &[0.0, 2.0], 1.0), &[1.0 / 1024.0, 2.0]);
        assert_eq!(result.max_ulps, 1.0);
    }

    #[test]
    fn an_empty_output_passes() {
        let result = compare(&expected(DType::F32, &[], 0.0), &[]);
        assert!(result.passed() && result.worst.is_none() && result.mean_error == 0.0);
    }
}
