//! Calls whose kernel is loaded, for callers with streams and an allocator of their own.

use super::argument::Workspace;
use super::handle::StreamHandle;
use super::plan::Plan;
use super::runtime::{GpuDevice, Kernel};
use crate::error::Result;

/// A launch whose kernel is loaded.
pub struct Ready {
    device: GpuDevice,
    plan: Plan,
    kernel: &'static Kernel,
}

impl GpuDevice {
    /// Loads the kernel of a plan, or finds it loaded; None if there is nothing to launch.
    ///
    /// # Errors
    /// Those of [`GpuDevice::prepare`].
    pub fn ready(&self, plan: Option<Plan>) -> Result<Option<Ready>> {
        let Some(plan) = plan.filter(|plan| !plan.grid.contains(&0)) else { return Ok(None) };
        let kernel = self.kernel(&plan.choice)?;
        Ok(Some(Ready { device: *self, plan, kernel }))
    }
}

impl Ready {
    /// Bytes of workspace that the launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes
    }

    /// Puts the call on a stream, as [`GpuDevice::launch`] does.
    ///
    /// # Errors
    /// As for [`GpuDevice::launch`].
    ///
    /// # Safety
    /// As for [`GpuDevice::launch`], of the tensors of the call.
    pub unsafe fn launch(&self, stream: StreamHandle, workspace: Option<Workspace>) -> Result<()> {
        // SAFETY: the caller's promise: the addresses are those of the call's tensors.
        unsafe { self.device.launch_kernel(&self.plan, self.kernel, stream, workspace) }
    }
}
