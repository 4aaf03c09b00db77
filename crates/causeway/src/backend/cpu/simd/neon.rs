//! AArch64: Advanced SIMD, which every such processor has.

use std::arch::aarch64::*;

use half::{bf16, f16};

use super::plain::Target;
use super::{Instructions, LINE, Number, Part, Simd, SimdF32, silu};

/// Four f32.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    #[inline(always)]
    pub fn new() -> Self {
        Neon(())
    }
}

impl Simd for Neon {
    type Scalar = f32;
    type Vector = float32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) {
        Target.apart(self, part)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vdupq_n_f32(value) }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> float32x4_t {
        // SAFETY: as above, and the caller's promise.
        unsafe { vld1q_f32(source) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: float32x4_t) {
        // SAFETY: as above, and the caller's promise.
        unsafe { vst1q_f32(target, v) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn select(self, mask: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vbslq_f32(vreinterpretq_u32_f32(mask), a, b) }
    }

    #[inline(always)]
    fn sum(self, v: float32x4_t) -> f32 {
        // SAFETY: Advanced SIMD is part of the target. Pairs first: always the same order.
        unsafe { vaddvq_f32(v) }
    }

    #[inline(always)]
    fn shift_in(self, before: float32x4_t, v: float32x4_t, lanes: usize) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe {
            match lanes {
                0 => v,
                1 => vextq_f32::<3>(before, v),
                2 => vextq_f32::<2>(before, v),
                _ => vextq_f32::<1>(before, v),
            }
        }
    }

    #[inline(always)]
    fn silu<T: Number, const N: usize>(self, x: [float32x4_t; N]) -> [float32x4_t; N] {
        silu::silu::<Self, T, N>(self, x)
    }

    #[inline(always)]
    fn silu_derivative<T: Number, const N: usize>(
        self,
        exact: bool,
        x: [float32x4_t; N],
    ) -> [float32x4_t; N] {
        silu::silu_derivative::<Self, T, N>(self, exact, x)
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {
        // The intrinsic is not stable; the processor's own prefetcher has to do.
    }

    #[inline(always)]
    unsafe fn stream_line(self, source: *const u8, target: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { target.copy_from_nonoverlapping(source, LINE) }
    }

    #[inline(always)]
    fn fence(self) {
        // Stores are not streamed.
    }
}

/// The four bit patterns, one in each 32-bit lane.
///
/// # Safety
/// `source` points at four readable 16-bit numbers.
#[inline(always)]
unsafe fn load_bits(source: *const u16) -> uint32x4_t {
    // SAFETY: Advanced SIMD is part of the target; the caller's promise.
    unsafe { vmovl_u16(vld1_u16(source)) }
}

impl SimdF32 for Neon {
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> float32x4_t {
        // The conversion intrinsics are not stable; the compiler turns this into one where it can.
        // SAFETY: the caller's promise.
        unsafe {
            let values = source.cast::<[f16; 4]>().read().map(f16::to_f32);
            self.load(values.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut f16, v: float32x4_t) {
        let mut values = [0.0; 4];
        // SAFETY: the array is a whole vector; the caller's promise.
        unsafe {
            self.store(values.as_mut_ptr(), v);
            target.cast::<[f16; 4]>().write(values.map(f16::from_f32));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, source: *const bf16) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target; the caller's promise.
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(load_bits(source.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut bf16, v: float32x4_t) {
        // Adds half a unit of the last place that is kept, less one where that place is even; a NaN becomes
        // quiet.
        // SAFETY: Advanced SIMD is part of the target; the caller's promise.
        unsafe {
            let bits = vreinterpretq_u32_f32(v);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let is_number = vceqq_f32(v, v);
            vst1_u16(target.cast(), vshrn_n_u32::<16>(vbslq_u32(is_number, rounded, quiet)));
        }
    }

    #[inline(always)]
    fn at_least(self, bound: f32, x: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target. The instruction keeps a NaN.
        unsafe { vmaxq_f32(vdupq_n_f32(bound), x) }
    }

    #[inline(always)]
    fn at_most(self, bound: f32, x: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target. The instruction keeps a NaN.
        unsafe { vminq_f32(vdupq_n_f32(bound), x) }
    }

    #[inline(always)]
    fn scale(self, x: float32x4_t, n: float32x4_t) -> float32x4_t {
        // Two factors, since 2ⁿ alone may be out of range.
        // SAFETY: Advanced SIMD is part of the target.
        unsafe {
            let n = vcvtmq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
            vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(n, half)))
        }
    }

    #[inline(always)]
    fn reciprocal(self, x: float32x4_t) -> float32x4_t {
        // SAFETY: Advanced SIMD is part of the target.
        unsafe { vdivq_f32(vdupq_n_f32(1.0), x) }
    }
}
