//! Arguments of the product.

use super::arguments::*;
use super::{Algorithm, Sizes};
use crate::error::Result;
use crate::operation::{check, operation};

operation! {
    /// `C[m,n] = Σ_k A[m,k] · B[k,n]`; see the [module](super) for layouts and rounding.
    pub struct Forward;
    reads {
        /// `(M, K)`; f16 or bf16.
        a as "A": required matrix("(M, K)", &[M, K]), HALF;
        /// `(K, N)`, of A's dtype.
        b as "B": required matrix("(K, N)", &[K_OF_A, N]), OF_A;
    }
    options {
        /// How the sums are formed.
        algorithm: Algorithm;
    }
    writes {
        /// `(M, N)`, of A's dtype: the result.
        c as "C": required matrix("(M, N)", &[M_OF_A, N_OF_B]), OF_A;
    }
}

impl Forward<'_> {
    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (m, k) = sizes("A", "(M, K)", &self.a)?;
        let (_, n) = sizes("B", "(K, N)", &self.b)?;
        check(self, &[0, 0, 0, 0, 0, m, n, k])?;
        Ok(Sizes { m, n, k })
    }
}
