//! The two element types of a GEMM.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::matrix::{Matrix, MatrixMut};
use super::vector::Vector;
use crate::backend::cpu::Cpu;
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

    /// `output = left · right` (transposed) on a matrix unit; false, and nothing done, if there is none that suits.
    fn multiply_on_matrix_unit(
        cpu: Cpu,
        left: &Matrix<Self>,
        right: &Matrix<Self>,
        output: &MatrixMut<Self>,
    ) -> bool;
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

    fn multiply_on_matrix_unit(_: Cpu, _: &Matrix<Self>, _: &Matrix<Self>, _: &MatrixMut<Self>) -> bool {
        false
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

    #[cfg(target_arch = "x86_64")]
    fn multiply_on_matrix_unit(
        cpu: Cpu,
        left: &Matrix<Self>,
        right: &Matrix<Self>,
        output: &MatrixMut<Self>,
    ) -> bool {
        let suits = amx::suits(cpu, output.rows, output.columns);
        if suits {
            // SAFETY: as just asked.
            unsafe { amx::multiply(cpu, left, right, output) };
        }
        suits
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn multiply_on_matrix_unit(_: Cpu, _: &Matrix<Self>, _: &Matrix<Self>, _: &MatrixMut<Self>) -> bool {
        false
    }
}
