//! The extension module of the Python package: views of NumPy's and PyTorch's tensors, and calls of the library.
//!
//! Functions take every tensor as it is, outputs included, and check nothing that the library checks. Those of `eager`
//! allocate their outputs; the package's Python code knows the rest about autograd and compilers.

mod call;
mod command;
mod conv1d;
mod dlpack;
mod eager;
mod error;
mod gemm;
mod overlap;
mod tensor;
mod threads;
mod torch;
mod verify;

/// `causeway._native`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use super::command::main;
    #[pymodule_export]
    use super::conv1d::{
        causal_conv1d_backward, causal_conv1d_forward, causal_conv1d_update, causal_conv1d_varlen_states,
        eager_backward_out, eager_forward_out, eager_update_out,
    };
    #[pymodule_export]
    use super::eager::{
        eager_backward, eager_forward, eager_forward_alone, eager_update, eager_update_alone, torch_backward,
        torch_forward, torch_update,
    };
    #[pymodule_export]
    use super::gemm::{gemm_forward, gemm_grad_a, gemm_grad_ab, gemm_grad_b};
    #[pymodule_export]
    use super::verify::verify;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
