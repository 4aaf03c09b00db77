//! AMD code objects from a clang of this machine, for architectures that its HIPRTC does not know. For tests alone:
//! the product compiles with HIPRTC.

use std::path::Path;
use std::process::Command;

use causeway::backend::gpu::compiler::{Program, Target};

#[path = "required.rs"]
mod required;

/// The clang to use: `CAUSEWAY_TEST_CLANG`, else version 19, the first that knows every architecture below gfx950.
fn clang() -> String {
    let named = std::env::var("CAUSEWAY_TEST_CLANG").ok().filter(|name| !name.is_empty());
    named.unwrap_or_else(|| "clang++-19".to_string())
}

/// What the clang says it is; None if this machine has not got it.
pub fn version() -> Option<String> {
    let output =
        Command::new(clang()).arg("--version").output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_string)
}

/// True if this machine has the clang; says so if it has not. `CAUSEWAY_TEST_REQUIRE=clang` makes that a failure.
pub fn is_present() -> bool {
    let present = version().is_some();
    assert!(present || !required::is_required("clang"), "{} is required here", clang());
    if !present {
        eprintln!("skipped: no {}", clang());
    }
    present
}

/// Compiles a program to a code object in `directory` without any HIP header, and returns its file, or the
/// compiler's log.
pub fn compile(program: &Program, target: &Target, directory: &Path) -> Result<std::path::PathBuf, String> {
    let (source, object) = (directory.join("kernel.hip"), directory.join("kernel.hsaco"));
    std::fs::write(&source, program.text().map_err(|error| error.to_string())?)
        .map_err(|error| error.to_string())?;
    let mut command = Command::new(clang());
    command.args([
        "-x",
        "hip",
        "--cuda-device-only",
        "--no-gpu-bundle-output",
        "-nogpuinc",
        "-nogpulib",
        "-O3",
    ]);
    command.arg(format!("--offload-arch={target}"));
    command.args(target.options().iter().filter(|option| !option.starts_with("--gpu-architecture")));
    if let Some(linker) =
        ["/usr/bin/ld.lld-19", "/usr/bin/ld.lld"].iter().find(|path| Path::new(path).exists())
    {
        command.arg(format!("--ld-path={linker}"));
    }
    let output = command.arg("-o").arg(&object).arg(&source).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(object)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
