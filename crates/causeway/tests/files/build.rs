//! Files built byte by byte, so that they can be wrong in exactly one place.

use std::io::{Cursor, Write};

use causeway::files::{FileError, Format, TensorFile};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::{CompressionMethod, ZipArchiveWriter};

/// A safetensors image of this header text and these data bytes.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut image = (header.len() as u64).to_le_bytes().to_vec();
    image.extend(header.as_bytes());
    image.extend(data);
    image
}

/// A `.npy` image, version 1.0, of this dict and these data bytes.
pub fn npy(dict: &str, data: &[u8]) -> Vec<u8> {
    let mut image = b"\x93NUMPY\x01\x00".to_vec();
    image.extend((dict.len() as u16).to_le_bytes());
    image.extend(dict.as_bytes());
    image.extend(data);
    image
}

/// A `.npy` image of an array with this dtype and shape, as NumPy writes them.
pub fn array(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

/// An archive with these members.
pub fn archive(members: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, bytes) in members {
        let (mut member, data) = archive.new_file(*name).compression_method(method).start().unwrap();
        let descriptor = if method == CompressionMethod::STORE {
            let mut writer = data.wrap(&mut member);
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap().1
        } else {
            let mut writer = data.wrap(DeflateEncoder::new(&mut member, Compression::default()));
            writer.write_all(bytes).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            descriptor
        };
        member.finish(descriptor).unwrap();
    }
    archive.finish().unwrap()
}

/// Opens an image and reads every tensor in it, as a caller would.
pub fn read_all(image: &[u8], format: Format) -> Result<Vec<(String, Vec<f64>)>, FileError> {
    let mut file = TensorFile::from_reader(Cursor::new(image), format, "image")?;
    let names: Vec<String> = file.names().into_iter().map(str::to_string).collect();
    let mut tensors = Vec::new();
    for name in names {
        let tensor = file.read(&name)?.expect("the name came from the file");
        tensors.push((name, tensor.to_f64()));
    }
    Ok(tensors)
}

/// Checks that an image is refused with a sentence that contains `part`, on one line.
pub fn refused(image: &[u8], format: Format, part: &str) {
    let error = read_all(image, format).expect_err(part).to_string();
    assert!(error.contains(part), "{error:?} does not contain {part:?}");
    assert_eq!(error.lines().count(), 1, "{error:?}");
}

/// Overwrites the first occurrence of `from`.
pub fn patch(image: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = image.windows(from.len()).position(|window| window == from).expect("the pattern occurs");
    let mut patched = image.to_vec();
    patched[at..at + to.len()].copy_from_slice(to);
    patched
}

/// Overwrites every occurrence of `from`.
pub fn patch_all(image: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut patched = image.to_vec();
    while patched.windows(from.len()).any(|window| window == from) {
        patched = patch(&patched, from, to);
    }
    patched
}
