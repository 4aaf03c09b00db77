//! A tensor that owns GPU memory: the twin of a [`HostTensor`].

use crate::backend::gpu::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::tensor::{DType, Dims, Location, TensorMut, TensorRef};

/// A tensor in the memory of a GPU, with the layout of the host tensor that it was copied from.
///
/// The storage between strided elements is copied too, so views and guard zones mean the same on both sides.
#[derive(Debug)]
pub struct DeviceTensor {
    buffer: DeviceBuffer,
    dtype: DType,
    offset: i64,
    shape: Dims,
    strides: Dims,
}

impl DeviceTensor {
    /// Copies a host tensor to the stream's device.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), or what the driver says.
    pub fn upload(stream: &Stream, tensor: &HostTensor) -> Result<Self> {
        let buffer = DeviceBuffer::from_host(stream, tensor.bytes())?;
        Ok(DeviceTensor {
            buffer,
            dtype: tensor.dtype(),
            offset: tensor.offset(),
            shape: Dims::new(tensor.shape())?,
            strides: Dims::new(tensor.strides())?,
        })
    }

    /// Waits for the stream and copies the tensor back, with the same layout.
    ///
    /// # Errors
    /// If the host has no memory for it, or what the driver says: an earlier kernel's failure shows here.
    pub fn download(&self) -> Result<HostTensor> {
        let size = self.dtype.size() as i64;
        let mut tensor = HostTensor::zeros(self.dtype, &[self.buffer.len() as i64 / size])?;
        self.buffer.download(tensor.bytes_mut())?;
        tensor.restrided(self.offset, &self.shape, &self.strides)
    }

    /// Sets every byte of the storage, gaps between strided elements included, in the order of the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill_bytes(&mut self, byte: u8) -> Result<()> {
        self.buffer.fill(byte)
    }

    /// A view to read.
    pub fn view(&self) -> TensorRef<'_> {
        // SAFETY: the layout lies inside the buffer, as it did in the host tensor. The buffer is freed behind
        // the work of its stream, and operations run on that stream.
        let view = unsafe {
            TensorRef::from_raw(self.first(), self.dtype, &self.shape, &self.strides, self.location())
        };
        view.expect("the shape was checked when the host tensor was made")
    }

    /// A view to write.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        // SAFETY: as in `view`; the exclusive borrow keeps every other view away.
        let view = unsafe {
            TensorMut::from_raw(
                self.first().cast_mut(),
                self.dtype,
                &self.shape,
                &self.strides,
                self.location(),
            )
        };
        view.expect("the shape was checked when the host tensor was made")
    }

    fn location(&self) -> Location {
        self.buffer.device().location()
    }

    fn first(&self) -> *const u8 {
        let address = self.buffer.address().wrapping_add_signed(self.offset * self.dtype.size() as i64);
        std::ptr::without_provenance(address as usize)
    }
}
