//! Reports with one thing wrong, each found and named.

use serde_json::{Value, json};

use super::*;
use crate::evidence::sentences::tests::{benchmark, case, kernel, verification};

const VERSION: &str = "1.0.0 (0123456789ab)";

fn problems(text: &str) -> Vec<String> {
    let (_, wrong) = check(text, "r.json", VERSION).unwrap();
    wrong.iter().map(ToString::to_string).collect()
}

/// The report's JSON after an edit by someone who also computed its digest again.
fn sealed(report: &Report, edit: impl Fn(&mut Value)) -> String {
    let mut value = report.to_value();
    edit(&mut value);
    let digest = file::digest(&value);
    value[DIGEST] = digest.into();
    value.to_string()
}

#[test]
fn what_is_written_is_sound_and_is_read_back() {
    for report in [verification(), benchmark()] {
        let text = report.to_json();
        assert_eq!(problems(&text), Vec::<String>::new());
        assert_eq!(file::read_text(&text, "r.json").unwrap(), report);
        // Blanks and the order of fields are no facts.
        assert_eq!(problems(&report.to_value().to_string()), Vec::<String>::new());
    }
}

#[test]
fn numbers_that_json_does_not_have_come_back() {
    let mut report = verification();
    let Content::Verification(run) = &mut report.content else { unreachable!() };
    let found = &mut run.cases[0].outputs[0].comparison;
    (found.max_error, found.max_derived_bound) = (f64::INFINITY, f64::INFINITY);
    let text = report.to_json();
    assert_eq!(file::read_text(&text, "r.json").unwrap(), report);
}

#[test]
fn any_change_breaks_the_digest() {
    let base = verification().to_value();
    let pointers = [
        "/threads",
        "/cases/0/outputs/1/comparison/max_error",
        "/kernels/0/digest",
        "/evidence/0",
        "/host/memory",
    ];
    for pointer in pointers {
        let mut value = base.clone();
        let place = value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is there"));
        *place = match &*place {
            Value::Number(number) => json!(number.as_f64().unwrap() + 1.0),
            _ => json!("another"),
        };
        if pointer == "/threads" || pointer == "/host/memory" {
            *value.pointer_mut(pointer).unwrap() = json!(3);
        }
        let found = problems(&value.to_string());
        assert!(found[0].contains("it was changed after it was written"), "{pointer}: {found:?}");
    }
    let mut value = base;
    value.as_object_mut().unwrap().remove(DIGEST);
    assert!(problems(&value.to_string())[0].contains("it has no digest"));
}

#[test]
fn what_does_not_follow_or_is_missing_is_named_although_the_digest_is_right() {
    let run = |edit: fn(&mut Verification)| {
        let mut report = verification();
        let Content::Verification(run) = &mut report.content else { unreachable!() };
        edit(run);
        // The sentences are those of the edited facts; verdicts are as the edit left them.
        report.evidence = sentences::evidence(&report);
        report.non_claims = sentences::non_claims(&report);
        report.to_json()
    };
    type Edit = fn(&mut Verification);
    let table: &[(Edit, &str)] = &[
        (|run| drop(run.cases.pop()), "2 cases were asked for; 1 ran and 0 were skipped"),
        (|run| run.cases[1] = case("tiny-f32"), "case tiny-f32 stands twice"),
        (|run| run.passed = false, "passed says false: from the facts follows true"),
        (|run| run.cases[0].passed = false, "case tiny-f32 says fail: from the facts follows pass"),
        (
            |run| run.cases[0].outputs[0].stray_bytes = 4,
            "case tiny-f32 says pass: from the facts follows fail",
        ),
        (|run| run.cases[0].outputs[0].comparison.fraction = 1.5, "150.0% of the bound used at most"),
        (|run| run.cases[0].outputs.clear(), "case tiny-f32 has neither outputs nor an error"),
        (
            |run| run.cases[0].outputs[0].comparison.elements = 5,
            "5 elements of y were compared, and it has 6",
        ),
        (|run| run.cases[0].repeats = 7, "case tiny-f32 says 7 runs: from the facts follows 1 runs"),
        (
            |run| run.worst_failure = Some("y".to_string()),
            "worst_failure says y: from the facts follows nothing",
        ),
        (
            |run| run.cases[0].launches[0].kernel = Some(kernel("cd").id),
            "kernel cdcdcdcdcdcdcdcd was launched and is not listed",
        ),
        (
            |run| run.cases.iter_mut().for_each(|case| case.launches.clear()),
            "no launch of kernel abababababababab is listed",
        ),
    ];
    for (edit, sentence) in table {
        let found = problems(&run(*edit));
        assert!(found.iter().any(|line| line.contains(sentence)), "{sentence:?}: {found:?}");
    }
}

#[test]
fn sentences_have_to_be_those_of_the_facts() {
    let report = verification();
    let found = problems(&sealed(&report, |value| value["evidence"][0] = json!("Everything is right.")));
    assert!(found[0].starts_with("evidence says \"Everything is right.\""), "{found:?}");
    let found =
        problems(&sealed(&report, |value| drop(value["non_claims"].as_array_mut().unwrap().remove(0))));
    assert!(
        found[0].contains("non_claims says nothing") && found[0].contains("for any device but"),
        "{found:?}"
    );
    let found = problems(&sealed(&report, |value| value["non_claims"] = json!([])));
    assert!(found[0].contains("non_claims is empty"), "{found:?}");
    // Another version may have worded them otherwise.
    let text = sealed(&report, |value| value["evidence"][0] = json!("Otherwise worded."));
    let (_, wrong) = check(&text, "r.json", "2.0.0 (fedcba987654)").unwrap();
    assert_eq!(wrong, []);
}

#[test]
fn a_kernel_is_named_by_its_source() {
    let found = problems(&sealed(&verification(), |value| {
        value["kernels"][0]["source_digest"] = json!("0".repeat(64))
    }));
    assert!(found[0].contains("from the facts follows 0000000000000000"), "{found:?}");
}

#[test]
fn what_is_no_report_says_why() {
    let good = verification().to_value();
    let edit = |edit: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        edit(&mut value);
        value.to_string()
    };
    let table = [
        ("{".to_string(), "r.json is not JSON: EOF"),
        ("[]".to_string(), "r.json is not a report: it is not an object"),
        ("{}".to_string(), "it has no format"),
        (
            edit(&|value| value["format"] = json!(3)),
            "r.json has format 3: this version reads 1 (saved bench runs) and 2",
        ),
        (edit(&|value| value["format"] = json!("two")), "has format \"two\""),
        (edit(&|value| value["kind"] = json!("poem")), "its kind is not verification, benchmark or service"),
        (
            edit(&|value| value["cases"][1]["outputs"][0]["comparison"]["failures"] = json!("many")),
            "cases[1].outputs[0].comparison.failures is not as a report has it: invalid type: string \"many\"",
        ),
        (edit(&|value| drop(value.as_object_mut().unwrap().remove("host"))), "missing field `host`"),
    ];
    for (text, sentence) in table {
        let error = check(&text, "r.json", VERSION).unwrap_err().to_string();
        assert!(error.contains(sentence), "{sentence:?}: {error}");
    }
}

#[test]
fn saved_bench_runs_of_the_first_format_are_read() {
    let mut value = benchmark().to_value();
    let fields = value.as_object_mut().unwrap();
    for new in
        ["digest", "kind", "backend", "kernels", "program", "command", "seconds", "evidence", "non_claims"]
    {
        fields.remove(new).unwrap_or_else(|| panic!("{new} is new"));
    }
    fields.insert("format".to_string(), json!(1));
    for row in value["rows"].as_array_mut().unwrap() {
        row.as_object_mut().unwrap().remove("launches");
    }
    let (report, wrong) = check(&value.to_string(), "r.json", VERSION).unwrap();
    assert_eq!(wrong, [Mismatch::NoDigest]);
    let Content::Benchmark(read) = report.content else { panic!("it is a benchmark") };
    let Content::Benchmark(written) = benchmark().content else { unreachable!() };
    assert_eq!(read, written);
}
