//! x86-64: AVX2 with FMA and F16C, and AVX-512 with F, BW, DQ and VL.
//!
//! The tokens are made by the entry points only, which are compiled for the instructions and whose callers
//! vouch for the processor; that is what makes the methods safe to call. Loads and stores rely on the caller's
//! promise about the pointer besides; they may be unaligned except for `stream_*`.

pub(super) mod avx2;
pub(super) mod avx512;
