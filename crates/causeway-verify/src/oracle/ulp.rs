//! Units in the last place of the floating-point dtypes, subnormal numbers included.

use causeway::tensor::DType;

/// The numbers that a dtype can hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Format {
    /// Bits of the significand, the hidden one included.
    precision: i32,
    /// Exponent of the smallest normal number.
    min_exponent: i32,
    /// Largest finite number.
    max: f64,
}

impl Format {
    /// The format of a floating-point dtype; `None` for an integer.
    #[inline(always)]
    pub const fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Format { precision: 24, min_exponent: -126, max: f32::MAX as f64 },
            DType::F16 => Format { precision: 11, min_exponent: -14, max: 65504.0 },
            DType::BF16 => Format { precision: 8, min_exponent: -126, max: 3.389_531_389_251_535_5e38 },
            DType::F64 => Format { precision: 53, min_exponent: -1022, max: f64::MAX },
            DType::I32 | DType::I64 => return None,
        })
    }

    /// Largest finite number.
    #[inline(always)]
    pub const fn max(self) -> f64 {
        self.max
    }

    /// Smallest positive number.
    #[inline(always)]
    pub fn smallest(self) -> f64 {
        power_of_two(self.min_exponent - (self.precision - 1))
    }

    /// Relative error of one rounding to nearest: half the distance between 1 and the next number.
    #[inline(always)]
    pub fn unit_roundoff(self) -> f64 {
        power_of_two(-self.precision)
    }

    /// Numbers below this magnitude are subnormal.
    #[inline(always)]
    pub fn smallest_normal(self) -> f64 {
        power_of_two(self.min_exponent)
    }

    /// Distance between the numbers around `value`; that of the largest ones for everything beyond them.
    #[inline(always)]
    pub fn ulp(self, value: f64) -> f64 {
        let magnitude = value.abs().min(self.max);
        // The exponent alone, as a power of two. That of zero and of f64's subnormals reads as zero, and is below every
        // `min_exponent`; the product is exact, since no format has smaller subnormals than f64.
        let power = f64::from_bits(magnitude.to_bits() & f64::INFINITY.to_bits());
        power.max(power_of_two(self.min_exponent)) * power_of_two(1 - self.precision)
    }

    /// Largest error of rounding a number of at most this magnitude to nearest.
    #[inline(always)]
    pub fn half_ulp(self, value: f64) -> f64 {
        self.ulp(value) / 2.0
    }

    /// Magnitudes from here on round to infinity. (For f64 that is only infinity itself.)
    #[inline(always)]
    pub fn overflow(self) -> f64 {
        self.max + self.half_ulp(self.max)
    }
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f64 {
    if exponent >= -1022 {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    } else {
        // Below the smallest subnormal there is nothing: half of it rounds up to it, which is safe in a bound.
        f64::from_bits(1 << (exponent + 1074).max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_f16_step_is_one_ulp() {
        let format = Format::of(DType::F16).unwrap();
        for bits in 0..0x7bffu16 {
            let (here, next) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            assert_eq!(format.ulp(here), next - here, "at {here}");
        }
        assert_eq!(format.smallest(), f16::from_bits(1).to_f64());
        assert_eq!(format.max(), f16::MAX.to_f64());
    }

    #[test]
    fn every_bf16_step_is_one_ulp() {
        let format = Format::of(DType::BF16).unwrap();
        for bits in 0..0x7f7fu16 {
            let (here, next) = (bf16::from_bits(bits).to_f64(), bf16::from_bits(bits + 1).to_f64());
            assert_eq!(format.ulp(here), next - here, "at {here}");
        }
        assert_eq!(format.max(), bf16::MAX.to_f64());
    }

    #[test]
    fn f32_and_f64_steps_are_one_ulp() {
        let (single, double) = (Format::of(DType::F32).unwrap(), Format::of(DType::F64).unwrap());
        for value in [0.0f32, 1e-45, 1e-40, f32::MIN_POSITIVE, 0.1, 1.0, 1.5, 1e30] {
            let step = f64::from(value.next_up()) - f64::from(value);
            assert_eq!(single.ulp(f64::from(value)), step, "at {value}");
            let value = f64::from(value);
            assert_eq!(double.ulp(value), value.next_up() - value, "at {value}");
        }
        assert_eq!(double.smallest(), 5e-324);
    }

    #[test]
    fn overflow_begins_half_a_step_beyond_the_largest_number() {
        let format = Format::of(DType::F16).unwrap();
        assert_eq!(format.overflow(), 65520.0);
        assert_eq!(f16::from_f64(65519.9), f16::MAX);
        assert_eq!(f16::from_f64(65520.0), f16::INFINITY);
    }
}
