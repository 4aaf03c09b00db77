//! Sixteen f32: AVX-512 F, BW, DQ and VL. The token proves that the instructions are there.

use std::arch::asm;
use std::arch::x86_64::*;
use std::f32::consts::{FRAC_1_SQRT_2, SQRT_2};

use half::{bf16, f16};

use super::super::{Kernel, Lanes, Number, Part, Simd, SimdF32, silu};

/// AVX-512 F, BW, DQ and VL: sixteen f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// # Safety
/// The processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(in super::super) unsafe fn run<K: Kernel>(kernel: &K, task: usize)
where
    K::Number: Number<Accumulator = f32> + Lanes<Avx512>,
{
    kernel.run(Avx512(()), task)
}

/// Of a 32-bit word.
const UPPER_HALF: i32 = 0xffff_0000_u32 as i32;

impl Simd for Avx512 {
    type Scalar = f32;
    type Vector = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn run<P: Part<Avx512>>(simd: Avx512, part: P) {
            part.run(simd)
        }
        // SAFETY: the token.
        unsafe { run(self, part) }
    }

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
    fn select(self, mask: __m512, a: __m512, b: __m512) -> __m512 {
        // The constant is the table of `mask ? a : b`, bit by bit.
        const CHOICE: i32 = 0xca;
        // SAFETY: the token.
        unsafe {
            let (mask, a, b) = (_mm512_castps_si512(mask), _mm512_castps_si512(a), _mm512_castps_si512(b));
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<CHOICE>(mask, a, b))
        }
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
            match lanes {
                0 => v,
                1 => align::<15>(v, before),
                2 => align::<14>(v, before),
                3 => align::<13>(v, before),
                4 => align::<12>(v, before),
                5 => align::<11>(v, before),
                6 => align::<10>(v, before),
                7 => align::<9>(v, before),
                8 => align::<8>(v, before),
                9 => align::<7>(v, before),
                10 => align::<6>(v, before),
                11 => align::<5>(v, before),
                12 => align::<4>(v, before),
                13 => align::<3>(v, before),
                14 => align::<2>(v, before),
                _ => align::<1>(v, before),
            }
        }
    }

    #[inline(always)]
    fn in_step<const N: usize>(self, v: [__m512; N]) -> [__m512; N] {
        // SAFETY: the token.
        unsafe { in_step(v) }
    }

    #[inline(always)]
    fn to_memory<T: ?Sized>(self, values: &mut T) {
        // SAFETY: there is no instruction. It is said to read and to change any memory that it could know of.
        unsafe {
            asm!("/* {} */", in(reg) std::ptr::from_mut(values).cast::<u8>(), options(nostack, preserves_flags))
        }
    }

    #[inline(always)]
    fn silu<T: Number, const N: usize>(self, x: [__m512; N]) -> [__m512; N] {
        silu::silu::<Self, T, N>(self, x)
    }

    #[inline(always)]
    fn silu_derivative<T: Number, const N: usize>(self, exact: bool, x: [__m512; N]) -> [__m512; N] {
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
        unsafe {
            let high = _mm512_srli_epi32::<16>(round_bf16_upper(self, v));
            _mm256_storeu_si256(target.cast(), _mm512_cvtepi32_epi16(high));
        }
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
            let even = _mm512_srli_epi32::<16>(round_bf16_upper(self, even));
            let odd = round_bf16_upper(self, odd);
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
    fn within(self, bound: f32, x: __m512) -> __m512 {
        // The operand of smaller magnitude, with the sign of the first.
        // SAFETY: the token.
        unsafe { _mm512_range_ps::<0b0010>(x, _mm512_set1_ps(bound)) }
    }

    const STEPS: u32 = 16;
    const SHIFT: f32 = 786_432.0;

    #[inline(always)]
    fn power(self, shifted: __m512, n: __m512) -> __m512 {
        self.scale(look_up(self, &FRACTIONS, shifted), n)
    }

    #[inline(always)]
    fn normal_power(self, shifted: __m512, _n: __m512) -> __m512 {
        // The last bits of `shifted` are n in sixteenths, as an integer: shifted to the left, its whole part is in the place
        // of an exponent. The table has the sixteenths taken off, which come along.
        // SAFETY: the token; the table is a whole vector.
        unsafe {
            let sixteenths = _mm512_castps_si512(shifted);
            let table = _mm512_loadu_si512(FRACTION_BITS.as_ptr().cast());
            let fraction = _mm512_permutexvar_epi32(sixteenths, table);
            _mm512_castsi512_ps(_mm512_add_epi32(fraction, _mm512_slli_epi32::<19>(sixteenths)))
        }
    }

    #[inline(always)]
    fn inverse_fraction(self, shifted: __m512) -> __m512 {
        look_up(self, &INVERSE_FRACTIONS, shifted)
    }

    #[inline(always)]
    fn inverse_fraction_error(self, shifted: __m512) -> __m512 {
        look_up(self, &INVERSE_FRACTION_ERRORS, shifted)
    }

    #[inline(always)]
    fn scale(self, x: __m512, n: __m512) -> __m512 {
        // SAFETY: the token. The instruction takes the floor of n.
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

/// An assembly statement without an instruction, said to change all of the vectors: the compiler cannot move what comes
/// before it, and is not needed at once, after what comes later.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn in_step<const N: usize>(mut v: [__m512; N]) -> [__m512; N] {
    // SAFETY: there is no instruction.
    unsafe {
        match &mut v[..] {
            [a, b, c, d] => asm!(
                "/* {} {} {} {} */",
                inout(zmm_reg) * a,
                inout(zmm_reg) * b,
                inout(zmm_reg) * c,
                inout(zmm_reg) * d,
                options(nomem, nostack, preserves_flags)
            ),
            [a, b, c, d, e, f, g, h] => asm!(
                "/* {} {} {} {} {} {} {} {} */",
                inout(zmm_reg) * a,
                inout(zmm_reg) * b,
                inout(zmm_reg) * c,
                inout(zmm_reg) * d,
                inout(zmm_reg) * e,
                inout(zmm_reg) * f,
                inout(zmm_reg) * g,
                inout(zmm_reg) * h,
                options(nomem, nostack, preserves_flags)
            ),
            _ => {}
        }
    }
    v
}

/// `2^(i/16)`.
static FRACTIONS: [f32; 16] = [
    1.0,
    1.044_273_7,
    1.090_507_7,
    1.138_788_6,
    1.189_207_1,
    1.241_857_8,
    1.296_839_6,
    1.354_255_6,
    SQRT_2,
    1.476_826_2,
    1.542_210_8,
    1.610_490_3,
    1.681_792_9,
    1.756_252_2,
    1.834_008_1,
    1.915_206_6,
];

/// The bits of `FRACTIONS`, less i in the last place of four that are above the 19 bits.
static FRACTION_BITS: [u32; 16] = {
    let mut bits = [0; 16];
    let mut i = 0;
    while i < 16 {
        bits[i] = FRACTIONS[i].to_bits() - ((i as u32) << 19);
        i += 1;
    }
    bits
};

/// `2^-(i/16)`.
static INVERSE_FRACTIONS: [f32; 16] = [
    1.0,
    0.957_603_3,
    0.917_004_05,
    0.878_126_1,
    0.840_896_4,
    0.805_245_16,
    0.771_105_4,
    0.738_413_1,
    FRAC_1_SQRT_2,
    0.677_127_8,
    0.648_419_8,
    0.620_928_9,
    0.594_603_54,
    0.569_394_3,
    0.545_253_9,
    0.522_136_87,
];

/// `ln(INVERSE_FRACTIONS[i] / 2^-(i/16))`.
static INVERSE_FRACTION_ERRORS: [f32; 16] = [
    0.0,
    -5.140_609_3e-9,
    6.128_259_7e-9,
    5.258_795e-9,
    1.471_960_6e-8,
    -6.107_591_8e-9,
    -5.233_334e-9,
    3.047_683_4e-8,
    -1.711_427_1e-8,
    7.475_213e-9,
    3.099_072_3e-8,
    -3.621_057_2e-8,
    -3.193_418e-8,
    -4.729_782e-8,
    1.199_215_75e-8,
    -4.628_547e-8,
];

/// For each lane the element that its last four bits say: of `SHIFT + n` those are the sixteenths above the floor of n.
#[inline(always)]
fn look_up(_: Avx512, table: &[f32; 16], lanes: __m512) -> __m512 {
    // SAFETY: the token; the table is a whole vector.
    unsafe { _mm512_permutexvar_ps(_mm512_castps_si512(lanes), _mm512_loadu_ps(table.as_ptr())) }
}

/// The vector that begins at lane `FROM` of the line `[low, high]`. In assembly, because the compiler takes the
/// intrinsic apart and makes a permutation of it, which overwrites one operand and needs its indices in a register.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn align<const FROM: u8>(high: __m512, low: __m512) -> __m512 {
    let aligned;
    // SAFETY: the instruction touches nothing but its registers.
    unsafe {
        asm!(
            "valignd {aligned}, {high}, {low}, {from}",
            aligned = lateout(zmm_reg) aligned,
            high = in(zmm_reg) high,
            low = in(zmm_reg) low,
            from = const FROM,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    aligned
}

#[inline(always)]
fn round_f16(_: Avx512, v: __m512) -> __m256i {
    // SAFETY: the token.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
}

/// In the upper half of each word: adds half a unit of the last place that is kept, less one where that place is even.
/// The lower half of a NaN is zero, see [`super::super::Lanes::store`], so that nothing carries out of it.
#[inline(always)]
fn round_bf16_upper(_: Avx512, v: __m512) -> __m512i {
    // SAFETY: the token.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd)
    }
}
