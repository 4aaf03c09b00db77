//! A driver and run-time compiler that live in host memory: `libcuda`, `libamdhip64`, `libnvrtc` and `libhiprtc` in one
//! library, built by `gpu_fake.rs` and found in their place. Kernels do nothing; everything else is kept account of.
//! Any call can be made to fail, and the rules that the real ones enforce are enforced: calls need a current
//! context, a recorded stream takes launches and no questions, memory is freed once.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

type Raw = *mut c_void;

const INVALID_VALUE: c_int = 1;
const NO_MEMORY: c_int = 2;
const INVALID_DEVICE: c_int = 101;
const INVALID_IMAGE: c_int = 200;
const INVALID_CONTEXT: c_int = 201;
const NOT_FOUND: c_int = 500;
const CAPTURE_UNSUPPORTED: c_int = 900;
const CAPTURE_INVALIDATED: c_int = 901;

/// Devices that the fake has, and bytes of memory of each.
const DEVICES: c_int = 2;
const MEMORY: usize = 1 << 30;

#[derive(Default)]
struct State {
    /// Calls made so far, and the one to fail with a status.
    calls: u64,
    fail: Option<(u64, c_int)>,
    failed: String,
    lost: bool,
    next: usize,
    /// Live objects by kind and handle.
    live: HashSet<(&'static str, usize)>,
    memory: HashMap<u64, Box<[u8]>>,
    /// Recorded streams: the recording's number, or 0 for a broken one.
    recordings: HashMap<usize, u64>,
    launches: u64,
    last_launch: Vec<u8>,
    forgotten_errors: u64,
    pending_error: c_int,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// This thread's stack of CUDA contexts, and its HIP device.
    static CURRENT: RefCell<(Vec<usize>, c_int)> = const { RefCell::new((Vec::new(), 0)) };
}

fn state<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(STATE.lock().unwrap().get_or_insert_with(State::default))
}

/// Counts a call; the status that it has to fail with, if any.
fn begin(name: &str) -> Option<c_int> {
    state(|state| {
        state.calls += 1;
        let fail = state.fail.filter(|(at, _)| *at == state.calls).map(|(_, code)| code);
        // A lost device has a compiler still.
        let code = if state.lost && !name.contains("rtc") { Some(700) } else { fail };
        if let Some(code) = code {
            state.failed = name.to_string();
            // HIP keeps errors for whoever asks; the others do not.
            if name.starts_with("hip") && !name.starts_with("hiprtc") {
                state.pending_error = code;
            }
        }
        code
    })
}

impl State {
    fn make(&mut self, kind: &'static str) -> usize {
        self.next += 0x100;
        self.live.insert((kind, self.next));
        self.next
    }

    fn end(&mut self, kind: &'static str, handle: usize) -> c_int {
        if self.live.remove(&(kind, handle)) { 0 } else { INVALID_VALUE }
    }

    fn has(&self, kind: &'static str, handle: usize) -> bool {
        self.live.contains(&(kind, handle))
    }

    /// 0 if work can be put on a stream.
    fn stream(&self, stream: Raw) -> c_int {
        let handle = stream as usize;
        if handle != 0 && !self.has("stream", handle) {
            return INVALID_VALUE;
        }
        if self.recordings.get(&handle) == Some(&0) { CAPTURE_INVALIDATED } else { 0 }
    }

    /// Breaks a recording for a question that it does not take.
    fn refuse_recorded(&mut self, stream: Raw) -> c_int {
        match self.recordings.get_mut(&(stream as usize)) {
            Some(number) => {
                *number = 0;
                CAPTURE_UNSUPPORTED
            }
            None => self.stream(stream),
        }
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, c_int> {
        let used: usize = self.memory.values().map(|block| block.len()).sum();
        if bytes > MEMORY - used {
            return Err(NO_MEMORY);
        }
        let block = vec![0xa5; bytes].into_boxed_slice();
        let address = block.as_ptr() as u64;
        self.memory.insert(address, block);
        Ok(address)
    }

    /// The bytes at an address, which may lie inside a block.
    fn bytes(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        self.memory.iter_mut().find_map(|(start, block)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            block.get_mut(offset..offset.checked_add(length)?)
        })
    }
}

fn has_context(amd: bool) -> bool {
    amd || CURRENT.with_borrow(|(stack, _)| !stack.is_empty())
}

/// Functions under both vendors' names. `amd` says which was called; those marked `current` need a context.
macro_rules! api {
    ($($(#[$mark:ident])? $name:ident ($($argument:ident: $type:ty),*) = $cuda:literal / $hip:literal
        |$amd:ident, $state:ident| $body:expr)*) => {$(
        mod $name {
            use super::*;

            unsafe fn common($amd: bool, $($argument: $type),*) -> c_int {
                $(if !api!(@$mark $amd) { return INVALID_CONTEXT; })?
                let _ = $amd;
                state(|$state| { let _ = &$state; $body })
            }

            #[unsafe(export_name = $cuda)]
            unsafe extern "C" fn cuda($($argument: $type),*) -> c_int {
                begin($cuda).unwrap_or_else(|| unsafe { common(false, $($argument),*) })
            }

            #[unsafe(export_name = $hip)]
            unsafe extern "C" fn hip($($argument: $type),*) -> c_int {
                begin($hip).unwrap_or_else(|| unsafe { common(true, $($argument),*) })
            }
        }
    )*};
    (@current $amd:ident) => { has_context($amd) };
}

/// Stores an answer.
unsafe fn put<T>(place: *mut T, value: T) -> c_int {
    unsafe { place.write(value) };
    0
}

api! {
    init(_flags: c_uint) = "cuInit" / "hipInit" |_amd, _s| 0
    driver_version(out: *mut c_int) = "cuDriverGetVersion" / "hipDriverGetVersion"
        |amd, _s| unsafe { put(out, if amd { 60_443_484 } else { 13_000 }) }
    device_count(out: *mut c_int) = "cuDeviceGetCount" / "hipGetDeviceCount" |_amd, _s| unsafe { put(out, DEVICES) }
    device_get(out: *mut c_int, ordinal: c_int) = "cuDeviceGet" / "hipDeviceGet" |_amd, _s| match ordinal {
        0..DEVICES => unsafe { put(out, ordinal) },
        _ => INVALID_DEVICE,
    }
    device_name(out: *mut c_char, length: c_int, _device: c_int) = "cuDeviceGetName" / "hipDeviceGetName" |_amd, _s| {
        let name = b"Fake GPU\0";
        assert!(length as usize > name.len());
        unsafe { out.copy_from(name.as_ptr().cast(), name.len()) };
        0
    }
    device_attribute(out: *mut c_int, attribute: c_int, _device: c_int)
        = "cuDeviceGetAttribute" / "hipDeviceGetAttribute" |amd, _s| {
        let value = match (amd, attribute) {
            (false, 75) => 9,
            (false, 76) => 0,
            (false, 10) => 32,
            (true, 87) => 64,
            (false, 16) | (true, 63) => 4,
            (false, 39) | (true, 57) => 2048,
            (false, 82) | (true, 72) => 65_536,
            (false, 81 | 97) | (true, 74 | 10_002) => 64 << 10,
            (false, 38) | (true, 19) => 1 << 20,
            (false, 115) | (true, 88) => c_int::from(std::env::var_os("FAKE_GPU_NO_POOLS").is_none()),
            (false, 13 | 33 | 34 | 36 | 37 | 50) | (true, 5 | 59 | 60 | 67 | 68 | 69) => 1,
            _ => return INVALID_VALUE,
        };
        unsafe { put(out, value) }
    }
    device_total_memory(out: *mut usize, _device: c_int) = "cuDeviceTotalMem_v2" / "hipDeviceTotalMem"
        |_amd, _s| unsafe { put(out, MEMORY) }
    #[current] memory_info(free: *mut usize, total: *mut usize) = "cuMemGetInfo_v2" / "hipMemGetInfo" |_amd, s| {
        let used: usize = s.memory.values().map(|block| block.len()).sum();
        unsafe { put(free, MEMORY - used) + put(total, MEMORY) }
    }

    #[current] stream_create(out: *mut Raw, flags: c_uint) = "cuStreamCreate" / "hipStreamCreateWithFlags" |_amd, s| {
        assert_eq!(flags, 1, "own streams do not wait for the default stream");
        unsafe { put(out, s.make("stream") as Raw) }
    }
    #[current] stream_destroy(stream: Raw) = "cuStreamDestroy_v2" / "hipStreamDestroy"
        |_amd, s| s.end("stream", stream as usize)
    #[current] stream_synchronize(stream: Raw) = "cuStreamSynchronize" / "hipStreamSynchronize"
        |_amd, s| s.refuse_recorded(stream)
    #[current] stream_query(stream: Raw) = "cuStreamQuery" / "hipStreamQuery" |_amd, s| s.refuse_recorded(stream)
    #[current] stream_wait_event(stream: Raw, event: Raw, _flags: c_uint) = "cuStreamWaitEvent" / "hipStreamWaitEvent"
        |_amd, s| if s.has("event", event as usize) { s.stream(stream) } else { INVALID_VALUE }
    #[current] stream_id(stream: Raw, out: *mut u64) = "cuStreamGetId" / "hipStreamGetId" |_amd, s| {
        match s.refuse_recorded(stream) {
            0 => unsafe { put(out, stream as u64 + 7) },
            code => code,
        }
    }

    #[current] event_create(out: *mut Raw, _flags: c_uint) = "cuEventCreate" / "hipEventCreateWithFlags"
        |_amd, s| unsafe { put(out, s.make("event") as Raw) }
    #[current] event_destroy(event: Raw) = "cuEventDestroy_v2" / "hipEventDestroy" |_amd, s| s.end("event", event as usize)
    #[current] event_record(event: Raw, stream: Raw) = "cuEventRecord" / "hipEventRecord"
        |_amd, s| if s.has("event", event as usize) { s.stream(stream) } else { INVALID_VALUE }
    #[current] event_synchronize(event: Raw) = "cuEventSynchronize" / "hipEventSynchronize"
        |_amd, s| if s.has("event", event as usize) { 0 } else { INVALID_VALUE }
    #[current] event_elapsed(out: *mut f32, _start: Raw, _end: Raw) = "cuEventElapsedTime" / "hipEventElapsedTime"
        |_amd, _s| unsafe { put(out, 1.5) }

    #[current] allocate(out: *mut u64, bytes: usize) = "cuMemAlloc_v2" / "hipMalloc" |_amd, s| match s.allocate(bytes) {
        Ok(address) => unsafe { put(out, address) },
        Err(code) => code,
    }
    #[current] free(address: u64) = "cuMemFree_v2" / "hipFree"
        |_amd, s| if s.memory.remove(&address).is_some() { 0 } else { INVALID_VALUE }
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
        assert!(head[..3] == [1, 0, 1] && head[3] < DEVICES, "{head:?}");
        unsafe { put(out, s.make("pool") as Raw) }
    }
    #[current] pool_set(pool: Raw, attribute: c_int, _value: *mut c_void) = "cuMemPoolSetAttribute" / "hipMemPoolSetAttribute"
        |_amd, s| if s.has("pool", pool as usize) && attribute == 4 { 0 } else { INVALID_VALUE }
    #[current] pool_allocate(out: *mut u64, bytes: usize, pool: Raw, stream: Raw)
        = "cuMemAllocFromPoolAsync" / "hipMallocFromPoolAsync" |_amd, s| {
        assert!(s.has("pool", pool as usize));
        match (s.stream(stream), s.allocate(bytes)) {
            (0, Ok(address)) => unsafe { put(out, address) },
            (0, Err(code)) | (code, _) => code,
        }
    }
    #[current] pool_free(address: u64, stream: Raw) = "cuMemFreeAsync" / "hipFreeAsync" |_amd, s| match s.stream(stream) {
        0 if s.memory.remove(&address).is_some() => 0,
        code => code.max(INVALID_VALUE),
    }

    #[current] module_load(out: *mut Raw, image: *const c_void) = "cuModuleLoadData" / "hipModuleLoadData" |_amd, s| {
        match unsafe { CStr::from_ptr(image.cast()) }.to_str() {
            Ok(text) if text.contains("another architecture") => INVALID_IMAGE,
            _ => unsafe { put(out, s.make("module") as Raw) },
        }
    }
    #[current] module_unload(module: Raw) = "cuModuleUnload" / "hipModuleUnload" |_amd, s| s.end("module", module as usize)
    #[current] module_function(out: *mut Raw, module: Raw, name: *const c_char) = "cuModuleGetFunction" / "hipModuleGetFunction"
        |_amd, s| {
        let known = unsafe { CStr::from_ptr(name) } != c"absent";
        if s.has("module", module as usize) && known { unsafe { put(out, module) } } else { NOT_FOUND }
    }
    #[current] function_attribute(out: *mut c_int, attribute: c_int, _function: Raw)
        = "cuFuncGetAttribute" / "hipFuncGetAttribute" |_amd, _s| unsafe { put(out, 10 * attribute) }
    #[current] occupancy(out: *mut c_int, _function: Raw, threads: c_int, _shared: usize)
        = "cuOccupancyMaxActiveBlocksPerMultiprocessor" / "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        |_amd, _s| unsafe { put(out, 2048 / threads) }
    #[current] launch(function: Raw, _gx: c_uint, _gy: c_uint, _gz: c_uint, bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, stream: Raw, arguments: *mut *mut c_void, _extra: *mut *mut c_void)
        = "cuLaunchKernel" / "hipModuleLaunchKernel" |_amd, s| {
        if !s.has("module", function as usize) || bx > 1024 {
            return INVALID_VALUE;
        }
        let code = s.stream(stream);
        if code == 0 {
            // Both kernels of the tests have arguments of at least this size.
            s.last_launch = unsafe { std::slice::from_raw_parts((*arguments).cast::<u8>(), 24) }.to_vec();
            s.launches += 1;
        }
        code
    }

    #[current] capture_begin(stream: Raw, _mode: c_int) = "cuStreamBeginCapture_v2" / "hipStreamBeginCapture" |_amd, s| {
        s.next += 0x100;
        let number = s.next as u64;
        match s.recordings.insert(stream as usize, number) {
            None => 0,
            Some(_) => CAPTURE_UNSUPPORTED,
        }
    }
    #[current] capture_end(stream: Raw, out: *mut Raw) = "cuStreamEndCapture" / "hipStreamEndCapture"
        |_amd, s| match s.recordings.remove(&(stream as usize)) {
        None => INVALID_VALUE,
        Some(0) => CAPTURE_INVALIDATED,
        Some(_) => unsafe { put(out, s.make("graph") as Raw) },
    }
    #[current] capture_info(stream: Raw, status: *mut c_int, number: *mut u64)
        = "cuStreamGetCaptureInfo" / "hipStreamGetCaptureInfo" |_amd, s| match s.recordings.get(&(stream as usize)) {
        None => unsafe { put(status, 0) },
        Some(0) => unsafe { put(status, 2) },
        Some(id) => unsafe { put(status, 1) + put(number, *id) },
    }
    capture_mode_exchange(_mode: *mut c_int) = "cuThreadExchangeStreamCaptureMode" / "hipThreadExchangeStreamCaptureMode"
        |_amd, _s| 0
    #[current] graph_instantiate(out: *mut Raw, graph: Raw, _flags: u64)
        = "cuGraphInstantiateWithFlags" / "hipGraphInstantiateWithFlags"
        |_amd, s| if s.has("graph", graph as usize) { unsafe { put(out, s.make("executable") as Raw) } } else { INVALID_VALUE }
    #[current] graph_launch(executable: Raw, stream: Raw) = "cuGraphLaunch" / "hipGraphLaunch"
        |_amd, s| if s.has("executable", executable as usize) { s.stream(stream) } else { INVALID_VALUE }
    #[current] graph_destroy(graph: Raw) = "cuGraphDestroy" / "hipGraphDestroy" |_amd, s| s.end("graph", graph as usize)
    #[current] executable_destroy(executable: Raw) = "cuGraphExecDestroy" / "hipGraphExecDestroy"
        |_amd, s| s.end("executable", executable as usize)

    // ---- the run-time compilers, whose code is the text that they are given ------------------------
    rtc_version(major: *mut c_int, minor: *mut c_int) = "nvrtcVersion" / "hiprtcVersion"
        |_amd, _s| unsafe { put(major, 13) + put(minor, 0) }
    rtc_create(out: *mut Raw, text: *const c_char, _name: *const c_char, _n: c_int, _h: *const *const c_char, _i: *const *const c_char)
        = "nvrtcCreateProgram" / "hiprtcCreateProgram"
        |_amd, _s| unsafe { put(out, Box::into_raw(Box::new(CStr::from_ptr(text).to_owned())).cast()) }
    rtc_compile(_program: Raw, _n: c_int, _options: *const *const c_char) = "nvrtcCompileProgram" / "hiprtcCompileProgram"
        |_amd, _s| 0
    rtc_log_size(_program: Raw, out: *mut usize) = "nvrtcGetProgramLogSize" / "hiprtcGetProgramLogSize"
        |_amd, _s| unsafe { put(out, 1) }
    rtc_log(_program: Raw, _out: *mut c_char) = "nvrtcGetProgramLog" / "hiprtcGetProgramLog" |_amd, _s| 0
    rtc_code_size(program: Raw, out: *mut usize) = "nvrtcGetCUBINSize" / "hiprtcGetCodeSize"
        |_amd, _s| unsafe { put(out, (*program.cast::<std::ffi::CString>()).as_bytes_with_nul().len()) }
    rtc_code(program: Raw, out: *mut c_char) = "nvrtcGetCUBIN" / "hiprtcGetCode" |_amd, _s| unsafe {
        let text = &*program.cast::<std::ffi::CString>();
        out.copy_from(text.as_ptr(), text.as_bytes_with_nul().len());
        0
    }
    rtc_destroy(program: *mut Raw) = "nvrtcDestroyProgram" / "hiprtcDestroyProgram" |_amd, _s| unsafe {
        drop(Box::from_raw((*program).cast::<std::ffi::CString>()));
        0
    }
}

// ---- what only one vendor has ----------------------------------------------------------------------

const PRIMARY: usize = 0xc0de_0000;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(out: *mut Raw, device: c_int) -> c_int {
    begin("cuDevicePrimaryCtxRetain").unwrap_or_else(|| unsafe { put(out, (PRIMARY + device as usize) as Raw) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(out: *mut Raw) -> c_int {
    let current = CURRENT.with_borrow(|(stack, _)| stack.last().copied().unwrap_or(0));
    begin("cuCtxGetCurrent").unwrap_or_else(|| unsafe { put(out, current as Raw) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPushCurrent_v2(context: Raw) -> c_int {
    begin("cuCtxPushCurrent_v2").unwrap_or_else(|| {
        CURRENT.with_borrow_mut(|(stack, _)| stack.push(context as usize));
        0
    })
}

/// Pops even when it has to report a failure, as drivers report an earlier one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(out: *mut Raw) -> c_int {
    let popped = CURRENT.with_borrow_mut(|(stack, _)| stack.pop());
    begin("cuCtxPopCurrent_v2").unwrap_or_else(|| match popped {
        Some(context) => unsafe { put(out, context as Raw) },
        None => INVALID_CONTEXT,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncSetAttribute(_function: Raw, _attribute: c_int, _value: c_int) -> c_int {
    begin("cuFuncSetAttribute").unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, out: *mut *const c_char) -> c_int {
    // Codes that the driver does not list get no name.
    let name = if code == 12345 { std::ptr::null() } else { c"CUDA_ERROR_FAKE".as_ptr() };
    unsafe { put(out, name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_code: c_int, out: *mut *const c_char) -> c_int {
    unsafe { put(out, c"made up by the test".as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevice(out: *mut c_int) -> c_int {
    let device = CURRENT.with_borrow(|(_, device)| *device);
    begin("hipGetDevice").unwrap_or_else(|| unsafe { put(out, device) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipSetDevice(device: c_int) -> c_int {
    begin("hipSetDevice").unwrap_or_else(|| {
        CURRENT.with_borrow_mut(|(_, current)| *current = device);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevicePropertiesR0600(out: *mut u8, _device: c_int) -> c_int {
    begin("hipGetDevicePropertiesR0600").unwrap_or_else(|| {
        let architecture = b"gfx942:sramecc+:xnack-\0";
        // Where ROCm 6 has it.
        unsafe { out.add(1160).copy_from(architecture.as_ptr(), architecture.len()) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipRuntimeGetVersion(out: *mut c_int) -> c_int {
    begin("hipRuntimeGetVersion").unwrap_or_else(|| unsafe { put(out, 60_443_484) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetLastError() -> c_int {
    state(|state| {
        state.forgotten_errors += 1;
        std::mem::take(&mut state.pending_error)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetErrorName(_code: c_int) -> *const c_char {
    c"hipErrorFake".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetErrorString(_code: c_int) -> *const c_char {
    c"made up by the test".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetErrorString(_code: c_int) -> *const c_char {
    c"made up by the test".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcGetErrorString(_code: c_int) -> *const c_char {
    c"made up by the test".as_ptr()
}

// ---- what the tests ask and set ---------------------------------------------------------------------

/// Makes the call number `after` from now on fail once with a status; 0 for none.
#[unsafe(no_mangle)]
extern "C" fn fake_fail(after: u64, code: c_int) {
    state(|state| {
        state.fail = (after > 0).then_some((state.calls + after, code));
        state.failed.clear();
        state.pending_error = 0;
    });
}

/// Every call from now on fails as on a lost device.
#[unsafe(no_mangle)]
extern "C" fn fake_lose() {
    state(|state| state.lost = true);
}

/// Writes the name of the call that was made to fail, or nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_failed(out: *mut u8, length: usize) -> usize {
    state(|state| {
        let bytes = state.failed.as_bytes();
        assert!(bytes.len() <= length);
        unsafe { out.copy_from(bytes.as_ptr(), bytes.len()) };
        bytes.len()
    })
}

/// Numbers of the fake's accounts: calls, live objects that end before the process does, live allocations, recordings, launches, depth of this
/// thread's context stack (CUDA) or its device (HIP), the error that HIP would hand to another library.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_accounts(out: *mut u64) {
    let depth = CURRENT.with_borrow(|(stack, device)| stack.len() as u64 + *device as u64);
    state(|state| {
        let accounts = [
            state.calls,
            state.live.iter().filter(|(kind, _)| !matches!(*kind, "module" | "pool")).count() as u64,
            state.memory.len() as u64,
            state.recordings.len() as u64,
            state.launches,
            depth,
            state.pending_error as u64,
        ];
        unsafe { out.copy_from(accounts.as_ptr().cast(), accounts.len()) };
    });
}

/// Writes the first 24 bytes of the last launch's argument.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_last_launch(out: *mut u8) {
    state(|state| unsafe { out.copy_from(state.last_launch.as_ptr(), state.last_launch.len()) });
}
