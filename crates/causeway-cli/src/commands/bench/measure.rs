//! Timing a call and its floor in turns, on memory that the cache no longer holds.

use std::time::{Duration, Instant};

use causeway::{Device, Result};
use serde::{Deserialize, Serialize};

use super::buffers::{Buffers, Call, Inputs};
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

/// Measures one call on a CPU. Each round times the floor once and the call twice, each on the next set of tensors.
pub(super) fn measure(
    inputs: &Inputs,
    call: Call,
    device: &Device,
    budget: Duration,
    count: impl FnOnce(u64) -> usize,
) -> Result<Measurement> {
    let mut buffers = Buffers::new(inputs, call, device, count)?;
    let mut turns = (0..buffers.count).cycle();
    let mut next = move || turns.next().unwrap_or(0);
    for _ in 0..2 {
        buffers.run(next(), device)?;
    }
    let pass = fastest_pass(&mut buffers, &mut next);

    let (mut floor, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while floor.len() < MIN_ROUNDS || start.elapsed() < budget && floor.len() < MAX_ROUNDS {
        floor.push(time_pass(&mut buffers, pass, next()));
        for samples in [&mut first, &mut second] {
            let turn = next();
            let start = Instant::now();
            buffers.run(turn, device)?;
            samples.push(start.elapsed().as_secs_f64());
        }
    }
    let noise = noise(&first, &second);
    first.append(&mut second);
    let (time, floor) = (Summary::of(&first), Summary::of(&floor));
    let mut outputs = || {
        buffers.reset(inputs)?;
        buffers.run(0, device)?;
        buffers.fetch()
    };
    let outputs = [outputs()?, outputs()?];
    Ok(Measurement {
        ratio: time.median / floor.median,
        time,
        floor,
        floor_method: pass.describe(),
        noise,
        bytes: buffers.moved,
        sets: buffers.count,
        rotation_bytes: buffers.count as u64 * buffers.streamed,
        wrong: check::check(inputs, call, outputs)?,
    })
}

/// The way to make the pass that is fastest here.
fn fastest_pass(buffers: &mut Buffers, next: &mut impl FnMut() -> usize) -> Pass {
    let timed = Pass::all().into_iter().map(|pass| {
        let times: Vec<_> = (0..TRIALS).map(|_| time_pass(buffers, pass, next())).collect();
        (Summary::of(&times).median, pass)
    });
    let fastest = timed.min_by(|a, b| a.0.total_cmp(&b.0));
    fastest.expect("there is always a plain pass").1
}

fn time_pass(buffers: &mut Buffers, pass: Pass, turn: usize) -> f64 {
    let (first, second, to, bytes) = buffers.floor();
    let bytes = bytes as usize;
    let (first, second) = (&first.host(turn)[..bytes], second.map(|second| &second.host(turn)[..bytes]));
    let to = &mut to.host_mut(turn)[..bytes];
    let start = Instant::now();
    match second {
        None => pass.copy(first, to),
        Some(second) => pass.add(first, second, to),
    }
    start.elapsed().as_secs_f64()
}
