//! safetensors files that lie.

use causeway::files::{self, Format, Metadata};
use causeway::{DType, HostTensor};

use crate::build::{read_all, refused, safetensors};

const FORMAT: Format = Format::Safetensors;

#[test]
fn each_lie_has_its_sentence() {
    let data = [0u8; 8];
    for (header, part) in [
        ("", "malformed header"),
        ("{", "malformed header"),
        ("[]", "malformed header"),
        ("null", "malformed header"),
        ("{} {}", "malformed header"),
        (r#"{"x":{}}"#, r#"tensor "x": missing field `dtype`"#),
        (r#"{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#, "malformed header"),
        (r#"{"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}"#, "malformed header"),
        (r#"{"x":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}}"#, "malformed header"),
        (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}"#, "malformed header"),
        (r#"{"__metadata__":{"a":1}}"#, "malformed header"),
        (r#"{"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#, r#"tensor "x" has dtype "U8""#),
        (
            r#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
            "needs 12 bytes, but the file gives it 8",
        ),
        (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, "lies at bytes 8 to 0"),
        (r#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}"#, "lies at bytes 0 to 12"),
        (
            r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]}}"#,
            "lies at bytes",
        ),
        (r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, "has 4 bytes after its last tensor"),
        (
            r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            "starts at byte 4 of the data: expected 0",
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            r#"tensor "y" starts at byte 4 of the data: expected 8"#,
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
            "occurs twice",
        ),
        (r#"{"__metadata__":{"a":"1"},"__metadata__":{}}"#, "occurs twice"),
        (r#"{"__metadata__":{"a":"1","b":"2","a":"3"}}"#, r#"metadata has "a" twice"#),
        (r#"{"x":{"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]}}"#, "has 5 axes"),
        (
            r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
            "does not fit the address space",
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}}"#,
            "does not fit the address space",
        ),
        (r#"{"x":{"dtype":"F64","shape":[1152921504606846977],"data_offsets":[0,8]}}"#, "address space"),
        (r#"{"\u001b[2J":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, r#"tensor "\u{1b}[2J" of"#),
    ] {
        refused(&safetensors(header, &data), FORMAT, part);
    }
}

#[test]
fn header_lengths_that_lie_are_refused_before_they_are_believed() {
    let image = |length: u64, rest: &[u8]| [&length.to_le_bytes()[..], rest].concat();
    refused(&image(3, b"{}"), FORMAT, "the header needs 3 bytes, and 2 are there");
    refused(&image(90_000_000, b"{}"), FORMAT, "the header needs 90000000 bytes, and 2 are there");
    refused(&image(100_000_001, b"{}"), FORMAT, "announces a header of 100000001 bytes");
    refused(&image(u64::MAX, b"{}"), FORMAT, "announces a header of 18446744073709551615 bytes");
    refused(&image(2, &[0xff, 0xfe]), FORMAT, "malformed header");
    refused(b"", FORMAT, "the header length needs 8 bytes, and 0 are there");
}

#[test]
fn deeply_nested_headers_do_not_overflow_the_stack() {
    let nested = format!("{{\"x\":{}", "[".repeat(1_000_000));
    refused(&safetensors(&nested, &[]), FORMAT, "malformed header");
}

fn small_image() -> Vec<u8> {
    let x = HostTensor::from_fn(DType::F32, &[2, 3], |i| i as f64).unwrap();
    let n = HostTensor::from_fn(DType::I64, &[2], |i| i as f64).unwrap();
    let metadata = Metadata::from([("made".to_string(), "by a test".to_string())]);
    files::to_safetensors(&[("x", &x), ("n", &n)], &metadata)
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let image = small_image();
    read_all(&image, FORMAT).unwrap();
    for length in 0..image.len() {
        let error = read_all(&image[..length], FORMAT).expect_err("a cut file").to_string();
        assert_eq!(error.lines().count(), 1, "{error:?}");
    }
}

#[test]
fn a_byte_changed_anywhere_never_panics_and_never_asks_for_more_than_the_file() {
    let image = small_image();
    for at in 0..image.len() {
        for value in [0, 1, b'"', b'0', b'9', b'{', 0x7f, 0xff] {
            let mut changed = image.clone();
            changed[at] = value;
            if let Ok(tensors) = read_all(&changed, FORMAT) {
                let elements: usize = tensors.iter().map(|(_, values)| values.len()).sum();
                assert!(elements <= image.len() / 2, "{elements} elements from {} bytes", image.len());
            }
        }
    }
}
