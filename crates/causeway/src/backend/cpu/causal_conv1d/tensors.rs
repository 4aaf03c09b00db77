//! Tensors as kernels see them: a typed pointer and strides, shared between threads.
//!
//! Addresses are formed with wrapping arithmetic, so that forming one is safe; whoever reads or writes there
//! shows that the indices lie in the tensor. `validate` has shown that the tensors are as large as the sizes.

use std::ops::Range;

use half::{bf16, f16};

use crate::backend::cpu::simd::{Accumulator, Number, Part, Simd};
use crate::rounding::{bf16_from_f64, f16_from_f64};
use crate::tensor::{DType, TensorMut, TensorRef};

/// A tensor that is read.
#[derive(Clone, Copy)]
pub(super) struct Source<T, const RANK: usize> {
    pointer: *const T,
    pub strides: [isize; RANK],
}

// SAFETY: a `Source` is made from a `TensorRef`, a shared borrow of plain numbers, or of memory that nobody writes to meanwhile.
unsafe impl<T: Sync, const RANK: usize> Sync for Source<T, RANK> {}

impl<T, const RANK: usize> Source<T, RANK> {
    /// The caller has matched `T` with the view's dtype. Axes past the view's have size 1.
    pub fn new(view: &TensorRef<'_>) -> Self {
        Source { pointer: view.pointer().cast(), strides: strides(view.strides()) }
    }

    /// Of memory that kernels share among themselves.
    pub fn of(pointer: *const T, strides: [isize; RANK]) -> Self {
        Source { pointer, strides }
    }

    #[inline(always)]
    pub fn at(&self, index: [i64; RANK]) -> *const T {
        self.pointer.wrapping_offset(offset(&self.strides, index))
    }
}

/// A tensor that is written.
#[derive(Clone, Copy)]
pub(super) struct Target<T, const RANK: usize> {
    pointer: *mut T,
    pub strides: [isize; RANK],
}

// SAFETY: a `Target` is made from a `TensorMut`, an exclusive borrow of plain numbers whose elements do not
// share addresses; tasks write to disjoint elements.
unsafe impl<T: Send, const RANK: usize> Sync for Target<T, RANK> {}

impl<T, const RANK: usize> Target<T, RANK> {
    /// The caller has matched `T` with the view's dtype. Axes past the view's have size 1.
    pub fn new(view: &mut TensorMut<'_>) -> Self {
        Target { pointer: view.pointer().cast(), strides: strides(view.strides()) }
    }

    /// Of memory that kernels share among themselves.
    pub fn of(pointer: *mut T, strides: [isize; RANK]) -> Self {
        Target { pointer, strides }
    }

    #[inline(always)]
    pub fn at(&self, index: [i64; RANK]) -> *mut T {
        self.pointer.wrapping_offset(offset(&self.strides, index))
    }
}

/// Weight or bias: of any floating dtype, whatever the kernel's.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pointer: *const u8,
    dtype: DType,
    strides: [isize; 2],
}

// SAFETY: a `Parameter` is made from a `TensorRef`, a shared borrow of plain numbers.
unsafe impl Sync for Parameter {}

impl Parameter {
    pub fn new(view: &TensorRef<'_>) -> Self {
        Parameter { pointer: view.pointer(), dtype: view.dtype(), strides: strides(view.strides()) }
    }

    /// The tensor, if its elements are of type `T`.
    pub fn of_type<T: Number>(&self) -> Option<Source<T, 2>> {
        (self.dtype == T::DTYPE).then(|| Source { pointer: self.pointer.cast(), strides: self.strides })
    }

    /// One element; of a NaN no more than that it is one, as [`Lanes::store`] wants it.
    ///
    /// [`Lanes::store`]: crate::backend::cpu::simd::Lanes::store
    ///
    /// # Safety
    /// The index lies in the tensor.
    #[inline(never)]
    pub unsafe fn read<A: Number>(&self, channel: i64, tap: i64) -> A {
        let mut element = A::ZERO;
        let read = ReadChannels {
            parameter: self,
            channels: channel..channel + 1,
            tap,
            values: std::slice::from_mut(&mut element),
            stride: 1,
        };
        read.run_here();
        element
    }

    /// As [`Self::read`], of each of some channels, to values that are `stride` apart; looks at the dtype once. One function for all
    /// kernels of a level: inlined into each of them, for four dtypes, it would be a good part of what there is to compile.
    ///
    /// # Safety
    /// The indices lie in the tensor.
    #[inline(always)]
    pub unsafe fn read_channels<S: Simd>(
        &self,
        simd: S,
        channels: Range<i64>,
        tap: i64,
        values: &mut [S::Scalar],
        stride: usize,
    ) {
        simd.apart(ReadChannels { parameter: self, channels, tap, values, stride });
    }
}

/// What [`Parameter::read_channels`] was called with, and its caller's promise.
struct ReadChannels<'a, A> {
    parameter: &'a Parameter,
    channels: Range<i64>,
    tap: i64,
    values: &'a mut [A],
    stride: usize,
}

impl<S: Simd> Part<S> for ReadChannels<'_, S::Scalar> {
    #[inline(always)]
    fn run(self, _: S) {
        self.run_here();
    }
}

impl<A: Number> ReadChannels<'_, A> {
    #[inline(always)]
    fn run_here(self) {
        // SAFETY: the promise; the dtype is the view's.
        unsafe {
            match self.parameter.dtype {
                DType::F16 => self.read_typed::<f16>(),
                DType::BF16 => self.read_typed::<bf16>(),
                DType::F64 => self.read_typed::<f64>(),
                _ => self.read_typed::<f32>(),
            }
        }
    }

    /// # Safety
    /// The indices lie in the tensor, whose elements are of type `P`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn read_typed<P: Number>(self) {
        let ReadChannels { parameter, channels, tap, values, stride } = self;
        let read = |channel| {
            let offset = offset(&parameter.strides, [channel, tap]);
            // SAFETY: the caller's promise.
            let value = unsafe { *parameter.pointer.cast::<P>().wrapping_offset(offset) }.widen().to_f64();
            A::from_f64(if value.is_nan() { f64::NAN } else { value })
        };
        let count = (channels.end - channels.start) as usize;
        if stride == 1 {
            // In vectors.
            let values = &mut values[..count];
            for i in 0..count {
                values[i] = read(channels.start + i as i64);
            }
            return;
        }
        for i in 0..count {
            values[i * stride] = read(channels.start + i as i64);
        }
    }
}

/// dweight or dbias.
#[derive(Clone, Copy)]
pub(super) struct ParameterMut {
    pointer: *mut u8,
    dtype: DType,
    strides: [isize; 2],
}

// SAFETY: as for `Target`.
unsafe impl Sync for ParameterMut {}

impl ParameterMut {
    pub fn new(view: &mut TensorMut<'_>) -> Self {
        let strides = strides(view.strides());
        ParameterMut { pointer: view.pointer(), dtype: view.dtype(), strides }
    }

    /// Rounds `value` to the dtype, once.
    ///
    /// # Safety
    /// The index lies in the tensor, and nobody else uses that element meanwhile.
    pub unsafe fn write(&self, channel: i64, tap: i64, value: f64) {
        let offset = offset(&self.strides, [channel, tap]);
        // SAFETY: the caller's promise; the dtype is the view's.
        unsafe {
            match self.dtype {
                DType::F16 => *self.pointer.cast::<f16>().wrapping_offset(offset) = f16_from_f64(value),
                DType::BF16 => *self.pointer.cast::<bf16>().wrapping_offset(offset) = bf16_from_f64(value),
                DType::F64 => *self.pointer.cast::<f64>().wrapping_offset(offset) = value,
                _ => *self.pointer.cast::<f32>().wrapping_offset(offset) = value as f32,
            }
        }
    }
}

/// A missing axis has size 1, so that its stride does not matter.
fn strides<const RANK: usize>(strides: &[i64]) -> [isize; RANK] {
    std::array::from_fn(|axis| strides.get(axis).map_or(0, |&stride| stride as isize))
}

#[inline(always)]
fn offset<const RANK: usize>(strides: &[isize; RANK], index: [i64; RANK]) -> isize {
    let mut offset = 0isize;
    for axis in 0..RANK {
        // Wrapping: the stride along an axis of size 1 may be anything, and is then multiplied by 0.
        offset = offset.wrapping_add(strides[axis].wrapping_mul(index[axis] as isize));
    }
    offset
}
