//! `causeway bench`: how fast, measured against what the memory allows.

mod buffers;
mod check;
mod floor;
mod gemm;
mod gpu;
mod host_cost;
mod measure;
mod products;
mod replays;
mod rows;
mod samples;
mod server;
mod turns;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use causeway::backend::gpu::artifact::Artifacts;
use causeway::causal_conv1d::Activation;
use causeway::{DType, Device, files};
use causeway_verify::evidence::words::{self, seconds};
use causeway_verify::evidence::{
    Backend, Benchmark, Change, Content, Host, Measurement, Report, Row, Verdict,
};
use causeway_verify::suite::{Case, Layout, Problem, Suite};

use crate::VERSION;
use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::number::within;
use crate::suite_name::suite_name;
use crate::table::{Cell, Column, FAIL, PASS, Table, WARN};
use crate::{kernels, terminal};
use buffers::{Call, Inputs};
use gemm::Product;
use measure::measure;

pub(crate) use host_cost::FirstCallArgs;
pub(crate) use host_cost::first_call;

/// Taken for the last-level cache when the system does not tell.
const ASSUMED_CACHE: u64 = 64 << 20;
/// What the tensors of one case may take of the memory that is free.
const MEMORY_FRACTION: f64 = 0.6;

/// For who wants to measure another shape than those of a suite.
const FILTERS: &str = "--shape and the other filters choose among the cases of a suite; --suite FILE.toml measures cases of your own";

const EXAMPLES: &str = "\
Examples:
  causeway bench
  causeway bench --suite shapes --dtype bf16 --layout channel-last
  causeway bench --suite variants --device cuda
  causeway bench --suite gemm-shapes --device cuda
  causeway bench --host --device cuda
  causeway bench --server --device cuda
  causeway bench --save before.json
  causeway bench --compare before.json

The floor is a pass that moves the same bytes and computes nothing, measured in turns with the call on the \
same buffers and threads: y = x for forward, dx = x + dy for backward, a copy of half the bytes for the others. \
Calls find their tensors in memory, not in the cache. Products are measured on CUDA devices, in turns with cuBLASLt, \
whose time stands for the floor. `× plain` is the time by that of the plain call of the same \
shape, dtype and layout. A row regressed when both its time and its ratio to the floor grew by more than the noise.

--server starts `causeway serve` and sends it requests, in turns with the same call in this process. 64 MiB there and back \
may take 1.5 times the call and two copies, a small request 100 µs more than a GPU's call, text a second for 200 MB. The \
exit status is 1 if something takes more than it may in more than four fifths of the rounds.";

/// Median times, GB/s, and the ratio to a floor measured in the same run
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Suite: a name, or the path of a .toml file
    #[arg(long, value_name = "NAME|PATH", default_value = "cpu-large", value_parser = suite_name())]
    suite: String,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,

    /// Also measure what a GPU call costs the host, and the first call with an empty and with a filled kernel cache
    #[arg(long)]
    host: bool,

    /// Measure what the kernel server adds to a call, instead of a suite
    #[arg(long, conflicts_with_all = [
        "suite", "case", "host", "shape", "dtype", "layout", "activation", "call", "rotation", "save", "compare",
    ])]
    server: bool,

    /// Only this shape: batch,dim,seqlen of a convolution, M,N,K of a product
    #[arg(long, value_name = "B,D,L", value_parser = parse_shape)]
    shape: Option<[i64; 3]>,

    /// Only this dtype of x
    #[arg(long)]
    dtype: Option<DType>,

    /// Only this layout: channel-first, channel-last …
    #[arg(long)]
    layout: Option<Layout>,

    /// Only this activation
    #[arg(long, value_name = "none|silu|swish")]
    activation: Option<Activation>,

    /// Only this call
    #[arg(long, value_name = "CALL", value_parser = calls())]
    call: Option<String>,

    /// Seconds of calls per row
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,

    /// MiB of tensors that calls go through before they return to the same ones [default: twice the last-level
    /// cache, on a GPU three times]
    #[arg(long, value_name = "MIB", value_parser = within(0, 1u64 << 20))]
    rotation: Option<u64>,

    /// Write a report of the run, as JSON (`causeway report` makes a page of it)
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Compare with a saved run; exit status 1 if a row regressed
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Measures, prints, saves and compares.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    if !(0.0..=3600.0).contains(&args.seconds) {
        return Err(Failure::input(format!("--seconds is {}: expected 0 to 3600", args.seconds)));
    }
    if args.server {
        return server::measure(&args.device, args.seconds, args.json);
    }
    // Read first: a typing error should not cost the time of a run.
    let before = args.compare.as_deref().map(rows::read).transpose()?;
    args.device.with(|device| {
        refuse_simulated(device)?;
        let cases = args.cases(device)?;
        // What would be refused at the end is refused before anything is measured.
        args.check_options(device, &cases, before.as_ref().map(|(_, before)| before))?;
        let report = args.measure(&cases, device)?;
        let Content::Benchmark(run) = &report.content else { unreachable!("a benchmark was measured") };
        if let Some(path) = &args.save {
            files::write_bytes(path, report.to_json().as_bytes())?;
        }
        let changes = before.as_ref().map(|(_, before)| run.compare(before));
        if args.json {
            let differences = before.as_ref().map(|(before, _)| differences(before, &report));
            terminal::print_json(&serde_json::json!({
                "run": report.to_value(),
                "changes": changes,
                "differences": differences,
            }))?;
        } else if let (Some(changes), Some((before, _))) = (&changes, &before) {
            print_changes(changes, before, &report)?;
        }
        let slower = changes.iter().flatten().any(|change| change.verdict == Verdict::Slower);
        if report.passed() && !slower { Ok(()) } else { Err(Failure::Negative) }
    })
}

fn refuse_simulated(device: &Device) -> Result<(), Failure> {
    if matches!(device, Device::Simulated(_)) {
        return Err(Failure::input(format!("{device} has no speed to measure"))
            .with_help("bench runs on cpu, cuda and hip; verify and run take the simulator as well"));
    }
    Ok(())
}

impl Args {
    /// Options that the device, the cases or the file system cannot serve.
    fn check_options(
        &self,
        device: &Device,
        cases: &[Case],
        before: Option<&Benchmark>,
    ) -> Result<(), Failure> {
        if self.host && !matches!(device, Device::Gpu(_)) {
            let message = format!("--host measures launches, and {device} has none");
            return Err(Failure::input(message).with_help("choose a GPU: --device cuda or --device hip"));
        }
        if let Some(path) = &self.save {
            let unusable = match std::fs::metadata(files::directory_of(path)) {
                Err(error) => Some(error.to_string()),
                Ok(_) => path.is_dir().then(|| "it is a directory".to_string()),
            };
            if let Some(reason) = unusable {
                return Err(Failure::input(format!("--save is {}: {reason}", path.display()))
                    .with_help("name a file in a directory that exists"));
            }
        }
        let is_in = |before: &Benchmark, case: &Case| {
            self.call_names(case).into_iter().any(|call| before.row(&case.name, call).is_some())
        };
        if let Some(before) = before.filter(|before| !cases.iter().any(|case| is_in(before, case))) {
            let calls = cases.iter().map(|case| self.call_names(case).len()).sum();
            let message = format!(
                "--compare is a run of suite {} that has none of the {} to be measured: no row would be compared",
                before.suite,
                words::count(calls, "call"),
            );
            return Err(Failure::input(message).with_help("compare runs of the same suite and filters"));
        }
        Ok(())
    }

    /// The calls of a case that are measured, by their names.
    fn call_names(&self, case: &Case) -> Vec<&'static str> {
        let mut names = names_of_calls(&case.problem);
        names.retain(|name| self.measures(name));
        names
    }

    /// The cases of the suite that the filters leave.
    fn cases(&self, device: &Device) -> Result<Vec<Case>, Failure> {
        let name = &self.suite;
        let suite = Suite::open(name)?;
        let (mut cases, mut left_out) = (Vec::new(), None);
        for case in suite.cases.into_iter().filter(|case| self.chooses(case)) {
            match self.not_measured(&case, device)? {
                None => cases.push(case),
                Some(reason) => left_out = left_out.or(Some(format!("{}: {reason}", case.name))),
            }
        }
        if !cases.is_empty() {
            return Ok(cases);
        }
        Err(match left_out {
            Some(first) => {
                Failure::input(format!("nothing of suite {name} can be measured on {device}: {first}"))
            }
            None => {
                Failure::input(format!("no case of suite {name} is left by these filters")).with_help(FILTERS)
            }
        })
    }

    /// Why a case has nothing to measure here.
    fn not_measured(&self, case: &Case, device: &Device) -> Result<Option<String>, Failure> {
        let problem = &case.problem;
        let names = names_of_calls(problem);
        let reason = if names.is_empty() {
            "bench measures convolutions, updates, states and products".to_string()
        } else if is_empty(problem) {
            "it has an axis of size 0".to_string()
        } else if matches!(problem, Problem::Gemm(_)) && products::comparable(case).is_none() {
            "of products, those of dense row-major matrices are measured".to_string()
        } else if !names.iter().any(|name| self.measures(name)) {
            format!("its calls are {}, and --call names another", names.join(" and "))
        } else {
            return Ok(case.not_asked_of(device)?);
        };
        Ok(Some(reason))
    }

    fn chooses(&self, case: &Case) -> bool {
        let problem = &case.problem;
        self.case.as_ref().is_none_or(|text| case.name.contains(text.as_str()))
            && self.shape.is_none_or(|wanted| rows::sizes(problem).starts_with(&wanted))
            && self.dtype.is_none_or(|wanted| wanted == problem.dtype())
            && self.layout.is_none_or(|wanted| wanted.name() == problem.layout())
            && self.activation.is_none_or(|wanted| problem.options().contains(&wanted.to_string()))
    }

    /// Whether calls of this name are measured.
    fn measures(&self, call: &str) -> bool {
        self.call.as_ref().is_none_or(|wanted| wanted == call)
    }

    /// The calls of a case, but products, that are measured.
    fn calls(&self, case: &Case) -> impl Iterator<Item = Call> {
        Call::of(&case.problem).iter().copied().filter(|call| self.measures(call.name()))
    }

    fn measure(&self, cases: &[Case], device: &Device) -> Result<Report, Failure> {
        let start = Instant::now();
        let mut report = Report::begin(device, VERSION, Content::Benchmark(Benchmark::default()));
        report.command = terminal::command_line();
        let rotation = Rotation::of(&report.host, self.rotation, device);
        let mut run =
            Benchmark { suite: self.suite.clone(), method: rotation.describe(), ..Benchmark::default() };
        if let Device::Gpu(stream) = device {
            kernels::prepare(stream.device(), cases);
        }
        let (with_products, convolutions): (Vec<Case>, Vec<Case>) =
            cases.iter().cloned().partition(|case| products::comparable(case).is_some());
        if !convolutions.is_empty() {
            self.measure_convolutions(&convolutions, device, &rotation, &mut run, &mut report.kernels)?;
        }
        if !with_products.is_empty() {
            let budget = Duration::from_secs_f64(self.seconds);
            let found = (&mut run, &mut report.kernels);
            let wanted: Vec<_> =
                Product::ALL.into_iter().filter(|product| self.measures(product.name())).collect();
            products::measure(&with_products, &wanted, device, budget, rotation.bytes, self.json, found)?;
        }
        if self.host {
            let Device::Gpu(stream) = device else { unreachable!("--host is for GPUs: check_options") };
            let cost = host_cost::measure(stream)?;
            if !self.json {
                host_cost::print(&cost)?;
            }
            run.host_cost = Some(cost);
        }
        report.content = Content::Benchmark(run);
        report.conclude(start.elapsed().as_secs_f64());
        Ok(report)
    }

    fn measure_convolutions(
        &self,
        cases: &[Case],
        device: &Device,
        rotation: &Rotation,
        run: &mut Benchmark,
        kernels: &mut Artifacts,
    ) -> Result<(), Failure> {
        let table = (!self.json).then(|| begin_table(run, device, cases)).transpose()?;
        let calls = cases.iter().map(|case| self.calls(case).count() as u64).sum();
        let progress = terminal::progress(calls);
        for case in cases {
            progress.set_message(format!("{} (filling memory)", case.name));
            let Some(inputs) = Inputs::of(case)? else { continue };
            for call in self.calls(case) {
                progress.set_message(format!("{} {}", case.name, call.name()));
                let budget = Duration::from_secs_f64(self.seconds);
                let count = |streamed| rotation.sets(streamed);
                let (measurement, launches) = match device {
                    Device::Gpu(stream) => gpu::measure(&inputs, call, stream, budget, count, kernels)?,
                    _ => (measure(&inputs, call, device, budget, count)?, Vec::new()),
                };
                let row = rows::row(case, call, measurement, launches, &run.rows);
                if let Some(table) = &table {
                    progress.suspend(|| print_row(table, &row))?;
                }
                run.rows.push(row);
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        Ok(())
    }
}

/// The names of the calls that a problem has.
fn names_of_calls(problem: &Problem) -> Vec<&'static str> {
    match problem {
        Problem::Gemm(_) => Product::ALL.iter().map(|product| product.name()).collect(),
        _ => Call::of(problem).iter().map(|call| call.name()).collect(),
    }
}

/// The names of calls, those of products among them.
fn calls() -> Vec<&'static str> {
    let mut names = Vec::from(Call::ALL.map(Call::name));
    names.extend(Product::ALL.map(Product::name).into_iter().filter(|name| *name != Call::Forward.name()));
    names
}

/// How much memory the calls go through before they come back to the same tensors.
struct Rotation {
    bytes: u64,
    reason: String,
    /// Bytes that the tensors of one case may take.
    memory: u64,
    on_gpu: bool,
}

impl Rotation {
    fn of(host: &Host, mebibytes: Option<u64>, device: &Device) -> Self {
        let memory = host.available_memory.map_or(u64::MAX, |bytes| (bytes as f64 * MEMORY_FRACTION) as u64);
        let (bytes, reason) = match (mebibytes, device, host.last_level_cache) {
            (Some(mebibytes), ..) => (mebibytes.saturating_mul(1 << 20), "as --rotation says".to_string()),
            (None, Device::Gpu(stream), _) => {
                let bytes = gpu::default_rotation(stream);
                (bytes, format!("three times the last-level cache of {}", words::bytes(bytes / 3)))
            }
            (None, _, Some(cache)) => {
                (cache * 2, format!("twice the last-level cache of {}", words::bytes(cache)))
            }
            (None, _, None) => {
                (ASSUMED_CACHE * 2, "the system does not tell its last-level cache".to_string())
            }
        };
        let on_gpu = matches!(device, Device::Gpu(_));
        Rotation { bytes, reason, memory, on_gpu }
    }

    /// Sets of tensors of which a call streams so many bytes: less than asked for if the memory does not allow it. A set
    /// holds tensors that the call does not need: forward's holds dy.
    fn sets(&self, streamed: u64) -> usize {
        let wanted = self.bytes.div_ceil(streamed.max(1));
        let in_memory = self.memory / streamed.saturating_mul(2).max(1);
        wanted.min(in_memory).clamp(2, gpu::MAX_SETS) as usize
    }

    fn describe(&self) -> Vec<String> {
        let cold = format!(
            "cold: calls go through {} of tensors before they return to the same ones ({})",
            words::bytes(self.bytes),
            self.reason,
        );
        let (times, floor) = if self.on_gpu {
            (
                "times are of the device: a recorded graph of calls between two events, by its number of calls; each \
                 round is one replay of the floor's graph and two of the calls'",
                "floor: y = x for forward, dx = x + dy (as integers) for backward, a copy of half the bytes that are moved \
                 for the others; the fastest of 1, 2 or 4 packets per thread",
            )
        } else {
            (
                "times are wall-clock per call; each round is one floor pass and two calls, so all see the same \
                 machine",
                "floor: y = x for forward, dx = x + dy (as integers) for backward, a copy of half the bytes that are moved \
                 for the others; same threads; the fastest of one or all threads, ordinary or streaming stores",
            )
        };
        let right = "random inputs; results are right when two calls agree bit for bit, and a sample of channels with \
                     the oracle";
        [cold, times.to_string(), floor.to_string(), right.to_string()].into()
    }
}

fn is_empty(problem: &Problem) -> bool {
    problem.shape().iter().any(|&(name, size)| size == 0 && name != "state_len")
}

fn begin_table(run: &Benchmark, device: &Device, cases: &[Case]) -> Result<Table, Failure> {
    let threads = rayon::current_num_threads();
    let plural = if threads == 1 { "" } else { "s" };
    let columns = [("GB/s", 7), ("floor", 9), ("× floor", 7), ("× plain", 7)];
    begin(run, &format!("{device}, {threads} thread{plural}"), cases, &columns)
}

/// Prints how a run measures and the titles of its table: the times of a call, `columns`, and what every run has.
fn begin(
    run: &Benchmark,
    device: &str,
    cases: &[Case],
    columns: &[(&'static str, usize)],
) -> Result<Table, Failure> {
    terminal::print(&format!("bench {} on {device}", run.suite))?;
    for line in &run.method {
        terminal::print(&format!("  {line}"))?;
    }
    terminal::print("")?;
    let longest = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let times = ["median", "p20", "p80"].map(|title| Column::right(title, 9));
    let mut all = vec![Column::left("case", 0).fitting(longest), Column::left("call", 8)];
    all.extend(times);
    all.extend(columns.iter().map(|(title, width)| Column::right(title, *width)));
    all.extend([Column::right("noise", 6), Column::left("results", 0)]);
    Table::begin(all)
}

fn print_row(table: &Table, row: &Row) -> Result<(), Failure> {
    let found = &row.measurement;
    table.row(&[
        row.case.as_str().into(),
        row.call.as_str().into(),
        seconds(found.time.median).into(),
        seconds(found.time.p20).into(),
        seconds(found.time.p80).into(),
        format!("{:.1}", found.gigabytes_per_second()).into(),
        seconds(found.floor.median).into(),
        format!("{:.2}", found.ratio).into(),
        row.by_plain.map_or("-".to_string(), |ratio| format!("{ratio:.2}")).into(),
        format!("{:.1}%", found.noise * 100.0).into(),
        results(found),
    ])
}

fn results(found: &Measurement) -> Cell {
    match &found.wrong {
        None => Cell::styled("right", PASS),
        Some(wrong) => Cell::styled(format!("WRONG: {wrong}"), FAIL),
    }
}

fn print_changes(changes: &[Change], before: &Report, after: &Report) -> Result<(), Failure> {
    terminal::print(&format!("\ncompared with causeway {} on {}", before.causeway, before.device))?;
    for line in differences(before, after) {
        terminal::print(&format!("  {line}"))?;
    }
    let longest = changes.iter().map(|change| change.case.len()).max().unwrap_or(0);
    let table = Table::begin(vec![
        Column::left("case", 0).fitting(longest),
        Column::left("call", 8),
        Column::right("before", 9),
        Column::right("after", 9),
        Column::right("time", 6),
        Column::right("ratio", 6),
        Column::right("noise", 6),
        Column::left("", 0),
    ])?;
    for change in changes {
        let verdict = match change.verdict {
            Verdict::Faster => Cell::styled("faster", PASS),
            Verdict::Same => "same".into(),
            Verdict::Slower => Cell::styled("SLOWER", WARN),
        };
        table.row(&[
            change.case.as_str().into(),
            change.call.as_str().into(),
            seconds(change.seconds_before).into(),
            seconds(change.seconds_after).into(),
            format!("{:.3}", change.time).into(),
            format!("{:.3}", change.ratio).into(),
            format!("{:.1}%", change.threshold * 100.0).into(),
            verdict,
        ])?;
    }
    let slower = changes.iter().filter(|change| change.verdict == Verdict::Slower).count();
    terminal::print(&format!("{} rows compared, {slower} slower", changes.len()))
}

/// What two runs do not have in common, which may be why their times differ.
fn differences(before: &Report, after: &Report) -> Vec<String> {
    // Times of a GPU do not depend on the processor's threads.
    let on_cpu = matches!(after.backend, Some(Backend::Cpu { .. }));
    let facts = |report: &Report| {
        let rotation = match &report.content {
            // What its first line begins with says how the calls found their tensors, and is the same for all runs.
            Content::Benchmark(run) => run.method.first().map(|line| line.replacen("cold: ", "", 1)),
            _ => None,
        };
        [
            ("threads", on_cpu.then(|| report.threads.to_string())),
            ("processor", report.host.processor.clone()),
            ("rotation", rotation),
        ]
    };
    let pairs = facts(before).into_iter().zip(facts(after));
    let shown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_string());
    pairs
        .filter(|((_, before), (_, after))| before != after)
        .map(|((what, before), (_, after))| format!("{what}: {} before, {} now", shown(before), shown(after)))
        .collect()
}

fn parse_shape(text: &str) -> Result<[i64; 3], String> {
    let sizes: Result<Vec<i64>, _> = text.split([',', 'x']).map(|size| size.trim().parse()).collect();
    sizes
        .ok()
        .and_then(|sizes| sizes.try_into().ok())
        .ok_or_else(|| format!("{text:?} is not batch,dim,seqlen"))
}
