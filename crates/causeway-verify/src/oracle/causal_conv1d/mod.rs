//! The truth of the causal convolution.

mod backward;
mod forward;
mod gates;
mod long_sums;
mod norm;
mod sequences;
mod update;
mod varlen_states;

pub use backward::backward;
pub use forward::forward;
pub use update::update;
pub use varlen_states::varlen_states;

use causeway::causal_conv1d::{Activation, HeadNorm};
use causeway::operation::{Argument, Operation, Role};
use causeway::tensor::{DType, TensorRef};

use crate::oracle::Expected;
use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::real::Real;

/// What a call reads: views of host memory by the names of its operation's table, already validated.
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    table: &'static [Argument],
    tensors: Vec<(&'static str, TensorRef<'a>)>,
    activation: Activation,
    round_products: bool,
    norm: Option<HeadNorm>,
}

impl<'a> Inputs<'a> {
    /// The inputs that `O` has, as far as `read` has them.
    pub fn of<O: Operation>(activation: Activation, read: impl Fn(&str) -> Option<TensorRef<'a>>) -> Self {
        let inputs = O::ARGUMENTS.iter().filter(|argument| argument.role != Role::Output);
        let tensors = inputs.filter_map(|argument| Some((argument.name, read(argument.name)?))).collect();
        Inputs { table: O::ARGUMENTS, tensors, activation, round_products: false, norm: None }
    }

    /// The same of a call that rounds products with gates.
    pub fn rounding_products(self, round_products: bool) -> Self {
        Inputs { round_products, ..self }
    }

    /// The same of a call that divides by norms.
    pub fn normalised(self, norm: Option<HeadNorm>) -> Self {
        Inputs { norm, ..self }
    }

    /// An input that may be absent.
    ///
    /// # Panics
    /// If the operation knows no tensor of this name.
    pub fn get(&self, name: &str) -> Option<TensorRef<'a>> {
        assert!(self.table.iter().any(|argument| argument.name == name), "no {name} is known");
        self.tensors.iter().find(|(known, _)| *known == name).map(|(_, tensor)| *tensor)
    }

    /// An input that every call has.
    fn required(&self, name: &str) -> TensorRef<'a> {
        self.get(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// An optional input as plain numbers in row-major order.
    fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        self.get(name).map(|tensor| tensor.to_f64())
    }

    fn is_silu(&self) -> bool {
        self.activation == Activation::Silu
    }
}

/// What a call has to write, each result with its name: all that it could be asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Truth(Vec<(&'static str, Expected)>);

impl Truth {
    /// The result of a name.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(&self, name: &str) -> &Expected {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, expected)| expected).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The same with the channels `from` on of another truth, which has the same results. `axis` says along which axis of a result
    /// channels lie.
    pub fn with_channels_of(mut self, other: &Truth, from: usize, axis: impl Fn(&str) -> usize) -> Self {
        for (name, result) in &mut self.0 {
            let other = other.of(name);
            let axis = axis(name);
            let sizes: Vec<usize> = result.shape.iter().map(|&size| size as usize).collect();
            let (channels, inner) = (sizes[axis], sizes[axis + 1..].iter().product::<usize>());
            for at in (0..result.values.len()).filter(|at| at / inner % channels >= from) {
                (result.values[at], result.bounds[at]) = (other.values[at], other.bounds[at]);
            }
        }
        self
    }
}

impl IntoIterator for Truth {
    type Item = (&'static str, Expected);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// True when f64 alone would not be the truth.
fn needs_double_double(inputs: &Inputs<'_>) -> bool {
    inputs.required("x").dtype() == DType::F64
}

/// σ(p) = 1 / (1 + e⁻ᵖ), from e⁻ᵖ.
#[inline(always)]
fn sigmoid<R: Real>(exponential: R) -> R {
    R::new(1.0) / (R::new(1.0) + exponential)
}

/// act(pre), and the error that it may have before rounding. `sigmoid` is that of pre, if there is an activation.
#[inline(always)]
fn activate<R: Real>(
    arithmetic: &Arithmetic,
    pre: R,
    approximate: Approximate,
    sigmoid: Option<R>,
) -> (R, f64) {
    match sigmoid {
        None => (pre, approximate.error),
        Some(sigmoid) => {
            let result = pre * sigmoid;
            (result, arithmetic.silu(approximate, sigmoid.value(), result.value()))
        }
    }
}

/// Multiplies with the gate, if there is one.
#[inline(always)]
fn gate<R: Real>(
    arithmetic: &Arithmetic,
    (activated, error): (R, f64),
    factor: Option<f64>,
    kept_as: Option<DType>,
) -> (R, f64) {
    let Some(factor) = factor else { return (activated, error) };
    let activation = Approximate { value: activated.value(), error };
    let activation = kept_as.map_or(activation, |dtype| arithmetic.kept(activation, dtype));
    (activated * R::new(factor), arithmetic.product(factor, activation))
}

/// Adds the residual and rounds.
#[inline(always)]
fn finish<R: Real>(
    arithmetic: &Arithmetic,
    activated: R,
    error: f64,
    residual: Option<f64>,
    dtype: DType,
) -> Approximate {
    let (value, error) = match residual {
        None => (activated.value(), error),
        Some(residual) => {
            // A backend may round the activation to the output's dtype before it adds. Close to the dtype's largest number, that may give
            // an infinity where the sum is finite.
            let first = arithmetic.kept(Approximate { value: activated.value(), error }, dtype).error;
            let sum = activated + R::new(residual);
            (sum.value(), first + arithmetic.sum(1, sum.value().abs() + first))
        }
    };
    Approximate { value, error: arithmetic.rounded(Approximate { value, error }, dtype) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rounded_before_the_residual_is_added_may_overflow() {
        let arithmetic = Arithmetic::of(DType::F16);
        let error = |activated: f64| finish(&arithmetic, activated, 0.0, Some(2612.0), DType::F16).error;
        assert_eq!(error(-65_519.0), f64::INFINITY);
        assert!(error(-60_000.0) < 100.0);
    }

    #[test]
    fn channels_of_two_truths_are_put_together_along_their_axis() {
        let truth = |value: f64| {
            let of = |shape: &[i64]| {
                let count = shape.iter().product::<i64>() as usize;
                Expected {
                    bounds: vec![value / 2.0; count],
                    ..Expected::exact(DType::F32, shape, vec![value; count])
                }
            };
            Truth(vec![("y", of(&[2, 3, 2])), ("dbias", of(&[3]))])
        };
        let joined = truth(1.0).with_channels_of(&truth(2.0), 2, |name| usize::from(name == "y"));
        assert_eq!(joined.of("dbias").values, [1.0, 1.0, 2.0]);
        let half = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0];
        assert_eq!(joined.of("y").values, [half, half].concat());
        assert_eq!(
            joined.of("y").bounds,
            [half, half].concat().iter().map(|value| value / 2.0).collect::<Vec<_>>()
        );
    }
}
