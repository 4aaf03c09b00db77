//! From f64 to 16 bits, with one rounding.
//!
//! [`half`] rounds an f64 in two steps: it cuts the number to 20 bits of fraction, or makes it an f32 first, and
//! rounds what is left. A number close above the middle between two neighbours falls onto the middle in the first
//! step, and to the even neighbour, the wrong one, in the second. So the first step here rounds to odd (S. Boldo and
//! G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans.
//! Computers 57, 2008): an f32 whose last bit says "and something more" is never a middle, and f32 has enough bits for
//! the second step to be right.

use half::{bf16, f16};

/// To nearest, ties to even.
pub(crate) fn f16_from_f64(value: f64) -> f16 {
    f16::from_f32(to_odd(value))
}

/// To nearest, ties to even.
pub(crate) fn bf16_from_f64(value: f64) -> bf16 {
    bf16::from_f32(to_odd(value))
}

/// `value` itself where f32 has it, else its f32 neighbour with an odd last bit. An infinity where it rounds to one.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if !nearest.is_finite() || f64::from(nearest) == value {
        return nearest;
    }
    // Bits of the same sign are ordered by magnitude: one less is the neighbour towards zero. A number that was rounded
    // to zero has itself no neighbour there, and a larger magnitude.
    let away = f64::from(nearest).abs() > value.abs();
    let truncated = nearest.to_bits() - u32::from(away);
    f32::from_bits(truncated | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers at, just below and just above the middle of every two neighbours, and above the largest one.
    fn check(largest: u16, widen: impl Fn(u16) -> f64, narrow: impl Fn(f64) -> u16) {
        for low in 0..=largest {
            let (below, above) = (widen(low), widen(low + 1));
            // Past the largest number the next one would be as far again.
            let above = if above.is_finite() { above } else { 2.0 * below - widen(low - 1) };
            let middle = (below + above) / 2.0;
            let even = low + (low & 1);
            for (value, expected) in [
                (below, low),
                (below.next_up(), low),
                (middle.next_down(), low),
                (middle * (1.0 - 1e-9), low),
                (middle, even),
                (middle * (1.0 + 1e-9), low + 1),
                (middle.next_up(), low + 1),
            ] {
                assert_eq!(narrow(value), expected, "{value:e} after {below:e}");
                assert_eq!(narrow(-value), expected | 0x8000, "-{value:e}");
            }
        }
    }

    #[test]
    fn f16_is_rounded_once() {
        check(f16::MAX.to_bits(), |bits| f16::from_bits(bits).to_f64(), |v| f16_from_f64(v).to_bits());
    }

    #[test]
    fn bf16_is_rounded_once() {
        check(bf16::MAX.to_bits(), |bits| bf16::from_bits(bits).to_f64(), |v| bf16_from_f64(v).to_bits());
    }

    #[test]
    fn what_is_not_finite_stays() {
        assert!(f16_from_f64(f64::NAN).is_nan() && bf16_from_f64(-f64::NAN).is_nan());
        assert_eq!(f16_from_f64(f64::INFINITY), f16::INFINITY);
        assert_eq!(bf16_from_f64(f64::MIN), bf16::NEG_INFINITY);
        assert_eq!(f16_from_f64(1e-300).to_bits(), 0);
        assert_eq!(bf16_from_f64(-1e-300).to_bits(), 0x8000);
    }
}
