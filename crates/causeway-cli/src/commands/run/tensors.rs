//! The tensors of a run: read by name, laid out as the file lays them out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use causeway::files::TensorFile;
use causeway::{HostTensor, TensorRef};
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
    pub fn required(&self, name: &str) -> TensorRef<'_> {
        self.tensors[name].view()
    }

    /// A tensor that may not be there.
    pub fn optional(&self, name: &str) -> Option<TensorRef<'_>> {
        self.tensors.get(name).map(HostTensor::view)
    }

    /// A copy of a tensor that is to be changed in place.
    pub fn owned(&self, name: &str) -> HostTensor {
        self.tensors[name].to_contiguous()
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

/// What an operation computed, and how long the call took.
pub(crate) struct Computed {
    pub outputs: Vec<(&'static str, HostTensor)>,
    pub elapsed: Duration,
}

impl Computed {
    /// The results as the file stores them.
    pub fn stored(self, layout: Layout) -> Self {
        let store = |(name, tensor): (&'static str, HostTensor)| match name {
            "y" | "dx" if layout.swaps(tensor.shape()) => (name, tensor.permuted(&SWAP)),
            _ => (name, tensor),
        };
        Computed { outputs: self.outputs.into_iter().map(store).collect(), elapsed: self.elapsed }
    }
}

/// Calls `run` and returns how long it took.
pub(crate) fn timed<F>(run: F) -> causeway::Result<Duration>
where
    F: FnOnce() -> causeway::Result<()>,
{
    let start = Instant::now();
    run()?;
    Ok(start.elapsed())
}
