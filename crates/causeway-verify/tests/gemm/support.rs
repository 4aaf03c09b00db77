//! Operands, and all three products against the oracle.

use causeway::backend::cpu::{Cpu, Level};
use causeway::gemm::{Algorithm, Forward, GradAB};
use causeway::{DType, Device, HostTensor};
use causeway_verify::oracle::Comparison;
use causeway_verify::oracle::gemm::Product;

/// The two dtypes of a GEMM.
pub const DTYPES: [DType; 2] = [DType::F16, DType::BF16];

/// Numbers that look random and never change.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// In -1 .. 1, with all the digits that the dtype keeps.
    pub fn unit(&mut self) -> f64 {
        f64::from(self.bits()) / f64::from(1u32 << 31) - 1.0
    }
}

pub fn tensor(dtype: DType, shape: &[i64], seed: u64) -> HostTensor {
    let mut numbers = Numbers(seed);
    HostTensor::from_fn(dtype, shape, |_| numbers.unit()).unwrap()
}

/// A tensor with these bits, row by row.
pub fn of_bits(dtype: DType, shape: &[i64], mut bits: impl FnMut() -> u16) -> HostTensor {
    let mut tensor = HostTensor::zeros(dtype, shape).unwrap();
    let count = tensor.element_count();
    for pair in tensor.bytes_mut().chunks_exact_mut(2).take(count) {
        pair.copy_from_slice(&bits().to_le_bytes());
    }
    tensor
}

/// The elements' bits, row by row.
pub fn bits(tensor: &HostTensor) -> Vec<u16> {
    let dense = tensor.to_contiguous().unwrap();
    let elements = dense.bytes().chunks_exact(2).take(dense.element_count());
    elements.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

/// One device per level that this machine has.
pub fn devices() -> impl Iterator<Item = Device> {
    Level::ALL.into_iter().filter_map(|level| Cpu::with_level(level).ok()).map(Device::Cpu)
}

/// A, B and grad_C, and the layout of the three results.
#[derive(Debug)]
pub struct Operands {
    pub a: HostTensor,
    pub b: HostTensor,
    pub grad_c: HostTensor,
    pub column_major: bool,
}

impl Operands {
    /// Dense operands of these sizes.
    pub fn new(dtype: DType, (m, n, k): (i64, i64, i64), seed: u64) -> Self {
        Operands {
            a: tensor(dtype, &[m, k], seed),
            b: tensor(dtype, &[k, n], seed + 1),
            grad_c: tensor(dtype, &[m, n], seed + 2),
            column_major: false,
        }
    }

    /// C, grad_A and grad_B, by a forward call and a call for both gradients.
    pub fn run(&self, device: &Device, algorithm: Algorithm) -> [HostTensor; 3] {
        let (m, k, n) = (self.a.shape()[0], self.a.shape()[1], self.b.shape()[1]);
        let (mut c, mut grad_a, mut grad_b) = (self.output(m, n), self.output(m, k), self.output(k, n));
        let (a, b) = (self.a.view(), self.b.view());
        Forward { a, b, algorithm, c: c.view_mut() }.run(device).unwrap();
        let (grad_c, grad_a_view) = (self.grad_c.view(), grad_a.view_mut());
        let mut call = GradAB { grad_c, a, b, algorithm, grad_a: grad_a_view, grad_b: grad_b.view_mut() };
        call.run(device).unwrap();
        [c, grad_a, grad_b]
    }

    /// Runs all three products and checks them: `exact` bit for bit, `fast` within the bounds.
    pub fn check(&self, device: &Device, algorithm: Algorithm) {
        for ((name, product), found) in self.products().into_iter().zip(self.run(device, algorithm)) {
            let result = match algorithm {
                Algorithm::Exact => product.chain().compare(&found.view()),
                Algorithm::Fast => product.expected().compare(&found.view(), None),
            };
            assert!(result.passed(), "{}", self.describe(name, device, algorithm, &result));
        }
    }

    fn products(&self) -> [(&'static str, Product<'_>); 3] {
        let (a, b, grad_c) = (self.a.view(), self.b.view(), self.grad_c.view());
        [
            ("C", Product::forward(a, b)),
            ("grad_A", Product::grad_a(grad_c, b)),
            ("grad_B", Product::grad_b(grad_c, a)),
        ]
    }

    fn describe(&self, output: &str, device: &Device, algorithm: Algorithm, result: &Comparison) -> String {
        let worst = result.worst.as_ref().map(ToString::to_string).unwrap_or_default();
        let (a, b, failures) = (&self.a, &self.b, result.failures);
        format!("{output} by {algorithm} on {device}, A {a:?}, B {b:?}: {failures} wrong, {worst}")
    }

    fn output(&self, rows: i64, columns: i64) -> HostTensor {
        let dtype = self.a.dtype();
        let mut output = if self.column_major {
            HostTensor::zeros(dtype, &[columns, rows]).unwrap().permuted(&[1, 0])
        } else {
            HostTensor::zeros(dtype, &[rows, columns]).unwrap()
        };
        output.fill_bytes(0xff);
        output
    }
}

/// Operands of numbers on which devices could differ.
pub fn special_operands(dtype: DType) -> [Operands; 3] {
    // Zeros, subnormals, the smallest normal, ones, the largest, infinities, NaNs of several bits, and a number
    // whose square is too small for the type.
    let specials: [u16; 16] = match dtype {
        DType::F16 => [
            0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
            0x7e00, 0xfe01, 0x7c01, 0x0bff,
        ],
        _ => [
            0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
            0x7fc0, 0xffc1, 0x7f81, 0x1fff,
        ],
    };
    let mut next = specials.into_iter().cycle();
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
    // Exponents that put products and sums on both sides of the smallest normal f32, and of the output's.
    let centre: u16 = if dtype == DType::F16 { 4 << 10 } else { 60 << 7 };
    let mut numbers = Numbers(6);
    let mut small = |shape: &[i64]| {
        of_bits(dtype, shape, || {
            let bits = numbers.bits();
            (bits & 0x8000) as u16 | (centre + (bits & 0x07ff) as u16)
        })
    };
    let subnormal =
        Operands { a: small(&[33, 40]), b: small(&[40, 70]), grad_c: small(&[33, 70]), column_major: false };
    [pairs, anything, subnormal]
}
