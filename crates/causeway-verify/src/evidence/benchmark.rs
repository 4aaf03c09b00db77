//! A run of `bench`: times against a floor of the same run.

use causeway::backend::gpu::artifact::Launch;
use serde::{Deserialize, Serialize};

/// Smaller changes are no regressions, however quiet the machine was.
const SMALLEST_CHANGE: f64 = 0.03;

/// Times of the calls of a suite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Benchmark {
    /// Name or path of the suite.
    pub suite: String,
    /// How the times were taken, in words.
    pub method: Vec<String>,
    /// The calls.
    pub rows: Vec<Row>,
    /// What calls cost the host, where that was asked for.
    #[serde(default)]
    pub host_cost: Option<HostCost>,
}

/// One call on one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// `forward`, `backward`, `update`, `states`, `grad-a` …
    pub call: String,
    /// Of a convolution `(batch, dim, seqlen)`; of other operations the sizes that their case lists first.
    pub shape: Vec<i64>,
    /// Of convolutions and updates, as are the other fields that may be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<i64>,
    /// Dtype of x.
    pub dtype: String,
    /// Dtype of the weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_dtype: Option<String>,
    /// Memory of x.
    pub layout: String,
    /// `none` or `silu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<String>,
    /// What is not plain about the call: states, sequences, a residual.
    #[serde(default)]
    pub variant: Vec<String>,
    /// Median time by that of the plain call of the same shape, dtypes, layout and activation in this run.
    #[serde(default)]
    pub by_plain: Option<f64>,
    /// Floating-point operations of a product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<f64>,
    /// What the call launches; nothing on a CPU.
    #[serde(default)]
    pub launches: Vec<Launch>,
    /// What was measured.
    #[serde(flatten)]
    pub measurement: Measurement,
}

/// What is known about one call on one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
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
    /// Sets of tensors that the calls took in turn.
    pub sets: usize,
    /// What the sets hold together.
    pub rotation_bytes: u64,
    /// What was found wrong with the results; absent when they were right.
    pub wrong: Option<String>,
}

/// Seconds per call: the middle, and how far the rest lies from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Calls that were timed.
    pub calls: usize,
    /// The middle one.
    pub median: f64,
    /// A fifth of the calls were faster than this.
    pub p20: f64,
    /// A fifth of the calls were slower than this.
    pub p80: f64,
}

/// What calls cost the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostCost {
    /// Of many calls in a row.
    pub each: Vec<EachCall>,
    /// Of the first calls of processes.
    pub first: Vec<FirstCalls>,
}

/// Seconds of the host per call, medians of series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EachCall {
    /// `forward`, `backward` or `update`.
    pub call: String,
    /// A whole call: checks, plan and launch.
    pub whole: Summary,
    /// The plan alone, made anew.
    pub plan: Summary,
    /// The launch alone, of a plan that was made before: the driver's part, and the search for the loaded kernel.
    pub launch: Summary,
}

/// The first call of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstCalls {
    /// `forward`, `backward` or `update`.
    pub call: String,
    /// `empty` or `filled`.
    pub cache: String,
    /// Opening the device: the driver's own start is most of it.
    pub open: Summary,
    /// The first call.
    pub first: Summary,
    /// The one after it.
    pub second: Summary,
}

impl Benchmark {
    /// Rows whose results were wrong.
    pub fn wrong(&self) -> usize {
        self.rows.iter().filter(|row| row.measurement.wrong.is_some()).count()
    }

    /// Every row that `before` has too.
    pub fn compare(&self, before: &Benchmark) -> Vec<Change> {
        let pairs = self.rows.iter().filter_map(|after| Some((before.row(&after.case, &after.call)?, after)));
        pairs.map(|(before, after)| Change::between(before, after)).collect()
    }

    /// The row of a case's call.
    pub fn row(&self, case: &str, call: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.case == case && row.call == call)
    }
}

impl Measurement {
    /// Bytes by median time, in 10⁹ bytes per second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.median / 1e9
    }

    /// Median of the floor by median of the call: 1 is as fast as the memory allows.
    pub fn fraction_of_floor(&self) -> f64 {
        self.floor.median / self.time.median
    }
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

/// How much two medians of the same thing differ: what a smaller difference cannot mean.
pub fn noise(first: &[f64], second: &[f64]) -> f64 {
    (Summary::of(first).median / Summary::of(second).median).ln().abs()
}

/// How a row changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Name of the case.
    pub case: String,
    /// `forward`, `backward` …
    pub call: String,
    /// Median before.
    pub seconds_before: f64,
    /// Median after.
    pub seconds_after: f64,
    /// After by before: above 1 is slower.
    pub time: f64,
    /// The same of time by floor, which a machine that is slower today does not change.
    pub ratio: f64,
    /// What a change has to exceed to mean anything.
    pub threshold: f64,
    /// What follows.
    pub verdict: Verdict,
}

/// What a change means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Both time and ratio fell by more than the noise.
    Faster,
    /// Nothing that can be told from noise.
    Same,
    /// Both time and ratio grew by more than the noise.
    Slower,
}

impl Change {
    /// From one row to another.
    pub fn between(before: &Row, after: &Row) -> Self {
        let (old, new) = (&before.measurement, &after.measurement);
        let (time, ratio) = (new.time.median / old.time.median, new.ratio / old.ratio);
        let threshold = SMALLEST_CHANGE.max(2.0 * (old.noise + new.noise));
        // Both have to move: the time alone may be the machine's, the ratio alone the floor's.
        let verdict = if time.min(ratio).ln() > threshold {
            Verdict::Slower
        } else if time.max(ratio).ln() < -threshold {
            Verdict::Faster
        } else {
            Verdict::Same
        };
        Change {
            case: after.case.clone(),
            call: after.call.clone(),
            seconds_before: old.time.median,
            seconds_after: new.time.median,
            time,
            ratio,
            threshold,
            verdict,
        }
    }
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
    fn noise_is_zero_for_equal_series_and_symmetric() {
        assert_eq!(noise(&[1.0, 2.0], &[2.0, 1.0]), 0.0);
        assert!((noise(&[1.1], &[1.0]) - noise(&[1.0], &[1.1])).abs() < 1e-12);
    }

    #[test]
    fn a_change_counts_when_time_and_ratio_both_leave_the_noise() {
        let row = |seconds: f64, floor: f64, noise: f64| {
            let mut row = crate::evidence::sentences::tests::row("large", "forward", seconds, floor);
            row.measurement.noise = noise;
            row
        };
        for (before, after, verdict) in [
            ((1.0, 1.0, 0.0), (1.02, 1.0, 0.0), Verdict::Same),
            ((1.0, 1.0, 0.0), (1.10, 1.0, 0.0), Verdict::Slower),
            ((1.0, 1.0, 0.0), (0.90, 1.0, 0.0), Verdict::Faster),
            // The whole machine is slower, or only the floor is faster.
            ((1.0, 1.0, 0.0), (1.50, 1.5, 0.0), Verdict::Same),
            ((1.0, 1.0, 0.0), (1.00, 0.5, 0.0), Verdict::Same),
            // Noise widens the band.
            ((1.0, 1.0, 0.05), (1.10, 1.0, 0.02), Verdict::Same),
        ] {
            let rows = (row(before.0, before.1, before.2), row(after.0, after.1, after.2));
            assert_eq!(Change::between(&rows.0, &rows.1).verdict, verdict, "{before:?} {after:?}");
        }
    }
}
