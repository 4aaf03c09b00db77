//! Convolution of one channel over a tile of positions, with vectors along the sequence.
//!
//! ```text
//!            history        tile
//! x      [ width-1 ... | 0 1 2 ... count-1 ]        in accumulators, in the L1 cache
//! weight [ 0 ... width-1 ]
//!          └──── slides ────→                       out[i] = bias + Σ_w weight[w] · x[i + w]
//! ```
//!
//! A tile is loaded once (any stride, any dtype), convolved with unaligned loads from the cache, and stored
//! once. The next tile's history is the end of this one's x.
//!
//! The longer steps over a tile are functions of their own ([`Simd::apart`]), compiled once for all kernels that take them: a call is
//! little beside 512 positions. Where 64 elements are widened or rounded it is not, so that [`gather`] and [`narrow`] are inlined.

use std::marker::PhantomData;

use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Part, Simd};

/// Positions in a tile: a multiple of every number of lanes. Three buffers of this length stay in the
/// L1 cache.
pub(super) const TILE: usize = 512;

/// Vectors that a pass over the taps keeps in registers, so that a weight is loaded once for all of them, and whose SiLU is computed
/// together.
pub(super) const UNROLL: usize = 4;

/// Positions that activations are computed for: `UNROLL` of the widest vectors.
pub(super) const STEP: usize = UNROLL * 16;

/// Positions rounded up to whole steps.
pub(super) fn whole_steps(count: usize) -> usize {
    count.next_multiple_of(STEP)
}

/// What becomes of the sums of a convolution.
#[derive(Clone, Copy)]
pub(super) enum Finish<'a, A> {
    Keep,
    Silu,
    /// dy, in whole vectors, is multiplied with SiLU's derivative there; see [`Simd::silu_derivative`].
    Derivative {
        exact: bool,
        dy: &'a [A],
    },
}

impl<A> Finish<'_, A> {
    pub fn activation(silu: bool) -> Self {
        if silu { Finish::Silu } else { Finish::Keep }
    }
}

/// `out[i] = finish(bias + Σ_w weight[w] · x[i + w])` for `count` positions, rounded up to whole vectors. SiLU is as exact
/// as `T` asks.
#[inline(always)]
pub(super) fn convolve<S: Simd, T: Number>(
    simd: S,
    (weight, bias): (&[S::Scalar], S::Scalar),
    x: &[S::Scalar],
    count: usize,
    out: &mut [S::Scalar],
    finish: Finish<'_, S::Scalar>,
) {
    simd.apart(Convolve::<_, T> { weight, bias, x, count, out, finish, of: PhantomData });
}

/// See [`convolve`].
struct Convolve<'a, A, T> {
    weight: &'a [A],
    bias: A,
    x: &'a [A],
    count: usize,
    out: &'a mut [A],
    finish: Finish<'a, A>,
    of: PhantomData<T>,
}

impl<S: Simd, T: Number> Part<S> for Convolve<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(mut self, simd: S) {
        let padded = self.count.next_multiple_of(S::LANES);
        assert!(self.out.len() >= padded && self.x.len() + 1 >= padded + self.weight.len());
        let mut at = 0;
        // SAFETY: the assertion, with vectors that end at `padded`.
        unsafe {
            while at + UNROLL * S::LANES <= padded {
                self.vectors::<S, UNROLL>(simd, at);
                at += UNROLL * S::LANES;
            }
            while at < padded {
                self.vectors::<S, 1>(simd, at);
                at += S::LANES;
            }
        }
    }
}

impl<A: Accumulator, T: Number> Convolve<'_, A, T> {
    /// # Safety
    /// `N` vectors from `at` on lie in `out`, and with the taps in x.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn vectors<S: Simd<Scalar = A>, const N: usize>(&mut self, simd: S, at: usize) {
        let mut sums = [simd.splat(self.bias); N];
        for (tap, &weight) in self.weight.iter().enumerate() {
            let weight = simd.splat(weight);
            for i in 0..N {
                // SAFETY: the caller's promise.
                let x = unsafe { simd.load(self.x.as_ptr().add(at + tap + i * S::LANES)) };
                sums[i] = simd.mul_add(weight, x, sums[i]);
            }
        }
        match self.finish {
            Finish::Keep => {}
            Finish::Silu => sums = simd.silu::<T, N>(sums),
            Finish::Derivative { exact, dy } => {
                let derivatives = simd.silu_derivative::<T, N>(exact, sums);
                sums = load(simd, &dy[at..at + N * S::LANES]);
                for i in 0..N {
                    sums[i] = simd.mul(sums[i], derivatives[i]);
                }
            }
        }
        store(simd, sums, &mut self.out[at..at + N * S::LANES]);
    }
}

/// Multiplies whole steps with the derivative of SiLU, as exact as [`Simd::silu_derivative`].
#[inline(always)]
pub(super) fn multiply_by_derivative<S: Simd, T: Number>(
    simd: S,
    exact: bool,
    pre: &[S::Scalar],
    values: &mut [S::Scalar],
) {
    simd.apart(MultiplyByDerivative::<_, T> { exact, pre, values, of: PhantomData });
}

/// See [`multiply_by_derivative`].
struct MultiplyByDerivative<'a, A, T> {
    exact: bool,
    pre: &'a [A],
    values: &'a mut [A],
    of: PhantomData<T>,
}

impl<S: Simd, T: Number> Part<S> for MultiplyByDerivative<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let step = UNROLL * S::LANES;
        for (pre, values) in self.pre.chunks_exact(step).zip(self.values.chunks_exact_mut(step)) {
            let mut results = simd.silu_derivative::<T, UNROLL>(self.exact, load(simd, pre));
            let factors = load::<S, UNROLL>(simd, values);
            for i in 0..UNROLL {
                results[i] = simd.mul(factors[i], results[i]);
            }
            store(simd, results, values);
        }
    }
}

/// `N` vectors of a slice that has as many or more.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) fn load<S: Simd, const N: usize>(simd: S, values: &[S::Scalar]) -> [S::Vector; N] {
    assert!(values.len() >= N * S::LANES);
    let mut vectors = [simd.splat(S::Scalar::ZERO); N];
    for i in 0..N {
        // SAFETY: the assertion.
        vectors[i] = unsafe { simd.load(values.as_ptr().add(i * S::LANES)) };
    }
    vectors
}

/// `N` vectors, to a slice that holds as many or more.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) fn store<S: Simd, const N: usize>(simd: S, vectors: [S::Vector; N], values: &mut [S::Scalar]) {
    assert!(values.len() >= N * S::LANES);
    for i in 0..N {
        // SAFETY: the assertion.
        unsafe { simd.store(values.as_mut_ptr().add(i * S::LANES), vectors[i]) };
    }
}

/// `sums[w] += Σ_i g[i] · x[i + w]`, and `sums[width] += Σ_i g[i]`, over `count` positions.
///
/// The tile is summed in vectors, and its totals are added to `sums` in f64, so that the error does not grow
/// with the length of the sequence. What is left of a vector is summed one by one: a lane past the end would multiply
/// nothing with an x that may be infinite.
#[inline(always)]
pub(super) fn correlate<S: Simd>(simd: S, g: &[S::Scalar], x: &[S::Scalar], count: usize, sums: &mut [f64]) {
    simd.apart(Correlate { g, x, count, sums });
}

/// See [`correlate`].
struct Correlate<'a, A> {
    g: &'a [A],
    x: &'a [A],
    count: usize,
    sums: &'a mut [f64],
}

impl<S: Simd> Part<S> for Correlate<'_, S::Scalar> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Correlate { g, x, count, sums } = self;
        let width = sums.len() - 1;
        let whole = count - count % S::LANES;
        let mut tap = 0;
        while tap + UNROLL <= width {
            correlate_taps::<S, UNROLL>(simd, g, &x[tap..], whole, &mut sums[tap..tap + UNROLL]);
            tap += UNROLL;
        }
        while tap < width {
            correlate_taps::<S, 1>(simd, g, &x[tap..], whole, &mut sums[tap..tap + 1]);
            tap += 1;
        }
        let mut total = simd.splat(S::Scalar::ZERO);
        for chunk in g[..whole].chunks_exact(S::LANES) {
            // SAFETY: the chunk is a whole vector.
            total = simd.add(total, unsafe { simd.load(chunk.as_ptr()) });
        }
        sums[width] += simd.sum(total).to_f64();
        for at in whole..count {
            let g = g[at].to_f64();
            for (sum, x) in sums[..width].iter_mut().zip(&x[at..]) {
                *sum += g * x.to_f64();
            }
            sums[width] += g;
        }
    }
}

/// `TAPS` taps of [`correlate`], over whole vectors.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn correlate_taps<S: Simd, const TAPS: usize>(
    simd: S,
    g: &[S::Scalar],
    x: &[S::Scalar],
    whole: usize,
    sums: &mut [f64],
) {
    assert!(g.len() >= whole && x.len() + 1 >= whole + TAPS && sums.len() == TAPS);
    let mut totals = [simd.splat(S::Scalar::ZERO); TAPS];
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + lanes ≤ whole`, and the assertion.
        unsafe {
            let g = simd.load(g.as_ptr().add(at));
            for tap in 0..TAPS {
                totals[tap] = simd.mul_add(g, simd.load(x.as_ptr().add(at + tap)), totals[tap]);
            }
        }
        at += S::LANES;
    }
    for (sum, total) in sums.iter_mut().zip(totals) {
        *sum += simd.sum(total).to_f64();
    }
}

/// Widens `out.len()` elements, `stride` apart, into `out`.
///
/// # Safety
/// They are elements of a tensor.
#[inline(always)]
pub(super) unsafe fn gather<S: Simd, T>(simd: S, source: *const T, stride: isize, out: &mut [S::Scalar])
where
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    if stride == 1 {
        // SAFETY: the caller's promise.
        return unsafe { widen(simd, source, out) };
    }
    for (i, value) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *value = unsafe { *source.wrapping_offset(stride.wrapping_mul(i as isize)) }.widen();
    }
}

/// Widens `out.len()` neighbouring elements.
///
/// # Safety
/// They are elements of a tensor.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) unsafe fn widen<S: Simd, T>(simd: S, source: *const T, out: &mut [S::Scalar])
where
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    let mut done = 0;
    while done + S::LANES <= out.len() {
        // SAFETY: the caller's promise; a whole vector is left.
        unsafe { simd.store(out.as_mut_ptr().add(done), T::load(simd, source.add(done))) };
        done += S::LANES;
    }
    for i in done..out.len() {
        // SAFETY: the caller's promise.
        out[i] = unsafe { *source.add(i) }.widen();
    }
}

/// As [`gather`], but adds to `out`.
///
/// # Safety
/// They are elements of a tensor.
#[inline(always)]
pub(super) unsafe fn gather_add<T: Number>(source: *const T, stride: isize, out: &mut [T::Accumulator]) {
    for (i, value) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *value += unsafe { *source.wrapping_offset(stride.wrapping_mul(i as isize)) }.widen();
    }
}

/// Rounds at most `TILE` values into elements that are `stride` apart; past the caches if `stream`.
///
/// # Safety
/// They are elements of a tensor, and nobody else uses them meanwhile.
#[inline(always)]
pub(super) unsafe fn scatter<S: Simd, T>(
    simd: S,
    values: &[S::Scalar],
    target: *mut T,
    stride: isize,
    stream: bool,
) where
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    if stride == 1 && !stream {
        // SAFETY: the caller's promise.
        return unsafe { narrow(simd, values, target) };
    }
    simd.apart(Scatter { values, target, stride });
}

/// What [`scatter`] was called with, and its caller's promise; past the caches where elements are neighbours.
struct Scatter<'a, T: Number> {
    values: &'a [T::Accumulator],
    target: *mut T,
    stride: isize,
}

impl<S: Simd, T: Lanes<S> + Number<Accumulator = S::Scalar>> Part<S> for Scatter<'_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Scatter { values, target, stride } = self;
        if stride == 1 {
            let mut row = [T::ZERO; TILE];
            let row = &mut row[..values.len()];
            // SAFETY: the row is as long as the values; the promise.
            unsafe {
                narrow(simd, values, row.as_mut_ptr());
                write_row(simd, row, target, true);
            }
            return;
        }
        for (i, &value) in values.iter().enumerate() {
            // SAFETY: the promise.
            unsafe { *target.wrapping_offset(stride.wrapping_mul(i as isize)) = T::narrow(value) };
        }
    }
}

/// Rounds values into neighbouring elements.
///
/// # Safety
/// There are as many elements, and nobody else uses them meanwhile.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) unsafe fn narrow<S: Simd, T>(simd: S, values: &[S::Scalar], target: *mut T)
where
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    let mut done = 0;
    // SAFETY: the caller's promise; vectors lie inside the slice.
    unsafe {
        while done + S::LANES <= values.len() {
            T::store(simd, target.add(done), simd.load(values.as_ptr().add(done)));
            done += S::LANES;
        }
        for i in done..values.len() {
            *target.add(i) = T::narrow(values[i]);
        }
    }
}

/// Copies finished elements to their place; past the caches if `stream`.
///
/// # Safety
/// `target` points at as many elements of a tensor, which nobody else uses meanwhile.
#[inline(always)]
pub(super) unsafe fn write_row<S: Simd, T: Number>(simd: S, row: &[T], target: *mut T, stream: bool) {
    let per_line = LINE / size_of::<T>();
    let mut done = 0;
    // SAFETY: the caller's promise; lines lie inside the row, and begin where the target is aligned.
    unsafe {
        if stream {
            let head = target.align_offset(LINE).min(row.len());
            target.copy_from_nonoverlapping(row.as_ptr(), head);
            done = head;
            while done + per_line <= row.len() {
                simd.stream_line(row.as_ptr().add(done).cast(), target.add(done).cast());
                done += per_line;
            }
        }
        target.add(done).copy_from_nonoverlapping(row.as_ptr().add(done), row.len() - done);
    }
}
