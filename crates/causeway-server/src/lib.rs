//! The kernel server: a long-lived process that keeps the device open and kernels loaded, and answers requests in
//! frames on a pipe or a Unix socket.
//!
//! A frame is a little-endian `u32` byte count, then that many bytes, both ways. Replies come in the order of the
//! requests, one for each; a caller may send the next request before it has the last reply. What a payload holds
//! depends on the [`Protocol`]:
//!
//! * **tensors**: a safetensors image. Metadata of a request: `operation` and its options as in
//!   [`named::Call`](causeway::named::Call), and `id`, any text, which the reply repeats. `operation = hello` takes no
//!   tensors and answers with facts alone; `takes_copies = true` with it says that the client copies all of a reply out
//!   of the pipe before it sends the next request, so that the server may use that reply's memory again. Metadata of a
//!   reply: `causeway` (the version), `protocol` (of this page: [`PROTOCOL_VERSION`]), `device`, `threads`,
//!   `max_frame`, and `seconds`, the time of the operation on the device; or `error` (a stable code), `message` and,
//!   where there is something to do about it, `help`.
//! * **text**: half-precision GEMM gradients as decimal bit patterns; see [`text`].
//!
//! A request that is wrong gets an error for a reply and the server lives on. A frame that is cut short ends it.

mod client;
mod decimal;
mod frame;
#[cfg(unix)]
mod listen;
mod pipe;
mod service;
mod tensors;
pub mod text;
mod turn;
mod worker;

pub use client::{KernelServer, Launch, Metrics, Reply, ServerError};
pub use frame::{Interrupted, read_frame, write_frame};
#[cfg(unix)]
pub use listen::{Listener, MAX_CLIENTS};
pub use pipe::{Lend, PipeWriter, standard_pipes};
pub use service::{Protocol, Service};

/// Version of the frames and of what the tensors protocol puts in them.
pub const PROTOCOL_VERSION: &str = "1";

/// Largest payload unless the server is told otherwise: 1 GiB.
pub const DEFAULT_MAX_FRAME: u32 = 1 << 30;
