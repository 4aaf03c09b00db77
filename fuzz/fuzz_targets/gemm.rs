//! `causeway_fuzz::gemm` as a fuzz target.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| causeway_fuzz::gemm(data));
