//! The run-time compilers, NVRTC and HIPRTC: from the texts in `kernels/` to machine code, on the user's machine.
//!
//! NVRTC gives a cubin, HIPRTC a code object; both load without another compilation in the driver.

mod rtc;
mod source;
mod target;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::UNIX_EPOCH;

use self::rtc::{Outcome, Rtc};
pub(crate) use self::source::{Flattened, flatten};
pub use self::source::{Program, sources_digest};
pub use self::target::Target;
pub(crate) use self::target::{REQUIRED_AMD, REQUIRED_NVIDIA, is_supported};
use crate::backend::gpu::cache::Cache;
use crate::backend::gpu::facts::Vendor;
use crate::backend::gpu::library::{self, Search};
use crate::error::{Error, Result};

/// A compiler that was found, opened when it is first needed.
pub struct Compiler {
    vendor: Vendor,
    search: Search,
    path: PathBuf,
    identity: OnceLock<Identity>,
    rtc: OnceLock<Rtc>,
    /// Held while `identity` or `rtc` is being made.
    working: Mutex<()>,
}

/// Which compiler it is, to the byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `NVRTC 13.0`, `HIPRTC 6.4`.
    pub name: String,
    /// BLAKE3 of the library's file, in hexadecimal.
    pub digest: String,
}

impl Compiler {
    /// Finds the compiler of a vendor.
    ///
    /// `newest` is the driver's own major version, if there is a driver: compilers up to it are preferred.
    /// A compiler that the cache knows is not even opened: on a warm start nothing is compiled.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] or [`Error::SymbolMissing`].
    pub fn locate(vendor: Vendor, search: &Search, newest: Option<u32>, cache: &Cache) -> Result<Self> {
        let (choices, _) = library::compilers(vendor);
        let first = choices.iter().flat_map(|wanted| search.candidates(wanted, newest)).next();
        if let Some(path) = first
            && let Some(identity) = recall(cache, &path)
        {
            return Ok(Self::new(vendor, search, path, Some(identity), None));
        }
        let opened = search.open_compiler(vendor, newest)?;
        let path = opened.path.clone();
        Ok(Self::new(vendor, search, path, None, Some(Rtc::new(vendor, opened)?)))
    }

    fn new(
        vendor: Vendor,
        search: &Search,
        path: PathBuf,
        identity: Option<Identity>,
        rtc: Option<Rtc>,
    ) -> Self {
        let compiler = Compiler {
            vendor,
            search: search.clone(),
            path,
            identity: OnceLock::new(),
            rtc: OnceLock::new(),
            working: Mutex::new(()),
        };
        if let Some(identity) = identity {
            let _ = compiler.identity.set(identity);
        }
        if let Some(rtc) = rtc {
            let _ = compiler.rtc.set(rtc);
        }
        compiler
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The compiler's name, version and digest. Reads the whole library once; the cache remembers the result
    /// for as long as the file's size, time and inode stay.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] if the file cannot be read or opened any more.
    pub fn identity(&self, cache: &Cache) -> Result<&Identity> {
        if let Some(identity) = self.identity.get() {
            return Ok(identity);
        }
        let name = self.name()?;
        let _guard = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = self.identity.get() {
            return Ok(identity);
        }
        let mut hasher = blake3::Hasher::new();
        File::open(&self.path)
            .and_then(|file| hasher.update_reader(file).map(|_| ()))
            .map_err(|error| self.unusable(error.to_string()))?;
        let identity = Identity { name, digest: hasher.finalize().to_hex().to_string() };
        remember(cache, &self.path, &identity);
        Ok(self.identity.get_or_init(|| identity))
    }

    /// `NVRTC 13.0`.
    ///
    /// # Errors
    /// As for [`Compiler::identity`].
    pub fn name(&self) -> Result<String> {
        if let Some(identity) = self.identity.get() {
            return Ok(identity.name.clone());
        }
        let (major, minor) = self.rtc()?.version;
        let name = if self.vendor == Vendor::Nvidia { "NVRTC" } else { "HIPRTC" };
        Ok(format!("{name} {major}.{minor}"))
    }

    fn rtc(&self) -> Result<&Rtc> {
        if let Some(rtc) = self.rtc.get() {
            return Ok(rtc);
        }
        let _guard = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rtc) = self.rtc.get() {
            return Ok(rtc);
        }
        let opened = library::open(&self.path).map_err(|reason| self.unusable(reason))?;
        let rtc = Rtc::new(self.vendor, opened)?;
        Ok(self.rtc.get_or_init(|| rtc))
    }

    fn unusable(&self, reason: String) -> Error {
        let (choices, _) = library::compilers(self.vendor);
        self.search.missing(choices[0], vec![format!("{}: {reason}", self.path.display())])
    }

    /// Compiles a program to machine code.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log if the compiler refuses the text, [`Error::CompilerTooOld`] if it does
    /// not know the architecture.
    pub(crate) fn compile(&self, program: &Program, text: &str, target: &Target) -> Result<Vec<u8>> {
        let rtc = self.rtc()?;
        if let Some((major, minor)) = target.first_rocm()
            && rtc.version < (major, minor)
        {
            return Err(self.too_old(target, format!("install ROCm {major}.{minor} or later"))?);
        }
        let options = target.options();
        match rtc.compile(text, &options)? {
            Outcome::Code(code, log) => {
                if !log.is_empty() {
                    tracing::debug!(entry = program.entry, %target, log, "the compiler had something to say");
                }
                Ok(code)
            }
            Outcome::InvalidOption(log) if log.contains("arch") => {
                Err(self.too_old(target, "update it: `pip install --upgrade nvidia-cuda-nvrtc`".to_string())?)
            }
            Outcome::Refused(log) | Outcome::InvalidOption(log) => Err(Error::Compile {
                entry: program.entry.to_string(),
                architecture: target.to_string(),
                position: source::first_error(&log),
                options,
                log,
            }),
        }
    }

    fn too_old(&self, target: &Target, fix: String) -> Result<Error> {
        Ok(Error::CompilerTooOld { compiler: self.name()?, architecture: target.to_string(), fix })
    }
}

/// What tells that a library's file is still the one that was digested.
fn fingerprint(path: &Path) -> Option<String> {
    let metadata = path.metadata().ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let inode = 0;
    Some(format!("{} bytes, modified {modified}, inode {inode}, {}", metadata.len(), path.display()))
}

fn note_name(fingerprint: &str) -> String {
    format!("compiler-{}", &blake3::hash(fingerprint.as_bytes()).to_hex()[..32])
}

fn recall(cache: &Cache, path: &Path) -> Option<Identity> {
    let fingerprint = fingerprint(path)?;
    let note = cache.note(&note_name(&fingerprint))?;
    let mut lines = note.lines();
    if lines.next()? != fingerprint {
        return None;
    }
    let identity = Identity { name: lines.next()?.to_string(), digest: lines.next()?.to_string() };
    (identity.digest.len() == 64).then_some(identity)
}

fn remember(cache: &Cache, path: &Path, identity: &Identity) {
    if let Some(fingerprint) = fingerprint(path) {
        let note = format!("{fingerprint}\n{}\n{}\n", identity.name, identity.digest);
        cache.store_note(&note_name(&fingerprint), &note);
    }
}
