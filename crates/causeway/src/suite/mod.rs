//! Verification and benchmark cases as data, and the engine that runs them against the oracle.

mod case;
mod layout;
mod report;

pub use case::{Case, Ceilings, Conv1d, CuSeqlens, Fault, Problem, SeqIdx, Update, Values, VarlenStates};
pub use layout::Layout;
pub use report::{CaseReport, OutputReport, Timing};
