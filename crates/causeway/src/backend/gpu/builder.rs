//! From a program and a target to machine code: disk cache first, run-time compiler second.

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::cache::{Cache, CacheKey, Origin};
use super::compiler::{Compiler, Flattened, Identity, Program, Target, flatten};
use super::library::Search;
use super::plan::{Plan, Vendor};
use crate::error::Result;

/// Machine code of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// A cubin or a code object.
    pub image: Vec<u8>,
    /// Its name in the cache; None if the cache is off.
    pub key: Option<CacheKey>,
    /// Where it came from.
    pub origin: Origin,
    /// The compiler, `NVRTC 13.0`.
    pub compiler: String,
    /// BLAKE3 digest of the program's whole text.
    pub source: blake3::Hash,
}

/// Compilers and the cache, found once.
pub struct Builder {
    search: Search,
    cache: Cache,
    compilers: [OnceLock<Compiler>; 2],
    locating: Mutex<()>,
}

impl Builder {
    /// A builder with its own search and cache.
    pub fn new(search: Search, cache: Cache) -> Self {
        Builder { search, cache, compilers: [const { OnceLock::new() }; 2], locating: Mutex::new(()) }
    }

    /// The process's builder, as the environment asks for.
    pub fn global() -> &'static Builder {
        static BUILDER: OnceLock<Builder> = OnceLock::new();
        BUILDER.get_or_init(|| Builder::new(Search::from_environment(), Cache::from_environment()))
    }

    /// The kernel cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The compiler of a vendor. A failure is not remembered.
    ///
    /// `newest` is the driver's major version, if there is a driver; the first call decides.
    ///
    /// # Errors
    /// [`crate::Error::LibraryMissing`] or [`crate::Error::SymbolMissing`].
    pub fn compiler(&self, vendor: Vendor, newest: Option<u32>) -> Result<&Compiler> {
        let slot = &self.compilers[vendor as usize];
        if let Some(compiler) = slot.get() {
            return Ok(compiler);
        }
        let _guard = self.locating.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiler) = slot.get() {
            return Ok(compiler);
        }
        let compiler = Compiler::locate(vendor, &self.search, newest, &self.cache)?;
        Ok(slot.get_or_init(|| compiler))
    }

    /// Machine code of a plan's kernel for a target that need not be present: fills the cache.
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    pub fn compile_only(&self, plan: &Plan, target: &Target) -> Result<Code> {
        self.build(&Program::of(&plan.choice), target, None)
    }

    /// Machine code of a program.
    ///
    /// # Errors
    /// [`crate::Error::LibraryMissing`] without a compiler, [`crate::Error::Compile`] if it refuses the text,
    /// [`crate::Error::CompilerTooOld`] if it does not know the target.
    pub fn build(&self, program: &Program, target: &Target, newest: Option<u32>) -> Result<Code> {
        let compiler = self.compiler(target.vendor(), newest)?;
        let flattened = flatten(program)?;
        let source = blake3::hash(flattened.text.as_bytes());
        let compile = || compiler.compile(program, &flattened.text, target);
        if !self.cache.is_on() {
            let (image, compiler) = (compile()?, compiler.name()?);
            return Ok(Code { image, key: None, origin: Origin::Compiled, compiler, source });
        }
        let identity = compiler.identity(&self.cache)?;
        let key = key(program, &flattened, target, identity);
        let ingredients = ingredients(key, program, (&flattened, source), target, identity);
        let (image, origin) = self.cache.get_or_compile(key, &ingredients, compile)?;
        Ok(Code { image, key: Some(key), origin, compiler: identity.name.clone(), source })
    }
}

/// Everything that the code depends on.
fn key(program: &Program, flattened: &Flattened, target: &Target, compiler: &Identity) -> CacheKey {
    let options = target.options().join("\n");
    CacheKey::of([
        flattened.text.as_bytes(),
        program.entry.as_bytes(),
        program.instantiation.as_bytes(),
        options.as_bytes(),
        compiler.name.as_bytes(),
        compiler.digest.as_bytes(),
        target.architecture().as_bytes(),
    ])
}

/// The same for a reader.
fn ingredients(
    key: CacheKey,
    program: &Program,
    (flattened, source): (&Flattened, blake3::Hash),
    target: &Target,
    compiler: &Identity,
) -> String {
    let mut text = format!(
        "key           {key}\nformat        {}\narchitecture  {target}\ncompiler      {}\n              digest {}\n\
         options       {}\nentry         {}\nsource        digest {}\n",
        super::cache::FORMAT,
        compiler.name,
        compiler.digest,
        target.options().join(" "),
        program.entry,
        source.to_hex(),
    );
    for (name, digest) in &flattened.files {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "              kernels/{name} digest {digest}");
    }
    text.push_str("instantiation\n");
    for line in program.instantiation.trim().lines() {
        let _ = writeln!(text, "              {line}");
    }
    text
}
