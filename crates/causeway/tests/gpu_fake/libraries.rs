//! Libraries that are not there, or too old.

use causeway::Error;
use causeway::backend::gpu::GpuDevice;
use causeway::backend::gpu::plan::Vendor;

use crate::control::{run, vendor};
use crate::fake_gpu::build;

#[test]
#[ignore = "run by libraries_that_are_absent_or_too_old_are_named"]
fn opening_says_what_is_missing() {
    let error = GpuDevice::open(vendor(), 0).unwrap_err();
    let text = error.to_string();
    match std::env::var("CAUSEWAY_TEST_EXPECT").unwrap().as_str() {
        "absent" => {
            assert!(matches!(error, Error::LibraryMissing { .. }), "{text}");
            let directory = std::env::var("CAUSEWAY_LIBRARY_PATH").unwrap();
            assert!(
                text.contains(directory.trim_end_matches(":-")) && text.contains("to install it"),
                "{text}"
            );
        }
        "old" => {
            let first = if vendor() == Vendor::Nvidia { "cuInit" } else { "hipDriverGetVersion" };
            assert!(matches!(&error, Error::SymbolMissing { symbol, .. } if *symbol == first), "{text}");
            assert!(text.contains("update"), "{text}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn libraries_that_are_absent_or_too_old_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let old = tempfile::tempdir().unwrap();
    let source = old.path().join("old.rs");
    std::fs::write(&source, "#[unsafe(no_mangle)] extern \"C\" fn hipInit(_: u32) -> i32 { 0 }").unwrap();
    build(&source, old.path());
    for vendor in ["cuda", "hip"] {
        run(
            "libraries::opening_says_what_is_missing",
            vendor,
            empty.path(),
            &[("CAUSEWAY_TEST_EXPECT", "absent")],
        );
        run(
            "libraries::opening_says_what_is_missing",
            vendor,
            old.path(),
            &[("CAUSEWAY_TEST_EXPECT", "old")],
        );
    }
}
