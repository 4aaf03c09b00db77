//! A bench run as a file, and two of them side by side.

use std::path::Path;

use serde::{Deserialize, Serialize};

use causeway::causal_conv1d::Activation;
use causeway::suite::{Case, Problem};

use super::buffers::Call;
use super::host_cost::HostCost;
use super::measure::Measurement;
use crate::evidence::DeviceEvidence;
use crate::failure::Failure;
use crate::host::Host;

/// Changes with the meaning of a field.
const FORMAT: u32 = 1;
/// Smaller changes are no regressions, however quiet the machine was.
const SMALLEST_CHANGE: f64 = 0.03;

/// Everything about a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedRun {
    pub format: u32,
    pub causeway: String,
    pub suite: String,
    /// The device, as it names itself.
    pub device: String,
    pub threads: usize,
    pub host: Host,
    /// The GPU and its compiler; absent on a CPU.
    #[serde(default)]
    pub device_evidence: Option<DeviceEvidence>,
    /// Seconds since 1970.
    pub unix_time: u64,
    /// How the times were taken, in words.
    pub method: Vec<String>,
    pub rows: Vec<SavedRow>,
    /// What calls cost the host, where that was asked for.
    #[serde(default)]
    pub host_cost: Option<HostCost>,
}

/// One call on one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedRow {
    pub case: String,
    pub call: String,
    /// Of a convolution `(batch, dim, seqlen)`; of other operations the sizes that their case lists first.
    pub shape: Vec<i64>,
    /// Of convolutions and updates, as are the other fields that may be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<i64>,
    pub dtype: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_dtype: Option<String>,
    pub layout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<String>,
    /// What is not plain about the call: states, sequences, a residual.
    #[serde(default)]
    pub variant: Vec<String>,
    /// Median time by that of the plain call of the same shape, dtypes, layout and activation in this run.
    #[serde(default)]
    pub by_plain: Option<f64>,
    #[serde(flatten)]
    pub measurement: Measurement,
}

impl SavedRow {
    /// `others` are the rows before it.
    pub fn new(case: &Case, call: Call, measurement: Measurement, others: &[SavedRow]) -> Self {
        let problem = &case.problem;
        let (width, weight_dtype, activation) = match problem {
            Problem::Conv1d(c) => (Some(c.width), Some(c.weight_dtype), Some(c.activation)),
            Problem::Update(u) => (Some(u.width), Some(u.weight_dtype), Some(u.activation)),
            _ => (None, None, None),
        };
        let mut variant = problem.options();
        variant.retain(|option| {
            !["bias", "none", "silu"].contains(&option.as_str()) && !option.starts_with("weight ")
        });
        let mut row = SavedRow {
            case: case.name.clone(),
            call: call.name().to_string(),
            shape: sizes(problem),
            width,
            dtype: problem.dtype().to_string(),
            weight_dtype: weight_dtype.map(|dtype| dtype.to_string()),
            layout: problem.layout().to_string(),
            activation: activation.map(|activation: Activation| activation.to_string()),
            variant,
            by_plain: None,
            measurement,
        };
        let plain = others.iter().find(|other| other.variant.is_empty() && row.is_like(other));
        row.by_plain = plain
            .filter(|_| !row.variant.is_empty())
            .map(|plain| row.measurement.time.median / plain.measurement.time.median);
        row
    }

    /// True if only the variants and the bias differ.
    fn is_like(&self, other: &SavedRow) -> bool {
        let key = |row: &SavedRow| {
            let text = [&row.call, &row.dtype, &row.layout].map(String::clone);
            (text, row.weight_dtype.clone(), row.activation.clone(), row.shape.clone(), row.width)
        };
        key(self) == key(other)
    }
}

/// The first three sizes of a case, or two where it has no more.
pub(super) fn sizes(problem: &Problem) -> Vec<i64> {
    problem
        .shape()
        .iter()
        .filter(|(name, _)| !matches!(*name, "width" | "state_len"))
        .map(|(_, size)| *size)
        .collect()
}

impl SavedRun {
    pub const FORMAT: u32 = FORMAT;

    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| Failure::input(format!("{shown}: {e}")))?;
        let run: SavedRun = serde_json::from_str(&text)
            .map_err(|e| Failure::input(format!("{shown} is not a saved bench run: {e}")))?;
        if run.format != FORMAT {
            let found = run.format;
            return Err(Failure::input(format!("{shown} has format {found}: this version reads {FORMAT}")));
        }
        Ok(run)
    }

    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
        Ok(causeway::files::write_bytes(path, (text + "\n").as_bytes())?)
    }

    /// Every row that `before` has too.
    pub fn compare(&self, before: &SavedRun) -> Vec<Change> {
        let pairs = self.rows.iter().filter_map(|after| {
            let same = |before: &&SavedRow| before.case == after.case && before.call == after.call;
            Some((before.rows.iter().find(same)?, after))
        });
        pairs.map(|(before, after)| Change::between(before, after)).collect()
    }
}

/// How a row changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Change {
    pub case: String,
    pub call: String,
    pub seconds_before: f64,
    pub seconds_after: f64,
    /// After by before: above 1 is slower.
    pub time: f64,
    /// The same of time by floor, which a machine that is slower today does not change.
    pub ratio: f64,
    /// What a change has to exceed to mean anything.
    pub threshold: f64,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Faster,
    Same,
    Slower,
}

impl Change {
    fn between(before: &SavedRow, after: &SavedRow) -> Self {
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
    use crate::commands::bench::samples::Summary;

    fn row(seconds: f64, floor: f64, noise: f64) -> SavedRow {
        let summary = |median| Summary { calls: 9, median, p20: median, p80: median };
        SavedRow {
            case: "large".to_string(),
            call: "forward".to_string(),
            shape: vec![8, 2048, 1024],
            width: Some(4),
            dtype: "f32".to_string(),
            weight_dtype: Some("f32".to_string()),
            layout: "channel-first".to_string(),
            activation: Some("silu".to_string()),
            variant: Vec::new(),
            by_plain: None,
            measurement: Measurement {
                time: summary(seconds),
                floor: summary(floor),
                floor_method: "one thread, ordinary stores".to_string(),
                ratio: seconds / floor,
                noise,
                bytes: 1,
                sets: 2,
                rotation_bytes: 2,
                wrong: None,
            },
        }
    }

    #[test]
    fn a_change_counts_when_time_and_ratio_both_leave_the_noise() {
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

    #[test]
    fn a_variant_stands_beside_the_plain_row_of_its_size() {
        let text = "name = \"v\"\nabout = \"v\"\n[base.conv1d]\nwidth = 4\nlayout = \"channel-last\"\ndtype = \"f32\"\n\
                    activation = \"silu\"\n[[conv1d]]\nname = \"plain\"\nshape = [[1, 8, 64], [1, 8, 65]]\nbias = true\n\
                    [[conv1d]]\nname = \"idx\"\nshape = [[1, 8, 64], [1, 8, 66]]\nseq_idx = [[9, 0], [5, 1]]\n";
        let cases = causeway::suite::Suite::parse("v", text).unwrap().cases;
        let mut rows: Vec<SavedRow> = Vec::new();
        for (case, seconds) in cases.iter().zip([1.0, 2.0, 1.5, 9.0]) {
            let new = SavedRow::new(case, Call::Forward, row(seconds, 1.0, 0.0).measurement, &rows);
            rows.push(new);
        }
        let ratios: Vec<_> = rows.iter().map(|row| row.by_plain).collect();
        assert_eq!(ratios, [None, None, Some(1.5), None]);
        assert_eq!(
            (rows[2].variant.as_slice(), rows[2].shape.as_slice()),
            (&["seq_idx".to_string()][..], &[1, 8, 64][..])
        );
    }

    #[test]
    fn saved_runs_are_read_back() {
        let run = SavedRun {
            format: FORMAT,
            causeway: "0.0.0".to_string(),
            suite: "shapes".to_string(),
            device: "cpu (portable)".to_string(),
            threads: 1,
            host: Host::detect(),
            device_evidence: None,
            unix_time: 0,
            method: vec!["by hand".to_string()],
            rows: vec![row(1.0, 0.5, 0.01)],
            host_cost: None,
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        run.write(&path).unwrap();
        assert_eq!(SavedRun::read(&path).unwrap(), run);
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(SavedRun::read(&path), Err(Failure::Input { .. })));
    }
}
