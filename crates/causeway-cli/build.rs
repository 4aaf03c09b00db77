//! Tells the command which commit it was built from, for the evidence in saved runs.

use std::process::Command;

fn main() {
    // What may change the answer: a commit or checkout, and the sources that make a tree differ from it.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=src");
    for library in ["causeway", "causeway-server", "causeway-sim", "causeway-verify"] {
        println!("cargo::rerun-if-changed=../{library}/src");
    }
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    println!("cargo::rustc-env=CAUSEWAY_COMMIT={}", commit.unwrap_or_else(|| "unknown".to_string()));
}

/// The output of a git command; `None` outside a repository or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
