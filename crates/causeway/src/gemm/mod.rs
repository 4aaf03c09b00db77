//! Half-precision GEMM and its two gradients.
//!
//! ```text
//! C[m,n]      = Σ_k A[m,k] · B[k,n]              Forward
//! grad_A[m,k] = Σ_n grad_C[m,n] · B[k,n]         GradA
//! grad_B[k,n] = Σ_m A[m,k] · grad_C[m,n]         GradB
//! ```
//!
//! Logical shapes are `A (M, K)`, `B (K, N)` and `C (M, N)`, whatever the strides: rows may be padded, and a
//! transposed matrix is a view with its axes swapped ([`TensorRef::permuted`](crate::TensorRef::permuted)).
//! All operands and results of a call have one dtype, f16 or bf16; sums are f32. Any size may be 0: an empty
//! reduction gives zeros.
//!
//! # Which bits come out
//!
//! [`Algorithm::Exact`] fixes every bit of the result. Each output is one chain of f32 fused multiply-adds
//!
//! ```text
//! sum = +0.0;  for r in 0 .. reduction: sum = fma(left[r], right[r], sum);  output = round(sum)
//! ```
//!
//! in increasing order of the reduction index, where `fma` and `round` (to f16 or bf16) are to nearest, ties
//! to even, by IEEE 754. Nothing is flushed to zero: subnormal operands, sums and results are kept. Too large
//! a sum rounds to infinity, and a NaN result is the canonical quiet NaN, 0x7E00 in f16 and 0x7FC0 in bf16.
//! The chain starts from +0.0, so an empty sum, and a sum of zeros of either sign, is +0.0; −0.0 comes out only
//! where a negative value is too small for the sum's or the output's type.
//!
//! [`Algorithm::Fast`] lets the backend add in the order that suits it. On one device its bits are the same
//! from run to run and for any number of threads.

mod arguments;
mod forward;
mod grad_a;
mod grad_ab;
mod grad_b;

pub use forward::Forward;
pub use grad_a::GradA;
pub use grad_ab::GradAB;
pub use grad_b::GradB;

use crate::error::{Error, Result};

/// How the sums are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// In the order that the device likes best, on its matrix units where it has them.
    #[default]
    Fast,
    /// As one chain of f32 fused multiply-adds per output: the same bits on every device.
    Exact,
}

impl Algorithm {
    /// Both algorithms.
    pub const ALL: [Algorithm; 2] = [Algorithm::Fast, Algorithm::Exact];

    /// `fast` or `exact`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Fast => "fast",
            Algorithm::Exact => "exact",
        }
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Algorithm {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "fast" => Ok(Algorithm::Fast),
            "exact" => Ok(Algorithm::Exact),
            _ => Err(Error::UnknownAlgorithm { found: text.to_string() }),
        }
    }
}

/// The sizes that the arguments of a call agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Rows of A and C.
    pub m: i64,
    /// Columns of B and C.
    pub n: i64,
    /// Columns of A, rows of B.
    pub k: i64,
}
