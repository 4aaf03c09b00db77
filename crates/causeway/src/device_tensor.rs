//! A tensor that owns GPU memory: the twin of a [`HostTensor`].

use crate::arrangement::Arrangement;
use crate::backend::gpu::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::spares::Spares;
use crate::tensor::{DType, Dims, Location, Meta, TensorMut, TensorRef};

/// A tensor in the memory of a GPU, with the layout of the host tensor that it was copied from.
///
/// The storage between strided elements is copied too, so views and guard zones mean the same on both sides.
///
/// It belongs to its stream. What another stream computes with it is for the caller to order, by an [`Event`](crate::backend::gpu::Event) before and
/// one after.
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

    /// A tensor of which every byte is `byte`, those between and around the elements included.
    ///
    /// # Errors
    /// As for [`DeviceTensor::upload`].
    pub fn filled(stream: &Stream, arrangement: &Arrangement, byte: u8) -> Result<Self> {
        let mut tensor = Self::arranged(stream, arrangement)?;
        tensor.buffer.fill(byte)?;
        Ok(tensor)
    }

    /// A tensor whose storage is filled with copies of a pattern, however large it is.
    ///
    /// # Errors
    /// As for [`DeviceTensor::upload`].
    pub fn tiled(stream: &Stream, arrangement: &Arrangement, pattern: &[u8]) -> Result<Self> {
        let mut tensor = Self::arranged(stream, arrangement)?;
        tensor.buffer.tile(pattern)?;
        Ok(tensor)
    }

    fn arranged(stream: &Stream, arrangement: &Arrangement) -> Result<Self> {
        let Arrangement { dtype, offset, shape, strides, .. } = *arrangement;
        // What a view of it has to be.
        Meta::new(dtype, &shape, &strides, stream.device().location())?;
        // As on the host, storage is whole lines of 64 bytes.
        let buffer = DeviceBuffer::new(stream, arrangement.bytes().next_multiple_of(64))?;
        Ok(DeviceTensor { buffer, dtype, offset, shape, strides })
    }

    /// A copy on the same device, in the order of the stream.
    ///
    /// # Errors
    /// As for [`DeviceTensor::upload`].
    pub fn duplicate(&self) -> Result<Self> {
        let mut buffer = DeviceBuffer::new(self.buffer.stream(), self.buffer.len())?;
        buffer.copy_from(&self.buffer)?;
        Ok(DeviceTensor { buffer, ..*self })
    }

    /// Copies the storage of another tensor of the same size, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::CopyLength`](crate::Error::CopyLength), or what the driver says.
    pub fn copy_from(&mut self, other: &DeviceTensor) -> Result<()> {
        self.buffer.copy_from(&other.buffer)
    }

    /// The storage.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// Waits for the stream and copies the tensor back, with the same layout.
    ///
    /// # Errors
    /// If the host has no memory for it, or what the driver says: an earlier kernel's failure shows here.
    pub fn download(&self) -> Result<HostTensor> {
        self.download_to(&Spares::default())
    }

    /// The same, to memory that nobody needs any longer where there is some.
    pub(crate) fn download_to(&self, spares: &Spares) -> Result<HostTensor> {
        let elements = self.buffer.len() as i64 / self.dtype.size() as i64;
        let mut tensor = HostTensor::allocate(self.dtype, &[elements], |bytes| spares.take_or_new(bytes))?;
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
        // SAFETY: the layout lies inside the buffer, as it did in the host tensor. The buffer is freed after
        // the work of its stream, where operations run, or which was told to wait for them.
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
