//! Draws calls and runs them.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use causeway::backend::gpu::choice::Choice;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::device::Device;
use causeway::error::Result;

use super::super::case::Case;
use super::super::coverage::{Coverage, Reachable};
use super::super::engine::{run_case, run_case_noting};
use super::super::plans::{kernels, plans};
use super::super::random::Random;
use super::super::report::CaseReport;
use super::draw::Space;
use super::outcome::{Outcome, RandomCalls, RandomFailure};
use super::row::Row;
use super::shrink::shrink;
use super::thresholds;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Calls {
    /// What the calls are drawn from.
    pub space: Space,
    /// Decides every draw, together with the device's facts.
    pub seed: u64,
    /// How many calls.
    pub count: usize,
    /// No call begins after this long.
    pub limit: Option<Duration>,
    /// Failures after which no further call begins.
    pub most_failures: usize,
}

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Calls that ran.
    pub calls: usize,
    /// Distinct kernels that they launched.
    pub kernels: usize,
    /// Calls that failed.
    pub failures: usize,
}

/// A call waits for the kernels of others, which are compiled together.
const BATCH: usize = 256;

/// Of so many calls on a device that compiles kernels, one may need new ones. A simulator compiles many together, in the time
/// that a GPU's compiler takes for one.
fn calls_of_a_kernel(device: &Device) -> usize {
    if matches!(device, Device::Simulated(_)) { 4 } else { 16 }
}

/// Draws of which the newest is taken where kernels may be compiled.
const CANDIDATES: usize = 48;

/// Draws of sizes for kernels that are there: most would launch others.
const SIZES: usize = 64;

/// Rows of an operation whose options are used again.
const KNOWN_ROWS: usize = 4096;

/// How often a failing row is tried while it is made smaller.
const SHRINKING: usize = 400;

/// After so many failures more of them say nothing new.
pub const MOST_FAILURES: usize = 20;

/// Draws and runs calls. `prepare` gets cases before they run: it may compile their kernels, all at once. `progress` is told of
/// each call, and may end the run there.
///
/// # Errors
/// Those of `prepare`, and what the driver says.
pub fn run(
    calls: &Calls,
    device: &Device,
    mut prepare: impl FnMut(&[Case]) -> Result<()>,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Outcome> {
    let start = Instant::now();
    let mut source = Source::new(calls, device);
    let calls_of = RandomCalls { seed: calls.seed, asked: calls.count, ..RandomCalls::default() };
    let mut outcome = Outcome { calls: calls_of, ..Outcome::default() };
    let mut done = 0;
    'batches: while done < calls.count {
        let batch: Vec<(Row, Case)> =
            (done..calls.count.min(done + BATCH)).map(|number| source.draw(number)).collect();
        done += BATCH;
        let cases: Vec<Case> = batch.iter().map(|(_, case)| case.clone()).collect();
        prepare(&cases)?;
        for (row, case) in batch {
            if calls.limit.is_some_and(|limit| start.elapsed() >= limit)
                || outcome.failed.len() >= calls.most_failures
            {
                break 'batches;
            }
            let report = run_case_noting(&case, device, NonZero::<u32>::MIN, None, &mut outcome.coverage);
            outcome.calls.add(row.operation, &report);
            if !report.passed {
                let (smallest, report) = shrunk(&row, report, device);
                let [drawn, smallest] = [&row, &smallest].map(Row::to_suite);
                outcome.calls.failures.push(RandomFailure { case: report.name.clone(), drawn, smallest });
                outcome.failed.push(report);
            }
            let now = Progress {
                calls: outcome.calls.count(),
                kernels: source.known.len(),
                failures: outcome.failed.len(),
            };
            if progress(now).is_break() {
                break 'batches;
            }
        }
    }
    outcome.calls.kernels = source.plans.len();
    outcome.calls.pairs = source.pairs.len();
    outcome.plans = source.plans;
    Ok(outcome)
}

/// A row that fails as small as it still does, and what that gives.
fn shrunk(drawn: &Row, report: CaseReport, device: &Device) -> (Row, CaseReport) {
    // A device that a kernel has brought down refuses every further call: that says nothing about them.
    if device.synchronize().is_err() {
        return (drawn.clone(), report);
    }
    let mut last = report;
    let smallest = shrink(drawn, SHRINKING, |row| {
        let Ok(case) = row.case() else { return false };
        let report = run_case(&case, device);
        // A call that is refused is another fault than one with a wrong result.
        let fails = !report.passed && report.error.is_some() == last.error.is_some();
        if fails {
            last = report;
        }
        fails
    });
    (smallest, last)
}

/// Where rows come from.
struct Source<'a> {
    calls: &'a Calls,
    device: &'a Device,
    facts: Option<DeviceFacts>,
    random: Random,
    /// Kernels that are compiled, or will be before the calls of this batch run.
    known: HashSet<Choice>,
    /// A launch of each of them.
    plans: Vec<Plan>,
    /// Rows that need them, by operation.
    rows: HashMap<&'static str, Vec<Row>>,
    /// Pairs of choices that calls have had.
    pairs: HashSet<u64>,
}

/// Every two choices of a launch, as a hash.
fn pairs(plan: &Plan) -> Vec<u64> {
    let choices: Vec<u64> = Coverage::choices(plan).iter().map(hash).collect();
    let pair = |a: usize, b: usize| hash(&(choices[a], choices[b]));
    (0..choices.len()).flat_map(|b| (0..=b).map(move |a| (a, b))).map(|(a, b)| pair(a, b)).collect()
}

fn hash<T: Hash>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<'a> Source<'a> {
    fn new(calls: &'a Calls, device: &'a Device) -> Self {
        let facts = device.facts().cloned();
        let random = Random::new("calls", &calls.seed.to_string());
        Source {
            calls,
            device,
            facts,
            random,
            known: HashSet::new(),
            plans: Vec::new(),
            rows: HashMap::new(),
            pairs: HashSet::new(),
        }
    }

    /// The call of a number.
    fn draw(&mut self, number: usize) -> (Row, Case) {
        let name = format!("random-{}-{number}", self.calls.seed);
        loop {
            // The rare draw is no call.
            if let Some(drawn) = self.try_draw(&name) {
                return drawn;
            }
        }
    }

    fn try_draw(&mut self, name: &str) -> Option<(Row, Case)> {
        let operation = self.calls.space.operation(&mut self.random);
        let Some(facts) = self.facts.clone() else {
            let row = self.calls.space.draw(&mut self.random, operation, name);
            return row.case().ok().map(|case| (row, case));
        };
        let rows = self.rows.entry(operation).or_default().len();
        if rows > 0 && !self.random.once_in(calls_of_a_kernel(self.device)) {
            // Sizes for a kernel that is there; not every size has the alignment that it wants.
            for _ in 0..SIZES {
                let options = &self.rows[operation][self.random.below(rows)];
                let row = self.calls.space.with_new_sizes(&mut self.random, options, name);
                let row = self.beside_threshold(row, &facts);
                let Ok(case) = row.case() else { continue };
                let Ok(kernels) = kernels(&case, &facts) else { continue };
                if kernels.iter().all(|kernel| self.known.contains(kernel)) {
                    return Some((row, case));
                }
            }
            // Else the call of another name: the same sizes, and other numbers and changes of index.
            let mut row = self.random.one_of(&self.rows[operation]).clone();
            row.table.insert("name".into(), name.into());
            self.calls.space.draw_runs(&mut self.random, &mut row);
            return row.case().ok().map(|case| (row, case));
        }
        let (row, case) = self.newest(operation, name, &facts)?;
        for (_, plan) in plans(&case, &facts).unwrap_or_default() {
            self.pairs.extend(pairs(&plan));
            if self.known.insert(plan.choice.clone()) {
                self.plans.push(plan);
            }
        }
        if rows < KNOWN_ROWS {
            self.rows.entry(operation).or_default().push(row.clone());
        }
        Some((row, case))
    }

    /// Of several draws the one with the most pairs of choices, for each kernel to be compiled, that no call has had yet.
    fn newest(&mut self, operation: &'static str, name: &str, facts: &DeviceFacts) -> Option<(Row, Case)> {
        let mut best = None;
        let mut most = 0;
        let rows = self.rows[operation].len();
        for number in 0..CANDIDATES {
            // Other sizes of a call's options often need one new kernel and not all.
            let row = if rows > 0 && number % 2 == 1 {
                let options = &self.rows[operation][self.random.below(rows)];
                self.calls.space.with_new_sizes(&mut self.random, options, name)
            } else {
                self.calls.space.draw(&mut self.random, operation, name)
            };
            let row = self.beside_threshold(row, facts);
            let Ok(case) = row.case() else { continue };
            let planned = plans(&case, facts).unwrap_or_default();
            if !planned.iter().all(|(_, plan)| self.device.can_run(plan)) {
                continue;
            }
            let new: HashSet<u64> = planned.iter().flat_map(|(_, plan)| pairs(plan)).collect();
            let new = new.iter().filter(|pair| !self.pairs.contains(pair)).count();
            let kernels: HashSet<&Choice> = planned.iter().map(|(_, plan)| &plan.choice).collect();
            let new = new / kernels.into_iter().filter(|kernel| !self.known.contains(*kernel)).count().max(1);
            if best.is_none() || new > most {
                (best, most) = (Some((row, case)), new);
            }
        }
        best
    }

    /// Now and then the row at another size, where the planner changes its mind.
    fn beside_threshold(&mut self, row: Row, facts: &DeviceFacts) -> Row {
        if !self.random.once_in(4) {
            return row;
        }
        let elements = self.calls.space.most_elements(&row);
        thresholds::beside_threshold(&mut self.random, &row, facts, elements).unwrap_or(row)
    }
}

impl Space {
    /// What planners choose for this many draws of this seed, with a row for each choice: what calls can reach.
    pub fn reachable(&self, facts: &DeviceFacts, seed: u64, draws: usize) -> Reachable {
        let mut random = Random::new("reachable", &seed.to_string());
        let mut reachable = Reachable::new();
        for number in 0..draws {
            let operation = self.operation(&mut random);
            let drawn = self.draw(&mut random, operation, &format!("draw-{number}"));
            let beside = thresholds::beside_threshold(&mut random, &drawn, facts, self.most_elements(&drawn));
            for row in [Some(drawn), beside].into_iter().flatten() {
                let Ok(case) = row.case() else { continue };
                let Ok(plans) = plans(&case, facts) else { continue };
                for choice in plans.iter().flat_map(|(_, plan)| Coverage::choices(plan)) {
                    reachable.entry(choice).or_insert_with(|| row.clone());
                }
            }
        }
        reachable
    }
}
