//! The checks that the four operations share.
//!
//! A call is checked against its first operand: A, or grad_C where the call has one.

use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{DType, Location, Meta};

/// The dtype and the place that a call's first operand sets for the others.
pub(super) struct Check {
    dtype: DType,
    location: Location,
    dtype_because: &'static str,
    location_because: &'static str,
}

impl Check {
    /// For a call whose first operand is A.
    pub fn against_a(a: &Meta) -> Result<Self> {
        Self::against("A", a, "the dtype of A", "where A is")
    }

    /// For a call whose first operand is grad_C.
    pub fn against_grad_c(grad_c: &Meta) -> Result<Self> {
        Self::against("grad_C", grad_c, "the dtype of grad_C", "where grad_C is")
    }

    fn against(
        argument: &'static str,
        first: &Meta,
        dtype_because: &'static str,
        location_because: &'static str,
    ) -> Result<Self> {
        checks::dtype(argument, first, &[DType::F16, DType::BF16], "the dtypes of a GEMM")?;
        Ok(Check { dtype: first.dtype, location: first.location, dtype_because, location_because })
    }

    /// An operand with the dtype and the place of the first one.
    pub fn operand(&self, argument: &'static str, operand: &Meta) -> Result<()> {
        checks::dtype(argument, operand, &[self.dtype], self.dtype_because)?;
        checks::location(argument, operand, self.location, self.location_because)
    }

    /// A result: as an operand, and with a place for each element.
    pub fn result(&self, argument: &'static str, result: &Meta) -> Result<()> {
        self.operand(argument, result)?;
        checks::output(argument, result)
    }
}

/// The rows and columns of a matrix; `expected` names them, for example `(M, K)`.
pub(super) fn matrix(argument: &'static str, expected: &'static str, meta: &Meta) -> Result<(i64, i64)> {
    match *meta.shape {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(Error::Rank { argument, expected, found: meta.shape }),
    }
}
