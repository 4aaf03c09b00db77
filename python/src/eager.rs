//! Whether a call of PyTorch's tensors is nothing but its kernel.

use causeway::operation::Role;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::given::Given;
use crate::tensor::Tensor;
use crate::torch::{Torch, Watched, requires_grad};

/// Who may want to see a call before it runs, besides dispatch modes, tensor subclasses, `torch.func` and tracers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Others,
    Autograd,
    AutogradAndAutocast,
}

/// What has to be done about a call.
pub enum Way {
    /// Somebody wants to see it before it runs, or Python has words for its arguments.
    Watched,
    /// A gradient is to be recorded, for so many of the inputs.
    Recorded(usize),
    /// Nothing but its kernel; the first tensor has been read.
    Kernel(Tensor),
}

/// The way of a call. Autograd wants it if a tensor that is read requires a gradient, or, of an operation without gradients, one that
/// is changed in place.
pub fn way(torch: &Torch, given: &Given<'_, '_>, watch: Watch) -> PyResult<Way> {
    let Some(first) = given.object(0) else { return Ok(Way::Watched) };
    if !given.is_complete() || !given.objects().all(|(_, object)| torch.is_plain(&object)) {
        return Ok(Way::Watched);
    }
    let watched = torch.watched(first.py(), watch != Watch::AutogradAndAutocast, watch == Watch::Others)?;
    if watched == Watched::Yes {
        return Ok(Way::Watched);
    }
    let read = Tensor::of_dlpack(&first, torch)?;
    if read.is_none() {
        // A nested tensor of the older kind is a plain one by its class.
        let is = |name| first.getattr(name)?.is_truthy();
        if !is(intern!(first.py(), "is_cuda"))? && !is(intern!(first.py(), "is_cpu"))?
            || is(intern!(first.py(), "is_nested"))?
        {
            return Ok(Way::Watched);
        }
    }
    let operation = given.operation;
    if watched == Watched::Grad {
        let followed = if operation.changes { Role::InPlace } else { Role::Input };
        for (at, object) in given.objects() {
            if operation.arguments()[at].role == followed && requires_grad(&object)? {
                let inputs = given.objects().map(|(at, _)| at + 1).filter(|count| *count <= operation.inputs);
                return Ok(Way::Recorded(inputs.max().unwrap_or(0)));
            }
        }
    }
    Ok(Way::Kernel(match read {
        Some(tensor) => tensor,
        None => Tensor::read(&operation.named[0], &first, None)?,
    }))
}

/// True if nobody wants to see what is done with these tensors of PyTorch's, and all of them are plain ones whose values lie in memory,
/// or None. Autograd is among those who may, unless the caller records the call itself: it wants nothing of a backward pass that is not
/// itself differentiated. A false answer says nothing.
#[pyfunction]
#[pyo3(signature = (tensors, is_recorded = false))]
pub fn is_unwatched(tensors: &Bound<'_, PyTuple>, is_recorded: bool) -> PyResult<bool> {
    let py = tensors.py();
    let Some(torch) = Torch::imported(py)? else { return Ok(false) };
    if torch.watched(py, true, is_recorded)? != Watched::No {
        return Ok(false);
    }
    for tensor in tensors.iter_borrowed().filter(|tensor| !tensor.is_none()) {
        if !torch.is_plain(&tensor) || Tensor::of_dlpack(&tensor, torch)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}
