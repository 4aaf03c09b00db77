//! What the kernel server adds to a call: requests in turns with the same call in this process.

use std::time::{Duration, Instant};

use causeway::causal_conv1d::Activation;
use causeway::named::{Call, Inputs, Layout, Operation};
use causeway::{DType, Device, HostTensor};
use causeway_server::text::Request;
use causeway_server::{KernelServer, Launch, ServerError};
use causeway_verify::evidence::words;

use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::table::{Cell, Column, FAIL, PASS, Table};
use crate::terminal;

/// x of the large request, and as much of y: 64 MiB in f32.
const LARGE: [i64; 3] = [4, 1024, 4096];
const SMALL: [i64; 3] = [1, 8, 16];
/// The most that a small request may add to a call.
const SMALL_LIMIT: f64 = 100e-6;
/// Or so many times the call on a CPU. The call takes 1.5 µs where nothing disturbs it, and a request some ten times as long. On a virtual
/// machine that was five times slower for minutes, a request took 10 to 16 times the call.
const SMALL_BY_CALL: f64 = 20.0;
/// Bytes of text that have to be parsed in a second.
const TEXT_RATE: f64 = 200e6;
/// The first rounds find nothing warm.
const WARM_UP: usize = 5;
const MOST_ROUNDS: usize = 5000;

/// Times of one thing, and what it may take.
#[derive(serde::Serialize)]
struct Line {
    name: String,
    median: f64,
    p20: f64,
    p80: f64,
    /// What was allowed in the same rounds, its median.
    allowed: Option<f64>,
    /// Time by what was allowed, round by round.
    part: Option<[f64; 3]>,
}

/// Seconds of many rounds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn at(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * part).round() as usize]
    }

    fn line(&self, name: &str) -> Line {
        let [p20, median, p80] = [0.2, 0.5, 0.8].map(|part| self.at(part));
        Line { name: name.to_string(), median, p20, p80, allowed: None, part: None }
    }

    /// Beside what was allowed in each round.
    fn line_within(&self, name: &str, allowed: &Times) -> Line {
        let parts = Times(self.0.iter().zip(&allowed.0).map(|(time, allowed)| time / allowed).collect());
        let part = [0.2, 0.5, 0.8].map(|part| parts.at(part));
        Line { allowed: Some(allowed.at(0.5)), part: Some(part), ..self.line(name) }
    }
}

impl Line {
    /// On a machine with other work the quiet rounds are the ones that show the program: a fifth of them decide.
    fn is_within(&self) -> bool {
        self.part.is_none_or(|[quiet, ..]| quiet <= 1.0)
    }

    fn cells(&self) -> Vec<Cell> {
        let verdict = match self.part {
            None => Cell::from(""),
            Some([p20, median, p80]) => {
                let style = if self.is_within() { PASS } else { FAIL };
                Cell::styled(format!("{median:.2} ({p20:.2}–{p80:.2})"), style)
            }
        };
        let times = [self.median, self.p20, self.p80].map(|time| Cell::from(words::seconds(time)));
        let allowed = self.allowed.map_or(String::new(), words::seconds);
        let [median, p20, p80] = times;
        vec![self.name.as_str().into(), median, p20, p80, allowed.into(), verdict]
    }
}

/// Measures and prints; a failure if a part is over what it may take in more than four fifths of the rounds.
pub(super) fn measure(args: &DeviceArgs, seconds: f64, json: bool) -> Result<(), Failure> {
    let budget = Duration::from_secs_f64(seconds.max(0.1));
    let lines = args.with(|device| {
        super::refuse_simulated(device)?;
        let mut lines = Pair::start(args, device, LARGE)?.large(budget)?;
        lines.extend(Pair::start(args, device, SMALL)?.small(budget)?);
        lines.extend(text(budget)?);
        Ok(lines)
    })?;
    if json {
        terminal::print_json(&lines)?;
    } else {
        let time = |title| Column::right(title, 9);
        let columns = vec![
            Column::left("requests to a server", 42),
            time("median"),
            time("p20"),
            time("p80"),
            time("allowed"),
            Column::left("by that, in pairs", 18),
        ];
        let table = Table::begin(columns)?;
        lines.iter().try_for_each(|line| table.row(&line.cells()))?;
    }
    if lines.iter().all(Line::is_within) { Ok(()) } else { Err(Failure::Negative) }
}

/// Calls `round` until the time is over, or often enough.
fn repeat(budget: Duration, mut round: impl FnMut(usize) -> Result<(), Failure>) -> Result<(), Failure> {
    let start = Instant::now();
    for number in 0..MOST_ROUNDS {
        // Fifths of less than this say nothing.
        if number > WARM_UP + 10 && start.elapsed() > budget {
            break;
        }
        round(number)?;
    }
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64(), result)
}

/// The same call through a server and in this process.
struct Pair<'a> {
    server: KernelServer,
    device: &'a Device,
    call: Call,
    x: HostTensor,
    weight: HostTensor,
    inputs: Inputs,
}

impl<'a> Pair<'a> {
    fn start(args: &DeviceArgs, device: &'a Device, shape: [i64; 3]) -> Result<Self, Failure> {
        let (program, first) = terminal::this_command()
            .map_err(|error| Failure::input(format!("this program cannot be found: {error}")))?;
        let mut launch = Launch::new(program);
        launch.arguments = first.iter().map(Into::into).chain(["serve".into()]).collect();
        launch.arguments.extend(args.to_arguments().into_iter().map(Into::into));
        let fill = |shape: &[i64]| HostTensor::from_fn(DType::F32, shape, |i| (i % 1021) as f64 * 1e-3);
        let (x, weight) = (fill(&shape)?, fill(&[shape[1], 4])?);
        let named = [("x".to_string(), x.clone()), ("weight".to_string(), weight.clone())];
        let inputs = Inputs::new(named.into(), Layout::ChannelFirst);
        let call = Call { activation: Some(Activation::Silu), ..Call::new(Operation::Conv1dForward) };
        let server = KernelServer::start(launch).map_err(failure)?;
        Ok(Pair { server, device, call, x, weight, inputs })
    }

    /// Seconds of a request, and those that the server says the operation took.
    fn request(&mut self) -> Result<(f64, f64), Failure> {
        let tensors = [("x", &self.x), ("weight", &self.weight)];
        let (seconds, reply) = timed(|| self.server.call(&self.call, &tensors));
        let reply = reply.map_err(failure)?;
        let operation = reply.metadata.get("seconds").and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
        self.server.recycle(reply);
        Ok((seconds, operation))
    }

    /// Seconds of the call here, with copies to the device and from it, and those of the operation alone.
    fn here(&self) -> Result<(f64, f64), Failure> {
        let (seconds, results) = timed(|| self.call.run(self.device, &self.inputs));
        let results = results.map_err(|error| Failure::input(error.to_string()))?;
        Ok((seconds, results.elapsed.as_secs_f64()))
    }

    fn is_cpu(&self) -> bool {
        matches!(self.device, Device::Cpu(_))
    }

    fn large(mut self, budget: Duration) -> Result<Vec<Line>, Failure> {
        let mut target = self.x.clone();
        let mut rounds: [Times; 6] = Default::default();
        repeat(budget, |round| {
            let (whole, in_server) = self.request()?;
            let (call, operation) = self.here()?;
            // To memory that is there.
            let (copy, ()) = timed(|| target.bytes_mut().copy_from_slice(self.x.bytes()));
            // Where the call needs no copies to a device, the operation is all of it.
            let itself = if self.is_cpu() { operation } else { call };
            let allowed = 1.5 * itself + 2.0 * copy;
            if round >= WARM_UP {
                let times = [whole, in_server, call, operation, copy, allowed];
                rounds.iter_mut().zip(times).for_each(|(all, time)| all.0.push(time));
            }
            Ok(())
        })?;
        let [whole, in_server, call, operation, copy, allowed] = &rounds;
        Ok(vec![
            whole.line_within("64 MiB there and back", allowed),
            in_server.line("  of it the operation"),
            call.line("  the call in this process"),
            operation.line("    of it the operation"),
            copy.line("  a copy of 64 MiB"),
        ])
    }

    fn small(mut self, budget: Duration) -> Result<Vec<Line>, Failure> {
        let mut rounds: [Times; 3] = Default::default();
        repeat(budget, |round| {
            let ((whole, _), (call, _)) = (self.request()?, self.here()?);
            let allowed = match self.is_cpu() {
                true => SMALL_LIMIT.max(SMALL_BY_CALL * call),
                false => SMALL_LIMIT + call,
            };
            if round >= WARM_UP {
                let times = [whole, call, allowed];
                rounds.iter_mut().zip(times).for_each(|(all, time)| all.0.push(time));
            }
            Ok(())
        })?;
        let [whole, call, allowed] = &rounds;
        Ok(vec![
            whole.line_within("a small request there and back", allowed),
            call.line("  the call in this process"),
        ])
    }
}

fn failure(error: ServerError) -> Failure {
    Failure::input(error.to_string())
}

/// The text protocol: parsing a request, and computing and writing a reply.
fn text(budget: Duration) -> Result<Vec<Line>, Failure> {
    let (m, n, k) = (1024, 4096, 1024);
    let mut text = format!("1 {m} {n} {k}\n");
    let mut state = 1u32;
    for (rows, columns) in [(m, n), (k, n)] {
        for _ in 0..rows * columns {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Numbers of any length up to five digits, as finite halves have.
            text.push_str(&((state >> 16) % 31_744).to_string());
            text.push(' ');
        }
        text.push('\n');
    }
    let refused = |problem: causeway_server::text::Problem| Failure::input(problem.to_string());
    // One term per sum: what remains is the reply's text.
    let column = |rows: usize| "15360 ".repeat(rows) + "\n";
    let outer = format!("1 2048 1 2048\n{}{}", column(2048), column(2048));
    let outer = Request::parse(outer.as_bytes()).map_err(refused)?;
    let device = Device::cpu();
    let (mut parsed, mut written) = (Times::default(), Times::default());
    let mut reply_bytes = 0;
    repeat(budget, |round| {
        let (parse, request) = timed(|| Request::parse(text.as_bytes()));
        request.map_err(refused)?;
        let (write, reply) = timed(|| outer.run(&device, u32::MAX));
        reply_bytes = reply.map_err(refused)?.len();
        if round >= WARM_UP {
            parsed.0.push(parse);
            written.0.push(write);
        }
        Ok(())
    })?;
    let allowed = Times(vec![text.len() as f64 / TEXT_RATE; parsed.0.len()]);
    let size = |bytes: usize| words::bytes(bytes as u64);
    Ok(vec![
        parsed.line_within(&format!("{} of text parsed", size(text.len())), &allowed),
        written.line(&format!("{} of text computed and written", size(reply_bytes))),
    ])
}
