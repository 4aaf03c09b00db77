//! The `causeway` command; everything is in the library, which other front ends call too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(causeway_cli::run(std::env::args_os()))
}
