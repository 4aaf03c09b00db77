//! Arguments of both gradients at once.

use super::arguments::*;
use super::{Algorithm, GradA, GradB, Sizes};
use crate::error::Result;
use crate::operation::{check, operation};

operation! {
    /// [`GradA`] and [`GradB`] in one call: the whole backward pass of [`Forward`](super::Forward).
    pub struct GradAB;
    reads {
        /// `(M, N)`; f16 or bf16: the gradient of C.
        grad_c as "grad_C": required matrix("(M, N)", &[M, N]), HALF;
        /// `(M, K)`, of grad_C's dtype.
        a as "A": required matrix("(M, K)", &[M_OF_GRAD_C, K]), OF_GRAD_C;
        /// `(K, N)`, of grad_C's dtype.
        b as "B": required matrix("(K, N)", &[K_OF_A, N_OF_GRAD_C]), OF_GRAD_C;
    }
    options {
        /// How the sums are formed.
        algorithm: Algorithm;
    }
    writes {
        /// `(M, K)`, of grad_C's dtype: the gradient of A.
        grad_a as "grad_A": required matrix("(M, K)", &[M_OF_GRAD_C, K_OF_A]), OF_GRAD_C;
        /// `(K, N)`, of grad_C's dtype: the gradient of B.
        grad_b as "grad_B": required matrix("(K, N)", &[K_OF_A, N_OF_GRAD_C]), OF_GRAD_C;
    }
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
        let (m, n) = sizes("grad_C", "(M, N)", &self.grad_c)?;
        let (_, k) = sizes("A", "(M, K)", &self.a)?;
        check(self, &[0, 0, 0, 0, 0, m, n, k])?;
        Ok(Sizes { m, n, k })
    }
}
