//! Functions that CUDA and HIP have under different names, and what the compilers have in common.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::state::{CURRENT, Program, call, state};
use crate::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_IMAGE, INVALID_VALUE,
    LAUNCH_FAILED, MEMORY, NOT_FOUND, Raw, devices, put, put_all, simulated,
};

fn has_context(amd: bool) -> bool {
    amd || CURRENT.with_borrow(|(stack, _)| !stack.is_empty())
}

/// Arguments for people: `bytes 16, stream 0x100`.
macro_rules! texts {
    ($($argument:ident),*) => {{
        let texts: &[String] = &[$(format!("{} {:?}", stringify!($argument), $argument)),*];
        texts.join(", ")
    }};
}

/// Functions under both vendors' names. `amd` says which was called; those marked `current` need a context.
macro_rules! api {
    ($($(#[$mark:ident])? $name:ident ($($argument:ident: $type:ty),*) = $cuda:literal / $hip:literal
        |$amd:ident, $state:ident| $body:expr)*) => {$(
        mod $name {
            use super::*;

            // What a function does not look at is recorded all the same.
            #[allow(unused_variables)]
            unsafe fn common($amd: bool, $($argument: $type),*) -> c_int {
                $(if !api!(@$mark $amd) { return INVALID_CONTEXT; })?
                let _ = $amd;
                state(|$state| { let _ = &$state; $body })
            }

            #[unsafe(export_name = $cuda)]
            unsafe extern "C" fn cuda($($argument: $type),*) -> c_int {
                call($cuda, texts!($($argument),*), || unsafe { common(false, $($argument),*) })
            }

            #[unsafe(export_name = $hip)]
            unsafe extern "C" fn hip($($argument: $type),*) -> c_int {
                call($hip, texts!($($argument),*), || unsafe { common(true, $($argument),*) })
            }
        }
    )*};
    (@current $amd:ident) => { has_context($amd) };
}

api! {
    init(flags: c_uint) = "cuInit" / "hipInit" |_amd, _s| 0
    driver_version(out: *mut c_int) = "cuDriverGetVersion" / "hipDriverGetVersion"
        |amd, _s| unsafe { put(out, if amd { 60_443_484 } else { 13_000 }) }
    device_count(out: *mut c_int) = "cuDeviceGetCount" / "hipGetDeviceCount" |_amd, _s| unsafe { put(out, devices()) }
    device_get(out: *mut c_int, ordinal: c_int) = "cuDeviceGet" / "hipDeviceGet" |_amd, _s| {
        if (0..devices()).contains(&ordinal) { unsafe { put(out, ordinal) } } else { INVALID_DEVICE }
    }
    device_name(out: *mut c_char, length: c_int, device: c_int) = "cuDeviceGetName" / "hipDeviceGetName" |_amd, _s| {
        let name = b"Fake GPU\0";
        assert!(length as usize > name.len());
        unsafe { out.copy_from(name.as_ptr().cast(), name.len()) };
        0
    }
    device_attribute(out: *mut c_int, attribute: c_int, device: c_int)
        = "cuDeviceGetAttribute" / "hipDeviceGetAttribute" |amd, _s| {
        let value = match (amd, attribute) {
            (false, 75) => 9,
            (false, 76) => 0,
            (false, 10) => 32,
            (true, 87) => 64,
            (false, 16) | (true, 63) => 4,
            (false, 39) | (true, 57) => 2048,
            (false, 82) | (true, 72) => 65_536,
            (false, 81 | 97) => 227 << 10,
            (true, 74 | 10_002) => 64 << 10,
            (false, 38) | (true, 19) => 1 << 20,
            (false, 115) | (true, 88) => c_int::from(std::env::var_os("FAKE_GPU_NO_POOLS").is_none()),
            (false, 13 | 33 | 34 | 36 | 37 | 50) | (true, 5 | 59 | 60 | 67 | 68 | 69) => 1,
            _ => return INVALID_VALUE,
        };
        unsafe { put(out, value) }
    }
    device_total_memory(out: *mut usize, device: c_int) = "cuDeviceTotalMem_v2" / "hipDeviceTotalMem"
        |_amd, _s| unsafe { put(out, MEMORY) }
    #[current] memory_info(free: *mut usize, total: *mut usize) = "cuMemGetInfo_v2" / "hipMemGetInfo" |_amd, s| {
        unsafe { put(free, MEMORY - s.used) + put(total, MEMORY) }
    }

    #[current] stream_create(out: *mut Raw, flags: c_uint) = "cuStreamCreate" / "hipStreamCreateWithFlags" |_amd, s| {
        assert_eq!(flags, 1, "own streams do not wait for the default stream");
        unsafe { put(out, s.make("stream") as Raw) }
    }
    #[current] stream_destroy(stream: Raw) = "cuStreamDestroy_v2" / "hipStreamDestroy"
        |_amd, s| s.end("stream", stream)
    #[current] stream_synchronize(stream: Raw) = "cuStreamSynchronize" / "hipStreamSynchronize"
        |_amd, s| s.refuse_recorded(stream)
    #[current] stream_query(stream: Raw) = "cuStreamQuery" / "hipStreamQuery" |_amd, s| s.refuse_recorded(stream)
    #[current] stream_wait_event(stream: Raw, event: Raw, flags: c_uint) = "cuStreamWaitEvent" / "hipStreamWaitEvent"
        |_amd, s| if s.has("event", event) { s.stream(stream) } else { INVALID_VALUE }
    #[current] stream_id(stream: Raw, out: *mut u64) = "cuStreamGetId" / "hipStreamGetId" |_amd, s| {
        match s.refuse_recorded(stream) {
            0 => unsafe { put(out, stream as u64 + 7) },
            code => code,
        }
    }

    #[current] event_create(out: *mut Raw, flags: c_uint) = "cuEventCreate" / "hipEventCreateWithFlags"
        |_amd, s| unsafe { put(out, s.make("event") as Raw) }
    #[current] event_destroy(event: Raw) = "cuEventDestroy_v2" / "hipEventDestroy" |_amd, s| s.end("event", event)
    #[current] event_record(event: Raw, stream: Raw) = "cuEventRecord" / "hipEventRecord"
        |_amd, s| if s.has("event", event) { s.stream(stream) } else { INVALID_VALUE }
    #[current] event_synchronize(event: Raw) = "cuEventSynchronize" / "hipEventSynchronize"
        |_amd, s| if s.has("event", event) { 0 } else { INVALID_VALUE }
    #[current] event_elapsed(out: *mut f32, start: Raw, end: Raw) = "cuEventElapsedTime" / "hipEventElapsedTime"
        |_amd, _s| unsafe { put(out, 1.5) }

    #[current] allocate(out: *mut u64, bytes: usize) = "cuMemAlloc_v2" / "hipMalloc" |_amd, s| match s.allocate(bytes) {
        Ok(address) => unsafe { put(out, address) },
        Err(code) => code,
    }
    #[current] free(address: u64) = "cuMemFree_v2" / "hipFree"
        |_amd, s| s.free(address)
    #[current] copy_to_device(to: u64, from: *const c_void, bytes: usize, stream: Raw)
        = "cuMemcpyHtoDAsync_v2" / "hipMemcpyHtoDAsync" |_amd, s| match (s.stream(stream), s.bytes(to, bytes)) {
        (0, Some(place)) => {
            place.copy_from_slice(unsafe { std::slice::from_raw_parts(from.cast(), bytes) });
            0
        }
        (code, _) => code.max(INVALID_VALUE),
    }
    #[current] copy_to_host(to: *mut c_void, from: u64, bytes: usize, stream: Raw)
        = "cuMemcpyDtoHAsync_v2" / "hipMemcpyDtoHAsync" |_amd, s| match (s.stream(stream), s.bytes(from, bytes)) {
        (0, Some(place)) => {
            unsafe { to.cast::<u8>().copy_from(place.as_ptr(), bytes) };
            0
        }
        (code, _) => code.max(INVALID_VALUE),
    }
    #[current] copy_on_device(to: u64, from: u64, bytes: usize, stream: Raw)
        = "cuMemcpyDtoDAsync_v2" / "hipMemcpyDtoDAsync" |_amd, s| {
        let copy = s.bytes(from, bytes).map(|place| place.to_vec());
        match (s.stream(stream), copy, s.bytes(to, bytes)) {
            (0, Some(copy), Some(place)) => {
                place.copy_from_slice(&copy);
                0
            }
            (code, ..) => code.max(INVALID_VALUE),
        }
    }
    #[current] fill_bytes(to: u64, value: u8, bytes: usize, stream: Raw) = "cuMemsetD8Async" / "hipMemsetD8Async"
        |_amd, s| match (s.stream(stream), s.bytes(to, bytes)) {
        (0, Some(place)) => {
            place.fill(value);
            0
        }
        (code, _) => code.max(INVALID_VALUE),
    }
    #[current] pool_create(out: *mut Raw, properties: *const c_int) = "cuMemPoolCreate" / "hipMemPoolCreate" |_amd, s| {
        // Pinned, not shared, on a device, this one.
        let head = unsafe { std::slice::from_raw_parts(properties, 4) };
        assert!(head[..3] == [1, 0, 1] && head[3] < devices(), "{head:?}");
        unsafe { put(out, s.make("pool") as Raw) }
    }
    #[current] pool_set(pool: Raw, attribute: c_int, value: *mut c_void) = "cuMemPoolSetAttribute" / "hipMemPoolSetAttribute"
        |_amd, s| if s.has("pool", pool) && attribute == 4 { 0 } else { INVALID_VALUE }
    #[current] pool_destroy(pool: Raw) = "cuMemPoolDestroy" / "hipMemPoolDestroy" |_amd, s| s.end("pool", pool)
    #[current] pool_allocate(out: *mut u64, bytes: usize, pool: Raw, stream: Raw)
        = "cuMemAllocFromPoolAsync" / "hipMallocFromPoolAsync" |_amd, s| {
        assert!(s.has("pool", pool));
        match (s.stream(stream), s.allocate(bytes)) {
            (0, Ok(address)) => unsafe { put(out, address) },
            (0, Err(code)) | (code, _) => code,
        }
    }
    #[current] pool_free(address: u64, stream: Raw) = "cuMemFreeAsync" / "hipFreeAsync" |_amd, s| match s.stream(stream) {
        0 => s.free(address),
        code => code,
    }

    #[current] module_load(out: *mut Raw, image: *const c_void) = "cuModuleLoadData" / "hipModuleLoadData" |amd, s| {
        if amd && simulated::is_on() {
            let Some(code) = (unsafe { simulated::load(image) }) else { return INVALID_IMAGE };
            let module = s.make("module");
            s.code.insert(module, code);
            return unsafe { put(out, module as Raw) };
        }
        match unsafe { CStr::from_ptr(image.cast()) }.to_str() {
            Ok(text) if text.contains("another architecture") => INVALID_IMAGE,
            _ => unsafe { put(out, s.make("module") as Raw) },
        }
    }
    #[current] module_unload(module: Raw) = "cuModuleUnload" / "hipModuleUnload" |_amd, s| s.end_module(module)
    #[current] module_function(out: *mut Raw, module: Raw, name: *const c_char) = "cuModuleGetFunction" / "hipModuleGetFunction"
        |_amd, s| {
        // Modules have one function each, under the module's handle.
        let name = unsafe { CStr::from_ptr(name) };
        let known = match s.code.get(&(module as usize)) {
            Some(code) => code.has(name),
            None => name != c"absent",
        };
        if s.has("module", module) && known { unsafe { put(out, module) } } else { NOT_FOUND }
    }
    #[current] function_attribute(out: *mut c_int, attribute: c_int, function: Raw)
        = "cuFuncGetAttribute" / "hipFuncGetAttribute" |_amd, _s| unsafe { put(out, 10 * attribute) }
    #[current] occupancy(out: *mut c_int, function: Raw, threads: c_int, shared: usize)
        = "cuOccupancyMaxActiveBlocksPerMultiprocessor" / "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        |_amd, _s| unsafe { put(out, 2048 / threads) }
    #[current] launch(function: Raw, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Raw, arguments: *mut *mut c_void, extra: *mut *mut c_void)
        = "cuLaunchKernel" / "hipModuleLaunchKernel" |_amd, s| {
        let code = s.launch(function, bx * by * bz, stream, arguments);
        match s.code.get(&(function as usize)) {
            Some(kernel) if code == 0 => {
                let done = unsafe { kernel.launch([gx, gy, gz], bx * by * bz, shared, *arguments) };
                done.map_or(LAUNCH_FAILED, |()| 0)
            }
            _ => code,
        }
    }

    #[current] capture_begin(stream: Raw, mode: c_int) = "cuStreamBeginCapture_v2" / "hipStreamBeginCapture" |_amd, s| {
        let number = s.number();
        match s.recordings.insert(stream as usize, number) {
            None => 0,
            Some(_) => CAPTURE_UNSUPPORTED,
        }
    }
    #[current] capture_end(stream: Raw, out: *mut Raw) = "cuStreamEndCapture" / "hipStreamEndCapture"
        |_amd, s| match s.recordings.remove(&(stream as usize)) {
        None => INVALID_VALUE,
        Some(0) => CAPTURE_INVALIDATED,
        // A recording that ends in a failure leaves no graph.
        Some(_) if s.failing => 0,
        Some(_) => unsafe { put(out, s.make("graph") as Raw) },
    }
    #[current] capture_info(stream: Raw, status: *mut c_int, number: *mut u64)
        = "cuStreamGetCaptureInfo" / "hipStreamGetCaptureInfo" |_amd, s| match s.recordings.get(&(stream as usize)) {
        None => unsafe { put(status, 0) },
        Some(0) => unsafe { put(status, 2) },
        Some(id) => unsafe { put(status, 1) + put(number, *id) },
    }
    capture_mode_exchange(mode: *mut c_int) = "cuThreadExchangeStreamCaptureMode" / "hipThreadExchangeStreamCaptureMode"
        |_amd, _s| 0
    #[current] graph_instantiate(out: *mut Raw, graph: Raw, flags: u64)
        = "cuGraphInstantiateWithFlags" / "hipGraphInstantiateWithFlags"
        |_amd, s| if s.has("graph", graph) { unsafe { put(out, s.make("executable") as Raw) } } else { INVALID_VALUE }
    #[current] graph_launch(executable: Raw, stream: Raw) = "cuGraphLaunch" / "hipGraphLaunch"
        |_amd, s| if s.has("executable", executable) { s.stream(stream) } else { INVALID_VALUE }
    #[current] graph_destroy(graph: Raw) = "cuGraphDestroy" / "hipGraphDestroy" |_amd, s| s.end("graph", graph)
    #[current] executable_destroy(executable: Raw) = "cuGraphExecDestroy" / "hipGraphExecDestroy"
        |_amd, s| s.end("executable", executable)

    // ---- the run-time compilers, whose code is the text that they are given ------------------------
    rtc_version(major: *mut c_int, minor: *mut c_int) = "nvrtcVersion" / "hiprtcVersion"
        |_amd, _s| unsafe { put(major, 13) + put(minor, 0) }
    rtc_create(out: *mut Raw, text: *const c_char, name: *const c_char, headers: c_int, texts: *const *const c_char,
        names: *const *const c_char) = "nvrtcCreateProgram" / "hiprtcCreateProgram" |_amd, s| {
        let program = s.make("program");
        let text = unsafe { CStr::from_ptr(text) }.to_owned();
        s.programs.insert(program, Program { text, log: c"made up by the test".to_owned(), code: Vec::new() });
        unsafe { put(out, program as Raw) }
    }
    rtc_compile(program: Raw, count: c_int, options: *const *const c_char) = "nvrtcCompileProgram" / "hiprtcCompileProgram"
        |amd, s| match s.programs.get_mut(&(program as usize)) {
        Some(program) => program.compile(amd && simulated::is_on()),
        None => INVALID_VALUE,
    }
    rtc_log_size(program: Raw, out: *mut usize) = "nvrtcGetProgramLogSize" / "hiprtcGetProgramLogSize"
        |_amd, s| unsafe { put(out, s.programs[&(program as usize)].log.count_bytes() + 1) }
    rtc_log(program: Raw, out: *mut c_char) = "nvrtcGetProgramLog" / "hiprtcGetProgramLog"
        |_amd, s| unsafe { put_all(out, s.programs[&(program as usize)].log.as_bytes_with_nul()) }
    rtc_code_size(program: Raw, out: *mut usize) = "nvrtcGetCUBINSize" / "hiprtcGetCodeSize"
        |_amd, s| unsafe { put(out, s.programs[&(program as usize)].code.len()) }
    rtc_code(program: Raw, out: *mut c_char) = "nvrtcGetCUBIN" / "hiprtcGetCode"
        |_amd, s| unsafe { put_all(out, &s.programs[&(program as usize)].code) }
    rtc_destroy(program: *mut Raw) = "nvrtcDestroyProgram" / "hiprtcDestroyProgram" |_amd, s| unsafe {
        s.programs.remove(&(*program as usize));
        s.end("program", *program)
    }
}
