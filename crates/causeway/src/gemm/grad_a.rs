//! Arguments of the gradient of A.

use super::validate::{self, Check};
use super::{Algorithm, Sizes};
use crate::checks;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// `grad_A[m,k] = Σ_n grad_C[m,n] · B[k,n]`, that is `grad_C · Bᵀ`: the gradient of
/// [`Forward`](super::Forward) in A.
#[derive(Debug)]
pub struct GradA<'a> {
    /// `(M, N)`; f16 or bf16: the gradient of C.
    pub grad_c: TensorRef<'a>,
    /// `(K, N)`, of grad_C's dtype.
    pub b: TensorRef<'a>,
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// `(M, K)`, of grad_C's dtype: the result.
    pub grad_a: TensorMut<'a>,
}

impl GradA<'_> {
    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (grad_c, b, grad_a) = (self.grad_c.meta(), self.b.meta(), self.grad_a.meta());
        let (m, n) = validate::matrix("grad_C", "(M, N)", grad_c)?;
        let (k, b_n) = validate::matrix("B", "(K, N)", b)?;
        let (grad_a_m, grad_a_k) = validate::matrix("grad_A", "(M, K)", grad_a)?;
        checks::size("B", "N", b_n, n, "the N of grad_C")?;
        checks::size("grad_A", "M", grad_a_m, m, "the M of grad_C")?;
        checks::size("grad_A", "K", grad_a_k, k, "the K of B")?;
        let check = Check::against_grad_c(grad_c)?;
        check.operand("B", b)?;
        check.result("grad_A", grad_a)?;
        Ok(Sizes { m, n, k })
    }
}
