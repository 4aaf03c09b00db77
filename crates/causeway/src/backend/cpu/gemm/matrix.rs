//! Strided matrices in host memory, as kernels see them.

use std::marker::PhantomData;
use std::ops::Range;

use super::half::Half;
use super::vector::{Part, Vector};
use crate::tensor::{TensorMut, TensorRef};

/// A matrix that is read.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    first: *const T,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: isize,
    pub column_stride: isize,
    memory: PhantomData<&'a [T]>,
}

// SAFETY: a `Matrix` is a shared borrow of plain numbers.
unsafe impl<T: Half> Send for Matrix<'_, T> {}
// SAFETY: as above; it has no interior mutability.
unsafe impl<T: Half> Sync for Matrix<'_, T> {}

impl<'a, T: Half> Matrix<'a, T> {
    /// A validated two-dimensional view of host memory, of dtype `T`.
    pub fn new(view: &TensorRef<'a>) -> Self {
        debug_assert_eq!(view.dtype(), T::DTYPE);
        // Of one row, or column, any stride is valid, and none is used. Zero can be multiplied.
        let stride = |axis: usize| if view.shape()[axis] > 1 { view.strides()[axis] as isize } else { 0 };
        Matrix {
            first: view.pointer().cast(),
            rows: view.shape()[0] as usize,
            columns: view.shape()[1] as usize,
            row_stride: stride(0),
            column_stride: stride(1),
            memory: PhantomData,
        }
    }

    /// The same memory with rows and columns swapped.
    pub fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Address of an element that exists.
    pub fn at(&self, row: usize, column: usize) -> *const T {
        debug_assert!(row < self.rows && column < self.columns);
        self.first.wrapping_offset(row as isize * self.row_stride + column as isize * self.column_stride)
    }
}

/// A matrix that is written, by several threads at once: each writes elements that no other one touches.
pub struct MatrixMut<'a, T> {
    first: *mut T,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: isize,
    pub column_stride: isize,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: a `MatrixMut` is a part of an exclusive borrow of plain numbers. It hands out addresses only; who writes through them vouches
// for the element being its own.
unsafe impl<T: Half> Send for MatrixMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Half> Sync for MatrixMut<'_, T> {}

impl<'a, T: Half> MatrixMut<'a, T> {
    /// A validated two-dimensional view of host memory, of dtype `T`.
    pub fn new(view: &'a mut TensorMut<'_>) -> Self {
        debug_assert_eq!(view.dtype(), T::DTYPE);
        MatrixMut {
            first: view.pointer().cast(),
            rows: view.shape()[0] as usize,
            columns: view.shape()[1] as usize,
            row_stride: view.strides()[0] as isize,
            column_stride: view.strides()[1] as isize,
            memory: PhantomData,
        }
    }

    /// The same memory with rows and columns swapped.
    pub fn transposed(self) -> Self {
        MatrixMut {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Address of an element that exists.
    pub fn at(&self, row: usize, column: usize) -> *mut T {
        debug_assert!(row < self.rows && column < self.columns);
        self.first.wrapping_offset(row as isize * self.row_stride + column as isize * self.column_stride)
    }

    /// The same elements with rows and columns swapped.
    pub fn as_transposed(&self) -> MatrixMut<'_, T> {
        MatrixMut {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..*self
        }
    }

    /// Rounds rows of sums, `stride` values apart, into `columns` of some rows.
    ///
    /// # Safety
    /// These elements exist and are the caller's alone; `sums` holds as many rows; the processor has V's level.
    #[inline(always)]
    pub unsafe fn store_rows<V: Vector>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: &[f32],
        stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { V::apart(StoreRows { output: self, rows, columns, sums, stride }) }
    }

    /// Rounds `sums` into `columns` of a row.
    ///
    /// # Safety
    /// These elements exist and are the caller's alone; `sums` holds as many values; the processor has V's level.
    #[inline(always)]
    pub unsafe fn store_row<V: Vector>(&self, row: usize, columns: Range<usize>, sums: &[f32]) {
        let count = columns.len();
        let vectors = if self.column_stride == 1 { count / V::LANES } else { 0 };
        // SAFETY: every index is below `count`; vectors are written where neighbours are neighbours in memory.
        unsafe {
            for vector in 0..vectors {
                let at = vector * V::LANES;
                T::store(self.at(row, columns.start + at), V::load(sums.as_ptr().add(at)));
            }
            for (at, &sum) in sums[..count].iter().enumerate().skip(vectors * V::LANES) {
                self.at(row, columns.start + at).write(T::round(sum));
            }
        }
    }
}

/// What [`MatrixMut::store_rows`] was called with.
struct StoreRows<'a, T> {
    output: &'a MatrixMut<'a, T>,
    rows: Range<usize>,
    columns: Range<usize>,
    sums: &'a [f32],
    stride: usize,
}

impl<V: Vector, T: Half> Part<V> for StoreRows<'_, T> {
    #[inline(always)]
    unsafe fn run(self) {
        let StoreRows { output, rows, columns, sums, stride } = self;
        for (row, sums) in rows.zip(sums.chunks_exact(stride)) {
            // SAFETY: the caller's promise.
            unsafe { output.store_row::<V>(row, columns.clone(), sums) };
        }
    }
}
