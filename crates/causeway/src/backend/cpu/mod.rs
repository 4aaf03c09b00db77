//! The CPU backend: SIMD chosen at run time, threads of the current rayon pool or [lent](on_threads) by the caller.
//!
//! [`Cpu`] carries the [`Level`] of vector instructions; every kernel has one body that is compiled once per
//! level, and calls the copy that the level names. Work is split by the shape of the tensors alone, never by
//! the number of threads, so results are bit-identical for any pool, in whatever floating-point mode its threads are.

pub(crate) mod causal_conv1d;
mod float_environment;
pub(crate) mod gemm;
mod simd;
mod threads;

pub use float_environment::Ieee754;
pub use threads::{Threads, on_threads};

use crate::error::{Error, Result};

/// A set of vector instructions that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust: whatever the target guarantees.
    Portable,
    /// AArch64 Advanced SIMD: 128-bit vectors.
    Neon,
    /// x86-64 AVX2, FMA and F16C: 256-bit vectors.
    Avx2,
    /// x86-64 AVX-512 F, BW, DQ and VL, on top of [`Level::Avx2`]: 512-bit vectors.
    Avx512,
}

impl Level {
    /// Every level, narrowest first.
    pub const ALL: [Level; 4] = [Level::Portable, Level::Neon, Level::Avx2, Level::Avx512];

    /// `portable`, `neon`, `avx2` or `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// What the level requires of the processor, for messages.
    const fn requires(self) -> &'static str {
        match self {
            Level::Portable => "nothing",
            Level::Neon => "an AArch64 processor",
            Level::Avx2 => "an x86-64 processor with AVX2, FMA and F16C",
            Level::Avx512 => "an x86-64 processor with AVX-512 F, BW, DQ and VL",
        }
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Neon => cfg!(target_arch = "aarch64"),
            Level::Avx2 => has_avx2(),
            Level::Avx512 => has_avx512(),
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

/// The processor, and the vector instructions that are used on it.
///
/// The level is one that the processor has: both constructors see to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    level: Level,
}

impl Cpu {
    /// The widest vectors that this processor has.
    pub fn new() -> Self {
        let widest = Level::ALL.into_iter().rev().find(|level| level.is_available());
        Cpu { level: widest.unwrap_or(Level::Portable) }
    }

    /// The vectors of one level, for tests and measurements.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this processor lacks them.
    pub fn with_level(level: Level) -> Result<Self> {
        if level.is_available() {
            return Ok(Cpu { level });
        }
        Err(Error::Unsupported {
            what: format!("level {level}, which requires {},", level.requires()),
            device: "this processor".to_string(),
            instead: "name no level: the widest one that is present is the default",
        })
    }

    /// The vector instructions that kernels use.
    pub fn level(&self) -> Level {
        self.level
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Display for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.level.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_level_is_taken() {
        let best = Cpu::new().level();
        assert!(best.is_available());
        assert!(Level::ALL.into_iter().all(|level| level <= best || !level.is_available()));
    }

    #[test]
    fn a_level_that_the_machine_lacks_is_refused() {
        let lacking = if cfg!(target_arch = "aarch64") { Level::Avx512 } else { Level::Neon };
        let error = Cpu::with_level(lacking).unwrap_err().to_string();
        assert!(error.contains(lacking.name()) && error.contains("name no level"), "{error}");
    }
}
