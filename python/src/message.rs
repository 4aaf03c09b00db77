//! Messages between two GPUs, through memory that both reach, on PyTorch's current stream.

use causeway::backend::gpu::causal_conv1d::{backward, forward};
use causeway::backend::gpu::plan::Plan;
use causeway::backend::gpu::{GpuDevice, StreamHandle, message};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{Error, Location, TensorMut, TensorRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::exception;
use crate::tensor::{Named, Tensor};
use crate::torch::Torch;

/// Puts a tensor into the buffer at an address, once the message before has been taken out. A buffer is `MESSAGE_FLAG_BYTES` of flags, and
/// then the elements.
#[pyfunction]
pub fn send(tensor: &Bound<'_, PyAny>, buffer: u64) -> PyResult<()> {
    let read = Tensor::read(&Named::own("tensor"), tensor, None)?;
    // SAFETY: the caller holds the tensor until this returns, and PyTorch its memory until the stream has come this far.
    launch(tensor.py(), &read, |_| Ok(message::send(&unsafe { read.view() }, buffer))).map(drop)
}

/// Takes a message of a tensor's sizes and dtype out of such a buffer, once it is there.
#[pyfunction]
pub fn receive(tensor: &Bound<'_, PyAny>, buffer: u64) -> PyResult<()> {
    let read = Tensor::read(&Named::own("tensor"), tensor, None)?;
    // SAFETY: as in `send`; the package hands over memory that it has just allocated.
    launch(tensor.py(), &read, |_| Ok(message::receive(&unsafe { read.view_mut() }, buffer))).map(drop)
}

/// What a backward pass reads of the beginning of a slice, and a forward pass. Last the indices of initial_states, if they have some.
/// `seq_idx` may be of the first positions alone.
const READ: [&str; 7] = ["x", "weight", "bias", "dy", "initial_states", "seq_idx", "halo_seq_idx"];
const READ_FORWARD: [&str; 7] =
    ["x", "weight", "bias", "residual", "initial_states", "seq_idx", "halo_seq_idx"];

/// Tensors by their names.
struct Slice<const N: usize> {
    names: [&'static str; N],
    tensors: [Option<Tensor>; N],
}

impl<const N: usize> Slice<N> {
    fn read(names: [&'static str; N], objects: &[Option<Bound<'_, PyAny>>; N]) -> PyResult<Self> {
        let mut tensors = [None; N];
        for ((tensor, object), name) in tensors.iter_mut().zip(objects).zip(names) {
            *tensor =
                object.as_ref().map(|object| Tensor::read(&Named::own(name), object, None)).transpose()?;
        }
        Ok(Slice { names, tensors })
    }

    fn find(&self, name: &str) -> Option<&Tensor> {
        self.names.iter().position(|known| *known == name).and_then(|at| self.tensors[at].as_ref())
    }

    /// A view of a tensor that is read.
    fn view(&self, name: &str) -> Option<TensorRef<'_>> {
        // SAFETY: as in `send`.
        let view = unsafe { self.find(name)?.view() };
        Some(match self.indexed_positions(name, view.shape()) {
            Some(count) => view.narrow(2, 0, count),
            None => view,
        })
    }

    /// How many positions of a tensor have indices, if it has more.
    fn indexed_positions(&self, name: &str, shape: &[i64]) -> Option<i64> {
        let count = *self.find("seq_idx")?.shape().get(1)?;
        let has_positions = matches!(name, "x" | "dy" | "residual" | "y" | "dx");
        (has_positions && shape.get(2).is_some_and(|seqlen| count < *seqlen)).then_some(count)
    }

    /// A view of a result, one of this call's tensors or another.
    ///
    /// # Safety
    /// As for [`Tensor::view_mut`].
    unsafe fn result(&self, name: &str, tensor: &Tensor) -> TensorMut<'_> {
        // SAFETY: the caller's.
        let view = unsafe { tensor.view_mut() };
        match self.indexed_positions(name, view.shape()) {
            Some(count) => view.narrow(2, 0, count),
            None => view,
        }
    }

    fn indices(&self) -> PyResult<TensorRef<'_>> {
        let missing = || PyTypeError::new_err("halo_seq_idx is None: expected a torch.Tensor");
        self.view("halo_seq_idx").ok_or_else(missing)
    }

    /// The first tensor, where the call is.
    fn place(&self) -> PyResult<Tensor> {
        self.tensors[0].ok_or_else(|| PyTypeError::new_err("x is None: expected a torch.Tensor"))
    }
}

fn activation(silu: bool) -> Activation {
    if silu { Activation::Silu } else { Activation::None }
}

/// Puts the gradient of initial_states into a buffer, as `send` does. False, and nothing is done, where only the whole backward pass
/// computes it.
#[pyfunction]
pub fn send_halo_gradient(
    py: Python<'_>,
    inputs: [Option<Bound<'_, PyAny>>; 7],
    silu: bool,
    buffer: u64,
) -> PyResult<bool> {
    let slice = Slice::read(READ, &inputs)?;
    let written = |name: &str| match name {
        "dx" | "dweight" | "dinitial_states" => {
            let unwritten = slice.find(&name[1..])?.unwritten().ok()?;
            // SAFETY: no output of the call is written.
            Some(unsafe { slice.result(name, &unwritten) })
        }
        _ => None,
    };
    let call = Backward::from_named(activation(silu), false, None, |name| slice.view(name), written);
    let indices = slice.view("halo_seq_idx");
    launch(py, &slice.place()?, |device| {
        backward::plan_halo(&call, &call.validate()?, indices.as_ref(), buffer, device.facts())
    })
}

/// Computes the first width-1 outputs of y again, with a halo as initial_states.
#[pyfunction]
pub fn forward_halo(
    py: Python<'_>,
    inputs: [Option<Bound<'_, PyAny>>; 7],
    silu: bool,
    y: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let slice = Slice::read(READ_FORWARD, &inputs)?;
    let result = Tensor::read(&Named::own("y"), y, None)?;
    // SAFETY: as in `receive`.
    let written = |name: &str| (name == "y").then(|| unsafe { slice.result(name, &result) });
    let call = Forward::from_named(activation(silu), false, None, |name| slice.view(name), written);
    let indices = slice.indices()?;
    launch(py, &slice.place()?, |device| {
        forward::plan_halo(&call, &call.validate()?, &indices, device.facts())
    })
    .map(drop)
}

/// Corrects dx, dweight and dbias of a backward pass without a halo for one, which is given as initial_states.
#[pyfunction]
pub fn backward_halo(
    py: Python<'_>,
    inputs: [Option<Bound<'_, PyAny>>; 7],
    silu: bool,
    results: [Option<Bound<'_, PyAny>>; 3],
) -> PyResult<()> {
    let slice = Slice::read(READ, &inputs)?;
    let results = Slice::read(["dx", "dweight", "dbias"], &results)?;
    // SAFETY: as in `receive`: results of the pass before, which nobody else has yet.
    let written = |name: &str| results.find(name).map(|tensor| unsafe { slice.result(name, tensor) });
    let call = Backward::from_named(activation(silu), false, None, |name| slice.view(name), written);
    let indices = slice.indices()?;
    launch(py, &slice.place()?, |device| {
        backward::plan_after_halo(&call, &call.validate()?, &indices, device.facts())
    })
    .map(drop)
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
        // SAFETY: the tensors' memory is this GPU's, and the buffer's is mapped for it: the package has both ranks agree on that.
        unsafe { ready.launch(stream, None) }.map(|()| true)
    });
    launched.map_err(|error| exception(error, &[]))
}
