//! What a verification showed and did not show.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::time::{Instant, SystemTime};

use causeway::Device;
use causeway::backend::cpu::Level;
use causeway::suite::{Case, CaseReport, OutputReport};
use serde::Serialize;

use crate::VERSION;
use crate::host::Host;
use crate::kernels::Preparation;

/// One run of `verify`.
#[derive(Debug, Serialize)]
pub(super) struct RunReport {
    pub causeway: &'static str,
    pub suites: Vec<String>,
    /// The text that the names of cases had to contain.
    pub case_filter: Option<String>,
    /// The device, as it names itself.
    pub device: String,
    pub threads: usize,
    /// How often every call was made.
    pub repeats: u32,
    /// The kernels of a GPU, made before the first case.
    pub preparation: Option<Preparation>,
    pub host: Host,
    /// Seconds since 1970.
    pub unix_time: u64,
    /// Of the whole run, oracle included.
    pub seconds: f64,
    pub passed: bool,
    /// The output that left its bound the farthest.
    pub worst_failure: Option<String>,
    /// What was done, in words.
    pub evidence: Vec<String>,
    /// What it does not show, in words.
    pub non_claims: Vec<String>,
    pub cases: Vec<CaseReport>,
    /// Names of cases that did not run, by the reason.
    pub skipped: BTreeMap<String, Vec<String>>,
    #[serde(skip)]
    start: Instant,
}

impl RunReport {
    pub fn begin(
        device: &Device,
        suites: &[String],
        case_filter: Option<&str>,
        repeats: NonZero<u32>,
    ) -> Self {
        RunReport {
            causeway: VERSION,
            suites: suites.to_vec(),
            case_filter: case_filter.map(str::to_string),
            device: device.to_string(),
            threads: rayon::current_num_threads(),
            repeats: repeats.get(),
            preparation: None,
            host: Host::detect(),
            unix_time: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
            seconds: 0.0,
            passed: false,
            worst_failure: None,
            evidence: Vec::new(),
            non_claims: Vec::new(),
            cases: Vec::new(),
            skipped: BTreeMap::new(),
            start: Instant::now(),
        }
    }

    /// Notes a case that does not run.
    pub fn skip(&mut self, case: Case, reason: String) {
        self.skipped.entry(reason).or_default().push(case.name);
    }

    /// Draws the conclusions from the cases.
    pub fn conclude(&mut self, device: &Device) {
        self.seconds = self.start.elapsed().as_secs_f64();
        self.passed = self.cases.iter().all(|case| case.passed);
        self.worst_failure = worst_failure(&self.cases);
        self.evidence = self.gather_evidence();
        self.non_claims = self.gather_non_claims(device);
    }

    fn outputs(&self) -> impl Iterator<Item = (&CaseReport, &OutputReport)> {
        self.cases.iter().flat_map(|case| case.outputs.iter().map(move |output| (case, output)))
    }

    fn gather_evidence(&self) -> Vec<String> {
        let (count, failed) = (self.cases.len(), self.cases.iter().filter(|case| !case.passed).count());
        let elements: u64 = self.outputs().map(|(_, output)| output.comparison.elements).sum();
        let outside: u64 = self.outputs().map(|(_, output)| output.comparison.failures).sum();
        let stray: u64 = self.outputs().map(|(_, output)| output.stray_bytes).sum();
        let mut evidence = vec![
            format!(
                "{count} cases of {} ran on {} with {} threads of {}: {} passed, {failed} failed.",
                self.suites.join(", "),
                self.device,
                self.threads,
                self.host.processor.as_deref().unwrap_or("an unnamed processor"),
                count - failed,
            ),
            format!(
                "{elements} elements of {} outputs were compared with a float64 oracle that shares no code with the \
                 backend; {outside} were outside their bound.",
                self.outputs().count(),
            ),
            format!(
                "Every output was filled with NaN before the call, and the memory around and between its elements was \
                 compared after it: {stray} bytes had changed that should not have."
            ),
        ];
        if self.repeats > 1 {
            let differed = self.outputs().filter(|(_, output)| output.differed).count();
            evidence.push(format!(
                "Every call was made {} times, its outputs filled with NaN before each, and every byte of every output \
                 compared with the first run's: {differed} outputs differed.",
                self.repeats,
            ));
        }
        let sampled = self.cases.iter().filter(|case| case.sampled).count();
        if sampled > 0 {
            evidence.push(format!(
                "Of {sampled} large cases a sample of channels, both ends included, was compared with the oracle, and \
                 every element was checked for having been written."
            ));
        }
        let closest =
            self.outputs().max_by(|a, b| a.1.comparison.fraction.total_cmp(&b.1.comparison.fraction));
        if let Some((case, output)) = closest {
            evidence.push(format!(
                "The largest part of an error bound that any element used is {:.1}% ({} of {}).",
                output.comparison.fraction * 100.0,
                output.name,
                case.name,
            ));
        }
        evidence.push(format!(
            "Covered: dtypes {}; layouts {}; operations {}.",
            self.distinct(|case| case.dtype.as_str()),
            self.distinct(|case| case.layout.as_str()),
            self.distinct(|case| case.operation.as_str()),
        ));
        evidence
    }

    fn distinct<'a>(&'a self, of: impl Fn(&'a CaseReport) -> &'a str) -> String {
        let values: BTreeSet<_> = self.cases.iter().map(of).collect();
        values.into_iter().collect::<Vec<_>>().join(", ")
    }

    fn gather_non_claims(&self, device: &Device) -> Vec<String> {
        let mut non_claims = vec![
            format!("Nothing is shown for any device but {}.", self.device),
            "Nothing is shown for shapes, dtypes, layouts and options that no case has.".to_string(),
            "No speed is claimed: times are of single calls, on data that was just made. `causeway bench` measures."
                .to_string(),
            "The bounds of dweight and dbias assume that rounding errors of long sums are independent, as they are \
             for the random data of the suites (docs/verification.md)."
                .to_string(),
        ];
        if let Device::Cpu(cpu) = device {
            let others = Level::ALL.into_iter().filter(|level| *level != cpu.level());
            let names: Vec<_> = others.map(Level::name).collect();
            non_claims
                .push(format!("The CPU code for other vector levels ({}) did not run.", names.join(", ")));
        }
        if let Device::Simulated(_) = device {
            non_claims.push(
                "No GPU ran: the kernels' source was compiled for this processor, with every thread a fiber. What a \
                 GPU compiler makes of it, and what GPUs do that the source does not say, is not shown \
                 (docs/verification.md)."
                    .to_string(),
            );
        }
        for (reason, names) in &self.skipped {
            non_claims.push(format!("{} did not run: {reason}.", shortened(names)));
        }
        if self.repeats == 1 {
            non_claims.push(
                "Every call was made once: that it gives the same bits each time is not shown (`--repeat` does)."
                    .to_string(),
            );
        }
        if let Some(text) = &self.case_filter {
            non_claims.push(format!("Cases without {text:?} in their name did not run."));
        }
        if !self.passed {
            non_claims.push("Correctness is not shown: see the failed cases.".to_string());
        }
        non_claims
    }
}

/// Names in a line: a few by name, many by their number.
pub(super) fn shortened(names: &[String]) -> String {
    const MOST: usize = 8;
    match names {
        [] => "no case".to_string(),
        _ if names.len() <= MOST => names.join(", "),
        [first, ..] => format!("{first} and {} more cases", names.len() - 1),
    }
}

/// What is wrong with a case, one line each.
pub(super) fn complaints(case: &CaseReport) -> Vec<String> {
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

fn worst_failure(cases: &[CaseReport]) -> Option<String> {
    let failed = cases.iter().filter(|case| !case.passed);
    let farthest = |case: &CaseReport| case.worst_output().map_or(f64::INFINITY, |o| o.comparison.fraction);
    let worst = failed.max_by(|a, b| farthest(a).total_cmp(&farthest(b)))?;
    Some(format!("{}: {}", worst.name, complaints(worst).into_iter().next()?))
}
