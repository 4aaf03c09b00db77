//! What a launch is made of, before anything touches a device.
//!
//! Planners are pure functions of an operation and [`DeviceFacts`]; they never read tensor memory, only
//! shapes, strides and the alignment of addresses. Their [`Plan`]s can be printed, compared and tested on a
//! machine with no GPU.

use std::fmt;

use super::choice::Choice;
use super::compiler::Target;
use crate::tensor::DType;

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
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
}

/// Reference devices, from the vendors' data sheets: beginning of the architecture, multiprocessors, threads and
/// registers of each, KiB of shared memory of each and of one block, MiB of the L2 cache.
type Reference = (&'static str, u32, u32, u32, u32, u32, u64);
const REFERENCES: &[Reference] = &[
    ("sm_75", 40, 1024, 65_536, 64, 64, 4),        // T4
    ("sm_80", 108, 2048, 65_536, 164, 163, 40),    // A100
    ("sm_86", 84, 1536, 65_536, 100, 99, 6),       // A40
    ("sm_89", 142, 1536, 65_536, 100, 99, 96),     // L40S
    ("sm_90", 132, 2048, 65_536, 228, 227, 60),    // H200
    ("sm_10", 148, 2048, 65_536, 228, 227, 126),   // B200
    ("sm_12", 170, 1536, 65_536, 100, 99, 96),     // RTX 5090
    ("gfx90a", 104, 2048, 131_072, 64, 64, 8),     // one half of an MI250X
    ("gfx942", 304, 2048, 131_072, 64, 64, 256),   // MI300X
    ("gfx950", 256, 2048, 131_072, 160, 160, 256), // MI355X
    ("gfx1030", 72, 2048, 65_536, 64, 64, 128),    // RX 6800 XT
    ("gfx110", 96, 2048, 98_304, 64, 64, 96),      // RX 7900 XTX
    ("gfx120", 64, 2048, 98_304, 64, 64, 64),      // RX 9070 XT
];

impl DeviceFacts {
    /// The H200's facts: the reference device of docs/performance, for tests and plans without a GPU.
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

    /// The facts of an architecture's reference device, for plans and compilations where none is present.
    pub fn of_target(target: &Target) -> Self {
        let name = target.architecture();
        let base = name.split(':').next().unwrap_or(name);
        let known = REFERENCES.iter().find(|reference| base.starts_with(reference.0));
        let of_vendor = match target.vendor() {
            Vendor::Nvidia => Self::h200(),
            Vendor::Amd => Self::mi300x(),
        };
        let mut facts =
            DeviceFacts { architecture: name.to_string(), wave_size: target.wave_size(), ..of_vendor };
        if let Some(&(_, multiprocessors, threads, registers, shared, per_block, l2_mebibytes)) = known {
            facts.multiprocessors = multiprocessors;
            facts.threads_per_multiprocessor = threads;
            facts.registers_per_multiprocessor = registers;
            facts.shared_per_multiprocessor = shared << 10;
            facts.shared_per_block = per_block << 10;
            facts.l2_bytes = l2_mebibytes << 20;
        }
        facts
    }

    /// The number of an NVIDIA architecture: 90 for sm_90a; 0 for any other.
    pub(super) fn compute_capability(&self) -> u32 {
        let name = self.architecture.strip_prefix("sm_").filter(|_| self.vendor == Vendor::Nvidia);
        let digits = name.unwrap_or_default().bytes().take_while(u8::is_ascii_digit);
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
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

/// A matrix that NVIDIA's TMA moves in boxes between memory and shared memory, from compute capability 9.0
/// on. The runtime encodes it as the driver wants it: 128 bytes in the argument block.
///
/// What lies outside the matrix reads as zeros and is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// F16 or BF16.
    pub dtype: DType,
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Elements of a line, and lines; at least 1, below 2^32.
    pub sizes: [u64; 2],
    /// Bytes from one line to the next: a multiple of 16 below 2^40.
    pub stride_bytes: u64,
    /// Elements of a line of a box, a multiple of 8, and lines of a box; at most 256 each.
    pub box_sizes: [u32; 2],
    /// True if the 16-byte groups of a box's lines, of 128 bytes then, are swizzled by the line's place in shared
    /// memory.
    pub swizzled: bool,
}

impl TensorMap {
    /// Bytes of an encoded map.
    pub const BYTES: usize = 128;
}

/// One launch: what is compiled for it, its geometry, and its argument block.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// The kernel, and what it is compiled for.
    pub choice: Choice,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Blocks of a cluster, 1 without. The text has the number as well; this is for the driver, which has to be asked for
    /// more than 8.
    pub cluster: u32,
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
    /// Matrices for TMA, and where in `arguments` each goes ([`TensorMap::BYTES`] bytes).
    pub tensor_maps: Vec<(usize, TensorMap)>,
    /// True if the kernel itself waits for the launch before it on the stream, so that it may begin while that one
    /// ends.
    pub begins_early: bool,
    /// Bytes that the launch has to read from memory, each input once.
    pub read_bytes: u64,
    /// Bytes that it has to write, each output once.
    pub written_bytes: u64,
}

impl Plan {
    /// A launch of one block of one thread, with no scratch memory and no shared memory, that moves so many bytes.
    pub fn new(choice: Choice, arguments: &[u8], read_bytes: u64, written_bytes: u64) -> Self {
        Plan {
            choice,
            grid: [1, 1, 1],
            block: [1, 1, 1],
            cluster: 1,
            shared_bytes: 0,
            workspace_bytes: 0,
            counters: 0,
            arguments: arguments.to_vec(),
            workspace_at: None,
            counters_at: None,
            tensor_maps: Vec::new(),
            begins_early: false,
            read_bytes,
            written_bytes,
        }
    }

    /// File in `kernels/` that holds the kernel.
    pub fn header(&self) -> &'static str {
        self.choice.header()
    }

    /// Name of the entry point.
    pub fn entry(&self) -> &'static str {
        self.choice.entry()
    }
}

#[cfg(test)]
impl Plan {
    /// What a constant of the program is, as text, which stays for as long as the tests run.
    pub(super) fn constant(&self, name: &str) -> &'static str {
        let source: &'static str = self.choice.source().leak();
        let after = source.split(&format!(" {name} = ")).nth(1);
        after.and_then(|after| after.split(';').next()).unwrap_or_else(|| panic!("{name} in {self}"))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [gx, gy, gz] = self.grid;
        let [bx, by, bz] = self.block;
        writeln!(f, "kernel      {} in {}", self.entry(), self.header())?;
        writeln!(f, "program     {}", self.choice.source().trim())?;
        writeln!(f, "grid        {gx} × {gy} × {gz} blocks of {bx} × {by} × {bz} threads")?;
        writeln!(f, "shared      {} bytes", self.shared_bytes)?;
        writeln!(f, "workspace   {} bytes, {} counters", self.workspace_bytes, self.counters)?;
        for (at, map) in &self.tensor_maps {
            let ([elements, lines], [width, height]) = (map.sizes, map.box_sizes);
            writeln!(
                f,
                "tensor map  at byte {at}: {lines} lines of {elements}, boxes of {height} lines of {width}"
            )?;
        }
        write!(f, "moves       {} bytes in, {} bytes out", self.read_bytes, self.written_bytes)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
