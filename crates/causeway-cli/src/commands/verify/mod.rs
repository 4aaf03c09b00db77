//! `causeway verify`: every case of a suite against the oracle, or calls drawn at random.

mod random;

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Instant;

use causeway::Device;
use causeway::backend::gpu::artifact::Artifacts;
use causeway_verify::evidence::{Content, Report, Verification, complaints, words};
use causeway_verify::suite::{self, Case, CaseReport, Coverage, OutputReport, Suite, run_case_noting};

use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::number::within;
use crate::suite_name::suite_name;
use crate::table::{Cell, Column, FAIL, PASS, Table};
use crate::{VERSION, kernels, terminal};

/// Outputs with a column of their own; the others share one.
const MAIN_OUTPUTS: [&str; 4] = ["y", "dx", "dweight", "dbias"];

const EXAMPLES: &str = "\
Examples:
  causeway verify
  causeway verify --suite full --device cpu --report out/
  causeway verify --suite conv1d-first --case large --json
  causeway verify --suite my-cases.toml
  causeway verify --suite repeat --repeat 10000 --device cuda
  causeway verify --random 10000 --seed 7 --device cuda
  causeway verify --random 100000 --seconds 600 --op conv1d-update

Each row is one case: its calls, checked element by element against a float64 oracle.
  y, dx …  largest absolute error of that output; other: of all outputs without a column (states, C, grad_A …)
  bound    largest part of its error bound that any element used; 100% or less passes
  ulp      largest error in units of the output's last place
A random call that fails is printed as a suite of one row, as small as it still fails.
The bounds are derived from the data and the number of terms summed (docs/verification.md).";

/// Every case of a suite against the float64 oracle
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Suite: a name, or the path of a .toml file; may be repeated
    #[arg(long = "suite", value_name = "NAME|PATH", value_parser = suite_name(),
          default_values_t = ["conv1d-first".to_string(), "conv1d-last".to_string()])]
    suites: Vec<String>,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,

    /// Make every call N times; each must give the bits of the first
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(NonZero::<u32>::MIN, NonZero::<u32>::MAX))]
    repeat: NonZero<u32>,

    /// Write run.json, report.md and report.html to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    #[command(flatten)]
    random: random::RandomArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs, prints and reports.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    if let Some(count) = args.random.random {
        return random::execute(args, count.get() as usize);
    }
    let cases = args.cases()?;
    args.device.with(|device| {
        args.make_directory()?;
        let start = Instant::now();
        let mut run = Verification {
            suites: args.suites.clone(),
            case_filter: args.case.clone(),
            repeats: args.repeat.get(),
            ..Verification::default()
        };
        let mut report = Report::begin(device, VERSION, Content::Verification(Verification::default()));
        report.command = terminal::command_line();
        let (suites, cases): (Vec<String>, Vec<Case>) = run.ask(cases, device)?.into_iter().unzip();
        if cases.is_empty() {
            let reason = run.skipped.keys().next().map_or(String::new(), |reason| format!(": {reason}"));
            return Err(Failure::input(format!("no case is left for {device}{reason}")));
        }
        if let Device::Gpu(stream) = device {
            run.preparation = Some(kernels::prepare(stream.device(), &cases));
        }
        prepare(&cases, device)?;
        let mut coverage = Coverage::default();
        run.cases = args.verify(&cases, device, &run, (&mut report.kernels, &mut coverage))?;
        run.coverage = coverage;
        for (case, suite) in run.cases.iter_mut().zip(suites) {
            case.suite = suite;
        }
        args.conclude(report, run, start, print_summary)
    })
}

/// Compiles what a simulator will run, on all cores at once.
fn prepare(cases: &[Case], device: &Device) -> Result<(), Failure> {
    let Device::Simulated(_) = device else { return Ok(()) };
    let progress = terminal::progress(0);
    progress.set_message("compiling the kernels for the simulator");
    let prepared = suite::prepare(cases, device);
    progress.finish_and_clear();
    Ok(prepared?)
}

impl Args {
    /// Makes the directory of the report, before the time of a run is spent.
    fn make_directory(&self) -> Result<(), Failure> {
        self.report.as_deref().map_or(Ok(()), super::report::make_directory)
    }

    /// Completes the report of a run, writes it where that is wanted, and prints it, or its summary.
    fn conclude(
        &self,
        mut report: Report,
        run: Verification,
        start: Instant,
        print_summary: fn(&Report) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        report.content = Content::Verification(run);
        report.conclude(start.elapsed().as_secs_f64());
        if let Some(directory) = &self.report {
            super::report::write(directory, &report)?;
        }
        if self.json {
            terminal::print_text(&report.to_json())?;
        } else {
            print_summary(&report)?;
            if let Some(directory) = &self.report {
                terminal::print(&format!("report: {}", directory.join("report.html").display()))?;
            }
        }
        if report.passed() { Ok(()) } else { Err(Failure::Negative) }
    }

    /// The cases that the filter leaves, each with its suite.
    fn cases(&self) -> Result<Vec<(String, Case)>, Failure> {
        let cases = Suite::cases_of(&self.suites, self.case.as_deref())?;
        if cases.is_empty() {
            let suites = self.suites.join(", ");
            return Err(match &self.case {
                Some(text) => Failure::input(format!("no case of {suites} has {text:?} in its name")),
                None => Failure::input(format!("{suites} has no cases")),
            });
        }
        Ok(cases)
    }

    fn verify(
        &self,
        cases: &[Case],
        device: &Device,
        run: &Verification,
        (artifacts, coverage): (&mut Artifacts, &mut Coverage),
    ) -> Result<Vec<CaseReport>, Failure> {
        let table = (!self.json).then(|| begin_table(run, device, cases)).transpose()?;
        let progress = terminal::progress(cases.len() as u64);
        let mut reports = Vec::with_capacity(cases.len());
        for case in cases {
            progress.set_message(case.name.clone());
            let report = run_case_noting(case, device, self.repeat, Some(&mut *artifacts), coverage);
            if let Some(table) = &table {
                progress.suspend(|| print_case(table, &report))?;
            }
            reports.push(report);
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(reports)
    }
}

fn begin_table(run: &Verification, device: &Device, cases: &[Case]) -> Result<Table, Failure> {
    let (count, suites) = (cases.len(), run.suites.join(", "));
    terminal::print(&format!("verify {suites} on {device}: {}", words::count(count, "case")))?;
    if let Some(kernels) = &run.preparation {
        let (all, compiled, seconds) = (kernels.kernels, kernels.compiled, kernels.seconds);
        terminal::print(&format!("{all} kernels, {compiled} of them compiled, in {seconds:.1} s"))?;
    }
    terminal::print("")?;
    let longest = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let mut columns = vec![Column::left("case", 0).fitting(longest)];
    columns.extend(MAIN_OUTPUTS.map(|name| Column::right(name, 7)));
    columns.extend([
        Column::right("other", 7),
        Column::right("bound", 6),
        Column::right("ulp", 6),
        Column::right("time", 9),
        Column::left("", 4),
    ]);
    Table::begin(columns)
}

fn print_case(table: &Table, report: &CaseReport) -> Result<(), Failure> {
    let largest = |of: &dyn Fn(&OutputReport) -> bool, value: &dyn Fn(&OutputReport) -> f64| {
        report.outputs.iter().filter(|output| of(output)).map(value).reduce(f64::max)
    };
    let error = |of: &dyn Fn(&OutputReport) -> bool| {
        largest(of, &|output| output.comparison.max_error).map_or("-".to_string(), words::error)
    };
    let all = |_: &OutputReport| true;
    let mut cells: Vec<Cell> = vec![report.name.as_str().into()];
    cells.extend(MAIN_OUTPUTS.map(|name| error(&|output| output.name == name).into()));
    cells.push(error(&|output| !MAIN_OUTPUTS.contains(&output.name.as_str())).into());
    let fraction = largest(&all, &|output| output.comparison.fraction);
    cells.push(fraction.map_or("-".to_string(), words::percent).into());
    let ulps = largest(&all, &|output| output.comparison.max_ulps);
    cells.push(ulps.map_or("-".to_string(), words::ulps).into());
    // None if the first call was refused.
    let seconds = report.timings.iter().map(|timing| timing.seconds).reduce(|sum, seconds| sum + seconds);
    cells.push(seconds.map_or("-".to_string(), |seconds| format!("{:.2} ms", seconds * 1e3)).into());
    cells.push(if report.passed { Cell::styled("pass", PASS) } else { Cell::styled("FAIL", FAIL) });
    table.row(&cells)?;
    for line in complaints(report) {
        terminal::print(&format!("  {FAIL}{line}{FAIL:#}"))?;
    }
    Ok(())
}

fn print_summary(report: &Report) -> Result<(), Failure> {
    let Content::Verification(run) = &report.content else { return Ok(()) };
    let (count, failed, seconds) = (run.cases.len(), run.failed(), report.seconds);
    terminal::print("")?;
    for (reason, names) in &run.skipped {
        terminal::print(&format!("did not run: {}: {reason}", words::shortened(names)))?;
    }
    for refused in report.kernels.0.iter().flat_map(|kernel| &kernel.refused) {
        terminal::print(&format!("{FAIL}altered{FAIL:#}, refused and made anew: {refused}"))?;
    }
    if failed == 0 {
        let repeats = match run.repeats {
            1 => String::new(),
            n => format!(", the same bits in each of {n} runs,"),
        };
        terminal::print(&format!("{PASS}{count} of {count} cases pass{PASS:#}{repeats} in {seconds:.1} s"))?;
    } else {
        terminal::print(&format!("{FAIL}{failed} of {count} cases FAIL{FAIL:#} in {seconds:.1} s"))?;
        if let Some(worst) = &run.worst_failure {
            terminal::print(&format!("worst: {worst}"))?;
        }
    }
    Ok(())
}
