//! Views of the tensors that Python hands over: NumPy's arrays and PyTorch's tensors, by pointer.
//!
//! Neither library is imported here; a tensor of PyTorch's can only be there if PyTorch is. Attributes are read
//! through Python, so that one binary serves every version of both.

use std::fmt::Display;

use causeway::backend::gpu::plan::Vendor;
use causeway::operation::DTypes;
use causeway::tensor::{Dims, MAX_RANK, Meta, TooManyAxes};
use causeway::{DType, Location, TensorMut, TensorRef, memory};
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyTuple, PyType};

use crate::dlpack::Description;
use crate::error::{exception, python_name};
use crate::overlap::{self, Layout};
use crate::torch::{Torch, imported};

/// An argument, for errors.
pub struct Named {
    /// What they call it.
    pub name: &'static str,
    /// The dtypes that there are kernels for.
    pub dtypes: DTypes,
}

impl Named {
    /// An argument of any dtype that there are kernels for.
    pub const fn own(name: &'static str) -> Self {
        Named { name, dtypes: DTypes::Own }
    }

    /// The error for something else than a tensor, of a call whose first tensor was read before, if it is not this one.
    pub fn is_no_tensor(&self, kind: impl Display, first: Option<&First<'_>>) -> PyErr {
        let expected = match first {
            Some(First { named, is_torch: false }) => format!("a numpy.ndarray, as {} is", named.name),
            _ => "a torch.Tensor or a numpy.ndarray".to_string(),
        };
        let kind = kind.to_string();
        // As the package has it: a list, an int, an ndarray.
        let article = match kind == "ndarray" || kind.to_lowercase().starts_with(['a', 'e', 'i', 'o']) {
            true => "an",
            false => "a",
        };
        PyTypeError::new_err(format!("{} is {article} {kind}: expected {expected}", self.name))
    }

    /// What there are kernels for, where the library has no name for a dtype.
    fn expected_dtypes(&self) -> String {
        let DTypes::Among(allowed, _) = self.dtypes else {
            return "float32, float16, bfloat16, or float64 on a CPU".to_string();
        };
        allowed.iter().map(|dtype| python_name(*dtype)).collect::<Vec<_>>().join(" or ")
    }
}

/// The first tensor of a call, whose library all others are of.
pub struct First<'a> {
    /// What errors call it.
    pub named: &'a Named,
    /// Whether that library is PyTorch.
    pub is_torch: bool,
}

/// What was read from a Python tensor. The caller keeps the object, and so its memory, alive.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    pointer: *mut u8,
    meta: Meta,
    is_torch: bool,
    read_only: bool,
}

// SAFETY: addresses and sizes; the memory is plain numbers, and the caller's to share.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();

impl From<Description> for Tensor {
    fn from(Description { pointer, meta }: Description) -> Self {
        Tensor { pointer, meta, is_torch: true, read_only: false }
    }
}

impl Tensor {
    /// Reads a NumPy array or a PyTorch tensor, of the library of the first one.
    ///
    /// # Errors
    /// `TypeError` for another object or dtype, `ValueError` for an array that is not aligned or not in the
    /// machine's byte order, `NotImplementedError` for a device without kernels.
    pub fn read(named: &Named, object: &Bound<'_, PyAny>, first: Option<&First<'_>>) -> PyResult<Self> {
        let Some(tensor) = Self::read_either(named, object)? else {
            let error = named.is_no_tensor(object.get_type().name()?, first);
            let is_array = object.get_type().hasattr(intern!(object.py(), "__array__"))?;
            return Err(match first {
                Some(First { is_torch: false, .. }) if is_array => {
                    let words = error.value(object.py());
                    PyTypeError::new_err(format!("{words}; pass numpy.asarray({})", named.name))
                }
                _ => error,
            });
        };
        let Some(First { named: other, is_torch }) = first.filter(|first| first.is_torch != tensor.is_torch)
        else {
            return Ok(tensor);
        };
        let (name, other) = (named.name, other.name);
        let kind = |is_torch| if is_torch { "a torch.Tensor" } else { "a numpy.ndarray" };
        let (this, that) = (kind(tensor.is_torch), kind(*is_torch));
        let (array, torch) = if tensor.is_torch { (other, name) } else { (name, other) };
        Err(PyTypeError::new_err(format!(
            "{name} is {this} and {other} {that}: all tensors of a call come from one library; pass \
             torch.from_numpy({array}), or {torch}.numpy()"
        )))
    }

    fn read_either(named: &Named, object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        if let Some(torch) = Torch::imported(py)? {
            if torch.is_plain(object)
                && let Some(tensor) = Self::of_dlpack(object, torch)?
            {
                return Ok(Some(tensor));
            }
            if object.is_instance(torch.tensor_type(py))? {
                return Self::of_torch(named, object, torch).map(Some);
            }
        }
        match ndarray(py)? {
            Some(ndarray) if object.is_instance(ndarray)? => Self::of_numpy(named, object, ndarray).map(Some),
            _ => Ok(None),
        }
    }

    /// The short way; None for a tensor that only [`Tensor::of_torch`] has words for.
    pub fn of_dlpack(object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Option<Self>> {
        torch.describe(object).map_or(Ok(None), |found| Self::described(found, object))
    }

    /// The same of (batch, heads, head_dim), or (batch, seqlen, heads, head_dim), as (batch, channels) or (batch, channels, seqlen).
    pub fn of_heads(object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Option<Self>> {
        torch.describe_heads(object).map_or(Ok(None), |found| Self::described(found, object))
    }

    fn described(found: Description, object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if found.has_no_memory() {
            return Ok(None);
        }
        if found.may_be_negated() && object.call_method0(intern!(object.py(), "is_neg"))?.is_truthy()? {
            return Ok(None);
        }
        Ok(Some(found.into()).filter(Tensor::is_aligned))
    }

    /// As [`Tensor::read`], for a tensor of PyTorch's that was just made, and so holds no negated values.
    pub fn read_new(named: &Named, object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Self> {
        match torch.describe(object) {
            Some(found) => Ok(found.into()),
            None => Self::of_torch(named, object, torch),
        }
    }

    /// Shape and dtype of a tensor of PyTorch's that has no memory, as if it were dense on a GPU; None if a size is no number.
    ///
    /// # Errors
    /// `TypeError` for a dtype, `ValueError` for too many axes.
    pub fn without_memory(named: &Named, object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Option<Self>> {
        let dtype = Self::dtype_of_torch(named, object, torch)?;
        let shape = object.getattr(intern!(object.py(), "shape"))?;
        if !shape.try_iter()?.all(|size| size.is_ok_and(|size| size.is_exact_instance_of::<PyInt>())) {
            return Ok(None);
        }
        let shape = sizes(named.name, &shape)?;
        Self::nowhere(dtype, shape, Location::Cuda(0)).map(Some)
    }

    /// A dense one of PyTorch's with the same shape, dtype and place, and no memory: its address must not be followed.
    ///
    /// # Errors
    /// None that a tensor can have which exists.
    pub fn unwritten(&self) -> PyResult<Self> {
        Self::nowhere(self.dtype(), self.meta.shape, self.location())
    }

    fn nowhere(dtype: DType, shape: Dims, location: Location) -> PyResult<Self> {
        let meta = meta(dtype, shape, shape.contiguous_strides(), location)?;
        // No address of anything, and aligned to every dtype.
        let pointer = std::ptr::without_provenance_mut(64);
        Ok(Tensor { pointer, meta, is_torch: true, read_only: false })
    }

    fn dtype_of_torch(named: &Named, object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<DType> {
        let found = object.getattr(intern!(object.py(), "dtype"))?;
        torch.dtype(&found).ok_or_else(|| {
            let (argument, expected) = (named.name, named.expected_dtypes());
            // As it is called in the other messages.
            let found = found.to_string();
            let found = found.strip_prefix("torch.").unwrap_or(&found);
            PyTypeError::new_err(format!("{argument} has dtype {found}: expected {expected}"))
        })
    }

    fn of_torch(named: &Named, object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Self> {
        let (py, argument) = (object.py(), named.name);
        let location = if object.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
            let ordinal = object.call_method0(intern!(py, "get_device"))?.extract()?;
            match torch.vendor() {
                Vendor::Nvidia => Location::Cuda(ordinal),
                Vendor::Amd => Location::Hip(ordinal),
            }
        } else if object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            Location::Host
        } else {
            let device = object.getattr(intern!(py, "device"))?;
            return Err(PyNotImplementedError::new_err(format!(
                "{argument} is on {device}: kernels run on cuda (NVIDIA or AMD) and cpu tensors"
            )));
        };
        let dtype = Self::dtype_of_torch(named, object, torch)?;
        let shape = sizes(argument, &object.getattr(intern!(py, "shape"))?)?;
        let unreadable = |error: PyErr| match object.getattr(intern!(py, "layout")) {
            // Sparse, or packed for a library of the processor's.
            Ok(layout) if layout.to_string() != "torch.strided" => PyRuntimeError::new_err(format!(
                "{argument} has layout {layout}: expected torch.strided; pass {argument}.to_dense()"
            )),
            _ => PyRuntimeError::new_err(format!("{argument} cannot be read: {}", error.value(py))),
        };
        // A tensor without strides, or without memory, says so.
        let strides = object.call_method0(intern!(py, "stride")).map_err(unreadable)?;
        let strides = sizes(argument, &strides)?;
        if object.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Err(PyValueError::new_err(format!(
                "{argument} holds its values negated, as a view of a conjugate: pass {argument}.resolve_neg()"
            )));
        }
        let pointer: usize = object.call_method0(intern!(py, "data_ptr")).map_err(unreadable)?.extract()?;
        let meta = meta(dtype, shape, strides, location)?;
        // Fake tensors, tensors around others, and zeros that PyTorch has not written down.
        if pointer == 0 && !meta.is_empty() {
            return Err(PyRuntimeError::new_err(format!(
                "{argument} cannot be read: it has no memory of its own; pass {argument}.clone() of a tensor that holds values"
            )));
        }
        let tensor = Tensor { pointer: pointer as *mut u8, meta, is_torch: true, read_only: false };
        // As one of bytes from anywhere in a buffer.
        if !tensor.is_aligned() {
            return Err(misaligned(argument, "clone"));
        }
        Ok(tensor)
    }

    fn is_aligned(&self) -> bool {
        self.meta.is_empty() || self.pointer.addr().is_multiple_of(self.dtype().size())
    }

    fn of_numpy(named: &Named, object: &Bound<'_, PyAny>, ndarray: &Bound<'_, PyType>) -> PyResult<Self> {
        let (py, argument) = (object.py(), named.name);
        if !object.get_type().is(ndarray) && is_masked(object)? {
            return Err(PyTypeError::new_err(format!(
                "{argument} is a numpy.ma.MaskedArray, whose mask would be ignored: pass {argument}.filled(0), or \
                 {argument}.data to compute with what lies under the mask"
            )));
        }
        let interface = object.getattr(intern!(py, "__array_interface__"))?;
        let (pointer, read_only): (usize, bool) = interface.get_item(intern!(py, "data"))?.extract()?;
        let found = object.getattr(intern!(py, "dtype"))?;
        let name: String = found.getattr(intern!(py, "name"))?.extract()?;
        let dtype = match name.as_str() {
            "float32" => DType::F32,
            "float16" => DType::F16,
            // Of the package ml_dtypes, which NumPy does not know about.
            "bfloat16" => DType::BF16,
            "float64" => DType::F64,
            "int32" => DType::I32,
            "int64" => DType::I64,
            _ => {
                let expected = named.expected_dtypes().replace("bfloat16", "bfloat16 of ml_dtypes");
                return Err(PyTypeError::new_err(format!(
                    "{argument} has dtype {name}: expected {expected}"
                )));
            }
        };
        if !found.getattr(intern!(py, "isnative"))?.is_truthy()? {
            return Err(PyValueError::new_err(format!(
                "{argument} is not in this machine's byte order: pass {argument}.astype(numpy.{name})"
            )));
        }
        let shape = sizes(argument, &object.getattr(intern!(py, "shape"))?)?;
        let steps = sizes(argument, &object.getattr(intern!(py, "strides"))?)?;
        let size = dtype.size() as i64;
        let aligned = (pointer as u64).is_multiple_of(size as u64);
        // NumPy gives axes that are never stepped along any stride.
        let is_whole = |(count, step): (&i64, &i64)| *count <= 1 || step % size == 0;
        if !aligned || !shape.iter().zip(&*steps).all(is_whole) {
            return Err(misaligned(argument, "copy"));
        }
        let strides: Vec<i64> = steps.iter().map(|step| step / size).collect();
        let strides = Dims::new(&strides).map_err(|error| exception(error.into(), &[]))?;
        let meta = meta(dtype, shape, strides, Location::Host)?;
        Ok(Tensor { pointer: pointer as *mut u8, meta, is_torch: false, read_only })
    }

    /// True for a tensor of PyTorch's.
    pub fn is_torch(&self) -> bool {
        self.is_torch
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.meta.dtype
    }

    /// Its sizes.
    pub fn shape(&self) -> &[i64] {
        &self.meta.shape
    }

    /// Where it is.
    pub fn location(&self) -> Location {
        self.meta.location
    }

    /// The same, taken to be on the host.
    pub fn on_host(mut self) -> Self {
        self.meta.location = Location::Host;
        self
    }

    /// So many places of an axis from `start` on; None if it has fewer.
    pub fn part(mut self, axis: usize, start: i64, size: i64) -> Option<Self> {
        let whole = *self.meta.shape.get(axis)?;
        if start < 0 || size < 0 || start.checked_add(size)? > whole {
            return None;
        }
        let Meta { dtype, shape, strides, location } = self.meta;
        let mut places = [0; MAX_RANK];
        let places = &mut places[..shape.len()];
        places.copy_from_slice(&shape);
        places[axis] = size;
        self.meta = Meta::new(dtype, places, &strides, location).ok()?;
        if !self.meta.is_empty() {
            // The first element of the part is one of the whole, whose elements all lie in memory that can be addressed.
            self.pointer =
                self.pointer.wrapping_offset((start * strides[axis]) as isize * dtype.size() as isize);
        }
        Some(self)
    }

    /// Whether another tensor has the same sizes and strides.
    pub fn has_layout_of(&self, other: &Tensor) -> bool {
        (self.meta.shape, self.meta.strides) == (other.meta.shape, other.meta.strides)
    }

    /// Strides without gaps in the order of its own; None where elements share memory, or two axes have no order.
    pub fn dense_strides(&self) -> Option<[i64; MAX_RANK]> {
        let Meta { shape, strides, .. } = &self.meta;
        let mut axes: [usize; MAX_RANK] = std::array::from_fn(|axis| axis);
        let axes = &mut axes[..shape.len()];
        axes.sort_by_key(|axis| strides[*axis]);
        let (mut found, mut dense) = ([0; MAX_RANK], 1_i64);
        for (at, &axis) in axes.iter().enumerate() {
            if strides[axis] <= 0 || (at > 0 && strides[axis] == strides[axes[at - 1]]) {
                return None;
            }
            found[axis] = dense;
            dense = dense.checked_mul(shape[axis].max(1))?;
        }
        Some(found)
    }

    /// Number of elements.
    pub fn element_count(&self) -> i64 {
        self.meta.element_count()
    }

    /// A view to read.
    ///
    /// # Safety
    /// For `'a`, the Python object is kept alive, and nobody writes to its memory.
    pub unsafe fn view<'a>(&self) -> TensorRef<'a> {
        // SAFETY: the object vouches for its shape, strides and place; alignment was checked; the rest is the
        // caller's promise.
        unsafe { TensorRef::from_meta(self.pointer, self.meta) }
    }

    /// A view to write.
    ///
    /// # Safety
    /// As for [`Tensor::view`], and nobody reads the memory either.
    pub unsafe fn view_mut<'a>(&self) -> TensorMut<'a> {
        // SAFETY: as in `view`.
        unsafe { TensorMut::from_meta(self.pointer, self.meta) }
    }

    /// Whether it can be written to.
    ///
    /// # Errors
    /// `ValueError` if NumPy says that the array is read-only.
    pub fn expect_writable(&self, argument: &str) -> PyResult<()> {
        if self.read_only {
            return Err(PyValueError::new_err(format!("{argument} is read-only: it is written to")));
        }
        Ok(())
    }

    /// Lets memory of the processor that was just allocated for it come in large pages.
    pub fn prefer_large_pages(&self) {
        if self.location() == Location::Host
            && let Some((lowest, highest)) = self.extent()
        {
            let bytes = highest - lowest + self.dtype().size() as i128;
            memory::prefer_large_pages(self.pointer.with_addr(lowest as usize), bytes as usize);
        }
    }

    /// Lowest and highest address of an element's first byte; None without elements.
    fn extent(&self) -> Option<(i128, i128)> {
        if self.meta.is_empty() {
            return None;
        }
        let first = self.pointer as usize as i128;
        let (mut lowest, mut highest) = (first, first);
        for (stride, size) in self.meta.strides.iter().zip(self.shape()) {
            let reach = i128::from(*stride) * i128::from(size - 1);
            let bytes = reach * self.dtype().size() as i128;
            if bytes < 0 {
                lowest += bytes;
            } else {
                highest += bytes;
            }
        }
        Some((lowest, highest))
    }

    /// True if an element of one tensor shares a byte with an element of the other.
    pub fn shares_memory(&self, other: &Tensor) -> bool {
        let (Some((low, high)), Some((other_low, other_high))) = (self.extent(), other.extent()) else {
            return false;
        };
        let apart = low >= other_high + other.dtype().size() as i128
            || other_low >= high + self.dtype().size() as i128;
        self.location() == other.location() && !apart && overlap::meet(&self.layout(), &other.layout())
    }

    fn layout(&self) -> Layout {
        let size = self.dtype().size() as i128;
        let mut layout = Layout { address: self.pointer as usize as i128, size, axes: [(0, 1); MAX_RANK] };
        let axes = self.meta.strides.iter().zip(self.shape());
        for (axis, (stride, count)) in layout.axes.iter_mut().zip(axes) {
            *axis = (i128::from(*stride) * size, i128::from(*count));
        }
        layout
    }
}

/// `copy`: the method that gives an aligned one.
fn misaligned(argument: &str, copy: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{argument} has elements that are not aligned to their size: pass {argument}.{copy}()"
    ))
}

/// The values of a tuple of integers.
fn sizes(argument: &str, tuple: &Bound<'_, PyAny>) -> PyResult<Dims> {
    let values: Vec<i64> = tuple.cast::<PyTuple>()?.extract()?;
    Dims::new(&values).map_err(|TooManyAxes(rank)| {
        PyValueError::new_err(format!("{argument} has {rank} axes: no argument has more than 3"))
    })
}

/// What is known of a tensor, if its sizes and strides go together.
fn meta(dtype: DType, shape: Dims, strides: Dims, location: Location) -> PyResult<Meta> {
    Meta::new(dtype, &shape, &strides, location).map_err(|error| exception(error, &[]))
}

/// True for an array with a mask, which kernels know nothing about. There is none before its module is there.
fn is_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(module) = imported(object.py(), "numpy.ma")? else { return Ok(false) };
    object.is_instance(&module.getattr("MaskedArray")?)
}

/// NumPy's array type, if this process has imported NumPy.
fn ndarray(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyType>>> {
    if let Some(ndarray) = NDARRAY.get(py) {
        return Ok(Some(ndarray.bind(py)));
    }
    let Some(module) = imported(py, "numpy")? else { return Ok(None) };
    let Ok(ndarray) = module.getattr("ndarray") else { return Ok(None) };
    let ndarray = NDARRAY.get_or_try_init(py, || Ok::<_, PyErr>(ndarray.cast_into::<PyType>()?.unbind()))?;
    Ok(Some(ndarray.bind(py)))
}
