//! A report as Markdown: the facts of its JSON in tables that people read in a terminal or a repository.

use std::fmt::Write as _;

use super::words;
use super::{Benchmark, Content, Report, Service, Verification, complaints};
use crate::suite::CaseReport;
use crate::suite::random_calls::RandomCalls;

impl Report {
    /// The whole page.
    pub fn to_markdown(&self) -> String {
        let mut page = format!("# {}\n\n", escape(&self.title()));
        for (name, value) in self.facts() {
            line(&mut page, &format!("- {name}: {}", escape(&value)));
        }
        for (title, sentences) in [("Evidence", &self.evidence), ("Non-claims", &self.non_claims)] {
            line(&mut page, &format!("\n## {title}\n"));
            sentences
                .iter()
                .for_each(|sentence| line(&mut page, &format!("- {}", escape(&words::grouped(sentence)))));
        }
        match &self.content {
            Content::Verification(run) => verification(&mut page, run),
            Content::Benchmark(run) => benchmark(&mut page, run),
            Content::Service(run) => service(&mut page, run),
        }
        kernels(&mut page, self);
        page
    }

    /// What there is to know about the run, by name.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let host = &self.host;
        let mut facts = vec![
            ("causeway", self.causeway.clone()),
            ("device", self.device.clone()),
            ("threads", self.threads.to_string()),
            ("processor", host.processor.clone().unwrap_or_else(|| "unknown".to_string())),
            ("system", format!("{} {}", host.architecture, host.system)),
            ("vector features", host.features.join(" ")),
            ("time", format!("{}, {:.1} s long", words::date(self.unix_time), self.seconds)),
        ];
        match &self.content {
            Content::Verification(run) => {
                match &run.random {
                    Some(random) => {
                        facts.push(("seed", random.seed.to_string()));
                        facts.push(("random calls", random.by_operation()));
                    }
                    None => facts.push(("suites", run.suites.join(", "))),
                }
                facts.push(("runs of every call", run.repeats.to_string()));
                if let Some(made) = &run.preparation {
                    let (all, compiled) = (words::count(made.kernels, "kernel"), made.compiled);
                    facts.push(("preparation", format!("{all}, {compiled} compiled, {:.1} s", made.seconds)));
                }
            }
            Content::Benchmark(run) => facts.push(("suite", run.suite.clone())),
            Content::Service(run) => facts.push(("protocol", run.protocol.clone())),
        }
        if !self.command.is_empty() {
            facts.push(("command", self.command.join(" ")));
        }
        if let Some(program) = &self.program {
            facts.push(("program", program.file.clone()));
            facts.push(("program digest", program.digest.clone()));
        }
        facts.extend(self.device_facts());
        facts
    }

    fn device_facts(&self) -> Vec<(&'static str, String)> {
        let Some(device) = &self.device_evidence else { return Vec::new() };
        let megahertz = |khz: u32| format!("{} MHz", khz / 1000);
        let optional = [
            ("PCI address", Some(device.pci.clone())),
            ("device memory", (device.memory_bytes > 0).then(|| words::bytes(device.memory_bytes))),
            ("free at the start", device.free_memory_bytes.map(words::bytes)),
            ("highest clock", device.highest_clock_khz.map(megahertz)),
            ("highest memory clock", device.highest_memory_clock_khz.map(megahertz)),
            ("memory bus", device.memory_bus_bits.map(|bits| format!("{bits} bits"))),
            ("driver", Some(device.driver_version.clone())),
            ("driver library", Some(device.driver_library.clone())),
            ("compiler", device.compiler.clone()),
            ("compiler file", device.compiler_library.clone()),
            ("compiler digest", device.compiler_digest.clone()),
            ("compiler options", Some(device.compiler_options.join(" "))),
            ("kernel sources", Some(device.kernel_sources.clone())),
        ];
        let mut facts = vec![
            ("device name", device.name.clone()),
            ("architecture", device.architecture.clone()),
            ("multiprocessors", format!("{}, waves of {}", device.multiprocessors, device.wave_size)),
            ("last-level cache of the device", words::bytes(device.l2_bytes)),
        ];
        let known = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
        facts.extend(known.filter(|(_, value)| !value.is_empty()));
        facts
    }
}

fn line(page: &mut String, text: &str) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(page, "{text}");
}

/// Text that a report holds, as text: no tables, tags, emphasis or links come of it. Backquotes stay: sentences have code
/// between them.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' => escaped.push(' '),
            '|' | '<' | '>' | '*' | '[' | ']' | '\\' => {
                // Inside words and numbers these are what they are; Markdown takes them for marks.
                escaped.push('\\');
                escaped.push(character);
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// The rows of calls that were wrong: each is a suite for `causeway verify --suite`.
fn failed_calls(page: &mut String, run: &RandomCalls) {
    for failure in &run.failures {
        line(page, &format!("\n## {}\n\n```toml\n{}```", escape(&failure.case), failure.smallest));
    }
}

fn verification(page: &mut String, run: &Verification) {
    if let Some(random) = &run.random {
        failed_calls(page, random);
        if run.cases.is_empty() {
            return;
        }
    }
    line(page, "\n## Cases\n");
    line(
        page,
        "| case | output | max error | mean error | ulp | bound | part of bound | worst at | result |",
    );
    line(page, "|---|---|--:|--:|--:|--:|--:|---|---|");
    for case in &run.cases {
        rows(case).iter().for_each(|row| line(page, row));
    }
    if run.failed() > 0 {
        line(page, "\n## Failures\n");
    }
    for case in run.cases.iter().filter(|case| !case.passed) {
        for complaint in complaints(case) {
            line(page, &format!("- {}: {}", escape(&case.name), escape(&complaint)));
        }
    }
    line(page, "\n## Calls\n");
    line(page, "One call each, on data that was just made: no measurement of speed.\n");
    line(page, "| case | call | kernels | bytes moved | time | GB/s |");
    line(page, "|---|---|---|--:|--:|--:|");
    for case in &run.cases {
        for timing in &case.timings {
            let launched = case.launches.iter().filter(|launch| launch.call == timing.operation);
            let entries: Vec<_> = launched.map(|launch| launch.entry.as_str()).collect();
            line(
                page,
                &format!(
                    "| {} | {} | {} | {} | {} | {:.2} |",
                    escape(&case.name),
                    escape(&timing.operation),
                    escape(&entries.join(", ")),
                    words::bytes(timing.bytes),
                    words::seconds(timing.seconds),
                    timing.gigabytes_per_second(),
                ),
            );
        }
    }
}

fn rows(case: &CaseReport) -> Vec<String> {
    let name = escape(&case.name);
    if case.outputs.is_empty() {
        let error = escape(case.error.as_deref().unwrap_or("no output"));
        return vec![format!("| {name} | | | | | | | | **FAIL**: {error} |")];
    }
    let row = |output: &crate::suite::OutputReport| {
        let found = &output.comparison;
        let result = if output.passed() { "pass" } else { "**FAIL**" };
        let worst = found.worst.as_ref().map_or(String::new(), |worst| format!("{:?}", worst.coordinate));
        format!(
            "| {name} | {} | {:.3e} | {:.3e} | {:.2} | {:.3e} | {} | {} | {result} |",
            escape(&output.name),
            found.max_error,
            found.mean_error,
            found.max_ulps,
            found.max_derived_bound,
            words::percent(found.fraction),
            escape(&worst),
        )
    };
    case.outputs.iter().map(row).collect()
}

fn benchmark(page: &mut String, run: &Benchmark) {
    line(page, "\n## Method\n");
    run.method.iter().for_each(|text| line(page, &format!("- {}", escape(text))));
    line(page, "\n## Calls\n");
    line(
        page,
        "| case | call | median | p20 | p80 | GB/s | floor | × floor | fraction of floor | noise | results |",
    );
    line(page, "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for row in &run.rows {
        let found = &row.measurement;
        let results = found.wrong.as_ref().map_or("right".to_string(), |wrong| format!("**WRONG**: {wrong}"));
        line(
            page,
            &format!(
                "| {} | {} | {} | {} | {} | {:.1} | {} | {:.2} | {} | {} | {results} |",
                escape(&row.case),
                escape(&row.call),
                words::seconds(found.time.median),
                words::seconds(found.time.p20),
                words::seconds(found.time.p80),
                found.gigabytes_per_second(),
                words::seconds(found.floor.median),
                found.ratio,
                words::percent(found.fraction_of_floor()),
                words::percent(found.noise),
            ),
        );
    }
}

fn service(page: &mut String, run: &Service) {
    line(page, "\n## Requests\n");
    line(page, "| operation | answered | time on the device | longest |");
    line(page, "|---|--:|--:|--:|");
    for (operation, count) in &run.operations {
        line(
            page,
            &format!(
                "| {} | {} | {} | {} |",
                escape(operation),
                words::thousands(count.answered),
                words::seconds(count.seconds),
                words::seconds(count.longest)
            ),
        );
    }
}

fn kernels(page: &mut String, report: &Report) {
    if report.kernels.0.is_empty() {
        return;
    }
    line(page, "\n## Kernels\n");
    line(page, "| entry | header | size | checks | digest of the code | digest of the source | file |");
    line(page, "|---|---|--:|--:|---|---|---|");
    for kernel in &report.kernels.0 {
        line(
            page,
            &format!(
                "| {} | {} | {} | {} | {} | {} | {} |",
                escape(&kernel.entry),
                escape(&kernel.header),
                words::bytes(kernel.bytes),
                kernel.checks,
                escape(&kernel.digest),
                escape(&kernel.source_digest),
                escape(kernel.file.as_deref().unwrap_or("none")),
            ),
        );
    }
}
