//! Help, versions, colours, pipes and exit statuses.

use std::process::Command;

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
fn variables_are_where_a_reader_looks() {
    assert!(success(&["--help"]).contains("docs/environment.md"));
    assert!(success(&["plan", "--help"]).contains("CAUSEWAY_PLAN_RANK"));
}

#[test]
fn a_rank_that_is_no_number_is_told() {
    let plan = |rank| {
        let call =
            causeway().args(["plan", "--suite", "full"]).env("CAUSEWAY_PLAN_RANK", rank).output().unwrap();
        (text(&call.stdout), text(&call.stderr))
    };
    let (best, silence) = plan("");
    let (same, told) = plan("second");
    let expected = "CAUSEWAY_PLAN_RANK is \"second\": expected a number, 0 or more; taken as 0";
    assert!(told.contains(expected) && silence.is_empty(), "{told}{silence}");
    assert!(best == same && best != plan("1").0);
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
fn doctor_says_what_commands_compute_on() {
    let described = |device: &str| {
        let output = causeway().args(["doctor", "--json"]).env("CAUSEWAY_DEVICE", device).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let default = &findings["default_device"];
        (default["ready"] == true, default["detail"].as_str().unwrap().to_string())
    };
    assert_eq!(described("cpu:portable"), (true, "cpu (portable): CAUSEWAY_DEVICE".to_string()));
    let (is_ready, detail) = described("abacus");
    assert!(!is_ready && detail.starts_with("CAUSEWAY_DEVICE: device is \"abacus\""), "{detail}");
    assert!(success(&["doctor"]).contains("best of those present"));
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
fn doctor_finds_the_compiler_of_hip_where_rocm_5_keeps_it() {
    // One library is the runtime and the compiler, as in Debian's libamdhip64-5; that of ROCm 6 is no compiler.
    for (file, function, ready) in
        [("libamdhip64.so.5", "hiprtcCompileProgram", true), ("libamdhip64.so.6", "hipInit", false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let (source, library) = (directory.path().join("lib.rs"), directory.path().join(file));
        std::fs::write(&source, format!("#[unsafe(no_mangle)]\npub extern \"C\" fn {function}() {{}}\n"))
            .unwrap();
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let options = ["--edition", "2024", "--crate-type", "cdylib", "-A", "nonstandard-style", "-o"];
        let built = Command::new(compiler).args(options).args([&library, &source]).status().unwrap();
        assert!(built.success());
        let path = format!("{}:-", directory.path().display());
        let output =
            causeway().args(["doctor", "--json"]).env("CAUSEWAY_LIBRARY_PATH", path).output().unwrap();
        let findings: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        let hiprtc = &findings["compilers"][1];
        assert_eq!((hiprtc["name"].as_str(), hiprtc["ready"].as_bool()), (Some("HIPRTC (hip)"), Some(ready)));
        let detail = hiprtc["detail"].as_str().unwrap();
        assert!(detail.contains(library.to_str().unwrap()), "{detail}");
        assert_eq!(detail.contains("no run-time compiler in it"), !ready, "{detail}");
    }
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
    for argument in ["doctor", "--help", "--version"] {
        let writer = writer.try_clone().expect("the same pipe");
        let output = causeway().arg(argument).stdout(writer).output().expect("it starts");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), String::new()), "{argument}");
    }
}

#[test]
fn an_unknown_device_is_an_error_that_lists_the_known_ones() {
    let missing = ["run", "gemm-forward", "--in", "a.npz", "--out", "b.npz", "--device", "abacus"];
    // Files come first: the sentence about the device needs one that can be read.
    assert!(refusal(&missing).contains("a.npz"));
    let status = output(&["run", "--help"]).status;
    assert!(status.success());
}

#[cfg(target_os = "linux")]
fn full() -> std::fs::File {
    std::fs::File::options().write(true).open("/dev/full").expect("a file that takes nothing")
}

#[cfg(target_os = "linux")]
#[test]
fn a_stderr_that_takes_nothing_changes_no_exit_status() {
    let run = ["run", "conv1d-forward", "--in", "nope.npz", "--out", "o.npz"];
    for (arguments, status) in [
        (&run[..], 2),
        (&["verify", "--suite", "nope"], 2),
        (&["plan", "--arch", "foo"], 2),
        (&["report", "--check", "nope"], 2),
        (&["run"], 2),
        // A warning about the environment.
        (&["doctor"], 0),
    ] {
        let output =
            causeway().args(arguments).env("CAUSEWAY_CACHE", "maybe").stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_printed_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"], &["doctor"]] {
        let output = causeway().args(arguments).stdout(full()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("the output cannot be written: No space left"), "{said}");
    }
}

#[cfg(unix)]
#[test]
fn an_input_that_cannot_be_read_is_not_called_the_output() {
    for subcommand in ["gemm-oneshot", "serve"] {
        let directory = std::fs::File::open(env!("CARGO_MANIFEST_DIR")).unwrap();
        let output = causeway().args([subcommand, "--device", "cpu"]).stdin(directory).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("the input cannot be read: Is a directory"), "{subcommand}: {said}");
    }
}

#[test]
fn frames_too_small_for_an_error_are_refused() {
    let said = refusal(&["serve", "--max-frame", "100"]);
    assert!(said.contains("--max-frame is 100: expected 512 bytes or more"), "{said}");
    // Texts have short replies.
    let text_server = ["serve", "--protocol", "text", "--max-frame", "100", "--device", "cpu"];
    let output = causeway().args(text_server).stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn doctor_says_what_is_wrong_with_the_cache() {
    let problems = |variable: &str, value: &str| {
        let output = causeway()
            .args(["doctor", "--json"])
            .env_remove("CAUSEWAY_CACHE")
            .env(variable, value)
            .output()
            .unwrap();
        let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        findings["cache"]["problems"].to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(problems("CAUSEWAY_CACHE_DIR", folder.path().to_str().unwrap()), "[]");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let told = problems("CAUSEWAY_CACHE_DIR", file.to_str().unwrap());
    assert!(told.contains("no kernel can be kept in it: ") && told.contains("not a directory"), "{told}");
    let told = problems("CAUSEWAY_CACHE", "bad");
    assert!(told.contains("expected on, readonly or off; taken as on"), "{told}");
}
