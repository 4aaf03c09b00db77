//! What a launch is made of, before anything touches a device.
//!
//! Planners are pure functions of an operation and [`DeviceFacts`]; they never read tensor memory, only
//! shapes, strides and the alignment of addresses. Their [`Plan`]s can be printed, compared and tested on a
//! machine with no GPU.

use std::fmt;

use super::compiler::Program;

/// Whose device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// CUDA.
    Nvidia,
    /// HIP.
    Amd,
}

/// What a planner may know about a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceFacts {
    /// Whose device it is.
    pub vendor: Vendor,
    /// Architecture as its compiler names it, with features: `sm_90a`, `gfx90a:sramecc+:xnack-`.
    pub architecture: String,
    /// Multiprocessors (CUDA) or compute units (HIP).
    pub multiprocessors: u32,
    /// Threads that run in lockstep: 32 or 64.
    pub wave_size: u32,
    /// Most threads resident on one multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// 32-bit registers of one multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Bytes of shared memory of one multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// Most bytes of shared memory that one block can ask for.
    pub shared_per_block: u32,
    /// Bytes of the last cache level.
    pub l2_bytes: u64,
}

impl DeviceFacts {
    /// The H200's facts: the reference device of docs/performance.md, for tests and plans without a GPU.
    pub fn h200() -> Self {
        DeviceFacts {
            vendor: Vendor::Nvidia,
            architecture: "sm_90a".to_string(),
            multiprocessors: 132,
            wave_size: 32,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65536,
            shared_per_multiprocessor: 233_472,
            shared_per_block: 232_448,
            l2_bytes: 62_914_560,
        }
    }

    /// An MI300X's facts.
    pub fn mi300x() -> Self {
        DeviceFacts {
            vendor: Vendor::Amd,
            architecture: "gfx942:sramecc+:xnack-".to_string(),
            multiprocessors: 304,
            wave_size: 64,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 131_072,
            shared_per_multiprocessor: 65_536,
            shared_per_block: 65_536,
            l2_bytes: 268_435_456,
        }
    }
}

/// One launch: the program text, its geometry, and its argument block.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// File in `kernels/` that holds the kernel.
    pub header: &'static str,
    /// Text compiled after the header: defines the one `extern "C"` entry, named [`Plan::entry`].
    pub instantiation: String,
    /// Name of the entry point.
    pub entry: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Bytes of scratch memory for partial results; contents need no initialisation.
    pub workspace_bytes: u64,
    /// 32-bit arrival counters; zero before the launch and after it.
    pub counters: u32,
    /// The kernel's one argument, as bytes; a `#[repr(C)]` struct that mirrors the one in `kernels/`.
    pub arguments: Vec<u8>,
    /// Where in `arguments` the workspace address goes (8 bytes), if one is used.
    pub workspace_at: Option<usize>,
    /// Where in `arguments` the address of the counters goes (8 bytes), if any are used.
    pub counters_at: Option<usize>,
    /// Bytes that the launch has to read from memory, each input once.
    pub read_bytes: u64,
    /// Bytes that it has to write, each output once.
    pub written_bytes: u64,
}

impl Plan {
    /// What has to be compiled for this launch.
    pub fn program(&self) -> Program<'_> {
        Program { header: self.header, instantiation: &self.instantiation, entry: self.entry }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [gx, gy, gz] = self.grid;
        let [bx, by, bz] = self.block;
        writeln!(f, "kernel      {} in {}", self.entry, self.header)?;
        writeln!(f, "program     {}", self.instantiation.trim())?;
        writeln!(f, "grid        {gx} × {gy} × {gz} blocks of {bx} × {by} × {bz} threads")?;
        writeln!(f, "shared      {} bytes", self.shared_bytes)?;
        writeln!(f, "workspace   {} bytes, {} counters", self.workspace_bytes, self.counters)?;
        write!(f, "moves       {} bytes in, {} bytes out", self.read_bytes, self.written_bytes)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
