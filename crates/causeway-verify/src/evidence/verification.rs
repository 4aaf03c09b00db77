//! A run of `verify`: every case against the oracle.

use std::collections::BTreeMap;

use causeway::device::Device;
use causeway::error::Result;
use serde::{Deserialize, Serialize};

use crate::suite::random_calls::{Outcome, RandomCalls};
use crate::suite::{Case, CaseReport, Coverage, OutputReport};

/// Cases against the oracle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Names or paths of the suites.
    pub suites: Vec<String>,
    /// The text that the names of cases had to contain.
    pub case_filter: Option<String>,
    /// Cases of the suites that the filter left.
    pub asked: usize,
    /// How often every call was made.
    pub repeats: u32,
    /// The kernels of a GPU, made before the first case.
    pub preparation: Option<Preparation>,
    /// True if every case passed and, of random calls, at least one ran.
    pub passed: bool,
    /// The output that left its bound the farthest.
    pub worst_failure: Option<String>,
    /// The cases that ran.
    pub cases: Vec<CaseReport>,
    /// Names of cases that did not run, by the reason.
    pub skipped: BTreeMap<String, Vec<String>>,
    /// Calls that were drawn at random; those of them that failed are the cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<Box<RandomCalls>>,
    /// What the planners chose for the launches.
    #[serde(default, skip_serializing_if = "Coverage::is_empty")]
    pub coverage: Coverage,
}

/// What making the kernels of a run took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    /// Distinct kernels.
    pub kernels: usize,
    /// Those that were compiled; the others came from the cache.
    pub compiled: usize,
    /// Those that could not be made: the cases that need them say why.
    pub failed: usize,
    /// How long it took.
    pub seconds: f64,
}

impl Verification {
    /// Of the cases that are asked for, each with the name of its suite, those that run on `device`. Notes how many there were,
    /// and why the others do not run.
    ///
    /// # Errors
    /// What the driver says.
    pub fn ask(&mut self, cases: Vec<(String, Case)>, device: &Device) -> Result<Vec<(String, Case)>> {
        self.asked = cases.len();
        let mut asked = Vec::new();
        for (suite, case) in cases {
            match case.not_asked_of(device)? {
                Some(reason) => self.skipped.entry(reason).or_default().push(case.name),
                None => asked.push((suite, case)),
            }
        }
        Ok(asked)
    }

    /// Cases that failed.
    pub fn failed(&self) -> usize {
        self.cases.iter().filter(|case| !case.passed).count()
    }

    /// Every output, with its case.
    pub fn outputs(&self) -> impl Iterator<Item = (&CaseReport, &OutputReport)> {
        self.cases.iter().flat_map(|case| case.outputs.iter().map(move |output| (case, output)))
    }

    /// Whether every case passed and, of random calls, at least one ran: those that passed are no cases.
    pub(super) fn has_passed(&self) -> bool {
        let any = self.random.as_ref().is_none_or(|random| random.count() > 0);
        any && self.cases.iter().all(|case| case.passed)
    }

    pub(super) fn conclude(&mut self) {
        self.passed = self.has_passed();
        self.worst_failure = worst_failure(&self.cases);
    }
}

/// Of random calls: those that failed are its cases.
impl From<Outcome> for Verification {
    fn from(outcome: Outcome) -> Self {
        Verification {
            suites: vec!["random".to_string()],
            asked: outcome.failed.len(),
            repeats: 1,
            cases: outcome.failed,
            random: Some(Box::new(outcome.calls)),
            coverage: outcome.coverage,
            ..Verification::default()
        }
    }
}

/// What is wrong with a case, one line each.
pub fn complaints(case: &CaseReport) -> Vec<String> {
    let mut lines: Vec<_> = case.error.iter().map(|error| format!("refused: {error}")).collect();
    for output in case.outputs.iter().filter(|output| !output.passed()) {
        if let Some(worst) = output.comparison.worst.as_ref().filter(|_| !output.comparison.passed()) {
            let (failures, elements) = (output.comparison.failures, output.comparison.elements);
            lines.push(format!(
                "{}{worst}; {failures} of {elements} elements are outside their bound",
                output.name
            ));
        }
        if output.differed {
            lines.push(format!("{}: not the same bits in each of {} runs", output.name, case.repeats));
        }
        if output.stray_bytes > 0 {
            lines.push(format!(
                "{}: {} bytes beside its elements were changed",
                output.name, output.stray_bytes
            ));
        }
    }
    lines
}

pub(super) fn worst_failure(cases: &[CaseReport]) -> Option<String> {
    let failed = cases.iter().filter(|case| !case.passed);
    let farthest = |case: &CaseReport| case.worst_output().map_or(f64::INFINITY, |o| o.comparison.fraction);
    let worst = failed.max_by(|a, b| farthest(a).total_cmp(&farthest(b)))?;
    Some(format!("{}: {}", worst.name, complaints(worst).into_iter().next()?))
}
