//! The convolution's operations on named tensors.

use causeway::causal_conv1d::{Activation, Backward, Forward, MAX_WIDTH, Update};
use causeway::{Device, HostTensor, Result};

use super::tensors::{Computed, Inputs, timed};

pub(super) fn forward(
    device: &Device,
    inputs: &Inputs,
    activation: Activation,
    return_final_states: bool,
) -> Result<Computed> {
    let mut y = inputs.zeros_like("x")?;
    let mut final_states = return_final_states.then(|| zero_states(inputs)).transpose()?;
    let mut operation = Forward {
        x: inputs.required("x"),
        weight: inputs.required("weight"),
        bias: inputs.optional("bias"),
        initial_states: inputs.optional("initial_states"),
        seq_idx: inputs.optional("seq_idx"),
        cu_seqlens: inputs.optional("cu_seqlens"),
        residual: inputs.optional("residual"),
        activation,
        y: y.view_mut(),
        final_states: final_states.as_mut().map(HostTensor::view_mut),
    };
    let elapsed = timed(|| operation.run(device))?;
    let mut outputs = vec![("y", y)];
    outputs.extend(final_states.map(|states| ("final_states", states)));
    Ok(Computed { outputs, elapsed })
}

pub(super) fn backward(device: &Device, inputs: &Inputs, activation: Activation) -> Result<Computed> {
    let mut dx = inputs.zeros_like("x")?;
    let mut dweight = inputs.zeros_like("weight")?;
    let mut dbias = inputs.optional("bias").map(|_| inputs.zeros_like("bias")).transpose()?;
    let states = "initial_states";
    let mut dinitial_states = inputs.optional(states).map(|_| inputs.zeros_like(states)).transpose()?;
    // A residual takes no part: its gradient is dy itself.
    let mut operation = Backward {
        x: inputs.required("x"),
        weight: inputs.required("weight"),
        bias: inputs.optional("bias"),
        dy: inputs.required("dy"),
        initial_states: inputs.optional(states),
        seq_idx: inputs.optional("seq_idx"),
        cu_seqlens: inputs.optional("cu_seqlens"),
        dfinal_states: inputs.optional("dfinal_states"),
        activation,
        dx: dx.view_mut(),
        dweight: dweight.view_mut(),
        dbias: dbias.as_mut().map(HostTensor::view_mut),
        dinitial_states: dinitial_states.as_mut().map(HostTensor::view_mut),
    };
    let elapsed = timed(|| operation.run(device))?;
    let mut outputs = vec![("dx", dx), ("dweight", dweight)];
    outputs.extend(dbias.map(|dbias| ("dbias", dbias)));
    outputs.extend(dinitial_states.map(|states| ("dinitial_states", states)));
    Ok(Computed { outputs, elapsed })
}

pub(super) fn update(device: &Device, inputs: &Inputs, activation: Activation) -> Result<Computed> {
    let mut y = inputs.zeros_like("x")?;
    let mut conv_state = inputs.owned("conv_state");
    let mut operation = Update {
        x: inputs.required("x"),
        conv_state: conv_state.view_mut(),
        weight: inputs.required("weight"),
        bias: inputs.optional("bias"),
        cache_seqlens: inputs.optional("cache_seqlens"),
        conv_state_indices: inputs.optional("conv_state_indices"),
        activation,
        y: y.view_mut(),
    };
    let elapsed = timed(|| operation.run(device))?;
    Ok(Computed { outputs: vec![("y", y), ("conv_state", conv_state)], elapsed })
}

/// Room for `(sequences, dim, width - 1)`. Inputs that do not agree on these sizes are left for the
/// operation to refuse; the width is limited so that a wrong weight cannot ask for all memory before that.
fn zero_states(inputs: &Inputs) -> Result<HostTensor> {
    let x = inputs.required("x");
    let axis = |shape: &[i64], axis: usize| shape.get(axis).copied().unwrap_or(0);
    let sequences = match inputs.optional("cu_seqlens") {
        Some(boundaries) => axis(boundaries.shape(), 0) - 1,
        None => axis(x.shape(), 0),
    };
    let width = axis(inputs.required("weight").shape(), 1).clamp(1, MAX_WIDTH);
    HostTensor::zeros(x.dtype(), &[sequences.max(0), axis(x.shape(), 1), width - 1])
}
