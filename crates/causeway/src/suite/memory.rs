//! Tensors where a device can use them.

use crate::device::Device;
use crate::device_tensor::DeviceTensor;
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::oracle::POISON;
use crate::tensor::{TensorMut, TensorRef};

/// A tensor that a call reads.
pub(super) enum Input<'a> {
    /// The host's own.
    Host(&'a HostTensor),
    /// A copy on a GPU.
    Gpu(DeviceTensor),
}

/// A tensor that a call writes.
pub(super) enum Output {
    /// The host's own.
    Host(HostTensor),
    /// A copy on a GPU.
    Gpu(DeviceTensor),
}

impl<'a> Input<'a> {
    pub fn place(device: &Device, tensor: &'a HostTensor) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => Ok(Input::Host(tensor)),
            Device::Gpu(stream) => Ok(Input::Gpu(DeviceTensor::upload(stream, tensor)?)),
        }
    }

    /// As [`Input::place`], for an argument that may be absent.
    pub fn place_optional(device: &Device, tensor: &'a Option<HostTensor>) -> Result<Option<Self>> {
        tensor.as_ref().map(|tensor| Self::place(device, tensor)).transpose()
    }

    pub fn view(&self) -> TensorRef<'_> {
        match self {
            Input::Host(tensor) => tensor.view(),
            Input::Gpu(tensor) => tensor.view(),
        }
    }
}

impl Output {
    /// With the elements and the storage around them as they are.
    pub fn place(device: &Device, tensor: HostTensor) -> Result<Self> {
        match device {
            Device::Cpu(_) | Device::Simulated(_) => Ok(Output::Host(tensor)),
            Device::Gpu(stream) => Ok(Output::Gpu(DeviceTensor::upload(stream, &tensor)?)),
        }
    }

    /// With every byte, gaps and guards included, set so that it cannot pass for a result.
    pub fn poisoned(device: &Device, mut tensor: HostTensor) -> Result<Self> {
        tensor.fill_bytes(POISON);
        Self::place(device, tensor)
    }

    pub fn view(&mut self) -> TensorMut<'_> {
        match self {
            Output::Host(tensor) => tensor.view_mut(),
            Output::Gpu(tensor) => tensor.view_mut(),
        }
    }

    /// All of the storage, back on the host, once the device is done with it.
    pub fn fetch(self) -> Result<HostTensor> {
        match self {
            Output::Host(tensor) => Ok(tensor),
            Output::Gpu(tensor) => tensor.download(),
        }
    }
}
