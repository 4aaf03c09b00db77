//! x86-64: AVX2 with FMA and F16C, and AVX-512 with F, BW, DQ and VL.
//!
//! The tokens are made by the entry points only, which are compiled for the instructions and whose callers
//! vouch for the processor; that is what makes the methods safe to call.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, Lanes, Number, Plain, Precision, Simd, SimdF32, silu};

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
    kernel.run(Plain::<f64, true>::new(), task)
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
    kernel.run(Plain::<f64, true>::new(), task)
}

// In both implementations below, the token proves that the instructions are there; loads and stores also
// rely on the caller's promise about the pointer. They may be unaligned except for `stream_*`.

impl Simd for Avx2 {
    type Scalar = f32;
    type Vector = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> __m256 {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_loadu_ps(source) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: __m256) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_storeu_ps(target, v) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        // SAFETY: the token.
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn shift_in(self, before: __m256, v: __m256, lanes: usize) -> __m256 {
        // SAFETY: the token.
        unsafe {
            let (low, high) = (_mm256_castps_si256(before), _mm256_castps_si256(v));
            // The upper half of `before` and the lower half of `v`; what is shifted lies on either side of it.
            let middle = _mm256_permute2x128_si256::<0x21>(low, high);
            _mm256_castsi256_ps(match lanes {
                0 => high,
                1 => _mm256_alignr_epi8::<12>(high, middle),
                2 => _mm256_alignr_epi8::<8>(high, middle),
                3 => _mm256_alignr_epi8::<4>(high, middle),
                4 => middle,
                5 => _mm256_alignr_epi8::<12>(middle, low),
                6 => _mm256_alignr_epi8::<8>(middle, low),
                _ => _mm256_alignr_epi8::<4>(middle, low),
            })
        }
    }

    #[inline(always)]
    fn silu<const N: usize>(self, x: [__m256; N], precision: Precision) -> [__m256; N] {
        silu::silu(self, x, precision)
    }

    #[inline(always)]
    fn silu_slope<const N: usize>(self, x: [__m256; N], precision: Precision) -> [__m256; N] {
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
        unsafe {
            let (low, high) = (_mm256_loadu_si256(source.cast()), _mm256_loadu_si256(source.add(32).cast()));
            _mm256_stream_si256(target.cast(), low);
            _mm256_stream_si256(target.add(32).cast(), high);
        }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }
}

impl SimdF32 for Avx2 {
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> __m256 {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(source.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut f16, v: __m256) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm_storeu_si128(target.cast(), round_f16_avx2(self, v)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, source: *const bf16) -> __m256 {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut bf16, v: __m256) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm_storeu_si128(target.cast(), round_bf16_avx2(self, v)) }
    }

    #[inline(always)]
    unsafe fn stream_f32(self, target: *mut f32, v: __m256) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_stream_ps(target, v) }
    }

    #[inline(always)]
    unsafe fn stream_f16(self, target: *mut f16, v: __m256) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm_stream_si128(target.cast(), round_f16_avx2(self, v)) }
    }

    #[inline(always)]
    unsafe fn stream_bf16(self, target: *mut bf16, v: __m256) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm_stream_si128(target.cast(), round_bf16_avx2(self, v)) }
    }

    #[inline(always)]
    fn at_least(self, bound: f32, x: __m256) -> __m256 {
        // SAFETY: the token. The instruction gives its second operand where either is NaN.
        unsafe { _mm256_max_ps(_mm256_set1_ps(bound), x) }
    }

    #[inline(always)]
    fn at_most(self, bound: f32, x: __m256) -> __m256 {
        // SAFETY: the token. The instruction gives its second operand where either is NaN.
        unsafe { _mm256_min_ps(_mm256_set1_ps(bound), x) }
    }

    #[inline(always)]
    fn round(self, x: __m256) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn scale(self, x: __m256, n: __m256) -> __m256 {
        // Two factors, since 2ⁿ alone may be out of range.
        // SAFETY: the token.
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
            let rest = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias));
            _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(rest))
        }
    }

    #[inline(always)]
    fn reciprocal(self, x: __m256) -> __m256 {
        // The estimate has a relative error of 1.5 · 2⁻¹²; one Newton step squares it.
        // SAFETY: the token.
        unsafe {
            let estimate = _mm256_rcp_ps(x);
            let error = _mm256_fnmadd_ps(x, estimate, _mm256_set1_ps(1.0));
            _mm256_fmadd_ps(error, estimate, estimate)
        }
    }
}

#[inline(always)]
fn round_f16_avx2(_: Avx2, v: __m256) -> __m128i {
    // SAFETY: the token.
    unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
}

/// Adds half a unit of the last place that is kept, less one where that place is even; a NaN becomes quiet.
#[inline(always)]
fn round_bf16_avx2(_: Avx2, v: __m256) -> __m128i {
    // SAFETY: the token.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, is_nan));
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high))
    }
}

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
        unsafe { _mm256_storeu_si256(target.cast(), round_f16_avx512(self, v)) }
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
        unsafe { _mm256_storeu_si256(target.cast(), round_bf16_avx512(self, v)) }
    }

    #[inline(always)]
    unsafe fn stream_f32(self, target: *mut f32, v: __m512) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm512_stream_ps(target, v) }
    }

    #[inline(always)]
    unsafe fn stream_f16(self, target: *mut f16, v: __m512) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_stream_si256(target.cast(), round_f16_avx512(self, v)) }
    }

    #[inline(always)]
    unsafe fn stream_bf16(self, target: *mut bf16, v: __m512) {
        // SAFETY: the token and the caller's promise.
        unsafe { _mm256_stream_si256(target.cast(), round_bf16_avx512(self, v)) }
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
    fn round(self, x: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
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
        // The estimate has a relative error of 2⁻¹⁴; one Newton step squares it.
        // SAFETY: the token.
        unsafe {
            let estimate = _mm512_rcp14_ps(x);
            let error = _mm512_fnmadd_ps(x, estimate, _mm512_set1_ps(1.0));
            _mm512_fmadd_ps(error, estimate, estimate)
        }
    }
}

#[inline(always)]
fn round_f16_avx512(_: Avx512, v: __m512) -> __m256i {
    // SAFETY: the token.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
}

/// Adds half a unit of the last place that is kept, less one where that place is even; a NaN becomes quiet.
#[inline(always)]
fn round_bf16_avx512(_: Avx512, v: __m512) -> __m256i {
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
