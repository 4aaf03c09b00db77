//! Arguments of both gradients at once.

use super::validate::{self, Check};
use super::{Algorithm, GradA, GradB, Sizes};
use crate::checks;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// [`GradA`] and [`GradB`] in one call: the whole backward pass of [`Forward`](super::Forward).
#[derive(Debug)]
pub struct GradAB<'a> {
    /// `(M, N)`; f16 or bf16: the gradient of C.
    pub grad_c: TensorRef<'a>,
    /// `(M, K)`, of grad_C's dtype.
    pub a: TensorRef<'a>,
    /// `(K, N)`, of grad_C's dtype.
    pub b: TensorRef<'a>,
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// `(M, K)`, of grad_C's dtype: the gradient of A.
    pub grad_a: TensorMut<'a>,
    /// `(K, N)`, of grad_C's dtype: the gradient of B.
    pub grad_b: TensorMut<'a>,
}

impl GradAB<'_> {
    /// The same call as its two parts.
    pub(crate) fn split(&mut self) -> (GradA<'_>, GradB<'_>) {
        let (grad_c, algorithm) = (self.grad_c, self.algorithm);
        (
            GradA { grad_c, b: self.b, algorithm, grad_a: self.grad_a.reborrow() },
            GradB { grad_c, a: self.a, algorithm, grad_b: self.grad_b.reborrow() },
        )
    }

    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (grad_c, a, b) = (self.grad_c.meta(), self.a.meta(), self.b.meta());
        let (grad_a, grad_b) = (self.grad_a.meta(), self.grad_b.meta());
        let (m, n) = validate::matrix("grad_C", "(M, N)", grad_c)?;
        let (a_m, k) = validate::matrix("A", "(M, K)", a)?;
        let (b_k, b_n) = validate::matrix("B", "(K, N)", b)?;
        let (grad_a_m, grad_a_k) = validate::matrix("grad_A", "(M, K)", grad_a)?;
        let (grad_b_k, grad_b_n) = validate::matrix("grad_B", "(K, N)", grad_b)?;
        checks::size("A", "M", a_m, m, "the M of grad_C")?;
        checks::size("B", "K", b_k, k, "the K of A")?;
        checks::size("B", "N", b_n, n, "the N of grad_C")?;
        checks::size("grad_A", "M", grad_a_m, m, "the M of grad_C")?;
        checks::size("grad_A", "K", grad_a_k, k, "the K of A")?;
        checks::size("grad_B", "K", grad_b_k, k, "the K of A")?;
        checks::size("grad_B", "N", grad_b_n, n, "the N of grad_C")?;
        let check = Check::against_grad_c(grad_c)?;
        check.operand("A", a)?;
        check.operand("B", b)?;
        check.result("grad_A", grad_a)?;
        check.result("grad_B", grad_b)?;
        Ok(Sizes { m, n, k })
    }
}
