//! Eight lanes of plain Rust, which the compiler maps to what the target guarantees.

use half::{bf16, f16};

use super::{Part, Vector};
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

    #[inline(never)]
    unsafe fn apart<P: Part<Self>>(part: P) {
        // SAFETY: the trait's contract.
        unsafe { part.run() }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Any bits, without a pattern.
    fn random(state: &mut u64) -> u32 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 32) as u32
    }

    fn check(left: f32, right: f32, addend: f32) {
        let (found, expected) = (mul_add_of_halves(left, right, addend), left.mul_add(right, addend));
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{left:e} · {right:e} + {addend:e} is {expected:e}, not {found:e}");
    }

    #[test]
    fn it_rounds_once_like_the_instruction() {
        let mut state = 1;
        for _ in 0..1_000_000 {
            let (bits, addend) = (random(&mut state), random(&mut state));
            let (high, low) = ((bits >> 16) as u16, bits as u16);
            let halves = [
                (f16::from_bits(high).widen(), f16::from_bits(low).widen()),
                (bf16::from_bits(high).widen(), bf16::from_bits(low).widen()),
            ];
            for (left, right) in halves {
                check(left, right, f32::from_bits(addend));
                // An addend near the product, of either sign, or half a unit of its last place.
                let product = left * right;
                check(left, right, f32::from_bits(product.to_bits() ^ (addend & 0x8000_00ff)));
                check(left, right, product * 2f32.powi(24) * (1.0 + (addend & 3) as f32));
                check(left, right, product * 2f32.powi(-24));
            }
        }
    }

    #[test]
    fn ties_and_near_ties_are_seen() {
        let unit = 2f32.powi(-12);
        // 1 + 2⁻²⁴ is half-way between two f32; the least bit more or less decides.
        check(unit, unit, 1.0);
        check(unit, unit, -1.0);
        check(unit * (1.0 + 2f32.powi(-7)), unit, 1.0);
        check(unit * (1.0 - 2f32.powi(-8)), unit, 1.0);
        check(unit * (1.0 - 2f32.powi(-8)), unit, 1.0 + 2f32.powi(-23));
        // Far below the last bit of the f64 sum, and yet not nothing.
        let tiny = 2f32.powi(-60);
        check(tiny, tiny, 1.0 + 2f32.powi(-23));
        check(tiny, -tiny, f32::MIN_POSITIVE);
        check(tiny, tiny, f32::from_bits(1));
    }
}
