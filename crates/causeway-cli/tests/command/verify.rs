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
fn no_calls_do_not_pass() {
    let message = refusal(&["verify", "--random", "0"]);
    assert!(
        message.contains("'0' for '--random <N>': expected a whole number from 1 to 4294967295"),
        "{message}"
    );
    let nothing = ["verify", "--random", "3", "--seconds", "0", "--device", "cpu"];
    let ran = output(&nothing);
    let printed = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("nothing was checked: 0 random calls") && !printed.contains("pass"),
        "{printed}"
    );
    let json = output(&[&nothing[..], &["--json"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["passed"], false, "{report}");
}

#[test]
fn numbers_that_are_too_small_or_too_large_are_answered_with_the_range() {
    let random = ["verify", "--random", "3"];
    for (arguments, sentence) in [
        (
            &["verify", "--random", "-1"][..],
            "'-1' for '--random <N>': expected a whole number from 1 to 4294967295",
        ),
        (
            &["verify", "--repeat", "-3"],
            "'-3' for '--repeat <N>': expected a whole number from 1 to 4294967295",
        ),
        (
            &[&random[..], &["--seed", "-1"]].concat(),
            "--seed <S>': expected a whole number from 0 to 18446744073709551615",
        ),
        (
            &[&random[..], &["--seconds", "-1"]].concat(),
            "--seconds <T>': expected a whole number from 0 to 1000000000",
        ),
        (
            &[&random[..], &["--seconds", "18446744073709551615"]].concat(),
            "expected a whole number from 0 to 1000000000",
        ),
        (
            &[&random[..], &["--elements", "-1"]].concat(),
            "--elements <N>': expected a whole number from 1 to 2147483648",
        ),
        (
            &[&random[..], &["--elements", "0"]].concat(),
            "--elements <N>': expected a whole number from 1 to 2147483648",
        ),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(sentence), "{said:?} does not say {sentence:?}");
    }
}

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
fn repeats_are_counted_in_the_output_and_in_the_report() {
    let files = Files::new();
    let suite = suite(&files, "");
    let printed = success(&["verify", "--suite", &suite, "--device", "cpu", "--repeat", "5"]);
    assert!(printed.contains("2 of 2 cases pass, the same bits in each of 5 runs, in "), "{printed}");
    let run: serde_json::Value = serde_json::from_str(&success(&[
        "verify", "--suite", &suite, "--device", "cpu", "--repeat", "5", "--json",
    ]))
    .unwrap();
    assert_eq!((&run["repeats"], &run["cases"][1]["repeats"]), (&5.into(), &5.into()));
    let evidence = run["evidence"].to_string();
    assert!(
        evidence.contains("Every call was made 5 times") && evidence.contains("0 outputs differed"),
        "{evidence}"
    );
    for wrong in ["0", "4294967296", "two"] {
        let said = refusal(&["verify", "--repeat", wrong]);
        assert!(
            said.contains("--repeat") && said.contains("expected a whole number from 1 to 4294967295"),
            "{said}"
        );
    }
}

#[test]
fn what_the_machine_has_no_memory_for_is_skipped_by_name() {
    let files = Files::new();
    let path = files.path("mine.toml");
    let row = "[[conv1d]]\nwidth = 4\nlayout = \"channel-last\"\nactivation = \"none\"\ndtype = \"f32\"\nsample = true\n";
    let text = format!(
        "name = \"mine\"\nabout = \"x\"\n{row}name = \"vast\"\nshape = [1000000, 1000, 1000]\n{row}name = \"slight\"\n\
         shape = [2, 3, 50]\n"
    );
    fs::write(&path, text).unwrap();
    let suite = path.to_str().unwrap();
    let printed = success(&["verify", "--suite", suite, "--device", "cpu"]);
    assert!(printed.contains("did not run: vast-1000000x1000x1000-f32: the host has "), "{printed}");
    assert!(printed.contains("1 of 1 cases pass"), "{printed}");
    // Nothing at all is no success.
    let nothing = refusal(&["verify", "--suite", suite, "--device", "cpu", "--case", "vast"]);
    assert!(nothing.contains("no case is left for cpu") && nothing.contains("GiB are needed"), "{nothing}");
}

#[test]
fn a_case_that_is_larger_than_any_memory_fails_and_has_no_time() {
    let files = Files::new();
    let path = files.path("mine.toml");
    let row = "[[conv1d]]\nname = \"vast\"\nshape = [99999999, 99999999, 99999999]\nwidth = 4\nlayout = \"channel-first\"\n\
               activation = \"none\"\ndtype = \"f32\"\n";
    fs::write(&path, format!("name = \"mine\"\nabout = \"x\"\n{row}")).unwrap();
    let output = output(&["verify", "--suite", path.to_str().unwrap(), "--device", "cpu"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("larger than the address space") && !printed.contains("0.00 ms"), "{printed}");
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
    assert!(
        refusal(&["verify", "--suite", "."]).contains("suite . is a folder: expected a name, or the path")
    );
    let files = Files::new();
    let file = suite(&files, "");
    let message = refusal(&["verify", "--suite", &file, "--report", &file]);
    assert!(message.contains("mine.toml: it is a file"), "{message}");
    let below = format!("{file}/report");
    let message = refusal(&["verify", "--suite", &file, "--report", &below]);
    assert!(message.contains("--report is ") && message.contains("name a directory"), "{message}");
    assert!(refusal(&["verify", "--case", "gigantic"]).contains("no case of conv1d-first, conv1d-last"));
}

#[cfg(unix)]
#[test]
fn a_suite_whose_name_is_no_text_is_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    for subcommand in ["verify", "bench", "plan"] {
        let name = OsStr::from_bytes(b"bad\xff.toml");
        let said = refusal(&[OsStr::new(subcommand), OsStr::new("--suite"), name]);
        assert!(said.contains("for '--suite <NAME|PATH>': expected a name or a path in UTF-8"), "{said}");
    }
}

#[test]
fn rows_that_no_operation_takes_are_refused() {
    let files = Files::new();
    let path = files.path("mine.toml");
    fs::write(&path, "[[gemm]]\nname = \"single\"\nshape = [2, 3, 4]\ndtype = \"f32\"\n").unwrap();
    let said = refusal(&["verify", "--suite", path.to_str().unwrap(), "--device", "cpu"]);
    assert!(said.contains("row \"single\": dtype is f32: products are of f16 or bf16"), "{said}");
}
