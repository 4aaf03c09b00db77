//! Well-formed files, ours and other programs'.

use std::io::Cursor;

use causeway::files::{self, Format, Metadata, TensorFile};
use causeway::{DType, HostTensor};
use rawzip::CompressionMethod;

use crate::build::{archive, array, npy, read_all};

fn samples() -> Vec<(&'static str, HostTensor)> {
    let value = |i: usize| i as f64 - 3.0;
    vec![
        ("x", HostTensor::from_fn(DType::F32, &[2, 3, 4], value).unwrap()),
        ("half", HostTensor::from_fn(DType::F16, &[5], value).unwrap()),
        ("brain", HostTensor::from_fn(DType::BF16, &[1, 7], value).unwrap()),
        ("double", HostTensor::from_fn(DType::F64, &[3, 1], value).unwrap()),
        ("seq_idx", HostTensor::from_fn(DType::I32, &[2, 2], value).unwrap()),
        ("cu_seqlens", HostTensor::from_fn(DType::I64, &[4], value).unwrap()),
        ("empty", HostTensor::zeros(DType::F32, &[0, 8]).unwrap()),
        ("scalar", HostTensor::from_fn(DType::F32, &[], |_| 2.5).unwrap()),
        ("strided", HostTensor::from_fn(DType::F32, &[3, 5], value).unwrap().permuted(&[1, 0])),
    ]
}

#[test]
fn every_dtype_and_shape_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    for extension in ["safetensors", "npz", "NPZ"] {
        let path = directory.path().join(format!("tensors.{extension}"));
        let samples = samples();
        let tensors: Vec<_> = samples.iter().map(|(name, tensor)| (*name, tensor)).collect();
        files::write(&path, &tensors, &Metadata::new()).unwrap();
        let mut file = TensorFile::open(&path).unwrap();
        assert_eq!(file.names().len(), samples.len());
        for (name, tensor) in &samples {
            let read = file.read(name).unwrap().unwrap();
            assert_eq!((read.dtype(), read.shape()), (tensor.dtype(), tensor.shape()), "{name}");
            assert_eq!(read.to_f64(), tensor.to_f64(), "{name}");
        }
        assert!(file.read("absent").unwrap().is_none());
    }
}

#[test]
fn metadata_comes_back() {
    let metadata = Metadata::from([("operation".to_string(), "conv1d-forward".to_string())]);
    let image = files::to_safetensors(&[], &metadata);
    let file = TensorFile::from_reader(Cursor::new(image), Format::Safetensors, "image").unwrap();
    assert_eq!(file.metadata(), &metadata);
}

#[test]
fn the_reference_implementation_reads_what_is_written() {
    let samples = samples();
    let tensors: Vec<_> = samples.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let image = files::to_safetensors(&tensors, &Metadata::new());
    let reference = safetensors::SafeTensors::deserialize(&image).unwrap();
    for (name, tensor) in &samples {
        let read = reference.tensor(name).unwrap();
        let shape: Vec<i64> = read.shape().iter().map(|&size| size as i64).collect();
        assert_eq!(shape, tensor.shape());
        let dense = tensor.to_contiguous().unwrap();
        assert_eq!(read.data(), &dense.bytes()[..read.data().len()], "{name}");
        let size = tensor.dtype().size();
        assert_eq!((read.data().as_ptr() as usize - image.as_ptr() as usize) % size, 0, "{name} is aligned");
    }
}

#[test]
fn what_the_reference_implementation_writes_is_read() {
    let data: Vec<u8> = [1.0f32, -2.0, 3.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = |shape: Vec<usize>| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &data).unwrap()
    };
    let image = safetensors::serialize([("a", view(vec![3])), ("b", view(vec![3, 1]))], None).unwrap();
    let read = read_all(&image, Format::Safetensors).unwrap();
    assert_eq!(read, [("a".to_string(), vec![1.0, -2.0, 3.5]), ("b".to_string(), vec![1.0, -2.0, 3.5])]);
}

#[test]
fn npy_arrays_of_every_order_are_read() {
    let little: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let big: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_be_bytes()).collect();
    let fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }";
    let members = [
        ("big.npy", array(">f4", "(2, 3)", &big)),
        ("fortran.npy", npy(fortran, &little)),
        ("little.npy", array("<f4", "(2, 3)", &little)),
    ];
    for method in [CompressionMethod::STORE, CompressionMethod::DEFLATE] {
        let read = read_all(&archive(&members, method), Format::Npz).unwrap();
        assert_eq!(read[0], ("big".to_string(), vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(read[1], ("fortran".to_string(), vec![0.0, 2.0, 4.0, 1.0, 3.0, 5.0]));
        assert_eq!(read[2].1, read[0].1);
    }
}

#[test]
fn bfloat16_is_read_as_ml_dtypes_writes_it() {
    let data: Vec<u8> = [1.0f32, -0.5].iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    for descr in ["<V2", "|V2"] {
        let image = archive(&[("x.npy", array(descr, "(2,)", &data))], CompressionMethod::STORE);
        assert_eq!(read_all(&image, Format::Npz).unwrap()[0].1, [1.0, -0.5]);
    }
}

#[test]
fn an_archive_that_numpy_wrote_is_read() {
    // numpy.savez_compressed(path, x=numpy.arange(6, dtype='f4').reshape(2, 3), n=numpy.array([1, -2]))
    let image = include_bytes!("numpy_savez_compressed.npz");
    let read = read_all(image, Format::Npz).unwrap();
    assert_eq!(read[0], ("n".to_string(), vec![1.0, -2.0]));
    assert_eq!(read[1], ("x".to_string(), vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
}

#[test]
fn a_name_that_is_not_ascii_says_that_it_is_utf8() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("names.npz");
    let tensor = HostTensor::zeros(DType::F32, &[1]).unwrap();
    for (name, says) in [("größe", true), ("x", false), ("../größe", false)] {
        files::write(&path, &[(name, &tensor)], &Metadata::new()).unwrap();
        let image = std::fs::read(&path).unwrap();
        // Bit 11 of a local header's flags.
        assert_eq!(image[7] & 8 != 0, says, "{name}");
        assert_eq!(TensorFile::open(&path).unwrap().names(), [name]);
    }
}
