//! The library's errors as Python exceptions.

use causeway::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

/// Names that arguments have in Python where the library's are others.
pub type Renamed = &'static [(&'static str, &'static str)];

/// The exception for an error: `TypeError` for a dtype, `ValueError` for a shape or a value, `RuntimeError` for a
/// tensor on another device and for what drivers say, `NotImplementedError` for what there is no kernel for.
pub fn exception(error: Error, renamed: Renamed) -> PyErr {
    let mut text = error.to_string();
    for (from, to) in renamed {
        if let Some(rest) = text.strip_prefix(from).filter(|rest| rest.starts_with([' ', '['])) {
            text = format!("{to}{rest}");
            break;
        }
    }
    match error {
        Error::DTypeMismatch { .. } => PyTypeError::new_err(text),
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
        | Error::Missing { .. }
        | Error::Unexpected { .. }
        | Error::HeadDim { .. }
        | Error::NormNumber { .. }
        | Error::UnknownNorm { .. }
        | Error::UnknownAlgorithm { .. }
        | Error::UnknownDevice { .. } => PyValueError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}
