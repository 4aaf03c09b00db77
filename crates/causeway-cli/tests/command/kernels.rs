//! `causeway plan`, `compile` and `doctor --explain-cache`: GPU kernels with no GPU.

use std::process::Output;

use crate::process::{causeway, output, refusal, success, text};
use crate::required;

/// Runs the command with a cache of its own.
fn cached(cache: &std::path::Path, mode: &str, arguments: &[&str]) -> Output {
    let mut command = causeway();
    command.args(arguments).env("CAUSEWAY_CACHE_DIR", cache).env("CAUSEWAY_CACHE", mode);
    command.output().expect("the command starts")
}

#[test]
fn plans_of_a_case_are_printed_and_are_json() {
    let arguments = ["plan", "--suite", "shapes", "--case", "large-8x2048x1024-bf16-silu"];
    let printed = success(&arguments);
    assert!(printed.contains("large-8x2048x1024-bf16-silu conv1d-forward"), "{printed}");
    assert!(printed.contains("grid  ") && printed.contains("causal_conv1d_backward"), "{printed}");
    let json = success(&[&arguments[..], &["--arch", "gfx942", "--json"]].concat());
    let plans: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((plans["arch"].as_str(), plans["plans"].as_array().unwrap().len()), (Some("gfx942"), 2));
    let moved = 8 * 2048 * 1024 * 2;
    assert!(plans["plans"][0]["written_bytes"] == moved, "{plans}");
}

#[test]
fn plans_of_tensors_larger_than_memory_cost_nothing() {
    let printed = success(&["plan", "--suite", "huge"]);
    assert_eq!(printed.lines().filter(|line| line.starts_with("huge-")).count(), 8, "{printed}");
}

#[test]
fn architectures_and_suites_that_do_not_exist_are_refused() {
    for subcommand in ["plan", "compile"] {
        assert!(refusal(&[subcommand, "--arch", "sm_12x"]).contains("sm_12x"));
        let wrong = refusal(&[subcommand, "--arch", "sm_90a", "--suite", "nothing"]);
        assert!(wrong.contains("conv1d-first"), "{wrong}");
        let none = refusal(&[subcommand, "--arch", "sm_90a", "--case", "gigantic"]);
        assert!(
            none.contains("no case of suite shapes has \"gigantic\" in its name and is for a GPU"),
            "{none}"
        );
    }
    assert!(refusal(&["compile"]).contains("--arch"));
}

#[test]
fn a_coverage_of_no_draws_is_refused() {
    let said = refusal(&["plan", "--coverage", "run.json", "--draws", "0"]);
    assert!(said.contains("'0' for '--draws <N>': expected a whole number from 1 to 1000000000"), "{said}");
    for help in [success(&["plan", "--help"]), success(&["--help"])] {
        assert!(help.contains("Exit status:") && help.contains("choices"), "{help}");
    }
}

#[test]
fn a_filled_cache_is_used_and_explained() {
    let cache = tempfile::tempdir().unwrap();
    let compile =
        ["compile", "--arch", "sm_90a", "--suite", "shapes", "--case", "tiny-last-1x32x64-bf16-silu"];
    let first = cached(cache.path(), "on", &compile);
    let stderr = text(&first.stderr);
    if stderr.contains("NVRTC") && first.status.code() == Some(2) {
        assert!(!required::is_required("nvrtc"), "NVRTC is required here: {stderr}");
        assert!(stderr.contains("pip install nvidia-cuda-nvrtc"), "{stderr}");
        eprintln!("skipped: {stderr}");
        return;
    }
    assert_eq!(first.status.code(), Some(0), "{stderr}");
    assert!(
        text(&first.stdout).contains("sm_90a: 2 kernels, 2 compiled by NVRTC"),
        "{}",
        text(&first.stdout)
    );
    let again = text(&cached(cache.path(), "readonly", &compile).stdout);
    assert!(again.contains("0 compiled") && again.contains("2 already in the cache"), "{again}");
    let off = text(&cached(cache.path(), "off", &compile).stdout);
    assert!(off.contains("2 compiled") && off.contains("the cache is off"), "{off}");

    let found = text(&cached(cache.path(), "on", &["doctor", "--json"]).stdout);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["cache"]["entries"], 2);
    let directory = found["cache"]["directory"].as_str().unwrap();
    let key = std::fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().into_string().unwrap().strip_suffix(".kernel").map(String::from)
        })
        .next()
        .unwrap();
    let explained = text(&cached(cache.path(), "on", &["doctor", "--explain-cache", &key[..10]]).stdout);
    for part in [&key, "sm_90a", "NVRTC", "-std=c++17", "kernels/portable.cuh"] {
        assert!(explained.contains(part), "{part} is missing in\n{explained}");
    }
}

#[test]
fn a_key_that_is_not_in_the_cache_is_an_error() {
    let cache = tempfile::tempdir().unwrap();
    let unknown = cached(cache.path(), "on", &["doctor", "--explain-cache", "00ff"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("no entry in "), "{}", text(&unknown.stderr));
    let off = cached(cache.path(), "off", &["doctor", "--explain-cache", "00ff"]);
    assert!(text(&off.stderr).contains("the cache is off"), "{}", text(&off.stderr));
}

#[test]
fn what_needs_a_gpu_says_so() {
    let refused = output(&[
        "bench",
        "--host",
        "--device",
        "cpu",
        "--suite",
        "shapes",
        "--case",
        "tiny-last-1x32x64-f32",
        "--seconds",
        "0",
    ]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--host measures launches"), "{}", text(&refused.stderr));
    assert!(
        refusal(&["first-call", "--call", "sideways", "--device", "cpu"])
            .contains("forward, backward or update")
    );
}
