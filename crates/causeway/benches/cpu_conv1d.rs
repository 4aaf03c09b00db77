//! Causal conv1d on the CPU against the floor of the same run, with the same threads.
//!
//! ```text
//! cargo bench -p causeway --bench cpu_conv1d -- [--threads N] [--mib N | --kib N] [--rounds N] [FILTER]
//! ```
//!
//! `--mib` gives tensors of that many MiB; `--kib` of that many KiB, to measure in the caches.
//!
//! The floor of forward is a copy of x to y; that of backward reads x and dy and writes dx = x + dy. Each is
//! measured with plain and with non-temporal stores, and the faster one counts. Rounds alternate between the
//! floors and the operation, so that a change of the machine's mood hits them all.

use std::time::Instant;

use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, HostTensor};
use rayon::prelude::*;

struct Options {
    threads: usize,
    kib: usize,
    rounds: usize,
    filter: String,
}

impl Options {
    fn parse() -> Self {
        let mut options = Options { threads: 2, kib: 256 << 10, rounds: 9, filter: String::new() };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next().and_then(|text| text.parse().ok());
            match argument.as_str() {
                "--threads" => options.threads = number().expect("--threads takes a number"),
                "--mib" => options.kib = number().expect("--mib takes a number") << 10,
                "--kib" => options.kib = number().expect("--kib takes a number"),
                "--rounds" => options.rounds = number().expect("--rounds takes a number"),
                // Cargo adds this one.
                "--bench" => {}
                filter => options.filter = filter.to_string(),
            }
        }
        options
    }
}

/// Bytes that a thread takes at a time in a floor.
const CHUNK: usize = 1 << 20;

#[cfg(target_arch = "x86_64")]
mod lines {
    use std::arch::x86_64::*;

    /// # Safety
    /// The processor has AVX; `y` is aligned to 32 bytes; `count` is a multiple of 8.
    #[target_feature(enable = "avx")]
    pub unsafe fn add<const STREAM: bool, const READS: usize>(x: &[f32], dy: &[f32], y: &mut [f32]) {
        for at in (0..y.len()).step_by(8) {
            // SAFETY: the slices have one length, a multiple of 8.
            unsafe {
                let mut v = _mm256_loadu_ps(x.as_ptr().add(at));
                if READS == 2 {
                    v = _mm256_add_ps(v, _mm256_loadu_ps(dy.as_ptr().add(at)));
                }
                match STREAM {
                    true => _mm256_stream_ps(y.as_mut_ptr().add(at), v),
                    false => _mm256_store_ps(y.as_mut_ptr().add(at), v),
                }
            }
        }
        if STREAM {
            _mm_sfence();
        }
    }
}

/// `y = x` or `y = x + dy` over all bytes, as f32.
fn pass<const READS: usize>(x: &HostTensor, dy: &HostTensor, y: &mut HostTensor, stream: bool) {
    let x: &[f32] = bytemuck::cast_slice(x.bytes());
    let dy: &[f32] = bytemuck::cast_slice(dy.bytes());
    let y: &mut [f32] = bytemuck::cast_slice_mut(y.bytes_mut());
    let chunks = y.par_chunks_mut(CHUNK / 4).zip(x.par_chunks(CHUNK / 4)).zip(dy.par_chunks(CHUNK / 4));
    chunks.for_each(|((y, x), dy)| {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") {
            // SAFETY: AVX is there; tensors are aligned to 64 bytes and as long as a multiple of it.
            unsafe {
                match stream {
                    true => lines::add::<true, READS>(x, dy, y),
                    false => lines::add::<false, READS>(x, dy, y),
                }
            }
            return;
        }
        let _ = stream;
        for ((y, x), dy) in y.iter_mut().zip(x).zip(dy) {
            *y = if READS == 2 { x + dy } else { *x };
        }
    });
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A dense tensor of the shape `(batch, dim, seqlen)` in either layout.
fn tensor(dtype: DType, shape: [i64; 3], last: bool, seed: u64) -> HostTensor {
    let [batch, dim, seqlen] = shape;
    let stored = if last { [batch, seqlen, dim] } else { shape };
    let mut state = seed;
    let tensor = HostTensor::from_fn(dtype, &stored, |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 23) - 1.0
    })
    .expect("the sizes are small");
    if last { tensor.permuted(&[0, 2, 1]) } else { tensor }
}

fn main() {
    let options = Options::parse();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build().expect("threads start");
    let device = Device::cpu();
    println!("{device}, {} threads, {} KiB per tensor", options.threads, options.kib);
    println!(
        "operation dtype layout activation         ms  ns/16    GB/s  floor ms (plain, streamed)   ratio"
    );
    pool.install(|| {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for last in [false, true] {
                let (batch, dim) = if options.kib < 64 << 10 { (1, 256) } else { (8, 2048) };
                let seqlen = (options.kib << 10) as i64 / (batch * dim * dtype.size() as i64);
                bench(&options, &device, dtype, [batch, dim, seqlen], last);
            }
        }
    });
}

fn bench(options: &Options, device: &Device, dtype: DType, shape: [i64; 3], last: bool) {
    let layout = if last { "last" } else { "first" };
    let wanted = |name: &str| name.contains(&options.filter);
    let names =
        ["forward", "backward"].map(|op| ["none", "silu"].map(|act| format!("{op} {dtype} {layout} {act}")));
    if !names.iter().flatten().any(|name| wanted(name)) {
        return;
    }
    let (x, dy) = (tensor(dtype, shape, last, 1), tensor(dtype, shape, last, 2));
    let mut y = tensor(dtype, shape, last, 3);
    let weight = tensor(dtype, [1, shape[1], 4], false, 4).restrided(0, &[shape[1], 4], &[4, 1]).unwrap();
    let bias = tensor(dtype, [1, 1, shape[1]], false, 5).restrided(0, &[shape[1]], &[1]).unwrap();
    let mut dweight = HostTensor::zeros(dtype, &[shape[1], 4]).unwrap();
    let mut dbias = HostTensor::zeros(dtype, &[shape[1]]).unwrap();
    for (operation, names) in names.iter().enumerate() {
        for (name, activation) in names.iter().zip([Activation::None, Activation::Silu]) {
            if !wanted(name) {
                continue;
            }
            let backward = operation == 1;
            let mut times = [vec![], vec![], vec![]];
            for round in 0..=options.rounds {
                let floors = [false, true].map(|stream| {
                    seconds(|| match backward {
                        true => pass::<2>(&x, &dy, &mut y, stream),
                        false => pass::<1>(&x, &x, &mut y, stream),
                    })
                });
                let time = seconds(|| match backward {
                    true => Backward {
                        x: x.view(),
                        weight: weight.view(),
                        bias: Some(bias.view()),
                        dy: dy.view(),
                        initial_states: None,
                        seq_idx: None,
                        cu_seqlens: None,
                        dfinal_states: None,
                        b: None,
                        c: None,
                        activation,
                        round_products: false,
                        norm: None,
                        dx: y.view_mut(),
                        dweight: dweight.view_mut(),
                        dbias: Some(dbias.view_mut()),
                        dinitial_states: None,
                        db: None,
                        dc: None,
                    }
                    .run(device)
                    .unwrap(),
                    false => Forward {
                        x: x.view(),
                        weight: weight.view(),
                        bias: Some(bias.view()),
                        initial_states: None,
                        seq_idx: None,
                        cu_seqlens: None,
                        residual: None,
                        b: None,
                        c: None,
                        activation,
                        round_products: false,
                        norm: None,
                        y: y.view_mut(),
                        final_states: None,
                    }
                    .run(device)
                    .unwrap(),
                });
                // The first round warms up.
                if round > 0 {
                    for (times, time) in times.iter_mut().zip([time, floors[0], floors[1]]) {
                        times.push(time * 1e3);
                    }
                }
            }
            let [time, plain, streamed] = times.map(|mut times| median(&mut times));
            let floor = plain.min(streamed);
            let bytes = (if backward { 3 } else { 2 }) * x.bytes().len();
            println!(
                "{name:32} {time:8.3} {:6.2} {:7.1}  {floor:8.3} ({plain:.3}, {streamed:.3})  {:.2}",
                time * 1e6 * 16.0 / shape.iter().product::<i64>() as f64,
                bytes as f64 / time / 1e6,
                time / floor
            );
        }
    }
}
