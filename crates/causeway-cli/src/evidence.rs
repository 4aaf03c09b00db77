//! What a run on a GPU depended on: evidence for saved runs, and for `doctor`.

use causeway::Device;
use causeway::backend::gpu::builder::Builder;
use causeway::backend::gpu::compiler::{Target, sources_digest};
use serde::{Deserialize, Serialize};

/// A GPU, its driver and its compiler. What the driver does not tell is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceEvidence {
    pub name: String,
    pub architecture: String,
    /// `domain:bus:device`.
    pub pci: String,
    pub multiprocessors: u32,
    /// Threads that run in lockstep.
    pub wave_size: u32,
    /// Bytes of the last cache level.
    pub l2_bytes: u64,
    /// Bytes of memory, and how many of them were free at the start.
    pub memory_bytes: u64,
    pub free_memory_bytes: Option<u64>,
    /// Highest clocks in kHz; they are not those that the run had.
    pub highest_clock_khz: Option<u32>,
    pub highest_memory_clock_khz: Option<u32>,
    pub memory_bus_bits: Option<u32>,
    pub driver_version: String,
    pub driver_library: String,
    /// `NVRTC 13.0`, the file that it was loaded from, and that file's BLAKE3 digest.
    pub compiler: Option<String>,
    pub compiler_library: Option<String>,
    pub compiler_digest: Option<String>,
    /// Options of every compilation.
    pub compiler_options: Vec<String>,
    /// BLAKE3 digest of all files in kernels/ with their names.
    pub kernel_sources: String,
}

impl DeviceEvidence {
    /// Of a GPU; `None` for a processor.
    pub fn of(device: &Device) -> Option<Self> {
        let Device::Gpu(stream) = device else { return None };
        let gpu = stream.device();
        let report = gpu.report();
        let compiler = gpu.compiler().ok();
        let identity = compiler.and_then(|compiler| compiler.identity(Builder::global().cache()).ok());
        let known = |value: u32| (value > 0).then_some(value);
        Some(DeviceEvidence {
            name: report.name.clone(),
            architecture: report.facts.architecture.clone(),
            pci: report.pci.clone(),
            multiprocessors: report.facts.multiprocessors,
            wave_size: report.facts.wave_size,
            l2_bytes: report.facts.l2_bytes,
            memory_bytes: report.memory_bytes,
            free_memory_bytes: gpu.memory().ok().map(|(free, _)| free),
            highest_clock_khz: known(report.clock_khz),
            highest_memory_clock_khz: known(report.memory_clock_khz),
            memory_bus_bits: known(report.memory_bus_bits),
            driver_version: report.driver_version.clone(),
            driver_library: report.driver_library.clone(),
            compiler: identity.map(|identity| identity.name.clone()),
            compiler_library: compiler.map(|compiler| compiler.path().display().to_string()),
            compiler_digest: identity.map(|identity| identity.digest.clone()),
            compiler_options: Target::of(&report.facts).options(),
            kernel_sources: sources_digest(),
        })
    }
}
