//! A call and its floor, timed in turns.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use causeway::Result;
use causeway_verify::evidence::{Measurement, Summary, noise};

/// What a round times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Call,
    Floor,
}

/// A call and its floor, timed in turns, so that what slows the machine for a while slows both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounds {
    pub call: Summary,
    pub floor: Summary,
    /// Difference of the medians of two interleaved series of the same call: smaller ones mean nothing.
    pub noise: f64,
}

impl Rounds {
    /// Each round times the floor once, between two of the call. As many rounds as fit the budget, within `count`.
    pub fn measure(
        budget: Duration,
        count: RangeInclusive<usize>,
        mut seconds: impl FnMut(Part) -> Result<f64>,
    ) -> Result<Self> {
        let (mut first, mut floor, mut second) = (Vec::new(), Vec::new(), Vec::new());
        let start = Instant::now();
        while floor.len() < *count.start() || start.elapsed() < budget && floor.len() < *count.end() {
            first.push(seconds(Part::Call)?);
            floor.push(seconds(Part::Floor)?);
            second.push(seconds(Part::Call)?);
        }
        let noise = noise(&first, &second);
        first.append(&mut second);
        Ok(Rounds { call: Summary::of(&first), floor: Summary::of(&floor), noise })
    }

    /// Median of the call by median of the floor.
    pub fn ratio(&self) -> f64 {
        self.call.median / self.floor.median
    }

    /// What this says of a call that moves so many bytes, on `sets` of tensors in turn, `streamed` bytes each.
    pub fn measurement(
        self,
        floor_method: String,
        bytes: u64,
        (sets, streamed): (usize, u64),
        wrong: Option<String>,
    ) -> Measurement {
        Measurement {
            ratio: self.ratio(),
            time: self.call,
            floor: self.floor,
            floor_method,
            noise: self.noise,
            bytes,
            sets,
            rotation_bytes: sets as u64 * streamed,
            wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_stay_within_their_count_and_tell_call_from_floor() {
        let mut calls = 0;
        let rounds = |budget, count, calls: &mut usize| {
            Rounds::measure(budget, count, |part| {
                *calls += 1;
                Ok(if part == Part::Call { 3.0 } else { 2.0 })
            })
        };
        let least = rounds(Duration::ZERO, 4..=9, &mut calls).unwrap();
        assert_eq!((calls, least.call.calls, least.floor.calls), (12, 8, 4));
        assert_eq!((least.ratio(), least.noise), (1.5, 0.0));
        let most = rounds(Duration::from_secs(3600), 4..=9, &mut calls).unwrap();
        assert_eq!((most.call.calls, most.floor.calls), (18, 9));
    }
}
