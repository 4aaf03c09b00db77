//! Rows of a report from cases and measurements.

use std::path::Path;

use causeway::backend::gpu::artifact::{Artifacts, Launch};
use causeway::backend::gpu::plan::Plan;
use causeway::causal_conv1d::Activation;
use causeway::{Device, Result};
use causeway_verify::evidence::{self, Benchmark, Content, Measurement, Report, Row};
use causeway_verify::suite::{Case, Problem};

use super::buffers::Call;
use crate::failure::Failure;

/// The row of a case's call; `others` are the rows before it.
pub(super) fn row(
    case: &Case,
    call: Call,
    measurement: Measurement,
    launches: Vec<Launch>,
    others: &[Row],
) -> Row {
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
    let mut row = Row {
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
        operations: None,
        launches,
        measurement,
    };
    let plain = others.iter().find(|other| other.variant.is_empty() && is_like(&row, other));
    row.by_plain = plain
        .filter(|_| !row.variant.is_empty())
        .map(|plain| row.measurement.time.median / plain.measurement.time.median);
    row
}

/// True if only the variants and the bias differ.
fn is_like(one: &Row, other: &Row) -> bool {
    let key = |row: &Row| {
        let text = [&row.call, &row.dtype, &row.layout].map(String::clone);
        (text, row.weight_dtype.clone(), row.activation.clone(), row.shape.clone(), row.width)
    };
    key(one) == key(other)
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

/// Notes the launches of a call that is about to be measured, with what the files of their kernels hold.
pub(super) fn note<'a>(
    device: &Device,
    call: &str,
    plans: impl IntoIterator<Item = &'a Plan>,
    kernels: &mut Artifacts,
) -> Result<Vec<Launch>> {
    plans.into_iter().map(|plan| Ok(kernels.note(call, plan, device.check(plan)?))).collect()
}

/// A saved run, of this version or an older one.
pub(super) fn read(path: &Path) -> Result<(Report, Benchmark), Failure> {
    let report = evidence::read(path)?;
    match &report.content {
        Content::Benchmark(benchmark) => {
            let benchmark = benchmark.clone();
            Ok((report, benchmark))
        }
        _ => {
            let (shown, title) = (path.display(), report.title());
            Err(Failure::input(format!("{shown} is not a saved bench run: it is {title:?}"))
                .with_help("`causeway bench --save FILE` writes one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use causeway_verify::evidence::Summary;

    use super::*;

    #[test]
    fn a_variant_stands_beside_the_plain_row_of_its_size() {
        let text = "name = \"v\"\nabout = \"v\"\n[base.conv1d]\nwidth = 4\nlayout = \"channel-last\"\ndtype = \"f32\"\n\
                    activation = \"silu\"\n[[conv1d]]\nname = \"plain\"\nshape = [[1, 8, 64], [1, 8, 65]]\nbias = true\n\
                    [[conv1d]]\nname = \"idx\"\nshape = [[1, 8, 64], [1, 8, 66]]\nseq_idx = [[9, 0], [5, 1]]\n";
        let cases = causeway_verify::suite::Suite::parse("v", text).unwrap().cases;
        let summary = |median| Summary { calls: 9, median, p20: median, p80: median };
        let measurement = |seconds| Measurement {
            time: summary(seconds),
            floor: summary(1.0),
            floor_method: "one thread, ordinary stores".to_string(),
            ratio: seconds,
            noise: 0.0,
            bytes: 1,
            sets: 2,
            rotation_bytes: 2,
            wrong: None,
        };
        let mut rows: Vec<Row> = Vec::new();
        for (case, seconds) in cases.iter().zip([1.0, 2.0, 1.5, 9.0]) {
            let new = row(case, Call::Forward, measurement(seconds), Vec::new(), &rows);
            rows.push(new);
        }
        let ratios: Vec<_> = rows.iter().map(|row| row.by_plain).collect();
        assert_eq!(ratios, [None, None, Some(1.5), None]);
        assert_eq!(
            (rows[2].variant.as_slice(), rows[2].shape.as_slice()),
            (&["seq_idx".to_string()][..], &[1, 8, 64][..])
        );
    }
}
