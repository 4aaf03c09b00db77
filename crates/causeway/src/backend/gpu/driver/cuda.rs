//! What is CUDA's alone: its names for attributes, its contexts, its words for errors.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libloading::Library;

use super::status::Status;
use super::table::{Column, Raw};
use super::{Attributes, missing_symbol};
use crate::error::Result;

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

/// Functions without a counterpart of the same form in HIP.
pub(super) struct Cuda {
    primary_retain: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    current_get: unsafe extern "C" fn(*mut Raw) -> c_int,
    current_push: unsafe extern "C" fn(Raw) -> c_int,
    current_pop: unsafe extern "C" fn(*mut Raw) -> c_int,
    function_set: unsafe extern "C" fn(Raw, c_int, c_int) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

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
        Ok(Cuda {
            primary_retain: symbol!("cuDevicePrimaryCtxRetain"),
            current_get: symbol!("cuCtxGetCurrent"),
            current_push: symbol!("cuCtxPushCurrent_v2"),
            current_pop: symbol!("cuCtxPopCurrent_v2"),
            function_set: symbol!("cuFuncSetAttribute"),
            error_name: symbol!("cuGetErrorName"),
            error_string: symbol!("cuGetErrorString"),
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

    /// The device's primary context: the one that PyTorch and the CUDA runtime use. It is never released,
    /// since memory and kernels live in it until the process ends.
    pub fn retain_primary(&self, device: c_int) -> (Raw, &'static str, Status) {
        let mut context: Raw = ptr::null_mut();
        // SAFETY: `context` is a place for the answer.
        let status = unsafe { (self.primary_retain)(&mut context, device) };
        (context, "cuDevicePrimaryCtxRetain", Status(status))
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
        // SAFETY: `function` is a live function of the current context.
        let status = unsafe { (self.function_set)(function, MAX_DYNAMIC_SHARED, bytes) };
        ("cuFuncSetAttribute", Status(status))
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
