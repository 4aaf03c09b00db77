//! The truth of a matrix product, and the bits of its exact algorithm.

use causeway::tensor::{DType, TensorRef};
use half::{bf16, f16};

use super::bounds::{Approximate, Arithmetic};
use super::loops::{Loops, map_all, vectorised};
use super::ulp::Format;
use super::{Comparison, Expected, WorstElement};

/// The contract's ceiling on the error of an element, relative to the sum of its terms' magnitudes.
pub const CEILING: f64 = 1e-2;

/// The two factors of a product of matrices: views of host memory, already validated.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    left: TensorRef<'a>,
    right: TensorRef<'a>,
}

impl<'a> Product<'a> {
    /// `C = A · B`.
    pub fn forward(a: TensorRef<'a>, b: TensorRef<'a>) -> Self {
        Product { left: a, right: b }
    }

    /// `grad_A = grad_C · Bᵀ`.
    pub fn grad_a(grad_c: TensorRef<'a>, b: TensorRef<'a>) -> Self {
        Product { left: grad_c, right: b.permuted(&[1, 0]) }
    }

    /// `grad_B = Aᵀ · grad_C`.
    pub fn grad_b(grad_c: TensorRef<'a>, a: TensorRef<'a>) -> Self {
        Product { left: a.permuted(&[1, 0]), right: grad_c }
    }

    /// The product in f64, with the bound of any order of f32 sums rounded to the operands' dtype.
    ///
    /// With n terms per element the bound is γₙ·Σ|terms| and the rounding of the output, where a subnormal operand counts
    /// as the smallest normal number: tensor cores align products by the exponents of their operands, and take a
    /// subnormal one as it stands. Products of two halves are exact in f64, and the error of the f64 sum is 2⁻²⁹ of the
    /// bound's first part. The bound never exceeds [`CEILING`], except that rounding among subnormal outputs is
    /// always allowed. It is infinite where partial sums may overflow f32, and otherwise zero where a term is
    /// infinite or NaN.
    pub fn expected(&self) -> Expected {
        let dtype = self.left.dtype();
        let (rows, columns) = (self.left.shape()[0], self.right.shape()[1]);
        let terms = self.right.shape()[0] as usize;
        let format = Format::of(dtype).expect("the operands of a GEMM are floating-point");
        let arithmetic = Arithmetic::of(dtype);

        let mut values = vec![0.0; (rows * columns) as usize];
        let mut bounds = values.clone();
        self.for_each_piece(
            &mut values,
            &mut bounds,
            |value| value,
            |left, right, values, bounds| {
                let sums = Sums { left, right, smallest_normal: format.smallest_normal() };
                let (truths, magnitudes, sizes) = vectorised(sums);
                for (i, (value, bound)) in values.iter_mut().zip(bounds).enumerate() {
                    *value = truths[i];
                    // What overflows beside an infinity may be the other one.
                    let unknown =
                        truths[i].is_infinite() && arithmetic.may_overflow(terms, sums.finite_magnitude(i));
                    let error = if unknown { f64::INFINITY } else { arithmetic.sum(terms, sizes[i]) };
                    let sum = Approximate { value: truths[i], error };
                    let ceiling = CEILING * magnitudes[i] + format.smallest() / 2.0;
                    let rounded = arithmetic.rounded(sum, dtype);
                    // Where partial sums may overflow there is no bound that a ceiling could cut.
                    *bound = if rounded.is_finite() { rounded.min(ceiling) } else { rounded };
                }
            },
        );
        Expected { dtype, shape: vec![rows, columns], values, bounds }
    }

    /// The bits that [`Algorithm::Exact`](causeway::gemm::Algorithm::Exact) has to give: the plain loop.
    pub fn chain(&self) -> Chain {
        let dtype = self.left.dtype();
        let (rows, columns) = (self.left.shape()[0], self.right.shape()[1]);
        let mut sums = vec![0.0f32; (rows * columns) as usize];
        let mut bits = vec![0u16; sums.len()];
        self.for_each_piece(
            &mut sums,
            &mut bits,
            |value| value as f32,
            |left, right, sums, bits| {
                let all = vectorised(FusedSums { left, right });
                for ((sum, bits), &all) in sums.iter_mut().zip(bits).zip(&all) {
                    *sum = all;
                    *bits = round(all, dtype);
                }
            },
        );
        Chain { dtype, shape: [rows, columns], bits }
    }

    /// Calls `piece(left row, right columns, outputs, outputs)` for every piece of up to [`COLUMNS`] elements of both
    /// outputs' rows. `convert` makes operands what the sums are formed from, without rounding.
    fn for_each_piece<P: Copy + Default + Send + Sync, S: Send, T: Send>(
        &self,
        first: &mut [S],
        second: &mut [T],
        convert: impl Fn(f64) -> P + Sync,
        piece: impl Fn(&[P], &[[P; COLUMNS]], &mut [S], &mut [T]) + Sync,
    ) {
        if first.is_empty() {
            return;
        }
        let operand = |tensor: &TensorRef<'_>| tensor.to_f64().into_iter().map(&convert).collect::<Vec<P>>();
        let (left, right) = (operand(&self.left), operand(&self.right));
        let (reduction, columns) = (self.right.shape()[0] as usize, self.right.shape()[1] as usize);
        let rows = first.chunks_mut(ROWS * columns).zip(second.chunks_mut(ROWS * columns)).enumerate();
        map_all(
            left.len() * columns,
            rows.collect(),
            |panel: &mut Vec<[P; COLUMNS]>, (block, (first, second))| {
                panel.resize(reduction, [P::default(); COLUMNS]);
                for begin in (0..columns).step_by(COLUMNS) {
                    let end = columns.min(begin + COLUMNS);
                    for (k, panel) in panel.iter_mut().enumerate() {
                        panel[..end - begin].copy_from_slice(&right[k * columns + begin..k * columns + end]);
                    }
                    let outputs = first.chunks_mut(columns).zip(second.chunks_mut(columns)).enumerate();
                    for (row, (first, second)) in outputs {
                        let left = &left[(block * ROWS + row) * reduction..][..reduction];
                        piece(left, panel, &mut first[begin..end], &mut second[begin..end]);
                    }
                }
            },
        );
    }
}

/// Elements of a row whose sums are formed side by side, each with its terms in order.
const COLUMNS: usize = 16;

/// Rows that are formed from the same columns before the next ones are looked at.
const ROWS: usize = 32;

/// Σ terms, Σ|terms|, and the latter with subnormal operands as the smallest normal number, of some elements of a row.
#[derive(Clone, Copy)]
struct Sums<'a> {
    left: &'a [f64],
    right: &'a [[f64; COLUMNS]],
    smallest_normal: f64,
}

impl Sums<'_> {
    /// Σ|terms| of one element, of its finite terms alone.
    fn finite_magnitude(&self, column: usize) -> f64 {
        let terms = self.left.iter().zip(self.right).map(|(&factor, others)| (factor * others[column]).abs());
        terms.filter(|term| term.is_finite()).sum()
    }
}

impl Loops for Sums<'_> {
    type Output = ([f64; COLUMNS], [f64; COLUMNS], [f64; COLUMNS]);

    #[inline(always)]
    fn run(self) -> Self::Output {
        let (mut values, mut magnitudes, mut sizes) = ([0.0; COLUMNS], [0.0; COLUMNS], [0.0; COLUMNS]);
        let size = |operand: f64| {
            let size = operand.abs();
            if size < self.smallest_normal && size > 0.0 { self.smallest_normal } else { size }
        };
        for (&factor, others) in self.left.iter().zip(self.right) {
            let factor_size = size(factor);
            for (column, &other) in others.iter().enumerate() {
                let term = factor * other;
                values[column] += term;
                magnitudes[column] += term.abs();
                sizes[column] += factor_size * size(other);
            }
        }
        (values, magnitudes, sizes)
    }
}

/// The f32 chains of some elements of a row.
struct FusedSums<'a> {
    left: &'a [f32],
    right: &'a [[f32; COLUMNS]],
}

impl Loops for FusedSums<'_> {
    type Output = [f32; COLUMNS];

    #[inline(always)]
    fn run(self) -> Self::Output {
        let mut sums = [0.0f32; COLUMNS];
        for (&factor, others) in self.left.iter().zip(self.right) {
            for (&other, sum) in others.iter().zip(&mut sums) {
                *sum = factor.mul_add(other, *sum);
            }
        }
        sums
    }
}

/// To nearest, ties to even; one NaN for all.
fn round(sum: f32, dtype: DType) -> u16 {
    match dtype {
        DType::F16 if sum.is_nan() => 0x7e00,
        DType::F16 => f16::from_f32(sum).to_bits(),
        _ if sum.is_nan() => 0x7fc0,
        _ => bf16::from_f32(sum).to_bits(),
    }
}

/// The result of the exact algorithm, bit for bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// f16 or bf16.
    pub dtype: DType,
    /// Rows and columns.
    pub shape: [i64; 2],
    /// The elements, in row-major order.
    pub bits: Vec<u16>,
}

impl Chain {
    /// Compares a result on the host, bit for bit: a zero of the wrong sign and a NaN of other bits are failures.
    ///
    /// # Panics
    /// If `found` has another shape or dtype, or is not on the host.
    pub fn compare(&self, found: &TensorRef<'_>) -> Comparison {
        let values: Vec<f64> = self.bits.iter().map(|&bits| self.value(bits)).collect();
        let mut result = Expected::exact(self.dtype, &self.shape, values).compare(found, None);
        result.failures = 0;
        for (i, (found, &expected)) in found.to_f64().into_iter().zip(&self.bits).enumerate() {
            if self.bits(found) == expected {
                continue;
            }
            result.failures += 1;
            // Zeros of two signs and NaNs of other bits are equal as values, and have used no bound so far.
            if result.fraction == 0.0 {
                result.fraction = f64::INFINITY;
                result.worst = Some(WorstElement {
                    coordinate: vec![i as i64 / self.shape[1], i as i64 % self.shape[1]],
                    found,
                    expected: self.value(expected),
                    error: 0.0,
                    bound: 0.0,
                    unwritten: false,
                });
            }
        }
        result
    }

    /// Of an element that was read as f64: conversion keeps the sign and the payload of a NaN.
    fn bits(&self, value: f64) -> u16 {
        match self.dtype {
            DType::F16 => f16::from_f64(value).to_bits(),
            _ => bf16::from_f64(value).to_bits(),
        }
    }

    fn value(&self, bits: u16) -> f64 {
        match self.dtype {
            DType::F16 => f16::from_bits(bits).to_f64(),
            _ => bf16::from_bits(bits).to_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway::HostTensor;

    fn tensor(dtype: DType, shape: &[i64], values: &[f64]) -> HostTensor {
        HostTensor::from_fn(dtype, shape, |i| values[i]).unwrap()
    }

    #[test]
    fn a_product_by_hand() {
        let a = tensor(DType::F16, &[2, 3], &[1.0, 2.0, 3.0, -4.0, 5.0, 6.0]);
        let b = tensor(DType::F16, &[3, 2], &[1.0, 0.5, 2.0, -1.0, 0.0, 4.0]);
        let c = Product::forward(a.view(), b.view());
        assert_eq!(c.expected().values, [5.0, 10.5, 6.0, 17.0]);
        let magnitude = 0.5 + 2.0 + 12.0;
        let bound = c.expected().bounds[1];
        let rounding = 2f64.powi(-8);
        assert!(bound > rounding && bound < rounding + 3.1 * 2f64.powi(-24) * magnitude, "{bound}");
        assert_eq!(c.chain().bits, [5.0, 10.5, 6.0, 17.0].map(|v| f16::from_f64(v).to_bits()));
    }

    #[test]
    fn the_three_products_transpose_their_operands() {
        let a = tensor(DType::BF16, &[1, 2], &[3.0, 5.0]);
        let b = tensor(DType::BF16, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let grad_c = tensor(DType::BF16, &[1, 3], &[1.0, 10.0, 100.0]);
        assert_eq!(Product::forward(a.view(), b.view()).expected().values, [23.0, 31.0, 39.0]);
        let grad_a = Product::grad_a(grad_c.view(), b.view()).expected();
        assert_eq!((grad_a.shape.as_slice(), grad_a.values.as_slice()), (&[1, 2][..], &[321.0, 654.0][..]));
        let grad_b = Product::grad_b(grad_c.view(), a.view()).expected();
        assert_eq!(grad_b.shape, [2, 3]);
        assert_eq!(grad_b.values, [3.0, 30.0, 300.0, 5.0, 50.0, 500.0]);
    }

    #[test]
    fn the_bound_never_passes_the_ceiling() {
        // One large term cancels: only the sum of magnitudes says how wrong the rest may be.
        let a = tensor(DType::BF16, &[1, 3], &[1e4, 1e4, 1.0]);
        let b = tensor(DType::BF16, &[3, 1], &[1e4, -1e4, 1.0]);
        let expected = Product::forward(a.view(), b.view()).expected();
        assert!(expected.bounds[0] <= CEILING * 2e8 + 1e-20);
        let tiny = tensor(DType::F16, &[1, 1], &[2f64.powi(-12)]);
        let expected = Product::forward(tiny.view(), tiny.view()).expected();
        // 2⁻²⁴ is the smallest f16: half of it may be lost.
        assert!(expected.bounds[0] >= 2f64.powi(-25), "{:?}", expected.bounds);
    }

    #[test]
    fn subnormal_operands_count_as_the_smallest_normal_number() {
        // The same term twice: units that align by exponent fields keep 25 bits below 2⁻¹⁵ of the first, below 2⁻²⁵ of the second.
        let bound = |left: f64, right: f64| {
            let (a, b) = (tensor(DType::F16, &[1, 1], &[left]), tensor(DType::F16, &[1, 1], &[right]));
            Product::forward(a.view(), b.view()).expected().bounds[0] - 2f64.powi(-25)
        };
        assert!(bound(2f64.powi(-24), 0.5) > 2f64.powi(-15 - 25));
        assert!(bound(2f64.powi(-12), 2f64.powi(-13)) < 2f64.powi(-15 - 25));
    }

    #[test]
    fn nothing_is_said_of_an_infinity_beside_terms_that_overflow() {
        let a = tensor(DType::BF16, &[1, 2], &[f64::NEG_INFINITY, 1e30]);
        let bounds = |other| {
            let b = tensor(DType::BF16, &[2, 1], &[1.0, other]);
            Product::forward(a.view(), b.view()).expected().bounds[0]
        };
        assert_eq!(bounds(1e30), f64::INFINITY);
        assert_eq!(bounds(1.0), 0.0);
    }

    #[test]
    fn an_empty_sum_is_zero() {
        let (a, b) = (tensor(DType::F16, &[2, 0], &[]), tensor(DType::F16, &[0, 3], &[]));
        let c = Product::forward(a.view(), b.view());
        assert_eq!(c.expected().values, [0.0; 6]);
        assert_eq!(c.chain().bits, [0; 6]);
    }

    #[test]
    fn a_chain_is_compared_by_its_bits() {
        let chain = Chain { dtype: DType::F16, shape: [2, 2], bits: vec![0x0000, 0x3c00, 0x7e00, 0x7c00] };
        let of = |bits: [u16; 4]| HostTensor::from_slice(&bits.map(f16::from_bits), &[2, 2]).unwrap();
        assert!(chain.compare(&of([0x0000, 0x3c00, 0x7e00, 0x7c00]).view()).passed());
        for (element, wrong) in [(0, 0x8000), (1, 0x3c01), (2, 0xfe00), (2, 0x7c01), (3, 0x7bff), (3, 0x7e00)]
        {
            let mut bits = [0x0000, 0x3c00, 0x7e00, 0x7c00];
            bits[element] = wrong;
            let result = chain.compare(&of(bits).view());
            assert_eq!(result.failures, 1, "{wrong:#06x}");
            assert_eq!(result.fraction, f64::INFINITY);
            let coordinate = [element as i64 / 2, element as i64 % 2];
            assert_eq!(result.worst.unwrap().coordinate, coordinate, "{wrong:#06x}");
        }
    }
}
