//! Reading PyTorch's tensors, and its streams, through DLPack's C functions: one call each, where attributes take five of Python's.
//!
//! PyTorch has them from 2.10 on. They are found at run time, as `torch.Tensor.__dlpack_c_exchange_api__`.

use std::ffi::{c_int, c_void};

use causeway::tensor::{Dims, Meta};
use causeway::{DType, Location};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The version whose structs are below; a minor version adds no field before their ends.
const MAJOR_VERSION: u32 = 1;

/// `DLTensor`.
#[repr(C)]
struct RawTensor {
    data: *mut u8,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

type FromObject = unsafe extern "C" fn(*mut c_void, *mut RawTensor) -> c_int;

/// Device type, number of the device, and where the stream goes.
type CurrentStream = unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int;

/// `DLPackExchangeAPI`: functions that are not used here are plain addresses.
#[repr(C)]
struct RawFunctions {
    major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    from_object: Option<FromObject>,
    current_stream: Option<CurrentStream>,
}

/// `kDLCUDA`.
const CUDA: c_int = 2;

/// PyTorch's functions: one describes a tensor without owning it.
#[derive(Clone, Copy)]
pub struct Exchange {
    from_object: FromObject,
    current_stream: Option<CurrentStream>,
}

/// A tensor as DLPack describes it.
pub struct Description {
    pub pointer: *mut u8,
    pub meta: Meta,
}

impl Description {
    /// True for a tensor with elements and no address.
    pub fn has_no_memory(&self) -> bool {
        self.pointer.is_null() && !self.meta.is_empty()
    }

    /// False if the values are those of memory for certain. PyTorch negates the imaginary parts of conjugated numbers only when
    /// they are read; they lie between the real parts, so that they have no odd stride. (PyTorch's private `_neg_view`, and
    /// `as_strided` of such a part, make others. To ask every tensor would take a small call a tenth longer.)
    pub fn may_be_negated(&self) -> bool {
        let Meta { dtype, shape, strides, .. } = &self.meta;
        let has_complex = matches!(dtype, DType::F16 | DType::F32 | DType::F64);
        has_complex && shape.iter().zip(&**strides).all(|(size, stride)| *size <= 1 || stride % 2 == 0)
    }
}

impl Exchange {
    /// Those of a tensor type, if it has them.
    pub fn of(tensor_type: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = tensor_type.getattr("__dlpack_c_exchange_api__").ok()?.cast_into::<PyCapsule>().ok()?;
        let functions = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.cast::<RawFunctions>();
        // SAFETY: a capsule of that name holds a `DLPackExchangeAPI` that lives until the process ends. Its first
        // fields, the version, have the same place in every version.
        unsafe {
            if (*functions.as_ptr()).major != MAJOR_VERSION {
                return None;
            }
            let RawFunctions { from_object, current_stream, .. } = *functions.as_ptr();
            Some(Exchange { from_object: from_object?, current_stream })
        }
    }

    /// The address of this thread's current stream on an NVIDIA device.
    pub fn current_cuda_stream(self, py: Python<'_>, ordinal: u32) -> Option<usize> {
        let (function, ordinal) = (self.current_stream?, i32::try_from(ordinal).ok()?);
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is a place for the answer, and the interpreter is attached.
        if unsafe { function(CUDA, ordinal, &mut stream) } != 0 {
            // The caller asks in Python, and finds out what is wrong.
            drop(PyErr::take(py));
            return None;
        }
        Some(stream.addr())
    }

    /// Describes a tensor of that type; None for one that the library has no word for.
    pub fn read(self, object: &Bound<'_, PyAny>) -> Option<Description> {
        self.read_axes(object, |shape, strides| Some((Dims::new(shape).ok()?, Dims::new(strides).ok()?)))
    }

    /// The same of (batch, heads, head_dim), or (batch, seqlen, heads, head_dim), as (batch, channels) or (batch, channels, seqlen). None
    /// also where channels have no common stride.
    pub fn read_heads(self, object: &Bound<'_, PyAny>) -> Option<Description> {
        self.read_axes(object, |shape, strides| {
            let (&[ref positions @ .., heads, head_dim], &[ref steps @ .., of_heads, step]) =
                (shape, strides)
            else {
                return None;
            };
            let step = match (heads, head_dim) {
                (_, 1) => of_heads,
                (1, _) => step,
                _ if step.checked_mul(head_dim) == Some(of_heads) => step,
                _ => return None,
            };
            let channels = heads.checked_mul(head_dim)?;
            let (shape, strides) = match (positions, steps) {
                (&[batch], &[of_batch]) => (Dims::new(&[batch, channels]), Dims::new(&[of_batch, step])),
                (&[batch, seqlen], &[of_batch, of_seqlen]) => {
                    (Dims::new(&[batch, channels, seqlen]), Dims::new(&[of_batch, step, of_seqlen]))
                }
                _ => return None,
            };
            Some((shape.ok()?, strides.ok()?))
        })
    }

    /// Describes a tensor by the sizes and strides that are made of its own.
    fn read_axes(
        self,
        object: &Bound<'_, PyAny>,
        axes: impl FnOnce(&[i64], &[i64]) -> Option<(Dims, Dims)>,
    ) -> Option<Description> {
        let mut raw = RawTensor {
            data: std::ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            ndim: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the object is a tensor of PyTorch's, and the interpreter is attached.
        if unsafe { (self.from_object)(object.as_ptr().cast(), &mut raw) } != 0 {
            // The caller reads the attributes instead, and finds out what is wrong.
            drop(PyErr::take(object.py()));
            return None;
        }
        let dtype = match (raw.code, raw.bits, raw.lanes) {
            (2, 32, 1) => DType::F32,
            (2, 16, 1) => DType::F16,
            (4, 16, 1) => DType::BF16,
            (2, 64, 1) => DType::F64,
            (0, 32, 1) => DType::I32,
            (0, 64, 1) => DType::I64,
            _ => return None,
        };
        let ordinal = u32::try_from(raw.device_id).ok()?;
        let location = match raw.device_type {
            1 => Location::Host,
            2 => Location::Cuda(ordinal),
            10 => Location::Hip(ordinal),
            _ => return None,
        };
        let rank = usize::try_from(raw.ndim).ok()?;
        let (mut shape, mut strides): (&[i64], &[i64]) = (&[], &[]);
        if rank > 0 {
            if raw.shape.is_null() || raw.strides.is_null() {
                return None;
            }
            // SAFETY: both point to `ndim` numbers of the tensor's, which the caller keeps alive.
            (shape, strides) = unsafe {
                (std::slice::from_raw_parts(raw.shape, rank), std::slice::from_raw_parts(raw.strides, rank))
            };
        }
        let (shape, strides) = axes(shape, strides)?;
        let meta = Meta::new(dtype, &shape, &strides, location).ok()?;
        Some(Description { pointer: raw.data.wrapping_add(raw.byte_offset as usize), meta })
    }
}
