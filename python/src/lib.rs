//! The extension module of the Python package: views of NumPy's and PyTorch's tensors, and calls of the library.
//!
//! Every operation is called in one way, by its table: outputs are given, or made by the library that the inputs are of. The package's
//! Python code knows the rest about autograd and compilers.

mod call;
mod command;
mod compute;
mod dense;
mod described;
mod dlpack;
mod eager;
mod error;
mod given;
mod kept;
mod libtorch;
mod message;
mod openmp;
mod operation;
mod overlap;
mod packed;
mod part;
mod recorded;
mod results;
mod table;
mod tensor;
mod threads;
mod torch;
mod verify;

/// `causeway._native`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    use crate::table::ENTRIES;

    #[pymodule_export]
    use super::command::main;
    #[pymodule_export]
    use super::eager::bypasses_dispatcher;
    #[pymodule_export]
    use super::message::{backward_halo, forward_halo, receive, send, send_halo_gradient};
    #[pymodule_export]
    use super::operation::{Argument, Operation};
    #[pymodule_export]
    use super::packed::Packed;
    #[pymodule_export]
    use super::recorded::Recorded;
    #[pymodule_export]
    use super::results::{empty_cache, prefer_large_pages, result_like};
    #[pymodule_export]
    use super::verify::verify;

    #[pymodule_export]
    const MESSAGE_FLAG_BYTES: u64 = causeway::backend::gpu::message::FLAG_BYTES;

    #[pymodule_export]
    const MOST_THREADS: usize = causeway_cli::MOST_THREADS;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::openmp::watch_forks();
        // Of a wrong value in the environment, say. Without this they would go nowhere.
        causeway_cli::show_warnings();
        ENTRIES.iter().try_for_each(|entry| module.add(entry.name, Operation::new(entry)))
    }
}
