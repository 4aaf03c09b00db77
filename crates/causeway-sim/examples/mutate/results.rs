//! What became of each mutant, in a file that grows with the run and is read when a run goes on.

use std::collections::HashMap;
use std::io::Write;
use std::iter::Peekable;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::check::Verdict;
use super::options::Options;

/// One mutant.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Its place in the seed's order.
    pub number: usize,
    /// Of the source.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 0, in bytes.
    pub column: usize,
    /// What went.
    pub right: String,
    /// What came.
    pub wrong: String,
    /// `noticed`, `survived`, `stillborn`, or `same plans`.
    pub result: String,
    /// By what; of a survivor, how many checks it passed.
    pub by: String,
    /// It took.
    pub seconds: u64,
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    mutant: Vec<Outcome>,
}

impl Outcome {
    /// Puts a verdict into words.
    pub fn judged(mut self, verdict: Verdict) -> Self {
        let (result, by) = match verdict {
            Verdict::Noticed(by) => ("noticed", by),
            Verdict::Stillborn(why) => ("stillborn", why),
            Verdict::Survived(count) => ("survived", format!("{count} checks passed")),
        };
        (self.result, self.by) = (result.to_string(), by);
        self
    }

    /// Whether it is one of the mutants that are counted.
    pub fn counts(&self) -> bool {
        self.result != "stillborn"
    }
}

/// The outcomes of a file, which need not be there yet.
pub fn read(file: &Path) -> Result<HashMap<usize, Outcome>, String> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.map_err(|error| format!("{}: {error}", file.display()))?,
    };
    let table: Table = toml::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    // A mutant that was looked at again has its last outcome.
    Ok(table.mutant.into_iter().map(|outcome| (outcome.number, outcome)).collect())
}

/// Adds an outcome to the file.
pub fn append(file: &Path, outcome: &Outcome) -> Result<(), String> {
    let table = Table { mutant: vec![outcome.clone()] };
    let text = toml::to_string(&table).map_err(|error| error.to_string())?;
    let open = std::fs::OpenOptions::new().create(true).append(true).open(file);
    open.and_then(|mut open| writeln!(open, "{text}")).map_err(|error| format!("{}: {error}", file.display()))
}

/// Judges the mutants of these numbers, in their order, until as many are known as were asked for, and writes each outcome
/// to the file. What is known already is judged again only if that was asked for, and it survived.
///
/// `options.together` of them are judged at a time; each is a process of its own.
pub fn judge_all(
    options: &Options,
    file: &Path,
    known: HashMap<usize, Outcome>,
    numbers: impl Iterator<Item = usize> + Send,
    judge: impl Fn(usize) -> Result<Outcome, String> + Sync,
) -> Result<(), String> {
    let run = Mutex::new(Run { numbers: numbers.peekable(), known, under_way: 0 });
    let judge_some = || -> Result<(), String> {
        loop {
            // The lock goes with this statement.
            let next = lock(&run).next(options);
            let Some(number) = next else { return Ok(()) };
            let start = Instant::now();
            let judged = judge(number);
            let mut run = lock(&run);
            run.under_way -= 1;
            let mut outcome = judged?;
            outcome.seconds = start.elapsed().as_secs();
            let Outcome { file: source, line, right, wrong, result, by, seconds, .. } = &outcome;
            eprintln!("{number}: {source}:{line} {right:?} → {wrong:?}: {result} {by} ({seconds} s)");
            append(file, &outcome)?;
            run.known.insert(number, outcome);
        }
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.together).map(|_| scope.spawn(judge_some)).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_string())).collect()
    });
    println!("{}", totals(&lock(&run).known));
    ends.into_iter().try_for_each(|end| end?)
}

/// What the threads of a run share.
struct Run<I: Iterator<Item = usize>> {
    numbers: Peekable<I>,
    known: HashMap<usize, Outcome>,
    /// Mutants that are being judged now.
    under_way: usize,
}

impl<I: Iterator<Item = usize>> Run<I> {
    /// The next mutant to judge; none once enough are known or under way.
    fn next(&mut self, options: &Options) -> Option<usize> {
        loop {
            let number = *self.numbers.peek()?;
            let done = self.known.get(&number);
            // One that is judged again is among those that are counted.
            let counted = self.known.values().filter(|outcome| outcome.counts()).count() + self.under_way;
            if done.is_none() && counted >= options.count {
                return None;
            }
            let skipped = done.is_some_and(|outcome| !(options.again && outcome.result == "survived"));
            self.numbers.next();
            if !skipped {
                self.under_way += 1;
                return Some(number);
            }
        }
    }
}

/// A thread that panics leaves a state that others can go on with.
fn lock<I: Iterator<Item = usize>>(run: &Mutex<Run<I>>) -> MutexGuard<'_, Run<I>> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A table of all outcomes, survivors first, with a line of totals.
pub fn markdown(outcomes: &HashMap<usize, Outcome>) -> String {
    let mut ordered: Vec<_> = outcomes.values().filter(|outcome| outcome.counts()).collect();
    ordered.sort_by_key(|outcome| (outcome.result == "noticed", outcome.file.clone(), outcome.line));
    let cell = |text: &str| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        if text.is_empty() { "(nothing)".to_string() } else { format!("`{text}`") }
    };
    let row = |outcome: &&Outcome| {
        let Outcome { file, line, right, wrong, result, by, .. } = outcome;
        format!("| {file}:{line} | {} | {} | {result} | {by} |\n", cell(right), cell(wrong))
    };
    let rows: String = ordered.iter().map(row).collect();
    format!("{}\n\n| place | was | is | | by |\n|---|---|---|---|---|\n{rows}", totals(outcomes))
}

/// `57 of 60 noticed (95.0 %), 3 survived; 9 did not compile`
pub fn totals(outcomes: &HashMap<usize, Outcome>) -> String {
    let of = |result: &str| outcomes.values().filter(|outcome| outcome.result == result).count();
    let (noticed, survived, same) = (of("noticed"), of("survived"), of("same plans"));
    let judged = noticed + survived;
    let percent = 100.0 * noticed as f64 / judged.max(1) as f64;
    let same = if same > 0 { format!(", {same} more change no plan") } else { String::new() };
    format!(
        "{noticed} of {judged} noticed ({percent:.1} %), {survived} survived{same}; {} did not compile",
        of("stillborn")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(number: usize, verdict: Verdict) -> Outcome {
        let (file, right, wrong) = ("a.cuh".to_string(), "a\n  || \"b\"".to_string(), String::new());
        let blank = Outcome {
            number,
            file,
            line: 3,
            column: 4,
            right,
            wrong,
            result: String::new(),
            by: String::new(),
            seconds: 1,
        };
        blank.judged(verdict)
    }

    #[test]
    fn as_many_are_judged_as_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.toml");
        let line = "--kernels --count 20 --together 4".split(' ').map(ToString::to_string);
        let options = Options::parse(line).unwrap();
        // Every third does not compile.
        let verdict = |number| match number % 3 {
            0 => Verdict::Stillborn("no".to_string()),
            _ => Verdict::Survived(1),
        };
        for judged in [30, 0] {
            let before = read(&file).unwrap();
            judge_all(&options, &file, before.clone(), 0..100, |number| Ok(outcome(number, verdict(number))))
                .unwrap();
            let after = read(&file).unwrap();
            assert_eq!(after.values().filter(|outcome| outcome.counts()).count(), 20);
            // Threads end at different times: one more that does not compile may have been tried.
            assert!((judged..=judged + 1).contains(&(after.len() - before.len())), "{}", after.len());
        }
        assert!(judge_all(&options, &file, HashMap::new(), 0..9, |_| Err("broken".to_string())).is_err());
    }

    #[test]
    fn a_file_that_grew_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.toml");
        assert!(read(&file).unwrap().is_empty());
        append(&file, &outcome(1, Verdict::Survived(5))).unwrap();
        append(&file, &outcome(2, Verdict::Stillborn("no".to_string()))).unwrap();
        append(&file, &outcome(1, Verdict::Noticed("sim:32 c: y".to_string()))).unwrap();
        let outcomes = read(&file).unwrap();
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes[&1], outcome(1, Verdict::Noticed("sim:32 c: y".to_string())));
        assert_eq!(totals(&outcomes), "1 of 1 noticed (100.0 %), 0 survived; 1 did not compile");
        assert!(
            markdown(&outcomes).contains(r#"| a.cuh:3 | `a \|\| "b"` | (nothing) | noticed | sim:32 c: y |"#)
        );
    }
}
