//! Tensors where a device can use them: the host's own for a CPU, copies for a GPU.

use crate::arrangement::Arrangement;
use crate::device::Device;
use crate::device_tensor::DeviceTensor;
use crate::error::{Error, Result};
use crate::host_tensor::HostTensor;
use crate::spares::Spares;
use crate::tensor::{TensorMut, TensorRef};

/// A tensor that a call reads.
#[derive(Debug)]
pub enum Input<'a> {
    /// The host's own.
    Host(&'a HostTensor),
    /// Made for the call, on the host.
    Owned(HostTensor),
    /// A copy on a GPU.
    Gpu(DeviceTensor),
}

/// A tensor that a call writes.
#[derive(Debug)]
pub enum Output {
    /// The host's own.
    Host(HostTensor),
    /// A copy on a GPU.
    Gpu(DeviceTensor),
}

impl<'a> Input<'a> {
    /// Copies to a GPU, and borrows for a CPU.
    ///
    /// # Errors
    /// If the device has no memory for it, or what the driver says.
    pub fn place(device: &Device, tensor: &'a HostTensor) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => Ok(Input::Host(tensor)),
            Device::Gpu(stream) => Ok(Input::Gpu(DeviceTensor::upload(stream, tensor)?)),
        }
    }

    /// As [`Input::place`], for a tensor that nothing else needs.
    ///
    /// # Errors
    /// As for [`Input::place`].
    pub fn place_owned(device: &Device, tensor: HostTensor) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => Ok(Input::Owned(tensor)),
            Device::Gpu(stream) => Ok(Input::Gpu(DeviceTensor::upload(stream, &tensor)?)),
        }
    }

    /// A tensor whose storage is filled with copies of a pattern, however large it is.
    ///
    /// # Errors
    /// As for [`Input::place`].
    pub fn tiled(device: &Device, arrangement: &Arrangement, pattern: &[u8]) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => {
                let mut tensor = arrangement.zeros()?;
                for piece in tensor.bytes_mut().chunks_mut(pattern.len().max(1)) {
                    piece.copy_from_slice(&pattern[..piece.len()]);
                }
                Ok(Input::Owned(tensor))
            }
            Device::Gpu(stream) => Ok(Input::Gpu(DeviceTensor::tiled(stream, arrangement, pattern)?)),
        }
    }

    /// What an operation reads.
    pub fn view(&self) -> TensorRef<'_> {
        match self {
            Input::Host(tensor) => tensor.view(),
            Input::Owned(tensor) => tensor.view(),
            Input::Gpu(tensor) => tensor.view(),
        }
    }
}

impl Output {
    /// With the elements and the storage around them as they are.
    ///
    /// # Errors
    /// As for [`Input::place`].
    pub fn place(device: &Device, tensor: HostTensor) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => Ok(Output::Host(tensor)),
            Device::Gpu(stream) => Ok(Output::Gpu(DeviceTensor::upload(stream, &tensor)?)),
        }
    }

    /// With every byte, those between and around the elements included, set to `byte`.
    ///
    /// # Errors
    /// As for [`Input::place`].
    pub fn filled(device: &Device, arrangement: &Arrangement, byte: u8) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => {
                let mut tensor = arrangement.zeros()?;
                tensor.fill_bytes(byte);
                Ok(Output::Host(tensor))
            }
            Device::Gpu(stream) => Ok(Output::Gpu(DeviceTensor::filled(stream, arrangement, byte)?)),
        }
    }

    /// A copy in the same memory.
    ///
    /// # Errors
    /// As for [`Input::place`].
    pub fn duplicate(&self) -> Result<Self> {
        match self {
            Output::Host(tensor) => Ok(Output::Host(tensor.clone())),
            Output::Gpu(tensor) => Ok(Output::Gpu(tensor.duplicate()?)),
        }
    }

    /// Copies the storage of a duplicate.
    ///
    /// # Errors
    /// [`Error::CopyLength`] for a tensor of another size or in another memory, or what the
    /// driver says.
    pub fn copy_from(&mut self, other: &Output) -> Result<()> {
        match (self, other) {
            (Output::Gpu(to), Output::Gpu(from)) => to.copy_from(from),
            (Output::Host(to), Output::Host(from)) if to.bytes().len() == from.bytes().len() => {
                to.bytes_mut().copy_from_slice(from.bytes());
                Ok(())
            }
            (to, from) => Err(Error::CopyLength { device: to.bytes(), host: from.bytes() }),
        }
    }

    /// Bytes of the storage.
    fn bytes(&self) -> u64 {
        match self {
            Output::Host(tensor) => tensor.bytes().len() as u64,
            Output::Gpu(tensor) => tensor.buffer().len(),
        }
    }

    /// What an operation writes.
    pub fn view(&mut self) -> TensorMut<'_> {
        match self {
            Output::Host(tensor) => tensor.view_mut(),
            Output::Gpu(tensor) => tensor.view_mut(),
        }
    }

    /// All of the storage, back on the host, once the device is done with it.
    ///
    /// # Errors
    /// If the host has no memory for it, or what the driver says: a kernel's failure shows here.
    pub fn fetch(self) -> Result<HostTensor> {
        self.fetch_to(&Spares::default())
    }

    /// The same, to memory that nobody needs any longer where there is some.
    pub(crate) fn fetch_to(self, spares: &Spares) -> Result<HostTensor> {
        match self {
            Output::Host(tensor) => Ok(tensor),
            Output::Gpu(tensor) => tensor.download_to(spares),
        }
    }
}
