//! Runs a call where its tensors are.

use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::backend::gpu::{GpuDevice, StreamHandle, Workspace};
use causeway::causal_conv1d::{Backward, Forward, Update, VarlenStates};
use causeway::{Device, Error, Location, Result};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;

use crate::error::{Renamed, exception};
use crate::tensor::{Tensor, Torch, data_ptr};
use crate::threads;

/// Work below this stays on the calling thread, in elements (convolutions) or products (GEMM). The library's own
/// threshold is higher; what it runs on one thread needs no pool.
const SMALL: i64 = 1 << 14;

/// An operation that can be planned for a GPU.
pub trait Call: Send {
    /// Computes on a device.
    fn run(&mut self, device: &Device) -> Result<()>;
    /// The launch that it is on a GPU.
    fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>>;
}

macro_rules! calls {
    ($($operation:ident)*) => {$(
        impl Call for $operation<'_> {
            fn run(&mut self, device: &Device) -> Result<()> {
                $operation::run(self, device)
            }
            fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>> {
                $operation::plan(self, facts)
            }
        }
    )*};
}
calls!(Forward Backward Update VarlenStates);

/// Every tensor of a call, by name, for the checks and decisions that concern all of them.
pub struct Tensors<'a> {
    /// Read.
    pub inputs: &'a [(&'static str, Option<Tensor>)],
    /// Written.
    pub outputs: &'a [(&'static str, Option<Tensor>)],
}

impl Tensors<'_> {
    /// No output shares memory with another tensor, and all tensors are of one library.
    ///
    /// # Errors
    /// `RuntimeError` and `TypeError`, as from PyTorch.
    pub fn check(&self) -> PyResult<()> {
        let mut first = None;
        for (name, tensor) in self.inputs.iter().chain(self.outputs) {
            let Some(tensor) = tensor else { continue };
            let (other, is_torch) = *first.get_or_insert((*name, tensor.is_torch()));
            if is_torch != tensor.is_torch() {
                let kind = |is_torch| if is_torch { "a torch.Tensor" } else { "a numpy.ndarray" };
                let (this, that) = (kind(tensor.is_torch()), kind(is_torch));
                return Err(PyTypeError::new_err(format!(
                    "{name} is {this} and {other} {that}: all tensors of a call come from one library"
                )));
            }
        }
        for (at, (name, output)) in self.outputs.iter().enumerate() {
            let Some(output) = output else { continue };
            for (other, tensor) in self.inputs.iter().chain(&self.outputs[..at]) {
                if tensor.as_ref().is_some_and(|tensor| tensor.shares_memory(output)) {
                    return Err(PyRuntimeError::new_err(format!(
                        "{name} shares memory with {other}: it is written while {other} is in use; pass a clone of \
                         one of them"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Runs a call on the device that `x` is on: for a GPU, on PyTorch's current stream, without waiting.
///
/// `x` is the object that was read as `tensor`, and the one that workspaces are allocated like.
pub fn run(x: &Bound<'_, PyAny>, tensor: &Tensor, call: &mut impl Call, renamed: Renamed) -> PyResult<()> {
    let py = x.py();
    let done = match tensor.location {
        Location::Host => {
            return on_host(py, tensor, tensor.element_count(), renamed, move |device| call.run(device));
        }
        Location::Cuda(ordinal) | Location::Hip(ordinal) => {
            let torch = torch(py)?;
            let stream = StreamHandle::from_address(torch.current_stream(py, ordinal)?);
            GpuDevice::open(torch.vendor(), ordinal).map(|device| (torch, device, stream))
        }
    };
    let (torch, device, stream) = done.map_err(|error| exception(error, renamed))?;
    let Some(plan) = call.plan(device.facts()).map_err(|error| exception(error, renamed))? else {
        return Ok(());
    };
    // Freed when this function returns: PyTorch hands it out again only behind what the stream holds now.
    let memory = (plan.workspace_bytes > 0).then(|| torch.allocate(x, plan.workspace_bytes)).transpose()?;
    let workspace = match &memory {
        Some(memory) => Some(Workspace { address: data_ptr(memory)?, bytes: plan.workspace_bytes }),
        None => None,
    };
    // SAFETY: the plan was made from views of memory on this device. PyTorch keeps that memory, and the workspace,
    // until its current stream has come this far, and never destroys its streams.
    py.detach(|| unsafe { device.launch(&plan, stream, workspace) })
        .map_err(|error| exception(error, renamed))
}

/// Runs `work`, so large, on this machine's processor, with as many threads as the tensor's library uses.
pub fn on_host(
    py: Python<'_>,
    tensor: &Tensor,
    size: i64,
    renamed: Renamed,
    work: impl FnOnce(&Device) -> Result<()> + Send,
) -> PyResult<()> {
    let device = Device::cpu();
    let done = if size < SMALL {
        work(&device)
    } else {
        let threads = if tensor.is_torch() { torch(py)?.thread_count(py)? } else { 0 };
        let pool = threads::pool(threads)?;
        py.detach(|| pool.install(|| work(&device)))
    };
    done.map_err(|error| exception(error, renamed))
}

/// The error for an operation without kernels for GPUs, if that is where the tensor is.
pub fn expect_host(py: Python<'_>, tensor: &Tensor, what: &str) -> PyResult<()> {
    let (Location::Cuda(ordinal) | Location::Hip(ordinal)) = tensor.location else { return Ok(()) };
    let vendor = torch(py)?.vendor();
    let device = GpuDevice::open(vendor, ordinal).map_err(|error| exception(error, &[]))?;
    let error = Error::Unsupported {
        what: what.to_string(),
        device: device.to_string(),
        instead: "run it on the cpu device, with tensors on the host",
    };
    Err(exception(error, &[]))
}

/// PyTorch, which a tensor has come from.
fn torch(py: Python<'_>) -> PyResult<&Torch> {
    Torch::imported(py)?.ok_or_else(|| PyRuntimeError::new_err("PyTorch is gone from sys.modules"))
}
