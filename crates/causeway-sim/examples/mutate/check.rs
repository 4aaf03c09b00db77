//! Cases that a mutant is shown to, in a process of its own: what goes astray may hang it or bring it down.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use causeway::backend::gpu::Executor;
use causeway::suite::{Case, distinct_plans, run_case};
use causeway::{Device, Error};
use causeway_sim::{Patch, Simulator};

use super::coverage::cases;

/// A case on a device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Check {
    /// With an order, as `causeway verify --device` takes it.
    pub device: String,
    /// Its name.
    pub case: String,
}

/// What a process is asked to do.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// File, line, byte of the line, text that goes, text that comes; none where the mutant is in the program itself.
    pub patch: Option<(String, usize, usize, String, String)>,
    /// Shown one after the other until one fails. The kernels of a batch are compiled together.
    pub batches: Vec<Vec<Check>>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// By what.
    Noticed(String),
    /// It does not compile.
    Stillborn(String),
    /// So many checks passed.
    Survived(usize),
}

/// No compilation takes as long.
const MOST_SILENCE: Duration = Duration::from_secs(240);
/// A case that takes a second on a busy machine.
const MOST_OF_A_CASE: Duration = Duration::from_secs(45);

impl Job {
    /// A job for a kernel's mutant.
    pub fn of_patch(patch: &Patch, batches: Vec<Vec<Check>>) -> Self {
        let Patch { file, line, column, right, wrong } = patch.clone();
        Job { patch: Some((file, line, column, right, wrong)), batches }
    }

    /// Does the job in a process that `command` starts; it is this program.
    pub fn start(&self, mut command: Command) -> Result<Verdict, String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let text = toml::to_string(self).map_err(|error| error.to_string())?;
        std::fs::write(file.path(), text).map_err(|error| error.to_string())?;
        let mut child = command
            .arg("--check")
            .arg(file.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let verdict = watch(&mut child);
        // It may have ended by itself.
        let _ = child.kill();
        let status = child.wait().map_err(|error| error.to_string())?;
        Ok(verdict.unwrap_or_else(|last| Verdict::Noticed(format!("{last}: the process ended, {status}"))))
    }
}

/// What the process says; its last words, if it ends without a verdict.
fn watch(child: &mut Child) -> Result<Verdict, String> {
    let (lines, heard) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
    }
    let mut last = "at the start".to_string();
    loop {
        let limit = if last.starts_with("sim:") { MOST_OF_A_CASE } else { MOST_SILENCE };
        let line = match heard.recv_timeout(limit) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(Verdict::Noticed(format!("{last}: no end"))),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(last),
        };
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("noticed", by) => return Ok(Verdict::Noticed(by.to_string())),
            ("stillborn", why) => return Ok(Verdict::Stillborn(why.to_string())),
            ("survived", count) => return Ok(Verdict::Survived(count.parse().unwrap_or(0))),
            ("checking", what) => last = what.to_string(),
            _ => last = "compiling".to_string(),
        }
    }
}

/// The other side: does a job and prints what happens.
pub fn run(file: &Path) -> Result<(), String> {
    limit_memory();
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let job: Job = toml::from_str(&text).map_err(|error| error.to_string())?;
    let cases: HashMap<String, Case> = cases()?.into_iter().map(|case| (case.name.clone(), case)).collect();
    let mut simulators: HashMap<String, Simulator> = HashMap::new();
    let mut count = 0;
    for batch in &job.batches {
        println!("compiling");
        let mut ready = Vec::new();
        for check in batch {
            let case = cases.get(&check.case).ok_or_else(|| format!("no case {}", check.case))?;
            ready.push((check, case, job.simulator(&mut simulators, &check.device)?));
        }
        // All that share a device's kernels at once.
        let mut of_model: HashMap<&str, (Simulator, Vec<&Case>)> = HashMap::new();
        for (check, case, simulator) in &ready {
            let entry = of_model.entry(model(&check.device));
            entry.or_insert_with(|| (simulator.clone(), Vec::new())).1.push(case);
        }
        for (simulator, cases) in of_model.into_values() {
            if let Err(error) = simulator.prepare(&distinct_plans(cases, simulator.facts())) {
                let verdict = if job.patch.is_some() { "stillborn" } else { "noticed compiling:" };
                println!("{verdict} {}", first_error(&error));
                return Ok(());
            }
        }
        for (check, case, simulator) in ready {
            println!("checking {} {}", check.device, case.name);
            let report = run_case(case, &Device::Simulated(Arc::new(simulator)));
            if !report.passed {
                let output = || report.outputs.iter().find(|output| !output.passed()).map(|o| o.name.clone());
                let reason = report.error.clone().or_else(output).unwrap_or_default();
                println!("noticed {} {}: {}", check.device, case.name, one_line(&reason));
                return Ok(());
            }
            count += 1;
        }
    }
    println!("survived {count}");
    Ok(())
}

impl Job {
    /// The mutant on a device; those that differ in their order only share compiled kernels.
    fn simulator(&self, open: &mut HashMap<String, Simulator>, device: &str) -> Result<Simulator, String> {
        let failed = |error: Error| error.to_string();
        let settings = causeway_sim::Settings::parse(device).map_err(failed)?;
        let order = settings.ok_or_else(|| format!("{device} is no simulator"))?.order;
        if !open.contains_key(model(device)) {
            // One block after the other, so that what happens does not depend on the machine.
            let mut simulator = Simulator::open(model(device)).map_err(failed)?.with_workers(1);
            if let Some((file, line, column, right, wrong)) = self.patch.clone() {
                simulator = simulator.with_patches(vec![Patch { file, line, column, right, wrong }]);
            }
            open.insert(model(device).to_string(), simulator);
        }
        Ok(open[model(device)].clone().with_order(order))
    }
}

/// `sim:64` of `sim:64:shuffled:1`.
fn model(device: &str) -> &str {
    device.match_indices(':').nth(1).map_or(device, |(at, _)| &device[..at])
}

fn first_error(error: &Error) -> String {
    let text = error.to_string();
    let line = text.lines().find(|line| line.contains("error:")).or_else(|| text.lines().next());
    one_line(line.unwrap_or_default())
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(160).collect()
}

/// A mutant that asks for all of the machine's memory gets none.
fn limit_memory() {
    let limit = libc::rlimit { rlim_cur: 8 << 30, rlim_max: 8 << 30 };
    // SAFETY: the call reads the struct that it is given.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that plays the process.
    fn verdict(script: &str) -> Result<Verdict, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job::default().start(command)
    }

    #[test]
    fn a_verdict_is_what_the_process_says_or_how_it_ends() {
        assert_eq!(verdict("echo compiling; echo survived 7"), Ok(Verdict::Survived(7)));
        assert_eq!(verdict("echo noticed sim:32 a: y"), Ok(Verdict::Noticed("sim:32 a: y".to_string())));
        assert_eq!(verdict("echo stillborn no"), Ok(Verdict::Stillborn("no".to_string())));
        let crash = verdict("echo checking sim:64 b; kill -SEGV $$");
        assert!(
            matches!(&crash, Ok(Verdict::Noticed(by)) if by.starts_with("sim:64 b: the process ended")),
            "{crash:?}"
        );
    }

    #[test]
    fn orders_share_a_model() {
        assert_eq!(
            ["sim:64", "sim:64:shuffled:1", "sim:gfx942:descending"].map(model),
            ["sim:64", "sim:64", "sim:gfx942"]
        );
    }
}
