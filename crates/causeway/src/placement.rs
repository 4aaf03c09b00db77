//! Tensors where a device can use them: the host's own for a CPU, copies for a GPU.

use crate::device::Device;
use crate::device_tensor::DeviceTensor;
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::tensor::{TensorMut, TensorRef};

/// A tensor that a call reads.
#[derive(Debug)]
pub enum Input<'a> {
    /// The host's own.
    Host(&'a HostTensor),
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

    /// As [`Input::place`], for an argument that may be absent.
    ///
    /// # Errors
    /// As for [`Input::place`].
    pub fn place_optional(device: &Device, tensor: &'a Option<HostTensor>) -> Result<Option<Self>> {
        tensor.as_ref().map(|tensor| Self::place(device, tensor)).transpose()
    }

    /// What an operation reads.
    pub fn view(&self) -> TensorRef<'_> {
        match self {
            Input::Host(tensor) => tensor.view(),
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
        match self {
            Output::Host(tensor) => Ok(tensor),
            Output::Gpu(tensor) => tensor.download(),
        }
    }
}
