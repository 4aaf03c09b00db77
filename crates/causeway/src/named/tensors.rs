//! The tensors of a call: by name, laid out as their source lays them out.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::CallError;
use crate::arrangement::Arrangement;
use crate::causal_conv1d::{Backward, Forward};
use crate::device::Device;
use crate::device_tensor::DeviceTensor;
use crate::error::{Error, Result};
use crate::host_tensor::HostTensor;
use crate::operation::Operation as _;
use crate::placement::{Input, Output};
use crate::spares::Spares;
use crate::tensor::{DType, Dims, TensorMut, TensorRef};

/// How tensors with a sequence axis are stored. Weights and states are stored one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// `(batch, dim, seqlen)`
    #[default]
    ChannelFirst,
    /// `(batch, seqlen, dim)`
    ChannelLast,
}

/// Whether an input or output follows the layout: it has the shape of x.
fn has_layout(name: &str) -> bool {
    let arguments = Forward::ARGUMENTS.iter().chain(Backward::ARGUMENTS);
    arguments.into_iter().any(|known| known.name == name && known.shape == Forward::ARGUMENTS[0].shape)
}

/// Swaps seqlen and dim.
const SWAP: [usize; 3] = [0, 2, 1];

impl Layout {
    /// `channel-first` or `channel-last`.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::ChannelFirst => "channel-first",
            Layout::ChannelLast => "channel-last",
        }
    }

    fn swaps(self, shape: &[i64]) -> bool {
        self == Layout::ChannelLast && shape.len() == SWAP.len()
    }

    /// From the order of the logical axes to the stored one, or back.
    fn swapped(self, name: &str, tensor: HostTensor) -> HostTensor {
        if has_layout(name) && self.swaps(tensor.shape()) { tensor.permuted(&SWAP) } else { tensor }
    }
}

impl FromStr for Layout {
    type Err = CallError;
    fn from_str(text: &str) -> Result<Self, CallError> {
        let found =
            [Layout::ChannelFirst, Layout::ChannelLast].into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| CallError::BadOption {
            option: "layout".to_string(),
            found: text.to_string(),
            expected: "channel-first or channel-last",
        })
    }
}

/// The inputs of a call, seen through their logical axes.
#[derive(Debug)]
pub struct Inputs {
    tensors: BTreeMap<String, HostTensor>,
    layout: Layout,
    result_limit: u64,
    spares: Arc<Spares>,
}

impl Inputs {
    /// Tensors as they are stored.
    pub fn new(stored: BTreeMap<String, HostTensor>, layout: Layout) -> Self {
        let logical = |(name, tensor): (String, _)| {
            let tensor = layout.swapped(&name, tensor);
            (name, tensor)
        };
        Inputs {
            tensors: stored.into_iter().map(logical).collect(),
            layout,
            result_limit: u64::MAX,
            spares: Arc::default(),
        }
    }

    /// The same, with a limit for the bytes of one result: inputs with empty axes can ask for huge ones.
    pub fn with_result_limit(self, bytes: u64) -> Self {
        Inputs { result_limit: bytes, ..self }
    }

    /// The same, with memory that results may take.
    pub fn with_spares(self, spares: Arc<Spares>) -> Self {
        Inputs { spares, ..self }
    }

    /// Every tensor with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HostTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// A tensor that [`Call::check_names`](super::Call::check_names) has made sure of.
    pub(super) fn required(&self, name: &str) -> &HostTensor {
        &self.tensors[name]
    }

    /// A tensor that may not be there.
    pub(super) fn optional(&self, name: &str) -> Option<&HostTensor> {
        self.tensors.get(name)
    }

    /// All tensors where the device can read them.
    pub(super) fn place(&self, device: &Device) -> Result<PlacedInputs<'_>> {
        let place = |(name, tensor)| Ok((name, Input::place(device, tensor)?));
        Ok(PlacedInputs(self.iter().map(place).collect::<Result<_>>()?))
    }

    /// Memory for a result, within the limit, where the device can write it. What it holds is to be overwritten, as
    /// operations do with all elements of their results.
    pub(super) fn output(&self, device: &Device, dtype: DType, shape: &[i64]) -> Result<Output> {
        self.output_stored(device, dtype, shape, false)
    }

    /// Memory for a result of this dtype and logical shape, stored as the layout says.
    pub(super) fn output_like(&self, device: &Device, name: &str) -> Result<Output> {
        let like = self.required(name);
        let shape = like.shape();
        if !self.layout.swaps(shape) {
            return self.output(device, like.dtype(), shape);
        }
        self.output_stored(device, like.dtype(), &[shape[0], shape[2], shape[1]], true)
    }

    fn output_stored(&self, device: &Device, dtype: DType, shape: &[i64], swap: bool) -> Result<Output> {
        let bytes = shape.iter().fold(dtype.size() as i128, |bytes, &size| bytes.saturating_mul(size.into()));
        if bytes > i128::from(self.result_limit) {
            let shape = Dims::new(shape)?;
            return Err(Error::ResultTooLarge { shape, dtype, bytes, limit: self.result_limit });
        }
        if let Device::Gpu(stream) = device {
            // Made there: what is overwritten need not travel.
            let mut arrangement = Arrangement::dense(dtype, shape, 0)?;
            if swap {
                let swapped = |sizes: Dims| Dims::new(&SWAP.map(|axis| sizes[axis]));
                arrangement.shape = swapped(arrangement.shape)?;
                arrangement.strides = swapped(arrangement.strides)?;
            }
            return Ok(Output::Gpu(DeviceTensor::filled(stream, &arrangement, 0)?));
        }
        let output = HostTensor::allocate(dtype, shape, |bytes| self.spares.take_or_new(bytes))?;
        Ok(Output::Host(if swap { output.permuted(&SWAP) } else { output }))
    }

    /// Brings the results to the host.
    pub(super) fn fetch(&self, outputs: Outputs, elapsed: Duration) -> Result<Results> {
        let fetch = |(name, output): (_, Output)| Ok((name, output.fetch_to(&self.spares)?));
        Ok(Results { tensors: outputs.0.into_iter().map(fetch).collect::<Result<_>>()?, elapsed })
    }

    /// The tensors, when the call is done with them.
    pub fn into_tensors(self) -> impl Iterator<Item = HostTensor> {
        self.tensors.into_values()
    }
}

/// The inputs as views for an operation.
pub(super) struct PlacedInputs<'a>(BTreeMap<&'a str, Input<'a>>);

impl PlacedInputs<'_> {
    pub fn optional(&self, name: &str) -> Option<TensorRef<'_>> {
        self.0.get(name).map(Input::view)
    }
}

/// Memory for what a call writes, by name.
#[derive(Default)]
pub(super) struct Outputs(Vec<(&'static str, Output)>);

impl Outputs {
    pub fn push(&mut self, name: &'static str, output: Output) {
        self.0.push((name, output));
    }

    pub fn views(&mut self) -> BTreeMap<&'static str, TensorMut<'_>> {
        self.0.iter_mut().map(|(name, output)| (*name, output.view())).collect()
    }
}

/// What a call computed.
#[derive(Debug)]
pub struct Results {
    /// The results by name, on the host, stored as the layout says.
    pub tensors: Vec<(&'static str, HostTensor)>,
    /// How long the operation took until the device was done; copies from and to the host are not in it.
    pub elapsed: Duration,
}

impl Results {
    /// With their axes in the stored order.
    pub(super) fn stored(self, layout: Layout) -> Self {
        let store = |(name, tensor)| (name, layout.swapped(name, tensor));
        Results { tensors: self.tensors.into_iter().map(store).collect(), elapsed: self.elapsed }
    }
}

/// Calls `run` and returns how long it took until the device was done.
pub(super) fn timed(device: &Device, run: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    run()?;
    device.synchronize()?;
    Ok(start.elapsed())
}
