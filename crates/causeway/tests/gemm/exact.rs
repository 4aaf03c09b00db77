//! The exact algorithm against the oracle's plain loop, bit for bit, at every SIMD level.

use crate::support::{DTYPES, Numbers, Operands, bits, devices, of_bits, tensor};
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
fn special_values() {
    // Zeros, subnormals, the smallest normal, ones, the largest, infinities, NaNs of several bits, and a number
    // whose square is too small for the type.
    let specials = [
        [
            0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
            0x7e00, 0xfe01, 0x7c01, 0x0bff,
        ],
        [
            0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
            0x7fc0, 0xffc1, 0x7f81, 0x1fff,
        ],
    ];
    for (dtype, values) in DTYPES.into_iter().zip(specials) {
        let mut next = values.into_iter().cycle();
        let column = of_bits(dtype, &[16, 1], || next.next().unwrap());
        // Every pair meets alone in C; the gradients mix them in sums.
        let pairs = Operands {
            b: column.clone().permuted(&[1, 0]),
            a: column,
            grad_c: tensor(dtype, &[16, 16], 4),
            column_major: false,
        };
        let mut numbers = Numbers(5);
        let mut any = |shape: &[i64]| of_bits(dtype, shape, || numbers.bits() as u16);
        let anything =
            Operands { a: any(&[40, 3]), b: any(&[3, 60]), grad_c: any(&[40, 60]), column_major: true };
        for device in devices() {
            pairs.check(&device, Algorithm::Exact);
            anything.check(&device, Algorithm::Exact);
        }
    }
}

#[test]
fn sums_among_subnormal_numbers() {
    for dtype in DTYPES {
        let mut numbers = Numbers(6);
        // Exponents that put products and sums on both sides of the smallest normal f32, and of the output's.
        let centre: u16 = if dtype == DTYPES[0] { 4 << 10 } else { 60 << 7 };
        let mut small = |shape: &[i64]| {
            of_bits(dtype, shape, || {
                let bits = numbers.bits();
                (bits & 0x8000) as u16 | (centre + (bits & 0x07ff) as u16)
            })
        };
        let operands = Operands {
            a: small(&[33, 40]),
            b: small(&[40, 70]),
            grad_c: small(&[33, 70]),
            column_major: false,
        };
        for device in devices() {
            operands.check(&device, Algorithm::Exact);
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
