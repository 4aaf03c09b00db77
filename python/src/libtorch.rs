//! Functions of PyTorch's C++ libraries that tell what intercepts a call. The same questions in Python are six calls, of 30 to 110 ns each.
//!
//! They are looked up among the libraries that PyTorch has loaded, by their C++ names. Such a name holds the types of the arguments, but
//! not that of the result, so answers are compared with Python's before anything relies on them. Where a function is missing, and on
//! other systems than Linux, Python is asked.

use std::ffi::c_void;

/// `c10::GradMode::is_enabled()`.
type IsGradEnabled = unsafe extern "C" fn() -> u8;

/// `c10::impl::TorchDispatchModeTLS::stack_len()`.
type DispatchModes = unsafe extern "C" fn() -> i64;

/// `at::autocast::is_autocast_enabled(c10::DeviceType)`.
type IsAutocast = unsafe extern "C" fn(i8) -> u8;

/// `torch::jit::tracer::getTracingState()`: a reference to a shared pointer, whose first word is the address.
type TracingState = unsafe extern "C" fn() -> *const *const c_void;

/// `at::functorch::getDynamicLayerStack()`: a reference to a vector, whose first words are where its elements begin and end.
type Transforms = unsafe extern "C" fn() -> *const [*const c_void; 2];

/// `c10::DeviceType`s that there are kernels for; AMD's devices go by CUDA's number.
const DEVICE_TYPES: [i8; 2] = [0, 1];

/// A library that this process has loaded.
#[cfg(target_os = "linux")]
pub fn loaded(name: &str) -> Option<libloading::os::unix::Library> {
    use libloading::os::unix::{Library, RTLD_LAZY};

    /// Finds a library that is loaded, and loads none.
    const RTLD_NOLOAD: i32 = 4;
    // SAFETY: no code is loaded, and so none is run.
    unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_NOLOAD) }.ok()
}

/// The functions, of libraries that are never unloaded.
#[derive(Clone, Copy)]
pub struct LibTorch {
    is_grad_enabled: IsGradEnabled,
    dispatch_modes: DispatchModes,
    is_autocast: IsAutocast,
    tracing_state: TracingState,
    transforms: Transforms,
}

impl LibTorch {
    /// Of the PyTorch that this process has loaded, if it has them all.
    #[cfg(target_os = "linux")]
    pub fn loaded() -> Option<Self> {
        let (core, cpu) = (loaded("libc10.so")?, loaded("libtorch_cpu.so")?);
        // SAFETY: the names are those of functions with these arguments; results are compared, see above. Handles are leaked below, so
        // that the libraries stay.
        let found = unsafe {
            LibTorch {
                is_grad_enabled: *core.get(b"_ZN3c108GradMode10is_enabledEv").ok()?,
                dispatch_modes: *core.get(b"_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv").ok()?,
                is_autocast: *cpu.get(b"_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE").ok()?,
                tracing_state: *cpu.get(b"_ZN5torch3jit6tracer15getTracingStateEv").ok()?,
                transforms: *cpu.get(b"_ZN2at9functorch20getDynamicLayerStackEv").ok()?,
            }
        };
        std::mem::forget((core, cpu));
        Some(found)
    }

    /// None: what symbols are called there has not been tried.
    #[cfg(not(target_os = "linux"))]
    pub fn loaded() -> Option<Self> {
        None
    }

    /// Whether gradients are recorded in this thread.
    pub fn is_grad_enabled(&self) -> bool {
        // SAFETY: reads a variable of the thread.
        unsafe { (self.is_grad_enabled)() != 0 }
    }

    /// Whether a dispatch mode is active in this thread.
    pub fn has_dispatch_mode(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.dispatch_modes)() > 0 }
    }

    /// Whether this thread is in a region of autocast, for a device that there are kernels for.
    pub fn is_autocast(&self) -> bool {
        // SAFETY: as above.
        DEVICE_TYPES.iter().any(|&kind| unsafe { (self.is_autocast)(kind) != 0 })
    }

    /// Whether `torch.jit.trace` records this thread.
    pub fn is_tracing(&self) -> bool {
        // SAFETY: the reference is to a variable of the thread.
        unsafe { !(*(self.tracing_state)()).is_null() }
    }

    /// Whether this thread is in a transform of `torch.func`.
    pub fn is_transformed(&self) -> bool {
        // SAFETY: as above.
        let [begin, end] = unsafe { *(self.transforms)() };
        begin != end
    }
}
