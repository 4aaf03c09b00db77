//! Cases that a mutant is shown to, in a process of its own: what goes astray may hang it or bring it down.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use causeway::backend::gpu::Executor;
use causeway::{Device, Error};
use causeway_sim::{Patch, Simulator};
use causeway_verify::suite::{Case, distinct_plans, run_case};

use super::cases::{cases, cases_of_file, edges};
use super::kernels::root;

/// A case on a device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Check {
    /// With an order, as `causeway verify --device` takes it.
    pub device: String,
    /// Its name.
    pub case: String,
}

/// Batches of growing size: a mutant that is noticed early costs few compilations.
pub fn batches<T>(things: &[T], checks: impl Fn(&T) -> Vec<Check>) -> Vec<Vec<Check>> {
    let (mut rest, mut size, mut batches) = (things, 4, Vec::new());
    while !rest.is_empty() {
        let (batch, others) = rest.split_at(size.min(rest.len()));
        batches.push(batch.iter().flat_map(&checks).collect());
        (rest, size) = (others, size * 2);
    }
    batches
}

/// What a process is asked to do.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// File, line, byte of the line, text that goes, text that comes; none where the mutant is in the program itself.
    pub patch: Option<(String, usize, usize, String, String)>,
    /// A suite's file, whose cases are known beside those of `sim`.
    pub suite: Option<PathBuf>,
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
    pub fn of_patch(patch: &Patch, suite: Option<PathBuf>, batches: Vec<Vec<Check>>) -> Self {
        let Patch { file, line, column, right, wrong } = patch.clone();
        Job { suite, patch: Some((file, line, column, right, wrong)), batches }
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
        let end = watch(&mut child);
        // It may have ended by itself.
        let _ = child.kill();
        let status = child.wait().map_err(|error| error.to_string())?;
        match end {
            End::Verdict(verdict) => Ok(verdict),
            End::Died(last) => Ok(Verdict::Noticed(format!("{last}: the process ended, {status}"))),
            End::Failed(error) => Err(error),
        }
    }
}

/// The command of a process whose kernels are compiled with the options of tests/sanitizers, and what it checks. Its
/// compiled kernels are others, so `units` is a folder of its own.
pub fn sanitized(mut command: Command, units: &Path) -> Result<(Command, Vec<Vec<Check>>), String> {
    let script =
        std::fs::read_to_string(root().join("tests/sanitizers")).map_err(|error| error.to_string())?;
    let flags = script.lines().find_map(|line| line.strip_prefix("export CAUSEWAY_SIM_FLAGS=\""));
    let flags = flags.and_then(|flags| flags.strip_suffix('"')).ok_or("tests/sanitizers has no flags")?;
    let (compiler, _) = causeway_sim::compiler().map_err(|error| error.to_string())?;
    let name = format!("-print-file-name=libclang_rt.asan-{}.so", std::env::consts::ARCH);
    let found = Command::new(compiler).arg(name).output().map_err(|error| error.to_string())?;
    // The sanitizers' runtime has to be in the process before anything else allocates.
    command.env("LD_PRELOAD", String::from_utf8_lossy(&found.stdout).trim());
    command
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env("CAUSEWAY_SIM_FLAGS", flags)
        .env("CAUSEWAY_SIM_DIR", units);
    let edges = edges()?;
    let of_device = |device: &&str| {
        let check = |case: &Case| Check { device: device.to_string(), case: case.name.clone() };
        edges.iter().map(check).collect()
    };
    Ok((command, ["sim:32", "sim:64:shuffled:1"].iter().map(of_device).collect()))
}

/// What a process comes to.
enum End {
    Verdict(Verdict),
    /// Without a verdict, while it did this.
    Died(String),
    /// It could not do its job: that says nothing of the mutant.
    Failed(String),
}

/// Hears what the process says.
fn watch(child: &mut Child) -> End {
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
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return End::Verdict(Verdict::Noticed(format!("{last}: no end")));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return End::Died(last),
        };
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("noticed", by) => return End::Verdict(Verdict::Noticed(by.to_string())),
            ("stillborn", why) => return End::Verdict(Verdict::Stillborn(why.to_string())),
            ("survived", count) => return End::Verdict(Verdict::Survived(count.parse().unwrap_or(0))),
            ("failed", why) => return End::Failed(why.to_string()),
            ("checking", what) => last = what.to_string(),
            _ => last = "compiling".to_string(),
        }
    }
}

/// The other side: does a job and prints what happens.
pub fn run(file: &Path) -> Result<(), String> {
    limit_memory();
    let done = show(file);
    if let Err(error) = &done {
        println!("failed {}", one_line(error));
    }
    done
}

fn show(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let job: Job = toml::from_str(&text).map_err(|error| error.to_string())?;
    let own = job.suite.as_deref().map_or(Ok(Vec::new()), cases_of_file)?;
    let known = cases()?.into_iter().chain(edges()?).chain(own);
    let cases: HashMap<String, Case> = known.map(|case| (case.name.clone(), case)).collect();
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

/// A mutant that asks for all of the machine's memory gets none. Sanitizers ask for more addresses than there is memory.
fn limit_memory() {
    if std::env::var_os("ASAN_OPTIONS").is_some() {
        return;
    }
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
        assert_eq!(verdict("echo checking sim:64 b; echo failed no case b"), Err("no case b".to_string()));
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
