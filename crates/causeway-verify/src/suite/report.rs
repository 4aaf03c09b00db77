//! What a case showed.

use causeway::backend::gpu::artifact::Launch;
use serde::{Deserialize, Serialize};

use crate::oracle::Comparison;

/// The result of [`run_case`](super::run_case): facts only, ready to print or to save.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Name of the case.
    pub name: String,
    /// The suite that asked for it; empty if none did.
    #[serde(default)]
    pub suite: String,
    /// The device that ran it, as it names itself: `cpu (avx512)`.
    pub backend: String,
    /// `conv1d` (forward and backward), `parity`, `conv1d-update`, `conv1d-varlen-states` or `gemm`.
    pub operation: String,
    /// Names and values of the sizes: `batch`, `dim`, `seqlen`, `width` …
    pub shape: Vec<(String, i64)>,
    /// Dtype of x.
    pub dtype: String,
    /// Memory of x: `channel-first`, `channel-last`, or another name of [`Layout`](super::Layout).
    pub layout: String,
    /// What is not plain about the case, in words.
    pub options: Vec<String>,
    /// Every output of every call, in the order of the calls.
    pub outputs: Vec<OutputReport>,
    /// True when a sample of the channels was compared with the oracle, and not all of them.
    pub sampled: bool,
    /// How often each call ran, each time with the same inputs and poisoned outputs.
    pub repeats: u32,
    /// What the calls launched; nothing on a CPU.
    #[serde(default)]
    pub launches: Vec<Launch>,
    /// Time of the first run of every call.
    pub timings: Vec<Timing>,
    /// Why the operation was refused; `None` when it ran.
    pub error: Option<String>,
    /// True when every call ran and every output passed.
    pub passed: bool,
}

impl CaseReport {
    /// The output that used the largest part of its bound, or the first that failed.
    pub fn worst_output(&self) -> Option<&OutputReport> {
        self.outputs.iter().max_by(|a, b| {
            let key = |o: &OutputReport| (!o.passed(), o.comparison.fraction);
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        })
    }
}

/// One output of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputReport {
    /// `y`, followed by the way in a case of parity, `final_states`, `dx`, `dweight`, `dbias`, `dinitial_states`, `conv_state` or `states`.
    pub name: String,
    /// Its dtype.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Against the oracle.
    pub comparison: Comparison,
    /// Largest absolute error that the contract allows; the bound of every element is at most this.
    pub ceiling: Option<f64>,
    /// True when one of the repeats gave other bits than the first run.
    pub differed: bool,
    /// Bytes around and between the elements that the kernel changed although they are not its own.
    pub stray_bytes: u64,
}

impl OutputReport {
    /// True when every element is within its bound, nothing else was written, and all repeats agree.
    pub fn passed(&self) -> bool {
        self.comparison.passed() && self.stray_bytes == 0 && !self.differed
    }
}

/// Wall time of one call, on data that was just made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// `conv1d-forward`, `conv1d-backward`, `conv1d-update` or `conv1d-varlen-states`.
    pub operation: String,
    /// Seconds from the call to its results.
    pub seconds: f64,
    /// Bytes that it has to read and to write, each once.
    #[serde(default)]
    pub bytes: u64,
}

impl Timing {
    /// Bytes by time, in 10⁹ bytes per second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}
