//! Verification over the space of calls: calls drawn at random, each checked like a case of a suite.
//!
//! ```text
//! Space ─ draw ─► Row ─► Case ─ run_case ─► CaseReport
//!                  ▲                           │ failed
//!                  └──────── shrink ◄──────────┘
//! ```
//!
//! A drawn call is a [`Row`] of a suite, so what fails is printed as text that `causeway verify --suite` runs.
//! On devices that compile kernels, one kernel serves many calls: most draws give new sizes to options that were drawn
//! before, and are taken if they launch kernels that are there.

mod draw;
mod outcome;
mod row;
mod run;
mod shrink;
mod sizes;
mod thresholds;

pub use draw::{OPERATIONS, Space};
pub use outcome::{Outcome, RandomCalls, RandomFailure};
pub use row::Row;
pub use run::{Calls, MOST_FAILURES, Progress, run};
pub use shrink::shrink;
