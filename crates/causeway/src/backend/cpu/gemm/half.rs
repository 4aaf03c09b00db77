//! The two element types of a GEMM.

use half::{bf16, f16};

use super::vector::Vector;
use crate::tensor::Element;

/// f16 or bf16.
pub trait Half: Element {
    /// The value; exact.
    fn widen(self) -> f32;

    /// To nearest, ties to even; a NaN becomes the canonical quiet one.
    fn round(value: f32) -> Self;

    /// [`Half::widen`] of `V::LANES` neighbours.
    ///
    /// # Safety
    /// `from` points at that many elements; the processor has V's level.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// [`Half::round`] of every lane.
    ///
    /// # Safety
    /// `to` points at room for `V::LANES` elements; the processor has V's level.
    unsafe fn store<V: Vector>(to: *mut Self, values: V);
}

impl Half for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        if value.is_nan() { f16::from_bits(0x7e00) } else { f16::from_f32(value) }
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(to: *mut Self, values: V) {
        // SAFETY: the caller's promise.
        unsafe { values.store_f16(to) }
    }
}

impl Half for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        if value.is_nan() {
            return bf16::from_bits(0x7fc0);
        }
        // Half a unit of the last place kept, less one if that place is even: ties fall to even. The carry
        // runs into the exponent, and past the largest number into infinity.
        let bits = value.to_bits();
        bf16::from_bits(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(to: *mut Self, values: V) {
        // SAFETY: the caller's promise.
        unsafe { values.store_bf16(to) }
    }
}
