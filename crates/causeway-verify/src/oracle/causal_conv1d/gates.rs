//! Products with the gates.

use causeway::tensor::DType;
use half::{bf16, f16};

use super::Inputs;
use crate::oracle::bounds::Arithmetic;
use crate::oracle::real::Real;

/// How products of two inputs are formed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Products {
    pub round: bool,
    dtype: DType,
    arithmetic: Arithmetic,
}

impl Products {
    pub fn of(inputs: &Inputs<'_>) -> Self {
        let dtype = inputs.required("x").dtype();
        Products { round: inputs.round_products, dtype, arithmetic: Arithmetic::of(dtype) }
    }

    /// The dtype that a kernel of its own would leave its results in, where products are rounded.
    pub fn kept_as(&self) -> Option<DType> {
        self.round.then_some(self.dtype)
    }

    /// A product of two numbers of x's dtype, and the largest error that it may have. Rounded, there is nothing open about it:
    /// one multiplication in the accumulator, and one rounding. Unbounded where it may overflow: the sums that it enters may then
    /// have done so before.
    #[inline(always)]
    pub fn of_two<R: Real>(&self, a: f64, b: f64) -> (R, f64) {
        let product = R::new(a) * R::new(b);
        let finite = a.is_finite() && b.is_finite();
        let overflows = finite && self.arithmetic.may_overflow(1, product.value().abs());
        let (product, error) = match self.round {
            true => (R::new(self.kept(a, b)), 0.0),
            false => (product, self.arithmetic.rounding(product.value())),
        };
        (product, if overflows { f64::INFINITY } else { error })
    }

    /// The product as it is stored.
    #[inline(always)]
    pub fn kept(&self, a: f64, b: f64) -> f64 {
        let single = (a * b) as f32;
        match self.dtype {
            DType::F16 => f16::from_f32(single).to_f64(),
            DType::BF16 => bf16::from_f32(single).to_f64(),
            DType::F32 => f64::from(single),
            _ => a * b,
        }
    }
}
