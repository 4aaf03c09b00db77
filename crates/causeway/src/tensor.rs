//! Tensor views: a pointer, a dtype, a shape and strides. No ownership, no copies.
//!
//! Strides count **elements**, may be negative or zero, and offsets are 64-bit throughout.
//! A view made from a slice is checked against it once; views of foreign memory (a GPU's, or another
//! framework's) are made with the `unsafe` constructors, whose callers vouch for it.

use std::fmt;
use std::marker::PhantomData;

pub use crate::dims::{Dims, Location, MAX_RANK, TooManyAxes};
pub use crate::dtype::{DType, Element};
use crate::error::{Error, Result};

/// Shape, strides, dtype and place: what both kinds of view share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Dims,
    /// Distance between neighbours along each axis, in elements.
    pub strides: Dims,
    /// Where the memory is.
    pub location: Location,
}

impl Meta {
    /// Of a tensor whose elements, and the bytes from the first of them in memory to the last, can be counted.
    ///
    /// # Errors
    /// If shape and strides are not a valid pair.
    pub fn new(dtype: DType, shape: &[i64], strides: &[i64], location: Location) -> Result<Self> {
        if shape.len() != strides.len() || shape.len() > MAX_RANK {
            return Err(Error::AxisCount { shape: shape.len(), strides: strides.len() });
        }
        let (shape, strides) = (Dims::new(shape)?, Dims::new(strides)?);
        if shape.values.into_iter().fold(0, |bits, size| bits | size) < 0 {
            return Err(Error::NegativeSize { shape });
        }
        let meta = Meta { dtype, shape, strides, location };
        let bytes = || {
            let (lowest, highest) = meta.extent()?;
            highest.checked_sub(lowest)?.checked_add(1)?.checked_mul(dtype.size() as i64)
        };
        if shape.element_count().is_none() || bytes().is_none() {
            return Err(Error::TooLarge { shape, dtype });
        }
        Ok(meta)
    }

    /// Lowest and highest element offset that the view touches, relative to its first element; None where one does not fit.
    /// Meaningless for an empty view.
    fn extent(&self) -> Option<(i64, i64)> {
        let (mut lowest, mut highest) = (0i64, 0i64);
        // Axes that are not there have size and stride 0.
        for (size, stride) in self.shape.values.into_iter().zip(self.strides.values) {
            let reach = stride.checked_mul((size - 1).max(0))?;
            let end = if reach < 0 { &mut lowest } else { &mut highest };
            *end = end.checked_add(reach)?;
        }
        Some((lowest, highest))
    }

    /// Number of elements.
    pub fn element_count(&self) -> i64 {
        // `new` has shown that it fits. A size of 0 makes it 0, whatever the others come to.
        self.shape.iter().fold(1, |product, &size| product.wrapping_mul(size))
    }

    /// True when there is no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// True when no two elements can share an address.
    ///
    /// Sufficient, not necessary: with the axes in order of stride, each stride must step over all that the
    /// smaller ones reach. Layouts that interleave without that property are refused as outputs.
    pub fn is_injective(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        // For each axis, how far those of smaller strides reach; of equal strides, one steps onto the other. Reaches fit, as `checked` has
        // shown, and so does their sum.
        let axes =
            || self.strides.iter().zip(self.shape.iter()).enumerate().filter(|(_, (_, size))| **size > 1);
        axes().all(|(at, (stride, _))| {
            let stride = stride.unsigned_abs();
            let mut reach = 0;
            for (other, (step, size)) in axes() {
                let step = step.unsigned_abs();
                if step < stride {
                    reach += step * (size - 1) as u64;
                } else if step == stride && other != at {
                    return false;
                }
            }
            stride > reach
        })
    }

    /// A part of an axis, and how many bytes after the whole's start it begins.
    fn narrow(mut self, axis: usize, start: i64, count: i64) -> (Self, isize) {
        let size = self.shape[axis];
        assert!(start >= 0 && count >= 0 && count <= size - start, "a part lies inside its axis");
        self.shape.values[axis] = count;
        // The offset is that of an element unless the part is empty, and then it is never followed.
        (self, (start * self.strides[axis] * self.dtype.size() as i64) as isize)
    }

    fn without(self, axis: usize) -> Self {
        let others = |dims: &Dims| {
            let kept: Vec<i64> =
                dims.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &d)| d).collect();
            Dims::new(&kept).expect("fewer axes than before")
        };
        Meta { shape: others(&self.shape), strides: others(&self.strides), ..self }
    }

    fn check_slice(&self, offset: i64, available: usize) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let (lowest, highest) = self.extent().expect("`new` has shown that it fits");
        let [lowest, highest] = [lowest, highest].map(|end| i128::from(end) + i128::from(offset));
        if lowest < 0 || highest >= available as i128 {
            return Err(Error::OutOfBounds {
                shape: self.shape,
                strides: self.strides,
                offset,
                lowest,
                highest,
                available,
            });
        }
        Ok(())
    }
}

/// A view of memory that is only read.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    pointer: *const u8,
    meta: Meta,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a `TensorRef` is a shared borrow of plain numbers (`Element` is `Pod + Send + Sync`).
unsafe impl Send for TensorRef<'_> {}
// SAFETY: as above; it has no interior mutability.
unsafe impl Sync for TensorRef<'_> {}

/// A view of memory that is written.
pub struct TensorMut<'a> {
    pointer: *mut u8,
    meta: Meta,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `TensorMut` is an exclusive borrow of plain numbers.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: `&TensorMut` gives read access only.
unsafe impl Sync for TensorMut<'_> {}

macro_rules! view_methods {
    ($View:ident, $pointer:ty) => {
        /// Address of element `[0, 0, …]`; dangling when the view is empty.
        pub fn pointer(&self) -> $pointer {
            self.pointer
        }

        /// Shape, strides, dtype and location.
        pub fn meta(&self) -> &Meta {
            &self.meta
        }

        /// Element type.
        pub fn dtype(&self) -> DType {
            self.meta.dtype
        }

        /// Sizes.
        pub fn shape(&self) -> &[i64] {
            &self.meta.shape
        }

        /// Strides in elements.
        pub fn strides(&self) -> &[i64] {
            &self.meta.strides
        }

        /// Where the memory is.
        pub fn location(&self) -> Location {
            self.meta.location
        }

        /// As `from_raw`, of a [`Meta`] that has been made before.
        ///
        /// # Safety
        /// As for `from_raw`; shape and strides must be those of [`Meta::new`].
        #[inline]
        pub unsafe fn from_meta(pointer: $pointer, meta: Meta) -> Self {
            $View { pointer, meta, memory: PhantomData }
        }

        /// The same memory with its axes in another order, for example `[0, 2, 1]` to swap the last two.
        ///
        /// # Panics
        /// If `axes` is not a permutation of the view's axes.
        pub fn permuted(self, axes: &[usize]) -> Self {
            $View { meta: permuted(&self.meta, axes), ..self }
        }

        /// The part of the view that lies at `start .. start + count` of one axis.
        ///
        /// # Panics
        /// If there is no such axis, or the range leaves it.
        pub fn narrow(self, axis: usize, start: i64, count: i64) -> Self {
            let (meta, offset) = self.meta.narrow(axis, start, count);
            $View { meta, pointer: self.pointer.wrapping_offset(offset), ..self }
        }

        /// One index of an axis, which the view no longer has.
        ///
        /// # Panics
        /// If there is no such axis, or it has no such index.
        pub fn select(self, axis: usize, at: i64) -> Self {
            let part = self.narrow(axis, at, 1);
            $View { meta: part.meta.without(axis), ..part }
        }
    };
}

impl<'a> TensorRef<'a> {
    view_methods!(TensorRef, *const u8);

    /// A dense row-major view of a whole slice.
    ///
    /// # Errors
    /// If the shape has a negative size, too many axes, or more elements than the slice.
    pub fn new<T: Element>(data: &'a [T], shape: &[i64]) -> Result<Self> {
        let strides = Dims::new(shape)?.contiguous_strides();
        Self::strided(data, 0, shape, &strides)
    }

    /// A view with its first element at `offset` and the given strides, in elements.
    ///
    /// # Errors
    /// As for [`TensorRef::new`], or if any element lies outside the slice.
    pub fn strided<T: Element>(data: &'a [T], offset: i64, shape: &[i64], strides: &[i64]) -> Result<Self> {
        let meta = Meta::new(T::DTYPE, shape, strides, Location::Host)?;
        meta.check_slice(offset, data.len())?;
        let first = if meta.is_empty() { 0 } else { offset as usize };
        // SAFETY: `check_slice` has shown that `first` lies in the slice. The pointer is derived from the
        // whole slice, so negative strides may step back from it.
        let pointer = unsafe { data.as_ptr().add(first) }.cast();
        Ok(TensorRef { pointer, meta, memory: PhantomData })
    }

    /// A view of memory that this crate does not know: a GPU's, or another library's.
    ///
    /// # Errors
    /// If shape and strides are not a valid pair.
    ///
    /// # Safety
    /// For `'a`, every element that shape and strides reach from `pointer` must be initialised memory of
    /// `location`, aligned to the dtype, and written by nobody.
    #[inline]
    pub unsafe fn from_raw(
        pointer: *const u8,
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
        location: Location,
    ) -> Result<Self> {
        let meta = Meta::new(dtype, shape, strides, location)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::from_meta(pointer, meta) })
    }
}

impl<'a> TensorMut<'a> {
    view_methods!(TensorMut, *mut u8);

    /// A dense row-major view of a whole slice.
    ///
    /// # Errors
    /// If the shape has a negative size, too many axes, or more elements than the slice.
    pub fn new<T: Element>(data: &'a mut [T], shape: &[i64]) -> Result<Self> {
        let strides = Dims::new(shape)?.contiguous_strides();
        Self::strided(data, 0, shape, &strides)
    }

    /// A view with its first element at `offset` and the given strides, in elements.
    ///
    /// # Errors
    /// As for [`TensorMut::new`], or if any element lies outside the slice.
    pub fn strided<T: Element>(
        data: &'a mut [T],
        offset: i64,
        shape: &[i64],
        strides: &[i64],
    ) -> Result<Self> {
        let meta = Meta::new(T::DTYPE, shape, strides, Location::Host)?;
        meta.check_slice(offset, data.len())?;
        let first = if meta.is_empty() { 0 } else { offset as usize };
        // SAFETY: `check_slice` has shown that `first` lies in the slice. The pointer is derived from the
        // whole slice, so negative strides may step back from it.
        let pointer = unsafe { data.as_mut_ptr().add(first) }.cast();
        Ok(TensorMut { pointer, meta, memory: PhantomData })
    }

    /// A view of memory that this crate does not know: a GPU's, or another library's.
    ///
    /// # Errors
    /// If shape and strides are not a valid pair.
    ///
    /// # Safety
    /// For `'a`, every element that shape and strides reach from `pointer` must be memory of `location`,
    /// aligned to the dtype, and neither read nor written by anybody else.
    #[inline]
    pub unsafe fn from_raw(
        pointer: *mut u8,
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
        location: Location,
    ) -> Result<Self> {
        let meta = Meta::new(dtype, shape, strides, location)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::from_meta(pointer, meta) })
    }

    /// Parts of the view side by side along an axis, of so many places each: the channels of q, k and v, say.
    ///
    /// # Panics
    /// If there is no such axis, if the parts leave it, or if elements of the view share memory.
    pub fn split(self, axis: usize, counts: &[i64]) -> Vec<Self> {
        assert!(self.meta.is_injective(), "parts of a view lie apart");
        let mut end = 0;
        let parts = counts.iter().map(|&count| {
            end += count;
            let (meta, offset) = self.meta.narrow(axis, end - count, count);
            TensorMut { meta, pointer: self.pointer.wrapping_offset(offset), memory: PhantomData }
        });
        parts.collect()
    }

    /// A shared view of the same memory, for as long as this one is not used.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef { pointer: self.pointer, meta: self.meta, memory: PhantomData }
    }

    /// A shorter exclusive borrow of the same memory.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut { pointer: self.pointer, meta: self.meta, memory: PhantomData }
    }
}

/// Whether a view of these strides stays inside `available` elements.
pub(crate) fn check_view(
    dtype: DType,
    offset: i64,
    shape: &[i64],
    strides: &[i64],
    available: usize,
) -> Result<()> {
    Meta::new(dtype, shape, strides, Location::Host)?.check_slice(offset, available)
}

fn permuted(meta: &Meta, axes: &[usize]) -> Meta {
    let mut seen = [false; MAX_RANK];
    assert_eq!(axes.len(), meta.shape.len(), "a permutation names every axis once");
    let mut out = *meta;
    for (to, &from) in axes.iter().enumerate() {
        assert!(from < axes.len() && !seen[from], "a permutation names every axis once");
        seen[from] = true;
        out.shape.values[to] = meta.shape[from];
        out.strides.values[to] = meta.strides[from];
    }
    out
}

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("TensorRef", &self.meta, f)
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("TensorMut", &self.meta, f)
    }
}

fn describe(name: &str, meta: &Meta, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name}({} {} strides {} on {})", meta.dtype, meta.shape, meta.strides, meta.location)
}
