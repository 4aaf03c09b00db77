//! Operations on named tensors: what they read and write is what their tables say.

use super::Operation;
use super::tensors::{Inputs, Outputs, Results, timed};
use crate::causal_conv1d::{Activation, Backward, Forward, HeadNorm, MAX_WIDTH, Update};
use crate::device::Device;
use crate::error::Result;
use crate::gemm::{self, Algorithm, GradA, GradAB, GradB};
use crate::operation::{Argument, Axis, Operation as _, Role, Size, size_source};
use crate::placement::Output;

/// The options of all operations, each of which reads its own.
pub(super) struct Options {
    pub activation: Activation,
    pub round_products: bool,
    pub norm: Option<HeadNorm>,
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
    let &Options { activation, round_products, norm, algorithm, optional_results } = options;
    macro_rules! run {
        ($operation:ty, $($option:expr),*) => {{
            let placed = inputs.place(device)?;
            let mut outputs = outputs(device, inputs, <$operation>::ARGUMENTS, optional_results)?;
            let elapsed = {
                let mut views = outputs.views();
                let (read, write) = (|name| placed.optional(name), |name| views.remove(name));
                let mut call = <$operation>::from_named($($option,)* read, write);
                if operation.unread().any(|argument| inputs.optional(argument.name).is_some()) {
                    // What is wrong with the operation's own tensors comes first.
                    call.validate()?;
                    check_unread(operation, inputs)?;
                }
                timed(device, || call.run(device))?
            };
            inputs.fetch(outputs, elapsed)
        }};
    }
    match operation {
        Operation::Conv1dForward => run!(Forward<'_>, activation, round_products, norm),
        Operation::Conv1dBackward => run!(Backward<'_>, activation, round_products, norm),
        Operation::Conv1dUpdate => run!(Update<'_>, activation, round_products, norm),
        Operation::GemmForward => run!(gemm::Forward<'_>, algorithm),
        Operation::GemmGradA => run!(GradA<'_>, algorithm),
        Operation::GemmGradB => run!(GradB<'_>, algorithm),
        Operation::GemmGradAb => run!(GradAB<'_>, algorithm),
    }
}

/// Checks tensors that take no part as the operation does that reads them: a file with a wrong one is not that of the call.
fn check_unread(operation: Operation, inputs: &Inputs) -> Result<()> {
    for argument in operation.unread() {
        let Some(tensor) = inputs.optional(argument.name) else { continue };
        let (view, x) = (tensor.view(), inputs.required("x"));
        argument
            .check(view.meta(), x.dtype(), |axis| Some((axis, size(inputs, Forward::ARGUMENTS, axis))))?;
    }
    Ok(())
}

/// Memory for what a call writes. Optional results are there if the input that they need is, or else if they are asked for.
fn outputs(device: &Device, inputs: &Inputs, arguments: &'static [Argument], asked: bool) -> Result<Outputs> {
    let mut outputs = Outputs::default();
    for argument in arguments.iter().filter(|argument| argument.role != Role::Input) {
        let given = |(input, _)| inputs.optional(input).is_some();
        if argument.optional && !argument.needs.map_or(asked, given) {
            continue;
        }
        let output = if argument.role == Role::InPlace {
            inputs.required(argument.name).to_contiguous().and_then(|copy| Output::place(device, copy))
        } else if argument.shape == arguments[0].shape {
            inputs.output_like(device, arguments[0].name)
        } else {
            let sizes = argument.shape.axes.iter().map(|axis| size(inputs, arguments, axis));
            let dtype = inputs.required(argument.dtype_source(arguments).name).dtype();
            inputs.output(device, dtype, &sizes.collect::<Vec<_>>())
        };
        outputs.push(argument.name, output?);
    }
    Ok(outputs)
}

/// The size of a result's axis, as the inputs have it. Inputs that do not agree on sizes are left for the operation to refuse; the
/// width is limited so that a wrong weight cannot ask for all memory before that.
fn size(inputs: &Inputs, arguments: &'static [Argument], axis: &'static Axis) -> i64 {
    let given = |place: usize| inputs.optional(arguments[place].name).is_some();
    let Some(source) = size_source(arguments, axis, given) else { return 0 };
    let tensor = inputs.required(arguments[source.argument].name);
    let found = tensor.shape().get(source.axis).copied().unwrap_or(0).saturating_add(source.plus);
    let size = if axis.size == Size::Width { found.min(MAX_WIDTH) } else { found };
    size.max(0)
}
