//! Starts the command and collects what it did.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use causeway::HostTensor;
use causeway::files::{self, Metadata, TensorFile};

/// The command, with an environment that the caller's does not change.
pub fn causeway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.env_remove("CAUSEWAY_DEVICE").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

/// Runs it to its end.
pub fn output<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    causeway().args(arguments).output().expect("the command starts")
}

/// Runs it, expects success, and returns its stdout.
pub fn success<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let output = output(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs it, expects exit status 2 and nothing on stdout, and returns its stderr.
pub fn refusal<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let output = output(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    stderr
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command prints UTF-8")
}

/// A directory of files for one test.
pub struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    pub fn new() -> Self {
        Files { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes tensors and returns the path.
    pub fn write(&self, name: &str, tensors: &[(&str, &HostTensor)]) -> PathBuf {
        let path = self.path(name);
        files::write(&path, tensors, &Metadata::new()).expect("the file can be written");
        path
    }

    /// Names of all files, sorted.
    pub fn listing(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("the directory can be read");
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Reads one tensor of a file.
pub fn read(path: &Path, name: &str) -> HostTensor {
    let mut file = TensorFile::open(path).expect("the file can be read");
    file.read(name).expect("the tensor can be read").expect("the tensor is there")
}

/// `run OP --in … --out …`, and more.
pub fn run_arguments(operation: &str, input: &Path, output: &Path, more: &[&str]) -> Vec<String> {
    let mut arguments = vec!["run".to_string(), operation.to_string()];
    for (flag, path) in [("--in", input), ("--out", output)] {
        arguments.extend([flag.to_string(), path.to_str().expect("a UTF-8 path").to_string()]);
    }
    arguments.extend(more.iter().map(|text| (*text).to_string()));
    arguments
}
