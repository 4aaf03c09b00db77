//! `causeway_fuzz::tensor_frames` as a fuzz target.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| causeway_fuzz::tensor_frames(data));
