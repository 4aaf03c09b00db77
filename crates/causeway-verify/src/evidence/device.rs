//! What a run depended on: the device, its driver and the compiler of its kernels.

use causeway::backend::gpu::builder::Builder;
use causeway::backend::gpu::compiler::{Target, sources_digest};
use causeway::backend::gpu::{CompilerFacts, GpuDevice};
use causeway::device::Device;
use serde::{Deserialize, Serialize};

/// What kind of device ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A processor, with the kernels of one set of vector instructions.
    Cpu {
        /// The set that ran: `avx512`.
        level: String,
        /// The sets that did not run.
        others: Vec<String>,
    },
    /// A GPU.
    Gpu,
    /// A GPU's kernels on a processor.
    Simulated,
}

impl Backend {
    /// Of a device.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu(cpu) => {
                let others =
                    causeway::backend::cpu::Level::ALL.into_iter().filter(|level| *level != cpu.level());
                let others = others.map(|level| level.name().to_string()).collect();
                Backend::Cpu { level: cpu.level().name().to_string(), others }
            }
            Device::Gpu(_) => Backend::Gpu,
            Device::Simulated(_) => Backend::Simulated,
        }
    }
}

/// A GPU, its driver and its compiler, or what stood for them. What is not known is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceEvidence {
    /// Marketing name.
    pub name: String,
    /// Architecture as compilers name it.
    pub architecture: String,
    /// `domain:bus:device`; empty for a simulated device.
    pub pci: String,
    /// Multiprocessors or compute units.
    pub multiprocessors: u32,
    /// Threads that run in lockstep.
    pub wave_size: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Bytes of memory, and how many of them were free at the start; 0 for a simulated device.
    pub memory_bytes: u64,
    /// Bytes that were free at the start.
    pub free_memory_bytes: Option<u64>,
    /// Highest clock in kHz; it is not the one that the run had.
    pub highest_clock_khz: Option<u32>,
    /// The same of the memory.
    pub highest_memory_clock_khz: Option<u32>,
    /// Bits of the memory's bus.
    pub memory_bus_bits: Option<u32>,
    /// The driver's interface version; empty for a simulated device.
    pub driver_version: String,
    /// The driver's library file; empty for a simulated device.
    pub driver_library: String,
    /// `NVRTC 13.0`.
    pub compiler: Option<String>,
    /// The compiler's library, or its program.
    pub compiler_library: Option<String>,
    /// BLAKE3 digest of that file.
    pub compiler_digest: Option<String>,
    /// Options of every compilation.
    pub compiler_options: Vec<String>,
    /// BLAKE3 digest of all files in kernels/ with their names.
    pub kernel_sources: String,
}

impl DeviceEvidence {
    /// Of a GPU, or of what stands for one; `None` for a processor.
    pub fn of(device: &Device) -> Option<Self> {
        match device {
            Device::Cpu(_) => None,
            Device::Gpu(stream) => Some(Self::of_gpu(stream.device())),
            Device::Simulated(executor) => {
                let facts = executor.facts();
                let compiler = executor.compiler();
                Some(DeviceEvidence {
                    name: format!("simulated {}", facts.architecture),
                    architecture: facts.architecture.clone(),
                    pci: String::new(),
                    multiprocessors: facts.multiprocessors,
                    wave_size: facts.wave_size,
                    l2_bytes: facts.l2_bytes,
                    memory_bytes: 0,
                    free_memory_bytes: None,
                    highest_clock_khz: None,
                    highest_memory_clock_khz: None,
                    memory_bus_bits: None,
                    driver_version: String::new(),
                    driver_library: String::new(),
                    compiler_options: compiler.as_ref().map_or(Vec::new(), |c| c.options.clone()),
                    compiler: compiler.as_ref().map(|c| c.name.clone()),
                    compiler_library: compiler.as_ref().map(|c| c.file.clone()),
                    compiler_digest: compiler.map(|c| c.digest),
                    kernel_sources: sources_digest().unwrap_or_else(|error| format!("unknown: {error}")),
                })
            }
        }
    }

    fn of_gpu(gpu: GpuDevice) -> Self {
        let report = gpu.report();
        let compiler = compiler_of(gpu);
        let known = |value: u32| (value > 0).then_some(value);
        DeviceEvidence {
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
            compiler: compiler.as_ref().map(|c| c.name.clone()),
            compiler_library: compiler.as_ref().map(|c| c.file.clone()),
            compiler_digest: compiler.map(|c| c.digest),
            compiler_options: Target::of(&report.facts).options(),
            kernel_sources: sources_digest().unwrap_or_else(|error| format!("unknown: {error}")),
        }
    }
}

/// The run-time compiler of a GPU, if there is one that can be read.
fn compiler_of(gpu: GpuDevice) -> Option<CompilerFacts> {
    let compiler = gpu.compiler().ok()?;
    let identity = compiler.identity(Builder::global().cache()).ok()?;
    Some(CompilerFacts {
        name: identity.name.clone(),
        file: compiler.path().display().to_string(),
        digest: identity.digest.clone(),
        options: Vec::new(),
    })
}
