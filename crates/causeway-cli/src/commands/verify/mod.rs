//! `causeway verify`: every case of a suite against the oracle.

mod markdown;
mod report;

use std::num::NonZero;
use std::path::{Path, PathBuf};

use causeway::suite::{Case, CaseReport, OutputReport, Suite, distinct_plans, run_case_repeatedly};
use causeway::{Device, files};

use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::table::{Cell, Column, FAIL, PASS, Table};
use crate::{kernels, terminal};
use report::RunReport;

/// Outputs with a column of their own; the others share one.
const MAIN_OUTPUTS: [&str; 4] = ["y", "dx", "dweight", "dbias"];

const EXAMPLES: &str = "\
Examples:
  causeway verify
  causeway verify --suite full --device cpu --report out/
  causeway verify --suite conv1d-first --case large --json
  causeway verify --suite my-cases.toml
  causeway verify --suite repeat --repeat 10000 --device cuda

Each row is one case: its calls, checked element by element against a float64 oracle.
  y, dx …  largest absolute error of that output; other: of all outputs without a column (states, C, grad_A …)
  bound    largest part of its error bound that any element used; 100% or less passes
  ulp      largest error in units of the output's last place
The bounds are derived from the data and the number of terms summed (docs/verification.md).";

/// Every case of a suite against the float64 oracle
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Suite: a name, or the path of a .toml file; may be repeated
    #[arg(long = "suite", value_name = "NAME|PATH", default_values_t = ["conv1d-first".to_string(), "conv1d-last".to_string()])]
    suites: Vec<String>,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,

    /// Make every call this often; each time has to give the bits of the first
    #[arg(long, value_name = "N", default_value = "1")]
    repeat: NonZero<u32>,

    /// Write run.json and report.md to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs, prints and reports.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let cases = args.cases()?;
    args.device.with(|device| {
        let mut run = RunReport::begin(device, &args.suites, args.case.as_deref(), args.repeat);
        let mut asked = Vec::new();
        for case in cases {
            match case.not_asked_of(device)? {
                Some(reason) => run.skip(case, reason),
                None => asked.push(case),
            }
        }
        let cases = asked;
        if cases.is_empty() {
            let reason = run.skipped.keys().next().map_or(String::new(), |reason| format!(": {reason}"));
            return Err(Failure::input(format!("no case is left for {device}{reason}")));
        }
        if let Device::Gpu(stream) = device {
            run.preparation = Some(kernels::prepare(stream.device(), &cases));
        }
        prepare(&cases, device)?;
        run.cases = args.verify(&cases, device, &run)?;
        run.conclude(device);
        if let Some(directory) = &args.report {
            write_report(directory, &run)?;
        }
        if args.json {
            terminal::print_json(&run)?
        } else {
            print_summary(&run, args.report.as_deref())?
        }
        if run.passed { Ok(()) } else { Err(Failure::Negative) }
    })
}

/// Compiles what a simulator will run, on all cores at once.
fn prepare(cases: &[Case], device: &Device) -> Result<(), Failure> {
    let Device::Simulated(executor) = device else { return Ok(()) };
    let progress = terminal::progress(0);
    progress.set_message("compiling the kernels for the simulator");
    let prepared = executor.prepare(&distinct_plans(cases, executor.facts()));
    progress.finish_and_clear();
    Ok(prepared?)
}

impl Args {
    fn cases(&self) -> Result<Vec<Case>, Failure> {
        let mut cases = Vec::new();
        for name in &self.suites {
            let suite = Suite::open(name).map_err(|error| Failure::input(error.to_string()))?;
            cases.extend(suite.cases);
        }
        if let Some(text) = &self.case {
            cases.retain(|case| case.name.contains(text));
        }
        if cases.is_empty() {
            let suites = self.suites.join(", ");
            return Err(match &self.case {
                Some(text) => Failure::input(format!("no case of {suites} has {text:?} in its name")),
                None => Failure::input(format!("{suites} has no cases")),
            });
        }
        Ok(cases)
    }

    fn verify(&self, cases: &[Case], device: &Device, run: &RunReport) -> Result<Vec<CaseReport>, Failure> {
        let table = (!self.json).then(|| begin_table(run, cases)).transpose()?;
        let progress = terminal::progress(cases.len() as u64);
        let mut reports = Vec::with_capacity(cases.len());
        for case in cases {
            progress.set_message(case.name.clone());
            let report = run_case_repeatedly(case, device, self.repeat);
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

fn begin_table(run: &RunReport, cases: &[Case]) -> Result<Table, Failure> {
    let (count, suites) = (cases.len(), run.suites.join(", "));
    terminal::print(&format!("verify {suites} on {}: {count} cases", run.device))?;
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
        largest(of, &|output| output.comparison.max_error).map_or("-".to_string(), format_error)
    };
    let all = |_: &OutputReport| true;
    let mut cells: Vec<Cell> = vec![report.name.as_str().into()];
    cells.extend(MAIN_OUTPUTS.map(|name| error(&|output| output.name == name).into()));
    cells.push(error(&|output| !MAIN_OUTPUTS.contains(&output.name.as_str())).into());
    let fraction = largest(&all, &|output| output.comparison.fraction);
    cells.push(fraction.map_or("-".to_string(), |part| format!("{:.1}%", part * 100.0)).into());
    let ulps = largest(&all, &|output| output.comparison.max_ulps);
    cells.push(ulps.map_or("-".to_string(), format_ulps).into());
    let seconds: f64 = report.timings.iter().map(|timing| timing.seconds).sum();
    cells.push(format!("{:.2} ms", seconds * 1e3).into());
    cells.push(if report.passed { Cell::styled("pass", PASS) } else { Cell::styled("FAIL", FAIL) });
    table.row(&cells)?;
    for line in report::complaints(report) {
        terminal::print(&format!("  {FAIL}{line}{FAIL:#}"))?;
    }
    Ok(())
}

fn format_error(error: f64) -> String {
    if error == 0.0 { "0".to_string() } else { format!("{error:.1e}") }
}

/// Results that cancel to almost nothing have a tiny last place: their error counts many of them.
fn format_ulps(ulps: f64) -> String {
    if ulps < 1000.0 { format!("{ulps:.2}") } else { format!("{ulps:.0e}") }
}

fn print_summary(run: &RunReport, directory: Option<&Path>) -> Result<(), Failure> {
    let failed = run.cases.iter().filter(|case| !case.passed).count();
    let (count, seconds) = (run.cases.len(), run.seconds);
    terminal::print("")?;
    for (reason, names) in &run.skipped {
        let names = report::shortened(names);
        terminal::print(&format!("did not run: {names}: {reason}"))?;
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
    match directory {
        Some(directory) => terminal::print(&format!("report: {}", directory.join("report.md").display())),
        None => Ok(()),
    }
}

fn write_report(directory: &Path, run: &RunReport) -> Result<(), Failure> {
    let fail =
        |path: &Path, error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(directory).map_err(|error| fail(directory, &error))?;
    let json = serde_json::to_string_pretty(run).map_err(|error| fail(directory, &error))?;
    for (name, text) in [("run.json", json + "\n"), ("report.md", markdown::render(run))] {
        files::write_bytes(&directory.join(name), text.as_bytes())?;
    }
    Ok(())
}
