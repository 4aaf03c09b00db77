//! The C++ compiler that makes host code of kernels: which one, with what options, and where its results are kept.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use causeway::backend::gpu::CompilerFacts;
use causeway::backend::gpu::cache::Cache;
use causeway::backend::gpu::plan::DeviceFacts;
use causeway::{Error, Result};

use crate::kept::{self, file_error};

/// Sources of the simulator's own half, in the order in which they include each other.
const RUNTIME: &[(&str, &str)] = &[
    ("fiber.h", include_str!("../runtime/fiber.h")),
    ("block.h", include_str!("../runtime/block.h")),
    ("simulator.cpp", include_str!("../runtime/simulator.cpp")),
];

/// Compilers by preference: the kernels need `_Float16`, which g++ has on fewer targets.
const CANDIDATES: &[&str] =
    &["clang++-19", "clang++-20", "clang++-21", "clang++-18", "clang++-17", "clang++-16", "clang++"];

/// Older ones lack `_Float16` where the kernels need it.
const OLDEST: u32 = 16;

/// Goes into the names of all that is kept. It changes with the way in which that is read back, so that nothing is found that
/// another version kept.
const KEPT_FORMAT: u32 = 2;

/// What makes a shared object of a kernel's source, beside the options that every translation unit has.
const SHARED: [&str; 2] = ["-shared", "-Wl,-Bsymbolic"];

/// What every translation unit is compiled with. Contraction is off because a GPU's compiler may fuse what is
/// written as a product and a sum, but a kernel may not depend on it; fused operations are written as such.
const OPTIONS: &[&str] = &["-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread"];

/// How far a kernel is optimised. Cases of convolutions are so small that an optimiser takes five times as long as it saves; a
/// product multiplies a million pairs.
fn optimisation(entry: &str) -> &'static str {
    if entry.starts_with("gemm") { "-O1" } else { "-O0" }
}

/// A C++ compiler, and the simulator's own half, compiled once.
pub(crate) struct Compiler {
    program: PathBuf,
    /// The first line of what it says of its version.
    name: String,
    options: Vec<String>,
    runtime: PathBuf,
    folder: PathBuf,
    /// Stands for the compiler, its options and the runtime in the names of what they make.
    identity: blake3::Hash,
    // Dropped last: removes the folder unless it is the user's.
    _temporary: Option<tempfile::TempDir>,
}

/// The compiler that would be used, and what it says of its version.
///
/// # Errors
/// If there is none, with what to install.
pub(crate) fn find_program() -> Result<(PathBuf, String)> {
    let named = std::env::var_os("CAUSEWAY_SIM_CXX").filter(|name| !name.is_empty()).map(PathBuf::from);
    let Some(program) = named else {
        let usable = |program: &Path| said_of(program).ok().map(|version| (PathBuf::from(program), version));
        return CANDIDATES.iter().map(Path::new).find_map(usable).ok_or_else(|| {
            let message = format!(
                "none of {} on the PATH is clang {OLDEST} or later: install it, for example apt-get install clang-19",
                CANDIDATES.join(", ")
            );
            Error::SimulatorCompiler { message }
        });
    };
    match said_of(&program) {
        Ok(version) => Ok((program, version)),
        Err(found) => {
            let message = format!(
                "CAUSEWAY_SIM_CXX is {}, which {found}: expected a clang++ of version {OLDEST} or later, for example \
                 clang++-19",
                program.display()
            );
            Err(Error::SimulatorCompiler { message })
        }
    }
}

/// What a compiler says of its version, if the kernels can be compiled with it; else what was found.
fn said_of(program: &Path) -> std::result::Result<String, String> {
    let output =
        Command::new(program).arg("--version").output().ok().filter(|output| output.status.success());
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    match clang_version(&said) {
        Some(version) if version >= OLDEST => Ok(said),
        Some(version) => Err(format!("is clang {version}")),
        None if said.is_empty() => Err("does not say its version".to_string()),
        None => Err(format!("says that it is {:?}", said.lines().next().unwrap_or_default())),
    }
}

/// The number in `clang version 19.1.7`; vendors put words of their own before it.
fn clang_version(said: &str) -> Option<u32> {
    let (_, number) = said.split_once("clang version ")?;
    number.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

impl Compiler {
    /// Finds a compiler and makes the runtime.
    ///
    /// `CAUSEWAY_SIM_CXX` names the compiler, else it is the first of a list on the path. `CAUSEWAY_SIM_FLAGS` adds
    /// options (sanitizers, coverage). What is compiled is kept in `CAUSEWAY_SIM_DIR`, or else beside the kernel
    /// cache, or nowhere when that is off or cannot be written. A `CAUSEWAY_SIM_DIR` that cannot be written serves if
    /// the runtime is in it; else all is compiled anew in a temporary folder.
    pub fn find(facts: &DeviceFacts) -> Result<Self> {
        let (program, version) = find_program()?;
        let mut options: Vec<String> = OPTIONS.iter().map(ToString::to_string).collect();
        if cfg!(target_arch = "x86_64") {
            // Without them a fused multiply-add is a call, and an f16 conversion too.
            options.extend(["-mfma".to_string(), "-mf16c".to_string()]);
        }
        options.push(format!("-DCAUSEWAY_WAVE_SIZE={}", facts.wave_size));
        options.push("-DCAUSEWAY_HOST_SIMULATION".to_string());
        if has_async_copy(facts) {
            options.push("-DCAUSEWAY_ASYNC_COPY".to_string());
        }
        if facts.architecture.starts_with("gfx90a") {
            options.push("-DCAUSEWAY_UNITS_FLUSH".to_string());
        }
        let flags = std::env::var_os("CAUSEWAY_SIM_FLAGS").unwrap_or_default();
        // What is no text is for the compiler to refuse.
        options.extend(flags.to_string_lossy().split_whitespace().map(ToString::to_string));
        let (mut folder, mut temporary) = folder()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{KEPT_FORMAT}\n{}\n{version}\n{options:?}\n", program.display()).as_bytes());
        RUNTIME.iter().for_each(|(_, text)| {
            hasher.update(text.as_bytes());
        });
        let identity = hasher.finalize();
        let file = format!("runtime-{}.o", short(&identity));
        // Without a runtime that was made before, nothing else that this compiler needs is there either.
        if temporary.is_none() && kept::trusted(&folder.join(&file)).is_none() && !can_be_written(&folder) {
            let own = temporary_folder()?;
            folder = own.path().to_path_buf();
            temporary = Some(own);
        }
        let runtime = folder.join(file);
        let name = version.lines().next().unwrap_or_default().to_string();
        let compiler = Compiler { program, name, options, runtime, folder, identity, _temporary: temporary };
        kept::remove_stale(&compiler.folder);
        compiler.make_runtime()?;
        Ok(compiler)
    }

    /// Its name and version.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What reports say of it.
    pub fn facts(&self) -> CompilerFacts {
        let file = on_path(&self.program);
        let digest = std::fs::read(&file).map(|bytes| blake3::hash(&bytes).to_hex().to_string());
        CompilerFacts {
            name: self.name.clone(),
            file: file.display().to_string(),
            digest: digest.unwrap_or_else(|error| format!("unknown: {error}")),
            options: [&["-O0 (products: -O1)".to_string()], &self.options[..]].concat(),
        }
    }

    /// Where results are kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command that makes a shared object, without its source and its result.
    pub fn command(&self) -> Vec<OsString> {
        let mut words = vec![self.program.clone().into_os_string(), "-O1".into()];
        words.extend(self.options.iter().map(OsString::from));
        words.extend(SHARED.map(OsString::from));
        words.push(self.runtime.clone().into_os_string());
        words
    }

    /// A name for what this compiler makes of a text.
    pub fn key(&self, text: &str) -> String {
        short(&blake3::Hasher::new().update(self.identity.as_bytes()).update(text.as_bytes()).finalize())
    }

    /// Makes a shared object of one unit's text, which stays beside it: debuggers and coverage reports show it. `entry` is
    /// the first of its kernels.
    pub fn shared_object(&self, text: &str, to: &Path, entry: &str) -> Result<()> {
        let source = to.with_extension("cpp");
        causeway::files::write_bytes(&source, text.as_bytes())
            .map_err(|error| file_error(&source.display().to_string(), &std::io::Error::other(error)))?;
        // Each unit has the runtime in it: one that was altered since the last would be kept with the kernels.
        self.make_runtime()?;
        let [shared, symbolic] = SHARED.map(OsStr::new);
        self.start(&source, optimisation(entry), &[shared, symbolic, self.runtime.as_os_str()], to, entry)
    }

    /// Compiles the runtime, unless it is there as it was compiled.
    fn make_runtime(&self) -> Result<()> {
        if kept::trusted(&self.runtime).is_some() {
            return Ok(());
        }
        let failed = |error: std::io::Error| file_error(&self.folder.display().to_string(), &error);
        let stage = kept::stage(&self.folder).map_err(failed)?;
        let mut source = PathBuf::new();
        for (name, text) in RUNTIME {
            source = stage.path().join(name);
            std::fs::write(&source, text).map_err(failed)?;
        }
        self.start(&source, "-O2", &[OsStr::new("-c")], &self.runtime, "the simulator's runtime")?;
        kept::trust(&self.runtime).map(drop)
    }

    /// Runs the compiler; the result appears under its name only when it is complete and on the disk.
    fn start(&self, source: &Path, level: &str, extra: &[&OsStr], to: &Path, what: &str) -> Result<()> {
        let failed = |error: std::io::Error| file_error(&self.folder.display().to_string(), &error);
        let stage = kept::stage(&self.folder).map_err(failed)?;
        let output = stage.path().join("unit.out");
        let result = Command::new(&self.program)
            .arg(level)
            .args(&self.options)
            .arg(source)
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
        File::open(&output).and_then(|file| file.sync_all()).map_err(failed)?;
        std::fs::rename(&output, to).map_err(failed)?;
        // The rename itself is durable once the folder is. Some file systems have no fsync of folders; a name that is lost in a
        // crash there costs one compilation.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// NVIDIA's from sm_80 on copy to shared memory asynchronously, as portable.cuh says.
fn has_async_copy(facts: &DeviceFacts) -> bool {
    let number =
        facts.architecture.strip_prefix("sm_").map(|rest| rest.trim_end_matches(char::is_alphabetic));
    number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number >= 80)
}

/// The folder for compiled kernels, and its owner if nobody keeps it.
fn folder() -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(folder) =
        std::env::var_os("CAUSEWAY_SIM_DIR").filter(|name| !name.is_empty()).map(PathBuf::from)
    {
        std::fs::create_dir_all(&folder)
            .map_err(|error| file_error(&folder.display().to_string(), &error))?;
        return Ok((folder, None));
    }
    let cache = Cache::from_environment();
    if let Some(directory) = cache.directory().filter(|_| !cache.is_read_only()) {
        let folder = directory.join("simulator");
        // A folder that can be made but not written to would fail every kernel later.
        if std::fs::create_dir_all(&folder).is_ok() && can_be_written(&folder) {
            return Ok((folder, None));
        }
    }
    let temporary = temporary_folder()?;
    Ok((temporary.path().to_path_buf(), Some(temporary)))
}

fn temporary_folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|error| file_error("a temporary folder", &error))
}

/// True if files can be made in the folder.
fn can_be_written(folder: &Path) -> bool {
    tempfile::tempfile_in(folder).is_ok()
}

/// The file that a program's name stands for, links followed.
fn on_path(program: &Path) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A name with a slash in it is a path by itself.
    let named = program.components().count() > 1;
    let found = match named {
        true => Some(program.to_path_buf()),
        false => std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file()),
    };
    let found = found.unwrap_or_else(|| program.to_path_buf());
    found.canonicalize().unwrap_or(found)
}

/// Enough of a hash to be a file's name.
fn short(hash: &blake3::Hash) -> String {
    hash.to_hex()[..24].to_string()
}

#[cfg(test)]
mod tests {
    use super::clang_version;

    #[test]
    fn versions_follow_what_vendors_say() {
        for (said, version) in [
            ("Debian clang version 19.1.7 (3~deb12u1)\nTarget: x86_64-pc-linux-gnu\n", Some(19)),
            ("clang version 15.0.0\n", Some(15)),
            ("Apple clang version 16.0.0 (clang-1600.0.26.4)\n", Some(16)),
            ("AMD clang version 18.0.0git (https://github.com/RadeonOpenCompute/llvm-project)\n", Some(18)),
            ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\n", None),
            ("clang version unknown\n", None),
            ("", None),
        ] {
            assert_eq!(clang_version(said), version, "{said}");
        }
    }
}
