//! Eight lanes: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Part, Vector};

/// A 256-bit register.
#[derive(Clone, Copy)]
pub struct Avx2(__m256);

/// A NaN in any lane becomes the quiet one without payload, which both half types keep when rounded to.
#[inline]
#[target_feature(enable = "avx")]
fn canonical(values: __m256) -> __m256 {
    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
    _mm256_blendv_ps(values, _mm256_set1_ps(f32::NAN), nan)
}

#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(values: __m256) -> __m128i {
    let bits = _mm256_castps_si256(canonical(values));
    let last_kept = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let bias = _mm256_add_epi32(last_kept, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
    _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256::<1>(rounded))
}

impl Vector for Avx2 {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn apart<P: Part<Self>>(part: P) {
        /// # Safety
        /// As [`Part::run`].
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn run<P: Part<Avx2>>(part: P) {
            // SAFETY: the caller's promise.
            unsafe { part.run() }
        }
        // SAFETY: the trait's contract.
        unsafe { run(part) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: every x86-64 processor has the instruction, which takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the trait's contract.
        Avx2(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's contract.
        Avx2(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the trait's contract.
        Avx2(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the trait's contract.
        Avx2(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: the trait's contract.
        unsafe {
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(self.0));
            _mm_storeu_si128(to.cast(), rounded);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: the trait's contract.
        unsafe { _mm_storeu_si128(to.cast(), round_to_bf16(self.0)) }
    }
}
