//! Dense results of PyTorch's, made by its allocators with no word to its dispatcher.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::tensor::Tensor;
use crate::torch::Torch;

/// Sizes and dense strides as PyTorch's allocators take them, of the tensor that a result was made like last: a model asks for the same
/// ones again and again, and tuples of numbers take as long as an allocation.
#[derive(Default)]
pub struct Dense(Mutex<Option<(Tensor, [Py<PyTuple>; 2])>>);

impl Dense {
    /// Of a tensor; None where its strides have no order.
    fn of<'py>(&self, py: Python<'py>, like: &Tensor) -> PyResult<Option<[Bound<'py, PyTuple>; 2]>> {
        // Nothing runs under the lock that could ask for it again, a collection of garbage for one.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, made)) = &*last
            && known.has_layout_of(like)
        {
            return Ok(Some(made.each_ref().map(|made| made.bind(py).clone())));
        }
        let forgotten = last.take();
        drop((last, forgotten));
        let Some(strides) = like.dense_strides() else { return Ok(None) };
        let strides = &strides[..like.shape().len()];
        let made = [PyTuple::new(py, like.shape())?, PyTuple::new(py, strides)?];
        let kept = made.each_ref().map(|made| made.clone().unbind());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((*like, kept));
        Ok(Some(made))
    }
}

/// A tensor like one that has been read; None where that is left to `empty_like`.
pub fn dense_like<'py>(
    torch: &Torch,
    py: Python<'py>,
    read: &Tensor,
    dense: &Dense,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let bytes = read.element_count() as u64 * read.dtype().size() as u64;
    torch.empty_strided((read.dtype(), read.location(), bytes), || dense.of(py, read))
}
