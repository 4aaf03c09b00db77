//! The cases that mutants are shown to, and where.

use std::path::Path;

use causeway::DType;
use causeway_verify::suite::{Case, Problem, Suite};

use super::kernels::root;

/// Where blocks are counted, with the devices of tests/simulator that run the same kernels.
pub const DEVICES: [(&str, [&str; 2]); 2] =
    [("sim:32", ["sim:32", "sim:32:descending"]), ("sim:64", ["sim:64", "sim:64:shuffled:1"])];

/// The cases of suite `sim` that run convolution kernels.
pub fn cases() -> Result<Vec<Case>, String> {
    cases_of(&Suite::open("sim").map_err(|error| error.to_string())?)
}

/// The cases that tests/sanitizers runs.
pub fn edges() -> Result<Vec<Case>, String> {
    cases_of_file(&root().join("suites/sim-edges.toml"))
}

/// The cases of a suite's file.
pub fn cases_of_file(path: &Path) -> Result<Vec<Case>, String> {
    cases_of(&Suite::open(&path.display().to_string()).map_err(|error| error.to_string())?)
}

fn cases_of(suite: &Suite) -> Result<Vec<Case>, String> {
    let mut cases = suite.cases.clone();
    cases.retain(|case| case.problem.dtype() != DType::F64 && !matches!(case.problem, Problem::Gemm(_)));
    Ok(cases)
}
