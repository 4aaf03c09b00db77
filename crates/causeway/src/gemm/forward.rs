//! Arguments of the product.

use super::validate::{self, Check};
use super::{Algorithm, Sizes};
use crate::checks;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// `C[m,n] = Σ_k A[m,k] · B[k,n]`; see the [module](super) for layouts and rounding.
#[derive(Debug)]
pub struct Forward<'a> {
    /// `(M, K)`; f16 or bf16.
    pub a: TensorRef<'a>,
    /// `(K, N)`, of A's dtype.
    pub b: TensorRef<'a>,
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// `(M, N)`, of A's dtype: the result.
    pub c: TensorMut<'a>,
}

impl Forward<'_> {
    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (a, b, c) = (self.a.meta(), self.b.meta(), self.c.meta());
        let (m, k) = validate::matrix("A", "(M, K)", a)?;
        let (b_k, n) = validate::matrix("B", "(K, N)", b)?;
        let (c_m, c_n) = validate::matrix("C", "(M, N)", c)?;
        checks::size("B", "K", b_k, k, "the K of A")?;
        checks::size("C", "M", c_m, m, "the M of A")?;
        checks::size("C", "N", c_n, n, "the N of B")?;
        let check = Check::against_a(a)?;
        check.operand("B", b)?;
        check.result("C", c)?;
        Ok(Sizes { m, n, k })
    }
}
