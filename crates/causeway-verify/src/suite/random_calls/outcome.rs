//! What a run of random calls found: the part that reports hold, and what stands behind it.

use std::collections::BTreeMap;

use causeway::backend::gpu::artifact::Artifacts;
use causeway::backend::gpu::plan::Plan;
use causeway::device::Device;
use causeway::error::Result;
use serde::{Deserialize, Serialize};

use super::super::coverage::Coverage;
use super::super::report::CaseReport;

/// What a run found.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The calls in numbers, and those that were wrong.
    pub calls: RandomCalls,
    /// What each wrong call gives at its smallest, in the order of [`RandomCalls::failures`].
    pub failed: Vec<CaseReport>,
    /// A launch of each distinct kernel.
    pub plans: Vec<Plan>,
    /// What the planners chose for calls that were right.
    pub coverage: Coverage,
}

impl Outcome {
    /// What the files of the kernels hold that the calls launched on `device`.
    ///
    /// # Errors
    /// Those of getting a kernel.
    pub fn kernels(&self, device: &Device) -> Result<Artifacts> {
        let mut kernels = Artifacts::default();
        for plan in &self.plans {
            device.check(plan)?.into_iter().for_each(|seen| kernels.add(seen));
        }
        Ok(kernels)
    }
}

/// Calls that were drawn at random.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RandomCalls {
    /// Decides every draw, together with the device's facts and the version.
    pub seed: u64,
    /// How many were asked for; a limit of time may have come first.
    pub asked: usize,
    /// Those that ran, by operation.
    pub calls: BTreeMap<String, usize>,
    /// Distinct kernels that they launched.
    pub kernels: usize,
    /// Every two choices of the planners in one launch, counted once each.
    pub pairs: usize,
    /// Outputs that were compared with the oracle.
    pub outputs: u64,
    /// Elements of these outputs.
    pub elements: u64,
    /// Largest part of its bound that an output within it used, by its name.
    pub worst: BTreeMap<String, f64>,
    /// Calls that were wrong.
    pub failures: Vec<RandomFailure>,
}

/// A call that was wrong, as suites of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RandomFailure {
    /// Name of its case.
    pub case: String,
    /// As it was drawn.
    pub drawn: String,
    /// As small as it still fails.
    pub smallest: String,
}

impl RandomCalls {
    /// Calls that ran.
    pub fn count(&self) -> usize {
        self.calls.values().sum()
    }

    /// `4821 conv1d, 1640 gemm`.
    pub fn by_operation(&self) -> String {
        let counts: Vec<_> =
            self.calls.iter().map(|(operation, calls)| format!("{calls} {operation}")).collect();
        counts.join(", ")
    }

    /// Counts a call and what was compared of it.
    pub(super) fn add(&mut self, operation: &str, report: &CaseReport) {
        *self.calls.entry(operation.to_string()).or_default() += 1;
        for output in &report.outputs {
            self.outputs += 1;
            self.elements += output.comparison.elements;
            if output.comparison.passed() {
                let worst = self.worst.entry(output.name.clone()).or_default();
                *worst = worst.max(output.comparison.fraction);
            }
        }
    }
}
