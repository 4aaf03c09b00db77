//! `y = act(bias + weight ∗ x) + residual`, and the states after each sequence.

use rayon::prelude::*;

use super::sequences::{Data, Sequence};
use super::{Inputs, activate, finish, needs_double_double, rows_by_channel};
use crate::causal_conv1d::Activation;
use crate::oracle::Expected;
use crate::oracle::bounds::Approximate;
use crate::oracle::real::{DoubleDouble, Real};
use crate::tensor::DType;

/// What a forward call has to write.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardTruth {
    /// `(batch, dim, seqlen)`.
    pub y: Expected,
    /// `(sequences, dim, width - 1)`: copies.
    pub final_states: Expected,
}

/// The truth of [`Forward`](crate::causal_conv1d::Forward).
pub fn forward(inputs: &Inputs<'_>) -> ForwardTruth {
    if needs_double_double(&inputs.x) {
        forward_in::<DoubleDouble>(inputs)
    } else {
        forward_in::<f64>(inputs)
    }
}

fn forward_in<R: Real>(inputs: &Inputs<'_>) -> ForwardTruth {
    let data = Data::read(inputs);
    let residual = inputs.residual.map(|residual| residual.to_f64());
    let dtype = inputs.x.dtype();
    let (batch, dim, seqlen, history) = (data.batch, data.dim, data.seqlen, data.width - 1);

    let mut values = vec![0.0; batch * dim * seqlen];
    let mut bounds = values.clone();
    rows_by_channel(&mut values, batch * dim, seqlen, dim)
        .into_par_iter()
        .zip(rows_by_channel(&mut bounds, batch * dim, seqlen, dim))
        .enumerate()
        .for_each(|(channel, (mut values, mut bounds))| {
            for sequence in &data.sequences {
                for t in 0..sequence.len() {
                    let at = sequence.start + t;
                    let residual = residual.as_ref().map(|r| r[(sequence.row * dim + channel) * seqlen + at]);
                    let y = output::<R>(&data, sequence, channel, t, inputs.activation, residual, dtype);
                    values[sequence.row][at] = y.value;
                    bounds[sequence.row][at] = y.error;
                }
            }
        });

    let mut states = vec![0.0; data.sequences.len() * dim * history];
    for sequence in &data.sequences {
        for channel in 0..dim {
            for column in 0..history {
                let position = sequence.len() as isize - history as isize + column as isize;
                if !data.is_padding(sequence, position) {
                    states[(sequence.state * dim + channel) * history + column] =
                        data.value(sequence, channel, position).unwrap_or(0.0);
                }
            }
        }
    }
    ForwardTruth {
        y: Expected { dtype, shape: inputs.x.shape().to_vec(), values, bounds },
        final_states: Expected::exact(
            dtype,
            &[data.sequences.len() as i64, dim as i64, history as i64],
            states,
        ),
    }
}

/// One element of y, with the bound of its rounded value.
fn output<R: Real>(
    data: &Data,
    sequence: &Sequence,
    channel: usize,
    t: usize,
    activation: Activation,
    residual: Option<f64>,
    dtype: DType,
) -> Approximate {
    let (activated, error) = if data.is_padding(sequence, t as isize) {
        (R::new(0.0), 0.0)
    } else {
        let (pre, approximate) = data.pre::<R>(sequence, channel, t);
        activate(&data.arithmetic, pre, approximate, activation)
    };
    finish(&data.arithmetic, activated, error, residual, dtype)
}
