//! One vocabulary of vectors for every level.
//!
//! A kernel is written once against [`Simd`]: a zero-sized token that stands for "this processor has these
//! instructions", and whose methods are the instructions. [`run`] makes the token of a level inside a function
//! that is compiled for it (`#[target_feature]`); everything below is `#[inline(always)]`, so the body is
//! compiled once per level.
//!
//! Half-precision elements are widened on load and rounded (to nearest, ties to even) on store, in registers.

mod plain;
mod silu;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
mod neon;

use half::{bf16, f16};

use super::{Cpu, Level};
use crate::rounding::{bf16_from_f64, f16_from_f64};
use crate::tensor::Element;
pub(crate) use plain::Plain;

/// The types that sums are kept in: f32 for 16 and 32-bit tensors, f64 for f64 tensors.
pub(crate) trait Accumulator:
    Number<Accumulator = Self>
    + std::ops::AddAssign
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    const ONE: Self;
    /// All bits are set: what [`Simd::select`] wants of a lane that is taken from `a`.
    const ALL_BITS: Self;
    fn to_f64(self) -> f64;
    fn sqrt(self) -> Self;
}

impl Accumulator for f32 {
    const ONE: Self = 1.0;
    const ALL_BITS: Self = f32::from_bits(u32::MAX);

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
}

impl Accumulator for f64 {
    const ONE: Self = 1.0;
    const ALL_BITS: Self = f64::from_bits(u64::MAX);

    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
}

/// How exact SiLU and its derivative have to be: so that their error is at most a few units in the last place of
/// an f32, or a small part of a 16-bit number's rounding. f64 is computed in f64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    F32,
    F16,
    Bf16,
}

/// A floating-point element, and the type that it is accumulated in.
pub(crate) trait Number: Element {
    type Accumulator: Accumulator;
    /// Positive zero.
    const ZERO: Self;
    /// Of SiLU.
    const PRECISION: Precision;
    fn widen(self) -> Self::Accumulator;
    /// To nearest, ties to even.
    fn narrow(value: Self::Accumulator) -> Self;
    /// From the f64 in which long sums are kept, with one rounding.
    fn from_f64(value: f64) -> Self;
    /// Runs a kernel with the vectors of a level.
    fn run<K: Kernel<Number = Self>>(cpu: Cpu, kernel: &K, task: usize);
}

macro_rules! number {
    ($number:ty, $accumulator:ty, $avx512:path, $avx2:path, $neon:expr, $zero:expr, $precision:ident, $widen:expr,
     $narrow:expr, $from_f64:expr) => {
        impl Number for $number {
            type Accumulator = $accumulator;
            const ZERO: Self = $zero;
            const PRECISION: Precision = Precision::$precision;

            #[inline(always)]
            fn widen(self) -> $accumulator {
                $widen(self)
            }

            #[inline(always)]
            fn narrow(value: $accumulator) -> Self {
                $narrow(value)
            }

            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }

            fn run<K: Kernel<Number = Self>>(cpu: Cpu, kernel: &K, task: usize) {
                match cpu.level() {
                    // SAFETY: `Cpu` holds only levels that the processor has.
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => unsafe { $avx512(kernel, task) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => unsafe { $avx2(kernel, task) },
                    #[cfg(target_arch = "aarch64")]
                    Level::Neon => kernel.run($neon, task),
                    _ => kernel.run(Plain::<$accumulator, _, { plain::LANES }>::new(plain::Target), task),
                }
            }
        }
    };
}
macro_rules! number_in_f32 {
    ($number:ty, $zero:expr, $precision:ident, $widen:expr, $narrow:expr, $from_f64:expr) => {
        number!(
            $number,
            f32,
            x86::avx512::run,
            x86::avx2::run,
            neon::Neon::new(),
            $zero,
            $precision,
            $widen,
            $narrow,
            $from_f64
        );
    };
}
number_in_f32!(f32, 0.0, F32, |x| x, |x| x, |x| x as f32);
number_in_f32!(f16, f16::ZERO, F16, f16::to_f32, f16::from_f32, f16_from_f64);
number_in_f32!(bf16, bf16::ZERO, Bf16, bf16::to_f32, bf16::from_f32, bf16_from_f64);
// f64 uses the plain body, compiled for the instructions of the level; wider than AVX2's it would take longer to compile than it saves.
number!(
    f64,
    f64,
    x86::avx2::run_f64,
    x86::avx2::run_f64,
    Plain::<f64, _, { plain::LANES }>::new(plain::Target),
    0.0,
    F32,
    |x| x,
    |x| x,
    |x| x
);

/// A kernel's body, cut into tasks that write to disjoint places.
pub(crate) trait Kernel: Sync {
    /// Element type of the tensors.
    type Number: Number;

    /// Does the work of one task.
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = <Self::Number as Number>::Accumulator>,
        Self::Number: Lanes<S>;
}

/// A part of a kernel that is a function of its own; see [`Simd::apart`].
pub(crate) trait Part<S> {
    fn run(self, simd: S);
}

/// What the function around is compiled for.
pub(crate) trait Instructions: Copy + Send + Sync {
    /// Whether multiply and add are fused in one instruction.
    const FUSED: bool;

    /// See [`Simd::apart`].
    fn apart<S: Simd, P: Part<S>>(self, simd: S, part: P);
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// The vector instructions of a level, for one accumulator type. Holding a value proves that the processor
/// has them.
pub(crate) trait Simd: Copy + Send + Sync {
    type Scalar: Accumulator;
    type Vector: Copy;
    /// Scalars in a vector: a power of two.
    const LANES: usize;

    /// Runs a part in a function of its own, which is compiled for the same instructions. Everything else is inlined into the
    /// kernel, and the time that a function takes to compile grows faster than its length.
    fn apart<P: Part<Self>>(self, part: P);

    fn splat(self, value: Self::Scalar) -> Self::Vector;

    /// # Safety
    /// `source` points at `LANES` readable scalars, aligned as a scalar.
    unsafe fn load(self, source: *const Self::Scalar) -> Self::Vector;

    /// # Safety
    /// `target` points at `LANES` writable scalars, aligned as a scalar.
    unsafe fn store(self, target: *mut Self::Scalar, v: Self::Vector);

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a · b + c`, with one rounding where the processor can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The lanes of `a` where all bits of `mask` are set, and those of `b` where none is.
    fn select(self, mask: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// All lanes together, always in the same order.
    fn sum(self, v: Self::Vector) -> Self::Scalar;

    /// The vector that begins `lanes` before `v` in the line `[before, v]`; `lanes` is less than `LANES`, and known when
    /// the kernel is compiled.
    fn shift_in(self, before: Self::Vector, v: Self::Vector, lanes: usize) -> Self::Vector;

    /// The same vectors, computed before anything that is written after this: the compiler likes to move work to where
    /// it is needed, after chains that it was meant to overlap with.
    #[inline(always)]
    fn in_step<const N: usize>(self, v: [Self::Vector; N]) -> [Self::Vector; N] {
        v
    }

    /// Leaves values in memory between two passes over them. The compiler would join the passes, with more values under
    /// way than there are registers.
    #[inline(always)]
    fn to_memory<T: ?Sized>(self, values: &mut T) {
        std::hint::black_box(values);
    }

    /// `x · sigmoid(x)` of several vectors, whose arithmetic is interleaved, as exact as `T` asks.
    fn silu<T: Number, const N: usize>(self, x: [Self::Vector; N]) -> [Self::Vector; N];
    /// The derivative of [`Simd::silu`], as exact as the accumulator if `exact`, else as `T` asks.
    fn silu_derivative<T: Number, const N: usize>(
        self,
        exact: bool,
        x: [Self::Vector; N],
    ) -> [Self::Vector; N];

    /// Asks for the cache line at `address`, which need not be mapped.
    fn prefetch(self, address: *const u8);
    /// Copies a cache line past the caches.
    ///
    /// # Safety
    /// `source` points at `LINE` readable bytes, `target` at as many writable ones, aligned to `LINE`.
    unsafe fn stream_line(self, source: *const u8, target: *mut u8);
    /// Makes streamed lines visible to other threads in program order.
    fn fence(self);
}

/// What f32 vectors offer beyond [`Simd`]: 16-bit elements, and the parts of an exponential.
pub(crate) trait SimdF32: Simd<Scalar = f32> {
    /// `a · b + c` of finite a and b, which is c where that is infinite: a product that overflows by itself would meet it with
    /// the other sign.
    #[inline(always)]
    fn remainder(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        self.mul_add(a, b, c)
    }
    /// # Safety
    /// `source` points at `LANES` readable elements.
    unsafe fn load_f16(self, source: *const f16) -> Self::Vector;
    /// # Safety
    /// `target` points at `LANES` writable elements.
    unsafe fn store_f16(self, target: *mut f16, v: Self::Vector);
    /// # Safety
    /// `source` points at `LANES` readable elements.
    unsafe fn load_bf16(self, source: *const bf16) -> Self::Vector;
    /// # Safety
    /// `target` points at `LANES` writable elements.
    unsafe fn store_bf16(self, target: *mut bf16, v: Self::Vector);

    /// Whether pairs of bf16 vectors alternate: two neighbours are one 32-bit word, whose upper half, the odd element,
    /// is an f32 but for the lower half, so that widening and rounding need no permutation.
    const BF16_ALTERNATES: bool = false;

    /// See [`Lanes::load_pair`].
    ///
    /// # Safety
    /// `source` points at `2 · LANES` readable elements.
    #[inline(always)]
    unsafe fn load_bf16_pair(self, source: *const bf16) -> [Self::Vector; 2] {
        // SAFETY: the caller's promise.
        unsafe { [self.load_bf16(source), self.load_bf16(source.add(Self::LANES))] }
    }

    /// See [`Lanes::store_pair`].
    ///
    /// # Safety
    /// As for [`Lanes::store_pair`].
    #[inline(always)]
    unsafe fn store_bf16_pair<const STREAM: bool>(
        self,
        target: *mut bf16,
        [first, second]: [Self::Vector; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.store_bf16(target, first);
            self.store_bf16(target.add(Self::LANES), second);
        }
    }

    /// See [`Lanes::store_pair`].
    ///
    /// # Safety
    /// As for [`Lanes::store_pair`].
    #[inline(always)]
    unsafe fn store_f16_pair<const STREAM: bool>(self, target: *mut f16, [first, second]: [Self::Vector; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.store_f16(target, first);
            self.store_f16(target.add(Self::LANES), second);
        }
    }

    /// See [`Lanes::store_pair`].
    ///
    /// # Safety
    /// As for [`Lanes::store_pair`].
    #[inline(always)]
    unsafe fn store_f32_pair<const STREAM: bool>(self, target: *mut f32, [first, second]: [Self::Vector; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.store(target, first);
            self.store(target.add(Self::LANES), second);
        }
    }

    /// The larger of `bound` and `x`; NaN where x is NaN.
    fn at_least(self, bound: f32, x: Self::Vector) -> Self::Vector;
    /// The smaller of `bound` and `x`; NaN where x is NaN.
    fn at_most(self, bound: f32, x: Self::Vector) -> Self::Vector;
    /// x where |x| is at most `bound`, and else `bound` with the sign of x; a NaN may become any number in between.
    #[inline(always)]
    fn within(self, bound: f32, x: Self::Vector) -> Self::Vector {
        self.at_most(bound, self.at_least(-bound, x))
    }

    /// How many powers of two from 1 up to 2 [`SimdF32::power`] knows.
    const STEPS: u32 = 1;
    /// A number that is added to this one is rounded to a multiple of `1 / STEPS`.
    const SHIFT: f32 = 12_582_912.0;
    /// `2ⁿ` of a multiple of `1 / STEPS` from -160 to 160, which is zero to infinity; `shifted` is `SHIFT + n`.
    #[inline(always)]
    fn power(self, _shifted: Self::Vector, n: Self::Vector) -> Self::Vector {
        self.scale(self.splat(1.0), n)
    }
    /// [`SimdF32::power`] of an n from -126 to 127.
    #[inline(always)]
    fn normal_power(self, shifted: Self::Vector, n: Self::Vector) -> Self::Vector {
        self.power(shifted, n)
    }
    /// `2^(⌊n⌋ - n)` of an n as [`SimdF32::power`] takes.
    #[inline(always)]
    fn inverse_fraction(self, _shifted: Self::Vector) -> Self::Vector {
        self.splat(1.0)
    }
    /// The logarithm of [`SimdF32::inverse_fraction`], which is rounded, divided by the true power.
    #[inline(always)]
    fn inverse_fraction_error(self, _shifted: Self::Vector) -> Self::Vector {
        self.splat(0.0)
    }
    /// `x · 2^⌊n⌋` of such an n, rounded once, subnormal results included.
    fn scale(self, x: Self::Vector, n: Self::Vector) -> Self::Vector;

    /// `1 / x` with a relative error of at most 2⁻²², for x from 1/2 to 2¹²⁶.
    fn reciprocal(self, x: Self::Vector) -> Self::Vector;
    /// As [`SimdF32::reciprocal`], with a relative error of at most 2⁻¹⁴; zero for infinity, and maybe beyond 2¹²⁶.
    #[inline(always)]
    fn estimate_reciprocal(self, x: Self::Vector) -> Self::Vector {
        self.reciprocal(x)
    }
}

/// Elements that the vectors `S` can load and store, one vector at a time or in *pairs* of vectors. A pair holds
/// `2 · LANES` neighbours: the first half and the second, or, if they alternate, the even ones and the odd ones.
pub(crate) trait Lanes<S: Simd>: Number {
    /// # Safety
    /// `source` points at `S::LANES` readable elements.
    unsafe fn load(simd: S, source: *const Self) -> S::Vector;
    /// Rounds results. A NaN among them comes from widened elements, from parameters or from arithmetic; in all of those
    /// the lower 16 bits are zero, and rounding to bf16 may rely on it.
    ///
    /// # Safety
    /// `target` points at `S::LANES` writable elements.
    unsafe fn store(simd: S, target: *mut Self, v: S::Vector);

    /// Whether pairs alternate.
    const ALTERNATES: bool;
    /// # Safety
    /// `source` points at `2 · S::LANES` readable elements.
    unsafe fn load_pair(simd: S, source: *const Self) -> [S::Vector; 2];
    /// As [`Lanes::store`]. `STREAM`: past the caches, where the processor can.
    ///
    /// # Safety
    /// `target` points at `2 · S::LANES` writable elements; if `STREAM`, aligned to `LINE` or to the pair.
    unsafe fn store_pair<const STREAM: bool>(simd: S, target: *mut Self, pair: [S::Vector; 2]);

    /// Where an element of a row of pairs lies among their lanes: within its pair, those of the first vector come
    /// before those of the second.
    #[inline(always)]
    fn lane(element: usize) -> usize {
        let (pair, within) = (element / (2 * S::LANES), element % (2 * S::LANES));
        let lane = if Self::ALTERNATES { within % 2 * S::LANES + within / 2 } else { within };
        2 * S::LANES * pair + lane
    }

    /// The pair that begins `elements` before `now` in the line `[before, now]`; `elements` is at most `S::LANES` and
    /// 7, and known when the kernel is compiled.
    #[inline(always)]
    fn shift_pair_in(
        simd: S,
        before: [S::Vector; 2],
        now: [S::Vector; 2],
        elements: usize,
    ) -> [S::Vector; 2] {
        if Self::ALTERNATES {
            // The element before an odd one is in the same lane, the one before an even one is a lane further back.
            let shift = |part: usize, lanes| simd.shift_in(before[part], now[part], lanes);
            [shift(elements % 2, elements.div_ceil(2)), shift((elements + 1) % 2, elements / 2)]
        } else {
            [simd.shift_in(before[1], now[0], elements), simd.shift_in(now[0], now[1], elements)]
        }
    }

    /// The pair that begins `elements` after `now` in the line `[now, next]`; `elements` is less than `S::LANES`, at most
    /// 7, and known when the kernel is compiled.
    #[inline(always)]
    fn shift_pair_out(simd: S, now: [S::Vector; 2], next: [S::Vector; 2], elements: usize) -> [S::Vector; 2] {
        let shift =
            |now, next, lanes| if lanes == 0 { now } else { simd.shift_in(now, next, S::LANES - lanes) };
        if Self::ALTERNATES {
            // The element after an even one is in the same lane, the one after an odd one is a lane further on.
            let shift = |part: usize, lanes| shift(now[part], next[part], lanes);
            [shift(elements % 2, elements / 2), shift((elements + 1) % 2, elements.div_ceil(2))]
        } else {
            [shift(now[0], now[1], elements), shift(now[1], next[0], elements)]
        }
    }
}

macro_rules! lanes_in_f32 {
    ($number:ty, $alternates:expr, $load:ident, $load_pair:expr, $store:ident, $store_pair:ident) => {
        impl<S: SimdF32> Lanes<S> for $number {
            const ALTERNATES: bool = $alternates;

            #[inline(always)]
            unsafe fn load(simd: S, source: *const Self) -> S::Vector {
                // SAFETY: the caller's promise.
                unsafe { simd.$load(source) }
            }

            #[inline(always)]
            unsafe fn store(simd: S, target: *mut Self, v: S::Vector) {
                // SAFETY: the caller's promise.
                unsafe { simd.$store(target, v) }
            }

            #[inline(always)]
            unsafe fn load_pair(simd: S, source: *const Self) -> [S::Vector; 2] {
                // SAFETY: the caller's promise.
                unsafe { $load_pair(simd, source) }
            }

            #[inline(always)]
            unsafe fn store_pair<const STREAM: bool>(simd: S, target: *mut Self, pair: [S::Vector; 2]) {
                // SAFETY: the caller's promise.
                unsafe { simd.$store_pair::<STREAM>(target, pair) }
            }
        }
    };
}
lanes_in_f32!(f32, false, load, load_halves, store, store_f32_pair);
lanes_in_f32!(f16, false, load_f16, load_halves, store_f16, store_f16_pair);
lanes_in_f32!(bf16, S::BF16_ALTERNATES, load_bf16, S::load_bf16_pair, store_bf16, store_bf16_pair);

/// A pair that does not alternate.
///
/// # Safety
/// As for [`Lanes::load_pair`].
#[inline(always)]
unsafe fn load_halves<S: Simd, T: Lanes<S>>(simd: S, source: *const T) -> [S::Vector; 2] {
    // SAFETY: the caller's promise.
    unsafe { [T::load(simd, source), T::load(simd, source.add(S::LANES))] }
}

impl<I: Instructions, const N: usize> Lanes<Plain<f64, I, N>> for f64 {
    const ALTERNATES: bool = false;

    #[inline(always)]
    unsafe fn load(simd: Plain<f64, I, N>, source: *const f64) -> [f64; N] {
        // SAFETY: the caller's promise.
        unsafe { simd.load(source) }
    }

    #[inline(always)]
    unsafe fn store(simd: Plain<f64, I, N>, target: *mut f64, v: [f64; N]) {
        // SAFETY: the caller's promise.
        unsafe { simd.store(target, v) }
    }

    #[inline(always)]
    unsafe fn load_pair(simd: Plain<f64, I, N>, source: *const f64) -> [[f64; N]; 2] {
        // SAFETY: the caller's promise.
        unsafe { load_halves(simd, source) }
    }

    #[inline(always)]
    unsafe fn store_pair<const STREAM: bool>(
        simd: Plain<f64, I, N>,
        target: *mut f64,
        [first, second]: [[f64; N]; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            simd.store(target, first);
            simd.store(target.add(N), second);
        }
    }
}
