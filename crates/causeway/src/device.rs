//! The devices that operations run on.

mod operations;

use std::sync::Arc;

use crate::backend::cpu::{Cpu, Level};
use crate::backend::gpu::artifact::Artifact;
use crate::backend::gpu::plan::{DeviceFacts, Plan, Vendor};
use crate::backend::gpu::{Executor, GpuDevice, Stream};
use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::Location;

/// A device, open and ready. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Device {
    /// This machine's processor.
    Cpu(Cpu),
    /// A GPU, and the stream that work is put on. Operations return before they are done there; reading a
    /// result through [`DeviceTensor::download`](crate::DeviceTensor::download) waits.
    Gpu(Stream),
    /// Something that runs a GPU's kernels on host memory, such as the simulator of `causeway-sim`.
    Simulated(Arc<dyn Executor>),
}

impl Device {
    /// This machine's processor, with the widest vectors that it has.
    pub fn cpu() -> Self {
        Device::Cpu(Cpu::new())
    }

    /// A GPU by number, with a stream of its own.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] without a driver, [`Error::NoDevice`], [`Error::DeviceOrdinal`],
    /// [`Error::DeviceUnsupported`], or what the driver says.
    pub fn gpu(vendor: Vendor, ordinal: u32) -> Result<Self> {
        Ok(Device::Gpu(GpuDevice::open(vendor, ordinal)?.stream()?.clone()))
    }

    /// The best device that is present: cuda, then hip, then cpu.
    pub fn best() -> Self {
        let gpu = Self::gpu(Vendor::Nvidia, 0).or_else(|_| Self::gpu(Vendor::Amd, 0));
        gpu.unwrap_or_else(|_| Self::cpu())
    }

    /// A device by name: `best`, `cpu`, `cpu:LEVEL` with the vector instructions of a [`Level`] (`cpu:avx2`), `cuda`, `cuda:N`,
    /// `hip` or `hip:N`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] for another name, and those of [`Device::gpu`].
    pub fn open(name: &str) -> Result<Self> {
        let unknown = || Error::UnknownDevice { found: name.to_string() };
        if let Some(level) = name.strip_prefix("cpu:") {
            let level = Level::ALL.into_iter().find(|known| known.name() == level).ok_or_else(unknown)?;
            return Ok(Device::Cpu(Cpu::with_level(level)?));
        }
        let (kind, ordinal) = match name.split_once(':') {
            Some((kind, number)) => (kind, Some(number.parse::<u32>().map_err(|_| unknown())?)),
            None => (name, None),
        };
        match (kind, ordinal) {
            ("best", None) => Ok(Self::best()),
            ("cpu", None) => Ok(Self::cpu()),
            ("cuda", ordinal) => Self::gpu(Vendor::Nvidia, ordinal.unwrap_or(0)),
            ("hip", ordinal) => Self::gpu(Vendor::Amd, ordinal.unwrap_or(0)),
            _ => Err(unknown()),
        }
    }

    /// Where tensors have to be for this device.
    pub fn location(&self) -> Location {
        match self {
            Device::Cpu(_) | Device::Simulated(_) => Location::Host,
            Device::Gpu(stream) => stream.device().location(),
        }
    }

    /// Waits until everything that was put on the device is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu(_) | Device::Simulated(_) => Ok(()),
            Device::Gpu(stream) => stream.synchronize(),
        }
    }

    /// What planners know about the device; nothing about a CPU.
    pub fn facts(&self) -> Option<&DeviceFacts> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(stream) => Some(stream.device().facts()),
            Device::Simulated(executor) => Some(executor.facts()),
        }
    }

    /// Whether the device has what a plan asks for. All have what their own planner does, but for simulators, which lack some
    /// of a GPU's instructions.
    pub fn can_run(&self, plan: &Plan) -> bool {
        match self {
            Device::Cpu(_) => false,
            Device::Gpu(_) => true,
            Device::Simulated(executor) => executor.can_run(plan),
        }
    }

    /// Reads the file of a plan's kernel again before a launch, and tells what was seen: see [`GpuDevice::check`] and
    /// [`Executor::check`]. Nothing for a CPU, which has no kernels in files.
    ///
    /// # Errors
    /// Those of getting the kernel.
    pub fn check(&self, plan: &Plan) -> Result<Option<Artifact>> {
        match self {
            Device::Cpu(_) => Ok(None),
            Device::Gpu(stream) => stream.device().check(plan).map(Some),
            Device::Simulated(executor) => executor.check(plan),
        }
    }

    /// Plans a call and launches it; does nothing for a call with empty outputs.
    ///
    /// # Safety
    /// The plan is made from validated views of memory at this device's location.
    unsafe fn execute(&self, plan: impl FnOnce(&DeviceFacts) -> Result<Option<Plan>>) -> Result<()> {
        match self {
            Device::Cpu(_) => unreachable!("operations compute on a CPU by themselves"),
            Device::Gpu(stream) => match plan(stream.device().facts()).map_err(|error| self.named(error))? {
                // SAFETY: the views that the plan was made from vouch for the addresses, until the stream has
                // come this far; the stream is live and of its own device.
                Some(plan) => unsafe { stream.device().launch(&plan, stream.handle(), None) },
                None => Ok(()),
            },
            Device::Simulated(executor) => match plan(executor.facts()).map_err(|error| self.named(error))? {
                // SAFETY: the views vouch for the addresses, and the executor is done when it returns.
                Some(plan) => unsafe { executor.execute(&plan) },
                None => Ok(()),
            },
        }
    }

    /// The error of a planner, which knows the device by its architecture, with the device's name.
    fn named(&self, error: Error) -> Error {
        match error {
            Error::Unsupported { what, instead, .. } => {
                Error::Unsupported { what, device: self.to_string(), instead }
            }
            error => error,
        }
    }

    /// Checks that the tensors of a call, of which `argument` is one, can be used here.
    fn expect(&self, argument: &'static str, location: Location) -> Result<()> {
        checks::device(argument, location, self.location())
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu(cpu) => write!(f, "cpu ({cpu})"),
            Device::Gpu(stream) => write!(f, "{}", stream.device()),
            Device::Simulated(executor) => f.write_str(&executor.name()),
        }
    }
}
