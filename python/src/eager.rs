//! Whether a call of PyTorch's tensors is nothing but its kernel.

use causeway::operation::Role;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::given::Given;
use crate::tensor::Tensor;
use crate::torch::{Dispatch, Torch, requires_grad};

/// What a call has to go through.
pub enum Way {
    /// The package's Python code: something intercepts it, or only Python has words for its arguments.
    Python,
    /// Autograd, which records a gradient for so many of the inputs.
    Autograd(usize),
    /// Nothing but its kernel; the first tensor has been read.
    Direct(Tensor),
}

/// The way of a call; `is_cast` and `is_recorded` are those of [`Torch::dispatch`]. Autograd records it if a tensor that is read requires
/// a gradient, or, of an operation without gradients, one that is changed in place.
pub fn way(torch: &Torch, given: &Given<'_, '_>, is_cast: bool, is_recorded: bool) -> PyResult<Way> {
    let Some(first) = given.object(0) else { return Ok(Way::Python) };
    if !given.is_complete() || !given.objects().all(|(_, object)| torch.is_plain(&object)) {
        return Ok(Way::Python);
    }
    let dispatch = torch.dispatch(first.py(), is_cast, is_recorded)?;
    if dispatch == Dispatch::Python {
        return Ok(Way::Python);
    }
    let read = Tensor::of_dlpack(&first, torch)?;
    if read.is_none() {
        // A nested tensor of the older kind is a plain one by its class.
        let is = |name| first.getattr(name)?.is_truthy();
        if !is(intern!(first.py(), "is_cuda"))? && !is(intern!(first.py(), "is_cpu"))?
            || is(intern!(first.py(), "is_nested"))?
        {
            return Ok(Way::Python);
        }
    }
    let operation = given.operation;
    if dispatch == Dispatch::Autograd {
        let followed = if operation.changes { Role::InPlace } else { Role::Input };
        for (at, object) in given.objects() {
            if operation.arguments()[at].role == followed && requires_grad(&object)? {
                let inputs = given.objects().map(|(at, _)| at + 1).filter(|count| *count <= operation.inputs);
                return Ok(Way::Autograd(inputs.max().unwrap_or(0)));
            }
        }
    }
    Ok(Way::Direct(match read {
        Some(tensor) => tensor,
        None => Tensor::read(&operation.named[0], &first, None)?,
    }))
}

/// True if nothing intercepts operations on these tensors of PyTorch's, and all of them are plain ones whose values lie in memory, or
/// None. Autograd intercepts them too, unless the caller records the call itself; it leaves a backward pass alone that is not itself
/// differentiated. A false answer says nothing.
#[pyfunction]
#[pyo3(signature = (tensors, is_recorded = false))]
pub fn bypasses_dispatcher(tensors: &Bound<'_, PyTuple>, is_recorded: bool) -> PyResult<bool> {
    let py = tensors.py();
    let Some(torch) = Torch::imported(py)? else { return Ok(false) };
    if torch.dispatch(py, true, is_recorded)? != Dispatch::Direct {
        return Ok(false);
    }
    for tensor in tensors.iter_borrowed().filter(|tensor| !tensor.is_none()) {
        if !torch.is_plain(&tensor) || Tensor::of_dlpack(&tensor, torch)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}
