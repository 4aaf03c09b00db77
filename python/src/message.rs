//! Messages between two GPUs, through memory that both reach, on PyTorch's current stream.

use causeway::backend::gpu::causal_conv1d::backward;
use causeway::backend::gpu::plan::Plan;
use causeway::backend::gpu::{GpuDevice, StreamHandle, message};
use causeway::causal_conv1d::{Activation, Backward};
use causeway::operation::DTypes;
use causeway::{Error, Location};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::exception;
use crate::tensor::{Named, Tensor};
use crate::torch::Torch;

/// What errors call a tensor.
const fn named(name: &'static str) -> Named {
    Named { name, dtypes: DTypes::Own }
}

/// Puts a tensor into the room at an address, once the message before has been taken out. A room is `MESSAGE_FLAG_BYTES` of flags, and then
/// the elements.
#[pyfunction]
pub fn send(tensor: &Bound<'_, PyAny>, room: u64) -> PyResult<()> {
    let read = Tensor::read(&named("tensor"), tensor, None)?;
    // SAFETY: the caller holds the tensor until this returns, and PyTorch its memory until the stream has come this far.
    launch(tensor.py(), &read, |_| Ok(message::send(&unsafe { read.view() }, room))).map(drop)
}

/// Takes a message of a tensor's sizes and dtype out of such a room, once it is there.
#[pyfunction]
pub fn receive(tensor: &Bound<'_, PyAny>, room: u64) -> PyResult<()> {
    let read = Tensor::read(&named("tensor"), tensor, None)?;
    // SAFETY: as in `send`; the package hands over memory that it has just allocated.
    launch(tensor.py(), &read, |_| Ok(message::receive(&unsafe { read.view_mut() }, room))).map(drop)
}

/// What a backward pass reads for the gradient of initial_states.
const READ: [&str; 6] = ["x", "weight", "bias", "dy", "initial_states", "seq_idx"];

/// Puts the gradient of initial_states into a room, as `send` does. False, and nothing is done, where only the whole backward pass
/// computes it.
#[pyfunction]
pub fn send_halo_gradient(inputs: [Option<Bound<'_, PyAny>>; 6], silu: bool, room: u64) -> PyResult<bool> {
    let [Some(x), ..] = &inputs else {
        return Err(PyTypeError::new_err("x is None: expected a torch.Tensor"));
    };
    let mut tensors = [None; READ.len()];
    for ((tensor, object), name) in tensors.iter_mut().zip(&inputs).zip(READ) {
        *tensor = object.as_ref().map(|object| Tensor::read(&named(name), object, None)).transpose()?;
    }
    let [Some(first), ..] = tensors else { unreachable!("x has been read") };
    let find = |name: &str| READ.iter().position(|read| *read == name).and_then(|at| tensors[at]);
    let activation = if silu { Activation::Silu } else { Activation::None };
    // SAFETY: as in `send`.
    let read = |name: &str| find(name).map(|tensor| unsafe { tensor.view() });
    // SAFETY: no output of the call is written.
    let result = |like: &str| find(like)?.unwritten().ok().map(|tensor| unsafe { tensor.view_mut() });
    let written = |name: &str| match name {
        "dx" | "dweight" | "dinitial_states" => result(&name[1..]),
        _ => None,
    };
    let call = Backward::from_named(activation, false, None, read, written);
    launch(x.py(), &first, |device| backward::plan_halo(&call, &call.validate()?, room, device.facts()))
}

/// Launches a plan, if there is one, where a tensor is.
fn launch(
    py: Python<'_>,
    tensor: &Tensor,
    plan: impl FnOnce(&GpuDevice) -> Result<Option<Plan>, Error> + Send,
) -> PyResult<bool> {
    let torch = Torch::of_tensors(py)?;
    let (Location::Cuda(ordinal) | Location::Hip(ordinal)) = tensor.location() else {
        return Err(PyValueError::new_err("messages are between GPUs: the tensor is on the host"));
    };
    let stream = StreamHandle::from_address(torch.current_stream(py, ordinal)?);
    // Without Python's lock: a launch may have to wait for others on the stream, and those for a rank that is a thread of this process.
    let launched = py.detach(|| {
        let device = GpuDevice::open(torch.vendor(), ordinal)?;
        let Some(ready) = device.ready(plan(&device)?)? else { return Ok(false) };
        // SAFETY: the tensors' memory is this GPU's, and the room's is mapped for it: the package has both ranks agree on that.
        unsafe { ready.launch(stream, None) }.map(|()| true)
    });
    launched.map_err(|error| exception(error, &[]))
}
