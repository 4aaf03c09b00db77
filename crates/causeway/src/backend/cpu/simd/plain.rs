//! Vectors in plain Rust: arrays that the compiler turns into whatever the target has.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::silu::{silu, silu_derivative, silu_derivative_f64, silu_f64};
use super::{Instructions, LINE, Number, Part, Simd, SimdF32};

/// Scalars in a vector of what the target guarantees: f32 fill the registers of SSE2 and NEON.
pub(crate) const LANES: usize = 4;

/// What the target that this crate was compiled for guarantees.
#[derive(Clone, Copy)]
pub(crate) struct Target;

impl Instructions for Target {
    // Elsewhere a fused operation is a library call, so that plain code rounds twice instead.
    const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    #[inline(never)]
    fn apart<S: Simd, P: Part<S>>(self, simd: S, part: P) {
        part.run(simd)
    }
}

/// Arrays of `LANES` scalars, a power of two, in a function that is compiled for the instructions `I`. Arrays of more scalars than a
/// register holds make longer code, which takes longer to compile.
#[derive(Clone, Copy)]
pub(crate) struct Plain<A, I, const LANES: usize>(I, PhantomData<A>);

impl<A, I, const LANES: usize> Plain<A, I, LANES> {
    #[inline(always)]
    pub fn new(instructions: I) -> Self {
        Plain(instructions, PhantomData)
    }
}

/// An array of what `value` says of each index. What the standard library has for it takes the compiler several times as long, and these
/// are all of what a kernel is made of.
#[inline(always)]
fn array<A: Copy, const N: usize>(value: impl Fn(usize) -> A) -> [A; N] {
    let mut values = [value(0); N];
    #[allow(clippy::needless_range_loop)]
    for index in 1..N {
        values[index] = value(index);
    }
    values
}

macro_rules! plain_simd {
    ($scalar:ty, $silu:ident, $derivative:ident) => {
        impl<I: Instructions, const LANES: usize> Simd for Plain<$scalar, I, LANES> {
            type Scalar = $scalar;
            type Vector = [$scalar; LANES];
            const LANES: usize = LANES;

            #[inline(always)]
            fn apart<P: Part<Self>>(self, part: P) {
                self.0.apart(self, part)
            }

            #[inline(always)]
            fn splat(self, value: $scalar) -> Self::Vector {
                [value; LANES]
            }

            #[inline(always)]
            unsafe fn load(self, source: *const $scalar) -> Self::Vector {
                // SAFETY: the caller's promise; an array is aligned as its element.
                unsafe { source.cast::<Self::Vector>().read() }
            }

            #[inline(always)]
            unsafe fn store(self, target: *mut $scalar, v: Self::Vector) {
                // SAFETY: the caller's promise; an array is aligned as its element.
                unsafe { target.cast::<Self::Vector>().write(v) }
            }

            #[inline(always)]
            fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                array(|i| a[i] + b[i])
            }

            #[inline(always)]
            fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                array(|i| a[i] - b[i])
            }

            #[inline(always)]
            fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                array(|i| a[i] * b[i])
            }

            #[inline(always)]
            fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                array(|i| if I::FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
            }

            #[inline(always)]
            fn select(self, mask: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                array(|i| {
                    let mask = mask[i].to_bits();
                    <$scalar>::from_bits(a[i].to_bits() & mask | b[i].to_bits() & !mask)
                })
            }

            #[inline(always)]
            fn sum(self, v: Self::Vector) -> $scalar {
                let (mut sums, mut half) = (v, LANES / 2);
                while half > 0 {
                    for i in 0..half {
                        sums[i] += sums[i + half];
                    }
                    half /= 2;
                }
                sums[0]
            }

            #[inline(always)]
            fn shift_in(self, before: Self::Vector, v: Self::Vector, lanes: usize) -> Self::Vector {
                array(|i| if i >= lanes { v[i - lanes] } else { before[LANES + i - lanes] })
            }

            #[inline(always)]
            fn silu<T: Number, const N: usize>(self, x: [Self::Vector; N]) -> [Self::Vector; N] {
                $silu::<Self, T, N, LANES>(self, x)
            }

            #[inline(always)]
            fn silu_derivative<T: Number, const N: usize>(
                self,
                exact: bool,
                x: [Self::Vector; N],
            ) -> [Self::Vector; N] {
                $derivative::<Self, T, N, LANES>(self, exact, x)
            }

            #[inline(always)]
            fn prefetch(self, _address: *const u8) {}

            #[inline(always)]
            unsafe fn stream_line(self, source: *const u8, target: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { target.copy_from_nonoverlapping(source, LINE) }
            }

            #[inline(always)]
            fn fence(self) {}
        }
    };
}
plain_simd!(f32, silu_in_f32, silu_derivative_in_f32);
plain_simd!(f64, silu_in_f64, silu_derivative_in_f64);

// Without vector instructions these are long, and inlined into every kernel they would be a tenth of the library. A call is
// little beside them.

#[inline(never)]
fn silu_in_f32<S, T, const N: usize, const LANES: usize>(simd: S, x: [[f32; LANES]; N]) -> [[f32; LANES]; N]
where
    S: SimdF32<Vector = [f32; LANES]>,
    T: Number,
{
    silu::<S, T, N>(simd, x)
}

#[inline(never)]
fn silu_derivative_in_f32<S, T, const N: usize, const LANES: usize>(
    simd: S,
    exact: bool,
    x: [[f32; LANES]; N],
) -> [[f32; LANES]; N]
where
    S: SimdF32<Vector = [f32; LANES]>,
    T: Number,
{
    silu_derivative::<S, T, N>(simd, exact, x)
}

#[inline(never)]
fn widen_f16<const LANES: usize>(v: [f16; LANES]) -> [f32; LANES] {
    array(|i| v[i].to_f32())
}

#[inline(never)]
fn narrow_f16<const LANES: usize>(v: [f32; LANES]) -> [f16; LANES] {
    array(|i| f16::from_f32(v[i]))
}

#[inline(never)]
fn narrow_bf16<const LANES: usize>(v: [f32; LANES]) -> [bf16; LANES] {
    array(|i| bf16::from_f32(v[i]))
}

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters)]
fn silu_in_f64<S, T, const N: usize, const LANES: usize>(_: S, x: [[f64; LANES]; N]) -> [[f64; LANES]; N] {
    array(|vector| array(|lane| silu_f64(x[vector][lane])))
}

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters)]
fn silu_derivative_in_f64<S, T, const N: usize, const LANES: usize>(
    _: S,
    _exact: bool,
    x: [[f64; LANES]; N],
) -> [[f64; LANES]; N] {
    array(|vector| array(|lane| silu_derivative_f64(x[vector][lane])))
}

impl<I: Instructions, const LANES: usize> SimdF32 for Plain<f32, I, LANES> {
    #[inline(always)]
    fn remainder(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        let sum = self.mul_add(a, b, c);
        if I::FUSED {
            return sum;
        }
        array(|i| if c[i].is_infinite() { c[i] } else { sum[i] })
    }

    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> [f32; LANES] {
        // SAFETY: the caller's promise; an array is aligned as its element.
        widen_f16(unsafe { source.cast::<[f16; LANES]>().read() })
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut f16, v: [f32; LANES]) {
        // SAFETY: the caller's promise; an array is aligned as its element.
        unsafe { target.cast::<[f16; LANES]>().write(narrow_f16(v)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, source: *const bf16) -> [f32; LANES] {
        // SAFETY: the caller's promise; an array is aligned as its element.
        let v = unsafe { source.cast::<[bf16; LANES]>().read() };
        array(|i| v[i].to_f32())
    }

    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut bf16, v: [f32; LANES]) {
        // SAFETY: the caller's promise; an array is aligned as its element.
        unsafe { target.cast::<[bf16; LANES]>().write(narrow_bf16(v)) }
    }

    #[inline(always)]
    fn at_least(self, bound: f32, x: [f32; LANES]) -> [f32; LANES] {
        array(|i| if x[i] < bound { bound } else { x[i] })
    }

    #[inline(always)]
    fn at_most(self, bound: f32, x: [f32; LANES]) -> [f32; LANES] {
        array(|i| if x[i] > bound { bound } else { x[i] })
    }

    #[inline(always)]
    fn scale(self, x: [f32; LANES], n: [f32; LANES]) -> [f32; LANES] {
        // Two factors, since 2ⁿ alone may be out of range. The first product is exact, or underflows only
        // where the second would have taken it to zero anyway.
        array(|i| {
            let n = n[i] as i32;
            let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
            (x[i] * power(n / 2)) * power(n - n / 2)
        })
    }

    #[inline(always)]
    fn reciprocal(self, x: [f32; LANES]) -> [f32; LANES] {
        array(|i| 1.0 / x[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_reaches_the_subnormals() {
        let simd = Plain::<f32, _, 8>::new(Target);
        let powers: [f32; 8] = [-149.0, -126.0, -92.0, -1.0, 0.0, 1.0, 92.0, -160.0];
        let scaled = simd.scale([1.0; 8], powers);
        for (n, value) in powers.into_iter().zip(scaled) {
            assert_eq!(f64::from(value), if n < -149.0 { 0.0 } else { f64::from(n).exp2() }, "2^{n}");
        }
    }
}
