//! What a planner may know about a device.

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
    /// What device memory could move at most, in 10⁹ bytes a second, by its clock and its bus; 0 where the driver does not say.
    pub memory_gigabytes_per_second: u32,
}

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
            memory_gigabytes_per_second: 4814,
        }
    }

    /// The H100's facts, where they differ from the H200's: another cache, and slower memory.
    pub fn h100() -> Self {
        DeviceFacts { l2_bytes: 52_428_800, memory_gigabytes_per_second: 3352, ..Self::h200() }
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
            memory_gigabytes_per_second: 5325,
        }
    }
}
