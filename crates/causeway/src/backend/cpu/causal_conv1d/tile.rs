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

use std::marker::PhantomData;

use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Simd};

/// Positions in a tile: a multiple of every number of lanes. Three buffers of this length stay in the
/// L1 cache.
pub(super) const TILE: usize = 512;

/// Vectors that a pass over the taps keeps in registers, so that a weight is loaded once for all of them.
const UNROLL: usize = 4;

/// `count` rounded up to whole vectors.
#[inline(always)]
fn whole_vectors<S: Simd>(_: S, count: usize) -> usize {
    count.next_multiple_of(S::LANES)
}

/// What happens to a sum before it is stored.
pub(super) trait Finish<S: Simd> {
    /// Neighbouring vectors, of which `position` is the first lane in the tile.
    fn apply<const N: usize>(&self, simd: S, sums: [S::Vector; N], position: usize) -> [S::Vector; N];
}

/// Nothing.
pub(super) struct Keep;

impl<S: Simd> Finish<S> for Keep {
    #[inline(always)]
    fn apply<const N: usize>(&self, _: S, sums: [S::Vector; N], _: usize) -> [S::Vector; N] {
        sums
    }
}

/// SiLU.
pub(super) struct Silu<T>(pub PhantomData<T>);

impl<S: Simd, T: Number> Finish<S> for Silu<T> {
    #[inline(always)]
    fn apply<const N: usize>(&self, simd: S, sums: [S::Vector; N], _: usize) -> [S::Vector; N] {
        simd.silu::<T, N>(sums)
    }
}

/// What an activation's derivative does to dy.
pub(super) trait Slope<S: Simd> {
    /// `pre` is what the activation is applied to.
    fn slope<const N: usize>(&self, simd: S, pre: [S::Vector; N], dy: [S::Vector; N]) -> [S::Vector; N];
}

impl<S: Simd> Slope<S> for Keep {
    #[inline(always)]
    fn slope<const N: usize>(&self, _: S, _: [S::Vector; N], dy: [S::Vector; N]) -> [S::Vector; N] {
        dy
    }
}

impl<S: Simd, T: Number> Slope<S> for Silu<T> {
    #[inline(always)]
    fn slope<const N: usize>(&self, simd: S, pre: [S::Vector; N], mut dy: [S::Vector; N]) -> [S::Vector; N] {
        for (dy, slope) in dy.iter_mut().zip(simd.silu_slope::<T, N>(pre)) {
            *dy = simd.mul(*dy, slope);
        }
        dy
    }
}

/// SiLU's derivative times dy.
pub(super) struct SiluGradient<'a, T: Number> {
    /// Whole vectors.
    pub dy: &'a [T::Accumulator],
}

impl<S: Simd, T: Number<Accumulator = S::Scalar>> Finish<S> for SiluGradient<'_, T> {
    #[inline(always)]
    fn apply<const N: usize>(&self, simd: S, sums: [S::Vector; N], position: usize) -> [S::Vector; N] {
        let mut dy = [simd.splat(S::Scalar::ZERO); N];
        let chunks = self.dy[position..position + N * S::LANES].chunks_exact(S::LANES);
        for (dy, chunk) in dy.iter_mut().zip(chunks) {
            // SAFETY: the chunk is a whole vector.
            *dy = unsafe { simd.load(chunk.as_ptr()) };
        }
        Silu(PhantomData::<T>).slope(simd, sums, dy)
    }
}

/// `out[i] = finish(bias + Σ_w weight[w] · x[i + w])` for `count` positions, rounded up to whole vectors.
#[inline(always)]
pub(super) fn convolve<S: Simd>(
    simd: S,
    weight: &[S::Scalar],
    bias: S::Scalar,
    x: &[S::Scalar],
    count: usize,
    out: &mut [S::Scalar],
    finish: &impl Finish<S>,
) {
    let padded = whole_vectors(simd, count);
    assert!(out.len() >= padded && x.len() + 1 >= padded + weight.len());
    let (x, out) = (x.as_ptr(), out.as_mut_ptr());
    let mut at = 0;
    // SAFETY: `at + lanes ≤ padded`, so that stores stay in `out`, and loads, which begin at `at + tap` with
    // `tap < weight.len()`, in `x`.
    unsafe {
        while at + UNROLL * S::LANES <= padded {
            let mut sums = [simd.splat(bias); UNROLL];
            for (tap, &weight) in weight.iter().enumerate() {
                let weight = simd.splat(weight);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = simd.mul_add(weight, simd.load(x.add(at + tap + i * S::LANES)), *sum);
                }
            }
            for (i, result) in finish.apply(simd, sums, at).into_iter().enumerate() {
                simd.store(out.add(at + i * S::LANES), result);
            }
            at += UNROLL * S::LANES;
        }
        while at < padded {
            let mut sum = simd.splat(bias);
            for (tap, &weight) in weight.iter().enumerate() {
                sum = simd.mul_add(simd.splat(weight), simd.load(x.add(at + tap)), sum);
            }
            let [result] = finish.apply(simd, [sum], at);
            simd.store(out.add(at), result);
            at += S::LANES;
        }
    }
}

/// `sums[w] += Σ_i g[i] · x[i + w]`, and `sums[width] += Σ_i g[i]`, over `count` positions.
///
/// The tile is summed in vectors, and its totals are added to `sums` in f64, so that the error does not grow
/// with the length of the sequence. What is left of a vector is summed one by one: a lane past the end would multiply
/// nothing with an x that may be infinite.
#[inline(always)]
pub(super) fn correlate<S: Simd>(simd: S, g: &[S::Scalar], x: &[S::Scalar], count: usize, sums: &mut [f64]) {
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
    for (at, g) in g[..count].iter().enumerate().skip(whole) {
        let g = g.to_f64();
        for (sum, x) in sums[..width].iter_mut().zip(&x[at..]) {
            *sum += g * x.to_f64();
        }
        sums[width] += g;
    }
}

/// `TAPS` taps of [`correlate`], over whole vectors.
#[inline(always)]
fn correlate_taps<S: Simd, const TAPS: usize>(
    simd: S,
    g: &[S::Scalar],
    x: &[S::Scalar],
    whole: usize,
    sums: &mut [f64],
) {
    assert!(g.len() >= whole && x.len() + 1 >= whole + TAPS && sums.len() == TAPS);
    let mut totals = [simd.splat(S::Scalar::ZERO); TAPS];
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: `at + lanes ≤ whole`, and the assertion.
        unsafe {
            let g = simd.load(g.as_ptr().add(at));
            for (tap, total) in totals.iter_mut().enumerate() {
                *total = simd.mul_add(g, simd.load(x.as_ptr().add(at + tap)), *total);
            }
        }
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
    let mut done = 0;
    if stride == 1 {
        for chunk in out.chunks_exact_mut(S::LANES) {
            // SAFETY: the caller's promise; the chunk is a whole vector.
            unsafe { simd.store(chunk.as_mut_ptr(), T::load(simd, source.add(done))) };
            done += S::LANES;
        }
    }
    for (i, value) in out.iter_mut().enumerate().skip(done) {
        // SAFETY: the caller's promise.
        *value = unsafe { *source.wrapping_offset(stride.wrapping_mul(i as isize)) }.widen();
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
    if stride != 1 {
        for (i, &value) in values.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *target.wrapping_offset(stride.wrapping_mul(i as isize)) = T::narrow(value) };
        }
    } else if stream {
        let mut row = [T::ZERO; TILE];
        let row = &mut row[..values.len()];
        // SAFETY: the row is as long as the values; the caller's promise.
        unsafe {
            narrow(simd, values, row.as_mut_ptr());
            write_row(simd, row, target, true);
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { narrow(simd, values, target) };
    }
}

/// Rounds values into neighbouring elements.
///
/// # Safety
/// There are as many elements, and nobody else uses them meanwhile.
#[inline(always)]
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
        for (i, &value) in values.iter().enumerate().skip(done) {
            *target.add(i) = T::narrow(value);
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
