//! The truth of the causal convolution.

mod backward;
mod forward;
mod long_sums;
mod sequences;
mod update;
mod varlen_states;

pub use backward::{BackwardTruth, backward};
pub use forward::{ForwardTruth, forward};
pub use update::{UpdateInputs, UpdateTruth, update};
pub use varlen_states::varlen_states;

use causeway::causal_conv1d::Activation;
use causeway::tensor::{DType, TensorRef};

use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::real::Real;

/// What forward and backward read: views of host memory, with the shapes of
/// [`Forward`](causeway::causal_conv1d::Forward), already validated.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// `(batch, dim, seqlen)`.
    pub x: TensorRef<'a>,
    /// `(dim, width)`.
    pub weight: TensorRef<'a>,
    /// `(dim,)`.
    pub bias: Option<TensorRef<'a>>,
    /// `(sequences, dim, width - 1)`.
    pub initial_states: Option<TensorRef<'a>>,
    /// `(batch, seqlen)`.
    pub seq_idx: Option<TensorRef<'a>>,
    /// `(sequences + 1,)`.
    pub cu_seqlens: Option<TensorRef<'a>>,
    /// `(batch, dim, seqlen)`; read by forward only.
    pub residual: Option<TensorRef<'a>>,
    /// After the sum.
    pub activation: Activation,
}

impl<'a> Inputs<'a> {
    /// The inputs of these names.
    ///
    /// # Panics
    /// Without x or weight.
    pub fn from_named(activation: Activation, read: impl Fn(&str) -> Option<TensorRef<'a>>) -> Self {
        let required = |name: &str| read(name).unwrap_or_else(|| panic!("there is no {name}"));
        Inputs {
            x: required("x"),
            weight: required("weight"),
            bias: read("bias"),
            initial_states: read("initial_states"),
            seq_idx: read("seq_idx"),
            cu_seqlens: read("cu_seqlens"),
            residual: read("residual"),
            activation,
        }
    }
}

/// True when f64 alone would not be the truth.
fn needs_double_double(x: &TensorRef<'_>) -> bool {
    x.dtype() == DType::F64
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
            // A backend may round the activation to the output's dtype before it adds.
            let first = arithmetic.rounded(Approximate { value: activated.value(), error }, dtype);
            let sum = activated + R::new(residual);
            (sum.value(), first + arithmetic.sum(1, sum.value().abs() + first))
        }
    };
    Approximate { value, error: arithmetic.rounded(Approximate { value, error }, dtype) }
}
