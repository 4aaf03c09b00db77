//! `causeway bench`: how fast, measured against what the memory allows.

mod buffers;
mod check;
mod floor;
mod gemm;
mod gpu;
mod measure;
mod samples;
mod saved;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use causeway::backend::gpu::vendor_blas::VendorBlas;
use causeway::causal_conv1d::Activation;
use causeway::suite::{Case, Conv1d, Gemm, Layout, MatrixLayout, Problem, Suite};
use causeway::{DType, Device};

use crate::VERSION;
use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::host::{Host, format_bytes};
use crate::table::{Cell, Column, FAIL, PASS, Table, WARN};
use crate::terminal;
use buffers::{Buffers, Call};
use gemm::Product;
use measure::{Measurement, measure};
use saved::{Change, SavedRow, SavedRun, Verdict};

/// Taken for the last cache level when the system does not tell.
const ASSUMED_CACHE: u64 = 64 << 20;
/// What the tensors of one case may take of the memory that is free.
const MEMORY_SHARE: f64 = 0.6;

const EXAMPLES: &str = "\
Examples:
  causeway bench
  causeway bench --suite shapes --dtype bf16 --layout channel-last
  causeway bench --suite gemm-shapes --device cuda
  causeway bench --save before.json
  causeway bench --compare before.json

The floor is a pass that moves the same bytes and computes nothing, measured in turns with the call on the \
same buffers and threads: y = x for forward, dx = x + dy for backward. Calls find their tensors in memory, \
not in the cache. Products are measured on CUDA devices, in turns with cuBLASLt, whose time stands for the floor. \
A row regressed when both its time and its ratio to the floor grew by more than the noise.";

/// Median times, GB/s, and the ratio to a floor measured in the same run
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Suite: a name, or the path of a .toml file
    #[arg(long, value_name = "NAME|PATH", default_value = "cpu-large")]
    suite: String,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,

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
    #[arg(long, value_name = "none|silu")]
    activation: Option<Activation>,

    /// Seconds of calls per row
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,

    /// MiB of tensors that calls go through before they return to the same ones [default: twice the last-level
    /// cache]
    #[arg(long, value_name = "MIB")]
    rotation: Option<u64>,

    /// Write the run as JSON
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
    let cases = args.cases()?;
    // Read first: a typing error should not cost the time of a run.
    let before = args.compare.as_deref().map(SavedRun::read).transpose()?;
    args.device.with(|device| {
        if matches!(device, Device::Simulated(_)) {
            return Err(Failure::input(format!("{device} has no speed to measure"))
                .with_help("bench runs on cpu, cuda and hip; verify and run take the simulator as well"));
        }
        let run = args.measure(&cases, device)?;
        if let Some(path) = &args.save {
            run.write(path)?;
        }
        let changes = before.as_ref().map(|before| run.compare(before));
        if args.json {
            terminal::print_json(&serde_json::json!({ "run": run, "changes": changes }))?;
        } else if let (Some(changes), Some(before)) = (&changes, &before) {
            print_changes(changes, before)?;
        }
        let wrong = run.rows.iter().any(|row| row.measurement.wrong.is_some());
        let slower = changes.iter().flatten().any(|change| change.verdict == Verdict::Slower);
        if wrong || slower { Err(Failure::Negative) } else { Ok(()) }
    })
}

impl Args {
    /// What the filters leave of the suite.
    fn cases(&self) -> Result<Cases, Failure> {
        let suite = Suite::open(&self.suite).map_err(|error| Failure::input(error.to_string()))?;
        let mut chosen = Cases::default();
        for case in suite.cases {
            match case.problem.clone() {
                Problem::Conv1d(problem) if self.chooses(&case, &problem) => {
                    chosen.convolutions.push((case, problem));
                }
                Problem::Gemm(problem) if self.chooses_product(&case, &problem) => {
                    chosen.products.push((case, problem));
                }
                _ => {}
            }
        }
        if chosen.convolutions.is_empty() && chosen.products.is_empty() {
            return Err(Failure::input(format!("no case of suite {} is left by these filters", self.suite)));
        }
        if let Some((case, _)) = chosen.convolutions.iter().find(|(_, problem)| !is_plain(problem)) {
            let message = format!("case {} has states, sequences or no elements", case.name);
            return Err(Failure::input(message).with_help("bench measures plain forward and backward calls"));
        }
        Ok(chosen)
    }

    fn chooses(&self, case: &Case, problem: &Conv1d) -> bool {
        let shape = [problem.batch, problem.dim, problem.seqlen];
        self.case.as_ref().is_none_or(|text| case.name.contains(text.as_str()))
            && self.shape.is_none_or(|wanted| wanted == shape)
            && self.dtype.is_none_or(|wanted| wanted == problem.dtype)
            && self.layout.is_none_or(|wanted| wanted == problem.layout)
            && self.activation.is_none_or(|wanted| wanted == problem.activation)
    }

    fn chooses_product(&self, case: &Case, problem: &Gemm) -> bool {
        let shape = [problem.m, problem.n, problem.k];
        let dense = [problem.layout, problem.output_layout] == [MatrixLayout::RowMajor; 2];
        self.case.as_ref().is_none_or(|text| case.name.contains(text.as_str()))
            && self.shape.is_none_or(|wanted| wanted == shape)
            && self.dtype.is_none_or(|wanted| wanted == problem.dtype)
            && self.layout.is_none()
            && self.activation.is_none()
            && dense
            && !shape.contains(&0)
    }

    fn measure(&self, cases: &Cases, device: &Device) -> Result<SavedRun, Failure> {
        let host = Host::detect();
        let rotation = Rotation::of(&host, self.rotation, device);
        let mut run = SavedRun {
            format: SavedRun::FORMAT,
            causeway: VERSION.to_string(),
            suite: self.suite.clone(),
            device: device.to_string(),
            threads: rayon::current_num_threads(),
            method: rotation.describe(),
            host,
            unix_time: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
            rows: Vec::new(),
        };
        if !cases.convolutions.is_empty() {
            self.measure_convolutions(&cases.convolutions, device, &rotation, &mut run)?;
        }
        if !cases.products.is_empty() {
            self.measure_products(&cases.products, device, &rotation, &mut run)?;
        }
        Ok(run)
    }

    fn measure_products(
        &self,
        cases: &[(Case, Gemm)],
        device: &Device,
        rotation: &Rotation,
        run: &mut SavedRun,
    ) -> Result<(), Failure> {
        let Device::Gpu(stream) = device else {
            return Err(Failure::input(format!("products are not measured on {device}"))
                .with_help("bench compares them with cuBLASLt: use --device cuda"));
        };
        let blas = VendorBlas::open(stream.device())?;
        run.method.push(format!("products: in turns with {}, whose time stands for the floor", blas.name()));
        let table = (!self.json).then(|| begin_product_table(run, cases)).transpose()?;
        let progress = terminal::progress(cases.len() as u64 * Product::ALL.len() as u64);
        for (case, problem) in cases {
            for product in Product::ALL {
                progress.set_message(format!("{} {}", case.name, product.name()));
                let budget = Duration::from_secs_f64(self.seconds);
                let measurement =
                    gemm::measure(&case.name, problem, product, stream, &blas, budget, rotation.bytes)?;
                if let Some(table) = &table {
                    progress.suspend(|| print_product(table, case, problem, product, &measurement))?;
                }
                run.rows.push(SavedRow {
                    case: case.name.clone(),
                    call: product.name().to_string(),
                    shape: [problem.m, problem.n, problem.k],
                    width: None,
                    dtype: problem.dtype.to_string(),
                    weight_dtype: None,
                    layout: problem.layout.to_string(),
                    activation: None,
                    measurement,
                });
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn measure_convolutions(
        &self,
        cases: &[(Case, Conv1d)],
        device: &Device,
        rotation: &Rotation,
        run: &mut SavedRun,
    ) -> Result<(), Failure> {
        let on_gpu = matches!(device, Device::Gpu(_));
        let table = (!self.json).then(|| begin_table(run, cases)).transpose()?;
        let progress = terminal::progress(cases.len() as u64 * 2);
        for (case, problem) in cases {
            let bytes = rotation.bytes_for(problem);
            progress.set_message(format!("{} (filling memory)", case.name));
            let mut buffers = Buffers::new(problem, if on_gpu { 0 } else { bytes })?;
            for call in [Call::Forward, Call::Backward] {
                progress.set_message(format!("{} {}", case.name, call.name()));
                let budget = Duration::from_secs_f64(self.seconds);
                let measurement = match device {
                    Device::Gpu(stream) => {
                        gpu::measure(&buffers, problem, call, stream, budget, rotation.bytes)?
                    }
                    _ => measure(&mut buffers, problem, call, device, budget)?,
                };
                if let Some(table) = &table {
                    progress.suspend(|| print_row(table, case, call, &measurement))?;
                }
                run.rows.push(saved_row(case, problem, call, measurement));
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        Ok(())
    }
}

/// What a run measures.
#[derive(Default)]
struct Cases {
    convolutions: Vec<(Case, Conv1d)>,
    products: Vec<(Case, Gemm)>,
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
        let memory = host.available_memory.map_or(u64::MAX, |bytes| (bytes as f64 * MEMORY_SHARE) as u64);
        let (bytes, reason) = match (mebibytes, device, host.last_level_cache) {
            (Some(mebibytes), ..) => (mebibytes.saturating_mul(1 << 20), "as --rotation says".to_string()),
            (None, Device::Gpu(stream), _) => {
                let bytes = gpu::default_rotation(stream);
                (bytes, format!("three times the last-level cache of {}", format_bytes(bytes / 3)))
            }
            (None, _, Some(cache)) => {
                (cache * 2, format!("twice the last-level cache of {}", format_bytes(cache)))
            }
            (None, _, None) => {
                (ASSUMED_CACHE * 2, "the system does not tell its last-level cache".to_string())
            }
        };
        let on_gpu = matches!(device, Device::Gpu(_));
        Rotation { bytes, reason, memory, on_gpu }
    }

    /// Less than asked for if the memory does not allow it. Sets hold dy too, which the count leaves out.
    fn bytes_for(&self, problem: &Conv1d) -> u64 {
        let per_set = Buffers::streamed_bytes(problem, Call::Forward);
        let whole = Buffers::streamed_bytes(problem, Call::Backward);
        let sets_in_memory = self.memory / whole.max(1);
        self.bytes.min(sets_in_memory.saturating_mul(per_set))
    }

    fn describe(&self) -> Vec<String> {
        let cold = format!(
            "cold: calls go through {} of tensors before they return to the same ones ({})",
            format_bytes(self.bytes),
            self.reason,
        );
        let (times, floor) = if self.on_gpu {
            (
                "times are of the device: a recorded graph of calls between two events, by its number of calls; each \
                 round is one replay of the floor's graph and two of the calls'",
                "floor: y = x for forward, dx = x + dy (as integers) for backward; same buffers, the fastest of 1, 2 \
                 or 4 packets per thread",
            )
        } else {
            (
                "times are wall-clock per call; each round is one floor pass and two calls, so all see the same \
                 machine",
                "floor: y = x for forward, dx = x + dy (as integers) for backward; same buffers, same threads; the \
                 fastest of one or all threads, ordinary or streaming stores",
            )
        };
        let right = "random inputs; results are right when two calls agree bit for bit, and a sample of channels with \
                     the oracle";
        [cold, times.to_string(), floor.to_string(), right.to_string()].into()
    }
}

fn is_plain(problem: &Conv1d) -> bool {
    let empty = problem.batch * problem.dim * problem.seqlen == 0;
    let special = problem.residual || problem.initial_states || problem.final_states;
    !empty && !special && problem.seq_idx.is_none() && problem.cu_seqlens.is_none()
}

fn begin_table(run: &SavedRun, cases: &[(Case, Conv1d)]) -> Result<Table, Failure> {
    let threads = run.threads;
    let plural = if threads == 1 { "" } else { "s" };
    terminal::print(&format!("bench {} on {}, {threads} thread{plural}", run.suite, run.device))?;
    for line in &run.method {
        terminal::print(&format!("  {line}"))?;
    }
    terminal::print("")?;
    let longest = cases.iter().map(|(case, _)| case.name.len()).max().unwrap_or(0);
    Table::begin(vec![
        Column::left("case", 0).fitting(longest),
        Column::left("call", 8),
        Column::right("median", 9),
        Column::right("p20", 9),
        Column::right("p80", 9),
        Column::right("GB/s", 7),
        Column::right("floor", 9),
        Column::right("× floor", 7),
        Column::right("noise", 6),
        Column::left("results", 0),
    ])
}

fn print_row(table: &Table, case: &Case, call: Call, found: &Measurement) -> Result<(), Failure> {
    table.row(&[
        case.name.as_str().into(),
        call.name().into(),
        format_seconds(found.time.median).into(),
        format_seconds(found.time.p20).into(),
        format_seconds(found.time.p80).into(),
        format!("{:.1}", found.gigabytes_per_second()).into(),
        format_seconds(found.floor.median).into(),
        format!("{:.2}", found.ratio).into(),
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

fn begin_product_table(run: &SavedRun, cases: &[(Case, Gemm)]) -> Result<Table, Failure> {
    terminal::print(&format!("bench {} on {}", run.suite, run.device))?;
    for line in &run.method {
        terminal::print(&format!("  {line}"))?;
    }
    terminal::print("")?;
    let longest = cases.iter().map(|(case, _)| case.name.len()).max().unwrap_or(0);
    Table::begin(vec![
        Column::left("case", 0).fitting(longest),
        Column::left("call", 8),
        Column::right("median", 9),
        Column::right("p20", 9),
        Column::right("p80", 9),
        Column::right("TFLOP/s", 7),
        Column::right("vendor", 9),
        Column::right("× vendor", 8),
        Column::right("noise", 6),
        Column::left("results", 0),
    ])
}

/// The ratio is of speeds: above 1 is faster than the vendor's library.
fn print_product(
    table: &Table,
    case: &Case,
    problem: &Gemm,
    product: Product,
    found: &Measurement,
) -> Result<(), Failure> {
    table.row(&[
        case.name.as_str().into(),
        product.name().into(),
        format_seconds(found.time.median).into(),
        format_seconds(found.time.p20).into(),
        format_seconds(found.time.p80).into(),
        format!("{:.1}", product.operations(problem) / found.time.median * 1e-12).into(),
        format_seconds(found.floor.median).into(),
        format!("{:.3}", 1.0 / found.ratio).into(),
        format!("{:.1}%", found.noise * 100.0).into(),
        results(found),
    ])
}

fn saved_row(case: &Case, problem: &Conv1d, call: Call, measurement: Measurement) -> SavedRow {
    SavedRow {
        case: case.name.clone(),
        call: call.name().to_string(),
        shape: [problem.batch, problem.dim, problem.seqlen],
        width: Some(problem.width),
        dtype: problem.dtype.to_string(),
        weight_dtype: Some(problem.weight_dtype.to_string()),
        layout: problem.layout.to_string(),
        activation: Some(problem.activation.to_string()),
        measurement,
    }
}

fn print_changes(changes: &[Change], before: &SavedRun) -> Result<(), Failure> {
    terminal::print(&format!("\ncompared with causeway {} on {}", before.causeway, before.device))?;
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
            format_seconds(change.seconds_before).into(),
            format_seconds(change.seconds_after).into(),
            format!("{:.3}", change.time).into(),
            format!("{:.3}", change.ratio).into(),
            format!("{:.1}%", change.threshold * 100.0).into(),
            verdict,
        ])?;
    }
    let slower = changes.iter().filter(|change| change.verdict == Verdict::Slower).count();
    terminal::print(&format!("{} rows compared, {slower} slower", changes.len()))
}

/// Four digits with a unit.
fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 { 3 } else { 2 };
    format!("{value:.digits$} {unit}")
}

fn parse_shape(text: &str) -> Result<[i64; 3], String> {
    let sizes: Result<Vec<i64>, _> = text.split([',', 'x']).map(|size| size.trim().parse()).collect();
    sizes
        .ok()
        .and_then(|sizes| sizes.try_into().ok())
        .ok_or_else(|| format!("{text:?} is not batch,dim,seqlen or M,N,K"))
}
