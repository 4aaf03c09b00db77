//! What the tensors of a case hold: kinds of numbers, drawn by the names of the case and of the tensor.

use causeway::error::Result;
use causeway::tensor::DType;
use causeway::{Arrangement, HostTensor};

use super::random::Random;
use crate::oracle::ulp::Format;

/// What the inputs of a case hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Values {
    /// Uniform: see docs/verification.md for the range of each tensor.
    #[default]
    Uniform,
    /// As uniform, with a NaN and both infinities among x.
    NonFinite,
    /// As uniform, with a NaN and both infinities in one of the inputs, weight and bias aside: with these a whole channel is
    /// lost.
    NonFiniteAnywhere,
    /// As uniform, with NaN in x and dy at the padded positions of seq_idx: nothing may leak out of them.
    NanPadding,
    /// As uniform, with x and dy scaled into the dtype's subnormal numbers.
    Subnormal,
    /// As uniform, with x scaled so that some results overflow the dtype.
    Overflow,
    /// As uniform, with zeros of both signs in place of half of the elements.
    Zeros,
    /// Magnitudes from 2⁻²⁰ to 1, each binade as often as any other.
    Spread,
}

impl Values {
    /// Every kind.
    pub const ALL: [Values; 8] = [
        Values::Uniform,
        Values::NonFinite,
        Values::NonFiniteAnywhere,
        Values::NanPadding,
        Values::Subnormal,
        Values::Overflow,
        Values::Zeros,
        Values::Spread,
    ];

    /// The name that suites use.
    pub const fn name(self) -> &'static str {
        match self {
            Values::Uniform => "uniform",
            Values::NonFinite => "non-finite",
            Values::NonFiniteAnywhere => "non-finite-anywhere",
            Values::NanPadding => "nan-padding",
            Values::Subnormal => "subnormal",
            Values::Overflow => "overflow",
            Values::Zeros => "zeros",
            Values::Spread => "spread",
        }
    }
}

impl std::fmt::Display for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Values {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Values::ALL.into_iter().find(|values| values.name() == text).ok_or_else(|| {
            let names: Vec<_> = Values::ALL.iter().map(|values| values.name()).collect();
            format!("values is {text:?}: expected one of {}", names.join(", "))
        })
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
