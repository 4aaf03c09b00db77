//! What this machine's processor is.

use serde::{Deserialize, Serialize};

/// The processor and its memory. What the system does not tell is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Model, as the processor names itself.
    pub processor: Option<String>,
    /// `x86_64`, `aarch64` …
    pub architecture: String,
    /// `linux`, `macos`, `windows` …
    pub system: String,
    /// Vector features that matter here and that the processor has.
    pub features: Vec<String>,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of the last-level cache, of one of its instances.
    pub last_level_cache: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of memory that are free to use.
    pub available_memory: Option<u64>,
}

impl Host {
    /// Asks the system.
    pub fn detect() -> Self {
        Host {
            processor: processor(),
            architecture: std::env::consts::ARCH.to_string(),
            system: std::env::consts::OS.to_string(),
            features: features().into_iter().map(str::to_string).collect(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            last_level_cache: last_level_cache(),
            memory: causeway::memory::total(),
            available_memory: causeway::memory::available(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt)*) => {
            [$(($name, is_x86_feature_detected!($name))),*]
        };
    }
    let known = present!("sse4.2" "avx" "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512bf16" "avx512fp16");
    known.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt)*) => {
            [$(($name, std::arch::is_aarch64_feature_detected!($name))),*]
        };
    }
    let known = present!("neon" "fp16" "bf16" "dotprod" "sve");
    known.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// The largest cache that Linux lists for the first core.
fn last_level_cache() -> Option<u64> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    caches
        .filter_map(|cache| {
            let text = std::fs::read_to_string(cache.ok()?.path().join("size")).ok()?;
            let kibibytes: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
            Some(kibibytes * 1024)
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_that_runs_this_is_described() {
        let host = Host::detect();
        assert!(host.cores >= 1);
        assert_eq!(host.architecture, std::env::consts::ARCH);
        if cfg!(target_os = "linux") {
            assert!(host.memory.unwrap() >= host.available_memory.unwrap());
        }
    }
}
