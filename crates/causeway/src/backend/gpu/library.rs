//! Finds the vendors' shared libraries at run time. Nothing is linked at build time.
//!
//! The order, first hit wins:
//!
//! 1. the directories of `CAUSEWAY_LIBRARY_PATH`, separated by `:`; an entry `-` ends the search there, so
//!    that `CAUSEWAY_LIBRARY_PATH=/opt/mine:-` uses that directory and nothing else;
//! 2. libraries that this process has mapped already, so that one process never holds two drivers;
//! 3. beside an installed `torch`: the site-packages of `VIRTUAL_ENV`, `CONDA_PREFIX`, `PYTHONPATH`, the
//!    `python3` on `PATH` and the user's own; found by looking, without running an interpreter;
//! 4. `CUDA_PATH`, `CUDA_HOME`, `ROCM_PATH`, `HIP_PATH`, then `/usr/local/cuda*` and `/opt/rocm*`;
//! 5. `LD_LIBRARY_PATH`, the system's library directories, and at last the loader's own search.
//!
//! Within one directory the newest major version wins, whatever it is: no list of versions to keep.

use std::collections::HashSet;
use std::env;
use std::ffi::{CStr, OsStr};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::facts::Vendor;
use crate::error::{Error, Result};

/// Whose toolkit a library belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toolkit {
    Cuda,
    Rocm,
}

/// A library to look for.
#[derive(Debug)]
pub struct Wanted {
    /// What people call it.
    pub name: &'static str,
    /// File name up to `.so`.
    stem: &'static str,
    toolkit: Toolkit,
    /// Directories inside site-packages that may hold it.
    packages: &'static [&'static str],
    /// Names to hand to the loader itself, newest first: it cannot list what it has.
    sonames: &'static [&'static str],
    /// One line that installs it.
    install: &'static str,
}

/// The CUDA driver.
pub static CUDA_DRIVER: Wanted = Wanted {
    name: "the CUDA driver (libcuda.so.1)",
    stem: "libcuda",
    toolkit: Toolkit::Cuda,
    packages: &[],
    sonames: &["libcuda.so.1", "libcuda.so"],
    install: "install the NVIDIA driver; in a container, start it with `--gpus all`",
};

/// NVIDIA's run-time compiler.
pub static NVRTC: Wanted = Wanted {
    name: "NVRTC (libnvrtc.so)",
    stem: "libnvrtc",
    toolkit: Toolkit::Cuda,
    packages: &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"],
    sonames: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"],
    install: "`pip install nvidia-cuda-nvrtc`",
};

/// NVIDIA's matrix products, which benchmarks compare with.
pub static CUBLAS_LT: Wanted = Wanted {
    name: "cuBLASLt (libcublasLt.so)",
    stem: "libcublasLt",
    toolkit: Toolkit::Cuda,
    packages: &["nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib"],
    sonames: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    install: "`pip install nvidia-cublas`",
};

/// The HIP runtime; ROCm 5 keeps HIPRTC in it too.
pub static HIP_RUNTIME: Wanted = Wanted {
    name: "the HIP runtime (libamdhip64.so)",
    stem: "libamdhip64",
    toolkit: Toolkit::Rocm,
    packages: &["torch/lib", "_rocm_sdk_core/lib"],
    sonames: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"],
    install: "install ROCm's `hip-runtime-amd`, or Debian's `libamdhip64-5`; in a container, start it with \
              `--device /dev/kfd --device /dev/dri`",
};

/// AMD's run-time compiler, as a library of its own (ROCm 6 and later).
pub static HIPRTC: Wanted = Wanted {
    name: "HIPRTC (libhiprtc.so)",
    stem: "libhiprtc",
    toolkit: Toolkit::Rocm,
    packages: &["torch/lib", "_rocm_sdk_core/lib"],
    sonames: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"],
    install: "install ROCm's `hip-runtime-amd`, or Debian's `libamdhip64-5 libhiprtc-builtins5 \
              rocm-device-libs`",
};

/// The libraries that may hold a vendor's run-time compiler, and the function that shows that one does.
pub(crate) fn compilers(vendor: Vendor) -> (&'static [&'static Wanted], &'static CStr) {
    static NVIDIA: [&Wanted; 1] = [&NVRTC];
    // ROCm 5 keeps HIPRTC in the runtime's library.
    static AMD: [&Wanted; 2] = [&HIPRTC, &HIP_RUNTIME];
    match vendor {
        Vendor::Nvidia => (&NVIDIA, c"nvrtcCompileProgram"),
        Vendor::Amd => (&AMD, c"hiprtcCompileProgram"),
    }
}

/// An opened library and where it came from.
#[derive(Debug)]
pub struct Opened {
    /// The library; closed when dropped.
    pub library: Library,
    /// Its file, as far as it is known.
    pub path: PathBuf,
}

/// Where to look. See the module's text for the order.
#[derive(Debug, Clone)]
pub struct Search {
    directories: Vec<PathBuf>,
    only: bool,
}

impl Search {
    /// The search that the environment asks for.
    pub fn from_environment() -> Self {
        let value = env::var_os("CAUSEWAY_LIBRARY_PATH").unwrap_or_default();
        let mut search = Search { directories: Vec::new(), only: false };
        for directory in env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()) {
            if directory == Path::new("-") {
                search.only = true;
                break;
            }
            search.directories.push(directory);
        }
        search
    }

    /// A search of these directories and nothing else.
    pub fn only(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        Search { directories: directories.into_iter().collect(), only: true }
    }

    /// Files that may be the library, best first. Looks at names only; opens nothing.
    ///
    /// With `newest`, files of a higher major version come after all others: a compiler newer than the
    /// driver may write code that the driver does not load.
    pub fn candidates(&self, wanted: &Wanted, newest: Option<u32>) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for directory in &self.directories {
            found.extend(matching_files(directory, wanted.stem));
        }
        if !self.only {
            found.extend(mapped_files(wanted.stem));
            for directory in standard_directories(wanted) {
                found.extend(matching_files(&directory, wanted.stem));
            }
        }
        let mut seen = HashSet::new();
        found.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
        if let Some(newest) = newest {
            // Stable: only the files that are too new lose their place.
            found.sort_by_key(|path| version_of(path, wanted.stem).is_some_and(|v| v.major() > newest));
        }
        found
    }

    /// Opens the first candidate that loads and that `accept` takes.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`], with every place that was looked at and why each file there was refused.
    pub fn open(
        &self,
        wanted: &Wanted,
        newest: Option<u32>,
        accept: impl Fn(&Opened) -> Result<(), String>,
    ) -> Result<Opened> {
        let mut refused = Vec::new();
        let mut attempt = |path: &Path| -> Option<Opened> {
            match open(path).and_then(|opened| accept(&opened).map(|()| opened)) {
                Ok(opened) => Some(opened),
                Err(reason) => {
                    refused.push(format!("{}: {reason}", path.display()));
                    None
                }
            }
        };
        for path in self.candidates(wanted, newest) {
            if let Some(opened) = attempt(&path) {
                return Ok(opened);
            }
        }
        if !self.only {
            for soname in wanted.sonames {
                if let Some(mut opened) = attempt(Path::new(soname)) {
                    // Now that it is mapped, its file has a name.
                    if let Some(path) = mapped_files(wanted.stem).into_iter().next() {
                        opened.path = path;
                    }
                    return Ok(opened);
                }
            }
        }
        // What the loader says about a bare name that it does not find is no news.
        refused.retain(|line| line.starts_with('/') || line.starts_with('.'));
        Err(self.missing(wanted, refused))
    }

    /// Opens the run-time compiler of a vendor, in whichever library it is. `newest`: see [`Search::candidates`].
    ///
    /// # Errors
    /// As for [`Search::open`].
    pub fn open_compiler(&self, vendor: Vendor, newest: Option<u32>) -> Result<Opened> {
        let (choices, entry) = compilers(vendor);
        // SAFETY: the address is only tested, never called or read.
        let has_entry = |opened: &Opened| match unsafe {
            opened.library.get::<unsafe extern "C" fn()>(entry.to_bytes_with_nul())
        } {
            Ok(_) => Ok(()),
            Err(_) => Err("no run-time compiler in it".to_string()),
        };
        let mut all_refused = Vec::new();
        for wanted in choices {
            match self.open(wanted, newest, has_entry) {
                Err(Error::LibraryMissing { refused, .. }) => all_refused.extend(refused),
                done => return done,
            }
        }
        Err(self.missing(choices[0], all_refused))
    }

    /// The error for a library that is nowhere, or nowhere usable.
    pub(crate) fn missing(&self, wanted: &Wanted, refused: Vec<String>) -> Error {
        let mut searched: Vec<String> = self.directories.iter().map(|p| p.display().to_string()).collect();
        if !self.only {
            searched.push("this process".to_string());
            searched.extend(standard_directories(wanted).iter().map(|p| p.display().to_string()));
            searched.push(format!("the loader's path for {}", wanted.sonames.join(", ")));
        }
        Error::LibraryMissing { library: wanted.name, searched, refused, install: wanted.install }
    }
}

/// Opens one library, lazily bound and private to the caller.
pub(crate) fn open(path: &Path) -> Result<Opened, String> {
    // SAFETY: opening runs the library's initialisers. It is a vendor's driver or compiler, found by name in
    // a place where those are installed or that the user named.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    Ok(Opened { library, path: path.to_path_buf() })
}

/// The version in a file name: `libnvrtc.so.11.2` has 11, 2.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FileVersion(Vec<u32>);

impl FileVersion {
    /// 0 for a file without a version.
    fn major(&self) -> u32 {
        self.0.first().copied().unwrap_or(0)
    }
}

/// The version of a file that is called `stem`, or None if it is another library.
///
/// Wheels of PyTorch 1 and 2.0 put a hash between the stem and `.so`: `libnvrtc-672ee683.so.11.2`.
fn version_of(path: &Path, stem: &str) -> Option<FileVersion> {
    let rest = path.file_name()?.to_str()?.strip_prefix(stem)?;
    let (hash, version) = rest.split_once(".so")?;
    let is_hash = hash.is_empty()
        || hash.strip_prefix('-').is_some_and(|h| h.len() >= 8 && h.bytes().all(|b| b.is_ascii_hexdigit()));
    if !is_hash {
        return None;
    }
    if version.is_empty() {
        return Some(FileVersion(Vec::new()));
    }
    let parts = version.strip_prefix('.')?.split('.').map(|part| part.parse().ok());
    parts.collect::<Option<Vec<u32>>>().map(FileVersion)
}

/// The library's files in a directory, newest major first and the shortest name of each major first.
fn matching_files(directory: &Path, stem: &str) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let mut found: Vec<(FileVersion, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| version_of(&entry.path(), stem).map(|version| (version, entry.path())))
        .collect();
    found.sort_by(|(a, _), (b, _)| b.major().cmp(&a.major()).then(a.cmp(b)));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The library's files that this process has mapped.
fn mapped_files(stem: &str) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found: Vec<PathBuf> = Vec::new();
    for path in maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..]))) {
        if version_of(path, stem).is_some() && !found.iter().any(|known| known == path) {
            found.push(path.to_path_buf());
        }
    }
    found
}

/// Everything after the directories of `CAUSEWAY_LIBRARY_PATH` and the process itself.
fn standard_directories(wanted: &Wanted) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if !wanted.packages.is_empty() {
        for site in site_packages() {
            directories.extend(wanted.packages.iter().map(|package| site.join(package)));
        }
    }
    for root in toolkit_roots(wanted.toolkit) {
        directories.extend(
            ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"].map(|lib| root.join(lib)),
        );
    }
    if let Some(path) = env::var_os("LD_LIBRARY_PATH") {
        directories.extend(env::split_paths(&path).filter(|path| path.is_absolute()));
    }
    let architecture = env::consts::ARCH;
    directories.extend([
        PathBuf::from(format!("/usr/lib/{architecture}-linux-gnu")),
        PathBuf::from(format!("/lib/{architecture}-linux-gnu")),
    ]);
    // The last ones hold drivers that a host lends to containers, WSL and NixOS.
    directories.extend(
        [
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/lib",
            "/usr/local/nvidia/lib64",
            "/usr/lib/wsl/lib",
            "/run/opengl-driver/lib",
        ]
        .map(PathBuf::from),
    );
    let mut seen = HashSet::new();
    directories.retain(|directory| directory.is_dir() && seen.insert(directory.clone()));
    directories
}

/// Install prefixes of a toolkit.
fn toolkit_roots(toolkit: Toolkit) -> Vec<PathBuf> {
    let (variables, parent, prefix) = match toolkit {
        Toolkit::Cuda => (["CUDA_PATH", "CUDA_HOME"], "/usr/local", "cuda"),
        Toolkit::Rocm => (["ROCM_PATH", "HIP_PATH"], "/opt", "rocm"),
    };
    let named = variables.iter().filter_map(env::var_os).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = named.collect();
    // `cuda` itself, a link to the chosen version, sorts before `cuda-13.0`; the versions follow, newest first.
    let mut installed = children(Path::new(parent), prefix);
    installed.sort_by(|a, b| {
        let (a, b) = (a.as_os_str(), b.as_os_str());
        (a.len() > parent.len() + 1 + prefix.len())
            .cmp(&(b.len() > parent.len() + 1 + prefix.len()))
            .then(b.cmp(a))
    });
    roots.extend(installed);
    roots
}

/// Directories that hold Python packages, without asking an interpreter.
fn site_packages() -> Vec<PathBuf> {
    let mut sites = Vec::new();
    // The interpreter that runs this process, if one does, by the name that it was started by.
    if let Some(program) = env::args_os().next().map(PathBuf::from)
        && program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
    {
        sites.extend(interpreter_sites(&program));
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(prefix) = env::var_os(variable).filter(|value| !value.is_empty()) {
            sites.extend(prefix_sites(Path::new(&prefix)));
        }
    }
    if let Some(path) = env::var_os("PYTHONPATH") {
        sites.extend(env::split_paths(&path).filter(|path| path.is_absolute()));
    }
    for directory in env::var_os("PATH").iter().flat_map(env::split_paths) {
        for name in ["python3", "python"] {
            sites.extend(interpreter_sites(&directory.join(name)));
        }
    }
    if let Some(home) = env::var_os("HOME") {
        sites.extend(prefix_sites(&Path::new(&home).join(".local")));
    }
    sites.extend(prefix_sites(Path::new("/usr/local")));
    let mut seen = HashSet::new();
    sites.retain(|site| site.is_dir() && seen.insert(site.clone()));
    sites
}

/// The directories of packages of an interpreter; none if there is no such file.
fn interpreter_sites(interpreter: &Path) -> Vec<PathBuf> {
    if !interpreter.is_file() {
        return Vec::new();
    }
    // `bin/python3` of a virtual environment is a link out of it: look on both sides.
    let resolved = interpreter.canonicalize().unwrap_or_else(|_| interpreter.to_path_buf());
    let prefixes = [interpreter, &resolved].map(|file| file.parent().and_then(Path::parent));
    prefixes.into_iter().flatten().flat_map(prefix_sites).collect()
}

/// `lib/python3*/site-packages` under a prefix, and what Debian calls it.
fn prefix_sites(prefix: &Path) -> Vec<PathBuf> {
    let mut versions = children(&prefix.join("lib"), "python3");
    versions.sort();
    versions.reverse();
    versions.iter().flat_map(|v| [v.join("site-packages"), v.join("dist-packages")]).collect()
}

/// Entries of a directory whose name begins with `prefix`.
fn children(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let begins = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(prefix));
    entries.flatten().filter(|entry| begins(&entry.file_name())).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, stem: &str) -> Option<Vec<u32>> {
        version_of(Path::new(name), stem).map(|v| v.0)
    }

    #[test]
    fn file_names_give_versions() {
        assert_eq!(version("/x/libnvrtc.so.13", "libnvrtc"), Some(vec![13]));
        assert_eq!(version("libnvrtc-672ee683.so.11.2", "libnvrtc"), Some(vec![11, 2]));
        assert_eq!(version("libamdhip64.so", "libamdhip64"), Some(vec![]));
        for other in [
            "libnvrtc-builtins.so.13.0",
            "libnvrtc.so.alt",
            "libnvrtcx.so",
            "libnvrtc.a",
            "libnvrtc.so.13.debug",
        ] {
            assert_eq!(version(other, "libnvrtc"), None, "{other}");
        }
        assert_eq!(version("libcudart.so.12", "libcuda"), None);
    }

    #[test]
    fn newest_major_wins_unless_the_driver_is_older() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "libnvrtc.so.12",
            "libnvrtc.so.12.9.86",
            "libnvrtc.so.13",
            "libnvrtc.so.9",
            "libnvrtc-builtins.so.13.0",
        ] {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        let search = Search::only([directory.path().to_path_buf()]);
        let names = |newest| -> Vec<String> {
            let files = search.candidates(&NVRTC, newest);
            files.iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_string()).collect()
        };
        assert_eq!(names(None), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.12.9.86", "libnvrtc.so.9"]);
        assert_eq!(
            names(Some(12)),
            ["libnvrtc.so.12", "libnvrtc.so.12.9.86", "libnvrtc.so.9", "libnvrtc.so.13"]
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_reported_with_the_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("libnvrtc.so.13");
        std::fs::write(&file, "not a library").unwrap();
        let search = Search::only([directory.path().to_path_buf()]);
        let Err(Error::LibraryMissing { library, searched, refused, install }) =
            search.open(&NVRTC, None, |_| Ok(()))
        else {
            panic!("a text file was opened as a library");
        };
        assert!(library.contains("NVRTC") && install.contains("pip install"));
        assert_eq!(searched, [directory.path().display().to_string()]);
        assert!(refused.len() == 1 && refused[0].starts_with(&file.display().to_string()), "{refused:?}");
    }

    #[test]
    fn site_packages_are_found_without_python() {
        let prefix = tempfile::tempdir().unwrap();
        for version in ["python3.9", "python3.12"] {
            std::fs::create_dir_all(prefix.path().join("lib").join(version).join("site-packages")).unwrap();
        }
        let sites = prefix_sites(prefix.path());
        assert!(sites.iter().any(|site| site.ends_with("python3.12/site-packages")));
        assert!(sites.iter().any(|site| site.ends_with("python3.9/site-packages")));
        let interpreter = prefix.path().join("bin/python3");
        assert_eq!(interpreter_sites(&interpreter), Vec::<PathBuf>::new());
        std::fs::create_dir(prefix.path().join("bin")).unwrap();
        std::fs::write(&interpreter, "").unwrap();
        assert!(sites.iter().all(|site| interpreter_sites(&interpreter).contains(site)));
    }
}
