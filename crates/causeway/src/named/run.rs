//! Operations on named tensors: what they read and write is what their tables say.

use super::Operation;
use super::tensors::{Inputs, Outputs, Results, timed};
use crate::causal_conv1d::{Activation, Backward, Forward, MAX_WIDTH, Update};
use crate::device::Device;
use crate::error::Result;
use crate::gemm::{self, Algorithm, GradA, GradAB, GradB};
use crate::operation::{Argument, Axis, DTypes, Operation as _, Role, Size};
use crate::placement::Output;
use crate::tensor::DType;

/// The options of all operations, each of which reads its own.
pub(super) struct Options {
    pub activation: Activation,
    pub algorithm: Algorithm,
    /// Optional results that need no input are asked for.
    pub optional_results: bool,
}

/// Computes an operation. The inputs have every tensor that it needs.
pub(super) fn run(
    operation: Operation,
    device: &Device,
    inputs: &Inputs,
    options: &Options,
) -> Result<Results> {
    let &Options { activation, algorithm, optional_results } = options;
    macro_rules! run {
        ($operation:ty, $option:expr) => {{
            let placed = inputs.place(device)?;
            let mut outputs = outputs(device, inputs, <$operation>::ARGUMENTS, optional_results)?;
            let elapsed = {
                let mut views = outputs.views();
                let (read, write) = (|name| placed.optional(name), |name| views.remove(name));
                let mut call = <$operation>::from_named($option, read, write);
                timed(device, || call.run(device))?
            };
            inputs.fetch(outputs, elapsed)
        }};
    }
    match operation {
        Operation::Conv1dForward => run!(Forward<'_>, activation),
        Operation::Conv1dBackward => run!(Backward<'_>, activation),
        Operation::Conv1dUpdate => run!(Update<'_>, activation),
        Operation::GemmForward => run!(gemm::Forward<'_>, algorithm),
        Operation::GemmGradA => run!(GradA<'_>, algorithm),
        Operation::GemmGradB => run!(GradB<'_>, algorithm),
        Operation::GemmGradAb => run!(GradAB<'_>, algorithm),
    }
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
            let sizes = argument.shape.axes.iter().map(|axis| size(inputs, arguments, axis));
            inputs.room(device, dtype(inputs, arguments, argument), &sizes.collect::<Vec<_>>())
        };
        outputs.push(argument.name, room?);
    }
    Ok(outputs)
}

/// The size of a result's axis: that of the first input which has it. Inputs that do not agree on sizes are left for the
/// operation to refuse; the width is limited so that a wrong weight cannot ask for all memory before that.
fn size(inputs: &Inputs, arguments: &[Argument], axis: &Axis) -> i64 {
    let axis = match axis.without {
        Some((argument, axis)) if inputs.optional(argument).is_none() => axis,
        _ => axis,
    };
    let of = |argument: &Argument| {
        let tensor = inputs.optional(argument.name)?;
        let place = argument.shape.axes.iter().position(|known| known.size == axis.size)?;
        Some(tensor.shape().get(place).copied().unwrap_or(0) - argument.shape.axes[place].plus)
    };
    let size = arguments.iter().filter(|argument| argument.role == Role::Input).find_map(of).unwrap_or(0);
    let size = if axis.size == Size::Width { size.clamp(1, MAX_WIDTH) } else { size };
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
