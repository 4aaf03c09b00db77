//! A run over mutants of the kernels.

use std::process::Command;

use causeway_sim::Patch;

use super::cases::cases_of_file;
use super::check::{self, Check, Job, Verdict};
use super::coverage::{Coverage, everywhere};
use super::options::Options;
use super::random::Random;
use super::results::{self, Outcome};

/// A mutant: which file, at which byte, and what is changed.
pub struct Mutant {
    kernel: usize,
    byte: usize,
    patch: Patch,
}

/// All edits of the kernels that may be drawn, in the order in which the seed draws them.
pub fn draw(coverage: &Coverage, seed: u64) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (kernel, file) in coverage.kernels.iter().enumerate() {
        for (byte, patch) in file.edits() {
            if coverage.can_be_drawn(kernel, byte) {
                mutants.push(Mutant { kernel, byte, patch });
            }
        }
    }
    Random::new(seed).shuffle(&mut mutants);
    mutants
}

/// What runs the checks of one stage, and the checks in the groups that run together.
type Stages = (Command, Vec<Vec<Check>>);

/// What a mutant is shown to, one stage after the other; the first that notices it ends its life. Random calls would be
/// a stage between these.
fn stages(
    coverage: &Coverage,
    mutant: &Mutant,
    number: usize,
    options: &Options,
) -> Result<Vec<Stages>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let command = || {
        let mut command = Command::new(&program);
        // A mutant's threads run one after the other; the compiler gets the other cores.
        command.env("RAYON_NUM_THREADS", options.jobs.to_string());
        command.env("CAUSEWAY_SIM_DIR", options.folder.join("units"));
        command
    };
    let seed = options.seed.wrapping_add(number as u64);
    let suite = coverage.checks(mutant.kernel, mutant.byte, options.cases, seed);
    let mut stages = vec![(command(), suite)];
    if let Some(file) = &options.suite {
        stages.push((command(), vec![everywhere(&cases_of_file(file)?)]));
    }
    stages.push(check::sanitized(command(), &options.folder.join("sanitized"))?);
    Ok(stages)
}

/// Judges mutants until so many are that compile, and prints the table.
pub fn run(options: &Options) -> Result<(), String> {
    std::fs::create_dir_all(&options.folder).map_err(|error| error.to_string())?;
    let coverage = Coverage::open(options)?;
    let mutants = draw(&coverage, options.seed);
    let file = options.folder.join(format!("kernels-{}-{}.toml", options.seed, digest(&mutants)));
    let known = results::read(&file)?;
    if options.table {
        print!("{}", results::markdown(&known));
        return Ok(());
    }
    let [blocks, compiled, executed] = coverage.sizes();
    eprintln!(
        "{blocks} blocks, {compiled} of them in some kernel, {executed} executed; {} edits",
        mutants.len()
    );
    let numbers = 0..mutants.len();
    results::judge_all(options, &file, known, numbers, |number| {
        judge(&coverage, &mutants[number], number, options)
    })
}

/// Stands for the order of the mutants: results are theirs by number.
fn digest(mutants: &[Mutant]) -> String {
    let mut hasher = blake3::Hasher::new();
    mutants.iter().for_each(|mutant| {
        hasher.update(format!("{:?}", mutant.patch).as_bytes());
    });
    hasher.finalize().to_hex()[..16].to_string()
}

fn judge(coverage: &Coverage, mutant: &Mutant, number: usize, options: &Options) -> Result<Outcome, String> {
    let mut verdict = Verdict::Survived(0);
    for (command, batches) in stages(coverage, mutant, number, options)? {
        let found = Job::of_patch(&mutant.patch, options.suite.clone(), batches).start(command)?;
        verdict = match (verdict, found) {
            (Verdict::Survived(before), Verdict::Survived(more)) => Verdict::Survived(before + more),
            (_, found) => found,
        };
        if !matches!(verdict, Verdict::Survived(_)) {
            break;
        }
    }
    let Patch { file, line, column, right, wrong } = mutant.patch.clone();
    let (result, by) = (String::new(), String::new());
    Ok(Outcome { number, file, line, column, right, wrong, result, by, seconds: 0 }.judged(verdict))
}
