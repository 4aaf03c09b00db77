//! Benchmarks: figures, the roofline, and tables with bars against the floor and against another run.

use super::plots::{Dot, Scale, Scatter};
use super::table::{Cell, Column, Table};
use super::{cards as cards_of, escape};
use crate::evidence::{Benchmark, Change, Row, Verdict, words};

/// Calls with a colour of their own in plots.
const COLOURED: [&str; 5] = ["forward", "backward", "update", "states", "grad-ab"];

/// A benchmark, and the run that it is compared with: its version and rows.
pub(super) struct Measured<'a> {
    pub run: &'a Benchmark,
    pub before: Option<(&'a str, &'a Benchmark)>,
}

/// Columns that not every run has.
struct Shown {
    products: bool,
    by_plain: bool,
    kernels: bool,
}

pub(super) fn cards(run: &Benchmark) -> String {
    let wrong = run.wrong();
    let right = run.rows.len() - wrong;
    let remark =
        if wrong == 0 { "two calls agree bit for bit, and samples with the truth" } else { "see the table" };
    let mut figures =
        vec![("calls with right results", format!("{right} of {}", run.rows.len()), remark.to_string())];
    let [others, products] = kinds(run);
    for (rows, name) in
        [(others, "middle fraction of the floor"), (products, "middle speed by the vendor's library")]
    {
        let mut parts: Vec<_> = rows.iter().map(|row| row.measurement.fraction_of_floor()).collect();
        parts.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (parts.first(), parts.last()) {
            let range = format!("from {} to {}", words::percent(*least), words::percent(*most));
            figures.push((name, words::percent(parts[parts.len() / 2]), range));
        }
    }
    if let Some(noise) = run.rows.iter().map(|row| row.measurement.noise).max_by(f64::total_cmp) {
        figures.push(("largest noise", words::percent(noise), "of two interleaved series".to_string()));
    }
    cards_of(&figures)
}

/// Calls that move memory, then products.
fn kinds(run: &Benchmark) -> [Vec<&Row>; 2] {
    let (products, others) = run.rows.iter().partition(|row| row.operations.is_some());
    [others, products]
}

impl Measured<'_> {
    /// Speed over size, below a roof of what the floors reached.
    pub fn plots(&self) -> String {
        let [others, products] = kinds(self.run);
        let mut html = String::new();
        if !others.is_empty() {
            let plot = roofline(&others, "GB/s", "bytes moved", |row| row.measurement.bytes as f64, 1e-9);
            html.push_str(&figure(
                &plot,
                &others,
                "Roofline. A dot is a call: across, the bytes that it moves; upwards, how fast. The dash above each dot \
                 is its floor, a pass that moves the same bytes and computes nothing. The line is the roof that the \
                 floors of this run set: the shortest of them takes its time however little it moves, the fastest one \
                 is what the memory gives.",
            ));
        }
        if !products.is_empty() {
            let operations = |row: &Row| row.operations.unwrap_or_default();
            let plot = roofline(&products, "TFLOP/s", "floating-point operations", operations, 1e-12);
            html.push_str(&figure(
                &plot,
                &products,
                "Products. A dot is a call: across, its floating-point operations; upwards, how fast. The dash is the \
                 vendor's library on the same matrices, and the line the best that it reached in this run.",
            ));
        }
        html
    }

    pub fn tables(&self) -> Vec<Table> {
        let [others, products] = kinds(self.run);
        let mut tables = Vec::new();
        if !others.is_empty() {
            tables.push(self.table(&others, false));
        }
        if !products.is_empty() {
            tables.push(self.table(&products, true));
        }
        tables
    }

    fn table(&self, rows: &[&Row], products: bool) -> Table {
        let suite = &self.run.suite;
        let reference = if products { "the vendor's library" } else { "the floor" };
        let mut caption = format!(
            "Suite {suite}: {}; bars are the speed by that of {reference}, whose place is the dashed line",
            words::count(rows.len(), "call")
        );
        if let Some((version, _)) = self.before {
            caption.push_str(&format!("; below each bar, thinner, that of causeway {version}"));
        }
        let mut columns = vec![
            Column::text("case"),
            Column::choice("call"),
            Column::number(if products { "by vendor" } else { "fraction of floor" }),
            Column::number("median"),
            Column::number("p20"),
            Column::number("p80"),
            Column::number(if products { "TFLOP/s" } else { "GB/s" }),
            Column::number(if products { "vendor" } else { "floor" }),
            Column::number("noise"),
            Column::choice("dtype"),
            Column::choice("layout"),
            Column::choice("results"),
        ];
        let shown = Shown {
            products,
            by_plain: rows.iter().any(|row| row.by_plain.is_some()),
            kernels: rows.iter().any(|row| !row.launches.is_empty()),
        };
        if shown.by_plain {
            columns.push(Column::number("× plain"));
        }
        if shown.kernels {
            columns.push(Column::text("kernels"));
        }
        if self.before.is_some() {
            columns.extend([Column::number("before"), Column::number("time ×"), Column::choice("change")]);
        }
        let mut table = Table::new(&caption, columns);
        for row in rows {
            table.row(self.row(row, &shown));
        }
        table
    }

    fn row(&self, row: &Row, shown: &Shown) -> Vec<Cell> {
        let found = &row.measurement;
        let before = self.before.and_then(|(_, run)| run.row(&row.case, &row.call));
        let part = found.fraction_of_floor();
        let rate = match row.operations.filter(|_| shown.products) {
            Some(operations) => operations / found.time.median * 1e-12,
            None => found.gigabytes_per_second(),
        };
        let time = |seconds: f64| Cell::number(seconds, &words::seconds(seconds));
        let mut name = escape(&row.case);
        if let Some(wrong) = &found.wrong {
            name.push_str(&format!("<br><span class=\"bad\">{}</span>", escape(wrong)));
        }
        let mut cells = vec![
            Cell::html(&name),
            Cell::choice(&row.call),
            Cell::html_number(part, &bar(part, before.map(|row| row.measurement.fraction_of_floor()))),
            time(found.time.median),
            time(found.time.p20),
            time(found.time.p80),
            Cell::number(rate, &format!("{rate:.1}")),
            time(found.floor.median),
            Cell::number(found.noise, &words::percent(found.noise)),
            Cell::choice(&row.dtype),
            Cell::choice(&row.layout),
            match found.wrong {
                None => Cell::verdict(true, "right"),
                Some(_) => Cell::verdict(false, "WRONG"),
            },
        ];
        if shown.by_plain {
            cells.push(match row.by_plain {
                Some(ratio) => Cell::number(ratio, &format!("{ratio:.2}")),
                None => Cell::number(0.0, "–"),
            });
        }
        if shown.kernels {
            let entries: Vec<_> = row.launches.iter().map(|launch| launch.entry.as_str()).collect();
            cells.push(Cell::text(&entries.join(", ")));
        }
        if self.before.is_some() {
            cells.extend(match before {
                Some(before) => change(&Change::between(before, row)),
                None => [Cell::number(0.0, "–"), Cell::number(0.0, "–"), Cell::choice("not there before")],
            });
        }
        cells
    }
}

fn change(change: &Change) -> [Cell; 3] {
    let verdict = match change.verdict {
        Verdict::Faster => Cell::verdict(true, "faster"),
        Verdict::Same => Cell::choice("same"),
        Verdict::Slower => Cell::verdict(false, "SLOWER"),
    };
    [
        Cell::number(change.seconds_before, &words::seconds(change.seconds_before)),
        Cell::number(change.time, &format!("{:.3}", change.time)),
        verdict,
    ]
}

/// The speed by that of the floor, and below it that of the other run. The bar ends at one and a half times the floor.
fn bar(part: f64, before: Option<f64>) -> String {
    const MOST: f64 = 150.0;
    let width = |part: f64| (part * 100.0).clamp(0.0, MOST);
    let (height, other) = match before {
        Some(before) => {
            (7.0, format!("<rect class=\"before\" y=\"8\" width=\"{:.1}\" height=\"4\"/>", width(before)))
        }
        None => (12.0, String::new()),
    };
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 {MOST} 12\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"full\" width=\"{:.1}\" height=\"{height}\"/>{other}\
         <line class=\"one\" x1=\"100\" y1=\"0\" x2=\"100\" y2=\"12\"/></svg><span class=\"part\">{}</span>",
        width(part),
        words::percent(part)
    )
}

/// Speed over size: `size` of a row, `unit` from size by seconds to what the axis says.
fn roofline(
    rows: &[&Row],
    y_name: &'static str,
    x_name: &'static str,
    size: impl Fn(&Row) -> f64,
    unit: f64,
) -> Scatter {
    let rate = |row: &Row, seconds: f64| size(row) / seconds * unit;
    let sizes = || rows.iter().map(|row| size(row).max(1.0));
    let floors = || rows.iter().map(|row| row.measurement.floor.median);
    let rates = || {
        rows.iter()
            .flat_map(|row| [row.measurement.time.median, row.measurement.floor.median].map(|s| rate(row, s)))
    };
    let least =
        |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min).clamp(1e-12, 1e30);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(1e-12, f64::max).min(1e30);
    let x = Scale::logarithmic(least(&mut sizes()), most(&mut sizes()));
    let y = Scale::logarithmic(least(&mut rates()), most(&mut rates()));
    let fastest = most(&mut rows.iter().map(|row| rate(row, row.measurement.floor.median)));
    let shortest = least(&mut floors());
    // The shortest floor's time for any size, up to the fastest floor's speed.
    let knee = fastest / unit * shortest;
    let (left, right) = (least(&mut sizes()) * 0.5, most(&mut sizes()) * 2.0);
    let mut roof = vec![(right, fastest)];
    if knee > left {
        roof.insert(0, (knee.min(right), fastest.min(knee.min(right) / shortest * unit)));
        roof.insert(0, (left, left / shortest * unit));
    } else {
        roof.insert(0, (left, fastest));
    }
    let dots = rows.iter().map(|row| {
        let found = &row.measurement;
        let speed = rate(row, found.time.median);
        Dot {
            x: size(row),
            y: speed,
            class: format!("k{}", colour(&row.call)),
            title: format!(
                "{} of {}: {speed:.1} {y_name}, {} of the floor's speed",
                row.call,
                row.case,
                words::percent(found.fraction_of_floor())
            ),
            from: Some(rate(row, found.floor.median)),
        }
    });
    Scatter {
        title: "Roofline".to_string(),
        about: format!("{y_name} over {x_name}; the table below has every number."),
        x: (x, x_name),
        y: (y, y_name),
        percent: false,
        dots: dots.collect(),
        roof,
        limit: None,
    }
}

fn colour(call: &str) -> usize {
    // grad-a and grad-b are half of what grad-ab is, and look like the others.
    match call {
        "grad-a" => 2,
        "grad-b" => 3,
        _ => COLOURED.iter().position(|name| *name == call).unwrap_or(COLOURED.len() - 1) + 1,
    }
}

fn figure(plot: &Scatter, rows: &[&Row], caption: &str) -> String {
    let mut calls: Vec<&str> = Vec::new();
    for row in rows {
        if !calls.contains(&row.call.as_str()) {
            calls.push(&row.call);
        }
    }
    let legend: String = calls
        .iter()
        .map(|call| {
            format!(
                "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><circle class=\"k{}\" cx=\"6\" cy=\"6\" r=\"5\"/></svg>{}</li>",
                colour(call),
                escape(call)
            )
        })
        .collect();
    format!(
        "<figure class=\"wide\"><div>{}</div><div><ul class=\"legend\">{legend}</ul><figcaption>{}</figcaption></div></figure>",
        plot.render(),
        escape(caption)
    )
}
