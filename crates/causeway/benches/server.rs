//! What the kernel server adds to an operation.
//!
//! ```text
//! cargo bench -p causeway --bench server -- target/release/causeway --device cuda
//! ```
//!
//! A convolution of `--mib` MiB in and as much back, beside the same call in this process and beside copies of as many
//! bytes, in turns; a small request and the same call in this process; and the rate at which the text protocol is parsed
//! and answered. Medians, and what lies between a fifth and four fifths of the rounds.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use causeway::causal_conv1d::Activation;
use causeway::named::{Call, Inputs, Layout, Operation};
use causeway::server::text::Request;
use causeway::server::{KernelServer, Launch};
use causeway::{DType, Device, HostTensor};

/// What is measured.
struct Settings {
    program: PathBuf,
    device: String,
    mebibytes: i64,
    rounds: usize,
}

fn main() {
    let mut settings = Settings {
        program: PathBuf::from("target/release/causeway"),
        device: "cpu".to_string(),
        mebibytes: 64,
        rounds: 60,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number =
            || arguments.next().and_then(|text| text.parse::<u32>().ok()).expect("a number follows");
        match argument.as_str() {
            "--mib" => settings.mebibytes = i64::from(number()),
            "--rounds" => settings.rounds = number() as usize,
            "--device" => settings.device = arguments.next().expect("a device follows"),
            // Cargo adds this one.
            "--bench" => {}
            path => settings.program = PathBuf::from(path),
        }
    }
    parse_rate(settings.rounds);
    large_request(&settings);
    small_request(&settings);
}

/// Seconds of many rounds.
struct Times(Vec<f64>);

impl Times {
    fn at(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * part).round() as usize]
    }

    fn median(&self) -> f64 {
        self.at(0.5)
    }
}

/// `12.3 (11.9–13.0) ms`, or microseconds where that is what they are.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = if self.median() < 1e-3 { (1e6, "µs") } else { (1e3, "ms") };
        let [low, middle, high] = [0.2, 0.5, 0.8].map(|part| self.at(part) * scale);
        write!(f, "{middle:.1} ({low:.1}–{high:.1}) {unit}")
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64(), result)
}

/// Text by seconds, of parsing a request and of computing and writing its reply.
fn parse_rate(rounds: usize) {
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
    let times = (0..rounds).map(|_| timed(|| Request::parse(text.as_bytes()).expect("it is well-formed")).0);
    let seconds = Times(times.collect()).median();
    let megabytes = text.len() as f64 / 1e6;
    println!("text     {megabytes:.1} MB parsed in {:.2} ms: {:.0} MB/s", seconds * 1e3, megabytes / seconds);

    // One term per sum: what remains is the reply's text.
    let column = |rows: usize| "15360 ".repeat(rows) + "\n";
    let outer = format!("1 2048 1 2048\n{}{}", column(2048), column(2048));
    let request = Request::parse(outer.as_bytes()).expect("it is well-formed");
    let device = Device::cpu();
    let reply = || timed(|| request.run(&device, u32::MAX).expect("it runs"));
    let megabytes = reply().1.len() as f64 / 1e6;
    let seconds = Times((0..rounds).map(|_| reply().0).collect()).median();
    println!(
        "text     {megabytes:.1} MB computed and written in {:.2} ms: {:.0} MB/s",
        seconds * 1e3,
        megabytes / seconds
    );
}

fn start(settings: &Settings) -> KernelServer {
    let mut launch = Launch::new(&settings.program);
    launch.arguments.extend(["--device", &settings.device].map(Into::into));
    launch.deadline = Duration::from_secs(600);
    KernelServer::start(launch).expect("the server starts")
}

/// The same call through a server and in this process.
struct Pair {
    server: KernelServer,
    device: Device,
    call: Call,
    x: HostTensor,
    weight: HostTensor,
    inputs: Inputs,
}

impl Pair {
    fn new(settings: &Settings, shape: [i64; 3], activation: Activation) -> Self {
        let fill = |shape: &[i64]| HostTensor::from_fn(DType::F32, shape, |i| (i % 1021) as f64 * 1e-3);
        let (x, weight) = (fill(&shape).expect("memory"), fill(&[shape[1], 4]).expect("memory"));
        let named = [("x".to_string(), x.clone()), ("weight".to_string(), weight.clone())];
        let mut call = Call::new(Operation::Conv1dForward);
        call.activation = Some(activation);
        Pair {
            server: start(settings),
            device: Device::open(&settings.device).expect("the device of the server"),
            call,
            x,
            weight,
            inputs: Inputs::new(named.into(), Layout::ChannelFirst),
        }
    }

    /// Seconds of a request, and those that the server says the operation took.
    fn request(&mut self) -> (f64, f64) {
        let tensors = [("x", &self.x), ("weight", &self.weight)];
        let (seconds, reply) = timed(|| self.server.call(&self.call, &tensors).expect("a reply"));
        let operation = reply.metadata["seconds"].parse().expect("seconds");
        self.server.recycle(reply);
        (seconds, operation)
    }

    /// Seconds of the call here, with copies to the device and from it, and those of the operation alone.
    fn here(&self) -> (f64, f64) {
        let (seconds, results) = timed(|| self.call.run(&self.device, &self.inputs).expect("results"));
        (seconds, results.elapsed.as_secs_f64())
    }
}

fn large_request(settings: &Settings) {
    let (batch, dim) = (4, 1024);
    let seqlen = (settings.mebibytes << 20) / (4 * batch * dim);
    let mut pair = Pair::new(settings, [batch, dim, seqlen], Activation::Silu);
    let mut target = pair.x.clone();
    let mut rounds: [Vec<f64>; 6] = Default::default();
    for round in 0..settings.rounds + 5 {
        let (whole, in_server) = pair.request();
        let (call, operation) = pair.here();
        // To memory that is there.
        let (copy, ()) = timed(|| target.bytes_mut().copy_from_slice(pair.x.bytes()));
        // Where the call needs no copies to a device, the operation is all of it.
        let itself = if matches!(pair.device, Device::Cpu(_)) { operation } else { call };
        let bound = 1.5 * itself + 2.0 * copy;
        // The first ones find nothing warm.
        if round >= 5 {
            for (times, time) in rounds.iter_mut().zip([whole, in_server, call, operation, copy, bound]) {
                times.push(time);
            }
        }
    }
    let parts = Times(rounds[0].iter().zip(&rounds[5]).map(|(whole, bound)| whole / bound).collect());
    let [whole, in_server, call, operation, copy, bound] = rounds.map(Times);
    println!("tensors  {} MiB there and back       {whole}", settings.mebibytes);
    println!("         of it the operation          {in_server}");
    println!("         the call in this process     {call}");
    println!("         of it the operation          {operation}");
    println!("         a copy to warm memory        {copy}");
    println!("         1.5 × the call + two copies  {bound}");
    println!(
        "         request by bound, in pairs   {:.2} ({:.2}–{:.2})",
        parts.median(),
        parts.at(0.2),
        parts.at(0.8)
    );
}

fn small_request(settings: &Settings) {
    let mut pair = Pair::new(settings, [1, 8, 16], Activation::None);
    let (mut there, mut here) = (Vec::new(), Vec::new());
    for _ in 0..5000 {
        there.push(pair.request().0);
        here.push(pair.here().0);
    }
    println!("tensors  a small request              {}", Times(there));
    println!("         the call in this process     {}", Times(here));
}
