//! Checks that every operation makes. Each failure is one sentence with the argument's name in it.

use crate::error::{Error, Result};
use crate::tensor::{DType, Location, Meta};

/// One size against what another argument requires.
pub(crate) fn size(
    argument: &'static str,
    axis: &'static str,
    found: i64,
    expected: i64,
    because: &'static str,
) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Size { argument, axis, found, expected, because })
}

/// A dtype that is one of those allowed.
pub(crate) fn dtype(
    argument: &'static str,
    meta: &Meta,
    allowed: &[DType],
    because: &'static str,
) -> Result<()> {
    if allowed.contains(&meta.dtype) {
        return Ok(());
    }
    Err(Error::DTypeMismatch { argument, found: meta.dtype, allowed: allowed.to_vec(), because })
}

/// The memory that the rest of the call is in.
pub(crate) fn location(
    argument: &'static str,
    found: Location,
    expected: Location,
    because: &'static str,
) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::WrongLocation { argument, found, expected, because })
}

/// The device that runs the call.
pub(crate) fn device(argument: &'static str, found: Location, expected: Location) -> Result<()> {
    location(argument, found, expected, "where the operation runs")
}

/// An output needs a place for each element.
pub(crate) fn output(argument: &'static str, meta: &Meta) -> Result<()> {
    if meta.is_injective() {
        return Ok(());
    }
    Err(Error::OverlappingOutput { argument, shape: meta.shape, strides: meta.strides })
}
