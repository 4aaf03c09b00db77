//! `serve --report`: what a server answered, written when it ends.

use std::process::Command;

use crate::process::{Server, forward_request};

fn run(directory: &tempfile::TempDir) -> serde_json::Value {
    let path = directory.path().join("run.json");
    let text = std::fs::read_to_string(&path).expect("the report is there");
    let checked =
        Command::new(env!("CARGO_BIN_EXE_causeway")).args(["report", "--check"]).arg(&path).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn answers_and_refusals_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(&["--report", directory.path().to_str().unwrap()]);
    server.ask(&forward_request(1.0, "a"));
    server.ask(&forward_request(1.0, "a"));
    server.ask(b"no tensors");
    assert!(server.finish().0.success());
    let run = run(&directory);
    assert_eq!((run["kind"].as_str(), run["protocol"].as_str()), (Some("service"), Some("tensors")));
    assert_eq!(run["operations"]["conv1d-forward"]["answered"], 2);
    assert_eq!(run["refused"], serde_json::json!({ "malformed-request": 1 }));
    let evidence = run["evidence"].to_string();
    assert!(
        evidence.contains("answered 2 requests on cpu") && evidence.contains("and refused 1"),
        "{evidence}"
    );
    assert!(directory.path().join("report.html").exists());
}

#[cfg(unix)]
#[test]
fn a_signal_does_not_lose_the_report() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().to_str().unwrap();
    let mut server = Server::start(&["--protocol", "text", "--report", report]);
    server.ask(b"1 1 1 1\n15360\n15360\n");
    server.ask(b"3 1 1 1\n15360\n15360\n");
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(server.child.wait().unwrap().success());
    let run = run(&directory);
    assert_eq!(run["operations"]["gemm-grad-a"]["answered"], 1);
    assert_eq!(run["refused"], serde_json::json!({ "status-3": 1 }));
}
