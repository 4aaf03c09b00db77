//! The decode update.

use super::gates::Products;
use super::norm::Norms;
use super::{Inputs, Truth, activate, finish, gate, needs_double_double, sigmoid};
use crate::oracle::Expected;
use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::real::{DoubleDouble, Real};

/// The truth of [`Update`](causeway::causal_conv1d::Update).
pub fn update(inputs: &Inputs<'_>) -> Truth {
    if needs_double_double(inputs) { update_in::<DoubleDouble>(inputs) } else { update_in::<f64>(inputs) }
}

fn update_in<R: Real>(inputs: &Inputs<'_>) -> Truth {
    let [x_view, weight, conv_state] = ["x", "weight", "conv_state"].map(|name| inputs.required(name));
    let dtype = x_view.dtype();
    let arithmetic = Arithmetic::of(dtype);
    let (batch, dim) = (x_view.shape()[0] as usize, x_view.shape()[1] as usize);
    let seqlen = x_view.shape().get(2).map_or(1, |&seqlen| seqlen as usize);
    let width = weight.shape()[1] as usize;
    let state_len = conv_state.shape()[2] as usize;
    let (x, weight) = (x_view.to_f64(), weight.to_f64());
    let bias = inputs.numbers("bias");
    let [b_gate, c_gate] = ["B", "C"].map(|name| inputs.numbers(name));
    let products = Products::of(inputs);
    let lengths = inputs.numbers("cache_seqlens");
    let indices = inputs.numbers("conv_state_indices");

    let mut states = conv_state.to_f64();
    let mut activations = vec![(R::new(0.0), 0.0); x.len()];
    let rows: Vec<_> = (0..batch).map(|b| indices.as_ref().map_or(b as f64, |indices| indices[b])).collect();
    for (b, &row) in rows.iter().enumerate().filter(|(_, row)| **row >= 0.0) {
        for c in 0..dim {
            let state = &mut states[(row as usize * dim + c) * state_len..][..state_len];
            let own = (b * dim + c) * seqlen..(b * dim + c + 1) * seqlen;
            // What taps read of x, and what the state holds of it.
            let new: Vec<_> = own
                .clone()
                .map(|at| match &b_gate {
                    None => ((R::new(x[at]), 0.0), x[at]),
                    Some(gate) => (products.of_two::<R>(gate[at], x[at]), products.kept(gate[at], x[at])),
                })
                .collect();
            // The width - 1 positions before x, oldest first.
            let history = (1..width).rev().map(|back| match &lengths {
                None => state[state_len - back],
                Some(lengths) => {
                    state[(lengths[b] as i64 - back as i64).rem_euclid(state_len as i64) as usize]
                }
            });
            let history = history.map(|state| (R::new(state), 0.0));
            let window: Vec<_> = history.chain(new.iter().map(|(read, _)| *read)).collect();
            for i in 0..seqlen {
                let mut inherited = 0.0;
                let mut sum = R::new(bias.as_ref().map_or(0.0, |bias| bias[c]));
                let mut magnitude = sum.value().abs();
                for w in 0..width {
                    let (weight, (value, error)) = (weight[c * width + w], window[i + w]);
                    let term = R::new(weight) * value;
                    sum = sum + term;
                    magnitude += term.value().abs();
                    inherited += weight.abs() * error;
                }
                let known = inherited.is_finite();
                let error =
                    if known { arithmetic.sum(width + 1, magnitude) + inherited } else { f64::INFINITY };
                let pre = Approximate { value: sum.value(), error };
                let sigmoid = inputs.is_silu().then(|| sigmoid((-sum).exp()));
                let activated = activate(&arithmetic, sum, pre, sigmoid);
                activations[own.start + i] = if known { activated } else { (activated.0, f64::INFINITY) };
            }
            match &lengths {
                None => {
                    let new = new.iter().map(|(_, kept)| *kept);
                    let shifted: Vec<f64> = state.iter().copied().chain(new).skip(seqlen).collect();
                    state.copy_from_slice(&shifted);
                }
                Some(lengths) if state_len > 0 => {
                    for (i, &(_, value)) in new.iter().enumerate() {
                        state[(lengths[b] as usize + i) % state_len] = value;
                    }
                }
                Some(_) => {}
            }
        }
    }
    let norms = Norms::of_activations(inputs.norm.as_ref(), dtype, [batch, dim, seqlen], &activations);
    let mut values = vec![0.0; x.len()];
    let mut bounds = vec![0.0; x.len()];
    for (at, &activated) in activations.iter().enumerate() {
        let (b, c, i) = (at / seqlen / dim, at / seqlen % dim, at % seqlen);
        if rows[b] < 0.0 {
            continue;
        }
        let (result, error) = match &norms {
            Some(norms) => norms.divided(&arithmetic, (b, c, i), activated),
            None => {
                let factor = c_gate.as_ref().map(|gate| gate[at]);
                gate(&arithmetic, activated, factor, products.kept_as())
            }
        };
        let y = finish(&arithmetic, result, error, None, dtype);
        (values[at], bounds[at]) = (y.value, y.error);
    }
    Truth(vec![
        ("y", Expected { dtype, shape: x_view.shape().to_vec(), values, bounds }),
        ("conv_state", Expected::exact(dtype, conv_state.shape(), states)),
    ])
}
