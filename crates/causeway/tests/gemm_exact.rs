//! The exact algorithm against the oracle's plain loop, bit for bit.

use causeway::backend::cpu::{Cpu, Level};
use causeway::gemm::{Algorithm, Forward, GradAB};
use causeway::oracle::gemm::Product;
use causeway::{DType, Device, HostTensor};

/// Numbers that look random and never change.
struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// In -1 .. 1, with all the digits that the dtype keeps.
    fn unit(&mut self) -> f64 {
        f64::from(self.bits()) / f64::from(1u32 << 30) - 1.0
    }
}

fn tensor(dtype: DType, shape: &[i64], seed: u64) -> HostTensor {
    let mut numbers = Numbers(seed);
    HostTensor::from_fn(dtype, shape, |_| numbers.unit()).unwrap()
}

/// A tensor whose elements have any bits at all.
fn any_bits(dtype: DType, shape: &[i64], seed: u64) -> HostTensor {
    let mut tensor = HostTensor::zeros(dtype, shape).unwrap();
    let mut numbers = Numbers(seed);
    for pair in tensor.bytes_mut().chunks_exact_mut(2) {
        pair.copy_from_slice(&(numbers.bits() as u16).to_le_bytes());
    }
    tensor
}

/// The elements' bits, in row-major order.
fn bits(tensor: &HostTensor) -> Vec<u16> {
    let dense = tensor.to_contiguous();
    let elements = dense.bytes().chunks_exact(2).take(dense.element_count());
    elements.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

fn levels() -> impl Iterator<Item = Cpu> {
    Level::ALL.into_iter().filter_map(|level| Cpu::with_level(level).ok())
}

fn transposed(tensor: &HostTensor) -> HostTensor {
    tensor.clone().permuted(&[1, 0])
}

/// Runs all three products of `a (M, K)`, `b (K, N)` and `grad_c (M, N)` and compares them with the chain.
fn check(device: &Device, a: &HostTensor, b: &HostTensor, grad_c: &HostTensor, column_major: bool) {
    let (m, k, n) = (a.shape()[0], a.shape()[1], b.shape()[1]);
    let dtype = a.dtype();
    let output = |rows: i64, columns: i64| {
        let mut output = if column_major {
            HostTensor::zeros(dtype, &[columns, rows]).unwrap().permuted(&[1, 0])
        } else {
            HostTensor::zeros(dtype, &[rows, columns]).unwrap()
        };
        output.fill_bytes(0xff);
        output
    };
    let (mut c, mut grad_a, mut grad_b) = (output(m, n), output(m, k), output(k, n));
    let algorithm = Algorithm::Exact;
    Forward { a: a.view(), b: b.view(), algorithm, c: c.view_mut() }.run(device).unwrap();
    GradAB {
        grad_c: grad_c.view(),
        a: a.view(),
        b: b.view(),
        algorithm,
        grad_a: grad_a.view_mut(),
        grad_b: grad_b.view_mut(),
    }
    .run(device)
    .unwrap();
    let case = format!("{dtype} M {m} N {n} K {k} on {device}");
    for (name, found, product) in [
        ("C", &c, Product::forward(a.view(), b.view())),
        ("grad_A", &grad_a, Product::grad_a(grad_c.view(), b.view())),
        ("grad_B", &grad_b, Product::grad_b(grad_c.view(), a.view())),
    ] {
        let result = product.chain().compare(&found.view());
        assert!(result.passed(), "{name}, {case}: {} elements differ, {:?}", result.failures, result.worst);
    }
}

#[test]
fn ragged_sizes_at_every_level() {
    let sizes = [0, 1, 3, 5, 15, 17, 127, 129, 255];
    for (step, cpu) in levels().enumerate() {
        let device = Device::Cpu(cpu);
        for (i, &m) in sizes.iter().enumerate() {
            for (j, &n) in sizes.iter().enumerate() {
                // Each level meets each pair of sizes, and each size as the reduction.
                let k = sizes[(i + 2 * j + step) % sizes.len()];
                let dtype = if (i + j) % 2 == 0 { DType::F16 } else { DType::BF16 };
                let seed = (m * 1000 + n) as u64;
                let (a, b) = (tensor(dtype, &[m, k], seed), tensor(dtype, &[k, n], seed + 1));
                check(&device, &a, &b, &tensor(dtype, &[m, n], seed + 2), j % 3 == 0);
            }
        }
    }
}

#[test]
fn reductions_deeper_than_a_block() {
    for cpu in levels() {
        for dtype in [DType::F16, DType::BF16] {
            let (a, b) = (tensor(dtype, &[17, 1000], 1), tensor(dtype, &[1000, 50], 2));
            check(&Device::Cpu(cpu), &a, &b, &tensor(dtype, &[17, 50], 3), false);
        }
    }
}

#[test]
fn special_values() {
    // Every pair of these meets in the product of a column and a row, and long sums mix them.
    let specials: [(DType, &[u16]); 2] = [
        (
            DType::F16,
            &[
                0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00,
                0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x1400,
            ],
        ),
        (
            DType::BF16,
            &[
                0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80,
                0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x2000,
            ],
        ),
    ];
    for (dtype, values) in specials {
        let count = values.len() as i64;
        let mut column = HostTensor::zeros(dtype, &[count, 1]).unwrap();
        for (to, value) in column.bytes_mut().chunks_exact_mut(2).zip(values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        let row = transposed(&column);
        let grad_c = tensor(dtype, &[count, count], 4);
        for cpu in levels() {
            check(&Device::Cpu(cpu), &column, &row, &grad_c, false);
            let (a, b) = (any_bits(dtype, &[40, 3], 5), any_bits(dtype, &[3, 60], 6));
            check(&Device::Cpu(cpu), &a, &b, &any_bits(dtype, &[40, 60], 7), true);
        }
    }
}

#[test]
fn zeros_sum_to_positive_zero() {
    for dtype in [DType::F16, DType::BF16] {
        let negative = HostTensor::from_fn(dtype, &[3, 4], |_| -0.0).unwrap();
        let ones = HostTensor::from_fn(dtype, &[4, 5], |_| 1.0).unwrap();
        for cpu in levels() {
            for (k, case) in [(4, "a sum of negative zeros"), (0, "an empty sum")] {
                let a = negative.clone().restrided(0, &[3, k], &[4, 1]).unwrap();
                let b = ones.clone().restrided(0, &[k, 5], &[5, 1]).unwrap();
                let mut c = HostTensor::from_fn(dtype, &[3, 5], |_| 1.0).unwrap();
                let algorithm = Algorithm::Exact;
                let mut call = Forward { a: a.view(), b: b.view(), algorithm, c: c.view_mut() };
                call.run(&Device::Cpu(cpu)).unwrap();
                assert_eq!(bits(&c), [0; 15], "{case}, {dtype} on {cpu}");
            }
        }
    }
}
