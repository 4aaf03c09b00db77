//! Help, versions, colours, pipes and exit statuses.

use crate::process::{causeway, output, refusal, success, text};

#[test]
fn help_is_printed_and_documents_the_exit_statuses() {
    for arguments in [&["--help"][..], &["-h"], &["help"], &[]] {
        let help = success(arguments);
        assert!(help.contains("Exit status:"), "{help}");
        assert!(help.contains("doctor"), "{help}");
    }
}

#[test]
fn every_subcommand_has_examples() {
    for subcommand in ["verify", "run", "bench", "report", "doctor"] {
        let help = success(&[subcommand, "--help"]);
        assert!(help.contains("Examples:"), "{subcommand}: {help}");
    }
}

#[test]
fn the_version_names_the_commit() {
    let version = success(&["--version"]);
    assert!(version.starts_with(concat!("causeway ", env!("CARGO_PKG_VERSION"), " (")), "{version}");
}

#[test]
fn wrong_usage_exits_2() {
    for arguments in [&["frobnicate"][..], &["run"], &["run", "conv2d"], &["doctor", "--what"]] {
        let stderr = refusal(arguments);
        assert!(stderr.starts_with("error: "), "{stderr}");
    }
}

#[test]
fn doctor_describes_the_processor() {
    let findings: serde_json::Value = serde_json::from_str(&success(&["doctor", "--json"])).unwrap();
    assert_eq!(findings["host"]["architecture"], std::env::consts::ARCH);
    let cpu = findings["devices"].as_array().unwrap().iter().find(|device| device["name"] == "cpu").unwrap();
    assert_eq!(cpu["ready"], true);
    assert_eq!(findings["compilers"].as_array().unwrap().len(), 2);
    let printed = success(&["doctor"]);
    assert!(printed.contains(findings["cpu_level"].as_str().unwrap()), "{printed}");
}

#[test]
fn doctor_says_what_is_missing_and_what_brings_it() {
    // A search of an empty directory and nothing else.
    let empty = tempfile::tempdir().unwrap();
    let path = format!("{}:-", empty.path().display());
    let output = causeway().arg("doctor").env("CAUSEWAY_LIBRARY_PATH", path).output().unwrap();
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        printed.contains("not found: NVRTC") && printed.contains("pip install nvidia-cuda-nvrtc"),
        "{printed}"
    );
}

#[test]
fn colours_follow_the_environment() {
    let escape = '\u{1b}';
    assert!(!success(&["doctor"]).contains(escape), "stdout is no terminal");
    let forced = causeway().arg("doctor").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(text(&forced.stdout).contains(escape));
    let refused = causeway().arg("doctor").env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!text(&refused.stdout).contains(escape));
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = causeway().arg("doctor").stdout(writer).output().expect("it starts");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), String::new()));
}

#[test]
fn an_unknown_device_is_an_error_that_lists_the_known_ones() {
    let missing = ["run", "gemm-forward", "--in", "a.npz", "--out", "b.npz", "--device", "abacus"];
    // Files come first: the sentence about the device needs one that can be read.
    assert!(refusal(&missing).contains("a.npz"));
    let status = output(&["run", "--help"]).status;
    assert!(status.success());
}
