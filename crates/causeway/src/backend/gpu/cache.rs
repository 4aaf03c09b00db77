//! Compiled kernels on disk.
//!
//! ```text
//! CACHE/v1/KEY.kernel           one entry: header, ingredients as text, code
//! CACHE/v1/.stage-XXXXXX        an entry being written; renamed into place when it is whole and synced
//! CACHE/v1/compiler-XXXX        which compiler a library's file is, so that it is not digested each time
//! CACHE/v1/locks/KEY.lock       held while KEY is compiled, so that one process does it and others wait
//! CACHE/v1/quarantine/KEY.TIME  entries that failed their check, the last few of them
//! ```
//!
//! `CACHE` is `CAUSEWAY_CACHE_DIR`, or `causeway` in the user's cache directory. `CAUSEWAY_CACHE=readonly` never
//! writes, `CAUSEWAY_CACHE=off` never looks. No failure here is an error to the caller: what cannot be read is
//! compiled, and what cannot be written is not kept.
//!
//! An entry's header, integers little-endian:
//!
//! ```text
//!  0  8  magic "CAUSEWAY"
//!  8  4  format version
//! 12 32  key
//! 44  8  bytes of ingredients
//! 52  8  bytes of code
//! 60 32  BLAKE3 of the 60 bytes before, the ingredients and the code
//! ```

use std::env;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use etcetera::BaseStrategy;

use crate::error::{Error, Result};
use crate::files;

/// Changes when the layout of an entry or the making of a key does.
pub(crate) const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"CAUSEWAY";
const HEADER_BYTES: usize = 92;
const DIGESTED_HEADER_BYTES: usize = 60;

/// How long to wait for another process that compiles the same kernel; then this one compiles it too.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Damaged entries that are kept for a look.
const QUARANTINE_ENTRIES: usize = 16;

/// Name of an entry: a digest of everything that its code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// The digest of a list of fields, each with its length, so that no two lists run together.
    pub(crate) fn of<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&MAGIC).update(&FORMAT.to_le_bytes());
        for field in fields {
            hasher.update(&(field.len() as u64).to_le_bytes()).update(field);
        }
        CacheKey(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a kernel's code came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Compiled by this call.
    Compiled,
    /// Read from the cache directory.
    Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    ReadWrite,
    ReadOnly,
    Off,
}

/// A directory of compiled kernels. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
    mode: Mode,
    /// Set once the user has been told that entries cannot be kept.
    warned: Arc<AtomicBool>,
}

/// What the file of an entry holds now, beside code that was read from it or stored in it before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The same code.
    Same(PathBuf),
    /// There is no such file, or the cache is off.
    Absent,
    /// Something else, and what.
    Altered(String),
}

/// One whole entry.
struct Entry {
    ingredients: String,
    code: Vec<u8>,
}

impl Cache {
    /// The cache that the environment asks for.
    pub fn from_environment() -> Self {
        let named = env::var_os("CAUSEWAY_CACHE_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
        let usual = || etcetera::choose_base_strategy().ok().map(|base| base.cache_dir().join("causeway"));
        let Some(directory) = named.or_else(usual) else {
            tracing::warn!(
                "no cache directory: HOME is not set; set CAUSEWAY_CACHE_DIR to keep compiled kernels"
            );
            return Self::off();
        };
        match env::var("CAUSEWAY_CACHE").as_deref() {
            Ok("off") => Self::off(),
            Ok("readonly") => Self::read_only(directory),
            _ => {
                if let Some(words) = Self::unknown_mode() {
                    tracing::warn!("{words}");
                }
                Self::at(directory)
            }
        }
    }

    /// What is wrong with CAUSEWAY_CACHE, if it has none of its values.
    pub fn unknown_mode() -> Option<String> {
        let value = env::var_os("CAUSEWAY_CACHE")?;
        let known = ["", "on", "readonly", "off"].iter().any(|known| value == *known);
        (!known).then(|| format!("CAUSEWAY_CACHE is {value:?}: expected on, readonly or off; taken as on"))
    }

    /// A cache in a directory, which is made when there is something to keep.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self::new(directory.into(), Mode::ReadWrite)
    }

    /// A cache that is read and never changed.
    pub fn read_only(directory: impl Into<PathBuf>) -> Self {
        Self::new(directory.into(), Mode::ReadOnly)
    }

    /// No cache: everything is compiled.
    pub fn off() -> Self {
        Self::new(PathBuf::new(), Mode::Off)
    }

    fn new(root: PathBuf, mode: Mode) -> Self {
        Cache { directory: root.join(format!("v{FORMAT}")), mode, warned: Arc::default() }
    }

    /// False if nothing is ever read.
    pub fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }

    /// True if entries are read and none is kept.
    pub fn is_read_only(&self) -> bool {
        self.mode == Mode::ReadOnly
    }

    /// Where the entries are; None if the cache is off.
    pub fn directory(&self) -> Option<&Path> {
        self.is_on().then_some(self.directory.as_path())
    }

    /// Code for a key: from the directory, or from `compile`, whose result is then kept.
    ///
    /// `ingredients` says in words what the key is made of. Processes that race for a key compile it once, or
    /// several times if one of them takes very long; all get whole code.
    ///
    /// # Errors
    /// Those of `compile`.
    pub fn get_or_compile(
        &self,
        key: CacheKey,
        ingredients: &str,
        compile: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<(Vec<u8>, Origin)> {
        if let Some(entry) = self.read(key) {
            return Ok((entry.code, Origin::Disk));
        }
        if self.mode != Mode::ReadWrite {
            return Ok((compile()?, Origin::Compiled));
        }
        let _lock = self.lock(key);
        // Another process may have compiled it while this one waited.
        if let Some(entry) = self.read(key) {
            return Ok((entry.code, Origin::Disk));
        }
        let code = compile()?;
        if let Err(error) = self.store(key, ingredients, &code) {
            self.warn(&error);
        }
        Ok((code, Origin::Compiled))
    }

    /// Reads the file of an entry again and compares its code with a digest. Changes nothing.
    pub fn compare(&self, key: CacheKey, code: &blake3::Hash) -> Comparison {
        if !self.is_on() {
            return Comparison::Absent;
        }
        let path = self.file(key);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Comparison::Absent,
            Err(error) => return Comparison::Altered(format!("it cannot be read: {error}")),
        };
        match parse(&bytes, Some(key)) {
            Ok(entry) if blake3::hash(&entry.code) == *code => Comparison::Same(path),
            Ok(_) => Comparison::Altered("it holds other code than the device has loaded".to_string()),
            Err(damage) => Comparison::Altered(damage.to_string()),
        }
    }

    /// What the entry of a key was made from: its ingredients as text, its size and place.
    ///
    /// `key` may be the beginning of a key, as long as one entry has it.
    ///
    /// # Errors
    /// [`Error::CacheEntry`] if no entry, or more than one, has it, or if it is damaged.
    pub fn explain(&self, key: &str) -> Result<String> {
        let failed = |because: String| Error::CacheEntry { key: key.to_string(), because };
        if !self.is_on() {
            return Err(failed("the cache is off (CAUSEWAY_CACHE)".to_string()));
        }
        let directory = self.directory.display();
        let mut files: Vec<PathBuf> = self.entries();
        files.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(key)));
        let path = match files.as_slice() {
            [path] if !key.is_empty() => path,
            [] => return Err(failed(format!("no entry in {directory} begins with it"))),
            several => return Err(failed(format!("{} entries in {directory} begin with it", several.len()))),
        };
        let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
        let entry = parse(&bytes, None).map_err(|damage| failed(format!("it is damaged: {damage}")))?;
        Ok(format!(
            "{}file          {}\ncode          {} bytes, digest {}\n",
            entry.ingredients,
            path.display(),
            entry.code.len(),
            blake3::hash(&entry.code).to_hex(),
        ))
    }

    /// The files of all entries, sorted.
    pub fn entries(&self) -> Vec<PathBuf> {
        let Ok(entries) = self.directory.read_dir() else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "kernel"));
        files.sort();
        files
    }

    /// A small text that is kept beside the entries.
    pub(crate) fn note(&self, name: &str) -> Option<String> {
        if !self.is_on() {
            return None;
        }
        fs::read_to_string(self.directory.join(name)).ok()
    }

    /// Keeps a small text beside the entries.
    pub(crate) fn store_note(&self, name: &str, text: &str) {
        if self.mode == Mode::ReadWrite
            && let Err(error) = self.place(name, &[text.as_bytes()])
        {
            self.warn(&error);
        }
    }

    fn file(&self, key: CacheKey) -> PathBuf {
        self.directory.join(format!("{key}.kernel"))
    }

    /// The entry of a key if it is there and whole. A damaged one is set aside.
    fn read(&self, key: CacheKey) -> Option<Entry> {
        if !self.is_on() {
            return None;
        }
        let path = self.file(key);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("cannot read {}: {error}; compiling instead", path.display());
                return None;
            }
        };
        match parse(&bytes, Some(key)) {
            Ok(entry) => Some(entry),
            Err(damage) => {
                tracing::warn!("{} is damaged ({damage}); compiling it again", path.display());
                if self.mode == Mode::ReadWrite {
                    self.set_aside(&path, key);
                }
                None
            }
        }
    }

    fn store(&self, key: CacheKey, ingredients: &str, code: &[u8]) -> io::Result<()> {
        let header = header(key, ingredients.as_bytes(), code);
        self.place(&format!("{key}.kernel"), &[&header, ingredients.as_bytes(), code])
    }

    /// Writes a file beside its place, syncs it, and renames it: it is never seen in part.
    fn place(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        self.remove_stale();
        let mut staged = tempfile::Builder::new().prefix(".stage-").tempfile_in(&self.directory)?;
        for part in parts {
            staged.write_all(part)?;
        }
        staged.as_file().sync_all()?;
        staged.persist(self.directory.join(name))?;
        // The rename itself is durable once the directory is.
        File::open(&self.directory)?.sync_all()
    }

    /// Removes what killed processes left behind.
    fn remove_stale(&self) {
        files::remove_stale(&self.directory, |name, entry| name.starts_with(".stage-") && !entry.is_dir());
    }

    fn set_aside(&self, path: &Path, key: CacheKey) {
        let quarantine = self.directory.join("quarantine");
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let moved = fs::create_dir_all(&quarantine)
            .and_then(|()| fs::rename(path, quarantine.join(format!("{key}.{time}"))));
        if let Err(error) = moved {
            tracing::debug!("cannot move {} aside: {error}", path.display());
        }
        let Ok(entries) = quarantine.read_dir() else { return };
        let mut files: Vec<(u128, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let time = path.extension()?.to_str()?.parse().ok()?;
                Some((time, path))
            })
            .collect();
        files.sort();
        for (_, path) in files.iter().rev().skip(QUARANTINE_ENTRIES) {
            let _ = fs::remove_file(path);
        }
    }

    /// Waits for its turn to compile a key. None if locks do not work here, or if the wait took too long: the
    /// lock saves work, and correctness does not need it.
    fn lock(&self, key: CacheKey) -> Option<Lock> {
        let locks = self.directory.join("locks");
        fs::create_dir_all(&locks).ok()?;
        let path = locks.join(format!("{key}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(&path).ok()?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Lock { _file: file, path }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(_) => return None,
            }
        }
    }

    fn warn(&self, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "cannot keep compiled kernels in {}: {error}; they are compiled anew in each process",
                self.directory.display()
            );
        }
    }
}

/// A key's lock file, locked. Released and removed when dropped; who waits on the removed file finds the entry.
struct Lock {
    _file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn header(key: CacheKey, ingredients: &[u8], code: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..44].copy_from_slice(&key.0);
    header[44..52].copy_from_slice(&(ingredients.len() as u64).to_le_bytes());
    header[52..60].copy_from_slice(&(code.len() as u64).to_le_bytes());
    let digest = digest(&header[..DIGESTED_HEADER_BYTES], ingredients, code);
    header[DIGESTED_HEADER_BYTES..].copy_from_slice(digest.as_bytes());
    header
}

fn digest(header: &[u8], ingredients: &[u8], code: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(header).update(ingredients).update(code).finalize()
}

/// Takes an entry apart, or says what is wrong with it. Any change of any byte is found.
fn parse(bytes: &[u8], expected: Option<CacheKey>) -> Result<Entry, &'static str> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err("it ends within the header");
    };
    if header[..8] != MAGIC {
        return Err("it has another magic number");
    }
    if header[8..12] != FORMAT.to_le_bytes() {
        return Err("it has another format version");
    }
    if expected.is_some_and(|key| header[12..44] != key.0) {
        return Err("it holds another key");
    }
    let length = |at: usize| {
        let bytes = header[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    };
    let (ingredients_bytes, code_bytes) = (length(44), length(52));
    if ingredients_bytes.checked_add(code_bytes) != Some(rest.len()) {
        return Err("it has another length than its header says");
    }
    let (ingredients, code) = rest.split_at(ingredients_bytes);
    if digest(&header[..DIGESTED_HEADER_BYTES], ingredients, code).as_bytes()
        != &header[DIGESTED_HEADER_BYTES..]
    {
        return Err("its digest does not match");
    }
    let ingredients = String::from_utf8(ingredients.to_vec()).map_err(|_| "its ingredients are no text")?;
    Ok(Entry { ingredients, code: code.to_vec() })
}

#[cfg(test)]
mod tests;
