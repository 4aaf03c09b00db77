//! What the kernel server adds to an operation.
//!
//! ```text
//! cargo bench -p causeway --bench server -- target/release/causeway
//! ```
//!
//! A convolution of `--mib` MiB in and as much back, beside its own time in the server and beside copies of as many
//! bytes; a small request; and the rate at which the text protocol is parsed and answered. Medians.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use causeway::causal_conv1d::Activation;
use causeway::named::{Call, Operation};
use causeway::server::text::Request;
use causeway::server::{KernelServer, Launch};
use causeway::{DType, Device, HostTensor};

fn main() {
    let (mut program, mut mebibytes, mut rounds) = (PathBuf::from("target/release/causeway"), 64, 15);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number =
            || arguments.next().and_then(|text| text.parse::<u32>().ok()).expect("a number follows");
        match argument.as_str() {
            "--mib" => mebibytes = i64::from(number()),
            "--rounds" => rounds = number() as usize,
            // Cargo adds this one.
            "--bench" => {}
            path => program = PathBuf::from(path),
        }
    }
    parse_rate(rounds);
    large_request(&program, mebibytes, rounds);
    small_request(&program);
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
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
    let seconds = median(times.collect());
    let megabytes = text.len() as f64 / 1e6;
    println!("text     {megabytes:.1} MB parsed in {:.2} ms: {:.0} MB/s", seconds * 1e3, megabytes / seconds);

    // One term per sum: what remains is the reply's text.
    let column = |rows: usize| "15360 ".repeat(rows) + "\n";
    let outer = format!("1 2048 1 2048\n{}{}", column(2048), column(2048));
    let request = Request::parse(outer.as_bytes()).expect("it is well-formed");
    let device = Device::cpu();
    let reply = || timed(|| request.run(&device, u32::MAX).expect("it runs"));
    let megabytes = reply().1.len() as f64 / 1e6;
    let seconds = median((0..rounds).map(|_| reply().0).collect());
    println!(
        "text     {megabytes:.1} MB computed and written in {:.2} ms: {:.0} MB/s",
        seconds * 1e3,
        megabytes / seconds
    );
}

fn start(program: &PathBuf) -> KernelServer {
    let mut launch = Launch::new(program);
    launch.arguments.extend(["--device", "cpu"].map(Into::into));
    launch.deadline = Duration::from_secs(600);
    KernelServer::start(launch).expect("the server starts")
}

fn large_request(program: &PathBuf, mebibytes: i64, rounds: usize) {
    let mut server = start(program);
    let (batch, dim) = (4, 1024);
    let seqlen = (mebibytes << 20) / (4 * batch * dim);
    let x =
        HostTensor::from_fn(DType::F32, &[batch, dim, seqlen], |i| (i % 1021) as f64 * 1e-3).expect("memory");
    let weight = HostTensor::from_fn(DType::F32, &[dim, 4], |i| i as f64 * 1e-3).expect("memory");
    let mut call = Call::new(Operation::Conv1dForward);
    call.activation = Some(Activation::Silu);
    let (mut whole, mut operation) = (Vec::new(), Vec::new());
    for round in 0..rounds + 2 {
        let (seconds, reply) =
            timed(|| server.call(&call, &[("x", &x), ("weight", &weight)]).expect("a reply"));
        if round >= 2 {
            whole.push(seconds);
            operation.push(reply.metadata["seconds"].parse::<f64>().expect("seconds"));
        }
    }
    let (whole, operation) = (median(whole), median(operation));
    // To memory that is there, and to memory that the copy is the first to touch.
    let mut target = x.clone();
    let warm =
        median((0..rounds).map(|_| timed(|| target.bytes_mut().copy_from_slice(x.bytes())).0).collect());
    let cold = median((0..rounds).map(|_| timed(|| x.clone()).0).collect());
    println!(
        "tensors  {mebibytes} MiB there and back: {:.1} ms, of which the operation {:.1} ms; a copy {:.1} ms, to new \
         memory {:.1} ms",
        whole * 1e3,
        operation * 1e3,
        warm * 1e3,
        cold * 1e3
    );
    println!(
        "         1.5 × the operation and two copies: {:.1} ms, to new memory {:.1} ms",
        (1.5 * operation + 2.0 * warm) * 1e3,
        (1.5 * operation + 2.0 * cold) * 1e3
    );
}

fn small_request(program: &PathBuf) {
    let mut server = start(program);
    let x = HostTensor::zeros(DType::F32, &[1, 8, 16]).expect("memory");
    let weight = HostTensor::zeros(DType::F32, &[8, 4]).expect("memory");
    let call = Call::new(Operation::Conv1dForward);
    let mut times = Vec::new();
    for _ in 0..5000 {
        times.push(timed(|| server.call(&call, &[("x", &x), ("weight", &weight)]).expect("a reply")).0);
    }
    println!("tensors  a small request: {:.1} µs", median(times) * 1e6);
}
