//! Checks of what reads bytes from others, and of the operations. Each is a function of bytes, named as its fuzz target, that
//! panics where something is wrong.

use std::io::Cursor;

use arbitrary::Unstructured;
use causeway::files::{Format, TensorFile};
use causeway_server::Protocol;

mod cache;
#[path = "../../crates/causeway-verify/tests/common/conv1d.rs"]
mod calls;
#[path = "conv1d.rs"]
mod convolutions;
mod draw;
mod files;
mod frames;
#[path = "../../crates/causeway-verify/tests/common/placement.rs"]
mod memory;
#[path = "gemm.rs"]
mod products;
mod suites;

/// Any bytes as a safetensors file.
pub fn safetensors(data: &[u8]) {
    files::read_all(Format::Safetensors, data);
}

/// Any bytes as an npz file.
pub fn npz(data: &[u8]) {
    files::read_all(Format::Npz, data);
}

/// Any bytes as requests of the tensors protocol: each reply is a safetensors image with results or an error in it.
pub fn tensor_frames(data: &[u8]) {
    for reply in frames::serve(Protocol::Tensors, data) {
        let mut image =
            TensorFile::from_reader(Cursor::new(&reply), Format::Safetensors, "reply").expect("an image");
        let metadata = image.metadata().clone();
        assert!(metadata.contains_key("error") == metadata.contains_key("message"), "{metadata:?}");
        assert!(!metadata.contains_key("error") || image.names().is_empty(), "{metadata:?}");
        let names: Vec<String> = image.names().iter().map(ToString::to_string).collect();
        for name in names {
            image.read(&name).expect("results can be read");
        }
    }
}

/// Any bytes as requests of the text protocol: each reply is lines with results, or an error with its status.
pub fn text_frames(data: &[u8]) {
    for reply in frames::serve(Protocol::Text, data) {
        let reply = String::from_utf8(reply).expect("replies are text");
        match reply.strip_prefix("ERROR=") {
            Some(rest) => {
                let status = rest.split(' ').next().unwrap_or_default();
                assert!(matches!(status, "2" | "3" | "4" | "7" | "8" | "9" | "10"), "{reply}");
                assert!(reply.ends_with('\n') && reply.lines().count() == 1, "{reply}");
            }
            None => assert!(reply.contains("RESULTS=") && reply.contains("KERNEL_TIME_MS="), "{reply}"),
        }
    }
}

/// Any bytes as an entry of the kernel cache.
pub fn cache_entry(data: &[u8]) {
    cache::check(data);
}

/// Any text as a suite: it is refused with a sentence, or its cases can be described and planned on every kind of device.
pub fn suite(data: &[u8]) {
    suites::check(data);
}

/// Convolutions of any shape, strides, options and values, right ones and wrong ones.
pub fn conv1d(data: &[u8]) {
    // Inputs that are too short for a call say nothing.
    let _ = convolutions::check(&mut Unstructured::new(data));
}

/// Matrix products and their gradients of any shape and strides, right ones and wrong ones.
pub fn gemm(data: &[u8]) {
    let _ = products::check(&mut Unstructured::new(data));
}
