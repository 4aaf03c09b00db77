//! Calls of parts of packed tensors, which are launched together: the gated convolution of a projection, and q, k and v of another. What
//! surrounds their kernels, in one crossing from Python for each pass.

use causeway::operation::MOST;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::{MOST_TOGETHER, Place};
use crate::dense::{Dense, dense_like};
use crate::given::Object;
use crate::operation::Operation;
use crate::part::Part;
use crate::results::result_like;
use crate::table::{CallOptions, Tensors};
use crate::tensor::Tensor;
use crate::torch::{Dispatch, Torch, requires_grad};

/// An operation, and its calls that are launched together.
struct Pass {
    operation: Py<Operation>,
    calls: Vec<Call>,
}

/// A call of parts of some tensors.
struct Call {
    options: CallOptions,
    /// For each input of the operation.
    read: Vec<Option<Part>>,
    /// For each of its outputs.
    written: Vec<Option<Written>>,
    /// What PyTorch was asked for last, for a result that is made.
    dense: Dense,
}

/// Where an output goes.
enum Written {
    /// To a part of one of the tensors.
    Part(Part),
    /// To a new tensor like the first one that is read.
    New,
    /// To a new one of x's channels in heads of so many: (batch, heads, head_dim), or with seqlen as the second axis.
    Heads(i64),
}

impl<'py> FromPyObject<'_, 'py> for Written {
    type Error = PyErr;

    /// From a part, `"new"`, or `"heads"` and a number.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.extract().is_ok_and(|name: String| name == "new") {
            return Ok(Written::New);
        }
        match object.extract::<(String, i64)>() {
            Ok((name, head_dim)) if name == "heads" => Ok(Written::Heads(head_dim)),
            _ => object.extract().map(Written::Part),
        }
    }
}

/// A call as Python describes it: its option, and what is read and written.
type Described<'py> = (Bound<'py, PyAny>, Vec<Option<Part>>, Vec<Option<Written>>);

/// Calls of one operation, and those of the operation that computes their gradients.
#[pyclass(frozen, module = "causeway._native")]
pub struct Packed {
    forward: Pass,
    /// Reads the gradients of the results and, after them, what the forward pass read; writes to the gradients of what that read.
    backward: Option<Pass>,
}

impl Pass {
    fn new(operation: Py<Operation>, calls: Vec<Described<'_>>) -> PyResult<Self> {
        let described = &operation.get().described;
        let (inputs, outputs) = (described.inputs, described.arguments().len() - described.inputs);
        let call = |(option, read, written): Described<'_>| {
            if read.len() > inputs || written.len() > outputs {
                return Err(PyValueError::new_err(format!(
                    "{} inputs and {} outputs: expected {inputs} and {outputs} at most",
                    read.len(),
                    written.len()
                )));
            }
            let options = described.entry.options(&option)?;
            Ok(Call { options, read, written, dense: Dense::default() })
        };
        let calls: Vec<_> = calls.into_iter().map(call).collect::<PyResult<_>>()?;
        if calls.is_empty() || calls.len() > MOST_TOGETHER {
            let found = calls.len();
            return Err(PyValueError::new_err(format!("{found} calls: expected 1 to {MOST_TOGETHER}")));
        }
        Ok(Pass { operation, calls })
    }

    /// Reads the parts of every call that are there, and those that are changed; None if a call lacks one that it has to have, or if only
    /// PyTorch has words for one. Parts that are written are those of `outputs`, if there are any.
    fn read(
        &self,
        torch: &Torch,
        objects: &[Object<'_, '_>],
        outputs: Option<&[Option<Bound<'_, PyAny>>]>,
    ) -> PyResult<Option<Vec<(CallOptions, Tensors)>>> {
        let described = &self.operation.get().described;
        let mut found = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let mut tensors = [None; MOST];
            for (at, part) in call.read.iter().enumerate() {
                let object = part.as_ref().and_then(|part| Some((part, objects.get(part.place)?)));
                if let Some((part, object)) = object.filter(|(_, object)| !object.is_none()) {
                    tensors[at] = part.read(object, torch)?;
                    if tensors[at].is_none() {
                        return Ok(None);
                    }
                }
            }
            for (at, written) in call.written.iter().enumerate() {
                let Some(Written::Part(part)) = written else { continue };
                let object = match outputs {
                    Some(outputs) => outputs.get(part.place).and_then(Option::as_ref),
                    None => objects.get(part.place).map(|object| &**object),
                };
                let place = &mut tensors[described.inputs + at];
                if let Some(object) = object {
                    *place = part.read(object, torch)?;
                }
                if object.is_some() && place.is_none() {
                    return Ok(None);
                }
            }
            let is_there = |at: usize| {
                let made = at.checked_sub(described.inputs).and_then(|at| call.written.get(at));
                tensors[at].is_some() || matches!(made, Some(Some(Written::New | Written::Heads(_))))
            };
            let mut arguments = described.arguments().iter().enumerate();
            if !arguments.all(|(at, argument)| argument.optional || is_there(at)) {
                return Ok(None);
            }
            found.push((call.options, tensors));
        }
        // Results belong together: they have one batch, and as many positions.
        let but_channels = |(_, tensors): &(CallOptions, Tensors)| {
            let shape = tensors[0].as_ref().map(Tensor::shape)?;
            Some((shape.first().copied(), shape.get(2).copied()))
        };
        let first = found.first().map(but_channels);
        Ok(found.iter().all(|call| Some(but_channels(call)) == first).then_some(found))
    }

    /// Computes calls that have been read; gives the results that were made. None, with nothing done, if PyTorch has to make one.
    fn compute<'py>(
        &self,
        torch: &Torch,
        objects: &[Object<'_, 'py>],
        mut calls: Vec<(CallOptions, Tensors)>,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let (described, mut results) = (&self.operation.get().described, Vec::new());
        let Some(&first) = objects.first() else { return Ok(None) };
        for (call, (_, tensors)) in self.calls.iter().zip(&mut calls) {
            let Some(x) = tensors[0] else { return Ok(None) };
            for (at, written) in call.written.iter().enumerate() {
                let made = match written {
                    Some(Written::Heads(heads)) => heads_like(torch, &first, &x, *heads)?,
                    Some(Written::New) => dense_like(torch, first.py(), &x, &call.dense)?,
                    Some(Written::Part(_)) | None => continue,
                };
                let Some(made) = made else { return Ok(None) };
                let read = match written {
                    Some(Written::Heads(_)) => Tensor::of_heads(&made, torch)?,
                    _ => Tensor::of_dlpack(&made, torch)?,
                };
                let Some(read) = read else { return Ok(None) };
                read.prefer_large_pages();
                tensors[described.inputs + at] = Some(read);
                results.push(made);
            }
            described.check_outputs(tensors)?;
        }
        for (at, (_, tensors)) in calls.iter().enumerate() {
            for (_, others) in calls[..at].iter().chain(&calls[at + 1..]) {
                described.expect_apart(tensors, others)?;
            }
        }
        let size =
            calls.iter().map(|(_, tensors)| described.entry.size(tensors)).fold(0, i64::saturating_add);
        let Some(tensor) = calls[0].1[0] else { return Ok(None) };
        let place = Place { first: &first, tensor, size };
        // SAFETY: the caller holds the objects during the call, and no output shares memory with another tensor. Threads that write to an
        // input meanwhile would race with PyTorch just so.
        unsafe {
            match (calls.as_slice(), described.entry.compute_together) {
                ([(options, tensors)], _) => (described.entry.compute)(*options, tensors, Some(&place))?,
                (calls, Some(together)) => together(calls, &place)?,
                (_, None) => return Ok(None),
            }
        }
        Ok(Some(results))
    }

    /// Tells autograd of the tensors that were changed in place.
    fn note_changes<'py>(&self, torch: &Torch, objects: &[Object<'_, 'py>]) -> PyResult<()> {
        let written = self.calls[0].written.iter().flatten();
        let changed = written.filter_map(|written| match written {
            Written::Part(part) => objects.get(part.place).map(|object| (*object).to_owned()),
            Written::Heads(_) | Written::New => None,
        });
        let changed: Vec<Bound<'py, PyAny>> = changed.collect();
        match objects.first() {
            Some(object) if !changed.is_empty() => torch.increment_versions(object.py(), changed),
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl Packed {
    /// Of the forward operation and, where there are gradients, of the backward one, with the calls of each.
    #[new]
    #[pyo3(signature = (forward, calls, backward = None))]
    fn new(
        forward: Py<Operation>,
        calls: Vec<Described<'_>>,
        backward: Option<(Py<Operation>, Vec<Described<'_>>)>,
    ) -> PyResult<Self> {
        let backward = backward.map(|(operation, calls)| Pass::new(operation, calls)).transpose()?;
        Ok(Packed { forward: Pass::new(forward, calls)?, backward })
    }

    /// Computes, if nothing intercepts the call. If a gradient has to be recorded, it computes nothing, and gives how many
    /// of the inputs take part, those after them being absent. None for others, and for arguments that only Python has words for.
    fn record<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        is_cast: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = inputs.py();
        let Some(torch) = Torch::imported(py)? else { return Ok(None) };
        let objects: Vec<_> = inputs.iter_borrowed().collect();
        if !objects.iter().all(|object| object.is_none() || torch.is_plain(object)) {
            return Ok(None);
        }
        let dispatch = torch.dispatch(py, is_cast, false)?;
        if dispatch == Dispatch::Python {
            return Ok(None);
        }
        // `forward` reads the tensors then, and refuses what only Python has words for.
        if dispatch == Dispatch::Autograd {
            let mut there = objects.iter().filter(|object| !object.is_none());
            if there.try_fold(false, |found, object| Ok::<_, PyErr>(found || requires_grad(object)?))? {
                let last = objects.iter().rposition(|object| !object.is_none());
                return Ok(Some(last.map_or(0, |at| at + 1).into_pyobject(py)?.into_any()));
            }
        }
        let Some(calls) = self.forward.read(torch, &objects, None)? else { return Ok(None) };
        let Some(results) = self.forward.compute(torch, &objects, calls)? else { return Ok(None) };
        self.forward.note_changes(torch, &objects)?;
        single(results, py).map(Some)
    }

    /// The forward pass of a call that autograd records.
    #[pyo3(signature = (ctx, *inputs))]
    fn forward<'py>(
        &self,
        ctx: &Bound<'py, PyAny>,
        inputs: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = ctx.py();
        let torch = Torch::of_tensors(py)?;
        // As `ctx.save_for_backward` does it.
        ctx.setattr(intern!(py, "to_save"), inputs)?;
        let objects: Vec<_> = inputs.iter_borrowed().collect();
        let calls = self.forward.read(torch, &objects, None)?;
        let results = calls.map(|calls| self.forward.compute(torch, &objects, calls)).transpose()?.flatten();
        single(results.ok_or_else(|| PyRuntimeError::new_err("only Python has words for these tensors"))?, py)
    }

    /// The gradient of each input, which have been saved, from those of the results. None if it may have to go through the dispatcher, or
    /// if a result has none.
    fn backward<'py>(
        &self,
        saved: &Bound<'py, PyTuple>,
        given: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = saved.py();
        let (torch, Some(pass)) = (Torch::of_tensors(py)?, &self.backward) else { return Ok(None) };
        // Gradients of somebody else's class may have no memory.
        if torch.dispatch(py, true, false)? != Dispatch::Direct
            || !given.iter_borrowed().all(|dy| torch.is_plain(&dy))
        {
            return Ok(None);
        }
        let objects: Vec<_> = given.iter_borrowed().chain(saved.iter_borrowed()).collect();
        let written = || pass.calls.iter().flat_map(|call| call.written.iter().flatten());
        let is_wanted =
            |at: usize| written().any(|written| matches!(written, Written::Part(part) if part.place == at));
        let output = |(at, tensor): (usize, Bound<'py, PyAny>)| {
            (is_wanted(at) && !tensor.is_none()).then(|| result_like(tensor)).transpose()
        };
        let outputs = saved.iter().enumerate().map(output).collect::<PyResult<Vec<_>>>()?;
        let Some(calls) = pass.read(torch, &objects, Some(&outputs))? else { return Ok(None) };
        let computed = pass.compute(torch, &objects, calls)?;
        computed.map(|_| PyTuple::new(py, outputs)).transpose()
    }
}

/// The only result, or all of them.
fn single<'py>(mut results: Vec<Bound<'py, PyAny>>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    if results.len() == 1 { Ok(results.remove(0)) } else { Ok(PyTuple::new(py, results)?.into_any()) }
}

/// Memory for the heads of a result, of x's batch and positions.
fn heads_like<'py>(
    torch: &Torch,
    object: &Bound<'py, PyAny>,
    x: &Tensor,
    head_dim: i64,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, [batch, channels, positions @ ..]) = (object.py(), x.shape()) else { return Ok(None) };
    let heads = channels.checked_div(head_dim).filter(|heads| heads * head_dim == *channels);
    let Some(heads) = heads else { return Ok(None) };
    let bytes = x.element_count() as u64 * x.dtype().size() as u64;
    let sizes: Vec<_> =
        [*batch].into_iter().chain(positions.iter().copied()).chain([heads, head_dim]).collect();
    torch.empty_strided((x.dtype(), x.location(), bytes), || {
        let mut strides = vec![1; sizes.len()];
        for at in (1..sizes.len()).rev() {
            strides[at - 1] = strides[at] * sizes[at].max(1);
        }
        Ok(Some([PyTuple::new(py, &sizes)?, PyTuple::new(py, strides)?]))
    })
}
