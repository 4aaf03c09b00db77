//! What only CUDA has.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::state::{CURRENT, call, state};
use crate::{INVALID_CONTEXT, INVALID_VALUE, Raw, UNKNOWN, put};

const PRIMARY: usize = 0xc0de_0000;

/// Functions under CUDA's names.
macro_rules! cuda {
    ($($name:ident ($($argument:ident: $type:ty),*) $body:expr)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let arguments: &[String] = &[$(format!("{} {:?}", stringify!($argument), $argument)),*];
            call(stringify!($name), arguments.join(", "), || $body)
        }
    )*};
}

cuda! {
    cuDevicePrimaryCtxRetain(out: *mut Raw, device: c_int) state(|state| {
        *state.contexts.entry(device).or_default() += 1;
        unsafe { put(out, (PRIMARY + device as usize) as Raw) }
    })
    cuDevicePrimaryCtxRelease_v2(device: c_int) state(|state| match state.contexts.get_mut(&device) {
        Some(count) if *count > 0 => {
            *count -= 1;
            0
        }
        _ => INVALID_CONTEXT,
    })
    cuCtxGetCurrent(out: *mut Raw) {
        let current = CURRENT.with_borrow(|(stack, _)| stack.last().copied().unwrap_or(0));
        unsafe { put(out, current as Raw) }
    }
    cuCtxPushCurrent_v2(context: Raw) {
        CURRENT.with_borrow_mut(|(stack, _)| stack.push(context as usize));
        0
    }
    cuCtxPopCurrent_v2(out: *mut Raw) match CURRENT.with_borrow_mut(|(stack, _)| stack.pop()) {
        Some(context) => unsafe { put(out, context as Raw) },
        None => INVALID_CONTEXT,
    }
    cuFuncSetAttribute(function: Raw, attribute: c_int, value: c_int) state(|state| {
        // What is set: the most dynamic shared memory, and that clusters may be large.
        let legal = attribute == 8 && value <= 232_448 || attribute == 14 && value == 1;
        if state.has("module", function) && legal { 0 } else { INVALID_VALUE }
    })
    cuTensorMapEncodeTiled(map: *mut [u64; 16], dtype: c_int, rank: c_uint, address: Raw, sizes: *const u64,
        strides: *const u64, boxes: *const c_uint, steps: *const c_uint, interleave: c_int, swizzle: c_int,
        promotion: c_int, fill: c_int) {
        if rank != 2 || address as usize % 16 != 0 || map as usize % 64 != 0 {
            return INVALID_VALUE;
        }
        unsafe { put(map, [address as u64; 16]) }
    }
    cuLaunchKernelEx(configuration: *const Configuration, function: Raw, arguments: *mut *mut c_void,
        extra: *mut *mut c_void) {
        let configuration = unsafe { &*configuration };
        let threads = configuration.block.iter().product();
        state(|state| state.launch(function, threads, configuration.stream, arguments))
    }
}

/// `CUlaunchConfig`, as far as it is looked at.
#[repr(C)]
struct Configuration {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Raw,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, out: *mut *const c_char) -> c_int {
    let name = if code == UNKNOWN { std::ptr::null() } else { c"CUDA_ERROR_FAKE".as_ptr() };
    unsafe { put(out, name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: c_int, out: *mut *const c_char) -> c_int {
    let words = if code == UNKNOWN { std::ptr::null() } else { c"made up by the test".as_ptr() };
    unsafe { put(out, words) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetErrorString(_code: c_int) -> *const c_char {
    c"made up by the test".as_ptr()
}
