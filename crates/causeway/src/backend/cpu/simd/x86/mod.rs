//! x86-64: AVX2 with FMA and F16C, and AVX-512 with F, BW, DQ and VL.
//!
//! The tokens are made by the entry points only, which are compiled for the instructions and whose callers
//! vouch for the processor; that is what makes the methods safe to call. Loads and stores rely on the caller's
//! promise about the pointer besides; they may be unaligned except for `stream_*`.

mod avx2;
mod avx512;

use super::{Instructions, Kernel, Lanes, Number, Part, Plain, Simd};

/// AVX2, FMA and F16C: eight f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// AVX-512 F, BW, DQ and VL: sixteen f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: &K, task: usize)
where
    K::Number: Number<Accumulator = f32> + Lanes<Avx2>,
{
    kernel.run(Avx2(()), task)
}

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2_f64<K: Kernel<Number = f64>>(kernel: &K, task: usize) {
    kernel.run(Plain::<f64, _, 4>::new(Avx2(())), task)
}

/// # Safety
/// The processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: &K, task: usize)
where
    K::Number: Number<Accumulator = f32> + Lanes<Avx512>,
{
    kernel.run(Avx512(()), task)
}

/// # Safety
/// The processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run_avx512_f64<K: Kernel<Number = f64>>(kernel: &K, task: usize) {
    kernel.run(Plain::<f64, _, 8>::new(Avx512(())), task)
}

impl Instructions for Avx2 {
    const FUSED: bool = true;

    #[inline(always)]
    fn apart<S: Simd, P: Part<S>>(self, simd: S, part: P) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<S: Simd, P: Part<S>>(simd: S, part: P) {
            part.run(simd)
        }
        // SAFETY: the token.
        unsafe { run(simd, part) }
    }
}

impl Instructions for Avx512 {
    const FUSED: bool = true;

    #[inline(always)]
    fn apart<S: Simd, P: Part<S>>(self, simd: S, part: P) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn run<S: Simd, P: Part<S>>(simd: S, part: P) {
            part.run(simd)
        }
        // SAFETY: the token.
        unsafe { run(simd, part) }
    }
}
