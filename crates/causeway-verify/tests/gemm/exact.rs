//! The exact algorithm against the oracle's plain loop, bit for bit, at every SIMD level.

use crate::support::{DTYPES, Operands, bits, devices, special_operands};
use causeway::HostTensor;
use causeway::gemm::{Algorithm, Forward};

#[test]
fn ragged_sizes() {
    let sizes = [0, 1, 3, 5, 15, 17, 127, 129, 255];
    for (step, device) in devices().enumerate() {
        for (i, &m) in sizes.iter().enumerate() {
            for (j, &n) in sizes.iter().enumerate() {
                // Each level meets each pair of sizes, and each size as the reduction.
                let k = sizes[(i + 2 * j + step) % sizes.len()];
                let mut operands = Operands::new(DTYPES[(i + j) % 2], (m, n, k), (m * 1000 + n) as u64);
                operands.column_major = j % 3 == 0;
                operands.check(&device, Algorithm::Exact);
            }
        }
    }
}

#[test]
fn reductions_deeper_than_a_block() {
    for device in devices() {
        for dtype in DTYPES {
            Operands::new(dtype, (17, 50, 1000), 1).check(&device, Algorithm::Exact);
        }
    }
}

#[test]
fn special_values_and_sums_among_subnormal_numbers() {
    for dtype in DTYPES {
        for operands in special_operands(dtype) {
            for device in devices() {
                operands.check(&device, Algorithm::Exact);
            }
        }
    }
}

#[test]
fn zeros_sum_to_positive_zero() {
    for dtype in DTYPES {
        let negative = HostTensor::from_fn(dtype, &[3, 4], |_| -0.0).unwrap();
        let ones = HostTensor::from_fn(dtype, &[4, 5], |_| 1.0).unwrap();
        for device in devices() {
            for (k, case) in [(4, "a sum of negative zeros"), (0, "an empty sum")] {
                let a = negative.clone().restrided(0, &[3, k], &[4, 1]).unwrap();
                let b = ones.clone().restrided(0, &[k, 5], &[5, 1]).unwrap();
                let mut c = HostTensor::from_fn(dtype, &[3, 5], |_| 1.0).unwrap();
                let algorithm = Algorithm::Exact;
                let mut call = Forward { a: a.view(), b: b.view(), algorithm, c: c.view_mut() };
                call.run(&device).unwrap();
                assert_eq!(bits(&c), [0; 15], "{case}, {dtype} on {device}");
            }
        }
    }
}

/// Programs may switch a thread to flush subnormal numbers, and threads inherit it. (The test is about x86-64, where
/// libraries are known to do so as they are loaded.)
#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_flushes_subnormal_numbers_gets_the_same_bits() {
    fn flush_subnormals() {
        let mut mode = 0u32;
        // SAFETY: sets FTZ and DAZ of MXCSR for this thread, which ends with the test's pool.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode);
            mode |= 1 << 15 | 1 << 6;
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode);
        }
    }
    let tiny = HostTensor::from_fn(DTYPES[1], &[20, 1], |i| (i as f64 - 10.0) * 2f64.powi(-70)).unwrap();
    let run = |device: &causeway::Device| {
        let mut c = HostTensor::zeros(DTYPES[1], &[20, 20]).unwrap();
        let (a, b) = (tiny.view(), tiny.view().permuted(&[1, 0]));
        Forward { a, b, algorithm: Algorithm::Exact, c: c.view_mut() }.run(device).unwrap();
        bits(&c)
    };
    for device in devices() {
        let expected = run(&device);
        assert!(expected.iter().any(|&bits| bits & 0x7fff != 0 && bits & 0x7f80 == 0), "some are subnormal");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).start_handler(|_| flush_subnormals());
        assert_eq!(pool.build().unwrap().install(|| run(&device)), expected, "{device}");
    }
}
