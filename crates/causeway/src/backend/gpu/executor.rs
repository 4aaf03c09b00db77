//! What can stand for a GPU.

use std::fmt;

use super::artifact::Artifact;
use super::plan::{DeviceFacts, Plan};
use crate::error::Result;

/// A compiler as reports name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerFacts {
    /// Name and version.
    pub name: String,
    /// Its program or library.
    pub file: String,
    /// BLAKE3 digest of that file.
    pub digest: String,
    /// Options of every compilation.
    pub options: Vec<String>,
}

/// Runs a GPU's kernels on host memory, at once: planners and argument blocks are those of a real launch.
pub trait Executor: fmt::Debug + Send + Sync {
    /// How messages and reports name it.
    fn name(&self) -> String;

    /// What planners use.
    fn facts(&self) -> &DeviceFacts;

    /// Whether it has what a plan asks for.
    fn can_run(&self, plan: &Plan) -> bool {
        let _ = plan;
        true
    }

    /// Gets ready to run these plans: all at once may take less time than one by one. Nothing, where nothing is needed.
    ///
    /// # Errors
    /// As for [`Executor::execute`], of which it does a part.
    fn prepare(&self, plans: &[Plan]) -> Result<()> {
        let _ = plans;
        Ok(())
    }

    /// What compiles the kernels, if anything does.
    fn compiler(&self) -> Option<CompilerFacts> {
        None
    }

    /// Reads the file of a plan's kernel again and tells what was seen; a file that holds something else than what was
    /// loaded is refused, and the kernel made anew. None, where there is no file.
    ///
    /// # Errors
    /// As for [`Executor::prepare`].
    fn check(&self, plan: &Plan) -> Result<Option<Artifact>> {
        let _ = plan;
        Ok(None)
    }

    /// Runs a plan to its end, with workspace and counters of its own.
    ///
    /// # Errors
    /// [`Error::SimulatedFault`](crate::Error::SimulatedFault) for what a GPU would leave undefined, and
    /// [`Error::SimulatorCompiler`](crate::Error::SimulatorCompiler) if the kernel cannot be compiled.
    ///
    /// # Safety
    /// The addresses in the plan's arguments must be host memory of the sizes that the plan was made for, which
    /// nobody else uses during the call.
    unsafe fn execute(&self, plan: &Plan) -> Result<()>;
}
