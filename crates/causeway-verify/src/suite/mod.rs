//! Verification and benchmark cases as data, and the engine that runs them against the oracle.
//!
//! ```text
//! Suite::open("conv1d-first")?   TOML rows → cases
//! run_case(case, device)         inputs → device → outputs → oracle → CaseReport
//! ```
//!
//! A [`Case`] is plain data; `tensors()` of its problem makes its inputs, so a benchmark can time the very same
//! calls. A suite file can also ask for a fault: a wrong value put into one result, which the check has to find.

mod calls;
mod case;
mod catalog;
mod check;
mod coverage;
mod data;
mod engine;
mod gemm;
mod guards;
mod layout;
mod memory;
mod moved;
mod named_enum;
mod plans;
mod random;
pub mod random_calls;
mod repeats;
mod report;
mod results;
mod rows;
mod sample;
mod tensors;
mod values;

pub use case::{Case, Ceilings, Conv1d, CuSeqlens, Fault, Problem, SeqIdx, Update, VarlenStates};
pub use catalog::{Suite, SuiteError};
pub use coverage::{Coverage, Reachable};
pub use engine::{run_case, run_case_noting, run_case_repeatedly};
pub use gemm::{Gemm, GemmResults, GemmTensors, MatrixLayout};
pub use layout::Layout;
pub use memory::{Memory, Placement, Role};
pub use plans::{distinct_plans, identity, plans, prepare};
pub use report::{CaseReport, OutputReport, Timing};
pub use results::Results;
pub use sample::gather;
pub use tensors::{Tensors, channel_axis};
pub use values::Values;
