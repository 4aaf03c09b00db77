//! Machine code that a device runs: what a report says of it, and whether its file still holds it.

use serde::{Deserialize, Serialize};

use super::plan::Plan;

/// A kernel's machine code, where it came from, and what was seen when its file was read again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Beginning of [`Artifact::source_digest`]: launches name their kernel by it.
    pub id: String,
    /// Name of the entry point.
    pub entry: String,
    /// File in `kernels/` that holds the kernel.
    pub header: String,
    /// Text compiled after the header: the template arguments.
    pub instantiation: String,
    /// BLAKE3 digest of the whole text that the compiler got, every header included.
    pub source_digest: String,
    /// The compiler by name and version.
    pub compiler: String,
    /// Name of the cache entry; absent if the kernel is in no cache.
    pub cache_key: Option<String>,
    /// The file that held the code when it was last read again; absent if none does.
    pub file: Option<String>,
    /// BLAKE3 digest of the code that the device has loaded: of the code in a cache entry, of the whole file of a
    /// simulated kernel.
    pub digest: String,
    /// Bytes of what the digest is of.
    pub bytes: u64,
    /// True if this process compiled it, false if it was read from the cache.
    pub compiled: bool,
    /// How often the file was read again right before a case's launch and compared with the digest.
    pub checks: u64,
    /// What was found when the file held something else: each time the code was refused and made anew.
    pub refused: Vec<String>,
}

impl Artifact {
    /// Characters of an [`Artifact::id`].
    pub const ID_LENGTH: usize = 16;

    /// The id of a kernel whose text has this digest.
    pub fn id_of(source_digest: &str) -> String {
        source_digest.chars().take(Self::ID_LENGTH).collect()
    }
}

/// One launch of a case, with the kernel's [`Artifact::id`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The call that it belongs to: `conv1d-forward`, `gemm-grad-a` …
    pub call: String,
    /// The kernel's [`Artifact::id`]; absent where a device does not tell.
    pub kernel: Option<String>,
    /// Name of the entry point.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Bytes of scratch memory.
    pub workspace_bytes: u64,
}

impl Launch {
    /// A plan's launch.
    pub fn of(call: &str, plan: &Plan, kernel: Option<String>) -> Self {
        Launch {
            call: call.to_string(),
            kernel,
            entry: plan.entry().to_string(),
            grid: plan.grid,
            block: plan.block,
            shared_bytes: plan.shared_bytes,
            workspace_bytes: plan.workspace_bytes,
        }
    }
}

/// The kernels of a run, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Artifacts(pub Vec<Artifact>);

impl Artifacts {
    /// Notes a launch that is about to happen, and what was seen of its kernel.
    pub fn note(&mut self, call: &str, plan: &Plan, seen: Option<Artifact>) -> Launch {
        let kernel = seen.as_ref().map(|artifact| artifact.id.clone());
        seen.into_iter().for_each(|artifact| self.add(artifact));
        Launch::of(call, plan, kernel)
    }

    /// Adds what was seen of a kernel to what is known of it: the code seen last is the one that ran last.
    pub fn add(&mut self, seen: Artifact) {
        match self.0.iter_mut().find(|known| known.id == seen.id) {
            Some(known) => {
                let (checks, refused) = (known.checks, std::mem::take(&mut known.refused));
                let compiled = known.compiled;
                *known = seen;
                known.checks += checks;
                known.compiled |= compiled;
                known.refused.splice(0..0, refused);
            }
            None => self.0.push(seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_again_adds_up() {
        let seen = |id: &str, digest: &str, refused: &[&str]| Artifact {
            id: id.to_string(),
            entry: "entry".to_string(),
            header: "header.cuh".to_string(),
            instantiation: String::new(),
            source_digest: id.repeat(4),
            compiler: "NVRTC 13.0".to_string(),
            cache_key: None,
            file: None,
            digest: digest.to_string(),
            bytes: 1,
            compiled: digest == "first",
            checks: 1,
            refused: refused.iter().map(ToString::to_string).collect(),
        };
        let mut all = Artifacts::default();
        all.add(seen("a", "first", &[]));
        all.add(seen("b", "other", &[]));
        all.add(seen("a", "second", &["altered"]));
        all.add(seen("a", "second", &[]));
        assert_eq!(all.0.len(), 2);
        let a = &all.0[0];
        assert_eq!((a.checks, a.digest.as_str(), a.compiled), (3, "second", true));
        assert_eq!(a.refused, ["altered"]);
    }
}
