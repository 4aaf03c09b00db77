//! A driver and run-time compiler that live in host memory: `libcuda`, `libamdhip64`, `libnvrtc` and `libhiprtc` in one
//! library, built by `common/fake_gpu.rs` and found in their place.
//!
//! Everything is kept account of. Every call is recorded with its arguments, and any one can be made to fail with any
//! status. The rules that the real ones enforce are enforced: calls need a current context, a recorded stream takes
//! launches and no questions, memory is freed once. Kernels do nothing, unless the environment asks for HIP's to be run
//! in the simulator: see `simulated.rs`.

mod api;
mod control;
mod cuda;
mod hip;
mod simulated;
mod state;

use std::ffi::{c_int, c_void};

type Raw = *mut c_void;

const INVALID_VALUE: c_int = 1;
const NO_MEMORY: c_int = 2;
const INVALID_DEVICE: c_int = 101;
const INVALID_IMAGE: c_int = 200;
const INVALID_CONTEXT: c_int = 201;
const NOT_FOUND: c_int = 500;
const LAUNCH_FAILED: c_int = 719;
const CAPTURE_UNSUPPORTED: c_int = 900;
const CAPTURE_INVALIDATED: c_int = 901;

/// What the compilers call a text that they refuse.
const COMPILATION: c_int = 6;

/// A status that the drivers have no words for.
const UNKNOWN: c_int = 9999;

/// Bytes of memory of each device.
const MEMORY: usize = 1 << 30;

/// How many devices there are.
fn devices() -> c_int {
    std::env::var("FAKE_GPU_DEVICES").map_or(2, |count| count.parse().unwrap())
}

/// Stores an answer.
unsafe fn put<T>(place: *mut T, value: T) -> c_int {
    unsafe { place.write(value) };
    0
}

/// Stores bytes.
unsafe fn put_all(place: *mut std::ffi::c_char, bytes: &[u8]) -> c_int {
    unsafe { place.copy_from(bytes.as_ptr().cast(), bytes.len()) };
    0
}
