//! What a file says about a tensor before its elements are read, and the checks that make it true.

use super::error::FileCause;
use crate::host_tensor::HostTensor;
use crate::spares::Spares;
use crate::tensor::{DType, MAX_RANK};

/// A tensor's dtype and shape, shown to have a size in bytes that fits 63 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<i64>,
}

impl Entry {
    /// # Errors
    /// If there are too many axes, or the size in bytes overflows.
    pub(super) fn checked(dtype: DType, sizes: &[u64]) -> Result<Self, FileCause> {
        if sizes.len() > MAX_RANK {
            return Err(FileCause::TooManyAxes { found: sizes.len() });
        }
        let overflow = || FileCause::SizeOverflow { shape: format_shape(sizes) };
        let shape: Vec<i64> = sizes
            .iter()
            .map(|&size| i64::try_from(size))
            .collect::<Result<_, _>>()
            .map_err(|_| overflow())?;
        // A size of 0 empties the tensor, but the other sizes still have to be a possible shape.
        let count = shape.iter().try_fold(1i64, |product, &size| product.checked_mul(size.max(1)));
        count.and_then(|count| count.checked_mul(dtype.size() as i64)).ok_or_else(overflow)?;
        Ok(Entry { dtype, shape })
    }

    /// Bytes of the elements.
    pub fn byte_count(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64 * self.dtype.size() as u64
    }

    /// A tensor to read into, in memory that `spares` has kept if there is any. What it holds is to be overwritten.
    pub(super) fn allocate(&self, spares: &Spares) -> Result<HostTensor, FileCause> {
        HostTensor::allocate(self.dtype, &self.shape, |bytes| spares.take_or_new(bytes))
            .map_err(|_| FileCause::OutOfMemory { bytes: self.byte_count() })
    }

    /// The shape as it is written in messages.
    pub(super) fn shape_text(&self) -> String {
        format_shape(&self.shape)
    }
}

fn format_shape<T: std::fmt::Display>(sizes: &[T]) -> String {
    let sizes: Vec<_> = sizes.iter().map(T::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

/// Reverses the bytes of every element when `swap` holds.
pub(super) fn swap_bytes(bytes: &mut [u8], dtype: DType, swap: bool) {
    if swap {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
}

/// True when elements on disk, which are little-endian, have to be swapped on this machine.
pub(super) const HOST_IS_BIG_ENDIAN: bool = cfg!(target_endian = "big");
