//! Runs a call where its tensors are.

use causeway::backend::cpu::on_threads;
use causeway::backend::gpu::{GpuDevice, Ready, StreamHandle, Workspace};
use causeway::causal_conv1d::{Backward, Forward, Update, VarlenStates};
use causeway::{Device, Error, Location, Result, gemm};
use pyo3::prelude::*;

use crate::error::{Renamed, exception};
use crate::openmp;
use crate::tensor::Tensor;
use crate::threads;
use crate::torch::{Torch, data_ptr};

/// Work below this keeps Python's lock, in elements (convolutions) or products (GEMM): it is done before others could take it.
const SMALL: i64 = 1 << 14;

/// An operation of the library.
pub trait Call: Send {
    /// Checks the arguments, and computes nothing.
    fn check(&self) -> Result<()>;
    /// Whether threads take part in it on a processor.
    fn uses_threads(&self) -> bool;
    /// Computes on a device.
    fn run(&mut self, device: &Device) -> Result<()>;
    /// Makes each launch that it is on a GPU, in order.
    fn launch(&mut self, device: &GpuDevice, launch: &mut Launch<'_>) -> Result<()>;
}

/// What is done with a launch whose kernel is loaded.
type Launch<'a> = dyn FnMut(Ready) -> Result<()> + 'a;

/// Most calls that are made together.
pub const MOST_TOGETHER: usize = 3;

/// Calls of one operation that are launched together.
pub struct Together<O>(pub Vec<O>);

macro_rules! calls {
    ($($operation:ty, $ready:ident => $launches:expr;)*) => {$(
        impl Call for $operation {
            fn check(&self) -> Result<()> {
                <$operation>::validate(self).map(drop)
            }
            fn uses_threads(&self) -> bool {
                <$operation>::uses_threads(self)
            }
            fn run(&mut self, device: &Device) -> Result<()> {
                <$operation>::run(self, device)
            }
            fn launch(&mut self, device: &GpuDevice, launch: &mut Launch<'_>) -> Result<()> {
                let $ready = <$operation>::ready(self, device)?;
                $launches.into_iter().flatten().try_for_each(launch)
            }
        }
    )*};
}
macro_rules! together {
    ($($operation:ident),*) => {$(
        impl Call for Together<$operation<'_>> {
            fn check(&self) -> Result<()> {
                self.0.iter().try_for_each(Call::check)
            }
            fn uses_threads(&self) -> bool {
                self.0.iter().any(Call::uses_threads)
            }
            fn run(&mut self, device: &Device) -> Result<()> {
                $operation::run_together(&mut self.0, device)
            }
            fn launch(&mut self, device: &GpuDevice, launch: &mut Launch<'_>) -> Result<()> {
                $operation::ready_together(&self.0, device)?.into_iter().try_for_each(launch)
            }
        }
    )*};
}
together!(Forward, Backward, Update);
calls! {
    Forward<'_>, ready => [ready];
    Backward<'_>, ready => [ready];
    Update<'_>, ready => [ready];
    VarlenStates<'_>, ready => [ready];
    gemm::Forward<'_>, ready => [ready];
    gemm::GradA<'_>, ready => [ready];
    gemm::GradB<'_>, ready => [ready];
    gemm::GradAB<'_>, ready => ready;
}

/// Where a call is, and how large.
pub struct Place<'a, 'py> {
    /// The first tensor's object, which workspaces are allocated like.
    pub first: &'a Bound<'py, PyAny>,
    /// What was read from it.
    pub tensor: Tensor,
    /// Elements or products.
    pub size: i64,
}

/// Runs a call on the device that its first tensor is on: for a GPU, on PyTorch's current stream, without waiting. A call that has no
/// place is only checked.
pub fn run(call: &mut impl Call, place: Option<&Place<'_, '_>>, renamed: Renamed) -> PyResult<()> {
    match place {
        None => call.check().map_err(Failure::Library),
        Some(place) => match place.tensor.location() {
            Location::Host => on_host(place, call),
            Location::Cuda(ordinal) | Location::Hip(ordinal) => on_gpu(place.first, ordinal, call),
        },
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

/// With as many threads as the tensor's library uses, and with those of PyTorch if they can be had.
fn on_host(place: &Place<'_, '_>, call: &mut impl Call) -> Result<(), Failure> {
    let (device, py) = (Device::cpu(), place.first.py());
    if place.size < SMALL && !call.uses_threads() {
        return Ok(call.run(&device)?);
    }
    if !call.uses_threads() {
        return Ok(py.detach(|| call.run(&device))?);
    }
    let threads = if place.tensor.is_torch() { Torch::of_tensors(py)?.thread_count(py)? } else { 0 };
    if let Some(team) = openmp::team(threads) {
        return Ok(py.detach(|| on_threads(team, || call.run(&device)))?);
    }
    let pool = threads::pool(threads)?;
    Ok(py.detach(|| pool.install(|| call.run(&device)))?)
}

fn on_gpu(first: &Bound<'_, PyAny>, ordinal: u32, call: &mut impl Call) -> Result<(), Failure> {
    let py = first.py();
    let torch = Torch::of_tensors(py)?;
    let stream = StreamHandle::from_address(torch.current_stream(py, ordinal)?);
    let device = GpuDevice::open(torch.vendor(), ordinal)?;
    // What needs no workspace is launched without taking Python's lock in between.
    let mut left = Vec::new();
    py.detach(|| {
        call.launch(&device, &mut |ready| {
            if ready.workspace_bytes() > 0 || !left.is_empty() {
                left.push(ready);
                return Ok(());
            }
            // SAFETY: see below.
            unsafe { ready.launch(stream, None) }
        })
    })?;
    for ready in left {
        let bytes = ready.workspace_bytes();
        // Freed at the end of the turn: PyTorch hands it out again only after what the stream holds now.
        let memory = (bytes > 0).then(|| torch.allocate(first, bytes)).transpose()?;
        let address = memory.as_ref().map(data_ptr).transpose()?;
        let workspace = address.map(|address| Workspace { address, bytes });
        // SAFETY: the call was made from views of memory on this device. PyTorch keeps that memory, and the
        // workspace, until its current stream has come this far, and never destroys its streams.
        py.detach(|| unsafe { ready.launch(stream, workspace) })?;
    }
    Ok(())
}
