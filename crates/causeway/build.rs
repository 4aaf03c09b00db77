//! Embeds the device code: every file of `kernels/` becomes a line of a table of names and texts.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("kernels");
    let output = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("kernels.rs");
    // A change of the folder or of a file in it builds again.
    println!("cargo::rerun-if-changed={}", root.display());

    let mut names = Vec::new();
    for entry in root.read_dir()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".cuh") {
            names.push(name);
        }
    }
    names.sort();
    let mut table = String::from("&[\n");
    for name in names {
        let path = root.join(&name).display().to_string();
        // Writing to a `String` cannot fail.
        let _ = writeln!(table, "    ({name:?}, include_str!({path:?})),");
    }
    table.push(']');
    fs::write(output, table)
}
