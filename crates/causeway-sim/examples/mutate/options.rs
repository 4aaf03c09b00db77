//! What the program is asked to do.

use std::path::PathBuf;

use super::kernels::root;

/// What is mutated, or the part that a process of its own does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// kernels/*.cuh
    Kernels,
    /// The planners of crates/causeway.
    Planners,
    /// Prints what planners plan.
    Plans,
    /// Counts which cases execute which blocks, and writes it to a file.
    Coverage(PathBuf),
    /// The checks of a file.
    Check(PathBuf),
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What is mutated.
    pub subject: Subject,
    /// Draws the mutants.
    pub seed: u64,
    /// How many that compile.
    pub count: usize,
    /// Threads that compile, for each mutant.
    pub jobs: usize,
    /// Mutants that are judged at a time.
    pub together: usize,
    /// Most cases that a mutant is shown to, on each of two devices.
    pub cases: usize,
    /// More cases that survivors are shown to: a suite's file.
    pub suite: Option<PathBuf>,
    /// Survivors of the run so far are shown to cases again.
    pub again: bool,
    /// Prints the table of the run so far, and does nothing else.
    pub table: bool,
    /// Where results and compiled kernels are kept.
    pub folder: PathBuf,
}

/// Printed where options are wrong.
const USAGE: &str = "usage: mutate --kernels | --planners [--seed N] [--count N] [--jobs N] [--together N] [--cases N]\n\
     [--again] [--suite FILE] [--table]";

impl Options {
    /// Reads the command line.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut subject = None;
        let mut options = Options {
            subject: Subject::Kernels,
            seed: 1,
            count: 60,
            jobs: 1,
            together: 1,
            cases: 48,
            suite: None,
            again: false,
            table: false,
            folder: root().join("out/mutants"),
        };
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let value = arguments.next().unwrap_or_default();
                value.parse::<u64>().map_err(|_| format!("{argument} is {value:?}: expected a number"))
            };
            match argument.as_str() {
                "--kernels" => subject = Some(Subject::Kernels),
                "--planners" => subject = Some(Subject::Planners),
                "--plans" => subject = Some(Subject::Plans),
                "--coverage" => subject = arguments.next().map(|file| Subject::Coverage(file.into())),
                "--check" => subject = arguments.next().map(|file| Subject::Check(file.into())),
                "--seed" => options.seed = number()?,
                "--count" => options.count = number()? as usize,
                "--jobs" => options.jobs = number()?.max(1) as usize,
                "--together" => options.together = number()?.max(1) as usize,
                "--cases" => options.cases = number()?.max(1) as usize,
                "--suite" => options.suite = arguments.next().map(PathBuf::from),
                "--again" => options.again = true,
                "--table" => options.table = true,
                _ => return Err(format!("unknown argument {argument:?}\n{USAGE}")),
            }
        }
        options.subject = subject.ok_or(USAGE)?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(ToString::to_string))
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = parse("--kernels --seed 7 --count 200 --jobs 2 --together 3").unwrap();
        assert_eq!((options.seed, options.count, options.jobs, options.together), (7, 200, 2, 3));
        assert!(parse("--seed 7").unwrap_err().starts_with("usage"));
        assert_eq!(parse("--kernels --seed x").unwrap_err(), "--seed is \"x\": expected a number");
        assert!(parse("--kernels --fast").unwrap_err().contains("--fast"));
    }
}
