//! The fast algorithm: the matrix unit where there is one for the type, else the chain.
//!
//! The chain runs in vectors across outputs and reaches most of what the vector units can do, so without a matrix
//! unit nothing is gained by adding in another order.

use super::exact;
use super::half::Half;
use super::matrix::{Matrix, MatrixMut};
use crate::backend::cpu::Cpu;

/// `output = left · right`. `right` is transposed: its rows are the output's columns.
pub fn multiply<T: Half>(cpu: Cpu, left: &Matrix<T>, right: &Matrix<T>, output: &MatrixMut<T>) {
    if !T::multiply_on_matrix_unit(cpu, left, right, output) {
        exact::multiply(cpu, left, right, output);
    }
}
