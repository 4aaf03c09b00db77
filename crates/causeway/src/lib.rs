//! Causal depthwise conv1d and f16/bf16 GEMM with gradients, on NVIDIA, AMD and CPU.

mod arrangement;
pub mod backend;
pub mod causal_conv1d;
mod checks;
pub mod device;
mod device_tensor;
mod dims;
mod dtype;
pub mod error;
pub mod files;
pub mod gemm;
mod host_storage;
mod host_tensor;
pub mod memory;
pub mod named;
pub mod operation;
pub mod placement;
mod quoted;
mod rounding;
mod runs;
mod spares;
pub mod tensor;

pub use arrangement::Arrangement;
pub use device::Device;
pub use device_tensor::DeviceTensor;
pub use error::{Error, Result};
pub use host_tensor::HostTensor;
pub use quoted::quoted;
pub use tensor::{DType, Dims, Element, Location, TensorMut, TensorRef};
