//! What is CUDA's alone: its names for attributes, its contexts, its words for errors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use super::status::Status;
use super::table::{Column, Raw};
use super::{Attributes, Launch, missing_symbol, raw};
use crate::backend::gpu::plan::TensorMap;
use crate::error::Result;
use crate::tensor::DType;

pub(super) const COLUMN: Column =
    Column { index: 0, fix: "update the NVIDIA driver to release 470 (CUDA 11.4) or later" };

/// `CUdevice_attribute`.
pub(super) const ATTRIBUTES: Attributes = Attributes {
    multiprocessors: 16,
    wave_size: 10,
    threads_per_multiprocessor: 39,
    registers_per_multiprocessor: 82,
    shared_per_multiprocessor: 81,
    shared_per_block: 97,
    l2_bytes: 38,
    clock: 13,
    memory_clock: 36,
    memory_bus: 37,
    memory_pools: 115,
    pci_domain: 50,
    pci_bus: 33,
    pci_device: 34,
};

const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`, since CUDA 11.8.
const LARGE_CLUSTER: c_int = 14;

/// Functions without a counterpart of the same form in HIP.
pub(super) struct Cuda {
    primary_retain: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    primary_release: unsafe extern "C" fn(c_int) -> c_int,
    current_get: unsafe extern "C" fn(*mut Raw) -> c_int,
    current_push: unsafe extern "C" fn(Raw) -> c_int,
    current_pop: unsafe extern "C" fn(*mut Raw) -> c_int,
    function_set: unsafe extern "C" fn(Raw, c_int, c_int) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    /// CUDA 12.0.
    encode_tiled: Option<EncodeTiled>,
    /// CUDA 11.8; that recordings keep what it asks for, 12.3.
    launch_extended: Option<LaunchExtended>,
}

/// `cuTensorMapEncodeTiled`: map, dtype, rank, address, sizes, strides, box, element strides, interleave, swizzle,
/// promotion, fill.
type EncodeTiled = unsafe extern "C" fn(
    *mut EncodedMap,
    c_int,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    *const c_uint,
    *const c_uint,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// `cuLaunchKernelEx`.
type LaunchExtended =
    unsafe extern "C" fn(*const Configuration, Raw, *mut *mut c_void, *mut *mut c_void) -> c_int;

/// `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EncodedMap(pub [u8; TensorMap::BYTES]);

/// `CUlaunchConfig`.
#[repr(C)]
struct Configuration {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Raw,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute` whose value is an `int`: the value's union has 64 bytes.
#[repr(C)]
struct LaunchAttribute {
    id: c_int,
    padding: c_int,
    value: c_int,
    rest: [c_int; 15],
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && size_of::<Configuration>() == 56);

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

impl Cuda {
    /// # Safety
    /// As for [`super::table::Table::load`].
    pub unsafe fn load(library: &Library, path: &str) -> Result<Self> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the fields of `Cuda` have the signatures that CUDA documents for these names.
                *unsafe { library.get($name.as_bytes()) }.map_err(|_| missing_symbol(path, $name, COLUMN))?
            };
        }
        macro_rules! optional {
            ($name:literal) => {
                // SAFETY: as above.
                unsafe { library.get($name.as_bytes()) }.ok().map(|symbol| *symbol)
            };
        }
        Ok(Cuda {
            primary_retain: symbol!("cuDevicePrimaryCtxRetain"),
            primary_release: symbol!("cuDevicePrimaryCtxRelease_v2"),
            current_get: symbol!("cuCtxGetCurrent"),
            current_push: symbol!("cuCtxPushCurrent_v2"),
            current_pop: symbol!("cuCtxPopCurrent_v2"),
            function_set: symbol!("cuFuncSetAttribute"),
            error_name: symbol!("cuGetErrorName"),
            error_string: symbol!("cuGetErrorString"),
            encode_tiled: optional!("cuTensorMapEncodeTiled"),
            launch_extended: optional!("cuLaunchKernelEx"),
        })
    }

    /// `CUDA_ERROR_INVALID_VALUE (1): invalid argument`.
    pub fn describe(&self, status: Status) -> String {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = ptr::null();
            // SAFETY: the driver stores the address of a constant string, or null for an unknown code.
            unsafe {
                function(status.0, &mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (text(self.error_name), text(self.error_string)) {
            (Some(name), Some(words)) => format!("{name} ({}): {words}", status.0),
            _ => format!("CUDA error {}", status.0),
        }
    }

    /// The device's primary context: the one that PyTorch and the CUDA runtime use. Once a device is open it is never
    /// released, since memory and kernels live in it until the process ends.
    pub fn retain_primary(&self, device: c_int) -> (Raw, &'static str, Status) {
        let mut context: Raw = ptr::null_mut();
        // SAFETY: `context` is a place for the answer.
        let status = unsafe { (self.primary_retain)(&mut context, device) };
        (context, "cuDevicePrimaryCtxRetain", Status(status))
    }

    /// Gives a primary context back that was retained for a device that is not opened after all.
    pub fn release_primary(&self, device: c_int) {
        // SAFETY: takes a number; the context was retained. An error of this repeats an earlier one.
        unsafe { (self.primary_release)(device) };
    }

    /// Makes a context current if it is not. True if [`Cuda::leave`] has to undo that.
    #[inline]
    pub fn enter(&self, context: Raw) -> Result<bool, (&'static str, Status)> {
        let mut current: Raw = ptr::null_mut();
        // SAFETY: `current` is a place for the answer.
        let status = Status(unsafe { (self.current_get)(&mut current) });
        if status != Status::SUCCESS {
            return Err(("cuCtxGetCurrent", status));
        }
        if current == context {
            return Ok(false);
        }
        // SAFETY: `context` is a primary context that is retained for good.
        let status = Status(unsafe { (self.current_push)(context) });
        if status != Status::SUCCESS {
            return Err(("cuCtxPushCurrent", status));
        }
        Ok(true)
    }

    /// Undoes an [`Cuda::enter`] that returned true, so that the caller finds its own context again.
    pub fn leave(&self) {
        let mut popped: Raw = ptr::null_mut();
        // SAFETY: `enter` has pushed a context on this thread's stack. An error here repeats an earlier one.
        unsafe { (self.current_pop)(&mut popped) };
    }

    /// Lets a function use `bytes` of dynamic shared memory: above 48 KiB CUDA wants to be asked.
    pub fn allow_dynamic_shared(&self, function: Raw, bytes: c_int) -> (&'static str, Status) {
        self.set(function, MAX_DYNAMIC_SHARED, bytes)
    }

    /// Lets a function have clusters of more than 8 blocks, which not every device of an architecture need have.
    pub fn allow_large_cluster(&self, function: Raw) -> (&'static str, Status) {
        self.set(function, LARGE_CLUSTER, 1)
    }

    fn set(&self, function: Raw, attribute: c_int, value: c_int) -> (&'static str, Status) {
        // SAFETY: `function` is a live function of the current context.
        let status = unsafe { (self.function_set)(function, attribute, value) };
        ("cuFuncSetAttribute", Status(status))
    }

    /// Encodes a matrix for TMA; None if the driver is older than it.
    pub fn encode(&self, map: &TensorMap) -> Option<Result<EncodedMap, (&'static str, Status)>> {
        const FLOAT16: c_int = 6;
        const BFLOAT16: c_int = 9;
        const SWIZZLE_128_BYTES: c_int = 3;
        const PROMOTE_128_BYTES: c_int = 2;
        let encode = self.encode_tiled?;
        let dtype = if map.dtype == DType::BF16 { BFLOAT16 } else { FLOAT16 };
        let swizzle = if map.swizzled { SWIZZLE_128_BYTES } else { 0 };
        let mut encoded = EncodedMap([0; TensorMap::BYTES]);
        // SAFETY: the arrays have as many entries as the rank, 2, and strides one less; the address is not read.
        let status = Status(unsafe {
            encode(
                &mut encoded,
                dtype,
                2,
                raw(map.address as usize),
                map.sizes.as_ptr(),
                &map.stride_bytes,
                map.box_sizes.as_ptr(),
                [1, 1].as_ptr(),
                0,
                swizzle,
                PROMOTE_128_BYTES,
                0,
            )
        });
        Some(if status == Status::SUCCESS { Ok(encoded) } else { Err(("cuTensorMapEncodeTiled", status)) })
    }

    /// A programmatic dependent launch; None if the driver has none.
    ///
    /// # Safety
    /// As for `Current::launch`; the kernel waits for that launch itself.
    pub unsafe fn launch_programmatic(
        &self,
        version: i32,
        launch: &Launch,
        arguments: *mut *mut c_void,
    ) -> Option<(&'static str, Status)> {
        const RECORDED_SINCE: i32 = 12_030;
        let function = self.launch_extended.filter(|_| version >= RECORDED_SINCE)?;
        let attribute =
            LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value: 1, rest: [0; 15] };
        let configuration = Configuration {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            stream: raw(launch.stream),
            attributes: &attribute,
            attribute_count: 1,
        };
        // SAFETY: the caller's promise; the configuration lives until the call is over.
        let status = unsafe { function(&configuration, raw(launch.function), arguments, ptr::null_mut()) };
        Some(("cuLaunchKernelEx", Status(status)))
    }
}

/// The architecture of a compute capability, as NVRTC takes it.
///
/// From 9.0 on, the instructions of one chip (wgmma, TMA with multicast, tcgen05) need the suffix `a`; consumer
/// Blackwell (12.x) has none that these kernels use.
pub(super) fn architecture(major: u32, minor: u32) -> String {
    let suffix = if matches!(major, 9..=11) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

/// Attributes that hold the compute capability.
pub(super) const CAPABILITY: [c_int; 2] = [CAPABILITY_MAJOR, CAPABILITY_MINOR];
