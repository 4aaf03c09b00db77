//! The shapes and dtypes that matrices have: the words of this module's tables.

use crate::error::{Error, Result};
use crate::operation::{Axis, DTypes, Shape, Size};
use crate::tensor::{DType, TensorRef};

const fn axis(name: &'static str, size: Size, because: &'static str) -> Axis {
    Axis { name, size, plus: 0, because, without: None }
}

/// Axes of the matrices that give a call its sizes.
pub(super) const M: Axis = axis("M", Size::M, "its own");
pub(super) const N: Axis = axis("N", Size::N, "its own");
pub(super) const K: Axis = axis("K", Size::K, "its own");
pub(super) const M_OF_A: Axis = axis("M", Size::M, "the M of A");
pub(super) const M_OF_GRAD_C: Axis = axis("M", Size::M, "the M of grad_C");
pub(super) const N_OF_B: Axis = axis("N", Size::N, "the N of B");
pub(super) const N_OF_GRAD_C: Axis = axis("N", Size::N, "the N of grad_C");
pub(super) const K_OF_A: Axis = axis("K", Size::K, "the K of A");
pub(super) const K_OF_B: Axis = axis("K", Size::K, "the K of B");

pub(super) const fn matrix(text: &'static str, axes: &'static [Axis; 2]) -> Shape {
    Shape { text, axes }
}

pub(super) const HALF: DTypes = DTypes::Among(&[DType::F16, DType::BF16], "the dtypes of a GEMM");
pub(super) const OF_A: DTypes = DTypes::Of("A", "the dtype of A");
pub(super) const OF_GRAD_C: DTypes = DTypes::Of("grad_C", "the dtype of grad_C");

/// The rows and columns of a matrix that gives a call its sizes; `expected` names them, for example `(M, K)`.
pub(super) fn sizes(
    argument: &'static str,
    expected: &'static str,
    matrix: &TensorRef<'_>,
) -> Result<(i64, i64)> {
    match *matrix.shape() {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(Error::Rank { argument, expected, found: matrix.meta().shape }),
    }
}
