//! What only HIP has.

use std::ffi::{c_char, c_int};

use crate::state::{CURRENT, call, state};
use crate::{INVALID_DEVICE, UNKNOWN, devices, put};

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevice(out: *mut c_int) -> c_int {
    call("hipGetDevice", String::new(), || CURRENT.with_borrow(|(_, device)| unsafe { put(out, *device) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipSetDevice(device: c_int) -> c_int {
    call("hipSetDevice", format!("device {device}"), || {
        if !(0..devices()).contains(&device) {
            return INVALID_DEVICE;
        }
        CURRENT.with_borrow_mut(|(_, current)| *current = device);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevicePropertiesR0600(out: *mut u8, device: c_int) -> c_int {
    call("hipGetDevicePropertiesR0600", format!("device {device}"), || {
        let architecture = b"gfx942:sramecc+:xnack-\0";
        // Where ROCm 6 has it.
        unsafe { out.add(1160).copy_from(architecture.as_ptr(), architecture.len()) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipRuntimeGetVersion(out: *mut c_int) -> c_int {
    call("hipRuntimeGetVersion", String::new(), || unsafe { put(out, 60_443_484) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetLastError() -> c_int {
    state(|state| std::mem::take(&mut state.pending_error))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetErrorName(code: c_int) -> *const c_char {
    if code == UNKNOWN { c"hipErrorUnknown" } else { c"hipErrorFake" }.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetErrorString(_code: c_int) -> *const c_char {
    c"made up by the test".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcGetErrorString(_code: c_int) -> *const c_char {
    c"made up by the test".as_ptr()
}
