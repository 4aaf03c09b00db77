//! Runs a call where its tensors are.

use causeway::backend::gpu::{GpuDevice, Ready, StreamHandle, Workspace};
use causeway::causal_conv1d::{Backward, Forward, Update, VarlenStates};
use causeway::{Device, Error, Location, Result, gemm};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;

use crate::error::{Renamed, exception};
use crate::tensor::Tensor;
use crate::threads;
use crate::torch::{Torch, data_ptr};

/// Work below this stays on the calling thread, in elements (convolutions) or products (GEMM). The library's own
/// threshold is higher; what it runs on one thread needs no pool.
const SMALL: i64 = 1 << 14;

/// An operation of the library.
pub trait Call: Send {
    /// Computes on a device.
    fn run(&mut self, device: &Device) -> Result<()>;
    /// The launches that it is on a GPU, in order.
    fn ready(&mut self, device: &GpuDevice) -> Result<[Option<Ready>; 2]>;
}

macro_rules! calls {
    ($($operation:ty, $launches:ident => $result:expr;)*) => {$(
        impl Call for $operation {
            fn run(&mut self, device: &Device) -> Result<()> {
                <$operation>::run(self, device)
            }
            fn ready(&mut self, device: &GpuDevice) -> Result<[Option<Ready>; 2]> {
                let $launches = <$operation>::ready(self, device)?;
                Ok($result)
            }
        }
    )*};
}
calls! {
    Forward<'_>, launch => [launch, None];
    Backward<'_>, launch => [launch, None];
    Update<'_>, launch => [launch, None];
    VarlenStates<'_>, launch => [launch, None];
    gemm::Forward<'_>, launch => [launch, None];
    gemm::GradA<'_>, launch => [launch, None];
    gemm::GradB<'_>, launch => [launch, None];
    gemm::GradAB<'_>, launches => launches;
}

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

/// Runs a call on the device that `first` is on: for a GPU, on PyTorch's current stream, without waiting.
///
/// `first` is the object that was read as `tensor`, and the one that workspaces are allocated like; `size` counts
/// the elements or products of the call.
pub fn run(
    first: &Bound<'_, PyAny>,
    tensor: &Tensor,
    size: i64,
    call: &mut impl Call,
    renamed: Renamed,
) -> PyResult<()> {
    match tensor.location {
        Location::Host => on_host(first.py(), tensor, size, call),
        Location::Cuda(ordinal) | Location::Hip(ordinal) => on_gpu(first, ordinal, call),
    }
    .map_err(|failure| match failure {
        Failure::Library(error) => exception(error, renamed),
        Failure::Python(error) => error,
    })
}

/// What ends a call early.
enum Failure {
    Library(Error),
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure::Python(error)
    }
}

/// With as many threads as the tensor's library uses.
fn on_host(py: Python<'_>, tensor: &Tensor, size: i64, call: &mut impl Call) -> Result<(), Failure> {
    let device = Device::cpu();
    if size < SMALL {
        return Ok(call.run(&device)?);
    }
    let threads = if tensor.is_torch() { Torch::of_tensors(py)?.thread_count(py)? } else { 0 };
    let pool = threads::pool(threads)?;
    Ok(py.detach(|| pool.install(|| call.run(&device)))?)
}

fn on_gpu(first: &Bound<'_, PyAny>, ordinal: u32, call: &mut impl Call) -> Result<(), Failure> {
    let py = first.py();
    let torch = Torch::of_tensors(py)?;
    let stream = StreamHandle::from_address(torch.current_stream(py, ordinal)?);
    let device = GpuDevice::open(torch.vendor(), ordinal)?;
    // What needs no workspace is launched without taking Python's lock in between.
    let left = py.detach(|| {
        let mut launches = call.ready(&device)?;
        for launch in &mut launches {
            match launch {
                Some(ready) if ready.workspace_bytes() > 0 => break,
                // SAFETY: see below.
                Some(ready) => unsafe { ready.launch(stream, None) }?,
                None => {}
            }
            *launch = None;
        }
        Ok::<_, Error>(launches)
    })?;
    for ready in left.iter().flatten() {
        let bytes = ready.workspace_bytes();
        // Freed at the end of the turn: PyTorch hands it out again only behind what the stream holds now.
        let memory = (bytes > 0).then(|| torch.allocate(first, bytes)).transpose()?;
        let address = memory.as_ref().map(data_ptr).transpose()?;
        let workspace = address.map(|address| Workspace { address, bytes });
        // SAFETY: the call was made from views of memory on this device. PyTorch keeps that memory, and the
        // workspace, until its current stream has come this far, and never destroys its streams.
        py.detach(|| unsafe { ready.launch(stream, workspace) })?;
    }
    Ok(())
}
