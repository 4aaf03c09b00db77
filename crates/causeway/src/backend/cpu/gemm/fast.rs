//! The fast algorithm: by instructions that take elements in pairs, where the processor has them for the type, else the chain.
//!
//! The chain runs in vectors across outputs and reaches most of what multiply-adds of f32 can do, so without such instructions
//! nothing is gained by adding in another order.

use half::{bf16, f16};

use super::exact;
use super::half::Half;
use super::matrix::{Matrix, MatrixMut};
#[cfg(target_arch = "x86_64")]
use super::pairs;
use crate::backend::cpu::Cpu;

/// An element type, and what multiplies pairs of it.
pub trait Fast: Half {
    /// As [`multiply`], in pairs; false, and nothing done, if there is nothing for it.
    fn multiply_in_pairs(
        cpu: Cpu,
        left: &Matrix<Self>,
        right: &Matrix<Self>,
        output: &MatrixMut<Self>,
    ) -> bool {
        let _ = (cpu, left, right, output);
        false
    }
}

impl Fast for f16 {}

impl Fast for bf16 {
    #[cfg(target_arch = "x86_64")]
    fn multiply_in_pairs(
        cpu: Cpu,
        left: &Matrix<Self>,
        right: &Matrix<Self>,
        output: &MatrixMut<Self>,
    ) -> bool {
        pairs::multiply(cpu, left, right, output)
    }
}

/// `output = left · right`. `right` is transposed: its rows are the output's columns. `worth_a_thread` is what pairs take for it, so that
/// a product has threads, or none, whichever way it is computed.
pub fn multiply<T: Fast>(
    cpu: Cpu,
    left: &Matrix<T>,
    right: &Matrix<T>,
    output: &MatrixMut<T>,
    worth_a_thread: usize,
) {
    if !T::multiply_in_pairs(cpu, left, right, output) {
        exact::multiply(cpu, left, right, output, worth_a_thread);
    }
}
