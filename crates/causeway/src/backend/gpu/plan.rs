//! What a launch is made of, before anything touches a device.
//!
//! Planners are pure functions of an operation and [`DeviceFacts`]; they never read tensor memory, only
//! shapes, strides and the alignment of addresses. Their [`Plan`]s can be printed, compared and tested on a
//! machine with no GPU.

use std::fmt;

use super::choice::Choice;
pub use super::facts::{DeviceFacts, Vendor};
use crate::tensor::DType;

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
    /// The kernel's one argument, as bytes: a struct of `device_struct!`, from which the kernel's own is rendered.
    pub arguments: Vec<u8>,
    /// Where in `arguments` the workspace address goes, if one is used: it is added to the 8 bytes there, which are the distance
    /// from its start.
    pub workspace_at: Vec<usize>,
    /// Where in `arguments` the address of the counters goes, if any are used, likewise.
    pub counters_at: Vec<usize>,
    /// Matrices for TMA, and where in `arguments` each goes ([`TensorMap::BYTES`] bytes).
    pub tensor_maps: Vec<(usize, TensorMap)>,
    /// True for a programmatic dependent launch: the kernel itself waits for the launch before it on the stream, and may begin while that
    /// one ends.
    pub programmatic_launch: bool,
    /// Bytes that the launch has to read from memory, each input once.
    pub read_bytes: u64,
    /// Bytes that it has to write, each output once.
    pub written_bytes: u64,
}

impl Plan {
    /// A launch of one block of one thread, with no scratch memory and no shared memory, that moves so many bytes.
    #[inline]
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
            workspace_at: Vec::new(),
            counters_at: Vec::new(),
            tensor_maps: Vec::new(),
            programmatic_launch: false,
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
