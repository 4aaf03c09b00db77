//! Builds the drivers that live in host memory: `tests/fake_gpu`.

use std::path::Path;
use std::process::Command;

/// The root file of the fake drivers.
pub const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../causeway/tests/fake_gpu/lib.rs");

/// Builds a library from a Rust file and gives it the names of all that the real ones are called, in a directory.
///
/// The compiler is called directly: no build folder is involved, so that no test waits for another one's lock.
pub fn build(source: &Path, directory: &Path) {
    let library = directory.join("libcuda.so.1");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-C", "panic=abort"])
        .args(["-D", "warnings", "-A", "nonstandard-style", "-o"])
        .arg(&library)
        .arg(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // One file under all names: the loader opens it once.
    for name in ["libamdhip64.so.6", "libnvrtc.so.13", "libhiprtc.so.6"] {
        std::fs::hard_link(&library, directory.join(name)).unwrap();
    }
}
