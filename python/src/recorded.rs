//! A convolution that autograd records: what its forward and its backward pass do around the kernels, in one crossing each.

use causeway::operation::MOST;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::given::{Given, Object};
use crate::operation::Operation;
use crate::table::CallOptions;
use crate::torch::{Dispatch, Torch};

/// The places of tensors among others; one past these stands for None.
type Places = Vec<usize>;

/// The two passes of one kind of call. The package's `Gradients` says what lies where, and knows the same passes in words that compilers
/// can follow.
#[pyclass(frozen, module = "causeway._native")]
pub struct Recorded {
    forward: Py<Operation>,
    backward: Py<Operation>,
    options: CallOptions,
    /// What is kept, among the inputs.
    saved: Places,
    /// What the backward operation reads, among what was kept and the gradients of results after that.
    read: Places,
    /// The gradients of the inputs, among its results.
    found: Places,
    /// Inputs that are added to a result, whose gradient is that result's.
    added: Vec<(usize, usize)>,
}

#[pymethods]
impl Recorded {
    #[new]
    fn new(
        operations: (Py<Operation>, Py<Operation>),
        option: &Bound<'_, PyAny>,
        places: (Places, Places, Places),
        added: Vec<(usize, usize)>,
    ) -> PyResult<Self> {
        let ((forward, backward), (saved, read, found)) = (operations, places);
        let options = forward.get().entry().options(option)?;
        Ok(Recorded { forward, backward, options, saved, read, found, added })
    }

    /// Computes y, and keeps what the backward pass reads.
    #[pyo3(signature = (ctx, *inputs))]
    fn forward<'py>(
        &self,
        ctx: &Bound<'py, PyAny>,
        inputs: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = ctx.py();
        // As `ctx.save_for_backward` does it.
        ctx.setattr(intern!(py, "to_save"), picked(&self.saved, inputs.iter_borrowed(), py)?)?;
        if !self.added.is_empty() {
            let is_there =
                |(at, _): &&(usize, usize)| inputs.get_item(*at).is_ok_and(|input| !input.is_none());
            ctx.setattr(intern!(py, "added"), self.added.iter().filter(is_there).collect::<Vec<_>>())?;
        }
        let given = Given::new(&self.forward.get().described, inputs, None)?;
        match given.compute_if_plain(Torch::of_tensors(py)?, self.options)? {
            Some(y) => Ok(y),
            None => given.compute(self.options),
        }
    }

    /// The gradient of each input, from what was saved and those of the results. None if it may have to go through the dispatcher, or if y
    /// has none.
    fn backward<'py>(
        &self,
        ctx: &Bound<'py, PyAny>,
        saved: &Bound<'py, PyTuple>,
        given: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = ctx.py();
        let torch = Torch::of_tensors(py)?;
        // Gradients of somebody else's class may have no memory.
        let is_plain = |dy: Object<'_, '_>| dy.is_none() || torch.is_plain(&dy);
        if torch.dispatch(py, true, false)? != Dispatch::Direct || !given.iter_borrowed().all(is_plain) {
            return Ok(None);
        }
        let inputs = picked(&self.read, saved.iter_borrowed().chain(given.iter_borrowed()), py)?;
        // A y without a gradient has no dy.
        let results = Given::new(&self.backward.get().described, &inputs, None)?
            .compute_if_plain(torch, self.options)?;
        let Some(results) = results else { return Ok(None) };
        let mut found = picked(&self.found, results.cast::<PyTuple>()?.iter_borrowed(), py)?;
        if !self.added.is_empty() {
            let mut gradients: Vec<_> = found.iter().collect();
            for (at, result) in ctx.getattr(intern!(py, "added"))?.extract::<Vec<(usize, usize)>>()? {
                gradients[at] = given.get_item(result)?;
            }
            found = PyTuple::new(py, gradients)?;
        }
        Ok(Some(found))
    }
}

/// What lies at some places, None past the last one.
fn picked<'a, 'py>(
    places: &[usize],
    objects: impl Iterator<Item = Object<'a, 'py>>,
    py: Python<'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut known = [None; MOST];
    known.iter_mut().zip(objects).for_each(|(known, object)| *known = Some(object));
    PyTuple::new(py, places.iter().map(|at| known.get(*at).copied().flatten()))
}
