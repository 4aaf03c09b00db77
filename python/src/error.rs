//! The library's errors as Python exceptions.

use causeway::{DType, Error};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

/// Names that arguments have in Python where the library's are others.
pub type Renamed = &'static [(&'static str, &'static str)];

/// The exception for an error: `TypeError` for a dtype, `ValueError` for a shape or a value, `RuntimeError` for a
/// tensor on another device and for what drivers say, `NotImplementedError` for what there is no kernel for. Arguments have
/// Python's names, and dtypes those that PyTorch and NumPy give them.
pub fn exception(error: Error, renamed: Renamed) -> PyErr {
    let mut text = match error {
        Error::Rank { .. }
        | Error::Size { .. }
        | Error::Channels { .. }
        | Error::StateTooShort { .. }
        | Error::DTypeMismatch { .. }
        | Error::WrongLocation { .. }
        | Error::OverlappingOutput { .. }
        | Error::TooLarge { .. }
        | Error::OutOfMemory { .. }
        | Error::ResultTooLarge { .. }
        | Error::IndexOutOfRange { .. }
        | Error::DuplicateIndex { .. }
        | Error::CuSeqlensEnd { .. }
        | Error::Unexpected { .. }
        | Error::Unsupported { .. }
        | Error::NormNumber { .. } => with_python_names(&error.to_string(), renamed),
        // These name no argument, and may quote what a caller or a compiler wrote.
        _ => error.to_string(),
    };
    match error {
        Error::DTypeMismatch { allowed, .. } => {
            if allowed == [DType::I32] {
                text.push_str("; convert it with .to(torch.int32) or .astype(numpy.int32)");
            }
            PyTypeError::new_err(text)
        }
        Error::Unsupported { .. } | Error::UnknownActivation { .. } => PyNotImplementedError::new_err(text),
        Error::Rank { .. }
        | Error::Size { .. }
        | Error::Channels { .. }
        | Error::Width { .. }
        | Error::StateTooShort { .. }
        | Error::OutOfBounds { .. }
        | Error::NegativeSize { .. }
        | Error::AxisCount { .. }
        | Error::TooLarge { .. }
        | Error::IndexOutOfRange { .. }
        | Error::DuplicateIndex { .. }
        | Error::CuSeqlensStart { .. }
        | Error::CuSeqlensDecrease { .. }
        | Error::CuSeqlensEnd { .. }
        | Error::CuSeqlensEmpty
        | Error::Unexpected { .. }
        | Error::HeadDim { .. }
        | Error::NormNumber { .. }
        | Error::UnknownNorm { .. }
        | Error::UnknownAlgorithm { .. }
        | Error::UnknownDevice { .. }
        | Error::UnknownSimulator { .. } => PyValueError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Python's name of a dtype.
pub fn python_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F64 => "float64",
        DType::I32 => "int32",
        DType::I64 => "int64",
    }
}

/// A sentence that names arguments and dtypes, with the names that Python has for them.
fn with_python_names(text: &str, renamed: Renamed) -> String {
    let is_between = |c: char| !c.is_alphanumeric() && c != '_';
    let in_python = |part: &str| {
        let word = part.trim_end_matches(is_between);
        let argument = renamed.iter().find(|(from, _)| *from == word).map(|(_, to)| *to);
        match argument.or_else(|| word.parse().ok().map(python_name)) {
            Some(name) => format!("{name}{}", &part[word.len()..]),
            None => part.to_string(),
        }
    };
    text.split_inclusive(is_between).map(in_python).collect()
}
