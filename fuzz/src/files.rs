//! Tensor files from bytes.

use std::io::Cursor;

use causeway::files::{Format, TensorFile, to_safetensors};

/// Reads everything that an image holds. What can be read can be written, and is the same when it is read again.
pub fn read_all(format: Format, data: &[u8]) {
    let Ok(mut file) = TensorFile::from_reader(Cursor::new(data), format, "input") else { return };
    let names: Vec<String> = file.names().iter().map(ToString::to_string).collect();
    let metadata = file.metadata().clone();
    let mut tensors = Vec::new();
    for name in names {
        let Ok(tensor) = file.read(&name) else { return };
        let tensor = tensor.expect("a name that was listed is there");
        // No header makes memory out of nothing.
        assert!(tensor.bytes().len() <= data.len() * 1100 + 64, "{name} has {} bytes", tensor.bytes().len());
        tensors.push((name, tensor));
    }
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let written = to_safetensors(&named, &metadata);
    let mut again = TensorFile::from_reader(Cursor::new(&written), Format::Safetensors, "copy")
        .expect("what is written can be read");
    assert_eq!(again.metadata(), &metadata);
    assert_eq!(again.names(), tensors.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for (name, tensor) in &tensors {
        let copy = again.read(name).expect("elements can be read").expect("the tensor is there");
        let same = copy.dtype() == tensor.dtype() && copy.shape() == tensor.shape();
        assert!(
            same && to_safetensors(&[("t", &copy)], &metadata) == to_safetensors(&[("t", tensor)], &metadata)
        );
    }
}
