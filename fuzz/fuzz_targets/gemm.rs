//! Matrix products and their gradients of any shape and strides, right ones and wrong ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Inputs that are too short for a call say nothing.
    let _ = causeway_fuzz::gemm::check(&mut arbitrary::Unstructured::new(data));
});
