//! What a run showed and did not show: one model behind the JSON, Markdown and HTML of a report.
//!
//! ```text
//! verify ─┐
//! bench  ─┼─► Report ─► to_json (sealed with a digest) ─► read ─► check
//! serve  ─┘        └──► markdown, html
//! ```
//!
//! A [`Report`] holds facts about a run: the machine, the device, the program and every kernel that ran, and what the
//! run was about, its [`Content`]. The sentences in [`Report::evidence`] and [`Report::non_claims`] are made from those
//! facts and from nothing else, so [`check`] can make them again. docs/reports.md says how to read one.

mod benchmark;
mod check;
mod device;
mod file;
mod host;
pub mod html;
mod markdown;
mod program;
mod sentences;
mod service;
mod verification;
pub mod words;

use std::time::SystemTime;

use causeway::backend::gpu::artifact::Artifacts;
use causeway::device::Device;
use serde::Serialize;

pub use benchmark::{
    Benchmark, Change, EachCall, FirstCalls, HostCost, Measurement, Row, Summary, Verdict, noise,
};
pub use check::{Mismatch, check};
pub use device::{Backend, DeviceEvidence};
pub use file::{ReportError, read, read_text, text};
pub use host::Host;
pub use program::Program;
pub use service::{OperationCount, Service};
pub use verification::{Preparation, Verification, complaints};

/// The format that is written. It changes with the meaning of a field.
pub const FORMAT: u32 = 2;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// [`FORMAT`] when it was written.
    pub format: u32,
    /// Version and commit of Causeway.
    pub causeway: String,
    /// The command line, program first; empty for a run that no command line started.
    pub command: Vec<String>,
    /// The device, as it names itself.
    pub device: String,
    /// What kind of device it is; absent in reports of format 1.
    pub backend: Option<Backend>,
    /// Threads of the processor that the run could use.
    pub threads: usize,
    /// The machine.
    pub host: Host,
    /// The GPU, its driver and its compiler, or what stood for them; absent on a processor.
    pub device_evidence: Option<DeviceEvidence>,
    /// The program that ran.
    pub program: Option<Program>,
    /// Every kernel that ran on a device.
    pub kernels: Artifacts,
    /// When the run began, in seconds since 1970.
    pub unix_time: u64,
    /// How long it took.
    pub seconds: f64,
    /// What was done, in words.
    pub evidence: Vec<String>,
    /// What it does not show, in words.
    pub non_claims: Vec<String>,
    /// What the run was about.
    #[serde(flatten)]
    pub content: Content,
}

/// What a run was about.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Content {
    /// Cases against the oracle.
    Verification(Verification),
    /// Times against a floor.
    Benchmark(Benchmark),
    /// Requests of other programs.
    Service(Service),
}

impl Report {
    /// Of a run that begins now. `causeway` is the version with its commit.
    pub fn begin(device: &Device, causeway: &str, content: Content) -> Self {
        Report {
            format: FORMAT,
            causeway: causeway.to_string(),
            command: Vec::new(),
            device: device.to_string(),
            backend: Some(Backend::of(device)),
            threads: rayon::current_num_threads(),
            host: Host::detect(),
            device_evidence: DeviceEvidence::of(device),
            program: Program::read(),
            kernels: Artifacts::default(),
            unix_time: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
            seconds: 0.0,
            evidence: Vec::new(),
            non_claims: Vec::new(),
            content,
        }
    }

    /// Draws the conclusions from the facts, after a run of so many seconds.
    pub fn conclude(&mut self, seconds: f64) {
        self.seconds = seconds;
        if let Some(program) = &mut self.program {
            program.read_again();
        }
        if let Content::Verification(verification) = &mut self.content {
            verification.conclude();
        }
        self.evidence = sentences::evidence(self);
        self.non_claims = sentences::non_claims(self);
    }

    /// True when nothing that the run checked was wrong.
    pub fn passed(&self) -> bool {
        match &self.content {
            Content::Verification(verification) => verification.passed,
            Content::Benchmark(benchmark) => benchmark.wrong() == 0,
            Content::Service(_) => true,
        }
    }

    /// A line that says what it is: `Verification on cpu (avx512): every case passed`.
    pub fn title(&self) -> String {
        let what = match &self.content {
            Content::Verification(Verification { random: Some(random), .. }) => {
                let (calls, wrong) = (words::count(random.count(), "random call"), random.failures.len());
                let verdict = match wrong {
                    0 if random.count() == 0 => "nothing was checked".to_string(),
                    0 => "passed".to_string(),
                    _ => format!("{wrong} of them WRONG"),
                };
                ("Verification", format!("{calls}, {verdict}"))
            }
            Content::Verification(verification) if verification.passed => {
                ("Verification", "every case passed".to_string())
            }
            Content::Verification(_) => ("Verification", "NOT every case passed".to_string()),
            Content::Benchmark(benchmark) => match benchmark.wrong() {
                0 => ("Benchmark", format!("{} measured", words::count(benchmark.rows.len(), "call"))),
                wrong => ("Benchmark", format!("{} with WRONG results", words::count(wrong, "call"))),
            },
            Content::Service(service) => {
                ("Service", format!("{} answered", words::count(service.answered() as usize, "request")))
            }
        };
        format!("{} on {}: {}", what.0, self.device, what.1)
    }
}
