//! How a command fails: what is printed, and the exit status.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use causeway::files::FileError;
use causeway_verify::evidence::ReportError;
use causeway_verify::suite::SuiteError;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HELP: Style = AnsiColor::Cyan.on_default().bold();

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line does not parse (or asks for help, which is not a failure).
    Usage(clap::Error),
    /// Bad input: one sentence, and what to do about it where that helps.
    Input { message: String, help: Option<String> },
    /// As [`Failure::Input`], with an exit status that the command's contract sets.
    Status { status: u8, message: String },
    /// A check failed, and the output has said so.
    Negative,
    /// Nobody reads the output any more.
    PipeClosed,
}

impl Failure {
    pub fn input(message: impl Into<String>) -> Self {
        Failure::Input { message: message.into(), help: None }
    }

    pub fn status(status: u8, message: impl Into<String>) -> Self {
        Failure::Status { status, message: message.into() }
    }

    /// The same failure with another exit status.
    pub fn with_status(self, status: u8) -> Self {
        match self {
            Failure::Input { .. } => Failure::Status { status, message: self.in_one_line() },
            other => other,
        }
    }

    /// What it says, and what to do about it.
    pub fn in_one_line(&self) -> String {
        match self {
            Failure::Input { message, help: Some(line) } => format!("{message}; {line}"),
            Failure::Input { message, .. } | Failure::Status { message, .. } => message.clone(),
            Failure::Usage(error) => error.to_string(),
            Failure::Negative | Failure::PipeClosed => String::new(),
        }
    }

    /// The same failure of something that came from `place`.
    pub fn within(self, place: &str) -> Self {
        match self {
            Failure::Input { message, help } => {
                Failure::Input { message: format!("{place}: {message}"), help }
            }
            other => other,
        }
    }

    pub fn with_help(self, line: impl Into<String>) -> Self {
        match self {
            Failure::Input { message, help } => {
                Failure::Input { message, help: help.or_else(|| Some(line.into())) }
            }
            other => other,
        }
    }

    /// Prints what has to be printed and returns the exit status.
    pub fn report(self) -> u8 {
        match self {
            Failure::Usage(error) => {
                let printed = error.print().and_then(|()| io::stdout().flush());
                match printed {
                    // Help is output, and fails as other output does.
                    Err(failed) if !error.use_stderr() => Failure::from(failed).report(),
                    _ => error.exit_code().clamp(0, i32::from(u8::MAX)) as u8,
                }
            }
            Failure::Input { message, help } => {
                complain(&format!("{ERROR}error{ERROR:#}: {message}"));
                if let Some(line) = help {
                    complain(&format!("{HELP}help{HELP:#}: {line}"));
                }
                2
            }
            Failure::Status { status, message } => {
                complain(&format!("{ERROR}error{ERROR:#}: {message}"));
                status
            }
            Failure::Negative => 1,
            Failure::PipeClosed => 141,
        }
    }
}

/// Prints a line to stderr. If that takes nothing, nobody can be told, and the exit status still says what happened.
fn complain(line: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Errors whose own sentence is all that there is to say.
macro_rules! from_sentence {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure::input(error.to_string())
            }
        }
    )*};
}

from_sentence!(causeway::Error, ReportError, SuiteError);

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let failure = Failure::input(error.to_string());
        match error.help() {
            Some(line) => failure.with_help(line),
            None => failure,
        }
    }
}

/// Of writing to stdout; what cannot be read has a sentence of its own.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Failure::input(format!("the output cannot be written: {error}")),
        }
    }
}
