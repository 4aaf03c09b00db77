//! `--device hip` from end to end on a machine without a GPU: a HIP runtime and compiler made by the tests, which run
//! launches in the simulator, in waves of 64.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Output;

use causeway_sim::Simulator;

use crate::fake_gpu;
use crate::process::{Files, causeway, text};

const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/hip.toml");

/// `verify` on the simulated HIP device; `compiler` is what it compiles with, a word to a line.
fn verify(libraries: &Path, cache: &Path, compiler: impl AsRef<OsStr>, more: &[&str]) -> Output {
    causeway()
        .args(["verify", "--suite", SUITE, "--device", "hip"])
        .args(more)
        .env("CAUSEWAY_LIBRARY_PATH", format!("{}:-", libraries.display()))
        .env("CAUSEWAY_CACHE_DIR", cache)
        .env_remove("CAUSEWAY_CACHE")
        .env("FAKE_GPU_SIMULATE", compiler)
        .output()
        .expect("the command starts")
}

#[test]
fn verify_runs_kernels_through_the_driver() {
    let (files, libraries) = (Files::new(), Files::new());
    let libraries = libraries.path("");
    fake_gpu::build(Path::new(fake_gpu::SOURCE), &libraries);
    let simulator = Simulator::open("sim:64").expect("a simulator");
    let compiler = simulator.compile_command().join(OsStr::new("\n"));
    let cache = files.path("cache");

    // Each call twice: a kernel of its own compares what they leave.
    let output = verify(&libraries, &cache, &compiler, &["--repeat", "2", "--json"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    let run: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!((run["device"].as_str(), run["passed"].as_bool()), (Some("hip:0 (Fake GPU)"), Some(true)));
    assert!(run["preparation"]["compiled"].as_u64() > Some(10), "{printed}");
    let cases = run["cases"].as_array().expect("cases");
    assert!(cases.len() == 7 && cases.iter().all(|case| case["passed"] == true), "{printed}");

    // With the cache there is nothing to compile, and what was compiled is what runs.
    let output = verify(&libraries, &cache, "/nonexistent/compiler", &["--case", "plain"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));

    // Without it, what the compiler says is what the command says.
    let output = verify(&libraries, &files.path("other"), "/nonexistent/compiler", &["--case", "plain"]);
    assert_ne!(output.status.code(), Some(0));
    let message = text(&output.stdout) + &text(&output.stderr);
    assert!(message.contains("No such file or directory"), "{message}");
}
