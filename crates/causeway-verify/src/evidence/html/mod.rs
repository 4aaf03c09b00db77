//! Reports as one page: no other file, no network, readable without scripts.
//!
//! Everything that comes from a report passes through `escape`. The page carries a content-security policy that allows
//! its own style and script, by a nonce that is a digest of the page, and nothing else.

mod bench;
mod cases;
mod plots;
mod table;

use std::fmt::Write as _;

use super::words;
use super::{Content, Mismatch, Report};
use bench::Measured;
use table::{Cell, Column, Table};

/// A report, what its file is called, and what its check found.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the file.
    pub file: String,
    /// What it holds.
    pub report: Report,
    /// What is wrong with it.
    pub mismatches: Vec<Mismatch>,
}

/// The page of some reports; benchmarks stand beside the rows of `before`, where there is one.
pub fn page(sources: &[Source], before: Option<&Source>) -> String {
    let mut page = Page { body: String::new(), contents: Vec::new(), tables: 0 };
    page.summary(sources);
    page.claims(sources);
    for (number, source) in sources.iter().enumerate() {
        page.results(source, number, before);
    }
    page.runs(sources, before);
    page.finish(sources)
}

/// Text as HTML shows it, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// As [`escape`]; what stands between backquotes is code.
fn with_code(text: &str) -> String {
    let mut html = String::new();
    for (i, piece) in escape(text).split('`').enumerate() {
        if i > 0 {
            html.push_str(if i % 2 == 1 { "<code>" } else { "</code>" });
        }
        html.push_str(piece);
    }
    if text.matches('`').count() % 2 == 1 {
        html.push_str("</code>");
    }
    html
}

struct Page {
    body: String,
    /// Anchors and titles of the sections.
    contents: Vec<(String, String)>,
    tables: usize,
}

impl Page {
    /// Appends HTML.
    fn add(&mut self, html: &str) {
        self.body.push_str(html);
        self.body.push('\n');
    }

    fn begin_section(&mut self, anchor: &str, title: &str) {
        self.begin_section_named(anchor, title, title);
    }

    /// `short` is what the list of sections says.
    fn begin_section_named(&mut self, anchor: &str, short: &str, title: &str) {
        self.contents.push((anchor.to_string(), short.to_string()));
        let title = escape(title);
        self.add(&format!("<section aria-labelledby=\"{anchor}\"><h2 id=\"{anchor}\">{title}</h2>"));
    }

    fn end_section(&mut self) {
        self.add("</section>");
    }

    /// A table with its filters.
    fn table(&mut self, table: Table) {
        self.tables += 1;
        let html = table.render(self.tables);
        self.add(&html);
    }

    fn summary(&mut self, sources: &[Source]) {
        self.begin_section("summary", "Summary");
        for source in sources {
            if sources.len() > 1 {
                self.add(&format!("<h3>{}</h3>", escape(&source.report.title())));
            }
            self.soundness(source);
            match &source.report.content {
                Content::Verification(run) => self.add(&cases::cards(run)),
                Content::Benchmark(run) => self.add(&bench::cards(run)),
                Content::Service(run) => {
                    let refused: u64 = run.refused.values().sum();
                    self.add(&cards(&[
                        ("requests answered", words::thousands(run.answered()), String::new()),
                        ("requests refused", words::thousands(refused), String::new()),
                    ]));
                }
            }
        }
        self.end_section();
    }

    /// Whether the file is as it was written.
    fn soundness(&mut self, source: &Source) {
        if source.mismatches.is_empty() {
            return;
        }
        let only_old = source.mismatches == [Mismatch::NoDigest];
        let class = if only_old { "note warn" } else { "note" };
        let items: String = source
            .mismatches
            .iter()
            .map(|wrong| format!("<li>{}</li>", escape(&wrong.to_string())))
            .collect();
        let file = escape(&source.file);
        self.add(&format!(
            "<div class=\"{class}\" role=\"note\">Of <code>{file}</code>:<ul>{items}</ul></div>"
        ));
    }

    fn claims(&mut self, sources: &[Source]) {
        self.begin_section("claims", "Evidence and non-claims");
        self.add("<p>Sentences that the program made from the facts of the run: what was done, and what it does not show.</p>");
        for source in sources {
            let report = &source.report;
            if sources.len() > 1 {
                self.add(&format!("<h3>{}</h3>", escape(&report.title())));
            }
            let list = |sentences: &[String]| -> String {
                match sentences {
                    [] => "<li>None: this report is older than such sentences.</li>".to_string(),
                    _ => sentences
                        .iter()
                        .map(|sentence| format!("<li>{}</li>", with_code(&words::grouped(sentence))))
                        .collect(),
                }
            };
            // Below the name of the run where there are several.
            let level = if sources.len() > 1 { "h4" } else { "h3" };
            self.add(&format!(
                "<div class=\"two\"><div class=\"panel does\"><{level}>Evidence</{level}><ul>{}</ul></div>\
                 <div class=\"panel not\"><{level}>Non-claims</{level}><ul>{}</ul></div></div>",
                list(&report.evidence),
                list(&report.non_claims)
            ));
        }
        self.end_section();
    }

    fn results(&mut self, source: &Source, number: usize, before: Option<&Source>) {
        match &source.report.content {
            Content::Verification(run) => {
                self.begin_section_named(
                    &format!("errors-{number}"),
                    "Errors",
                    &format!("Errors on {}", source.report.device),
                );
                self.add(&cases::plots(run));
                for table in cases::tables(run) {
                    self.table(table);
                }
                self.end_section();
                self.begin_section(&format!("calls-{number}"), "Calls and kernels");
                self.table(cases::calls(run));
                self.end_section();
            }
            Content::Benchmark(run) => {
                let before = before.and_then(|before| match &before.report.content {
                    Content::Benchmark(benchmark) => Some((before.report.causeway.as_str(), benchmark)),
                    _ => None,
                });
                let measured = Measured { run, before };
                self.begin_section_named(
                    &format!("speed-{number}"),
                    &format!("Speed: {}", run.suite),
                    &format!("Speed on {}: suite {}", source.report.device, run.suite),
                );
                self.add(&measured.plots());
                for table in measured.tables() {
                    self.table(table);
                }
                self.add("<details><summary>How the times were taken</summary><ul>");
                run.method.iter().for_each(|line| self.add(&format!("<li>{}</li>", escape(line))));
                self.add("</ul></details>");
                self.end_section();
            }
            Content::Service(run) => {
                self.begin_section(&format!("requests-{number}"), "Requests");
                let mut table = Table::new(
                    "Requests that were answered with results",
                    vec![
                        Column::text("operation"),
                        Column::number("answered"),
                        Column::number("time on the device"),
                        Column::number("longest"),
                    ],
                );
                for (operation, count) in &run.operations {
                    table.row(vec![
                        Cell::text(operation),
                        Cell::number(count.answered as f64, &words::thousands(count.answered)),
                        Cell::number(count.seconds, &words::seconds(count.seconds)),
                        Cell::number(count.longest, &words::seconds(count.longest)),
                    ]);
                }
                self.table(table);
                self.end_section();
            }
        }
    }

    /// Device, machine, program and kernels of every run.
    fn runs(&mut self, sources: &[Source], before: Option<&Source>) {
        self.begin_section("device", "Device, machine and code");
        for source in sources {
            self.facts(source, "");
            self.kernels(&source.report);
        }
        if let Some(before) = before {
            self.facts(before, " (compared with)");
        }
        self.end_section();
    }

    fn facts(&mut self, source: &Source, role: &str) {
        self.add(&format!("<h3>{}{}</h3>", escape(&source.report.title()), escape(role)));
        let mut rows = String::new();
        let file = ("file".to_string(), source.file.clone());
        let facts = source.report.facts().into_iter().map(|(name, value)| (name.to_string(), value));
        for (name, value) in std::iter::once(file).chain(facts) {
            let class =
                if name.ends_with("digest") || name == "kernel sources" { " class=\"mono\"" } else { "" };
            // Writing to a `String` cannot fail.
            let _ = write!(
                rows,
                "<tr><th scope=\"row\">{}</th><td{class}>{}</td></tr>",
                escape(&name),
                escape(&value)
            );
        }
        let label = escape(&format!("Facts of {}", source.file));
        self.add(&format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\"><table class=\"facts\" aria-label=\"{label}\">\
             <tbody>{rows}</tbody></table></div>"
        ));
    }

    fn kernels(&mut self, report: &Report) {
        if report.kernels.0.is_empty() {
            return;
        }
        let mut table = Table::new(
            "Kernels that ran, with BLAKE3 digests of their machine code and of the whole source that it was made from",
            vec![
                Column::text("kernel"),
                Column::text("header"),
                Column::number("size"),
                Column::number("checks"),
                Column::text("origin"),
                Column::text("code"),
                Column::text("source"),
                Column::text("file"),
            ],
        );
        for kernel in &report.kernels.0 {
            let altered = if kernel.refused.is_empty() { "" } else { ", after an altered one was refused" };
            let origin = if kernel.compiled { "compiled" } else { "cache" };
            table.row(vec![
                Cell::html(&format!(
                    "<details><summary>{}</summary><pre>{}</pre></details>",
                    escape(&kernel.entry),
                    escape(kernel.instantiation.trim())
                )),
                Cell::text(&kernel.header),
                Cell::number(kernel.bytes as f64, &words::bytes(kernel.bytes)),
                Cell::number(kernel.checks as f64, &kernel.checks.to_string()),
                Cell::text(&format!("{origin}{altered}")),
                Cell::digest(&kernel.digest),
                Cell::digest(&kernel.source_digest),
                Cell::digest(kernel.file.as_deref().unwrap_or("in no file")),
            ]);
        }
        self.table(table);
    }

    fn finish(self, sources: &[Source]) -> String {
        let title = match sources {
            [one] => one.report.title(),
            several => format!("Causeway: {} runs", several.len()),
        };
        let is_sound = |source: &Source| source.mismatches.iter().all(|wrong| *wrong == Mismatch::NoDigest);
        let (class, verdict) = if !sources.iter().all(is_sound) {
            ("bad", "✗ NOT SOUND: see the summary")
        } else if sources.iter().all(|source| source.report.passed()) {
            ("good", "✓ nothing that was checked was wrong")
        } else {
            ("bad", "✗ something that was checked was WRONG")
        };
        let when =
            sources.iter().map(|source| source.report.unix_time).max().map_or(String::new(), words::date);
        let made_by = sources.first().map_or("", |source| source.report.causeway.as_str());
        let links: String = self
            .contents
            .iter()
            .map(|(anchor, title)| format!("<li><a href=\"#{anchor}\">{}</a></li>", escape(title)))
            .collect();
        let nonce = &blake3::hash(self.body.as_bytes()).to_hex().to_string()[..32];
        let (style, script, body) = (include_str!("style.css"), include_str!("script.js"), &self.body);
        let (title, when, made_by) = (escape(&title), escape(&when), escape(made_by));
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'nonce-{nonce}'; \
             script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style nonce=\"{nonce}\">\n{style}</style>\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#summary\">To the summary</a>\n\
             <header><p class=\"kicker\">Causeway {made_by} · {when}</p><h1>{title}</h1>\
             <p><span class=\"badge {class}\">{verdict}</span></p></header>\n\
             <nav aria-label=\"Sections\"><ul>{links}</ul></nav>\n<main>\n{body}</main>\n\
             <footer>This page is one file and loads nothing. The facts are those of the saved runs, which \
             <code>causeway report --check</code> checks again.</footer>\n\
             <script nonce=\"{nonce}\">\n{script}</script>\n</body>\n</html>\n"
        )
    }
}

/// Figures with their names, and a remark to each.
fn cards(figures: &[(&str, String, String)]) -> String {
    let card = |(name, figure, remark): &(&str, String, String)| {
        let remark =
            if remark.is_empty() { String::new() } else { format!("<small>{}</small>", escape(remark)) };
        format!("<div><dt>{}</dt><dd>{}{remark}</dd></div>", escape(name), escape(figure))
    };
    format!("<dl class=\"cards\">{}</dl>", figures.iter().map(card).collect::<String>())
}

#[cfg(test)]
mod tests;
