//! `causeway_fuzz::npz` as a fuzz target.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| causeway_fuzz::npz(data));
