//! What a call on a GPU costs the host: each one, and the first one of a process.
//!
//! The first call is measured in processes of their own: with an empty kernel cache it compiles, with a filled one it
//! reads. The time begins when the device is open and the tensors are there, and ends when the result is.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use causeway::backend::gpu::Stream;
use causeway::{Device, Result};
use causeway_verify::evidence::words::seconds;
use causeway_verify::evidence::{EachCall, FirstCalls, HostCost, Summary};
use causeway_verify::suite::{Case, Suite};
use serde::{Deserialize, Serialize};

use super::buffers::{Buffers, Call, Inputs};
use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::table::{Column, Table};
use crate::terminal;

/// Calls between two waits: fewer than a stream takes before it makes the host wait.
const CALLS: usize = 500;
/// Series of calls; the median is reported.
const SERIES: usize = 21;
/// Processes per kind of first call.
const PROCESSES: usize = 3;

/// The calls: so small that the device is done before the host comes with the next one.
const CASES: &str = r#"
name = "host"
about = "Calls that take the device no time."

[[conv1d]]
name = "tiny"
shape = [1, 32, 64]
width = 4
bias = true
layout = "channel-last"
dtype = "bf16"
activation = "silu"

[[conv1d-update]]
name = "decode"
shape = [1, 32]
width = 4
bias = true
layout = "channel-last"
dtype = "bf16"
activation = "silu"
"#;

/// What one process measured, in seconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Process {
    open: f64,
    first: f64,
    second: f64,
}

/// The first call of this process (started by `bench --host`)
#[derive(Debug, clap::Args)]
pub(crate) struct FirstCallArgs {
    /// forward, backward or update
    #[arg(long)]
    call: String,

    #[command(flatten)]
    device: DeviceArgs,
}

/// Measures everything on a device.
pub(super) fn measure(stream: &Stream) -> Result<HostCost, Failure> {
    let progress = terminal::progress(9);
    let mut cost = HostCost { each: Vec::new(), first: Vec::new() };
    for (call, case) in calls()? {
        progress.set_message(format!("host cost of {}", call.name()));
        cost.each.push(each_call(&case, call, stream)?);
        progress.inc(1);
        for cache in ["empty", "filled"] {
            progress.set_message(format!("first {} with an {cache} cache", call.name()));
            cost.first.push(first_calls(call, cache, stream)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(cost)
}

/// Every call with its case.
fn calls() -> Result<Vec<(Call, Case)>, Failure> {
    let suite = Suite::parse("host", CASES)?;
    let pairs = suite.cases.into_iter().flat_map(|case| {
        let calls = Call::of(&case.problem);
        calls.iter().map(move |&call| (call, case.clone()))
    });
    Ok(pairs.collect())
}

fn buffers(case: &Case, call: Call, device: &Device) -> Result<Buffers, Failure> {
    let inputs = Inputs::of(case)?.ok_or_else(|| Failure::input("a case without calls"))?;
    Ok(Buffers::new(&inputs, call, device, |_| 1)?)
}

fn each_call(case: &Case, call: Call, stream: &Stream) -> Result<EachCall, Failure> {
    let device = Device::Gpu(stream.clone());
    let mut buffers = buffers(case, call, &device)?;
    let facts = stream.device().facts();
    let plan = buffers.plan(0, facts)?.ok_or_else(|| Failure::input("a case without a launch"))?;
    let whole = series(stream, || buffers.run_repeatedly(CALLS, &device))?;
    let launch = series(stream, || {
        // SAFETY: the plan was made from `buffers`, which live as long; all launches are on this stream, and
        // `series` waits for them.
        (0..CALLS).try_for_each(|_| unsafe { stream.device().launch(&plan, stream.handle(), None) })
    })?;
    let plan = series(stream, || buffers.plan_repeatedly(CALLS, facts))?;
    Ok(EachCall { call: call.name().to_string(), whole, plan, launch })
}

/// Seconds per call of `CALLS` calls in a row.
fn series(stream: &Stream, mut calls: impl FnMut() -> Result<()>) -> Result<Summary> {
    let mut samples = Vec::with_capacity(SERIES);
    for round in 0..=SERIES {
        let start = Instant::now();
        calls()?;
        let each = start.elapsed().as_secs_f64() / CALLS as f64;
        stream.synchronize()?;
        if round > 0 {
            samples.push(each);
        }
    }
    Ok(Summary::of(&samples))
}

fn first_calls(call: Call, cache: &str, stream: &Stream) -> Result<FirstCalls, Failure> {
    let directory =
        || tempfile::tempdir().map_err(|error| Failure::input(format!("temporary directory: {error}")));
    let device = stream.device().location().to_string();
    let filled = directory()?;
    if cache == "filled" {
        run_process(call, &device, filled.path())?;
    }
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let empty = directory()?;
        let path = if cache == "filled" { filled.path() } else { empty.path() };
        processes.push(run_process(call, &device, path)?);
    }
    let summary = |of: fn(&Process) -> f64| Summary::of(&processes.iter().map(of).collect::<Vec<_>>());
    Ok(FirstCalls {
        call: call.name().to_string(),
        cache: cache.to_string(),
        open: summary(|process| process.open),
        first: summary(|process| process.first),
        second: summary(|process| process.second),
    })
}

/// Starts this program again, for one call.
fn run_process(call: Call, device: &str, cache: &Path) -> Result<Process, Failure> {
    let failed = |because: String| Failure::input(format!("the process of a first call: {because}"));
    let (program, first) = terminal::this_command().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(first).args(["first-call", "--call", call.name(), "--device", device]);
    command.env("CAUSEWAY_CACHE_DIR", cache).env("CAUSEWAY_CACHE", "on");
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// Makes one call, and again, and prints the times.
pub(crate) fn first_call(args: &FirstCallArgs) -> Result<(), Failure> {
    let (call, case) = calls()?.into_iter().find(|(call, _)| call.name() == args.call).ok_or_else(|| {
        Failure::input(format!("--call is {:?}: expected forward, backward or update", args.call))
    })?;
    let start = Instant::now();
    args.device.with(|device| {
        let open = start.elapsed().as_secs_f64();
        let mut buffers = buffers(&case, call, device)?;
        device.synchronize()?;
        let mut timed = || -> Result<f64> {
            let start = Instant::now();
            buffers.run(0, device)?;
            device.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        let (first, second) = (timed()?, timed()?);
        terminal::print_json(&Process { open, first, second })
    })
}

/// Prints the tables.
pub(super) fn print(cost: &HostCost) -> Result<(), Failure> {
    terminal::print(
        "\nhost, per call: medians of many calls in a row, on tensors that take the device no time",
    )?;
    let table = Table::begin(vec![
        Column::left("call", 8),
        Column::right("whole call", 11),
        Column::right("plan alone", 11),
        Column::right("launch alone", 12),
    ])?;
    for each in &cost.each {
        table.row(&[
            each.call.as_str().into(),
            seconds(each.whole.median).into(),
            seconds(each.plan.median).into(),
            seconds(each.launch.median).into(),
        ])?;
    }
    terminal::print("\nfirst call of a process, from the call to its result; the device is open by then")?;
    let table = Table::begin(vec![
        Column::left("call", 8),
        Column::left("cache", 8),
        Column::right("first call", 11),
        Column::right("second call", 11),
        Column::right("opening the device", 18),
    ])?;
    for first in &cost.first {
        table.row(&[
            first.call.as_str().into(),
            first.cache.as_str().into(),
            seconds(first.first.median).into(),
            seconds(first.second.median).into(),
            seconds(first.open.median).into(),
        ])?;
    }
    Ok(())
}
