//! The decode update.

use causeway::causal_conv1d::Activation;
use causeway::tensor::TensorRef;

use super::{activate, finish, needs_double_double, sigmoid};
use crate::oracle::Expected;
use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::real::{DoubleDouble, Real};

/// What an update reads: views of host memory, with the shapes of [`Update`](causeway::causal_conv1d::Update), already
/// validated.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInputs<'a> {
    /// `(batch, dim)` or `(batch, dim, seqlen)`.
    pub x: TensorRef<'a>,
    /// `(rows, dim, state_len)`, before the call.
    pub conv_state: TensorRef<'a>,
    /// `(dim, width)`.
    pub weight: TensorRef<'a>,
    /// `(dim,)`.
    pub bias: Option<TensorRef<'a>>,
    /// `(batch,)`.
    pub cache_seqlens: Option<TensorRef<'a>>,
    /// `(batch,)`.
    pub conv_state_indices: Option<TensorRef<'a>>,
    /// After the sum.
    pub activation: Activation,
}

impl<'a> UpdateInputs<'a> {
    /// The inputs of these names.
    ///
    /// # Panics
    /// Without x, conv_state or weight.
    pub fn from_named(activation: Activation, read: impl Fn(&str) -> Option<TensorRef<'a>>) -> Self {
        let required = |name: &str| read(name).unwrap_or_else(|| panic!("there is no {name}"));
        UpdateInputs {
            x: required("x"),
            conv_state: required("conv_state"),
            weight: required("weight"),
            bias: read("bias"),
            cache_seqlens: read("cache_seqlens"),
            conv_state_indices: read("conv_state_indices"),
            activation,
        }
    }
}

/// What an update has to write.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateTruth {
    /// The shape of x.
    pub y: Expected,
    /// `(rows, dim, state_len)`, after the call: copies.
    pub conv_state: Expected,
}

/// The truth of [`Update`](causeway::causal_conv1d::Update).
pub fn update(inputs: &UpdateInputs<'_>) -> UpdateTruth {
    if needs_double_double(&inputs.x) { update_in::<DoubleDouble>(inputs) } else { update_in::<f64>(inputs) }
}

fn update_in<R: Real>(inputs: &UpdateInputs<'_>) -> UpdateTruth {
    let dtype = inputs.x.dtype();
    let arithmetic = Arithmetic::of(dtype);
    let (batch, dim) = (inputs.x.shape()[0] as usize, inputs.x.shape()[1] as usize);
    let seqlen = inputs.x.shape().get(2).map_or(1, |&seqlen| seqlen as usize);
    let width = inputs.weight.shape()[1] as usize;
    let state_len = inputs.conv_state.shape()[2] as usize;
    let (x, weight) = (inputs.x.to_f64(), inputs.weight.to_f64());
    let bias = inputs.bias.map(|bias| bias.to_f64());
    let lengths = inputs.cache_seqlens.map(|lengths| lengths.to_f64());
    let indices = inputs.conv_state_indices.map(|indices| indices.to_f64());

    let mut states = inputs.conv_state.to_f64();
    let mut values = vec![0.0; x.len()];
    let mut bounds = vec![0.0; x.len()];
    for b in 0..batch {
        let row = indices.as_ref().map_or(b as f64, |indices| indices[b]);
        if row < 0.0 {
            continue;
        }
        for c in 0..dim {
            let state = &mut states[(row as usize * dim + c) * state_len..][..state_len];
            let new = &x[(b * dim + c) * seqlen..][..seqlen];
            // The width - 1 positions before x, oldest first.
            let history = (1..width).rev().map(|back| match &lengths {
                None => state[state_len - back],
                Some(lengths) => {
                    state[(lengths[b] as i64 - back as i64).rem_euclid(state_len as i64) as usize]
                }
            });
            let window: Vec<f64> = history.chain(new.iter().copied()).collect();
            for i in 0..seqlen {
                let mut sum = R::new(bias.as_ref().map_or(0.0, |bias| bias[c]));
                let mut magnitude = sum.value().abs();
                for w in 0..width {
                    let term = R::new(weight[c * width + w]) * R::new(window[i + w]);
                    sum = sum + term;
                    magnitude += term.value().abs();
                }
                let pre = Approximate { value: sum.value(), error: arithmetic.sum(width + 1, magnitude) };
                let sigmoid = (inputs.activation == Activation::Silu).then(|| sigmoid((-sum).exp()));
                let (activated, error) = activate(&arithmetic, sum, pre, sigmoid);
                let y = finish(&arithmetic, activated, error, None, dtype);
                values[(b * dim + c) * seqlen + i] = y.value;
                bounds[(b * dim + c) * seqlen + i] = y.error;
            }
            match &lengths {
                None => {
                    let shifted: Vec<f64> = state.iter().chain(new).copied().skip(seqlen).collect();
                    state.copy_from_slice(&shifted);
                }
                Some(lengths) if state_len > 0 => {
                    for (i, &value) in new.iter().enumerate() {
                        state[(lengths[b] as usize + i) % state_len] = value;
                    }
                }
                Some(_) => {}
            }
        }
    }
    UpdateTruth {
        y: Expected { dtype, shape: inputs.x.shape().to_vec(), values, bounds },
        conv_state: Expected::exact(dtype, inputs.conv_state.shape(), states),
    }
}
