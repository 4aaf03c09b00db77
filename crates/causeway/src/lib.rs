//! Causal depthwise conv1d and half-precision GEMM gradients, on NVIDIA, AMD and CPU.

pub mod backend;
pub mod causal_conv1d;
pub mod error;
pub mod tensor;

pub use error::{Error, Result};
pub use tensor::{DType, Dims, Element, Location, TensorMut, TensorRef};
