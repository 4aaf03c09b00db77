//! Eight f32: AVX2, FMA and F16C. The token proves that the instructions are there.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::{Instructions, Kernel, Lanes, Number, Part, Plain, Simd, SimdF32, silu};

/// AVX2, FMA and F16C: eight f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn run<K: Kernel>(kernel: &K, task: usize)
where
    K::Number: Number<Accumulator = f32> + Lanes<Avx2>,
{
    kernel.run(Avx2(()), task)
}

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn run_f64<K: Kernel<Number = f64>>(kernel: &K, task: usize) {
    kernel.run(Plain::<f64, _, 4>::new(Avx2(())), task)
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

/// Of a 32-bit word.
const UPPER_HALF: i32 = 0xffff_0000_u32 as i32;

impl Simd for Avx2 {
    type Scalar = f32;
    type Vector = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) {
        Instructions::apart(self, self, part)
    }

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
    fn select(self, mask: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_blendv_ps(b, a, mask) }
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
    fn silu<T: Number, const N: usize>(self, x: [__m256; N]) -> [__m256; N] {
        silu::silu::<Self, T, N>(self, x)
    }

    #[inline(always)]
    fn silu_derivative<T: Number, const N: usize>(self, exact: bool, x: [__m256; N]) -> [__m256; N] {
        silu::silu_derivative::<Self, T, N>(self, exact, x)
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
        unsafe { _mm_storeu_si128(target.cast(), round_f16(self, v)) }
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
        unsafe { _mm_storeu_si128(target.cast(), round_bf16(self, v)) }
    }

    const BF16_ALTERNATES: bool = true;

    #[inline(always)]
    unsafe fn load_bf16_pair(self, source: *const bf16) -> [__m256; 2] {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let words = _mm256_loadu_si256(source.cast());
            let odd = _mm256_and_si256(words, _mm256_set1_epi32(UPPER_HALF));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)), _mm256_castsi256_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_pair<const STREAM: bool>(self, target: *mut bf16, [even, odd]: [__m256; 2]) {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let even = _mm256_srli_epi32::<16>(round_bf16_upper(self, even));
            let words = _mm256_blend_epi16::<0xaa>(even, round_bf16_upper(self, odd));
            if STREAM {
                _mm256_stream_si256(target.cast(), words);
            } else {
                _mm256_storeu_si256(target.cast(), words);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_f16_pair<const STREAM: bool>(self, target: *mut f16, [first, second]: [__m256; 2]) {
        // SAFETY: the token and the caller's promise.
        unsafe {
            let (first, second) = (round_f16(self, first), round_f16(self, second));
            if STREAM {
                _mm_stream_si128(target.cast(), first);
                _mm_stream_si128(target.add(8).cast(), second);
            } else {
                _mm_storeu_si128(target.cast(), first);
                _mm_storeu_si128(target.add(8).cast(), second);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_f32_pair<const STREAM: bool>(self, target: *mut f32, [first, second]: [__m256; 2]) {
        // SAFETY: the token and the caller's promise.
        unsafe {
            if STREAM {
                _mm256_stream_ps(target, first);
                _mm256_stream_ps(target.add(8), second);
            } else {
                _mm256_storeu_ps(target, first);
                _mm256_storeu_ps(target.add(8), second);
            }
        }
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

    #[inline(always)]
    fn estimate_reciprocal(self, x: __m256) -> __m256 {
        // That of the largest number is zero as well, and stays so.
        self.reciprocal(self.at_most(f32::MAX, x))
    }
}

#[inline(always)]
fn round_f16(_: Avx2, v: __m256) -> __m128i {
    // SAFETY: the token.
    unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
}

/// In the upper half of each word: adds half a unit of the last place that is kept, less one where that place is even.
/// The lower half of a NaN is zero, see [`super::super::Lanes::store`], so that nothing carries out of it.
#[inline(always)]
fn round_bf16_upper(_: Avx2, v: __m256) -> __m256i {
    // SAFETY: the token.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
    }
}

#[inline(always)]
fn round_bf16(simd: Avx2, v: __m256) -> __m128i {
    // SAFETY: the token.
    unsafe {
        let high = _mm256_srli_epi32::<16>(round_bf16_upper(simd, v));
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high))
    }
}
