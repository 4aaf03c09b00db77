//! The library's errors as Python exceptions.

use causeway::{DType, Error};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

/// Names that arguments have in Python where the library's are others.
pub type Renamed = &'static [(&'static str, &'static str)];

/// The exception for an error: `TypeError` for a dtype, `ValueError` for a shape or a value, `RuntimeError` for a
/// tensor on another device and for what drivers say, `NotImplementedError` for what there is no kernel for. Dtypes have the
/// names that PyTorch and NumPy give them.
pub fn exception(error: Error, renamed: Renamed) -> PyErr {
    let mut text = match error {
        Error::DTypeMismatch { .. }
        | Error::TooLarge { .. }
        | Error::OutOfMemory { .. }
        | Error::ResultTooLarge { .. }
        | Error::Unsupported { .. }
        | Error::NormNumber { .. } => with_python_names(&error.to_string()),
        _ => error.to_string(),
    };
    for (from, to) in renamed {
        if let Some(rest) = text.strip_prefix(from).filter(|rest| rest.starts_with([' ', '['])) {
            text = format!("{to}{rest}");
            break;
        }
    }
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

/// A sentence that has names of dtypes, with those that PyTorch and NumPy have for them.
fn with_python_names(text: &str) -> String {
    let is_between = |c: char| !c.is_alphanumeric() && c != '_';
    let renamed = |part: &str| {
        let word = part.trim_end_matches(is_between);
        match word.parse() {
            Ok(dtype) => format!("{}{}", python_name(dtype), &part[word.len()..]),
            Err(_) => part.to_string(),
        }
    };
    text.split_inclusive(is_between).map(renamed).collect()
}
