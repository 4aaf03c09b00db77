//! The truth: every operation in float64 (twice that for f64 data), with an error bound for every element.
//!
//! Plain loops in the order of the formulas, no code shared with any backend. docs/verification.md derives the
//! bounds.

pub mod bounds;
pub mod causal_conv1d;
mod comparison;
pub mod gemm;
mod loops;
mod real;
pub mod ulp;

pub use comparison::{Comparison, Expected, POISON, WorstElement};
