//! What to compile for.

use std::fmt;

use crate::backend::gpu::facts::{DeviceFacts, Vendor};
use crate::error::{Error, Result};

/// The AMD architectures that kernels are written for, with the first ROCm whose HIPRTC knows each.
///
/// The versions are more than help: HIPRTC of ROCm 5 ends the whole process when it is asked for an
/// architecture that it does not know, so it is never asked.
const AMD: &[(&str, (u32, u32))] = &[
    ("gfx90a", (5, 0)),
    ("gfx942", (6, 0)),
    ("gfx950", (6, 4)),
    ("gfx1030", (5, 0)),
    ("gfx1100", (5, 5)),
    ("gfx1101", (5, 7)),
    ("gfx1102", (5, 7)),
    ("gfx1103", (5, 7)),
    ("gfx1200", (6, 4)),
    ("gfx1201", (6, 4)),
];

/// Oldest compute capability that kernels are written for, times ten.
const OLDEST_NVIDIA: u32 = 75;

/// What device support looks like, for messages.
pub(crate) const REQUIRED_NVIDIA: &str = "compute capability 7.5 (Turing) or later";
pub(crate) const REQUIRED_AMD: &str = "gfx90a, gfx942, gfx950, gfx1030, gfx110x or gfx120x";

/// An architecture to compile for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    vendor: Vendor,
    architecture: String,
    wave_size: u32,
}

impl Target {
    /// The target of a device.
    pub fn of(facts: &DeviceFacts) -> Self {
        Target { vendor: facts.vendor, architecture: facts.architecture.clone(), wave_size: facts.wave_size }
    }

    /// A target by name: `sm_90a`, `gfx942`, `gfx90a:sramecc+:xnack-`.
    ///
    /// # Errors
    /// [`Error::UnknownArchitecture`] for anything that kernels cannot be compiled for.
    pub fn parse(name: &str) -> Result<Self> {
        let (vendor, wave_size) = if name.starts_with("sm_") {
            (Vendor::Nvidia, 32)
        } else if name.starts_with("gfx9") {
            (Vendor::Amd, 64)
        } else {
            (Vendor::Amd, 32)
        };
        if !is_supported(vendor, name) {
            return Err(Error::UnknownArchitecture { found: name.to_string() });
        }
        Ok(Target { vendor, architecture: name.to_string(), wave_size })
    }

    /// Whose devices it is for.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The architecture as the compiler names it, with features.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Threads that run in lockstep.
    pub fn wave_size(&self) -> u32 {
        self.wave_size
    }

    /// The options of the run-time compiler.
    pub fn options(&self) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={}", self.architecture),
            "-std=c++17".to_string(),
            format!("-DCAUSEWAY_WAVE_SIZE={}", self.wave_size),
        ];
        if self.vendor == Vendor::Amd {
            options.push("-O3".to_string());
            // CDNA has waves of 64 only; RDNA runs 32 unless told.
            if self.wave_size == 64 && !self.architecture.starts_with("gfx9") {
                options.push("-mwavefrontsize64".to_string());
            }
        }
        options
    }

    /// The first ROCm whose compiler knows this architecture; None for NVIDIA, where the compiler says so.
    pub(crate) fn first_rocm(&self) -> Option<(u32, u32)> {
        let name = base(&self.architecture);
        AMD.iter().find(|(known, _)| *known == name).map(|(_, version)| *version)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.architecture)
    }
}

/// The architecture without its features.
fn base(architecture: &str) -> &str {
    architecture.split(':').next().unwrap_or_default()
}

/// True if kernels are written for an architecture.
pub(crate) fn is_supported(vendor: Vendor, architecture: &str) -> bool {
    match vendor {
        Vendor::Nvidia => architecture
            .strip_prefix("sm_")
            .map(|rest| rest.strip_suffix(['a', 'f']).unwrap_or(rest))
            .filter(|digits| matches!(digits.len(), 2 | 3) && digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|digits| digits.parse::<u32>().ok())
            .is_some_and(|capability| capability >= OLDEST_NVIDIA),
        Vendor::Amd => {
            let features = architecture.split(':').skip(1);
            let plain = |f: &str| matches!(f, "sramecc+" | "sramecc-" | "xnack+" | "xnack-");
            AMD.iter().any(|(known, _)| *known == base(architecture)) && features.into_iter().all(plain)
        }
    }
}

/// Reference devices, from the vendors' data sheets: beginning of the architecture, multiprocessors, threads and
/// registers of each, KiB of shared memory of each and of one block, MiB of the L2 cache, GB/s of memory.
type Reference = (&'static str, u32, u32, u32, u32, u32, u64, u32);
const REFERENCES: &[Reference] = &[
    ("sm_75", 40, 1024, 65_536, 64, 64, 4, 320),         // T4
    ("sm_80", 108, 2048, 65_536, 164, 163, 40, 2039),    // A100
    ("sm_86", 84, 1536, 65_536, 100, 99, 6, 696),        // A40
    ("sm_89", 142, 1536, 65_536, 100, 99, 96, 864),      // L40S
    ("sm_90", 132, 2048, 65_536, 228, 227, 60, 4814),    // H200
    ("sm_10", 148, 2048, 65_536, 228, 227, 126, 8000),   // B200
    ("sm_12", 170, 1536, 65_536, 100, 99, 96, 1792),     // RTX 5090
    ("gfx90a", 104, 2048, 131_072, 64, 64, 8, 1638),     // one half of an MI250X
    ("gfx942", 304, 2048, 131_072, 64, 64, 256, 5325),   // MI300X
    ("gfx950", 256, 2048, 131_072, 160, 160, 256, 8000), // MI355X
    ("gfx1030", 72, 2048, 65_536, 64, 64, 128, 512),     // RX 6800 XT
    ("gfx110", 96, 2048, 98_304, 64, 64, 96, 960),       // RX 7900 XTX
    ("gfx120", 64, 2048, 98_304, 64, 64, 64, 640),       // RX 9070 XT
];

impl DeviceFacts {
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
        if let Some(&(_, multiprocessors, threads, registers, shared, per_block, l2_mebibytes, memory)) =
            known
        {
            facts.multiprocessors = multiprocessors;
            facts.threads_per_multiprocessor = threads;
            facts.registers_per_multiprocessor = registers;
            facts.shared_per_multiprocessor = shared << 10;
            facts.shared_per_block = per_block << 10;
            facts.l2_bytes = l2_mebibytes << 20;
            facts.memory_gigabytes_per_second = memory;
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in
            ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120", "gfx90a", "gfx942:sramecc+:xnack-", "gfx1201"]
        {
            assert_eq!(Target::parse(good).unwrap().architecture(), good);
        }
        for bad in [
            "",
            "sm_",
            "sm_70",
            "sm_90 -I/",
            "sm_9a",
            "compute_90",
            "gfx",
            "gfx906",
            "gfx90a:fast",
            "gfx1030 ",
        ] {
            assert!(matches!(Target::parse(bad), Err(Error::UnknownArchitecture { .. })), "{bad:?}");
        }
    }

    #[test]
    fn waves_follow_the_architecture() {
        let wave = |name| Target::parse(name).unwrap().wave_size();
        assert_eq!(
            [wave("sm_90a"), wave("gfx90a"), wave("gfx942"), wave("gfx1030"), wave("gfx1201")],
            [32, 64, 64, 32, 32]
        );
        let mut wide = Target::parse("gfx1100").unwrap();
        assert!(!wide.options().contains(&"-mwavefrontsize64".to_string()));
        wide.wave_size = 64;
        assert!(wide.options().contains(&"-mwavefrontsize64".to_string()));
        assert!(wide.options().contains(&"-DCAUSEWAY_WAVE_SIZE=64".to_string()));
    }
}
