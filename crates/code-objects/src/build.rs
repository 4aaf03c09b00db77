//! The tables and their compilers, and one variant's way from its text to its facts.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use causeway::backend::gpu::builder::Builder;
use causeway::backend::gpu::cache::Cache;
use causeway::backend::gpu::compiler::Target;
use causeway::backend::gpu::library::Search;
use object::{Object as _, ObjectSection as _};
use serde::Deserialize;

use crate::disassembly::Listing;
use crate::facts::Facts;
use crate::variant::{Variant, uses_matrix_units};
use crate::{amd, clang, nvidia};

/// A compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// As the product calls it.
    Nvrtc,
    /// As the product calls it.
    Hiprtc,
    /// For the AMD architectures that a packaged HIPRTC does not know.
    Clang,
}

/// A table: code of one compiler for one architecture.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The table's file without its ending.
    pub name: String,
    pub arch: String,
    pub tool: Tool,
    /// Suites of which a check builds every variant.
    #[serde(default)]
    pub suites: Vec<String>,
    /// Of each kernel, and its narrow and wide widths, a check builds as many variants: those with the most registers.
    pub fullest: usize,
}

/// The tables, from builds.toml.
pub fn builds() -> Result<Vec<Build>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Document {
        build: Vec<Build>,
    }
    let document: Document = toml::from_str(include_str!("../builds.toml")).context("builds.toml")?;
    Ok(document.build)
}

/// The compilers, found once.
pub struct Workshop {
    builder: Builder,
}

impl Workshop {
    pub fn new() -> Self {
        Workshop { builder: Builder::new(Search::from_environment(), Cache::off()) }
    }

    /// A compiler's name and version.
    pub fn version(&self, build: &Build) -> Result<String> {
        if build.tool == Tool::Clang {
            return clang::version().with_context(|| "clang++-19 is missing: tests/setup installs it");
        }
        let compiler = self.builder.compiler(Target::parse(&build.arch)?.vendor(), None)?;
        Ok(compiler.name()?)
    }

    /// Compiles a variant: what the compiler gave.
    fn image(&self, build: &Build, variant: &Variant, directory: &Path) -> Result<Vec<u8>> {
        let (program, target) = (variant.program(), Target::parse(&build.arch)?);
        if build.tool == Tool::Clang {
            let object = clang::compile(&program, &target, directory).map_err(|log| anyhow!(log))?;
            Ok(std::fs::read(object)?)
        } else {
            Ok(self.builder.build(&program, &target, None)?.image)
        }
    }

    /// Compiles a variant; the digest of its instructions and constants. Names of functions are not in it.
    pub fn code_digest(&self, build: &Build, variant: &Variant) -> Result<String> {
        let directory = tempfile::tempdir()?;
        let image = self.image(build, variant, directory.path())?;
        let object = if build.tool == Tool::Nvrtc { &image } else { amd::unbundled(&image)? };
        let mut hasher = blake3::Hasher::new();
        let file = object::File::parse(object)?;
        let is_code =
            |name: &str| [".text", ".nv.constant", ".rodata"].iter().any(|start| name.starts_with(start));
        for section in file.sections().filter(|section| section.name().is_ok_and(is_code)) {
            let data = section.data()?;
            hasher.update(&(data.len() as u64).to_le_bytes()).update(data);
        }
        ensure!(hasher.count() > 0, "no section with code");
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Compiles a variant and reads what came out.
    pub fn facts(&self, build: &Build, variant: &Variant) -> Result<Facts> {
        let target = Target::parse(&build.arch)?;
        let entry = variant.entry();
        let directory = tempfile::tempdir()?;
        let image = self.image(build, variant, directory.path())?;
        let is_nvidia = build.tool == Tool::Nvrtc;
        let object = if is_nvidia { &image } else { amd::unbundled(&image)? };
        let mut facts = if is_nvidia {
            nvidia::facts(object, entry, target.architecture())
        } else {
            amd::facts(object, entry, target.architecture())
        }?;
        facts.shared += variant.shared_bytes();
        if uses_matrix_units(&variant.name) || facts.private > 0 {
            let path = directory.path().join("object");
            std::fs::write(&path, object)?;
            let listing = Listing::of(&path, is_nvidia)?;
            ensure!(!listing.is_serialized(), "every matrix product waits for the one before it");
            facts.private_accesses = listing.private_accesses;
            facts.matrix = listing.matrix;
        }
        Ok(facts)
    }
}
