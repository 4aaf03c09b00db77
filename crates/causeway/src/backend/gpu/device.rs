//! What there is to know about a device.

use std::ffi::c_int;
use std::fmt;

use super::compiler::{REQUIRED_AMD, REQUIRED_NVIDIA, is_supported};
use super::driver::{Driver, vendor_name};
use super::facts::{DeviceFacts, Vendor};
use crate::error::{Error, Result};
use crate::tensor::Location;

/// A device, described for people and reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its number, from 0.
    pub ordinal: u32,
    /// Its marketing name.
    pub name: String,
    /// What planners use.
    pub facts: DeviceFacts,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Highest clock of the multiprocessors, in kHz; 0 if unknown.
    pub clock_khz: u32,
    /// Highest clock of the memory, in kHz; 0 if unknown.
    pub memory_clock_khz: u32,
    /// Width of the memory's bus, in bits; 0 if unknown.
    pub memory_bus_bits: u32,
    /// True if the driver can allocate in the order of a stream.
    pub memory_pools: bool,
    /// Its place on the PCI bus: `domain:bus:device`.
    pub pci: String,
    /// The driver's library file.
    pub driver_library: String,
    /// The driver's interface version, `13.0`.
    pub driver_version: String,
}

impl DeviceReport {
    /// Where tensors have to be for this device.
    pub fn location(&self) -> Location {
        match self.facts.vendor {
            Vendor::Nvidia => Location::Cuda(self.ordinal),
            Vendor::Amd => Location::Hip(self.ordinal),
        }
    }

    /// True if the kernels run on this device.
    pub fn is_supported(&self) -> bool {
        is_supported(self.facts.vendor, &self.facts.architecture)
    }

    /// Says what is needed if the kernels do not run on this device.
    ///
    /// # Errors
    /// [`Error::DeviceUnsupported`].
    pub fn expect_supported(&self) -> Result<()> {
        if self.is_supported() {
            return Ok(());
        }
        Err(Error::DeviceUnsupported {
            device: self.to_string(),
            architecture: self.facts.architecture.clone(),
            required: match self.facts.vendor {
                Vendor::Nvidia => REQUIRED_NVIDIA,
                Vendor::Amd => REQUIRED_AMD,
            },
        })
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", vendor_name(self.facts.vendor), self.ordinal, self.name)
    }
}

/// All devices of a vendor, the unsupported ones too.
///
/// # Errors
/// [`Error::LibraryMissing`] without a driver, [`Error::NoDevice`] without a device, and what the driver says.
pub fn devices(vendor: Vendor) -> Result<Vec<DeviceReport>> {
    let driver = Driver::get(vendor)?;
    (0..driver.device_count()?).map(|ordinal| describe(driver, ordinal).map(|(_, report)| report)).collect()
}

/// A device's handle and its description.
pub(super) fn describe(driver: &Driver, ordinal: u32) -> Result<(c_int, DeviceReport)> {
    let device = driver.device(ordinal)?;
    let numbers = driver.attributes();
    let attribute = |number| driver.attribute(device, number);
    // Not every driver knows every one of these, and nothing depends on them.
    let optional = |number| attribute(number).unwrap_or(0);
    let (memory_clock_khz, memory_bus_bits) = (optional(numbers.memory_clock), optional(numbers.memory_bus));
    let facts = DeviceFacts {
        vendor: driver.vendor(),
        architecture: driver.architecture(device)?,
        multiprocessors: attribute(numbers.multiprocessors)?,
        wave_size: attribute(numbers.wave_size)?,
        threads_per_multiprocessor: attribute(numbers.threads_per_multiprocessor)?,
        registers_per_multiprocessor: attribute(numbers.registers_per_multiprocessor)?,
        shared_per_multiprocessor: attribute(numbers.shared_per_multiprocessor)?,
        shared_per_block: attribute(numbers.shared_per_block)?,
        l2_bytes: u64::from(attribute(numbers.l2_bytes)?),
        // Two transfers a cycle of its clock.
        memory_gigabytes_per_second: (u64::from(memory_clock_khz) * u64::from(memory_bus_bits) / 4_000_000)
            as u32,
    };
    let report = DeviceReport {
        ordinal,
        name: driver.device_name(device)?,
        facts,
        memory_bytes: driver.total_memory(device)?,
        clock_khz: optional(numbers.clock),
        memory_clock_khz,
        memory_bus_bits,
        memory_pools: optional(numbers.memory_pools) != 0,
        pci: format!(
            "{:04x}:{:02x}:{:02x}",
            optional(numbers.pci_domain),
            optional(numbers.pci_bus),
            optional(numbers.pci_device)
        ),
        driver_library: driver.path().to_string(),
        driver_version: driver.version_text(),
    };
    Ok((device, report))
}
