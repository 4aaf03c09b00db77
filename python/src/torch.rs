//! PyTorch as the extension needs it: its types, a few of its functions, its streams and its allocator.
//!
//! Nothing is imported here that somebody has not imported before.

use causeway::backend::gpu::plan::Vendor;
use causeway::{DType, Location};
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyTuple, PyType};

use crate::dlpack::{Description, Exchange};
use crate::kept::{KEPT, Kept};
use crate::libtorch::LibTorch;
use crate::openmp;

/// What is needed of PyTorch, once it has been imported by whoever made the tensors.
pub struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    exchange: Option<Exchange>,
    dtypes: Vec<(Py<PyAny>, DType)>,
    vendor: Vendor,
    current_stream: Option<Py<PyAny>>,
    thread_count: Py<PyAny>,
    empty_like: Py<PyAny>,
    allocators: Option<Allocators>,
    /// The function that counts who holds a storage; None where this PyTorch lacks it.
    use_count: Option<Py<PyAny>>,
    increment_version: IncrementVersion,
    thread: ThreadState,
    /// Keyword arguments for `Tensor.new_empty`.
    bytes: Py<PyDict>,
}

/// Functions that make a tensor of sizes, strides and dtype, for programs that PyTorch's compiler writes: they take half of the time of
/// `empty_like`, which goes through the dispatcher.
struct Allocators {
    cpu: Py<PyAny>,
    /// On the current device; None where there may be another one.
    cuda: Option<Py<PyAny>>,
}

impl Allocators {
    /// None where PyTorch lacks them.
    fn of(module: &Bound<'_, PyAny>) -> Option<Self> {
        let guards = module.getattr("_C").ok()?.getattr("_dynamo").ok()?.getattr("guards").ok()?;
        let devices: PyResult<usize> =
            module.getattr("cuda").and_then(|cuda| cuda.call_method0("device_count")?.extract());
        let cuda = guards.getattr("_empty_strided_cuda").ok();
        Some(Allocators {
            cpu: guards.getattr("_empty_strided_cpu").ok()?.unbind(),
            cuda: cuda.filter(|_| devices.is_ok_and(|count| count == 1)).map(Bound::unbind),
        })
    }
}

/// PyTorch's function that notes that values have changed.
enum IncrementVersion {
    /// Takes several tensors, and leaves those of inference mode alone.
    OfAll(Py<PyAny>),
    /// Takes a tensor that is not one of inference mode.
    OfOne(Py<PyAny>),
}

/// Functions that tell what intercepts the operations of this thread.
struct ThreadState {
    /// Those that need no Python.
    native: Option<LibTorch>,
    /// Number of dispatch modes.
    dispatch_modes: Py<PyAny>,
    /// The innermost transform of `torch.func`, or None.
    transform: Py<PyAny>,
    /// True while `torch.jit.trace` records.
    is_tracing: Py<PyAny>,
    /// True in a region of autocast, for any device.
    is_autocast: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    /// The names of the module with `_current_level`: `no_level` where no forward-mode gradients are made.
    forward_ad: Py<PyDict>,
    no_level: Py<PyInt>,
}

impl ThreadState {
    /// True if anything but autograd intercepts operations.
    fn intercepts(&self, py: Python<'_>, with_autocast: bool) -> PyResult<bool> {
        let is = |function: &Py<PyAny>| function.bind(py).call0()?.is_truthy();
        let intercepts = match &self.native {
            Some(native) => {
                native.has_dispatch_mode()
                    || native.is_transformed()
                    || native.is_tracing()
                    || (with_autocast && native.is_autocast())
            }
            None => {
                is(&self.dispatch_modes)?
                    || !self.transform.bind(py).call0()?.is_none()
                    || is(&self.is_tracing)?
                    || (with_autocast && is(&self.is_autocast)?)
            }
        };
        Ok(intercepts || self.is_forward_mode(py)?)
    }

    fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.native {
            Some(native) => Ok(native.is_grad_enabled()),
            None => self.is_grad_enabled.bind(py).call0()?.is_truthy(),
        }
    }

    /// The same, with answers that need no Python if they are right.
    fn with_native(mut self, py: Python<'_>) -> PyResult<Self> {
        let ask = |thread: &Self| {
            Ok::<_, PyErr>([
                thread.intercepts(py, false)?,
                thread.intercepts(py, true)?,
                thread.is_grad_enabled(py)?,
            ])
        };
        let expected = ask(&self)?;
        self.native = LibTorch::loaded();
        if ask(&self)? != expected {
            self.native = None;
        }
        Ok(self)
    }

    fn is_forward_mode(&self, py: Python<'_>) -> PyResult<bool> {
        let level = self.forward_ad.bind(py).get_item(intern!(py, "_current_level"))?;
        // Python has one object for every small number.
        Ok(match level {
            Some(level) => !level.is(&self.no_level) && level.extract::<i64>()? >= 0,
            None => false,
        })
    }
}

/// What an operation has to go through before its kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Nothing.
    Direct,
    /// Autograd, if a tensor requires a gradient.
    Autograd,
    /// The package's Python code: for autocast, or for PyTorch's dispatcher, since something intercepts operations.
    Python,
}

/// A module, if this process has imported it.
pub fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(py.import("sys")?.getattr("modules")?.get_item(name).ok())
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// PyTorch, if this process has imported it.
    pub fn imported(py: Python<'_>) -> PyResult<Option<&Torch>> {
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        let Some(module) = imported(py, "torch")? else { return Ok(None) };
        // While it is being imported, it may not have a Tensor yet; what it gets last is the compiler's entry.
        for name in ["Tensor", "nn", "get_num_threads", "autograd", "compiler"] {
            if !module.hasattr(name)? {
                return Ok(None);
            }
        }
        TORCH.get_or_try_init(py, || Self::new(&module)).map(Some)
    }

    /// PyTorch, which a tensor has come from.
    pub fn of_tensors(py: Python<'_>) -> PyResult<&Torch> {
        Self::imported(py)?.ok_or_else(|| PyRuntimeError::new_err("PyTorch is gone from sys.modules"))
    }

    fn new(module: &Bound<'_, PyAny>) -> PyResult<Torch> {
        let py = module.py();
        openmp::find();
        let names = [
            ("float32", DType::F32),
            ("float16", DType::F16),
            ("bfloat16", DType::BF16),
            ("float64", DType::F64),
            ("int32", DType::I32),
            ("int64", DType::I64),
        ];
        let dtypes = names.into_iter().map(|(name, dtype)| Ok((module.getattr(name)?.unbind(), dtype)));
        let is_hip = !module.getattr("version")?.getattr("hip")?.is_none();
        let bytes = PyDict::new(py);
        bytes.set_item("dtype", module.getattr("uint8")?)?;
        let tensor = module.getattr("Tensor")?;
        let inner = module.getattr("_C")?;
        let of_inner = |name: &str| Ok::<_, PyErr>(inner.getattr(name)?.unbind());
        let empty = module.getattr("empty")?.call1((0,))?;
        let increment_version = of_inner("_increment_version")?;
        let increment_version = match increment_version.call1(py, ((empty,),)) {
            Ok(_) => IncrementVersion::OfAll(increment_version),
            Err(_) => {
                let graph = py.import("torch.autograd.graph")?;
                IncrementVersion::OfOne(graph.getattr("increment_version")?.unbind())
            }
        };
        Ok(Torch {
            exchange: Exchange::of(&tensor),
            tensor: tensor.cast_into::<PyType>()?.unbind(),
            parameter: module.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?.unbind(),
            dtypes: dtypes.collect::<PyResult<_>>()?,
            vendor: if is_hip { Vendor::Amd } else { Vendor::Nvidia },
            // A build for processors has none.
            current_stream: of_inner("_cuda_getCurrentRawStream").ok(),
            thread_count: module.getattr("get_num_threads")?.unbind(),
            empty_like: module.getattr("empty_like")?.unbind(),
            allocators: Allocators::of(module),
            use_count: of_inner("_storage_Use_Count").ok(),
            increment_version,
            thread: ThreadState {
                native: None,
                dispatch_modes: of_inner("_len_torch_dispatch_stack")?,
                transform: inner.getattr("_functorch")?.getattr("peek_interpreter_stack")?.unbind(),
                is_tracing: of_inner("_is_tracing")?,
                is_autocast: of_inner("_is_any_autocast_enabled")?,
                is_grad_enabled: module.getattr("is_grad_enabled")?.unbind(),
                forward_ad: py.import("torch.autograd.forward_ad")?.dict().unbind(),
                no_level: PyInt::new(py, -1).unbind(),
            }
            .with_native(py)?,
            bytes: bytes.unbind(),
        })
    }

    /// The type of tensors.
    pub fn tensor_type<'py>(&self, py: Python<'py>) -> &Bound<'py, PyType> {
        self.tensor.bind(py)
    }

    /// True for a tensor or a parameter that is of no class of somebody else's.
    #[inline]
    pub fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let kind = object.get_type();
        kind.is(&self.tensor) || kind.is(&self.parameter)
    }

    /// A tensor by way of DLPack; None if this PyTorch lacks it, or for a tensor without a word there.
    #[inline]
    pub fn describe(&self, object: &Bound<'_, PyAny>) -> Option<Description> {
        self.exchange.and_then(|exchange| exchange.read(object))
    }

    /// The same of a tensor of heads, with all their channels as its second axis; None also where these have no common stride.
    #[inline]
    pub fn describe_heads(&self, object: &Bound<'_, PyAny>) -> Option<Description> {
        self.exchange.and_then(|exchange| exchange.read_heads(object))
    }

    /// A dtype that kernels know.
    pub fn dtype(&self, object: &Bound<'_, PyAny>) -> Option<DType> {
        self.dtypes.iter().find(|(known, _)| known.is(object)).map(|(_, dtype)| *dtype)
    }

    /// How the operations of this thread are dispatched. Autocast does not count where it `is_cast` already, nor autograd where
    /// `is_recorded` by a caller.
    pub fn dispatch(&self, py: Python<'_>, is_cast: bool, is_recorded: bool) -> PyResult<Dispatch> {
        let thread = &self.thread;
        if thread.intercepts(py, !is_cast)? {
            return Ok(Dispatch::Python);
        }
        Ok(if !is_recorded && thread.is_grad_enabled(py)? { Dispatch::Autograd } else { Dispatch::Direct })
    }

    /// Whose GPUs this build of PyTorch is for.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The address of the stream that PyTorch puts work of this thread on.
    pub fn current_stream(&self, py: Python<'_>, ordinal: u32) -> PyResult<usize> {
        // Builds for AMD's devices give the default stream there, whichever is current.
        if self.vendor == Vendor::Nvidia
            && let Some(stream) = self.exchange.and_then(|exchange| exchange.current_cuda_stream(py, ordinal))
        {
            return Ok(stream);
        }
        match &self.current_stream {
            Some(function) => function.bind(py).call1((ordinal,))?.extract(),
            None => Err(PyNotImplementedError::new_err("this build of PyTorch has no GPU support")),
        }
    }

    /// `torch.get_num_threads()`.
    pub fn thread_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.thread_count.bind(py).call0()?.extract()
    }

    /// `torch.empty_like(like)`.
    pub fn empty_like<'py>(&self, like: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.empty_like.bind(like.py()).call1((like,))
    }

    /// A tensor of sizes, dense strides and a dtype at a place, which takes so many bytes; None where that is left to `empty_like`.
    pub fn empty_strided<'py>(
        &self,
        (dtype, location, bytes): (DType, Location, u64),
        layout: impl FnOnce() -> PyResult<Option<[Bound<'py, PyTuple>; 2]>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(allocators) = &self.allocators else { return Ok(None) };
        let allocate = match location {
            Location::Host => Some(&allocators.cpu),
            Location::Cuda(_) | Location::Hip(_) => allocators.cuda.as_ref(),
        };
        let dtype = self.dtypes.iter().find(|(_, known)| *known == dtype);
        let (Some(allocate), Some((dtype, _))) = (allocate, dtype) else { return Ok(None) };
        let Some([sizes, strides]) = layout()? else { return Ok(None) };
        let (py, allocate) = (sizes.py(), allocate.bind(sizes.py()));
        let use_count = self.use_count.as_ref().map(|function| function.bind(py));
        let use_count = use_count.filter(|_| location == Location::Host && Kept::takes(bytes));
        if use_count.is_some()
            && let Some(storage) = KEPT.find(py, use_count, bytes)
        {
            let tensor = allocate.call1(((0,), (1,), dtype))?;
            return tensor.call_method1(intern!(py, "set_"), (storage, 0, sizes, strides)).map(Some);
        }
        let tensor = allocate.call1((sizes, strides, dtype))?;
        if use_count.is_some() {
            KEPT.keep_tensor(&tensor, bytes);
        }
        Ok(Some(tensor))
    }

    /// Tells autograd that the values of tensors have changed.
    pub fn increment_versions<'py>(&self, py: Python<'py>, changed: Vec<Bound<'py, PyAny>>) -> PyResult<()> {
        match &self.increment_version {
            IncrementVersion::OfAll(function) => function.call1(py, (PyTuple::new(py, changed)?,)).map(drop),
            IncrementVersion::OfOne(function) => {
                for tensor in changed {
                    if !tensor.call_method0(intern!(py, "is_inference"))?.is_truthy()? {
                        function.call1(py, (tensor,))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Uninitialised memory from PyTorch's allocator, on the device and the current stream of `like`.
    pub fn allocate<'py>(&self, like: &Bound<'py, PyAny>, bytes: u64) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        like.call_method(intern!(py, "new_empty"), (bytes,), Some(self.bytes.bind(py)))
    }
}

/// The device address of a tensor that [`Torch::allocate`] made.
pub fn data_ptr(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract()
}

/// True for a tensor that autograd has to follow, where it follows any.
pub fn requires_grad(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()
}
