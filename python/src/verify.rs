//! `causeway.verify`: the command's suites and random calls, for a program that wants to know what they gave.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use causeway::backend::cpu::Ieee754;
use causeway::{Device, Error};
use causeway_cli::{SIMULATED, VERSION, open_device};
use causeway_verify::evidence::{Content, Report, Verification, complaints};
use causeway_verify::suite::random_calls::{Calls, MOST_FAILURES, OPERATIONS, Outcome, Space, run};
use causeway_verify::suite::{Case, Suite, SuiteError, prepare, run_case_noting};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::exception;

/// How often the caller hears of the run, and signals are looked for.
const TICK: Duration = Duration::from_millis(50);

/// What is wrong with a case, by its name.
type Complaints = Vec<(String, Vec<String>)>;

/// What to verify.
enum Request {
    Suites {
        names: Vec<String>,
        filter: Option<String>,
        repeats: NonZero<u32>,
    },
    Random {
        count: usize,
        seed: u64,
        limit: Option<Duration>,
        operations: Vec<String>,
        elements: Option<i64>,
    },
}

/// Why there is no report.
enum Failure {
    Library(Error),
    Suite(SuiteError),
    Input(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Library(error @ Error::UnknownDevice { .. }) => {
                PyValueError::new_err(format!("{error}; {SIMULATED}"))
            }
            Failure::Library(error) => exception(error, &[]),
            Failure::Suite(error) => PyValueError::new_err(error.to_string()),
            Failure::Input(words) => PyValueError::new_err(words),
        }
    }
}

/// How far a run is, for other threads to read, and whether it has to end.
#[derive(Default)]
struct Now {
    asked: AtomicUsize,
    done: AtomicUsize,
    failed: AtomicUsize,
    stop: AtomicBool,
}

impl Now {
    /// Notes what was done; the run ends there if it has to.
    fn note(&self, done: usize, failed: usize) -> ControlFlow<()> {
        self.done.store(done, Ordering::Relaxed);
        self.failed.store(failed, Ordering::Relaxed);
        if self.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The report as JSON, and what is wrong with each case that failed. `progress` is called with the numbers of cases or calls
/// that are done, asked for and wrong, in this thread, which looks for signals too.
#[pyfunction]
#[pyo3(signature = (suites, case, repeats, random, seed, seconds, operations, elements, device, threads, progress))]
#[expect(clippy::too_many_arguments, reason = "the command's")]
pub fn verify(
    py: Python<'_>,
    suites: Vec<String>,
    case: Option<String>,
    repeats: NonZero<u32>,
    random: Option<usize>,
    seed: u64,
    seconds: Option<f64>,
    operations: Vec<String>,
    elements: Option<i64>,
    device: &str,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Complaints)> {
    let request = match random {
        Some(count) => {
            let limit = seconds.map(Duration::try_from_secs_f64).transpose();
            let limit = limit.map_err(|error| PyValueError::new_err(format!("seconds: {error}")))?;
            Request::Random { count, seed, limit, operations, elements }
        }
        None => Request::Suites { names: suites, filter: case, repeats },
    };
    let now = Now::default();
    let report = py.detach(|| {
        thread::scope(|scope| {
            let (caller, now) = (thread::current(), &now);
            let worker = scope.spawn(move || {
                // For draws and oracle; the threads that this one starts have it too.
                let _mode = Ieee754::enter();
                let report = with_threads(threads, || request.run(device, now));
                caller.unpark();
                report
            });
            let mut outcome = Ok(());
            while !worker.is_finished() {
                thread::park_timeout(TICK);
                if outcome.is_ok() {
                    outcome = Python::attach(|py| tell(py, progress.as_ref(), now));
                    now.stop.store(outcome.is_err(), Ordering::Relaxed);
                }
            }
            let report = worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))?;
            outcome.map(|()| report)
        })
    })?;
    let Content::Verification(content) = &report.content else { unreachable!("made as one") };
    let failed = content.cases.iter().filter(|case| !case.passed);
    let complaints = failed.map(|case| (case.name.clone(), complaints(case))).collect();
    Ok((report.to_json(), complaints))
}

/// Raises what a signal has asked for, such as KeyboardInterrupt, and tells the caller how far the run is.
fn tell(py: Python<'_>, progress: Option<&Py<PyAny>>, now: &Now) -> PyResult<()> {
    py.check_signals()?;
    let [done, asked, failed] =
        [&now.done, &now.asked, &now.failed].map(|number| number.load(Ordering::Relaxed));
    match progress {
        Some(progress) if asked > 0 => progress.call1(py, (done, asked, failed)).map(drop),
        _ => Ok(()),
    }
}

/// In a pool of so many threads, or of one per processor for 0. They end with it: a thread that a compiler has used must be
/// gone before the process takes that compiler down.
fn with_threads(threads: usize, work: impl FnOnce() -> Result<Report, Failure> + Send) -> PyResult<Report> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let report = pool
        .build_scoped(|thread| thread.run(), |pool| pool.install(work))
        .map_err(|error| PyRuntimeError::new_err(format!("threads cannot be started: {error}")))?;
    Ok(report?)
}

impl Request {
    fn run(self, device: &str, now: &Now) -> Result<Report, Failure> {
        let device = open_device(device)?;
        let start = Instant::now();
        let mut report = Report::begin(&device, VERSION, Content::Verification(Verification::default()));
        let content = match self {
            Request::Suites { names, filter, repeats } => {
                suites(names, filter, repeats, &device, now, &mut report)?
            }
            Request::Random { count, seed, limit, operations, elements } => {
                let mut space = Space::of(&device);
                if !operations.is_empty() {
                    space.operations = known(operations)?;
                }
                space.elements = elements.unwrap_or(space.elements);
                let calls = Calls { space, seed, count, limit, most_failures: MOST_FAILURES };
                let outcome = random(&calls, &device, now)?;
                report.kernels = outcome.kernels(&device)?;
                outcome.into()
            }
        };
        report.content = Content::Verification(content);
        report.conclude(start.elapsed().as_secs_f64());
        Ok(report)
    }
}

/// The operations of these names.
fn known(names: Vec<String>) -> Result<Vec<&'static str>, Failure> {
    let named = |name: String| {
        let known = OPERATIONS.into_iter().find(|operation| *operation == name);
        known.ok_or_else(|| Failure::Input(format!("op is {name:?}: expected {}", OPERATIONS.join(", "))))
    };
    names.into_iter().map(named).collect()
}

fn random(calls: &Calls, device: &Device, now: &Now) -> Result<Outcome, Failure> {
    now.asked.store(calls.count, Ordering::Relaxed);
    let progress =
        |so_far: causeway_verify::suite::random_calls::Progress| now.note(so_far.calls, so_far.failures);
    Ok(run(calls, device, |cases| prepare(cases, device), progress)?)
}

fn suites(
    names: Vec<String>,
    filter: Option<String>,
    repeats: NonZero<u32>,
    device: &Device,
    now: &Now,
    report: &mut Report,
) -> Result<Verification, Failure> {
    let cases = Suite::cases_of(&names, filter.as_deref()).map_err(Failure::Suite)?;
    let mut content = Verification {
        suites: names,
        case_filter: filter,
        repeats: repeats.get(),
        ..Verification::default()
    };
    let (suite_names, cases): (Vec<String>, Vec<Case>) = content.ask(cases, device)?.into_iter().unzip();
    if cases.is_empty() {
        let (suites, reason) = (content.suites.join(", "), content.skipped.keys().next());
        let reason = reason.map_or_else(
            || format!("no case of {suites} has {:?} in its name", content.case_filter.unwrap_or_default()),
            |reason| format!("no case of {suites} is left for {device}: {reason}"),
        );
        return Err(Failure::Input(reason));
    }
    now.asked.store(cases.len(), Ordering::Relaxed);
    prepare(&cases, device)?;
    for (suite, case) in suite_names.into_iter().zip(&cases) {
        let mut found =
            run_case_noting(case, device, repeats, Some(&mut report.kernels), &mut content.coverage);
        found.suite = suite;
        content.cases.push(found);
        if now.note(content.cases.len(), content.failed()).is_break() {
            break;
        }
    }
    Ok(content)
}
