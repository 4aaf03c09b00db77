//! `python -m causeway`.

use pyo3::prelude::*;

/// Runs the `causeway` command with these arguments, program name first, and returns its exit status.
#[pyfunction]
pub fn main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| causeway_cli::run(arguments))
}
