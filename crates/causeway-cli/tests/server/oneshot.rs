//! `causeway gemm-oneshot`: one request of the text protocol on stdin.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::process::command;

fn oneshot(text: &[u8], more: &[&str]) -> Output {
    let mut command = command(&[&["gemm-oneshot"], more].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // It may refuse before it has read everything.
    let _ = child.stdin.take().expect("stdin is a pipe").write_all(text);
    child.wait_with_output().expect("it ends")
}

#[test]
fn the_example_of_the_help() {
    let output = oneshot(b"1 1 1 1\n15360\n16384\n", &[]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout.starts_with("DEVICE_NAME=cpu") && stdout.ends_with("\nRESULTS=16384\n"), "{stdout}");
}

#[test]
fn each_mistake_has_its_exit_status_and_prints_nothing() {
    let table: [(&[u8], i32); 9] = [
        (b"", 2),
        (b"\xff\xfe\n", 2),
        (b"1 1 1\n0\n0\n", 2),
        (b"4 1 1 1\n0\n0\n", 3),
        (b"1 1 1 -7\n0\n0\n", 4),
        (b"1 2 1 1\n0\n0\n", 7),
        (b"1 1 1 1\n0\n65536\n", 8),
        (b"2 1 1 1\n0\n0 0\n", 9),
        (b"1 1 1 1\n0\n0\n", 0),
    ];
    for (text, status) in table {
        let output = oneshot(text, &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{text:?}: {stderr}");
        assert_eq!(output.stdout.is_empty(), status != 0);
        assert_eq!(stderr.is_empty(), status == 0, "{stderr}");
    }
}

#[test]
fn limits_and_devices_fail_with_their_status() {
    let column = vec!["0"; 100].join(" ");
    let wide = format!("1 100 1 100\n{column}\n{column}\n");
    assert_eq!(oneshot(wide.as_bytes(), &["--max-frame", "1K"]).status.code(), Some(10));
    assert_eq!(oneshot(wide.as_bytes(), &["--max-frame", "100"]).status.code(), Some(2));
    let absent = std::process::Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["gemm-oneshot", "--device", "cuda:99"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .and_then(|mut child| {
            child.stdin.take().expect("stdin is a pipe").write_all(b"1 1 1 1\n0\n0\n")?;
            child.wait()
        });
    assert_eq!(absent.expect("it ends").code(), Some(10));
}
