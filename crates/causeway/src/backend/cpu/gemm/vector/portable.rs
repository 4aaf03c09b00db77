//! Eight lanes of plain Rust, which the compiler maps to what the target guarantees.

use half::{bf16, f16};

use super::Vector;
use crate::backend::cpu::gemm::half::Half;

const LANES: usize = 8;

/// An array in place of a register.
#[derive(Clone, Copy)]
pub struct Portable([f32; LANES]);

/// A fused multiply-add of numbers that f16 or bf16 hold, on a machine without the instruction.
///
/// The product of two such numbers is exact in f64. Their sum with `addend` is rounded *to odd* (an inexact
/// sum whose last bit is even moves one step towards the exact value), and then to f32. With at least two
/// more bits than f32 has, rounding to odd first does not disturb the second rounding (S. Boldo and
/// G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
/// 2008). `f32::mul_add` gives the same bits, but calls a library function for every lane.
#[inline(always)]
fn mul_add_of_halves(left: f32, right: f32, addend: f32) -> f32 {
    let (product, addend) = (f64::from(left) * f64::from(right), f64::from(addend));
    let sum = product + addend;
    // What the rounding of the sum lost, exactly (Knuth's two-sum).
    let addend_part = sum - product;
    let lost = (product - (sum - addend_part)) + (addend - addend_part);
    let bits = sum.to_bits();
    // Neighbours of a positive number are one up where the sum was too small; of a negative one, mirrored.
    let step = if (lost > 0.0) == (sum > 0.0) { 1 } else { u64::MAX };
    let inexact_and_even = lost != 0.0 && bits & 1 == 0 && sum.is_finite();
    f64::from_bits(if inexact_and_even { bits.wrapping_add(step) } else { bits }) as f32
}

impl Vector for Portable {
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Portable([value; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's contract.
        Portable(unsafe { from.cast::<[f32; LANES]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[f32; LANES]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Portable(std::array::from_fn(|lane| mul_add_of_halves(self.0[lane], factor.0[lane], addend.0[lane])))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the trait's contract.
        Portable(unsafe { from.cast::<[f16; LANES]>().read() }.map(Half::widen))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the trait's contract.
        Portable(unsafe { from.cast::<[bf16; LANES]>().read() }.map(Half::widen))
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[f16; LANES]>().write(self.0.map(Half::round)) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[bf16; LANES]>().write(self.0.map(Half::round)) }
    }
}
