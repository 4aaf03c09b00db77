//! Where the elements of a tensor lie in its storage, without the storage.

use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::tensor::{DType, Dims};

/// Where the elements of one tensor lie: all that a plan needs, and what memory is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrangement {
    /// Element type.
    pub dtype: DType,
    /// Elements of the storage, those between and around the tensor's own included.
    pub storage: i64,
    /// The first element's place in the storage.
    pub offset: i64,
    /// Sizes.
    pub shape: Dims,
    /// Strides in elements.
    pub strides: Dims,
}

impl Arrangement {
    /// Row-major, with `guard` elements of spare storage on both sides.
    ///
    /// # Errors
    /// As for [`Dims::new`].
    pub fn dense(dtype: DType, shape: &[i64], guard: i64) -> Result<Self> {
        let shape = Dims::new(shape)?;
        // A number of elements that does not fit is refused where memory is taken.
        let elements = shape.element_count().unwrap_or(i64::MAX);
        let storage = elements.saturating_add(guard).saturating_add(guard);
        Ok(Arrangement { dtype, storage, offset: guard, shape, strides: shape.contiguous_strides() })
    }

    /// Bytes of the storage.
    pub fn bytes(&self) -> u64 {
        (self.storage.max(0) as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// A tensor of zeros that lies so.
    ///
    /// # Errors
    /// If it is larger than memory, or a size is negative.
    pub fn zeros(&self) -> Result<HostTensor> {
        HostTensor::zeros(self.dtype, &[self.storage])?.restrided(self.offset, &self.shape, &self.strides)
    }
}
