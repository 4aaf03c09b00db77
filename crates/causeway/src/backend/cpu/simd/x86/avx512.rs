//! Sixteen f32: AVX-512 F, BW, DQ and VL. The token proves that the instructions are there.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::{Precision, Simd, SimdF32, silu};
use super::Avx512;

/// Of a 32-bit word.
const UPPER_HALF: i32 = 0xffff_0000_u32 as i32;

impl Simd for Avx512 {
    type Scalar = f32;
    type Vector = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> __m512 {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm512_loadu_ps(source) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: __m512) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm512_storeu_ps(target, v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: the token.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), high);
            let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn shift_in(self, before: __m512, v: __m512, lanes: usize) -> __m512 {
        // SAFETY: the token.
        unsafe {
            let (low, high) = (_mm512_castps_si512(before), _mm512_castps_si512(v));
            _mm512_castsi512_ps(match lanes {
                0 => high,
                1 => _mm512_alignr_epi32::<15>(high, low),
                2 => _mm512_alignr_epi32::<14>(high, low),
                3 => _mm512_alignr_epi32::<13>(high, low),
                4 => _mm512_alignr_epi32::<12>(high, low),
                5 => _mm512_alignr_epi32::<11>(high, low),
                6 => _mm512_alignr_epi32::<10>(high, low),
                _ => _mm512_alignr_epi32::<9>(high, low),
            })
        }
    }

    #[inline(always)]
    fn silu<const N: usize>(self, x: [__m512; N], precision: Precision) -> [__m512; N] {
        silu::silu(self, x, precision)
    }

    #[inline(always)]
    fn silu_slope<const N: usize>(self, x: [__m512; N], precision: Precision) -> [__m512; N] {
        silu::silu_slope(self, x, precision)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch has no effect but on the caches, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn stream_line(self, source: *const u8, target: *mut u8) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm512_stream_si512(target.cast(), _mm512_loadu_si512(source.cast())) }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }
}

impl SimdF32 for Avx512 {
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> __m512 {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(source.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut f16, v: __m512) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_storeu_si256(target.cast(), round_f16(self, v)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, source: *const bf16) -> __m512 {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(low))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut bf16, v: __m512) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_storeu_si256(target.cast(), round_bf16(self, v)) }
    }

    const BF16_ALTERNATES: bool = true;

    #[inline(always)]
    unsafe fn load_bf16_pair(self, source: *const bf16) -> [__m512; 2] {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let words = _mm512_loadu_si512(source.cast());
            let odd = _mm512_and_si512(words, _mm512_set1_epi32(UPPER_HALF));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_pair<const STREAM: bool>(self, target: *mut bf16, [even, odd]: [__m512; 2]) {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let even = _mm512_srli_epi32::<16>(round_quiet_bf16(self, even));
            let odd = round_quiet_bf16(self, odd);
            // (odd & mask) | even.
            let words = _mm512_ternarylogic_epi32::<0xf8>(even, odd, _mm512_set1_epi32(UPPER_HALF));
            if STREAM {
                _mm512_stream_si512(target.cast(), words);
            } else {
                _mm512_storeu_si512(target.cast(), words);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_f16_pair<const STREAM: bool>(self, target: *mut f16, [first, second]: [__m512; 2]) {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let (first, second) = (round_f16(self, first), round_f16(self, second));
            if STREAM {
                _mm256_stream_si256(target.cast(), first);
                _mm256_stream_si256(target.add(16).cast(), second);
            } else {
                _mm256_storeu_si256(target.cast(), first);
                _mm256_storeu_si256(target.add(16).cast(), second);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_f32_pair<const STREAM: bool>(self, target: *mut f32, [first, second]: [__m512; 2]) {
        // SAFETY: the token and the caller's promise.
        unsafe {
            if STREAM {
                _mm512_stream_ps(target, first);
                _mm512_stream_ps(target.add(16), second);
            } else {
                _mm512_storeu_ps(target, first);
                _mm512_storeu_ps(target.add(16), second);
            }
        }
    }

    #[inline(always)]
    fn at_least(self, bound: f32, x: __m512) -> __m512 {
        // SAFETY: the token. The instruction gives its second operand where either is NaN.
        unsafe { _mm512_max_ps(_mm512_set1_ps(bound), x) }
    }

    #[inline(always)]
    fn at_most(self, bound: f32, x: __m512) -> __m512 {
        // SAFETY: the token. The instruction gives its second operand where either is NaN.
        unsafe { _mm512_min_ps(_mm512_set1_ps(bound), x) }
    }

    #[inline(always)]
    fn above_floor(self, x: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn scale(self, x: __m512, n: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_scalef_ps(x, n) }
    }

    #[inline(always)]
    fn estimate_reciprocal(self, x: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_rcp14_ps(x) }
    }

    #[inline(always)]
    fn reciprocal(self, x: __m512) -> __m512 {
        // The estimate has a relative error of 2⁻¹⁴; one Newton step squares it. That of infinity is zero, and stays so
        // beside a finite x.
        // SAFETY: the token.
        unsafe {
            let estimate = _mm512_rcp14_ps(x);
            let error = _mm512_fnmadd_ps(self.at_most(f32::MAX, x), estimate, _mm512_set1_ps(1.0));
            _mm512_fmadd_ps(error, estimate, estimate)
        }
    }
}

#[inline(always)]
fn round_f16(_: Avx512, v: __m512) -> __m256i {
    // SAFETY: the token.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
}

/// Adds half a unit of the last place that is kept, less one where that place is even; a NaN becomes quiet.
#[inline(always)]
fn round_bf16(_: Avx512, v: __m512) -> __m256i {
    // SAFETY: the token.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let quiet = _mm512_set1_epi32(0x0040_0000);
        let rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, quiet);
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded))
    }
}

/// As [`round_bf16`], in the upper half of each word, for numbers whose NaNs are quiet: they stay as they are.
#[inline(always)]
fn round_quiet_bf16(_: Avx512, v: __m512) -> __m512i {
    // SAFETY: the token.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v);
        let is_odd = _mm512_mask_test_epi32_mask(is_number, bits, _mm512_set1_epi32(0x1_0000));
        let rounded = _mm512_mask_add_epi32(bits, is_number, bits, _mm512_set1_epi32(0x7fff));
        _mm512_mask_add_epi32(rounded, is_odd, rounded, _mm512_set1_epi32(1))
    }
}
