//! `causeway report`: reports that were written, changed, and are none.

use std::fs;
use std::path::Path;

use crate::process::{Files, output, refusal, success, text};

/// A report of two small cases.
fn verified(files: &Files) -> String {
    let suite = files.path("mine.toml");
    let text = "name = \"mine\"\nabout = \"For a test.\"\n\n[[conv1d]]\nname = \"ragged\"\nshape = [2, 5, 7]\nwidth = 4\n\
                layout = \"channel-last\"\nbias = true\nactivation = [\"none\", \"silu\"]\ndtype = \"f32\"\n";
    fs::write(&suite, text).unwrap();
    let directory = files.path("report");
    let (suite, directory) = (suite.to_str().unwrap(), directory.to_str().unwrap());
    success(&["verify", "--suite", suite, "--device", "cpu", "--report", directory]);
    format!("{directory}/run.json")
}

#[test]
fn a_report_is_sound_until_it_is_changed() {
    let files = Files::new();
    let path = verified(&files);
    let printed = success(&["report", "--check", &path]);
    assert!(printed.contains("run.json: sound (Verification on cpu ("), "{printed}");

    let written = fs::read_to_string(&path).unwrap();
    fs::write(&path, written.replacen("\"threads\": ", "\"threads\": 1", 1)).unwrap();
    let changed = output(&["report", "--check", &path]);
    let printed = text(&changed.stdout);
    assert_eq!(changed.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("NOT SOUND") && printed.contains("it was changed after it was written"),
        "{printed}"
    );
}

#[test]
fn the_report_names_the_program_that_computed() {
    let files = Files::new();
    let run: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(verified(&files)).unwrap()).unwrap();
    let program = env!("CARGO_BIN_EXE_causeway");
    assert_eq!(run["program"]["file"], fs::canonicalize(program).unwrap().to_str().unwrap());
    assert_eq!(run["program"]["digest"].as_str().unwrap().len(), 64);
    assert_eq!(run["command"][1], "verify");
    assert!(run["cases"][0]["timings"][0]["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn the_page_is_written_beside_the_report_and_from_reports() {
    let files = Files::new();
    let path = verified(&files);
    let page = fs::read_to_string(files.path("report/report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("ragged-2x5x7-f32-silu"));

    let (bench, out) = (files.path("bench.json"), files.path("page.html"));
    let (bench, out) = (bench.to_str().unwrap(), out.to_str().unwrap());
    let suite = files.path("mine.toml");
    let few =
        ["bench", "--suite", suite.to_str().unwrap(), "--device", "cpu", "--seconds", "0", "--rotation", "1"];
    success(&[&few[..], &["--save", bench]].concat());
    success(&["report", "--check", bench]);
    success(&["report", &path, bench, "--compare", bench, "--out", out]);
    let page = fs::read_to_string(out).unwrap();
    for words in [
        "Causeway: 2 runs",
        "Verification on cpu",
        "Benchmark on cpu",
        "fraction of floor",
        "(compared with)",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let markdown = files.path("page.md");
    let markdown = markdown.to_str().unwrap();
    success(&["report", &path, "--out", markdown]);
    assert_eq!(
        fs::read_to_string(markdown).unwrap(),
        fs::read_to_string(files.path("report/report.md")).unwrap()
    );
    success(&["report", &path, bench, "--out", markdown]);
    assert_eq!(fs::read_to_string(markdown).unwrap().matches("\n## Non-claims\n").count(), 2);
    let message = refusal(&["report", bench, "--compare", bench, "--out", markdown]);
    assert!(message.contains("--compare is for a page in HTML: --out is "), "{message}");
    for arguments in [
        &["report", bench, "--out", bench] as &[&str],
        &["report", &path, "--compare", bench, "--out", bench],
    ] {
        let message = refusal(arguments);
        assert!(message.contains("it would replace the report that it is made of"), "{message}");
    }
    let message = refusal(&["report", bench, "--compare", &path, "--out", out]);
    assert!(message.contains("--compare is run.json: it is \"Verification on"), "{message}");
}

#[test]
fn a_folder_stands_for_the_reports_in_it() {
    let files = Files::new();
    let path = verified(&files);
    // Beside it, and in a folder of its own.
    fs::create_dir(files.path("report/later")).unwrap();
    fs::copy(&path, files.path("report/later/other.json")).unwrap();
    let folder = files.path("report");
    let printed = success(&["report", "--check", folder.to_str().unwrap()]);
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(": sound (Verification")), "{printed}");
    assert!(lines[0].contains("later/other.json") && lines[1].contains("report/run.json"), "{printed}");

    // One that is no report keeps nobody from checking the others.
    fs::write(files.path("report/later/poem.json"), "[]").unwrap();
    let output = output(&["report", "--check", folder.to_str().unwrap()]);
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), printed.matches(": sound (").count()), (Some(2), 2), "{printed}");
    assert!(said.contains("poem.json is not a report") && said.contains("1 of 3 files"), "{said}");

    let empty = files.path("empty");
    fs::create_dir(&empty).unwrap();
    let message = refusal(&["report", "--check", empty.to_str().unwrap()]);
    assert!(message.contains("empty: this folder has no report, which is a .json file"), "{message}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let files = Files::new();
    let path = files.path("poem.json");
    fs::write(&path, "[]").unwrap();
    let message = refusal(&["report", "--check", path.to_str().unwrap()]);
    assert!(message.contains("is not a report: it is not an object"), "{message}");
    // As of a file of tensors.
    fs::write(&path, [0xff, 0xfe, 0]).unwrap();
    let message = refusal(&["report", "--check", path.to_str().unwrap()]);
    assert!(message.contains("is not JSON") && message.contains("`causeway verify --report`"), "{message}");
    // One byte of a report that is no text.
    fs::write(&path, b"{\"format\": 3, \"suite\": \"sm\xffall\"}").unwrap();
    let message = refusal(&["report", "--check", path.to_str().unwrap()]);
    assert!(message.contains("is not JSON: invalid utf-8 sequence"), "{message}");
    assert!(refusal(&["report", "--check", "absent.json"]).contains("absent.json: "));
    assert!(refusal(&["report"]).contains("FILE"));
}

#[test]
fn a_page_has_a_name_that_says_what_it_is() {
    let files = Files::new();
    let path = verified(&files);
    let pdf = files.path("page.pdf");
    let message = refusal(&["report", &path, "--out", pdf.to_str().unwrap()]);
    assert!(
        message.contains("page.pdf: expected a name that ends in .html or .md") && !pdf.exists(),
        "{message}"
    );
    let message = refusal(&["report", &path, "--json"]);
    assert!(message.contains("--check") && !message.contains("--out"), "{message}");
}

#[test]
fn saved_runs_of_the_repository_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
    let mut read = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // PyTorch's times are not of `bench`.
        let name = path.file_name().unwrap().to_string_lossy();
        if !name.ends_with(".json") || name.contains("torch") {
            continue;
        }
        let checked = output(&["report", "--check", path.to_str().unwrap()]);
        let printed = text(&checked.stdout);
        assert!(printed.contains("Benchmark on "), "{}: {printed}", path.display());
        match checked.status.code() {
            Some(0) => {}
            Some(1) => {
                assert!(printed.contains("it has no digest") && printed.lines().count() == 2, "{printed}")
            }
            _ => panic!("{}: {}", path.display(), text(&checked.stderr)),
        }
        read += 1;
    }
    assert!(read >= 4, "{read}");
}

#[test]
fn the_samples_of_the_repository_are_sound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports");
    for (name, device) in [("cpu", "cpu ("), ("h200", "cuda:0 (NVIDIA H200)"), ("simulator", "sim:32")] {
        let sample = folder.join(name).join("run.json");
        let printed = success(&["report", "--check", sample.to_str().unwrap()]);
        assert!(printed.contains(&format!("sound (Verification on {device}")), "{printed}");
        for file in ["report.md", "report.html"] {
            assert!(folder.join(name).join(file).exists(), "{name}/{file}");
        }
    }
}
