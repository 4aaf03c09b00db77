//! Four lanes: AArch64 Advanced SIMD. Half types are converted lane by lane.

use std::arch::aarch64::*;

use half::{bf16, f16};

use super::{Part, Vector};
use crate::backend::cpu::gemm::half::Half;

/// A 128-bit register.
#[derive(Clone, Copy)]
pub struct Neon(float32x4_t);

#[inline(always)]
unsafe fn widen<T: Half>(from: *const T) -> Neon {
    // SAFETY: the caller points at four elements.
    let lanes: [f32; 4] = std::array::from_fn(|lane| unsafe { from.add(lane).read() }.widen());
    // SAFETY: `lanes` holds four values.
    Neon(unsafe { vld1q_f32(lanes.as_ptr()) })
}

#[inline(always)]
unsafe fn round<T: Half>(values: Neon, to: *mut T) {
    let mut lanes = [0.0f32; 4];
    // SAFETY: `lanes` has room for four values.
    unsafe { vst1q_f32(lanes.as_mut_ptr(), values.0) };
    for (lane, &value) in lanes.iter().enumerate() {
        // SAFETY: the caller points at room for four elements.
        unsafe { to.add(lane).write(T::round(value)) };
    }
}

impl Vector for Neon {
    const LANES: usize = 4;
    const TILE_ROWS: usize = 8;

    #[inline(never)]
    unsafe fn apart<P: Part<Self>>(part: P) {
        // SAFETY: the trait's contract.
        unsafe { part.run() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the trait's contract.
        Neon(unsafe { vdupq_n_f32(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's contract.
        Neon(unsafe { vld1q_f32(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { vst1q_f32(to, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the trait's contract.
        Neon(unsafe { vfmaq_f32(addend.0, self.0, factor.0) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the trait's contract.
        unsafe { widen(from) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the trait's contract.
        unsafe { widen(from) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: the trait's contract.
        unsafe { round(self, to) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: the trait's contract.
        unsafe { round(self, to) }
    }
}
