//! The `causeway` command as a library: a Rust binary and a Python module start the same code.

mod commands;
mod device;
mod failure;
mod kernels;
mod number;
mod suite_name;
mod table;
mod terminal;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use device::{MOST_THREADS, SIMULATED, open_device};
pub use terminal::show_warnings;

use commands::{bench, compile, doctor, gemm_oneshot, plan, report, run, serve, verify};
use failure::Failure;

/// Version and commit of this build, as saved runs name them.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("CAUSEWAY_COMMIT"), ")");

const ABOUT: &str = "\
Causal depthwise conv1d and half-precision GEMM with its gradients, on NVIDIA, AMD and CPU, checked against a float64 \
oracle";

const AFTER_HELP: &str = "\
Exit status:
  0    everything asked for was done, and every check passed
  1    a verification failed, a comparison found a regression, a report is not sound, or choices of the planners
       were not reached
  2    wrong usage or bad input; nothing was written
  141  the reader of the output went away

Environment:
  CAUSEWAY_DEVICE  the device when --device is not given
  NO_COLOR         no colours
  docs/environment.md of the repository has all variables";

#[derive(Debug, Parser)]
#[command(name = "causeway", version = VERSION, about = ABOUT, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(verify::Args),
    Run(run::Args),
    Bench(bench::Args),
    Report(report::Args),
    Doctor(doctor::Args),
    Plan(plan::Args),
    Compile(compile::Args),
    Serve(serve::Args),
    GemmOneshot(gemm_oneshot::Args),
    #[command(hide = true)]
    FirstCall(bench::FirstCallArgs),
}

/// Runs one command line, program name first, and returns its exit status. Prints to stdout and stderr.
pub fn run<I>(arguments: I) -> u8
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    terminal::show_warnings();
    let outcome = match parse(arguments) {
        Err(error) => Err(Failure::Usage(error)),
        Ok(Cli { command: None }) => terminal::print(&Cli::command().render_long_help().ansi().to_string()),
        Ok(Cli { command: Some(command) }) => command.execute(),
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    }
}

fn parse<I>(arguments: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let mut command = number::with_negative_numbers(Cli::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

impl Command {
    fn execute(&self) -> Result<(), Failure> {
        match self {
            Command::Verify(args) => verify::execute(args),
            Command::Run(args) => run::execute(args),
            Command::Bench(args) => bench::execute(args),
            Command::Report(args) => report::execute(args),
            Command::Doctor(args) => doctor::execute(args),
            Command::Plan(args) => plan::execute(args),
            Command::Compile(args) => compile::execute(args),
            Command::Serve(args) => serve::execute(args),
            Command::GemmOneshot(args) => gemm_oneshot::execute(args),
            Command::FirstCall(args) => bench::first_call(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
