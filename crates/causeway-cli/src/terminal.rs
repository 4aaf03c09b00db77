//! Output: text on stdout with colours where they are wanted, progress on stderr when it is a terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;

/// Prints a line to stdout, without its colours if they are not wanted.
pub(crate) fn print(line: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Prints text that ends its last line by itself.
pub(crate) fn print_text(text: &str) -> Result<(), Failure> {
    print(text.trim_end_matches('\n'))
}

/// What starts this command again: a program, and its first arguments.
pub(crate) fn this_command() -> std::io::Result<(std::path::PathBuf, &'static [&'static str])> {
    let program = std::env::current_exe()?;
    // As a Python module, this program is the interpreter.
    let is_python = program.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("python"));
    Ok((program, if is_python { &["-m", "causeway"] } else { &[] }))
}

/// The command line of this process, for reports.
pub(crate) fn command_line() -> Vec<String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// Prints a JSON value to stdout.
pub(crate) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::input(error.to_string()))?;
    print(&text)
}

/// Prints the library's warnings to stderr from now on.
pub fn show_warnings() {
    let subscriber = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Otherwise a stderr that takes nothing ends the thread that warns, by a panic.
        .log_internal_errors(false)
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .finish();
    // Another front end in this process may have a subscriber of its own, which then has the warnings.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// A progress bar of `steps` on stderr; nothing when stderr is no terminal.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {wide_msg}")
        .expect("the template is well-formed");
    let bar = ProgressBar::new(steps).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
