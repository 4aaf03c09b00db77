//! Timing a call and its floor in turns, on memory that the cache no longer holds.

use std::time::{Duration, Instant};

use causeway::suite::Conv1d;
use causeway::{Device, Result};
use serde::{Deserialize, Serialize};

use super::buffers::{Buffers, Call, Set};
use super::check;
use super::floor::Pass;
use super::samples::{Summary, noise};

/// Calls of each way to make the floor's pass before the fastest is chosen.
const TRIALS: usize = 5;
/// Rounds that are measured even if they take longer than the budget.
const MIN_ROUNDS: usize = 5;
/// More rounds would not tell more.
const MAX_ROUNDS: usize = 2000;

/// What is known about one call on one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measurement {
    /// Of the call, in seconds.
    pub time: Summary,
    /// Of the pass that moves the same bytes, in seconds.
    pub floor: Summary,
    /// How the pass was made.
    pub floor_method: String,
    /// Median of the call by median of the floor.
    pub ratio: f64,
    /// Difference of two interleaved series of the same call: smaller ones mean nothing.
    pub noise: f64,
    /// Bytes that the call reads and writes, each once.
    pub bytes: u64,
    /// Sets of tensors that the calls took in turn, and what they hold together.
    pub sets: usize,
    pub rotation_bytes: u64,
    /// What was found wrong with the results; absent when they were right.
    pub wrong: Option<String>,
}

impl Measurement {
    /// Bytes by median time, in 10⁹ bytes per second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.median / 1e9
    }
}

/// Measures one call. Each round times the floor once and the call twice, each on the next set of tensors.
pub(super) fn measure(
    buffers: &mut Buffers,
    problem: &Conv1d,
    call: Call,
    device: &Device,
    budget: Duration,
) -> Result<Measurement> {
    let count = buffers.sets.len();
    let mut sets = (0..count).cycle();
    let mut next = move || sets.next().unwrap_or(0);
    for _ in 0..2 {
        buffers.run(call, next(), device)?;
    }
    let pass = fastest_pass(buffers, call, &mut next);

    let (mut floor, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while floor.len() < MIN_ROUNDS || start.elapsed() < budget && floor.len() < MAX_ROUNDS {
        floor.push(time_pass(&mut buffers.sets[next()], pass, call));
        for samples in [&mut first, &mut second] {
            let set = next();
            let start = Instant::now();
            buffers.run(call, set, device)?;
            samples.push(start.elapsed().as_secs_f64());
        }
    }
    let noise = noise(&first, &second);
    first.append(&mut second);
    let (time, floor) = (Summary::of(&first), Summary::of(&floor));
    let outputs = [buffers.outputs(call, device)?, buffers.outputs(call, device)?];
    Ok(Measurement {
        ratio: time.median / floor.median,
        time,
        floor,
        floor_method: pass.describe(),
        noise,
        bytes: buffers.moved_bytes(call),
        sets: count,
        rotation_bytes: count as u64 * Buffers::streamed_bytes(problem, call),
        wrong: check::check(buffers, problem, call, outputs),
    })
}

/// The way to make the pass that is fastest here.
fn fastest_pass(buffers: &mut Buffers, call: Call, next: &mut impl FnMut() -> usize) -> Pass {
    let timed = Pass::all().into_iter().map(|pass| {
        let times: Vec<_> = (0..TRIALS).map(|_| time_pass(&mut buffers.sets[next()], pass, call)).collect();
        (Summary::of(&times).median, pass)
    });
    let fastest = timed.min_by(|a, b| a.0.total_cmp(&b.0));
    fastest.expect("there is always a plain pass").1
}

fn time_pass(set: &mut Set, pass: Pass, call: Call) -> f64 {
    let bytes = set.x.element_count() * set.x.dtype().size();
    let (x, dy) = (&set.x.bytes()[..bytes], &set.dy.bytes()[..bytes]);
    let result = &mut set.result.bytes_mut()[..bytes];
    let start = Instant::now();
    match call {
        Call::Forward => pass.copy(x, result),
        Call::Backward => pass.add(x, dy, result),
    }
    start.elapsed().as_secs_f64()
}
