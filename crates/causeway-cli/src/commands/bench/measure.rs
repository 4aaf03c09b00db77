//! Timing a call and its floor in turns, on memory that the cache no longer holds.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use causeway::{Device, Result};
use causeway_verify::evidence::{Measurement, Summary};

use super::buffers::{Buffers, Call, Inputs};
use super::check;
use super::floor::Pass;
use super::samples::{Part, Rounds};

/// Calls of each way to make the floor's pass before the fastest is chosen.
const TRIALS: usize = 5;
/// Rounds: the least are measured even if they take longer than the budget, and more than the most would not tell more.
const ROUNDS: RangeInclusive<usize> = 5..=2000;

/// Measures one call on a CPU, each time on the next set of tensors.
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

    let rounds = Rounds::measure(budget, ROUNDS, |part| {
        let turn = next();
        if part == Part::Floor {
            return Ok(time_pass(&mut buffers, pass, turn));
        }
        let start = Instant::now();
        buffers.run(turn, device)?;
        Ok(start.elapsed().as_secs_f64())
    })?;
    let mut outputs = || {
        buffers.reset(inputs)?;
        buffers.run(0, device)?;
        buffers.fetch()
    };
    let outputs = [outputs()?, outputs()?];
    let wrong = check::check(inputs, call, outputs)?;
    Ok(rounds.measurement(pass.describe(), buffers.moved, (buffers.count, buffers.streamed), wrong))
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
