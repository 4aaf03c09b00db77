//! The devices that operations run on.

use crate::backend::cpu::Cpu;
use crate::error::{Error, Result};
use crate::tensor::Location;

/// A device, open and ready. Cheap to clone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Device {
    /// This machine's processor.
    Cpu(Cpu),
}

impl Device {
    /// This machine's processor, with the widest vectors that it has.
    pub fn cpu() -> Self {
        Device::Cpu(Cpu::new())
    }

    /// The best device that is present: cuda, then hip, then cpu.
    pub fn best() -> Self {
        Self::cpu()
    }

    /// A device by name: `best`, `cpu`, `cuda`, `cuda:N`, `hip` or `hip:N`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] for another name, and the driver's error if it cannot be opened.
    pub fn open(name: &str) -> Result<Self> {
        match name {
            "best" => Ok(Self::best()),
            "cpu" => Ok(Self::cpu()),
            _ => Err(Error::UnknownDevice { found: name.to_string() }),
        }
    }

    /// Where tensors have to be for this device.
    pub fn location(&self) -> Location {
        match self {
            Device::Cpu(_) => Location::Host,
        }
    }

    /// Checks that the tensors of a call, of which `argument` is one, can be used here.
    pub(crate) fn expect(&self, argument: &'static str, location: Location) -> Result<()> {
        if location == self.location() {
            return Ok(());
        }
        Err(Error::WrongLocation {
            argument,
            found: location,
            expected: self.location(),
            because: "where the operation runs",
        })
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu(cpu) => write!(f, "cpu ({cpu})"),
        }
    }
}
