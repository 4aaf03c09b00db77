//! Arguments of the gradient of B.

use super::validate::{self, Check};
use super::{Algorithm, Sizes};
use crate::checks;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// `grad_B[k,n] = Σ_m A[m,k] · grad_C[m,n]`, that is `Aᵀ · grad_C`: the gradient of
/// [`Forward`](super::Forward) in B.
#[derive(Debug)]
pub struct GradB<'a> {
    /// `(M, N)`; f16 or bf16: the gradient of C.
    pub grad_c: TensorRef<'a>,
    /// `(M, K)`, of grad_C's dtype.
    pub a: TensorRef<'a>,
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// `(K, N)`, of grad_C's dtype: the result.
    pub grad_b: TensorMut<'a>,
}

impl GradB<'_> {
    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (grad_c, a, grad_b) = (self.grad_c.meta(), self.a.meta(), self.grad_b.meta());
        let (m, n) = validate::matrix("grad_C", "(M, N)", grad_c)?;
        let (a_m, k) = validate::matrix("A", "(M, K)", a)?;
        let (grad_b_k, grad_b_n) = validate::matrix("grad_B", "(K, N)", grad_b)?;
        checks::size("A", "M", a_m, m, "the M of grad_C")?;
        checks::size("grad_B", "K", grad_b_k, k, "the K of A")?;
        checks::size("grad_B", "N", grad_b_n, n, "the N of grad_C")?;
        let check = Check::against_grad_c(grad_c)?;
        check.operand("A", a)?;
        check.result("grad_B", grad_b)?;
        Ok(Sizes { m, n, k })
    }
}
