//! `causeway bench`: a short run, saved and compared.

use std::fs;

use crate::process::{Files, output, refusal, success, text};

const SUITE: &str = "name = \"mine\"\nabout = \"For a test.\"\n\n[[conv1d]]\nname = \"some\"\nshape = [2, 16, 512]\n\
                     width = 4\nlayout = [\"channel-first\", \"channel-last\"]\nbias = true\nactivation = \"silu\"\n\
                     dtype = [\"f32\", \"bf16\"]\n";

/// Arguments for a run that takes as little time and memory as this suite allows.
fn bench(files: &Files, more: &[&str]) -> Vec<String> {
    let path = files.path("mine.toml");
    fs::write(&path, SUITE).unwrap();
    let fixed = ["bench", "--suite", path.to_str().unwrap(), "--seconds", "0", "--rotation", "1"];
    fixed.iter().chain(more).map(|text| (*text).to_string()).collect()
}

#[test]
fn rows_hold_times_a_floor_and_checked_results() {
    let files = Files::new();
    let printed = success(&bench(&files, &["--json"]));
    let run: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let rows = run["run"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert!(row["time"]["median"].as_f64().unwrap() > 0.0);
        assert!(row["floor"]["median"].as_f64().unwrap() > 0.0);
        assert_eq!(row["wrong"], serde_json::Value::Null);
    }
    let tensor = 2 * 16 * 512 * 4;
    let (weight, bias) = (16 * 4 * 4, 16 * 4);
    assert_eq!(rows[0]["bytes"], 2 * tensor + weight + bias);
    assert_eq!(rows[1]["bytes"], 3 * tensor + 2 * (weight + bias));
}

#[test]
fn filters_leave_what_they_say() {
    let files = Files::new();
    let printed =
        success(&bench(&files, &["--dtype", "bf16", "--layout", "channel-last", "--shape", "2,16,512"]));
    assert_eq!(printed.lines().filter(|line| line.ends_with("right")).count(), 2, "{printed}");
    let none = refusal(&bench(&files, &["--activation", "none"]));
    assert!(
        none.contains("no case of suite") && none.contains("--suite FILE.toml measures cases of"),
        "{none}"
    );
    assert!(refusal(&bench(&files, &["--shape", "2,16"])).contains("batch,dim,seqlen"));
    assert!(refusal(&bench(&files, &["--dtype", "f8"])).contains("dtype"));
}

#[test]
fn what_has_nothing_to_measure_is_named_with_the_reason() {
    let files = Files::new();
    let path = files.path("rest.toml");
    let rows = "name = \"rest\"\nabout = \"x\"\n\n[[conv1d]]\nname = \"none\"\nshape = [2, 0, 512]\nwidth = 4\n\
                layout = \"channel-first\"\nactivation = \"none\"\ndtype = \"f32\"\n";
    fs::write(&path, rows).unwrap();
    let rest = ["bench", "--device", "cpu", "--suite", path.to_str().unwrap()];
    let message = refusal(&rest);
    assert!(
        message.contains("can be measured on cpu (") && message.contains(": it has an axis of size 0"),
        "{message}"
    );
    let message = refusal(&bench(&files, &["--device", "cpu", "--call", "update"]));
    assert!(
        message.contains("f32-silu: its calls are forward and backward, and --call names another"),
        "{message}"
    );
}

#[test]
fn products_are_measured_against_a_library_for_gpus() {
    let text = refusal(&["bench", "--suite", "gemm-shapes", "--device", "cpu"]);
    assert!(text.contains("products are not measured on cpu") && text.contains("cuBLASLt"), "{text}");
}

#[test]
fn a_saved_run_that_was_faster_makes_a_regression() {
    let files = Files::new();
    let saved = files.path("before.json");
    let saved = saved.to_str().unwrap();
    success(&bench(&files, &["--dtype", "f32", "--save", saved]));
    // As if the machine had been a thousand times faster, and its floor the same.
    let mut run: serde_json::Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    for row in run["rows"].as_array_mut().unwrap() {
        for field in ["ratio", "noise"] {
            row[field] = (row[field].as_f64().unwrap() / 1000.0).into();
        }
        row["time"]["median"] = (row["time"]["median"].as_f64().unwrap() / 1000.0).into();
    }
    fs::write(saved, run.to_string()).unwrap();
    let slower = output(&bench(&files, &["--dtype", "f32", "--compare", saved]));
    let printed = text(&slower.stdout);
    assert_eq!(slower.status.code(), Some(1), "{printed}");
    assert!(printed.contains("4 rows compared, 4 slower"), "{printed}");
}

#[test]
fn runs_that_cannot_be_compared_are_refused_before_anything_is_measured() {
    let files = Files::new();
    let path = files.path("not-a-run.json");
    fs::write(&path, "[]").unwrap();
    let stderr = refusal(&bench(&files, &["--compare", path.to_str().unwrap()]));
    assert!(stderr.contains("is not a report"), "{stderr}");
    assert!(refusal(&["bench", "--seconds", "-3"]).contains("--seconds is -3: expected 0 to 3600"));
    let saved = files.path("f32.json");
    let saved = saved.to_str().unwrap();
    success(&bench(&files, &["--dtype", "f32", "--save", saved]));
    for (options, sentence) in [
        (["--dtype", "bf16", "--compare", saved], "that has none of the 4 calls to be measured"),
        (["--dtype", "f32", "--save", "absent/run.json"], "--save is absent/run.json: No such file"),
        (["--dtype", "f32", "--save", "."], "--save is .: it is a directory"),
    ] {
        let stderr = refusal(&bench(&files, &options));
        assert!(stderr.contains(sentence), "{stderr}");
    }
    success(&bench(&files, &["--dtype", "f32", "--call", "forward", "--save", saved]));
    let stderr = refusal(&bench(&files, &["--dtype", "f32", "--call", "backward", "--compare", saved]));
    assert!(
        stderr.contains("that has none of the 2 calls to be measured: no row would be compared"),
        "{stderr}"
    );
    let host = refusal(&bench(&files, &["--host", "--device", "cpu"]));
    assert!(host.contains("--host measures launches, and cpu"), "{host}");
    let rotation = refusal(&["bench", "--rotation", "99999999999"]);
    assert!(
        rotation.contains("'99999999999' for '--rotation <MIB>': expected a whole number from 0 to 1048576"),
        "{rotation}"
    );
}

#[test]
fn a_comparison_says_what_the_runs_do_not_have_in_common() {
    let files = Files::new();
    let saved = files.path("before.json");
    let saved = saved.to_str().unwrap();
    let filters = ["--dtype", "f32", "--layout", "channel-last", "--call", "forward", "--device", "cpu"];
    let compared = |more: &[&str]| {
        // Whether a row regressed is left to chance.
        text(&output(&bench(&files, &[&filters[..], &["--compare", saved], more].concat())).stdout)
    };
    success(&bench(&files, &[&filters[..], &["--threads", "2", "--save", saved]].concat()));
    let (same, other) = (compared(&["--threads", "2"]), compared(&["--threads", "1"]));
    assert!(same.contains("1 rows compared") && !same.contains("threads: "), "{same}");
    assert!(other.contains("  threads: 2 before, 1 now"), "{other}");
    assert!(!other.contains("processor: ") && !other.contains("rotation: "), "{other}");
    let json: serde_json::Value = serde_json::from_str(&compared(&["--threads", "1", "--json"])).unwrap();
    assert_eq!(json["differences"], serde_json::json!(["threads: 2 before, 1 now"]));
    let mut run: serde_json::Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    run["host"]["processor"] = "Abacus".into();
    run["method"][0] = "cold: calls go through 7 KiB".into();
    fs::write(saved, run.to_string()).unwrap();
    let other = compared(&["--threads", "2"]);
    assert!(other.contains("processor: Abacus before, "), "{other}");
    assert!(other.contains("rotation: calls go through 7 KiB before, calls go through "), "{other}");
}
