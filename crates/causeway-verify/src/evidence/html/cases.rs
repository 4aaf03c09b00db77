//! Verifications: figures, error plots, and tables of cases and calls.

use std::collections::BTreeMap;

use super::plots::{Dot, Scale, Scatter};
use super::table::{Cell, Column, Table};
use super::{cards as cards_of, escape};
use crate::evidence::{Verification, complaints, words};
use crate::suite::random_calls::RandomCalls;
use crate::suite::{CaseReport, OutputReport};

/// Outputs with a colour of their own in plots; the others share the last one.
const COLOURED: [&str; 4] = ["y", "dx", "dweight", "dbias"];
/// Errors of fewer units than this lie on the lower edge of a plot.
const LEAST_ULPS: f64 = 0.1;

fn cards_of_random(run: &RandomCalls) -> String {
    let (all, failed) = (run.count(), run.failures.len());
    let figures = [
        ("random calls passed", format!("{} of {all}", all - failed), format!("seed {}", run.seed)),
        (
            "elements compared with the oracle",
            words::thousands(run.elements),
            format!("of {}", words::count(run.outputs as usize, "output")),
        ),
        ("distinct kernels", run.kernels.to_string(), "that the calls launched".to_string()),
    ];
    cards_of(&figures)
}

pub(super) fn cards(run: &Verification) -> String {
    if let Some(random) = &run.random {
        return cards_of_random(random);
    }
    let (all, failed) = (run.cases.len(), run.failed());
    let elements: u64 = run.outputs().map(|(_, output)| output.comparison.elements).sum();
    let skipped: usize = run.skipped.values().map(Vec::len).sum();
    let passed = if failed == 0 { format!("{all} of {all}") } else { format!("{} of {all}", all - failed) };
    let worst = run.worst_failure.clone().unwrap_or_default();
    let mut figures = vec![("cases passed", passed, worst)];
    let closest = run.outputs().max_by(|a, b| a.1.comparison.fraction.total_cmp(&b.1.comparison.fraction));
    if let Some((case, output)) = closest {
        let where_ = format!("{} of {}", output.name, case.name);
        figures.push(("largest part of an error bound", words::percent(output.comparison.fraction), where_));
    }
    let outputs = words::count(run.outputs().count(), "output");
    figures.push(("elements compared with the oracle", words::thousands(elements), format!("of {outputs}")));
    let again = if run.repeats == 1 {
        "its bits were not compared with another run's"
    } else {
        "the same bits each time"
    };
    let again =
        if run.outputs().any(|(_, output)| output.differed) { "NOT the same bits each time" } else { again };
    figures.push(("runs of every call", run.repeats.to_string(), again.to_string()));
    if skipped > 0 {
        figures.push(("cases that did not run", skipped.to_string(), "the non-claims say why".to_string()));
    }
    cards_of(&figures)
}

fn colour(output: &str) -> usize {
    COLOURED.iter().position(|name| *name == output).unwrap_or(COLOURED.len()) + 1
}

/// One plot for each dtype: units in the last place over the part of the bound.
pub(super) fn plots(run: &Verification) -> String {
    let mut by_dtype: BTreeMap<&str, Vec<(&CaseReport, &OutputReport)>> = BTreeMap::new();
    for (case, output) in run.outputs() {
        by_dtype.entry(output.dtype.as_str()).or_default().push((case, output));
    }
    if by_dtype.is_empty() {
        return String::new();
    }
    let most = |of: fn(&OutputReport) -> f64| {
        run.outputs().map(|(_, output)| of(output)).filter(|value| value.is_finite()).fold(0.0, f64::max)
    };
    let x = Scale::linear(0.0, most(|output| output.comparison.fraction).clamp(1.1, 3.0));
    let y = Scale::logarithmic(LEAST_ULPS, most(|output| output.comparison.max_ulps).max(10.0));
    let mut html = String::from("<figure><div class=\"plots\">");
    for (dtype, outputs) in &by_dtype {
        let dots = outputs.iter().map(|(case, output)| {
            let found = &output.comparison;
            let (part, ulps) = (found.fraction, found.max_ulps);
            Dot {
                x: part,
                y: ulps.max(LEAST_ULPS),
                class: if output.passed() { format!("k{}", colour(&output.name)) } else { "out".to_string() },
                title: format!(
                    "{} of {}: {} of the bound, {} ulp",
                    output.name,
                    case.name,
                    words::percent(part),
                    words::ulps(ulps)
                ),
                from: None,
            }
        });
        let plot = Scatter {
            title: format!("{dtype}: {}", words::count(outputs.len(), "output")),
            about: format!(
                "Each dot is an output of a case in {dtype}: across, the largest part of its error bound that any \
                 element used; upwards, its largest error in units of the last place. Dots right of 100% failed."
            ),
            x: (x, "part of the bound"),
            y: (y, "ulp"),
            percent: true,
            dots: dots.collect(),
            roof: Vec::new(),
            limit: Some((1.0, "the bound")),
        };
        html.push_str(&format!(
            "<div><p><strong>{}</strong> <span class=\"soft\">{}</span></p>{}</div>",
            escape(dtype),
            words::count(outputs.len(), "output"),
            plot.render()
        ));
    }
    html.push_str("</div><ul class=\"legend\">");
    let names = COLOURED.iter().copied().chain(["other"]);
    for (number, name) in names.enumerate().map(|(i, name)| (i + 1, name)) {
        html.push_str(&format!(
            "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><circle class=\"k{number}\" cx=\"6\" cy=\"6\" r=\"5\"/></svg>{name}</li>"
        ));
    }
    html.push_str(
        "</ul><figcaption>Errors against their bounds. A dot is one output of one case: across, the largest part of its \
         bound that any element used (left of the dashed line passes); upwards, the largest error in units of the \
         output's last place. In 16 bits correct rounding alone uses nearly all of a bound and half a unit; f32 sums of \
         thousands of terms use little of theirs, since it covers every order of summation.</figcaption></figure>",
    );
    html
}

/// One table for each suite: a row for every output of every case.
pub(super) fn tables(run: &Verification) -> Vec<Table> {
    let mut suites: Vec<&str> = Vec::new();
    for case in &run.cases {
        if !suites.contains(&case.suite.as_str()) {
            suites.push(&case.suite);
        }
    }
    suites
        .into_iter()
        .map(|suite| of_suite(suite, run.cases.iter().filter(|case| case.suite == suite)))
        .collect()
}

fn of_suite<'a>(suite: &str, cases: impl Iterator<Item = &'a CaseReport> + Clone) -> Table {
    let (all, failed) = (cases.clone().count(), cases.clone().filter(|case| !case.passed).count());
    let name = if suite.is_empty() { "Cases".to_string() } else { format!("Suite {suite}") };
    let mut table = Table::new(
        &format!("{name}: {}, {failed} failed; largest errors of each output", words::count(all, "case")),
        vec![
            Column::text("case"),
            Column::choice("output"),
            Column::choice("result"),
            Column::number("part of bound"),
            Column::number("ulp"),
            Column::number("max error"),
            Column::number("mean error"),
            Column::number("bound"),
            Column::choice("operation"),
            Column::choice("dtype"),
            Column::choice("layout"),
            Column::text("worst at"),
        ],
    );
    for case in cases {
        if case.outputs.is_empty() {
            let blank = || Cell::text("");
            table.row(vec![
                Cell::text(&case.name),
                Cell::text(case.error.as_deref().unwrap_or("no output")),
                Cell::verdict(false, "FAIL"),
                blank(),
                blank(),
                blank(),
                blank(),
                blank(),
                Cell::choice(&case.operation),
                Cell::choice(&case.dtype),
                Cell::choice(&case.layout),
                blank(),
            ]);
        }
        case.outputs.iter().for_each(|output| table.row(row(case, output)));
    }
    table
}

fn row(case: &CaseReport, output: &OutputReport) -> Vec<Cell> {
    let found = &output.comparison;
    let worst = found.worst.as_ref().map_or(String::new(), |worst| format!("{:?}", worst.coordinate));
    let verdict = match output.passed() {
        true => Cell::verdict(true, "pass"),
        false => Cell::verdict(false, "FAIL"),
    };
    let width = (found.fraction * 100.0).clamp(0.0, 100.0);
    let class = if found.fraction > 1.0 { "over" } else { "full" };
    let bar = format!(
        "<svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"{class}\" width=\"{width:.1}\" height=\"10\"/></svg><span class=\"part\">{}</span>",
        words::percent(found.fraction)
    );
    let error = |value: f64| Cell::number(value, &format!("{value:.2e}"));
    let mut name = escape(&case.name);
    for complaint in complaints(case) {
        name.push_str(&format!("<br><span class=\"bad\">{}</span>", escape(&complaint)));
    }
    vec![
        Cell::html(&name),
        Cell::choice(&output.name),
        verdict,
        Cell::html_number(found.fraction, &bar),
        Cell::number(found.max_ulps, &words::ulps(found.max_ulps)),
        error(found.max_error),
        error(found.mean_error),
        error(found.max_derived_bound),
        Cell::choice(&case.operation),
        Cell::choice(&case.dtype),
        Cell::choice(&case.layout),
        Cell::text(&worst),
    ]
}

/// Every call: what it launched, and how long one took.
pub(super) fn calls(run: &Verification) -> Table {
    // A processor launches nothing.
    let launched = run.cases.iter().any(|case| !case.launches.is_empty());
    let mut columns = vec![
        Column::text("case"),
        Column::choice("call"),
        Column::number("bytes moved"),
        Column::number("time"),
        Column::number("GB/s"),
    ];
    if launched {
        columns.extend([Column::text("kernels"), Column::text("grid × block")]);
    }
    columns.extend([Column::text("shape"), Column::text("options")]);
    let mut table =
        Table::new("Calls: one each, on data that was just made; no measurement of speed", columns);
    for case in &run.cases {
        for timing in &case.timings {
            let rate = timing.gigabytes_per_second();
            let mut cells = vec![
                Cell::text(&case.name),
                Cell::choice(&timing.operation),
                Cell::number(timing.bytes as f64, &words::bytes(timing.bytes)),
                Cell::number(timing.seconds, &words::seconds(timing.seconds)),
                Cell::number(rate, &format!("{rate:.2}")),
            ];
            if launched {
                let launches = case.launches.iter().filter(|launch| launch.call == timing.operation);
                let entries: Vec<_> = launches.clone().map(|launch| launch.entry.as_str()).collect();
                let grids =
                    launches.map(|launch| format!("{} × {}", sizes(launch.grid), sizes(launch.block)));
                cells.push(Cell::text(&entries.join(", ")));
                cells.push(Cell::text(&grids.collect::<Vec<_>>().join("; ")));
            }
            let shape: Vec<_> = case.shape.iter().map(|(name, size)| format!("{name} {size}")).collect();
            cells.extend([Cell::text(&shape.join(", ")), Cell::text(&case.options.join(", "))]);
            table.row(cells);
        }
    }
    table
}

/// `132`, or `16×4` where there is more than one axis.
fn sizes([x, y, z]: [u32; 3]) -> String {
    match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}×{y}"),
        _ => format!("{x}×{y}×{z}"),
    }
}
