//! Whether the file of a loaded kernel still holds its code. Launches do not ask: reports do, before a case's first.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{GpuDevice, Kernel};
use crate::backend::gpu::artifact::{Artifact, Artifacts};
use crate::backend::gpu::builder::Builder;
use crate::backend::gpu::cache::{Comparison, Origin};
use crate::backend::gpu::choice::Choice;
use crate::backend::gpu::plan::Plan;
use crate::error::Result;

impl GpuDevice {
    /// Gets a plan's kernel as a launch would, reads its file in the cache again, and tells what was seen.
    ///
    /// A file that holds anything but the code that is loaded is refused: the kernel is forgotten and made anew, from
    /// the cache if that holds a whole entry by then, else by the compiler.
    ///
    /// # Errors
    /// Those of [`GpuDevice::prepare`].
    pub fn check(&self, plan: &Plan) -> Result<Artifact> {
        self.check_kernel(self.kernel(&plan.choice)?, &plan.choice)
    }

    /// The same of every kernel that is loaded.
    ///
    /// # Errors
    /// As for [`GpuDevice::check`].
    pub fn check_all(&self) -> Result<Artifacts> {
        let mut all = Artifacts::default();
        for (choice, kernel) in self.loaded() {
            all.add(self.check_kernel(kernel, &choice)?);
        }
        Ok(all)
    }

    fn check_kernel(&self, mut kernel: &'static Kernel, choice: &Choice) -> Result<Artifact> {
        let mut refused = Vec::new();
        let mut file = None;
        match kernel.compare() {
            Comparison::Same(path) => file = Some(path),
            Comparison::Absent => {}
            Comparison::Altered(because) => {
                self.forget(choice);
                kernel = self.load(choice)?;
                match kernel.compare() {
                    Comparison::Same(path) => file = Some(path),
                    // A cache that cannot be written keeps what it has: from now on the code is in no file.
                    _ => kernel.in_no_file.store(true, Ordering::Relaxed),
                }
                refused.push(match &file {
                    Some(path) => format!("{}: {because}", path.display()),
                    None => because,
                });
            }
        }
        let mut artifact = kernel.artifact(choice);
        artifact.checks = u64::from(file.is_some());
        artifact.file = file.map(|path| path.display().to_string());
        artifact.refused = refused;
        Ok(artifact)
    }

    /// Every kernel that is loaded, with the file that holds its code now.
    pub fn artifacts(&self) -> Artifacts {
        let mut all = Artifacts::default();
        for (choice, kernel) in self.loaded() {
            let mut artifact = kernel.artifact(&choice);
            if let Comparison::Same(path) = kernel.compare() {
                artifact.file = Some(path.display().to_string());
            }
            all.add(artifact);
        }
        all.0.sort_by(|a, b| (&a.header, &a.id).cmp(&(&b.header, &b.id)));
        all
    }

    /// Every kernel. Their files are read later, while launches go on.
    fn loaded(&self) -> Vec<(Choice, &'static Kernel)> {
        let kernels = self.0.kernels.read().unwrap_or_else(PoisonError::into_inner);
        kernels.iter().map(|(choice, kernel)| (choice.clone(), *kernel)).collect()
    }

    /// Launches after this get the kernel anew. What runs keeps its module, which stays loaded.
    fn forget(&self, choice: &Choice) {
        self.0.kernels.write().unwrap_or_else(PoisonError::into_inner).remove(choice);
    }
}

impl Kernel {
    /// What is known of it without its file.
    fn artifact(&self, choice: &Choice) -> Artifact {
        let source_digest = self.source.to_hex().to_string();
        Artifact {
            id: Artifact::id_of(&source_digest),
            entry: choice.entry().to_string(),
            header: choice.header().to_string(),
            instantiation: choice.source(),
            source_digest,
            compiler: self.compiler.clone(),
            cache_key: self.key.map(|key| key.to_string()),
            file: None,
            digest: self.digest.to_hex().to_string(),
            bytes: self.bytes,
            compiled: self.origin == Origin::Compiled,
            checks: 0,
            refused: Vec::new(),
        }
    }

    /// The kernel's file beside its code.
    fn compare(&self) -> Comparison {
        match self.key {
            Some(key) if !self.in_no_file.load(Ordering::Relaxed) => {
                Builder::global().cache().compare(key, &self.digest)
            }
            _ => Comparison::Absent,
        }
    }
}
