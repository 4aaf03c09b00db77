//! Memory for results, from the library that the tensors of a call are of.

use causeway::operation::size_source;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::dense::{Dense, dense_like};
use crate::given::{Given, Object};
use crate::kept::{KEPT, Kept};
use crate::table::Tensors;
use crate::tensor::{Named, Tensor};
use crate::torch::Torch;

/// The library of a call's tensors.
pub enum Library<'a> {
    Torch(&'a Torch),
    NumPy(&'a NumPy),
}

/// NumPy's functions that make arrays.
pub struct NumPy {
    empty: Py<PyAny>,
    empty_like: Py<PyAny>,
    ndarray: Py<PyAny>,
}

impl NumPy {
    /// An array that was just allocated, and not touched yet; or one like it in memory that nobody holds any longer.
    fn or_kept<'py>(&self, made: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = made.py();
        let bytes: u64 = made.getattr(intern!(py, "nbytes"))?.extract()?;
        if !Kept::takes(bytes) {
            return Ok(made);
        }
        let of = |name| made.getattr(name);
        let (shape, dtype, strides) =
            (of(intern!(py, "shape"))?, of(intern!(py, "dtype"))?, of(intern!(py, "strides"))?);
        drop(made);
        let memory = match KEPT.find(py, None, bytes) {
            Some(memory) => memory,
            None => {
                let memory = self.empty.bind(py).call1((bytes, intern!(py, "u1")))?;
                KEPT.keep_array(&memory, bytes);
                memory
            }
        };
        self.ndarray.bind(py).call1((shape, dtype, memory, 0, strides))
    }
}

static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();

/// Where the sizes of inputs are found.
pub enum Sizes<'a> {
    /// In what was read.
    Read(&'a Tensors),
    /// By asking the objects, whose sizes may be symbols.
    Asked,
}

impl<'a> Library<'a> {
    /// NumPy.
    pub fn numpy(py: Python<'a>) -> PyResult<Self> {
        let numpy = NUMPY.get_or_try_init(py, || {
            let numpy = py.import("numpy")?;
            let of = |name| Ok::<_, PyErr>(numpy.getattr(name)?.unbind());
            Ok::<_, PyErr>(NumPy {
                empty: of("empty")?,
                empty_like: of("empty_like")?,
                ndarray: of("ndarray")?,
            })
        })?;
        Ok(Library::NumPy(numpy))
    }

    /// PyTorch.
    pub fn torch(py: Python<'a>) -> PyResult<Self> {
        Torch::of_tensors(py).map(Library::Torch)
    }

    /// Memory for the result at a place of the table: like an input, in the order of its strides, or of the sizes that inputs have.
    pub fn make<'py>(
        &self,
        given: &Given<'_, 'py>,
        at: usize,
        sizes: &Sizes<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(like) = given.operation.like[at].and_then(|input| given.object(input)) {
            return match self {
                Library::Torch(torch) => {
                    let read = sizes.read(given.operation.like[at]);
                    let dense = |read| dense_like(torch, like.py(), read, &given.operation.dense[at]);
                    read.map_or(Ok(None), dense)?.map_or_else(|| torch.empty_like(&like), Ok)
                }
                // Of no subclass.
                Library::NumPy(numpy) => {
                    let made = numpy.empty_like.bind(like.py()).call1((like, None::<()>, "K", false))?;
                    numpy.or_kept(made)
                }
            };
        }
        let operation = given.operation;
        let (arguments, argument) = (operation.arguments(), &operation.arguments()[at]);
        let source = argument.dtype_source(arguments).name;
        let like = arguments.iter().position(|known| known.name == source).and_then(|at| given.object(at));
        let Some(like) = like else { return Err(operation.named[at].is_no_tensor("bool", None)) };
        let mut shape = Vec::with_capacity(argument.shape.axes.len());
        for axis in argument.shape.axes {
            let Some(source) = size_source(arguments, axis, |at| given.object(at).is_some()) else {
                return Err(operation.named[at].is_no_tensor("bool", None));
            };
            let place = (source.argument, source.axis);
            shape.push(sizes.size(given, place, source.plus)?);
        }
        let shape = PyTuple::new(like.py(), shape)?;
        match self {
            Library::Torch(_) => like.call_method1(intern!(like.py(), "new_empty"), (shape,)),
            Library::NumPy(numpy) => {
                numpy.empty.bind(like.py()).call1((shape, like.getattr(intern!(like.py(), "dtype"))?))
            }
        }
    }

    /// Tells autograd of tensors that were given, and have been written.
    pub fn note_changes<'py>(
        &self,
        py: Python<'py>,
        changed: impl Iterator<Item = Object<'a, 'py>>,
    ) -> PyResult<()> {
        let Library::Torch(torch) = self else { return Ok(()) };
        let changed: Vec<_> = changed.map(|object| object.to_owned()).collect();
        if changed.is_empty() { Ok(()) } else { torch.increment_versions(py, changed) }
    }

    /// Reads a tensor that was just made.
    pub fn read(&self, named: &Named, made: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        match self {
            Library::Torch(torch) => Tensor::read_new(named, made, torch),
            Library::NumPy(_) => Tensor::read(named, made, None),
        }
    }
}

impl Sizes<'_> {
    /// What was read of an input.
    fn read(&self, input: Option<usize>) -> Option<&Tensor> {
        let Sizes::Read(tensors) = self else { return None };
        tensors[input?].as_ref()
    }

    /// The size of an input's axis, and what is added to it. What the operation will refuse is no reason to fail here.
    fn size<'py>(
        &self,
        given: &Given<'_, 'py>,
        (at, axis): (usize, usize),
        plus: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(object) = given.object(at) else { unreachable!("the source of a size is given") };
        if let Sizes::Read(tensors) = self {
            let size = tensors[at].and_then(|tensor| tensor.shape().get(axis).copied()).unwrap_or(0);
            return Ok(size.saturating_add(plus).max(0).into_pyobject(object.py())?.into_any());
        }
        let shape = object.getattr(intern!(object.py(), "shape"))?;
        let argument = &given.operation.arguments()[at];
        if shape.len()? != argument.shape.axes.len() {
            let (name, expected) = (given.operation.named[at].name, argument.shape.text);
            let found = PyTuple::new(object.py(), shape.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
            return Err(PyValueError::new_err(format!("{name} has shape {found}: expected {expected}")));
        }
        let size = shape.get_item(axis)?;
        if plus == 0 { Ok(size) } else { size.add(plus) }
    }
}

/// Gives the memory that is kept for the next large results on the host back to the system.
#[pyfunction]
pub fn empty_cache() {
    KEPT.clear();
}

/// Memory for a result like a tensor of PyTorch's, as operations make it.
#[pyfunction]
pub fn result_like<'py>(tensor: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::of_tensors(tensor.py())?;
    let named = Named::own("tensor");
    let read = Tensor::read(&named, &tensor, None)?;
    let dense = dense_like(torch, tensor.py(), &read, &Dense::default())?;
    let made = dense.map_or_else(|| torch.empty_like(&tensor), Ok)?;
    Tensor::read_new(&named, &made, torch)?.prefer_large_pages();
    Ok(made)
}

/// A tensor whose memory was just allocated, and may now come in large pages. Results that operations make need no such word.
#[pyfunction]
pub fn prefer_large_pages<'py>(tensor: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    let named = Named::own("tensor");
    // What kernels cannot read is refused where it is used.
    if let Ok(read) = Tensor::read(&named, &tensor, None) {
        read.prefer_large_pages();
    }
    tensor
}
