//! What the tensors of a case hold: kinds of numbers, drawn by the names of the case and of the tensor.

use causeway::error::Result;
use causeway::tensor::DType;
use causeway::{Arrangement, HostTensor};

use super::named_enum::named_enum;
use super::random::Random;
use crate::oracle::ulp::Format;

named_enum! {
    /// What the inputs of a case hold.
    pub enum Values as "values" {
        /// Uniform: see docs/verification.md for the range of each tensor.
        #[default]
        Uniform = "uniform",
        /// As uniform, with a NaN and both infinities among x.
        NonFinite = "non-finite",
        /// As uniform, with a NaN and both infinities in one of the inputs, weight and bias aside: with these a whole channel is
        /// lost.
        NonFiniteAnywhere = "non-finite-anywhere",
        /// As uniform, with NaN in x and dy at the padded positions of seq_idx: nothing may leak out of them.
        NanPadding = "nan-padding",
        /// As uniform, with x and dy scaled into the dtype's subnormal numbers.
        Subnormal = "subnormal",
        /// As uniform, with x scaled so that some results overflow the dtype.
        Overflow = "overflow",
        /// As uniform, with zeros of both signs in place of half of the elements.
        Zeros = "zeros",
        /// Magnitudes from 2⁻²⁰ to 1, each binade as often as any other.
        Spread = "spread",
    }
}

impl Values {
    /// Largest magnitude in a tensor of this dtype, where it is not a parameter's.
    pub(super) fn scale(self, dtype: DType) -> f64 {
        match (self, Format::of(dtype)) {
            (Values::Subnormal, Some(format)) => format.smallest_normal(),
            (Values::Overflow, Some(format)) => format.max(),
            _ => 1.0,
        }
    }
}

pub(super) fn fill(tensor: &mut HostTensor, case: &str, name: &str, scale: f64, values: Values) {
    let mut random = Random::new(case, name);
    match values {
        Values::Zeros => tensor.assign(|_| match random.below(4) {
            0 => 0.0,
            1 => -0.0,
            _ => random.uniform() * scale,
        }),
        Values::Spread => tensor.assign(|_| random.uniform() * scale * 0.5f64.powi(random.below(21) as i32)),
        _ => tensor.assign_in_parallel(|i| random.uniform_after(i) * scale),
    }
}

/// A tensor of random numbers: signs are independent, magnitudes at most `scale` and as `values` says.
pub(super) fn valued(
    arrangement: &Arrangement,
    case: &str,
    name: &str,
    scale: f64,
    values: Values,
) -> Result<HostTensor> {
    let mut tensor = arrangement.zeros()?;
    fill(&mut tensor, case, name, scale, values);
    Ok(tensor)
}

pub(super) fn uniform(arrangement: &Arrangement, case: &str, name: &str, scale: f64) -> Result<HostTensor> {
    valued(arrangement, case, name, scale, Values::Uniform)
}

/// Uniform values that repeat through the storage.
pub(super) fn repeating(arrangement: &Arrangement, case: &str, name: &str, scale: f64) -> Result<HostTensor> {
    // A prime, so that rows and channels, which are powers of two, never repeat each other.
    const PERIOD: usize = 262_147;
    let mut tensor = arrangement.zeros()?;
    let mut random = Random::new(case, name);
    let pattern = HostTensor::from_fn(arrangement.dtype, &[PERIOD as i64], |_| random.uniform() * scale)?;
    let pattern = &pattern.bytes()[..PERIOD * arrangement.dtype.size()];
    for piece in tensor.bytes_mut().chunks_mut(pattern.len()) {
        piece.copy_from_slice(&pattern[..piece.len()]);
    }
    Ok(tensor)
}

/// A NaN and both infinities in one of several tensors: which one depends on the case.
pub(super) fn insert_non_finite_in_one<'a>(tensors: impl Iterator<Item = &'a mut HostTensor>, case: &str) {
    let mut tensors: Vec<_> = tensors.collect();
    let chosen = Random::new(case, "non-finite-anywhere").below(tensors.len());
    insert_non_finite(tensors[chosen], case);
}

/// A NaN and both infinities, at places that depend on the case.
pub(super) fn insert_non_finite(x: &mut HostTensor, case: &str) {
    let mut values = x.to_f64();
    let mut random = Random::new(case, "non-finite");
    if values.is_empty() {
        return;
    }
    for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let at = random.below(values.len());
        values[at] = special;
    }
    x.assign(|i| values[i]);
}
