//! GPUs: choose a kernel, compile it on this machine, launch it.
//!
//! From the bottom up: [`library`] finds shared libraries, `driver` calls the vendors' drivers, [`compiler`] the
//! run-time compilers, [`cache`] keeps what they make, and [`runtime`] puts a [`plan`] on a stream.

mod argument;
pub mod artifact;
pub mod builder;
pub mod cache;
mod candidates;
pub mod causal_conv1d;
pub mod choice;
pub mod compare;
pub mod compiler;
pub mod device;
mod device_struct;
mod driver;
mod executor;
mod facts;
pub mod floor;
pub mod gemm;
mod handle;
mod launch;
pub mod library;
pub mod memory;
pub mod message;
pub mod plan;
mod ready;
pub mod runtime;
mod scratch;
pub mod stream;
pub(crate) mod together;
pub mod vendor_blas;

pub use self::argument::Workspace;
pub use self::device::{DeviceReport, devices};
pub use self::executor::{CompilerFacts, Executor};
pub use self::handle::StreamHandle;
pub use self::memory::DeviceBuffer;
pub use self::ready::Ready;
pub use self::runtime::GpuDevice;
pub use self::stream::{Event, Graph, Stream};
