//! Times of repeated calls, and what can be said from them.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use causeway::Result;
use serde::{Deserialize, Serialize};

/// Seconds per call: the middle, and how far the rest lies from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub calls: usize,
    pub median: f64,
    /// A fifth of the calls were faster than this.
    pub p20: f64,
    /// A fifth of the calls were slower than this.
    pub p80: f64,
}

impl Summary {
    /// Of at least one sample.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Summary {
            calls: sorted.len(),
            median: quantile(&sorted, 0.5),
            p20: quantile(&sorted, 0.2),
            p80: quantile(&sorted, 0.8),
        }
    }
}

/// Linear interpolation between the two nearest order statistics.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

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
}

/// How much two medians of the same thing differ: what a smaller difference cannot mean.
fn noise(first: &[f64], second: &[f64]) -> f64 {
    (Summary::of(first).median / Summary::of(second).median).ln().abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((summary.calls, summary.median), (4, 2.5));
        assert!((summary.p20 - 1.6).abs() < 1e-12 && (summary.p80 - 3.4).abs() < 1e-12);
        assert_eq!(Summary::of(&[7.0]), Summary { calls: 1, median: 7.0, p20: 7.0, p80: 7.0 });
    }

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

    #[test]
    fn noise_is_zero_for_equal_series_and_symmetric() {
        assert_eq!(noise(&[1.0, 2.0], &[2.0, 1.0]), 0.0);
        assert!((noise(&[1.1], &[1.0]) - noise(&[1.0], &[1.1])).abs() < 1e-12);
    }
}
