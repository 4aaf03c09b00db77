//! A tensor that owns host memory: what files, suites, tests and examples hold.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::host_storage::Storage;
use crate::rounding::{bf16_from_f64, f16_from_f64};
use crate::runs::Runs;
use crate::tensor::{DType, Dims, Element, Location, Meta, TensorMut, TensorRef};

/// A tensor in host memory: dense storage seen through a shape and strides.
///
/// The logical shape says what an axis means; the strides say where it lies in memory. A channel-last x is
/// made by allocating `(batch, seqlen, dim)` and calling [`HostTensor::permuted`] with `[0, 2, 1]`.
#[derive(Clone)]
pub struct HostTensor {
    storage: Storage,
    dtype: DType,
    offset: i64,
    shape: Dims,
    strides: Dims,
}

impl HostTensor {
    /// A dense tensor of zeros.
    ///
    /// # Errors
    /// If the shape has a negative size, too many axes, or more bytes than can be allocated.
    pub fn zeros(dtype: DType, shape: &[i64]) -> Result<Self> {
        Self::allocate(dtype, shape, Storage::zeroed)
    }

    /// A dense tensor on `memory`, which may have none of these bytes.
    pub(crate) fn allocate(
        dtype: DType,
        shape: &[i64],
        memory: impl FnOnce(usize) -> Option<Storage>,
    ) -> Result<Self> {
        let shape = Dims::new(shape)?;
        let strides = shape.contiguous_strides();
        // What a view of it has to be: strides may be too large where there is no element, too.
        let meta = Meta::new(dtype, &shape, &strides, Location::Host)?;
        let bytes = meta
            .element_count()
            .checked_mul(dtype.size() as i64)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or(Error::TooLarge { shape, dtype })?;
        // Refuses instead of aborting when the memory is not there; the pages themselves come zeroed.
        let storage = memory(bytes).ok_or(Error::OutOfMemory { shape, dtype, bytes })?;
        Ok(HostTensor { storage, dtype, offset: 0, shape, strides })
    }

    /// The memory alone, to be used again.
    pub(crate) fn into_storage(self) -> Storage {
        self.storage
    }

    /// True if the tensor's memory goes back to the system when it is dropped, and so is never anything else in this
    /// process: a pipe may then take the pages instead of a copy.
    pub fn has_own_pages(&self) -> bool {
        self.storage.has_own_pages()
    }

    /// A dense tensor with these elements in row-major order.
    ///
    /// # Errors
    /// If the shape is not that of `values`.
    pub fn from_slice<T: Element>(values: &[T], shape: &[i64]) -> Result<Self> {
        TensorRef::new(values, shape)?;
        let mut tensor = Self::zeros(T::DTYPE, shape)?;
        let count = tensor.element_count();
        tensor.storage_mut::<T>()[..count].copy_from_slice(&values[..count]);
        Ok(tensor)
    }

    /// A dense tensor whose elements are `value(i)`, `i` counting in row-major order, each rounded to `dtype`
    /// (to nearest, ties to even).
    ///
    /// # Errors
    /// As for [`HostTensor::zeros`].
    pub fn from_fn(dtype: DType, shape: &[i64], value: impl FnMut(usize) -> f64) -> Result<Self> {
        let mut tensor = Self::zeros(dtype, shape)?;
        tensor.assign(value);
        Ok(tensor)
    }

    /// The same storage through other strides, in elements.
    ///
    /// # Errors
    /// If the view would leave the storage.
    pub fn restrided(mut self, offset: i64, shape: &[i64], strides: &[i64]) -> Result<Self> {
        let available = self.bytes().len() / self.dtype.size();
        crate::tensor::check_view(self.dtype, offset, shape, strides, available)?;
        (self.offset, self.shape, self.strides) = (offset, Dims::new(shape)?, Dims::new(strides)?);
        Ok(self)
    }

    /// The same storage with its axes in another order.
    ///
    /// # Panics
    /// If `axes` is not a permutation of the tensor's axes.
    pub fn permuted(mut self, axes: &[usize]) -> Self {
        let view = self.view().permuted(axes);
        let (shape, strides) = (view.meta().shape, view.meta().strides);
        (self.shape, self.strides) = (shape, strides);
        self
    }

    /// Sets every byte of the storage, gaps between strided elements included. `0xff` makes every float a NaN:
    /// outputs are poisoned so before they are checked.
    pub fn fill_bytes(&mut self, byte: u8) {
        self.bytes_mut().fill(byte);
    }

    /// Sets every byte of the elements, and of nothing between them.
    pub fn fill_elements(&mut self, byte: u8) {
        let (size, first, runs, count) = (self.dtype.size(), self.offset, self.runs(), self.element_count());
        let bytes = self.bytes_mut();
        runs.for_each(0..count, |block| {
            let begin = |offset: i64| (first + offset) as usize * size;
            if block.is_dense() {
                bytes[begin(block.offset())..][..block.count() * size].fill(byte);
            } else {
                block.for_each(|_, offset| bytes[begin(offset)..][..size].fill(byte));
            }
        });
    }

    /// Sets every element to `value(i)`, `i` counting in row-major order, rounded to the dtype (to nearest, ties to
    /// even). What lies between the elements stays as it is.
    pub fn assign(&mut self, value: impl FnMut(usize) -> f64) {
        match self.dtype {
            DType::F32 => self.assign_as::<f32>(value, |v| v as f32),
            DType::F16 => self.assign_as::<f16>(value, f16_from_f64),
            DType::BF16 => self.assign_as::<bf16>(value, bf16_from_f64),
            DType::F64 => self.assign_as::<f64>(value, |v| v),
            DType::I32 => self.assign_as::<i32>(value, |v| v as i32),
            DType::I64 => self.assign_as::<i64>(value, |v| v as i64),
        }
    }

    /// As [`HostTensor::assign`], on all cores where there is enough to do.
    pub fn assign_in_parallel(&mut self, value: impl Fn(usize) -> f64 + Sync) {
        match self.dtype {
            DType::F32 => self.assign_pieces::<f32>(value, |v| v as f32),
            DType::F16 => self.assign_pieces::<f16>(value, f16_from_f64),
            DType::BF16 => self.assign_pieces::<bf16>(value, bf16_from_f64),
            DType::F64 => self.assign_pieces::<f64>(value, |v| v),
            DType::I32 | DType::I64 => self.assign(value),
        }
    }

    /// Replaces one element by a function of it, rounded to the dtype (to nearest, ties to even).
    ///
    /// # Panics
    /// If the coordinate lies outside of the shape.
    pub fn adjust(&mut self, coordinate: &[i64], change: impl Fn(f64) -> f64) {
        let view =
            coordinate.iter().enumerate().fold(self.view(), |view, (axis, &at)| view.narrow(axis, at, 1));
        let value = change(view.to_f64()[0]);
        let one = Self::from_fn(self.dtype, &[1], |_| value).expect("one element fits");
        let at: i64 =
            self.offset + coordinate.iter().zip(self.strides.iter()).map(|(i, step)| i * step).sum::<i64>();
        let size = self.dtype.size();
        self.bytes_mut()[at as usize * size..][..size].copy_from_slice(&one.bytes()[..size]);
    }

    fn assign_as<T: Element>(&mut self, mut value: impl FnMut(usize) -> f64, round: impl Fn(f64) -> T) {
        let (first, runs, count) = (self.offset, self.runs(), self.element_count());
        let storage = self.storage_mut::<T>();
        let mut values = Vec::new();
        let mut at = 0;
        runs.for_each(0..count, |block| {
            let elements = at..at + block.count();
            at = elements.end;
            if block.is_dense() {
                let run = &mut storage[(first + block.offset()) as usize..][..block.count()];
                run.iter_mut().zip(elements).for_each(|(element, i)| *element = round(value(i)));
            } else {
                // `value` is asked in row-major order, whatever order is good for the memory.
                values.clear();
                values.extend(elements.map(|i| round(value(i))));
                block.for_each(|i, offset| storage[(first + offset) as usize] = values[i]);
            }
        });
    }

    fn assign_pieces<T: Element>(
        &mut self,
        value: impl Fn(usize) -> f64 + Sync,
        round: impl Fn(f64) -> T + Sync,
    ) {
        const PIECE: usize = 1 << 14;
        let (first, count) = (self.offset as usize, self.element_count());
        if count < 4 * PIECE || !self.runs().is_dense() {
            return self.assign_as(value, round);
        }
        let elements = &mut self.storage_mut::<T>()[first..first + count];
        elements.par_chunks_mut(PIECE).enumerate().for_each(|(piece, elements)| {
            for (i, element) in elements.iter_mut().enumerate() {
                *element = round(value(piece * PIECE + i));
            }
        });
    }

    fn runs(&self) -> Runs {
        Runs::new(&self.shape, &self.strides)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Distance from the start of the storage to the first element, in elements.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Number of elements in the shape.
    pub fn element_count(&self) -> usize {
        self.shape.element_count().unwrap_or(0) as usize
    }

    /// All of the storage, as bytes; a dense tensor's elements come first, padding to 64 bytes last.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// All of the storage, as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut()
    }

    /// True when the elements fill the front of the storage in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let dense = self.shape.contiguous_strides();
        self.offset == 0
            && (self.shape.contains(&0)
                || (0..self.shape.len())
                    .all(|axis| self.shape[axis] == 1 || self.strides[axis] == dense[axis]))
    }

    /// A view to read.
    pub fn view(&self) -> TensorRef<'_> {
        let first = self.bytes().as_ptr().wrapping_offset(self.offset as isize * self.dtype.size() as isize);
        // SAFETY: `zeros` and `restrided` keep every element inside the storage, which lives and stays
        // unwritten as long as the borrow of `self`; storage is aligned for every dtype.
        let view =
            unsafe { TensorRef::from_raw(first, self.dtype, &self.shape, &self.strides, Location::Host) };
        view.expect("the shape was checked when the tensor was made")
    }

    /// A view to write.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let (dtype, shape, strides) = (self.dtype, self.shape, self.strides);
        let step = self.offset as isize * dtype.size() as isize;
        let first = self.bytes_mut().as_mut_ptr().wrapping_offset(step);
        // SAFETY: as in `view`; the exclusive borrow of `self` keeps everybody else away.
        let view = unsafe { TensorMut::from_raw(first, dtype, &shape, &strides, Location::Host) };
        view.expect("the shape was checked when the tensor was made")
    }

    /// The elements in row-major order, as f64 (exact for every dtype but i64 beyond 2⁵³).
    pub fn to_f64(&self) -> Vec<f64> {
        self.view().to_f64()
    }

    /// A dense copy with the same elements.
    ///
    /// # Errors
    /// If there is no memory for it, or no size that it could have: strides of 0 take none.
    pub fn to_contiguous(&self) -> Result<HostTensor> {
        let mut copy = Self::zeros(self.dtype, &self.shape)?;
        let size = self.dtype.size();
        let source = self.bytes();
        let mut at = 0;
        self.runs().for_each(0..self.element_count(), |block| {
            let begin = |offset: i64| (self.offset + offset) as usize * size;
            let target = &mut copy.bytes_mut()[at..at + block.count() * size];
            at += target.len();
            if block.is_dense() {
                target.copy_from_slice(&source[begin(block.offset())..][..target.len()]);
            } else {
                block.for_each(|i, offset| {
                    target[i * size..][..size].copy_from_slice(&source[begin(offset)..][..size]);
                });
            }
        });
        Ok(copy)
    }

    fn storage_mut<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.storage.bytes_mut())
    }
}

impl std::fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTensor({} {} strides {})", self.dtype, self.shape, self.strides)
    }
}

impl<'a> TensorRef<'a> {
    /// The bytes of one element. NaNs keep their payload here, which conversions do not promise.
    ///
    /// # Panics
    /// If the view is not of host memory or the coordinate lies outside of its shape.
    pub fn element_bytes(&self, coordinate: &[i64]) -> &'a [u8] {
        assert_eq!(self.location(), Location::Host, "only host memory can be read");
        assert_eq!(coordinate.len(), self.shape().len(), "a coordinate has a number for each axis");
        let inside = coordinate.iter().zip(self.shape()).all(|(at, size)| (0..*size).contains(at));
        assert!(inside, "{coordinate:?} lies outside of {:?}", self.shape());
        let offset: i64 = coordinate.iter().zip(self.strides()).map(|(at, stride)| at * stride).sum();
        let size = self.dtype().size();
        // SAFETY: the coordinate is that of an element of this host view, which is initialised and stays
        // unwritten for 'a.
        unsafe { std::slice::from_raw_parts(self.pointer().offset(offset as isize * size as isize), size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permuted_tensor_reads_in_logical_order() {
        let tensor = HostTensor::from_fn(DType::F32, &[2, 3], |i| i as f64).unwrap().permuted(&[1, 0]);
        assert_eq!(tensor.shape(), [3, 2]);
        assert_eq!(tensor.to_f64(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert!(!tensor.is_contiguous());
        assert_eq!(tensor.to_contiguous().unwrap().to_f64(), tensor.to_f64());
    }

    #[test]
    fn strides_that_are_too_large_are_refused_without_elements() {
        let error = HostTensor::zeros(DType::F32, &[1 << 40, 1 << 40, 0]).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        assert!(HostTensor::zeros(DType::F32, &[1 << 40, 0, 4]).unwrap().to_f64().is_empty());
    }

    #[test]
    fn negative_strides_reverse() {
        let tensor =
            HostTensor::from_fn(DType::I32, &[4], |i| i as f64).unwrap().restrided(3, &[4], &[-1]).unwrap();
        assert_eq!(tensor.to_f64(), [3.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn elements_are_set_and_gaps_are_left() {
        let mut tensor = HostTensor::zeros(DType::I32, &[8]).unwrap();
        tensor.fill_bytes(0xff);
        let mut tensor = tensor.restrided(6, &[2, 2], &[-4, -2]).unwrap();
        tensor.assign(|i| i as f64);
        assert_eq!(tensor.to_f64(), [0.0, 1.0, 2.0, 3.0]);
        let storage: &[i32] = bytemuck::cast_slice(tensor.bytes());
        assert_eq!(storage[..8], [3, -1, 2, -1, 1, -1, 0, -1]);
        tensor.fill_elements(0xff);
        assert!(tensor.bytes().iter().all(|&byte| byte == 0xff));
    }

    #[test]
    fn a_view_may_not_leave_the_storage() {
        let tensor = HostTensor::zeros(DType::F64, &[8]).unwrap();
        let error = tensor.restrided(0, &[3, 3], &[3, 1]).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds { lowest: 0, highest: 8, available: 8, .. }), "{error}");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    fn zeros_that_nobody_touches_take_no_memory() {
        let resident = || -> u64 {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let before = resident();
        let tensor = HostTensor::zeros(DType::F32, &[1 << 30]).unwrap();
        assert_eq!(tensor.bytes()[tensor.bytes().len() - 1], 0);
        // Tests beside this one take some, too: far less than the 4 GiB of this tensor.
        assert!(resident() < before + (2 << 30), "{} bytes more", resident() - before);
    }

    #[test]
    fn a_copy_that_has_no_memory_is_an_error() {
        // One element, seen so many times.
        let many = HostTensor::zeros(DType::F32, &[1]).unwrap().restrided(0, &[1 << 58], &[0]).unwrap();
        let error = many.to_contiguous().unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { bytes, .. } if bytes == 1 << 60), "{error}");
        let expected =
            "no memory for a tensor of shape (288230376151711744,) and dtype f32, 1152921504606846976 bytes";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = HostTensor::zeros(DType::F64, &[1 << 40, 1 << 20]).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    }
}
