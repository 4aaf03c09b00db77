//! Parts of tensors as arguments. A view of PyTorch's takes the host as long as the checks of a whole call, and a call of packed tensors
//! would need three for each.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::tensor::Tensor;
use crate::torch::Torch;

/// One of several tensors of PyTorch's, and which view of it is meant.
pub struct Part {
    /// The number of the tensor.
    pub place: usize,
    view: View,
}

enum View {
    /// All of it.
    Whole,
    /// A part of an axis.
    Range { axis: usize, index: usize, sizes: Sizes },
    /// Of (batch, heads, head_dim), or (batch, seqlen, heads, head_dim), the channels of all heads as the second axis.
    Heads,
}

/// The sizes of the parts of an axis, one after the other.
#[derive(FromPyObject)]
enum Sizes {
    /// So many of equal size.
    Equal(i64),
    Each(Vec<i64>),
}

impl Sizes {
    /// Where a part starts, and its size, of all places; None if the parts are not as many places.
    fn range(&self, index: usize, places: i64) -> Option<(i64, i64)> {
        match self {
            Sizes::Equal(count) => {
                let size = places.checked_div(*count)?;
                (size * count == places).then_some((index as i64 * size, size))
            }
            Sizes::Each(sizes) => {
                let sum = |sizes: &[i64]| sizes.iter().try_fold(0i64, |sum, size| sum.checked_add(*size));
                (sum(sizes)? == places).then_some((sum(sizes.get(..index)?)?, *sizes.get(index)?))
            }
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Part {
    type Error = PyErr;

    /// From a number, a number and `"heads"`, or a number, an axis, an index and sizes.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(place) = object.extract() {
            return Ok(Part { place, view: View::Whole });
        }
        if let Ok((place, axis, index, sizes)) = object.extract() {
            return Ok(Part { place, view: View::Range { axis, index, sizes } });
        }
        match object.extract::<(usize, String)>() {
            Ok((place, view)) if view == "heads" => Ok(Part { place, view: View::Heads }),
            _ => Err(PyValueError::new_err(format!("{} is no part of a tensor", object.repr()?))),
        }
    }
}

impl Part {
    /// Reads it from its tensor; None for one that only PyTorch has words for, or that the tensor has not got.
    pub fn read(&self, tensor: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Option<Tensor>> {
        let (axis, index, sizes) = match &self.view {
            View::Whole => return Tensor::of_dlpack(tensor, torch),
            View::Heads => return Tensor::of_heads(tensor, torch),
            View::Range { axis, index, sizes } => (*axis, *index, sizes),
        };
        let Some(whole) = Tensor::of_dlpack(tensor, torch)? else { return Ok(None) };
        let range = whole.shape().get(axis).and_then(|places| sizes.range(index, *places));
        Ok(range.and_then(|(start, size)| whole.part(axis, start, size)))
    }
}
