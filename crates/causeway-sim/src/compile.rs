//! Turns a plan's program into a shared object of host code.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;

use causeway::backend::gpu::plan::Plan;
use causeway::{Error, Result};
use libloading::Library;

use crate::LaunchFunction;

const RUNTIME: &str = include_str!("../runtime/simulator.cpp");

/// Compilers by preference: the kernels need `_Float16`, which g++ has on fewer targets.
const CANDIDATES: &[&str] =
    &["clang++-19", "clang++-20", "clang++-18", "clang++-17", "clang++-16", "clang++"];

/// What every translation unit is compiled with. Contraction is off because a GPU's compiler may fuse what is
/// written as a product and a sum, but a kernel may not depend on it; fused operations are written as such.
const OPTIONS: &[&str] =
    &["-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread"];

/// A C++ compiler, and the simulator's own half, compiled once.
pub(crate) struct Compiler {
    program: PathBuf,
    options: Vec<String>,
    runtime: PathBuf,
    folder: PathBuf,
    // Dropped last: removes the folder unless it is the user's.
    _temporary: Option<tempfile::TempDir>,
}

/// A loaded kernel.
pub(crate) struct Module {
    pub launch: LaunchFunction,
    pub call: unsafe extern "C" fn(*const c_void),
    /// Size of the kernel's one parameter.
    pub argument_bytes: usize,
    _library: Library,
}

impl Compiler {
    /// Finds a compiler: `CAUSEWAY_SIM_CXX`, or the first of a list on the path. `CAUSEWAY_SIM_FLAGS` adds
    /// options (sanitizers, coverage); `CAUSEWAY_SIM_DIR` keeps compiled kernels from run to run.
    pub fn find(wave_size: u32) -> Result<Self> {
        let program = match std::env::var_os("CAUSEWAY_SIM_CXX") {
            Some(path) => PathBuf::from(path),
            None => CANDIDATES
                .iter()
                .find(|name| {
                    Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success())
                })
                .map(PathBuf::from)
                .ok_or_else(|| Error::SimulatorCompiler {
                    message: format!(
                        "none of {} is on the PATH; install clang 19, for example: apt-get install clang-19",
                        CANDIDATES.join(", ")
                    ),
                })?,
        };
        let mut options: Vec<String> = OPTIONS.iter().map(ToString::to_string).collect();
        if cfg!(target_arch = "x86_64") {
            // Without them a fused multiply-add is a call, and an f16 conversion too.
            options.extend(["-mfma".to_string(), "-mf16c".to_string()]);
        }
        options.push(format!("-DCAUSEWAY_WAVE_SIZE={wave_size}"));
        options.push("-DCAUSEWAY_HOST_SIMULATION".to_string());
        if let Ok(flags) = std::env::var("CAUSEWAY_SIM_FLAGS") {
            options.extend(flags.split_whitespace().map(ToString::to_string));
        }
        let (folder, temporary) = match std::env::var_os("CAUSEWAY_SIM_DIR") {
            Some(folder) => (PathBuf::from(folder), None),
            None => {
                let folder = tempfile::tempdir().map_err(|error| file_error("a temporary folder", &error))?;
                (folder.path().to_path_buf(), Some(folder))
            }
        };
        std::fs::create_dir_all(&folder)
            .map_err(|error| file_error(&folder.display().to_string(), &error))?;
        let identity = blake3::hash(format!("{}\n{options:?}\n{RUNTIME}", program.display()).as_bytes());
        let runtime = folder.join(format!("runtime-{}.o", &identity.to_hex()[..24]));
        let compiler = Compiler { program, options, runtime, folder, _temporary: temporary };
        if !compiler.runtime.exists() {
            compiler.compile(RUNTIME, &["-c"], &compiler.runtime, "runtime/simulator.cpp")?;
        }
        Ok(compiler)
    }

    /// Compiles and loads one program.
    pub fn module(&self, key: &str, text: &str, plan: &Plan) -> Result<Module> {
        let entry = plan.entry;
        let unit = format!(
            "{text}\n\
             #line 1 \"entry\"\n\
             template <typename A> constexpr unsigned long causeway_argument_bytes(void (*)(A)) {{ return sizeof(A); }}\n\
             template <typename A> void causeway_call(void (*kernel)(A), const void* bytes) {{\n\
                 A arguments;\n\
                 __builtin_memcpy(&arguments, bytes, sizeof(A));\n\
                 kernel(arguments);\n\
             }}\n\
             extern \"C\" const unsigned long causeway_simulated_bytes = causeway_argument_bytes(&{entry});\n\
             extern \"C\" void causeway_simulated_call(const void* bytes) {{ causeway_call(&{entry}, bytes); }}\n"
        );
        let identity = blake3::hash(format!("{key}\n{}", self.runtime.display()).as_bytes());
        let object = self.folder.join(format!("{}.so", &identity.to_hex()[..24]));
        if !object.exists() {
            let runtime = self.runtime.display().to_string();
            self.compile(&unit, &["-shared", "-Wl,-Bsymbolic", &runtime], &object, entry)?;
        }
        load(&object)
    }

    /// Runs the compiler on `text`; the result appears under its name only when it is complete.
    fn compile(&self, text: &str, extra: &[&str], to: &Path, what: &str) -> Result<()> {
        let failed = |error: std::io::Error| file_error(&self.folder.display().to_string(), &error);
        let stage = tempfile::tempdir_in(&self.folder).map_err(failed)?;
        let (source, output) = (stage.path().join("unit.cpp"), stage.path().join("unit.out"));
        std::fs::write(&source, text).map_err(failed)?;
        let result = Command::new(&self.program)
            .args(&self.options)
            .arg(&source)
            .args(extra)
            .arg("-o")
            .arg(&output)
            .output()
            .map_err(|error| file_error(&self.program.display().to_string(), &error))?;
        if !result.status.success() {
            let log = String::from_utf8_lossy(&result.stderr).into_owned();
            let message = format!("{} refused {what}:\n{log}", self.program.display());
            return Err(Error::SimulatorCompiler { message });
        }
        std::fs::rename(&output, to).map_err(failed)
    }
}

fn load(object: &Path) -> Result<Module> {
    let failed = |error: libloading::Error| Error::SimulatorCompiler { message: error.to_string() };
    // SAFETY: the object was made by `Compiler::compile`; its only initialisers are those of the C++ runtime.
    let library = unsafe { Library::new(object) }.map_err(failed)?;
    // SAFETY: runtime/simulator.cpp and `Compiler::module` define these names with these types, and the library
    // stays open as long as the module.
    unsafe {
        let launch = *library.get::<LaunchFunction>(b"causeway_simulator_launch").map_err(failed)?;
        let call = *library
            .get::<unsafe extern "C" fn(*const c_void)>(b"causeway_simulated_call")
            .map_err(failed)?;
        let bytes = **library.get::<*const u64>(b"causeway_simulated_bytes").map_err(failed)?;
        Ok(Module { launch, call, argument_bytes: bytes as usize, _library: library })
    }
}

fn file_error(what: &str, error: &std::io::Error) -> Error {
    Error::SimulatorCompiler { message: format!("{what}: {error}") }
}
