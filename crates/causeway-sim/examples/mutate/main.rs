//! Mutation testing by machine: edits of the convolution's kernels and planners that a seed draws, each shown to the tests
//! of the simulator until one notices. docs/verification.md has what it found.
//!
//! ```text
//! cargo run --release -p causeway-sim --example mutate -- --kernels --seed 1 --count 60
//! cargo run --release -p causeway-sim --example mutate -- --planners --seed 1 --count 60
//! ```
//!
//! Results are kept in out/mutants, and a run that is started again goes on. `--again` looks at survivors anew.

mod blocks;
mod cases;
mod check;
mod coverage;
mod cpp_edits;
mod kernels;
mod kernels_run;
mod options;
mod planners_run;
mod random;
mod results;
mod rust_edits;
mod schemata;
mod tokens;
mod workspace;

use std::process::ExitCode;

use options::{Options, Subject};

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| match &options.subject {
        Subject::Kernels => kernels_run::run(&options),
        Subject::Planners => planners_run::run(&options),
        Subject::Plans => planners_run::print_plans(),
        Subject::Coverage(file) => coverage::Coverage::count(file),
        Subject::Check(file) => check::run(file),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
