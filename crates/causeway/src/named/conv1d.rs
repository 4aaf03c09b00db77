//! The convolution's operations on named tensors.

use super::tensors::{Inputs, Results, timed};
use crate::causal_conv1d::{Activation, Backward, Forward, MAX_WIDTH, Update};
use crate::device::Device;
use crate::error::Result;
use crate::placement::Output;

pub(super) fn forward(
    device: &Device,
    inputs: &Inputs,
    activation: Activation,
    return_final_states: bool,
) -> Result<Results> {
    let placed = inputs.place(device)?;
    let mut y = inputs.room_like(device, "x")?;
    let mut final_states = return_final_states.then(|| room_for_states(device, inputs)).transpose()?;
    let mut operation = Forward {
        x: placed.required("x"),
        weight: placed.required("weight"),
        bias: placed.optional("bias"),
        initial_states: placed.optional("initial_states"),
        seq_idx: placed.optional("seq_idx"),
        cu_seqlens: placed.optional("cu_seqlens"),
        residual: placed.optional("residual"),
        activation,
        y: y.view(),
        final_states: final_states.as_mut().map(Output::view),
    };
    let elapsed = timed(device, || operation.run(device))?;
    inputs.fetch(vec![("y", Some(y)), ("final_states", final_states)], elapsed)
}

pub(super) fn backward(device: &Device, inputs: &Inputs, activation: Activation) -> Result<Results> {
    let placed = inputs.place(device)?;
    let like = |name: &str| inputs.room_like(device, name);
    let like_optional = |name: &str| inputs.optional(name).map(|_| like(name)).transpose();
    let (mut dx, mut dweight) = (like("x")?, like("weight")?);
    let (mut dbias, mut dinitial_states) = (like_optional("bias")?, like_optional("initial_states")?);
    // A residual takes no part: its gradient is dy itself.
    let mut operation = Backward {
        x: placed.required("x"),
        weight: placed.required("weight"),
        bias: placed.optional("bias"),
        dy: placed.required("dy"),
        initial_states: placed.optional("initial_states"),
        seq_idx: placed.optional("seq_idx"),
        cu_seqlens: placed.optional("cu_seqlens"),
        dfinal_states: placed.optional("dfinal_states"),
        activation,
        dx: dx.view(),
        dweight: dweight.view(),
        dbias: dbias.as_mut().map(Output::view),
        dinitial_states: dinitial_states.as_mut().map(Output::view),
    };
    let elapsed = timed(device, || operation.run(device))?;
    let outputs = vec![
        ("dx", Some(dx)),
        ("dweight", Some(dweight)),
        ("dbias", dbias),
        ("dinitial_states", dinitial_states),
    ];
    inputs.fetch(outputs, elapsed)
}

pub(super) fn update(device: &Device, inputs: &Inputs, activation: Activation) -> Result<Results> {
    let placed = inputs.place(device)?;
    let mut y = inputs.room_like(device, "x")?;
    let mut conv_state = Output::place(device, inputs.required("conv_state").to_contiguous())?;
    let mut operation = Update {
        x: placed.required("x"),
        conv_state: conv_state.view(),
        weight: placed.required("weight"),
        bias: placed.optional("bias"),
        cache_seqlens: placed.optional("cache_seqlens"),
        conv_state_indices: placed.optional("conv_state_indices"),
        activation,
        y: y.view(),
    };
    let elapsed = timed(device, || operation.run(device))?;
    inputs.fetch(vec![("y", Some(y)), ("conv_state", Some(conv_state))], elapsed)
}

/// Room for `(sequences, dim, width - 1)`. Inputs that do not agree on these sizes are left for the
/// operation to refuse; the width is limited so that a wrong weight cannot ask for all memory before that.
fn room_for_states(device: &Device, inputs: &Inputs) -> Result<Output> {
    let x = inputs.required("x");
    let axis = |shape: &[i64], axis: usize| shape.get(axis).copied().unwrap_or(0);
    let sequences = match inputs.optional("cu_seqlens") {
        Some(boundaries) => axis(boundaries.shape(), 0) - 1,
        None => axis(x.shape(), 0),
    };
    let width = axis(inputs.required("weight").shape(), 1).clamp(1, MAX_WIDTH);
    inputs.room(device, x.dtype(), &[sequences.max(0), axis(x.shape(), 1), width - 1])
}
