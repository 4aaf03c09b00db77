//! Any bytes as a safetensors file.
#![no_main]

use causeway::files::Format;

libfuzzer_sys::fuzz_target!(|data: &[u8]| causeway_fuzz::files::read_all(Format::Safetensors, data));
