//! The report for people: the same facts as run.json.

use std::fmt::Write;

use causeway::suite::CaseReport;

use super::report::{RunReport, complaints};

/// The whole page.
pub(super) fn render(run: &RunReport) -> String {
    let mut page = String::new();
    let verdict = if run.passed { "every case passed" } else { "NOT every case passed" };
    // Writing to a String cannot fail.
    let mut line = |text: String| {
        let _ = writeln!(page, "{text}");
    };
    line(format!("# Verification on {}: {verdict}\n", run.device));
    let host = &run.host;
    for (name, value) in [
        ("causeway", run.causeway.to_string()),
        ("suites", run.suites.join(", ")),
        ("device", run.device.clone()),
        ("threads", run.threads.to_string()),
        ("processor", host.processor.clone().unwrap_or_else(|| "unknown".to_string())),
        ("system", format!("{} {}", host.architecture, host.system)),
        ("vector features", host.features.join(" ")),
        ("runs of every call", run.repeats.to_string()),
        ("time", format!("{} s after 1970-01-01, {:.1} s long", run.unix_time, run.seconds)),
    ] {
        line(format!("- {name}: {value}"));
    }
    for (title, sentences) in [("Evidence", &run.evidence), ("Non-claims", &run.non_claims)] {
        line(format!("\n## {title}\n"));
        sentences.iter().for_each(|sentence| line(format!("- {sentence}")));
    }
    line("\n## Cases\n".to_string());
    line("| case | output | max error | mean error | ulp | part of bound | worst at | result |".to_string());
    line("|---|---|--:|--:|--:|--:|---|---|".to_string());
    for case in &run.cases {
        rows(case).into_iter().for_each(&mut line);
    }
    let failed: Vec<_> = run.cases.iter().filter(|case| !case.passed).collect();
    if !failed.is_empty() {
        line("\n## Failures\n".to_string());
    }
    for case in failed {
        complaints(case).into_iter().for_each(|complaint| line(format!("- {}: {complaint}", case.name)));
    }
    page
}

fn rows(case: &CaseReport) -> Vec<String> {
    if case.outputs.is_empty() {
        let error = case.error.as_deref().unwrap_or("no output");
        return vec![format!("| {} | | | | | | | **FAIL**: {error} |", case.name)];
    }
    let row = |output: &causeway::suite::OutputReport| {
        let found = &output.comparison;
        let result = if output.passed() { "pass" } else { "**FAIL**" };
        let worst = found.worst.as_ref().map_or(String::new(), |worst| format!("{:?}", worst.coordinate));
        format!(
            "| {} | {} | {:.3e} | {:.3e} | {:.2} | {:.1}% | {worst} | {result} |",
            case.name,
            output.name,
            found.max_error,
            found.mean_error,
            found.max_ulps,
            found.fraction * 100.0,
        )
    };
    case.outputs.iter().map(row).collect()
}
