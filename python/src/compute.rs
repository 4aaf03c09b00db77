//! From what a call was given to its results.

use causeway::DType;
use causeway::operation::MOST;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::Place;
use crate::given::{Given, Object};
use crate::results::{Library, Sizes};
use crate::table::{CallOptions, Tensors};
use crate::tensor::{First, Named, Tensor};
use crate::torch::Torch;

/// Results that were made, by the place of their argument.
type Made<'py> = [Option<Bound<'py, PyAny>>; MOST];

impl<'a, 'py> Given<'a, 'py> {
    /// Reads every tensor, makes the results that have no place yet, and computes.
    ///
    /// # Errors
    /// As from PyTorch.
    pub fn compute(&self, options: CallOptions) -> PyResult<Bound<'py, PyAny>> {
        let mut tensors = [None; MOST];
        let (library, object) = self.read(&mut tensors)?;
        let Some(tensor) = tensors[0] else { unreachable!("the first tensor has been read") };
        self.compute_read(&library, (&object, tensor), &mut tensors, options)
    }

    /// The same of several calls of one operation, which are launched together.
    ///
    /// # Errors
    /// As from PyTorch.
    pub fn compute_together(calls: &[Self], all_options: &[CallOptions]) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (mut all_read, mut all_made, mut size, mut first) = (Vec::new(), Vec::new(), 0i64, None);
        for (given, &options) in calls.iter().zip(all_options) {
            let mut tensors = [None; MOST];
            let (library, object) = given.read(&mut tensors)?;
            let made = given.prepare(&library, &mut tensors)?;
            size = size.saturating_add(given.operation.entry.size(&tensors));
            for (_, others) in &all_read {
                given.operation.expect_apart(&tensors, others)?;
                given.operation.expect_apart(others, &tensors)?;
            }
            first.get_or_insert((object, tensors[0]));
            all_read.push((options, tensors));
            all_made.push((library, made));
        }
        let Some((object, Some(tensor))) = first else { return Ok(Vec::new()) };
        let Some(compute) = calls[0].operation.entry.compute_together else {
            return Err(PyTypeError::new_err(format!(
                "{} has no calls of several",
                calls[0].operation.entry.name
            )));
        };
        // SAFETY: as in `compute_read`.
        unsafe { compute(&all_read, &Place { first: &object, tensor, size }) }?;
        let finish =
            |(given, (library, made)): (&Self, (Library<'_>, Made<'py>))| given.finish(&library, made);
        calls.iter().zip(all_made).map(finish).collect()
    }

    /// Reads what every tensor that is given says of itself; gives the first one's object. The array is filled where it lies: handing
    /// it on takes longer than a call's checks.
    fn read(&self, tensors: &mut Tensors) -> PyResult<(Library<'py>, Object<'a, 'py>)> {
        let named = &self.operation.named[0];
        let Some(object) = self.object(0) else { return Err(named.is_no_tensor("NoneType", None)) };
        let tensor = Tensor::read(named, &object, None)?;
        let first = First { named, is_torch: tensor.is_torch() };
        tensors[0] = Some(tensor);
        for (at, argument) in self.operation.arguments().iter().enumerate().skip(1) {
            let named = &self.operation.named[at];
            match self.object(at) {
                Some(object) => tensors[at] = Some(Tensor::read(named, &object, Some(&first))?),
                None if !argument.optional && !self.is_wanted(at) => {
                    return Err(named.is_no_tensor("NoneType", Some(&first)));
                }
                None => {}
            }
        }
        let library = if first.is_torch { Library::torch(self.py)? } else { Library::numpy(self.py)? };
        Ok((library, object))
    }

    /// As [`Given::compute`], of a complete call of PyTorch's plain tensors, the first of which has been read.
    ///
    /// # Errors
    /// As from PyTorch.
    pub fn compute_plain(
        &self,
        torch: &Torch,
        first: Tensor,
        options: CallOptions,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(object) = self.object(0) else { unreachable!("a complete call has a first tensor") };
        let mut tensors = [None; MOST];
        tensors[0] = Some(first);
        for (at, object) in self.objects().skip(1) {
            tensors[at] = match Tensor::of_dlpack(&object, torch)? {
                None => Some(Tensor::read(&self.operation.named[at], &object, None)?),
                tensor => tensor,
            };
        }
        self.compute_read(&Library::Torch(torch), (&object, first), &mut tensors, options)
    }

    /// The same if all tensors are plain ones of PyTorch's, with memory; None if one is not, or if one that has to be there is missing.
    ///
    /// # Errors
    /// As from PyTorch.
    pub fn compute_if_plain(
        &self,
        torch: &Torch,
        options: CallOptions,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut tensors = [None; MOST];
        for (at, object) in self.objects() {
            tensors[at] = if torch.is_plain(&object) { Tensor::of_dlpack(&object, torch)? } else { None };
            if tensors[at].is_none() {
                return Ok(None);
            }
        }
        let (Some(object), Some(first), true) = (self.object(0), tensors[0], self.is_complete()) else {
            return Ok(None);
        };
        self.compute_read(&Library::Torch(torch), (&object, first), &mut tensors, options).map(Some)
    }

    fn compute_read(
        &self,
        library: &Library<'_>,
        (first, tensor): (&Bound<'py, PyAny>, Tensor),
        tensors: &mut Tensors,
        options: CallOptions,
    ) -> PyResult<Bound<'py, PyAny>> {
        let made = self.prepare(library, tensors)?;
        let place = Place { first, tensor, size: self.operation.entry.size(tensors) };
        // SAFETY: the caller holds the objects during the call, and no output shares memory with another tensor. Threads
        // that write to an input meanwhile would race with NumPy and PyTorch just so.
        unsafe { (self.operation.entry.compute)(options, tensors, Some(&place)) }?;
        self.finish(library, made)
    }

    /// Checks outputs, and makes the results that have no place yet.
    fn prepare(&self, library: &Library<'_>, tensors: &mut Tensors) -> PyResult<Made<'py>> {
        self.operation.check_outputs(tensors)?;
        let made = self.make(library, &Sizes::Read(tensors))?;
        for (at, result) in made.iter().enumerate() {
            if let Some(result) = result {
                let result = library.read(&self.operation.named[at], result)?;
                result.prefer_large_pages();
                tensors[at] = Some(result);
            }
        }
        Ok(made)
    }

    /// The results of a call that has been computed.
    fn finish(&self, library: &Library<'_>, made: Made<'py>) -> PyResult<Bound<'py, PyAny>> {
        library.note_changes(self.py, (self.operation.inputs..MOST).filter_map(|at| self.object(at)))?;
        self.results(made)
    }

    /// The results of a call of PyTorch's tensors that have no memory, and so is not computed. Shapes and dtypes are checked as in
    /// other calls, unless a size is a symbol of a compiler's.
    ///
    /// # Errors
    /// As from PyTorch.
    pub fn empty(&self, options: CallOptions) -> PyResult<Bound<'py, PyAny>> {
        let library = Library::torch(self.py)?;
        let made = self.make(&library, &Sizes::Asked)?;
        if let Library::Torch(torch) = library
            && self.is_complete()
            && let Some(tensors) = self.without_memory(torch, &made)?
        {
            // SAFETY: it is checked only, and has no indices on the host but seq_idx, whose values no check reads.
            unsafe { (self.operation.entry.compute)(options, &tensors, None) }?;
        }
        self.results(made)
    }

    /// What can be said of tensors without memory: their shapes and dtypes. None if that is too little to check a call.
    fn without_memory(&self, torch: &Torch, made: &Made<'py>) -> PyResult<Option<Tensors>> {
        let mut tensors = [None; MOST];
        for (at, tensor) in tensors.iter_mut().enumerate() {
            let Some(object) = self.object(at).map(|object| object.to_owned()).or_else(|| made[at].clone())
            else {
                continue;
            };
            *tensor = Tensor::without_memory(&self.operation.named[at], &object, torch)?;
            if tensor.is_none() {
                return Ok(None);
            }
        }
        // Values of indices on the host would be read, but for those of seq_idx; and a GPU has no kernels for f64.
        let there = || tensors.iter().flatten();
        let has_values = |(tensor, named): (&Option<Tensor>, &Named)| {
            tensor.is_some_and(|tensor| matches!(tensor.dtype(), DType::I32 | DType::I64))
                && named.name != "seq_idx"
        };
        if !tensors.iter().zip(&self.operation.named).any(has_values) {
            tensors.iter_mut().flatten().for_each(|tensor| *tensor = tensor.on_host());
        } else if there().any(|tensor| tensor.dtype() == DType::F64) {
            return Ok(None);
        }
        Ok(Some(tensors))
    }

    fn make(&self, library: &Library<'_>, sizes: &Sizes<'_>) -> PyResult<Made<'py>> {
        let mut made = [const { None }; MOST];
        for &at in &self.operation.results {
            if self.is_wanted(at) {
                made[at] = Some(library.make(self, at, sizes)?);
            }
        }
        Ok(made)
    }

    /// All results, None where there is none; the first alone where there is no other.
    fn results(&self, mut made: Made<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut result =
            |at: usize| made[at].take().or_else(|| self.object(at).map(|object| object.to_owned()));
        let is_there = |&at: &usize| self.is_wanted(at) || self.object(at).is_some();
        match self.operation.results.as_slice() {
            &[only, ref others @ ..] if !others.iter().any(is_there) => {
                Ok(result(only).into_pyobject(self.py)?)
            }
            all => Ok(PyTuple::new(self.py, all.iter().map(|at| result(*at)))?.into_any()),
        }
    }
}
