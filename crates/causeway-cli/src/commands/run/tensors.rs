//! The tensors of a run: read by name, laid out as the file lays them out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use causeway::files::TensorFile;
use causeway::placement::{Input, Output};
use causeway::{Device, HostTensor, TensorRef};
use clap::ValueEnum;

use super::operation::Operation;
use crate::failure::Failure;

/// How the file stores tensors with a sequence axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Layout {
    /// (batch, dim, seqlen)
    #[default]
    ChannelFirst,
    /// (batch, seqlen, dim)
    ChannelLast,
}

/// Tensors that follow `--layout`; weights and states do not.
const WITH_LAYOUT: [&str; 3] = ["x", "dy", "residual"];
/// Swaps seqlen and dim.
const SWAP: [usize; 3] = [0, 2, 1];

impl Layout {
    fn swaps(self, shape: &[i64]) -> bool {
        self == Layout::ChannelLast && shape.len() == SWAP.len()
    }
}

/// The inputs, seen through their logical axes.
pub(crate) struct Inputs {
    tensors: BTreeMap<&'static str, HostTensor>,
    layout: Layout,
}

impl Inputs {
    /// Reads every tensor that the operation knows, once no other one is in the file.
    pub fn read(
        file: &mut TensorFile,
        operation: Operation,
        layout: Layout,
        path: &Path,
    ) -> Result<Self, Failure> {
        let (required, optional) = operation.inputs();
        let known = || required.iter().chain(optional).copied();
        let shown = path.display();
        if let Some(unknown) = file.names().into_iter().find(|name| !known().any(|known| known == *name)) {
            let message = format!("{shown}: tensor {unknown:?} is not an input of {operation}");
            return Err(Failure::input(message).with_help(operation.reads()));
        }
        if let Some(missing) = required.iter().find(|name| !file.names().contains(name)) {
            let message = format!("{shown}: tensor {missing:?} is missing");
            return Err(Failure::input(message).with_help(operation.reads()));
        }
        let mut tensors = BTreeMap::new();
        for name in known() {
            let Some(mut tensor) = file.read(name)? else { continue };
            if WITH_LAYOUT.contains(&name) && layout.swaps(tensor.shape()) {
                tensor = tensor.permuted(&SWAP);
            }
            tensors.insert(name, tensor);
        }
        Ok(Inputs { tensors, layout })
    }

    /// A tensor that `read` has made sure of.
    pub fn required(&self, name: &str) -> &HostTensor {
        &self.tensors[name]
    }

    /// A tensor that may not be there.
    pub fn optional(&self, name: &str) -> Option<&HostTensor> {
        self.tensors.get(name)
    }

    /// All tensors where the device can read them.
    pub fn place(&self, device: &Device) -> causeway::Result<PlacedInputs<'_>> {
        let place = |(name, tensor): (&&'static str, _)| Ok((*name, Input::place(device, tensor)?));
        Ok(PlacedInputs(self.tensors.iter().map(place).collect::<causeway::Result<_>>()?))
    }

    /// Zeros of this dtype and logical shape, stored as `--layout` says.
    pub fn zeros_like(&self, name: &str) -> causeway::Result<HostTensor> {
        let like = self.required(name);
        let shape = like.shape();
        if !self.layout.swaps(shape) {
            return HostTensor::zeros(like.dtype(), shape);
        }
        Ok(HostTensor::zeros(like.dtype(), &[shape[0], shape[2], shape[1]])?.permuted(&SWAP))
    }

    pub fn tensors(&self) -> Vec<(&str, &HostTensor)> {
        self.tensors.iter().map(|(name, tensor)| (*name, tensor)).collect()
    }
}

/// The inputs as views for an operation.
pub(crate) struct PlacedInputs<'a>(BTreeMap<&'static str, Input<'a>>);

impl PlacedInputs<'_> {
    /// A tensor that [`Inputs::read`] has made sure of.
    pub fn required(&self, name: &str) -> TensorRef<'_> {
        self.0[name].view()
    }

    /// A tensor that may not be there.
    pub fn optional(&self, name: &str) -> Option<TensorRef<'_>> {
        self.0.get(name).map(Input::view)
    }
}

/// What an operation computed, and how long the call took.
pub(crate) struct Computed {
    pub outputs: Vec<(&'static str, HostTensor)>,
    pub elapsed: Duration,
}

impl Computed {
    /// Brings the results that there are to the host.
    pub fn fetch(outputs: Vec<(&'static str, Option<Output>)>, elapsed: Duration) -> causeway::Result<Self> {
        let present = outputs.into_iter().filter_map(|(name, output)| Some((name, output?)));
        let fetch = |(name, output): (_, Output)| Ok((name, output.fetch()?));
        Ok(Computed { outputs: present.map(fetch).collect::<causeway::Result<_>>()?, elapsed })
    }

    /// The results as the file stores them.
    pub fn stored(self, layout: Layout) -> Self {
        let store = |(name, tensor): (&'static str, HostTensor)| match name {
            "y" | "dx" if layout.swaps(tensor.shape()) => (name, tensor.permuted(&SWAP)),
            _ => (name, tensor),
        };
        Computed { outputs: self.outputs.into_iter().map(store).collect(), elapsed: self.elapsed }
    }
}

/// Calls `run` and returns how long it took until the device was done.
pub(crate) fn timed<F>(device: &Device, run: F) -> causeway::Result<Duration>
where
    F: FnOnce() -> causeway::Result<()>,
{
    let start = Instant::now();
    run()?;
    device.synchronize()?;
    Ok(start.elapsed())
}
