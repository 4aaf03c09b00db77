//! Matrix products on a real GPU: bits of `exact` for special values, large and ragged sizes of `fast` against them,
//! and speed, printed. Run it alone, in a release build:
//! `cargo test --release -p causeway-verify --test gpu_gemm -- --test-threads=1 --nocapture`.

// Shared with other tests, which use more of them.
#[allow(dead_code)]
#[path = "gemm/support.rs"]
mod operands;
#[allow(dead_code)]
#[path = "../../causeway/tests/common/real_gpu.rs"]
mod real_gpu;

use causeway::backend::gpu::{Event, Stream};
use causeway::gemm::{Algorithm, Forward, GradA, GradB};
use causeway::{DType, Device, DeviceTensor, HostTensor, TensorMut, TensorRef};
use causeway_verify::oracle::gemm::Product;

use operands::{DTYPES, Operands, bits, special_operands, tensor};
use real_gpu::device;

fn stream() -> Option<Stream> {
    device().map(|device| Stream::new(device).unwrap())
}

/// The three products of a pair of operands, by name.
const PRODUCTS: [&str; 3] = ["C", "grad_A", "grad_B"];

/// Operands on a device, and a place for the result of one of their products.
struct Placed {
    a: DeviceTensor,
    b: DeviceTensor,
    grad_c: DeviceTensor,
    results: [DeviceTensor; 3],
}

impl Placed {
    fn new(stream: &Stream, operands: &Operands) -> Self {
        let upload = |tensor: &HostTensor| DeviceTensor::upload(stream, tensor).unwrap();
        let result = |like: &HostTensor| {
            let mut poisoned = HostTensor::zeros(like.dtype(), like.shape()).unwrap();
            poisoned.fill_bytes(0xff);
            upload(&poisoned)
        };
        Placed {
            a: upload(&operands.a),
            b: upload(&operands.b),
            grad_c: upload(&operands.grad_c),
            results: [result(&operands.grad_c), result(&operands.a), result(&operands.b)],
        }
    }

    fn run(&mut self, product: usize, algorithm: Algorithm, device: &Device) {
        let (a, b, grad_c): (TensorRef<'_>, TensorRef<'_>, TensorRef<'_>) =
            (self.a.view(), self.b.view(), self.grad_c.view());
        let result: TensorMut<'_> = self.results[product].view_mut();
        match product {
            0 => Forward { a, b, algorithm, c: result }.run(device),
            1 => GradA { grad_c, b, algorithm, grad_a: result }.run(device),
            _ => GradB { grad_c, a, algorithm, grad_b: result }.run(device),
        }
        .unwrap();
    }

    fn result(&mut self, product: usize, algorithm: Algorithm, device: &Device) -> HostTensor {
        self.results[product].fill_bytes(0xff).unwrap();
        self.run(product, algorithm, device);
        self.results[product].download().unwrap()
    }
}

#[test]
fn exact_gives_the_oracles_bits_for_special_values() {
    let Some(stream) = stream() else { return };
    let device = Device::Gpu(stream.clone());
    for operands in DTYPES.into_iter().flat_map(special_operands) {
        let mut placed = Placed::new(&stream, &operands);
        let (a, b, grad_c) = (operands.a.view(), operands.b.view(), operands.grad_c.view());
        let products = [Product::forward(a, b), Product::grad_a(grad_c, b), Product::grad_b(grad_c, a)];
        for (i, product) in products.iter().enumerate() {
            let found = placed.result(i, Algorithm::Exact, &device);
            let result = product.chain().compare(&found.view());
            assert!(result.passed(), "{}: {:?}, A {:?}", PRODUCTS[i], result.worst, operands.a);
        }
    }
}

/// Where the oracle takes too long: both algorithms round sums that differ by f32 errors alone.
#[test]
fn fast_is_near_exact_at_large_and_ragged_sizes() {
    let Some(stream) = stream() else { return };
    let device = Device::Gpu(stream.clone());
    for (i, size) in
        [(1000, 1000, 1000), (1025, 2049, 1023), (4095, 4097, 4099), (64, 4096, 4096)].into_iter().enumerate()
    {
        let dtype = DTYPES[i % 2];
        let unit = if dtype == DType::F16 { 2f64.powi(-10) } else { 2f64.powi(-7) };
        let mut placed = Placed::new(&stream, &Operands::new(dtype, size, 90));
        for (product, name) in PRODUCTS.into_iter().enumerate() {
            let fast = placed.result(product, Algorithm::Fast, &device);
            let again = placed.result(product, Algorithm::Fast, &device);
            assert_eq!(bits(&fast), bits(&again), "{name} of {size:?} differs from run to run");
            let exact = placed.result(product, Algorithm::Exact, &device);
            let terms = [size.2, size.1, size.0][product] as f64;
            // A unit in the last place, and the errors of two f32 sums of such terms.
            let small = terms * 2f64.powi(-22);
            for (at, (x, y)) in fast.to_f64().into_iter().zip(exact.to_f64()).enumerate() {
                assert!(
                    (x - y).abs() <= unit * y.abs() + small,
                    "{name} of {size:?} at {at}: {x}, exact {y}"
                );
            }
        }
    }
}

/// Median TFLOP/s of one product, of launches in one graph. Operands stay where the cache keeps them.
fn speed(stream: &Stream, placed: &mut Placed, product: usize, algorithm: Algorithm, terms: f64) -> f64 {
    const LAUNCHES: usize = 10;
    const ROUNDS: usize = 9;
    let device = Device::Gpu(stream.clone());
    placed.run(product, algorithm, &device);
    let graph = stream
        .record(|| {
            (0..LAUNCHES).for_each(|_| placed.run(product, algorithm, &device));
            Ok(())
        })
        .unwrap();
    let (start, end) = (Event::new(stream.device()).unwrap(), Event::new(stream.device()).unwrap());
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            start.record(stream).unwrap();
            // SAFETY: `placed` outlives the replay, which is over when its event is.
            unsafe { graph.launch(stream) }.unwrap();
            end.record(stream).unwrap();
            end.synchronize().unwrap();
            f64::from(end.milliseconds_since(&start).unwrap()) * 1e-3 / LAUNCHES as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    2.0 * terms / times[ROUNDS / 2] * 1e-12
}

#[test]
fn speed_of_both_algorithms() {
    let Some(stream) = stream() else { return };
    println!("{}; TFLOP/s of C, grad_A, grad_B; random data, warm cache", stream.device());
    for size @ (m, n, k) in [
        (256, 256, 256),
        (512, 512, 512),
        (1024, 1024, 1024),
        (1000, 1000, 1000),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (4095, 4097, 4099),
        (64, 4096, 4096),
    ] {
        for dtype in DTYPES {
            let operands = Operands {
                a: tensor(dtype, &[m, k], 1),
                b: tensor(dtype, &[k, n], 2),
                grad_c: tensor(dtype, &[m, n], 3),
                column_major: false,
            };
            let mut placed = Placed::new(&stream, &operands);
            for algorithm in Algorithm::ALL {
                let speeds = [0, 1, 2].map(|product| {
                    speed(&stream, &mut placed, product, algorithm, (m * n) as f64 * k as f64)
                });
                println!("{size:?} {dtype} {algorithm}: {:.1} {:.1} {:.1}", speeds[0], speeds[1], speeds[2]);
                assert!(speeds.iter().all(|speed| *speed > 0.0), "a speed is positive");
            }
        }
    }
}
