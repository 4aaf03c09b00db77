//! Arguments of the gradient of A.

use super::arguments::*;
use super::{Algorithm, Sizes};
use crate::error::Result;
use crate::operation::{check, operation};

operation! {
    /// `grad_A[m,k] = Σ_n grad_C[m,n] · B[k,n]`, that is `grad_C · Bᵀ`: the gradient of
    /// [`Forward`](super::Forward) in A.
    pub struct GradA;
    reads {
        /// `(M, N)`; f16 or bf16: the gradient of C.
        grad_c as "grad_C": required matrix("(M, N)", &[M, N]), HALF;
        /// `(K, N)`, of grad_C's dtype.
        b as "B": required matrix("(K, N)", &[K, N_OF_GRAD_C]), OF_GRAD_C;
    }
    options {
        /// How the sums are formed.
        algorithm: Algorithm;
    }
    writes {
        /// `(M, K)`, of grad_C's dtype: the result.
        grad_a as "grad_A": required matrix("(M, K)", &[M_OF_GRAD_C, K_OF_B]), OF_GRAD_C;
    }
}

impl GradA<'_> {
    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (m, n) = sizes("grad_C", "(M, N)", &self.grad_c)?;
        let (k, _) = sizes("B", "(K, N)", &self.b)?;
        check(self, &[0, 0, 0, 0, 0, m, n, k])?;
        Ok(Sizes { m, n, k })
    }
}
