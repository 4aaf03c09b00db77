//! The fast algorithm: the matrix unit where there is one for the type, else the chain.
//!
//! The chain runs in vectors across outputs and reaches most of what the vector units can do, so without a matrix
//! unit nothing is gained by adding in another order.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::exact;
use super::half::Half;
use super::matrix::{Matrix, MatrixMut};
use crate::backend::cpu::Cpu;

/// An element type, and the matrix unit for it.
pub trait Fast: Half {
    /// As [`multiply`], on a matrix unit; false, and nothing done, if there is none that suits.
    fn multiply_on_matrix_unit(
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
    fn multiply_on_matrix_unit(
        cpu: Cpu,
        left: &Matrix<Self>,
        right: &Matrix<Self>,
        output: &MatrixMut<Self>,
    ) -> bool {
        let suits = amx::suits(cpu, output.rows, output.columns);
        if suits {
            // SAFETY: as just asked.
            unsafe { amx::multiply(cpu, left, right, output) };
        }
        suits
    }
}

/// `output = left · right`. `right` is transposed: its rows are the output's columns.
pub fn multiply<T: Fast>(cpu: Cpu, left: &Matrix<T>, right: &Matrix<T>, output: &MatrixMut<T>) {
    if !T::multiply_on_matrix_unit(cpu, left, right, output) {
        exact::multiply(cpu, left, right, output);
    }
}
