//! A matrix product as planners see it.

use crate::backend::gpu::launch::Traffic;
use crate::gemm::{Algorithm, Forward, GradA, GradAB, GradB, Sizes};
use crate::operation::View;
use crate::tensor::{DType, TensorMut, TensorRef};

/// A matrix in memory. Its sizes are the [`Problem`]'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Address of the first element.
    pub address: u64,
    /// Elements from one row to the next; 0 where there is at most one row.
    pub row_stride: i64,
    /// Elements from one column to the next; 0 where there is at most one column.
    pub column_stride: i64,
}

impl Matrix {
    fn read(tensor: &TensorRef<'_>) -> Self {
        Self::new(View::of(tensor))
    }

    fn written(tensor: &TensorMut<'_>) -> Self {
        Self::new(View::of_mut(tensor))
    }

    fn new(view: View<'_>) -> Self {
        Matrix { address: view.address, row_stride: view.stride(0), column_stride: view.stride(1) }
    }

    /// The same memory with rows and columns swapped.
    pub fn transposed(self) -> Self {
        Matrix { address: self.address, row_stride: self.column_stride, column_stride: self.row_stride }
    }
}

/// `result[i,j] = Σ_r left[i,r] · right[r,j]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// F16 or BF16, of all three matrices.
    pub dtype: DType,
    /// Rows of left and result.
    pub rows: i64,
    /// Columns of right and result.
    pub columns: i64,
    /// Columns of left, rows of right: the terms of each sum. May be 0; sums are then zero.
    pub reduction: i64,
    /// `(rows, reduction)`.
    pub left: Matrix,
    /// `(reduction, columns)`.
    pub right: Matrix,
    /// `(rows, columns)`.
    pub result: Matrix,
}

impl Problem {
    /// `C = A · B`, of a validated call.
    pub fn forward(op: &Forward<'_>, sizes: &Sizes) -> Self {
        Problem {
            algorithm: op.algorithm,
            dtype: op.a.dtype(),
            rows: sizes.m,
            columns: sizes.n,
            reduction: sizes.k,
            left: Matrix::read(&op.a),
            right: Matrix::read(&op.b),
            result: Matrix::written(&op.c),
        }
    }

    /// `grad_A = grad_C · Bᵀ`, of a validated call.
    pub fn grad_a(op: &GradA<'_>, sizes: &Sizes) -> Self {
        Self::of_grad_a(op.algorithm, sizes, &op.grad_c, &op.b, &op.grad_a)
    }

    /// `grad_B = Aᵀ · grad_C`, of a validated call.
    pub fn grad_b(op: &GradB<'_>, sizes: &Sizes) -> Self {
        Self::of_grad_b(op.algorithm, sizes, &op.grad_c, &op.a, &op.grad_b)
    }

    /// Both gradients of a validated call.
    pub fn gradients(op: &GradAB<'_>, sizes: &Sizes) -> [Self; 2] {
        [
            Self::of_grad_a(op.algorithm, sizes, &op.grad_c, &op.b, &op.grad_a),
            Self::of_grad_b(op.algorithm, sizes, &op.grad_c, &op.a, &op.grad_b),
        ]
    }

    fn of_grad_a(
        algorithm: Algorithm,
        sizes: &Sizes,
        grad_c: &TensorRef<'_>,
        b: &TensorRef<'_>,
        grad_a: &TensorMut<'_>,
    ) -> Self {
        Problem {
            algorithm,
            dtype: grad_c.dtype(),
            rows: sizes.m,
            columns: sizes.k,
            reduction: sizes.n,
            left: Matrix::read(grad_c),
            right: Matrix::read(b).transposed(),
            result: Matrix::written(grad_a),
        }
    }

    fn of_grad_b(
        algorithm: Algorithm,
        sizes: &Sizes,
        grad_c: &TensorRef<'_>,
        a: &TensorRef<'_>,
        grad_b: &TensorMut<'_>,
    ) -> Self {
        Problem {
            algorithm,
            dtype: grad_c.dtype(),
            rows: sizes.k,
            columns: sizes.n,
            reduction: sizes.m,
            left: Matrix::read(a).transposed(),
            right: Matrix::read(grad_c),
            result: Matrix::written(grad_b),
        }
    }

    /// `resultᵀ = rightᵀ · leftᵀ`: the same numbers at the same addresses. The factors of a term change places,
    /// which changes no bit of a sum.
    pub fn transposed(&self) -> Self {
        Problem {
            rows: self.columns,
            columns: self.rows,
            left: self.right.transposed(),
            right: self.left.transposed(),
            result: self.result.transposed(),
            ..*self
        }
    }

    /// The problem or its transpose: whichever has neighbouring columns of the result side by side in memory, or
    /// the closer together.
    pub fn with_row_major_result(&self) -> Self {
        let reach = |stride: i64| if stride == 0 { u64::MAX } else { stride.unsigned_abs() };
        if reach(self.result.row_stride) < reach(self.result.column_stride) {
            self.transposed()
        } else {
            *self
        }
    }

    /// Tiles of so many rows and columns over the result.
    pub(super) fn tiles(&self, [rows, columns]: [u32; 2]) -> u64 {
        let count = |size: i64, tile: u32| (size as u64).div_ceil(u64::from(tile));
        count(self.rows, rows).saturating_mul(count(self.columns, columns))
    }

    /// Both operands are read, and the result is written.
    pub(in crate::backend::gpu) fn traffic(&self) -> Traffic {
        let (rows, columns) = (self.rows as u64, self.columns as u64);
        // Operands that lie in one place may have any number of elements.
        let bytes = |elements: u64| elements.saturating_mul(self.dtype.size() as u64);
        let read = (rows + columns).saturating_mul(self.reduction as u64);
        Traffic { read: bytes(read), written: bytes(rows * columns) }
    }
}
