//! The convolution's operations on named tensors: what they read and write is what their tables say.

use super::tensors::{Inputs, Outputs, Results, timed};
use crate::causal_conv1d::{Activation, Backward, Forward, MAX_WIDTH, Update};
use crate::device::Device;
use crate::error::Result;
use crate::operation::{Argument, Axis, DTypes, Operation, Role, Size};
use crate::placement::Output;
use crate::tensor::DType;

macro_rules! run {
    ($operation:ident, $device:ident, $inputs:ident, $activation:ident, $asked:expr) => {{
        let placed = $inputs.place($device)?;
        let mut outputs = outputs($device, $inputs, $operation::ARGUMENTS, $asked)?;
        let elapsed = {
            let mut views = outputs.views();
            let mut operation =
                $operation::from_named($activation, |name| placed.optional(name), |name| views.remove(name));
            timed($device, || operation.run($device))?
        };
        $inputs.fetch(outputs, elapsed)
    }};
}

pub(super) fn forward(
    device: &Device,
    inputs: &Inputs,
    activation: Activation,
    return_final_states: bool,
) -> Result<Results> {
    run!(Forward, device, inputs, activation, return_final_states)
}

pub(super) fn backward(device: &Device, inputs: &Inputs, activation: Activation) -> Result<Results> {
    run!(Backward, device, inputs, activation, false)
}

pub(super) fn update(device: &Device, inputs: &Inputs, activation: Activation) -> Result<Results> {
    run!(Update, device, inputs, activation, false)
}

/// Room for what a call writes. Optional results are there if the input that they need is, or else if they are asked for.
fn outputs(device: &Device, inputs: &Inputs, arguments: &'static [Argument], asked: bool) -> Result<Outputs> {
    let mut outputs = Outputs::default();
    for argument in arguments.iter().filter(|argument| argument.role != Role::Input) {
        let given = |(input, _)| inputs.optional(input).is_some();
        if argument.optional && !argument.needs.map_or(asked, given) {
            continue;
        }
        let room = if argument.role == Role::InPlace {
            Output::place(device, inputs.required(argument.name).to_contiguous())
        } else if argument.shape == arguments[0].shape {
            inputs.room_like(device, arguments[0].name)
        } else {
            let shape: Vec<i64> = argument.shape.axes.iter().map(|axis| size(inputs, axis)).collect();
            inputs.room(device, dtype(inputs, arguments, argument), &shape)
        };
        outputs.push(argument.name, room?);
    }
    Ok(outputs)
}

/// The size of a result's axis. Inputs that do not agree on sizes are left for the operation to refuse; the width is limited
/// so that a wrong weight cannot ask for all memory before that.
fn size(inputs: &Inputs, axis: &Axis) -> i64 {
    let of = |name: &str, axis: usize| {
        inputs.optional(name).and_then(|tensor| tensor.shape().get(axis).copied()).unwrap_or(0)
    };
    let size = match axis.size {
        Size::Batch => of("x", 0),
        Size::Dim => of("x", 1),
        Size::Seqlen => of("x", 2),
        Size::Width => of("weight", 1).clamp(1, MAX_WIDTH),
        Size::Sequences if inputs.optional("cu_seqlens").is_some() => of("cu_seqlens", 0) - 1,
        Size::Sequences => of("x", 0),
        Size::Free => 0,
    };
    (size + axis.plus).max(0)
}

/// The dtype of a result: that of the argument that its own follows, which may be a result itself.
fn dtype(inputs: &Inputs, arguments: &[Argument], argument: &Argument) -> DType {
    let (DTypes::Of(other, _) | DTypes::OfOrF32(other, _)) = argument.dtypes else { return DType::F32 };
    if let Some(input) = inputs.optional(other) {
        return input.dtype();
    }
    let other = arguments.iter().find(|argument| argument.name == other);
    other.map_or(DType::F32, |other| dtype(inputs, arguments, other))
}
