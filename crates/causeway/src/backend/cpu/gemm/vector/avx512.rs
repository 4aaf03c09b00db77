//! Sixteen lanes: AVX-512.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Part, Vector};

/// A 512-bit register.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

/// A NaN in any lane becomes the quiet one without payload, which both half types keep when rounded to.
#[inline]
#[target_feature(enable = "avx512f")]
fn canonical(values: __m512) -> __m512 {
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    _mm512_mask_mov_ps(values, nan, _mm512_set1_ps(f32::NAN))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_bf16(values: __m512) -> __m256i {
    let bits = _mm512_castps_si512(canonical(values));
    let last_kept = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let bias = _mm512_add_epi32(last_kept, _mm512_set1_epi32(0x7fff));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias)))
}

impl Vector for Avx512 {
    const LANES: usize = 16;
    const TILE_ROWS: usize = 8;

    #[inline(always)]
    unsafe fn apart<P: Part<Self>>(part: P) {
        /// # Safety
        /// As [`Part::run`].
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn run<P: Part<Avx512>>(part: P) {
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
        Avx512(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's contract.
        Avx512(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the trait's contract.
        Avx512(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the trait's contract.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: the trait's contract.
        unsafe {
            let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(self.0));
            _mm256_storeu_si256(to.cast(), rounded);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(to.cast(), round_to_bf16(self.0)) }
    }
}
