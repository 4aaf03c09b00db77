//! `causeway run`: one operation on real tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use causeway::causal_conv1d::{Activation, HeadNorm};
use causeway::files::{self, TensorFile};
use causeway::gemm::Algorithm;
use causeway::named::{Call, CallError, Inputs, Layout, Operation};
use causeway::{DType, Device, Dims, HostTensor};
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use serde_json::json;

use crate::VERSION;
use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  causeway run conv1d-forward --in layer.safetensors --out y.safetensors --activation silu
  causeway run conv1d-backward --in step.npz --out grads.npz --layout channel-last
  causeway run gemm-grad-ab --in ab.safetensors --out grads.safetensors --algorithm exact

Files are .safetensors or .npz, by extension. Results have the dtype of the inputs (gradients of weights: weight's). \
The output is written beside its destination and renamed: a failure leaves what was there. \
NumPy has no bf16: it loads such an array of an .npz as V2, and array.view(ml_dtypes.bfloat16) has the numbers.

Tensors, by operation ([..] where present); A is (M, K), B (K, N), C (M, N):";

/// The examples, and what each operation's table says.
fn help() -> String {
    let line = |operation: Operation| format!("\n  {operation:15}  {}", operation.signature());
    EXAMPLES.to_string() + &Operation::ALL.map(line).concat()
}

/// One operation on the tensors of a file
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// What to compute
    #[arg(value_name = "OP", value_parser = operation_parser(), hide_possible_values = true)]
    operation: Operation,

    /// File to read: .safetensors or .npz
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,

    /// File to write: .safetensors or .npz; may be the input
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,

    /// conv1d: what is applied to the sum [default: none]
    #[arg(long, value_name = "none|silu|swish")]
    activation: Option<Activation>,

    /// conv1d with gates (B, C): round products to the dtype of x, as separate kernels do; without gates it
    /// changes nothing
    #[arg(long)]
    round_products: bool,

    /// conv1d: divide the activation by its L2 norm over heads of so many channels; eps and scale are
    /// 1e-6 and 1 by default
    #[arg(long, value_name = "HEAD_DIM[,EPS[,SCALE]]")]
    norm: Option<HeadNorm>,

    /// conv1d: how x, and what has its shape, lies in the file, as (batch, dim, seqlen) or (batch, seqlen, dim)
    /// [default: channel-first]
    #[arg(long, value_name = "channel-first|channel-last")]
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

/// Names the operations when another one is asked for.
fn operation_parser() -> impl clap::builder::TypedValueParser<Value = Operation> {
    PossibleValuesParser::new(Operation::ALL.map(Operation::name)).try_map(|name| name.parse::<Operation>())
}

/// Reads, computes, writes.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let call = args.call();
    call.check_options().map_err(with_flag)?;
    // Both names are checked before anything is read or computed.
    files::Format::of_path(&args.output)?;
    let stored = read(&call, &args.input)?;
    let read = Described::of(stored.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    let inputs = Inputs::new(stored, call.layout.unwrap_or_default());
    args.device.with(|device| {
        let results = call.run(device, &inputs).map_err(|error| failure(&error, error.to_string()))?;
        let outputs: Vec<_> = results.tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut metadata = call.metadata();
        metadata.insert("causeway".to_string(), VERSION.to_string());
        metadata.insert("device".to_string(), device.to_string());
        files::write(&args.output, &outputs, &metadata)?;
        args.report(device, &read, &Described::of(outputs.iter().copied()), results.elapsed)
    })
}

/// Every tensor of the file as it is stored, once it is known that the operation reads them all.
fn read(call: &Call, path: &Path) -> Result<BTreeMap<String, HostTensor>, Failure> {
    let mut file = TensorFile::open(path)?;
    let in_file = |error: CallError| failure(&error, format!("{}: {error}", path.display()));
    call.check_names(file.names().into_iter()).map_err(in_file)?;
    let names: Vec<_> = file.names().into_iter().map(str::to_string).collect();
    let mut tensors = BTreeMap::new();
    for name in names {
        if let Some(tensor) = file.read(&name)? {
            tensors.insert(name, tensor);
        }
    }
    Ok(tensors)
}

/// A call's error, in these words.
fn failure(error: &CallError, message: String) -> Failure {
    match error.help() {
        Some(line) => Failure::input(message).with_help(line),
        None => Failure::input(message),
    }
}

/// An error about options, which are flags here.
fn with_flag(error: CallError) -> Failure {
    match error {
        CallError::MisplacedOption { option, operation, owner } => {
            let flag = option.replace('_', "-");
            Failure::input(format!("--{flag} has no meaning for {operation}: it is for {owner}"))
        }
        _ => failure(&error, error.to_string()),
    }
}

impl Args {
    fn call(&self) -> Call {
        Call {
            operation: self.operation,
            activation: self.activation,
            round_products: self.round_products,
            norm: self.norm,
            layout: self.layout,
            return_final_states: self.return_final_states,
            algorithm: self.algorithm,
        }
    }

    fn report(
        &self,
        device: &Device,
        inputs: &Described,
        outputs: &Described,
        elapsed: Duration,
    ) -> Result<(), Failure> {
        if self.json {
            return terminal::print_json(&json!({
                "operation": self.operation.to_string(),
                "device": device.to_string(),
                "threads": rayon::current_num_threads(),
                "seconds": elapsed.as_secs_f64(),
                "inputs": inputs.json(),
                "outputs": outputs.json(),
                "out": self.output.display().to_string(),
            }));
        }
        let milliseconds = elapsed.as_secs_f64() * 1e3;
        terminal::print(&format!("{} on {device}, {milliseconds:.3} ms (one call)", self.operation))?;
        terminal::print(&format!("  read   {}", inputs.text()))?;
        terminal::print(&format!("  wrote  {} to {}", outputs.text(), self.output.display()))
    }
}

/// The names, dtypes and shapes of tensors, as a file has them.
struct Described(Vec<(String, DType, Dims)>);

impl Described {
    fn of<'a>(tensors: impl Iterator<Item = (&'a str, &'a HostTensor)>) -> Self {
        let one = |(name, tensor): (&str, &HostTensor)| {
            (name.to_string(), tensor.dtype(), tensor.view().meta().shape)
        };
        Described(tensors.map(one).collect())
    }

    /// `x f32 (2, 64, 128), weight f32 (64, 4)`
    fn text(&self) -> String {
        self.0
            .iter()
            .map(|(name, dtype, shape)| format!("{name} {dtype} {shape}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn json(&self) -> serde_json::Value {
        let one = |(name, dtype, shape): &(String, DType, Dims)| {
            (name.clone(), json!({ "dtype": dtype.name(), "shape": **shape }))
        };
        self.0.iter().map(one).collect::<serde_json::Map<_, _>>().into()
    }
}
