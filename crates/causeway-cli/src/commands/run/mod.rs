//! `causeway run`: one operation on real tensors.

mod conv1d;
mod gemm;
mod operation;
mod tensors;

use std::path::PathBuf;
use std::time::Duration;

use causeway::causal_conv1d::Activation;
use causeway::files::{self, Metadata, TensorFile};
use causeway::gemm::Algorithm;
use causeway::{Device, HostTensor};
use clap::ValueEnum;
use serde_json::json;

use crate::VERSION;
use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::terminal;
use operation::Operation;
use tensors::{Computed, Inputs, Layout};

const EXAMPLES: &str = "\
Examples:
  causeway run conv1d-forward --in layer.safetensors --out y.safetensors --activation silu
  causeway run conv1d-backward --in step.npz --out grads.npz --layout channel-last
  causeway run gemm-grad-ab --in ab.safetensors --out grads.safetensors --algorithm exact

Tensors, by operation ([..] where present):
  conv1d-forward   x, weight, [bias, initial_states, seq_idx, cu_seqlens, residual] -> y, [final_states]
  conv1d-backward  those, dy, [dfinal_states] -> dx, dweight, [dbias, dinitial_states]
  conv1d-update    x, conv_state, weight, [bias, cache_seqlens, conv_state_indices] -> y, conv_state
  gemm-forward     A (M, K), B (K, N) -> C
  gemm-grad-a      grad_C (M, N), B -> grad_A
  gemm-grad-b      grad_C, A -> grad_B
  gemm-grad-ab     grad_C, A, B -> grad_A, grad_B

Files are .safetensors or .npz, by extension. Results have the dtype of x (dweight, dbias: weight's). \
The output is written beside its destination and renamed: a failure leaves what was there.";

/// One operation on the tensors of a file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to compute
    #[arg(value_name = "OP", value_enum, hide_possible_values = true)]
    operation: Operation,

    /// File to read: .safetensors or .npz
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,

    /// File to write: .safetensors or .npz; may be the input
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,

    /// conv1d: what is applied to the sum [default: none]
    #[arg(long, value_name = "none|silu")]
    activation: Option<Activation>,

    /// conv1d: how x, y, dy, dx and residual lie in the file, as (batch, dim, seqlen) or (batch, seqlen, dim)
    /// [default: channel-first]
    #[arg(long, value_enum)]
    layout: Option<Layout>,

    /// conv1d-forward: write final_states too
    #[arg(long)]
    return_final_states: bool,

    /// gemm: matrix units, or the bit-exact chain of f32 fused multiply-adds [default: fast]
    #[arg(long, value_name = "fast|exact")]
    algorithm: Option<Algorithm>,

    #[command(flatten)]
    device: DeviceArgs,

    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Reads, computes, writes.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    args.check_flags()?;
    // Both names are checked before anything is read or computed.
    files::Format::of_path(&args.output)?;
    let mut file = TensorFile::open(&args.input)?;
    let layout = args.layout.unwrap_or_default();
    let inputs = Inputs::read(&mut file, args.operation, layout, &args.input)?;
    args.device.with(|device| {
        let computed = args.compute(device, &inputs).map_err(|error| args.explain(error))?.stored(layout);
        let outputs: Vec<_> = computed.outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        files::write(&args.output, &outputs, &args.metadata(device))?;
        args.report(device, &inputs.tensors(), &outputs, computed.elapsed)
    })
}

impl Args {
    /// A flag that the operation does not read is a mistake, not a wish to be ignored.
    fn check_flags(&self) -> Result<(), Failure> {
        let conv1d = self.operation.is_conv1d();
        let misplaced = [
            ("--activation", self.activation.is_some() && !conv1d, "conv1d operations"),
            ("--layout", self.layout.is_some() && !conv1d, "conv1d operations"),
            ("--algorithm", self.algorithm.is_some() && conv1d, "gemm operations"),
            (
                "--return-final-states",
                self.return_final_states && self.operation != Operation::Conv1dForward,
                "conv1d-forward",
            ),
        ];
        match misplaced.iter().find(|(_, misplaced, _)| *misplaced) {
            Some((flag, _, owner)) => Err(Failure::input(format!(
                "{flag} has no meaning for {}: it is for {owner}",
                self.operation
            ))),
            None => Ok(()),
        }
    }

    fn compute(&self, device: &Device, inputs: &Inputs) -> causeway::Result<Computed> {
        let activation = self.activation.unwrap_or_default();
        let algorithm = self.algorithm.unwrap_or_default();
        match self.operation {
            Operation::Conv1dForward => conv1d::forward(device, inputs, activation, self.return_final_states),
            Operation::Conv1dBackward => conv1d::backward(device, inputs, activation),
            Operation::Conv1dUpdate => conv1d::update(device, inputs, activation),
            Operation::GemmForward => gemm::forward(device, inputs, algorithm),
            Operation::GemmGradA => gemm::grad_a(device, inputs, algorithm),
            Operation::GemmGradB => gemm::grad_b(device, inputs, algorithm),
            Operation::GemmGradAb => gemm::grad_ab(device, inputs, algorithm),
        }
    }

    /// Adds what helps in the shell to what the library says about an argument.
    fn explain(&self, error: causeway::Error) -> Failure {
        use causeway::Error;
        let help = match &error {
            Error::Size { because: "the dim of x", .. }
                if self.layout.unwrap_or_default() == Layout::ChannelFirst =>
            {
                Some("x was read as (batch, dim, seqlen); for (batch, seqlen, dim) add --layout channel-last")
            }
            Error::Size { because: "the dim of x", .. } => {
                Some("x was read as (batch, seqlen, dim), since --layout is channel-last")
            }
            Error::DTypeMismatch { argument: "seq_idx" | "cache_seqlens" | "conv_state_indices", .. } => {
                Some("convert it before saving: .astype(numpy.int32) or .to(torch.int32)")
            }
            _ => None,
        };
        let failure = Failure::from(error);
        match help {
            Some(line) => failure.with_help(line),
            None => failure,
        }
    }

    fn metadata(&self, device: &Device) -> Metadata {
        let mut metadata = Metadata::from([
            ("causeway".to_string(), VERSION.to_string()),
            ("operation".to_string(), self.operation.to_string()),
            ("device".to_string(), device.to_string()),
        ]);
        if self.operation.is_conv1d() {
            let layout = self.layout.unwrap_or_default().to_possible_value();
            metadata.insert("activation".to_string(), self.activation.unwrap_or_default().to_string());
            metadata.extend(layout.map(|value| ("layout".to_string(), value.get_name().to_string())));
        } else {
            metadata.insert("algorithm".to_string(), self.algorithm.unwrap_or_default().to_string());
        }
        metadata
    }

    fn report(
        &self,
        device: &Device,
        inputs: &[(&str, &HostTensor)],
        outputs: &[(&str, &HostTensor)],
        elapsed: Duration,
    ) -> Result<(), Failure> {
        if self.json {
            return terminal::print_json(&json!({
                "operation": self.operation.to_string(),
                "device": device.to_string(),
                "threads": rayon::current_num_threads(),
                "seconds": elapsed.as_secs_f64(),
                "inputs": describe_json(inputs),
                "outputs": describe_json(outputs),
                "out": self.output.display().to_string(),
            }));
        }
        let milliseconds = elapsed.as_secs_f64() * 1e3;
        terminal::print(&format!("{} on {device}, {milliseconds:.3} ms (one call)", self.operation))?;
        terminal::print(&format!("  read   {}", describe(inputs)))?;
        terminal::print(&format!("  wrote  {} to {}", describe(outputs), self.output.display()))
    }
}

/// `x f32 (2, 64, 128), weight f32 (64, 4)`
fn describe(tensors: &[(&str, &HostTensor)]) -> String {
    let one = |(name, tensor): &(&str, &HostTensor)| {
        format!("{name} {} {}", tensor.dtype(), tensor.view().meta().shape)
    };
    tensors.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn describe_json(tensors: &[(&str, &HostTensor)]) -> serde_json::Value {
    let one = |(name, tensor): &(&str, &HostTensor)| {
        ((*name).to_string(), json!({ "dtype": tensor.dtype().name(), "shape": tensor.shape() }))
    };
    tensors.iter().map(one).collect::<serde_json::Map<_, _>>().into()
}
