//! HIP's kernels in the simulator. `FAKE_GPU_SIMULATE` is the command that makes a shared object of a C++ source, as the
//! simulator compiles kernels: words, one to a line. A code object is such a shared object behind a few bytes that say
//! so; the compiler makes it, a module opens it, a launch runs it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use crate::Raw;

const VARIABLE: &str = "FAKE_GPU_SIMULATE";

/// What a code object begins with; its length follows.
const MAGIC: [u8; 8] = *b"HIPINSIM";

/// Makes kernels callable by the bytes of their argument.
const CALLS: &str = "
namespace fake_gpu {
template <typename A> void call(void (*kernel)(A), const void* bytes) {
    A arguments;
    __builtin_memcpy(&arguments, bytes, sizeof(A));
    kernel(arguments);
}
}
";

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> Raw;
    fn dlsym(library: Raw, name: *const c_char) -> Raw;
}

pub fn is_on() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// A loaded code object. It stays open, as the simulator's threads may have used it.
pub struct CodeObject {
    launch: Launch,
    library: usize,
    call: usize,
    name: String,
}

/// Where launches find the stacks of those before.
static STACKS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// `causeway_simulator_launch` of the simulator's runtime.
type Launch = unsafe extern "C" fn(
    Raw,
    *const c_void,
    *const c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut *mut c_void,
    *mut c_char,
    usize,
) -> c_int;

/// The name of the entry that a text defines: the last word before the parenthesis that follows the last macro.
fn entry(text: &str) -> Option<&str> {
    let kernel = &text[text.rfind("CAUSEWAY_KERNEL(")?..];
    let rest = &kernel[kernel.find(')')? + 1..];
    rest[..rest.find('(')?].split_whitespace().next_back()
}

/// Makes a code object, or says why not.
pub fn compile(text: &str) -> Result<Vec<u8>, String> {
    let entry = entry(text).ok_or("error: no kernel in the text")?;
    let folder = Folder::new()?;
    let (source, object) = (folder.0.join("kernel.cpp"), folder.0.join("kernel.so"));
    let thunk = format!(
        "{CALLS}extern \"C\" void call_{entry}(const void* bytes) {{ fake_gpu::call(&{entry}, bytes); }}\n\
         extern \"C\" const char fake_gpu_entry[] = \"{entry}\";\n"
    );
    std::fs::write(&source, format!("{text}{thunk}")).map_err(|error| error.to_string())?;
    let words = std::env::var(VARIABLE).map_err(|error| error.to_string())?;
    let mut words = words.lines();
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let code = std::fs::read(&object).map_err(|error| error.to_string())?;
    Ok([&MAGIC[..], &(code.len() as u64).to_ne_bytes(), &code].concat())
}

/// Opens a code object.
pub unsafe fn load(image: *const c_void) -> Option<Arc<CodeObject>> {
    let image = image.cast::<u8>();
    if unsafe { std::slice::from_raw_parts(image, 8) } != MAGIC {
        return None;
    }
    let length = unsafe { image.add(8).cast::<u64>().read_unaligned() };
    let code = unsafe { std::slice::from_raw_parts(image.add(16), length as usize) };
    let folder = Folder::new().ok()?;
    let file = folder.0.join("kernel.so");
    std::fs::File::create(&file).and_then(|mut file| file.write_all(code)).ok()?;
    let path = std::ffi::CString::new(file.to_str()?).ok()?;
    // RTLD_NOW: whatever is missing shows here.
    let library = unsafe { dlopen(path.as_ptr(), 2) };
    if library.is_null() {
        return None;
    }
    let name = unsafe { CStr::from_ptr(dlsym(library, c"fake_gpu_entry".as_ptr()).cast()) }
        .to_str()
        .ok()?
        .to_string();
    let thunk = std::ffi::CString::new(format!("call_{name}")).ok()?;
    let (launch, call) =
        unsafe { (dlsym(library, c"causeway_simulator_launch".as_ptr()), dlsym(library, thunk.as_ptr())) };
    if launch.is_null() || call.is_null() {
        return None;
    }
    let launch = unsafe { std::mem::transmute::<Raw, Launch>(launch) };
    Some(Arc::new(CodeObject { launch, library: library as usize, call: call as usize, name }))
}

impl CodeObject {
    pub fn has(&self, name: &CStr) -> bool {
        self.library != 0 && name.to_str() == Ok(self.name.as_str())
    }

    /// Runs a grid to its end.
    pub unsafe fn launch(
        &self,
        grid: [c_uint; 3],
        threads: c_uint,
        shared: c_uint,
        argument: Raw,
    ) -> Result<(), ()> {
        let mut message = [0; 1024];
        let (cluster, order, seed, workers) = (1, 0, 0, 2);
        let status = unsafe {
            (self.launch)(
                self.call as Raw,
                argument,
                grid.as_ptr(),
                threads,
                cluster,
                shared,
                order,
                seed,
                workers,
                STACKS.as_ptr(),
                message.as_mut_ptr(),
                message.len(),
            )
        };
        if status == 0 {
            return Ok(());
        }
        eprintln!("{}: {}", self.name, unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy());
        Err(())
    }
}

/// A folder that is removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Result<Self, String> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("fake-gpu-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
