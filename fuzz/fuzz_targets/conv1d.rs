//! Convolutions of any shape, strides, options and values, right ones and wrong ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Inputs that are too short for a call say nothing.
    let _ = causeway_fuzz::conv1d::check(&mut arbitrary::Unstructured::new(data));
});
