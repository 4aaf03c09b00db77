//! A run over mutants of the planners. A mutant is noticed by the planners' own tests; by planning, which panics or refuses a
//! case; or by a case of which it changed a plan, and that fails. Another plan that is right as well is noticed by
//! tests/plans.tsv, which holds a digest of all of them; a mutant that changes no plan on any device cannot be told from the
//! source.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use causeway_sim::Settings;
use causeway_verify::suite::{identity, plans};

use super::cases::cases;
use super::check::{self, Check, Job, Verdict};
use super::options::Options;
use super::random::Random;
use super::results::{self, Outcome};
use super::schemata::{Numbered, Planner, is_possible};
use super::workspace::{self, Built};

/// Devices that are planned for, those of tests/plans.rs: first those of tests/simulator, whose cases are preferred where plans
/// differ.
const DEVICES: [&str; 12] = [
    "sim:32",
    "sim:64",
    "sim:sm_80",
    "sim:gfx942",
    "sim:sm_75",
    "sim:sm_89",
    "sim:sm_90a",
    "sim:sm_120",
    "sim:gfx90a",
    "sim:gfx950",
    "sim:gfx1030",
    "sim:gfx1100",
];

/// The environment variable that tells a process which mutant it is.
const VARIABLE: &str = "CAUSEWAY_MUTANT";

/// By device and case: a digest of the plans, or what went wrong.
type Plans = BTreeMap<(String, String), String>;

/// Judges mutants until so many are that compile, and prints the table.
pub fn run(options: &Options) -> Result<(), String> {
    std::fs::create_dir_all(&options.folder).map_err(|error| error.to_string())?;
    let planners = workspace::planners()?;
    let file = options.folder.join(format!("planners-{}-{}.toml", options.seed, digest(&planners)));
    let known = results::read(&file)?;
    if options.table {
        print!("{}", results::markdown(&known));
        return Ok(());
    }
    let drawn = draw(&planners, options.seed);
    eprintln!("{} edits", drawn.len());
    // A few more than are wanted: some do not compile.
    let mutants = &drawn[..drawn.len().min(options.count + options.count / 4 + 5)];
    let mut stillborn = BTreeSet::new();
    let built = workspace::build(&options.folder, &planners, mutants, &mut stillborn)?;
    let sound = match plan(&built, None)? {
        Ok(plans) => plans,
        Err(why) => return Err(format!("the copy without a mutant cannot plan: {why}")),
    };
    if let Some(failure) = unit_tests(&built, None)? {
        return Err(format!("the copy without a mutant fails its tests: {failure}"));
    }
    // A number is a place in the seed's order.
    results::judge_all(options, &file, known, mutants.iter().map(|mutant| mutant.number), |number| {
        let mut outcome = outcome(&planners, &drawn[number]);
        if stillborn.contains(&number) {
            return Ok(outcome.judged(Verdict::Stillborn("does not compile".to_string())));
        }
        judge(&built, &sound, options, number, &mut outcome)?;
        Ok(outcome)
    })
}

/// All edits of the planners, in the order in which the seed draws them.
fn draw(planners: &[Planner], seed: u64) -> Vec<Numbered> {
    let mut mutants = Vec::new();
    for (planner, of) in planners.iter().enumerate() {
        for edit in of.source.edits.iter().filter(|edit| is_possible(planners, edit)) {
            mutants.push(Numbered { planner, edit: edit.clone(), number: 0 });
        }
    }
    Random::new(seed).shuffle(&mut mutants);
    mutants.iter_mut().enumerate().for_each(|(number, mutant)| mutant.number = number);
    mutants
}

fn digest(planners: &[Planner]) -> String {
    let mut hasher = blake3::Hasher::new();
    planners.iter().for_each(|planner| {
        hasher.update(planner.text.as_bytes());
    });
    hasher.finalize().to_hex()[..16].to_string()
}

fn outcome(planners: &[Planner], mutant: &Numbered) -> Outcome {
    let Planner { file, text, .. } = &planners[mutant.planner];
    let before = &text[..mutant.edit.bytes.start];
    Outcome {
        number: mutant.number,
        file: file.clone(),
        line: before.matches('\n').count() + 1,
        column: before.len() - before.rfind('\n').map_or(0, |newline| newline + 1),
        right: text[mutant.edit.bytes.clone()].to_string(),
        wrong: mutant.edit.wrong.clone(),
        result: String::new(),
        by: String::new(),
        seconds: 0,
    }
}

fn judge(
    built: &Built,
    sound: &Plans,
    options: &Options,
    number: usize,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let mut noticed = |by: String| {
        *outcome = outcome.clone().judged(Verdict::Noticed(by));
        Ok(())
    };
    if let Some(test) = unit_tests(built, Some(number))? {
        return noticed(test);
    }
    let plans = match plan(built, Some(number))? {
        Ok(plans) => plans,
        Err(why) => return noticed(format!("planning: {why}")),
    };
    let differs = |place: &&(String, String)| plans.get(*place) != sound.get(*place);
    let mut different: Vec<_> = sound.keys().filter(differs).collect();
    for place in &different {
        let (device, case) = place;
        match plans.get(*place) {
            Some(digest) if digest.starts_with("plans ") => {}
            other => return noticed(format!("{device} {case}: {}", other.map_or("no plan", String::as_str))),
        }
    }
    if different.is_empty() {
        outcome.result = "same plans".to_string();
        outcome.by = format!("{} plans", sound.len());
        return Ok(());
    }
    let count = different.len();
    Random::new(options.seed.wrapping_add(number as u64)).shuffle(&mut different);
    // Devices of tests/simulator first.
    different.sort_by_key(|(device, _)| DEVICES.iter().position(|known| known == device) > Some(3));
    different.truncate(options.cases);
    let batches = check::batches(&different, |(device, case)| {
        vec![Check { device: device.clone(), case: case.clone() }]
    });
    let mut command = Command::new(&built.program);
    command.env(VARIABLE, number.to_string());
    command.env("RAYON_NUM_THREADS", options.jobs.to_string());
    command.env("CAUSEWAY_SIM_DIR", options.folder.join("units"));
    *outcome = outcome.clone().judged(Job { suite: None, patch: None, batches }.start(command)?);
    if outcome.result == "survived" {
        // As right, so that no result tells: but not what the table has.
        let by = format!("tests/plans.tsv: {count} cases have other plans, and {}", outcome.by);
        *outcome = outcome.clone().judged(Verdict::Noticed(by));
    }
    Ok(())
}

/// The planners' own tests; what failed.
fn unit_tests(built: &Built, number: Option<usize>) -> Result<Option<String>, String> {
    let mut command = Command::new(&built.tests);
    // The simulator compiles nothing here: planners, argument blocks, and the suites' plans.
    command.args(["backend::gpu::causal_conv1d", "suite::plans", "--test-threads", "1"]);
    Ok(match ended(command, number)? {
        None => Some("tests of the planners: no end".to_string()),
        Some((true, _)) => None,
        Some((false, output)) => {
            let failed =
                output.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
            Some(format!("test {}", failed.unwrap_or("of the planners: the process ended")))
        }
    })
}

/// Every plan of the suite on every device; or why there are none.
fn plan(built: &Built, number: Option<usize>) -> Result<Result<Plans, String>, String> {
    let mut command = Command::new(&built.program);
    command.arg("--plans");
    let output = match ended(command, number)? {
        None => return Ok(Err("no end".to_string())),
        Some((false, _)) => return Ok(Err("the process ended".to_string())),
        Some((true, output)) => output,
    };
    let line = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(ToString::to_string);
        Some(((parts.next()?, parts.next()?), parts.next()?))
    };
    Ok(Ok(output.lines().filter_map(line).collect()))
}

/// Whether the process succeeded, and what it said; None if it did not end.
fn ended(mut command: Command, number: Option<usize>) -> Result<Option<(bool, String)>, String> {
    const MOST: Duration = Duration::from_secs(180);
    if let Some(number) = number {
        command.env(VARIABLE, number.to_string());
    }
    let output = tempfile::tempfile().map_err(|error| error.to_string())?;
    let copy = output.try_clone().map_err(|error| error.to_string())?;
    let mut child =
        command.stdout(Stdio::from(copy)).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if start.elapsed() > MOST {
            // It may have ended by itself just now.
            let _ = child.kill();
            child.wait().map_err(|error| error.to_string())?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut text = String::new();
    let mut output = output;
    std::io::Seek::rewind(&mut output).map_err(|error| error.to_string())?;
    std::io::Read::read_to_string(&mut output, &mut text).map_err(|error| error.to_string())?;
    Ok(Some((status.success(), text)))
}

/// The other side of [`plan`]: prints a digest of each case's plans on each device.
pub fn print_plans() -> Result<(), String> {
    // A planner that panics has been noticed; its message would be printed for each case.
    std::panic::set_hook(Box::new(|_| {}));
    let cases = cases()?;
    for device in DEVICES {
        let settings = Settings::parse(device).map_err(|error| error.to_string())?;
        let facts = settings.ok_or_else(|| format!("{device} is no simulator"))?.facts;
        for case in &cases {
            let digest = match catch_unwind(|| plans(case, &facts)) {
                Err(_) => "panics".to_string(),
                Ok(Err(error)) => {
                    format!("is refused: {}", error.to_string().lines().next().unwrap_or_default())
                }
                Ok(Ok(plans)) => {
                    let mut hasher = blake3::Hasher::new();
                    plans.iter().for_each(|(call, plan)| {
                        hasher.update(&identity(call, plan));
                    });
                    format!("plans {}", &hasher.finalize().to_hex()[..16])
                }
            };
            println!("{device}\t{}\t{digest}", case.name);
        }
    }
    Ok(())
}
