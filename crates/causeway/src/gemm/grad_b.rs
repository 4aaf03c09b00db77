//! Arguments of the gradient of B.

use super::arguments::*;
use super::{Algorithm, Sizes};
use crate::error::Result;
use crate::operation::{check, operation};

operation! {
    /// `grad_B[k,n] = Σ_m A[m,k] · grad_C[m,n]`, that is `Aᵀ · grad_C`: the gradient of
    /// [`Forward`](super::Forward) in B.
    pub struct GradB;
    reads {
        /// `(M, N)`; f16 or bf16: the gradient of C.
        grad_c as "grad_C": required matrix("(M, N)", &[M, N]), HALF;
        /// `(M, K)`, of grad_C's dtype.
        a as "A": required matrix("(M, K)", &[M_OF_GRAD_C, K]), OF_GRAD_C;
    }
    options {
        /// How the sums are formed.
        algorithm: Algorithm;
    }
    writes {
        /// `(K, N)`, of grad_C's dtype: the result.
        grad_b as "grad_B": required matrix("(K, N)", &[K_OF_A, N_OF_GRAD_C]), OF_GRAD_C;
    }
}

impl GradB<'_> {
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
