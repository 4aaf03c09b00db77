//! Any bytes as requests of the tensors protocol: each reply is a safetensors image with results or an error in it.
#![no_main]

use std::io::Cursor;

use causeway::files::{Format, TensorFile};
use causeway_server::Protocol;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for reply in causeway_fuzz::frames::serve(Protocol::Tensors, data) {
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
});
