//! `causeway verify --random`: calls drawn from everything that the operations allow.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use causeway::Device;
use causeway_verify::evidence::{Content, Report, Verification, complaints, words};
use causeway_verify::suite::prepare;
use causeway_verify::suite::random_calls::{Calls, MOST_FAILURES, OPERATIONS, Outcome, Space, run};

use super::Args;
use crate::failure::Failure;
use crate::number::within;
use crate::table::{FAIL, PASS};
use crate::{VERSION, terminal};

/// More than anybody waits, and what a clock can add.
const MOST_SECONDS: u64 = 1_000_000_000;

/// `--random` and what belongs to it.
#[derive(Debug, clap::Args)]
pub(crate) struct RandomArgs {
    /// Run N calls instead of a suite, drawn at random from everything that the operations allow
    #[arg(long, value_name = "N", conflicts_with_all = ["suites", "case", "repeat"], value_parser = within(NonZero::<u32>::MIN, NonZero::<u32>::MAX))]
    pub random: Option<NonZero<u32>>,

    /// Seed of --random: the same seed draws the same calls [default: 1]
    #[arg(long, value_name = "S", requires = "random", value_parser = within(0, u64::MAX))]
    seed: Option<u64>,

    /// Start no call of --random after this many seconds
    #[arg(long, value_name = "T", requires = "random", value_parser = within(0, MOST_SECONDS))]
    seconds: Option<u64>,

    /// Draw only calls of this operation; may be repeated
    #[arg(long, value_name = "OP", requires = "random", value_parser = parse_operation)]
    op: Vec<&'static str>,

    /// Largest number of elements of x in a call of --random [default: 2^16 on a CPU, 2^18 in a simulator, 2^23 on a GPU]
    #[arg(long, value_name = "N", requires = "random", value_parser = within(1, 1i64 << 31))]
    elements: Option<i64>,
}

fn parse_operation(text: &str) -> Result<&'static str, String> {
    let known = OPERATIONS.into_iter().find(|operation| *operation == text);
    known.ok_or_else(|| format!("expected {}", OPERATIONS.join(", ")))
}

/// Draws, runs, prints and reports.
pub(super) fn execute(args: &Args, count: usize) -> Result<(), Failure> {
    args.device.with(|device| {
        args.make_directory()?;
        let start = Instant::now();
        let calls = args.random.calls(count, device);
        if !args.json {
            let (count, seed) = (words::count(count, "call"), calls.seed);
            terminal::print(&format!("verify {count} drawn at random with seed {seed} on {device}"))?;
        }
        let mut report = Report::begin(device, VERSION, Content::Verification(Verification::default()));
        report.command = terminal::command_line();
        let outcome = verify(&calls, device)?;
        if args.report.is_some() {
            report.kernels = outcome.kernels(device)?;
        }
        print_failures(args, &outcome)?;
        args.conclude(report, outcome.into(), start, print_summary)
    })
}

impl RandomArgs {
    fn calls(&self, count: usize, device: &Device) -> Calls {
        let mut space = Space::of(device);
        if !self.op.is_empty() {
            space.operations.clone_from(&self.op);
        }
        space.elements = self.elements.unwrap_or(space.elements);
        Calls {
            space,
            seed: self.seed.unwrap_or(1),
            count,
            limit: self.seconds.map(Duration::from_secs),
            most_failures: MOST_FAILURES,
        }
    }
}

fn verify(calls: &Calls, device: &Device) -> Result<Outcome, Failure> {
    let progress = terminal::progress(calls.count as u64);
    let outcome = run(
        calls,
        device,
        |cases| prepare(cases, device),
        |now| {
            progress.set_position(now.calls as u64);
            let kernels = if now.kernels > 0 {
                format!(", {}", words::count(now.kernels, "kernel"))
            } else {
                String::new()
            };
            let wrong = if now.failures > 0 { format!(", {} wrong", now.failures) } else { String::new() };
            progress.set_message(format!("calls{kernels}{wrong}"));
            ControlFlow::Continue(())
        },
    )?;
    progress.finish_and_clear();
    Ok(outcome)
}

/// Each failure as the suite that repeats it.
fn print_failures(args: &Args, outcome: &Outcome) -> Result<(), Failure> {
    for (failure, report) in outcome.calls.failures.iter().zip(&outcome.failed).filter(|_| !args.json) {
        terminal::print(&format!("\n{FAIL}FAIL{FAIL:#} {}", report.name))?;
        for line in complaints(report) {
            terminal::print(&format!("  {line}"))?;
        }
        terminal::print("as small as it fails, for `causeway verify --suite FILE.toml`:\n")?;
        terminal::print_text(&failure.smallest)?;
        if failure.drawn != failure.smallest {
            terminal::print("\nas it was drawn:\n")?;
            terminal::print_text(&failure.drawn)?;
        }
    }
    Ok(())
}

fn print_summary(report: &Report) -> Result<(), Failure> {
    let Content::Verification(Verification { random: Some(run), coverage, .. }) = &report.content else {
        return Ok(());
    };
    let (count, failed, seconds) = (run.count(), run.failures.len(), report.seconds);
    terminal::print("")?;
    for (operation, calls) in &run.calls {
        terminal::print(&format!("  {operation:<22}{calls:>8}"))?;
    }
    terminal::print(&format!("  elements compared     {:>8}", words::thousands(run.elements)))?;
    if run.kernels > 0 {
        let (kernels, choices, pairs) = (run.kernels, coverage.0.len(), run.pairs);
        terminal::print(&format!(
            "  distinct kernels      {kernels:>8}   with {choices} choices of the planners, in {pairs} pairs"
        ))?;
    }
    let seed = run.seed;
    if count == 0 {
        terminal::print(&format!("nothing was checked: 0 random calls (seed {seed}) in {seconds:.1} s"))
    } else if failed == 0 {
        terminal::print(&format!(
            "{PASS}{count} of {count} random calls pass{PASS:#} (seed {seed}) in {seconds:.1} s"
        ))
    } else {
        terminal::print(&format!(
            "{FAIL}{failed} of {count} random calls FAIL{FAIL:#} (seed {seed}) in {seconds:.1} s"
        ))
    }
}
