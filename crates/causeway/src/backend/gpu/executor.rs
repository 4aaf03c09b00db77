//! What can stand for a GPU.

use std::fmt;

use super::plan::{DeviceFacts, Plan};
use crate::error::Result;

/// Runs a GPU's kernels on host memory, at once: planners and argument blocks are those of a real launch.
pub trait Executor: fmt::Debug + Send + Sync {
    /// How messages and reports name it.
    fn name(&self) -> String;

    /// What planners use.
    fn facts(&self) -> &DeviceFacts;

    /// Gets ready to run these plans: all at once may take less time than one by one. Nothing, where nothing is needed.
    ///
    /// # Errors
    /// As for [`Executor::execute`], of which it does a part.
    fn prepare(&self, plans: &[Plan]) -> Result<()> {
        let _ = plans;
        Ok(())
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
