//! A report against itself: its digest, its completeness, and whether its conclusions follow from its facts.

use std::collections::HashSet;

use serde_json::Value;

use super::file::{self, DIGEST, ReportError};
use super::{Content, Report, Verification, sentences, verification};
use crate::suite::CaseReport;

/// What is wrong with a report that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// It has no digest: a version before there were reports has written it.
    #[error("it has no digest: nothing shows that it is as it was written")]
    NoDigest,
    /// Something in it was changed after it was written.
    #[error("its digest is {stated}, that of its facts {computed}: it was changed after it was written")]
    Digest {
        /// In the file.
        stated: String,
        /// Of what the file holds.
        computed: String,
    },
    /// Something is missing.
    #[error("it is not complete: {missing}")]
    Incomplete {
        /// What is missing.
        missing: String,
    },
    /// A conclusion does not follow from the facts.
    #[error("{place} says {states}: from the facts follows {follows}")]
    Contradiction {
        /// Where: `passed`, `case tiny-1x32x64-f32` …
        place: String,
        /// What it says.
        states: String,
        /// What it has to say.
        follows: String,
    },
}

/// Reads a report's text and checks it; `version` is the version of the program that checks. `file` is what errors call
/// the report.
///
/// Sentences are compared with those that this program makes of the facts if the same version has written the report:
/// others may have worded them otherwise.
///
/// # Errors
/// [`ReportError`] if it cannot be read. What is wrong with one that can be read is in the list.
pub fn check(text: &str, file: &str, version: &str) -> Result<(Report, Vec<Mismatch>), ReportError> {
    let value = file::parse(text, file)?;
    let mut wrong = Vec::new();
    wrong.extend(digest(&value));
    let report = file::from_value(value, file)?;
    if let Content::Verification(verification) = &report.content {
        wrong.extend(conclusions(verification));
        wrong.extend(cases(verification));
    }
    if let Content::Benchmark(benchmark) = &report.content
        && benchmark.rows.is_empty()
    {
        wrong.push(incomplete("it has no rows"));
    }
    wrong.extend(kernels(&report));
    wrong.extend(words(&report, version));
    Ok((report, wrong))
}

fn incomplete(missing: impl Into<String>) -> Mismatch {
    Mismatch::Incomplete { missing: missing.into() }
}

fn digest(value: &Value) -> Option<Mismatch> {
    let Some(stated) = value.get(DIGEST).and_then(Value::as_str) else { return Some(Mismatch::NoDigest) };
    let computed = file::digest(value);
    (stated != computed).then(|| Mismatch::Digest { stated: stated.to_string(), computed })
}

/// What the run as a whole says, against its cases.
fn conclusions(run: &Verification) -> Vec<Mismatch> {
    let mut wrong = Vec::new();
    let skipped: usize = run.skipped.values().map(Vec::len).sum();
    if run.cases.len() + skipped != run.asked {
        wrong.push(incomplete(format!(
            "{} cases were asked for; {} ran and {skipped} were skipped",
            run.asked,
            run.cases.len()
        )));
    }
    let mut names = HashSet::new();
    for case in run.cases.iter().filter(|case| !names.insert((&case.suite, &case.name))) {
        wrong.push(incomplete(format!("case {} stands twice in it, and another one not at all", case.name)));
    }
    let passed = run.has_passed();
    if run.passed != passed {
        wrong.push(contradiction("passed", run.passed, passed));
    }
    let worst = verification::worst_failure(&run.cases);
    if run.worst_failure != worst {
        wrong.push(contradiction(
            "worst_failure",
            run.worst_failure.as_deref().unwrap_or("nothing"),
            worst.as_deref().unwrap_or("nothing"),
        ));
    }
    wrong
}

fn contradiction(place: &str, states: impl ToString, follows: impl ToString) -> Mismatch {
    Mismatch::Contradiction {
        place: place.to_string(),
        states: states.to_string(),
        follows: follows.to_string(),
    }
}

/// Each case against its own outputs.
fn cases(run: &Verification) -> Vec<Mismatch> {
    run.cases.iter().flat_map(|case| one_case(case, run.repeats)).collect()
}

fn one_case(case: &CaseReport, repeats: u32) -> Vec<Mismatch> {
    let place = format!("case {}", case.name);
    let mut wrong = Vec::new();
    if case.error.is_none() && case.outputs.is_empty() {
        wrong.push(incomplete(format!("{place} has neither outputs nor an error")));
    }
    if case.repeats != repeats {
        wrong.push(contradiction(&place, format!("{} runs", case.repeats), format!("{repeats} runs")));
    }
    let passed = case.error.is_none() && case.outputs.iter().all(|output| output.passed());
    if case.passed != passed {
        wrong.push(contradiction(&place, verdict(case.passed), verdict(passed)));
    }
    for output in &case.outputs {
        let found = &output.comparison;
        let elements: i64 = output.shape.iter().product();
        // Of a sample, fewer elements were compared than the output has.
        if !case.sampled && elements != found.elements as i64 {
            wrong.push(incomplete(format!(
                "{place}: {} elements of {} were compared, and it has {elements}",
                found.elements, output.name
            )));
        }
        if found.passed() != (found.fraction <= 1.0) {
            wrong.push(contradiction(
                &format!("{place}, {}", output.name),
                format!("{} elements outside their bound", found.failures),
                format!("{} of the bound used at most", super::words::percent(found.fraction)),
            ));
        }
    }
    wrong
}

fn verdict(passed: bool) -> &'static str {
    if passed { "pass" } else { "fail" }
}

/// Launches name kernels that the report has, and each kernel was launched by something.
fn kernels(report: &Report) -> Vec<Mismatch> {
    let launches: Vec<_> = match &report.content {
        // Of calls that were drawn at random, the kernels are listed and the launches are not.
        Content::Verification(Verification { random: Some(_), .. }) => return Vec::new(),
        Content::Verification(run) => run.cases.iter().flat_map(|case| &case.launches).collect(),
        Content::Benchmark(run) => run.rows.iter().flat_map(|row| &row.launches).collect(),
        // A server's launches are not listed.
        Content::Service(_) => return Vec::new(),
    };
    let known: HashSet<_> = report.kernels.0.iter().map(|kernel| kernel.id.as_str()).collect();
    let used: HashSet<_> = launches.iter().filter_map(|launch| launch.kernel.as_deref()).collect();
    let missing =
        used.difference(&known).map(|id| incomplete(format!("kernel {id} was launched and is not listed")));
    let idle = known.difference(&used).map(|id| incomplete(format!("no launch of kernel {id} is listed")));
    let mut wrong: Vec<_> = missing.chain(idle).collect();
    wrong.sort_by_key(ToString::to_string);
    for kernel in &report.kernels.0 {
        let right = causeway::backend::gpu::artifact::Artifact::id_of(&kernel.source_digest);
        if kernel.id != right {
            wrong.push(contradiction(&format!("kernel {}", kernel.entry), &kernel.id, right));
        }
    }
    wrong
}

/// The sentences against the facts.
fn words(report: &Report, version: &str) -> Vec<Mismatch> {
    let mut wrong = Vec::new();
    if report.format < super::FORMAT {
        return wrong;
    }
    let lists = [
        ("evidence", &report.evidence, sentences::evidence(report)),
        ("non_claims", &report.non_claims, sentences::non_claims(report)),
    ];
    for (name, stated, follows) in lists {
        if stated.is_empty() {
            wrong.push(incomplete(format!("{name} is empty")));
        } else if report.causeway == version {
            let absent = follows.iter().find(|sentence| !stated.contains(sentence));
            let added = stated.iter().find(|sentence| !follows.contains(sentence));
            if absent.is_some() || added.is_some() {
                let text =
                    |sentence: Option<&String>| sentence.map_or("nothing".to_string(), |s| format!("{s:?}"));
                wrong.push(contradiction(name, text(added), text(absent)));
            }
        }
    }
    wrong
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
