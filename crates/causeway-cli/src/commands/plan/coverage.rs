//! `causeway plan --coverage`: which of the planners' choices verified calls have reached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use causeway::backend::gpu::plan::DeviceFacts;
use causeway_verify::evidence::{self, Content};
use causeway_verify::suite::random_calls::{OPERATIONS, Row, Space};
use causeway_verify::suite::{Coverage, Reachable};
use serde_json::json;

use super::{of_architecture, or_default, simulated};
use crate::failure::Failure;
use crate::number::within;
use crate::table::{Column, FAIL, PASS, Table};
use crate::terminal;

/// The draws that look for what calls can reach: always the same ones.
const SEED: u64 = 1;

/// More than anybody waits for.
const MOST_DRAWS: usize = 1_000_000_000;

/// How far the coverage of a set of reports is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct CoverageArgs {
    /// Say which of the planners' choices the calls of a saved report (run.json of `verify --report`) have reached, and
    /// give a call for each one that is missing; exit status 1 if one is; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suite", "case"])]
    pub coverage: Vec<PathBuf>,

    /// Draws that look for what calls can reach
    #[arg(long, value_name = "N", default_value = "20000", requires = "coverage",
          value_parser = within(1, MOST_DRAWS))]
    draws: usize,

    /// Most elements of x in these draws
    #[arg(long, value_name = "N", default_value = "262144", requires = "coverage",
          value_parser = within(1, 1i64 << 31))]
    elements: i64,

    /// Write the calls that are missing as a suite
    #[arg(long, value_name = "FILE.toml", requires = "coverage")]
    missing: Option<PathBuf>,
}

/// What the choices of a kernel are counted in.
#[derive(Default)]
struct Count {
    reached: usize,
    reachable: usize,
}

/// Prints the table of kernels, and the choices that are missing, on a device with these facts; else on that of the first report.
pub(super) fn execute(args: &CoverageArgs, given: Option<DeviceFacts>, json: bool) -> Result<(), Failure> {
    let (mut coverage, mut planned_for) = (Coverage::default(), given);
    for file in &args.coverage {
        let (reached, of_device) = of_report(file)?;
        coverage.add(&reached);
        planned_for = planned_for.or(of_device);
    }
    let facts = &or_default(planned_for)?;
    let space = Space { operations: OPERATIONS.to_vec(), has_f64: false, elements: args.elements };
    let reachable = space.reachable(facts, SEED, args.draws);
    if reachable.is_empty() {
        let message = format!("{} draws reach no choice of the planners: nothing can be missing", args.draws);
        return Err(Failure::input(message).with_help("raise --draws or --elements"));
    }
    let missing = coverage.missing(&reachable);
    if let Some(file) = &args.missing {
        causeway::files::write_bytes(file, suite(&missing).as_bytes())?;
    }
    if json {
        let rows = missing.iter().map(|(choice, row)| json!({ "choice": choice, "suite": row.to_suite() }));
        terminal::print_json(&json!({
            "arch": facts.architecture, "reachable": reachable.keys().collect::<Vec<_>>(),
            "reached": reachable.len() - missing.len(), "missing": rows.collect::<Vec<_>>(),
        }))?;
    } else {
        print(facts, &coverage, &reachable)?;
        for (choice, row) in &missing {
            terminal::print(&format!("\n{FAIL}missing{FAIL:#} {choice}; a call that reaches it:\n"))?;
            terminal::print_text(&row.to_suite())?;
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Failure::Negative) }
}

/// What the calls of a report have reached, and the facts of their device, as far as the report says which it was.
fn of_report(file: &Path) -> Result<(Coverage, Option<DeviceFacts>), Failure> {
    let report = evidence::read(file)?;
    match report.content {
        Content::Verification(run) if !run.coverage.is_empty() => {
            let architecture = || report.device_evidence.as_ref().map(|device| device.architecture.as_str());
            let facts = match simulated(&report.device)? {
                None => architecture().map(of_architecture).transpose()?,
                known => known,
            };
            Ok((run.coverage, facts))
        }
        _ => Err(Failure::input(format!("{}: it holds no launches of a verification", file.display()))
            .with_help("`causeway verify --random N --device sim:32 --report DIR` writes DIR/run.json")),
    }
}

fn print(facts: &DeviceFacts, coverage: &Coverage, reachable: &Reachable) -> Result<(), Failure> {
    let mut kernels: BTreeMap<&str, Count> = BTreeMap::new();
    for choice in reachable.keys() {
        let kernel = choice.split(' ').next().unwrap_or_default();
        let count = kernels.entry(kernel).or_default();
        count.reachable += 1;
        count.reached += usize::from(coverage.0.contains_key(choice));
    }
    terminal::print(&format!("choices of the planners for {}\n", facts.architecture))?;
    let longest = kernels.keys().map(|kernel| kernel.len()).max().unwrap_or(0);
    let table = Table::begin(vec![
        Column::left("kernel", 0).fitting(longest),
        Column::right("reachable", 9),
        Column::right("reached", 9),
        Column::right("launches", 9),
    ])?;
    for (kernel, count) in &kernels {
        let launches = coverage.0.get(*kernel).copied().unwrap_or(0);
        table.row(&[
            (*kernel).into(),
            count.reachable.to_string().into(),
            count.reached.to_string().into(),
            launches.to_string().into(),
        ])?;
    }
    let (all, reached) = kernels
        .values()
        .fold((0, 0), |(all, reached), count| (all + count.reachable, reached + count.reached));
    let style = if reached == all { PASS } else { FAIL };
    terminal::print(&format!("\n{style}{reached} of {all} choices that calls can reach are reached{style:#}"))
}

/// The calls that are missing, as one suite.
fn suite(missing: &[(&str, &Row)]) -> String {
    let mut text =
        "name = \"missing\"\nabout = \"Calls that reach what no verified call has reached.\"\n".to_string();
    // One call may reach several of them.
    let entries: BTreeSet<String> = missing.iter().map(|(_, row)| row.to_entry()).collect();
    for entry in entries {
        text += "\n";
        text += &entry;
    }
    text
}
