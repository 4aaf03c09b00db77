//! `causeway report`: saved runs as a page, and saved runs checked again.

use std::path::{Path, PathBuf};

use causeway::evidence::{self, Report};

use crate::failure::Failure;
use crate::table::{FAIL, PASS};
use crate::{VERSION, terminal};

const NOTES: &str = "\
Examples:
  causeway verify --report out/ && causeway bench --save bench.json
  causeway report --check out/run.json bench.json

--check reads reports again: the digest of their facts, whether every case that was asked for is there, and whether \
verdicts and sentences follow from the facts. Saved bench runs of format 1 have no digest.

Exit status:
  0  every report is as it was written
  1  a report was changed, is not complete, or contradicts itself
  2  a file cannot be read, or is no report";

/// Saved runs, checked again
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Reports: run.json of `verify --report`, or what `bench --save` wrote
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Check the reports
    #[arg(long, required = true)]
    check: bool,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What was found of one file.
#[derive(serde::Serialize)]
struct Finding {
    file: String,
    title: String,
    mismatches: Vec<String>,
}

/// Checks.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let findings: Vec<Finding> =
        args.files.iter().map(|path| check(path).map(|(_, finding)| finding)).collect::<Result<_, _>>()?;
    if args.json {
        terminal::print_json(&findings)?;
    } else {
        findings.iter().try_for_each(print)?;
    }
    let sound = findings.iter().all(|finding| finding.mismatches.is_empty());
    if sound { Ok(()) } else { Err(Failure::Negative) }
}

fn check(path: &Path) -> Result<(Report, Finding), Failure> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Failure::input(format!("{file}: {error}")))?;
    let (report, mismatches) =
        evidence::check(&text, &file, VERSION).map_err(|error| Failure::input(error.to_string()))?;
    let title = report.title();
    let mismatches = mismatches.iter().map(ToString::to_string).collect();
    Ok((report, Finding { file, title, mismatches }))
}

fn print(finding: &Finding) -> Result<(), Failure> {
    let verdict = match finding.mismatches.is_empty() {
        true => format!("{PASS}sound{PASS:#}"),
        false => format!("{FAIL}NOT SOUND{FAIL:#}"),
    };
    terminal::print(&format!("{}: {verdict} ({})", finding.file, finding.title))?;
    finding.mismatches.iter().try_for_each(|line| terminal::print(&format!("  {line}")))
}
