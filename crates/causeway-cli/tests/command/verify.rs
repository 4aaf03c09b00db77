//! `causeway verify`: what it prints, what it reports, and that a wrong result does not pass.

use std::fs;

use crate::process::{Files, output, refusal, success, text};

/// Two small cases; with `fault`, one element of a result is made wrong after the kernel ran.
fn suite(files: &Files, fault: &str) -> String {
    let path = files.path("mine.toml");
    let text = format!(
        "name = \"mine\"\nabout = \"For a test.\"\n\n[base.conv1d]\nwidth = 4\nlayout = \"channel-last\"\nbias = true\n\
         activation = [\"none\", \"silu\"]\ndtype = \"f32\"\n\n[[conv1d]]\nname = \"ragged\"\nshape = [2, 5, 7]\n{fault}\n"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

const FAULT: &str = "fault = { output = \"dx\", coordinate = [1, 2, 3], add = 0.001 }";

#[test]
fn sound_results_pass() {
    let files = Files::new();
    let printed = success(&["verify", "--suite", &suite(&files, ""), "--device", "cpu"]);
    assert!(printed.contains("ragged-2x5x7-f32-silu"), "{printed}");
    assert!(printed.contains("2 of 2 cases pass"), "{printed}");
}

#[test]
fn a_wrong_element_fails_and_is_named() {
    let files = Files::new();
    let output = output(&["verify", "--suite", &suite(&files, FAULT)]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("2 of 2 cases FAIL"), "{printed}");
    assert!(
        printed.lines().any(|line| line.starts_with("worst: ") && line.contains("dx[1, 2, 3]")),
        "{printed}"
    );
}

#[test]
fn reports_say_what_was_shown_and_what_was_not() {
    let files = Files::new();
    for (fault, status, verdict) in [("", 0, "every case passed"), (FAULT, 1, "NOT every case passed")] {
        let directory = files.path("report");
        let suite = suite(&files, fault);
        let report = directory.to_str().unwrap();
        let output = output(&["verify", "--suite", &suite, "--case", "silu", "--report", report]);
        assert_eq!(output.status.code(), Some(status));
        let run: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(directory.join("run.json")).unwrap()).unwrap();
        assert_eq!(run["passed"], status == 0);
        assert_eq!(run["cases"].as_array().unwrap().len(), 1);
        assert!(run["cases"][0]["outputs"].as_array().unwrap().len() >= 4);
        let page = fs::read_to_string(directory.join("report.md")).unwrap();
        assert!(
            page.contains(verdict) && page.contains("## Evidence") && page.contains("## Non-claims"),
            "{page}"
        );
        assert!(page.contains("Cases without \"silu\" in their name did not run."), "{page}");
        assert_eq!(page.contains("## Failures"), status == 1);
    }
}

#[test]
fn json_is_the_report() {
    let files = Files::new();
    let printed = success(&["verify", "--suite", &suite(&files, ""), "--json"]);
    let run: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(run["passed"], true);
    assert!(run["evidence"][0].as_str().unwrap().starts_with("2 cases of "), "{run}");
}

#[test]
fn suites_and_cases_that_do_not_exist_are_refused() {
    assert!(refusal(&["verify", "--suite", "conv3d"]).contains("conv1d-first"));
    assert!(refusal(&["verify", "--suite", "absent.toml"]).contains("absent.toml"));
    assert!(refusal(&["verify", "--case", "gigantic"]).contains("no case of conv1d-first, conv1d-last"));
}
