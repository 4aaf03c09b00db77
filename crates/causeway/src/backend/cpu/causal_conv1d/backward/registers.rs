//! Backward in one pass, for positions that are neighbours in memory and widths up to 8; see [`registers`](super::super::registers).
//!
//! ```text
//! memory   x, dy: ... |      held      |      next      | ...        pairs of vectors
//! g                   |    computed    |    computed    |
//! g, k elements on    [ held, shifted out towards next by k ]        what dx takes with the tap of age k,
//! dx, dweight         |      now       |                             and x with dweight of that tap
//! ```
//!
//! A pair's dx and its part of dweight wait for the g of the pair after it. So both come from the same shifted g, x is
//! needed as it lies in memory, and dx is stored where x was loaded: rows that begin and end with lines give whole lines.

use super::super::blocks::MAX_PAIR;
use super::super::registers::{
    INTERLEAVED, Output, Taps, for_each_age, load_history, prefetch_pair, store_history,
};
use super::super::rows::{load_lanes, store_lanes};
use crate::backend::cpu::simd::{Accumulator, Lanes, Number, Part, Simd};

/// What [`gradient`] works on.
pub(super) struct Gradient<'a, A, T> {
    pub silu: bool,
    /// See [`Simd::silu_derivative`].
    pub exact_derivative: bool,
    pub weight: &'a [A],
    pub bias: A,
    pub x: *const T,
    pub dy: *const T,
    /// The `width - 1` positions before x.
    pub x_before: &'a [A],
    /// The last `width - 1` positions of x.
    pub x_last: &'a [A],
    /// g of the first `width - 1` positions, when done.
    pub g_first: &'a mut [A],
    /// g of the last `width - 1` positions, when done.
    pub g_last: &'a mut [A],
    /// g of the `width - 1` positions after the last one.
    pub g_after: &'a [A],
    /// What is added to dx of the last `width - 1` positions.
    pub added: &'a [A],
    pub dx: Output<T>,
    /// Sums for the taps and the bias.
    pub sums: &'a mut [f64],
}

/// ```text
/// g[i]      = dy[i] · act'(pre[i])
/// dx[i]     = Σ_w weight[w] · g[i + (width-1) - w] + added
/// sums[w]  += Σ_i g[i] · x[i + w - (width-1)],   sums[width] += Σ_i g[i]
/// ```
///
/// # Safety
/// `x` and `dy` point at as many elements of tensors as dx, which is a pair or more of
/// [`whole_pairs`](super::super::registers::whole_pairs) of the width.
#[inline(always)]
pub(super) unsafe fn gradient<S, T, const WIDTH: usize>(simd: S, work: Gradient<'_, S::Scalar, T>)
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    simd.apart(Promised::<_, _, WIDTH>(work));
}

/// What [`gradient`] was called with, and its caller's promise.
struct Promised<'a, A, T, const WIDTH: usize>(Gradient<'a, A, T>);

impl<S, T, const WIDTH: usize> Part<S> for Promised<'_, S::Scalar, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let Gradient {
            silu,
            exact_derivative,
            weight,
            bias,
            x,
            dy,
            x_before,
            x_last,
            g_first,
            g_last,
            g_after,
            added,
            dx,
            sums,
        } = self.0;
        let zero = simd.splat(S::Scalar::ZERO);
        let taps = Taps::<S, T, WIDTH>::new(simd, weight, bias, x);
        let source = Gradients { taps, silu, exact_derivative, dy, dx };
        // SAFETY: the promise.
        let state = unsafe {
            let first = source.first(simd, load_history::<S, T>(simd, x_before));
            store_first::<S, T>(simd, first, g_first);
            let total = simd.add(first[0], first[1]);
            let mut state = State { g: first, totals: [zero; WIDTH], total };
            let at = source.groups::<INTERLEAVED>(simd, &mut state, 2 * S::LANES);
            source.groups::<2>(simd, &mut state, at);
            source.last(simd, &mut state, x_last, g_after, added);
            state
        };
        let width = source.taps.width;
        for age in 0..WIDTH {
            if age < width {
                sums[width - 1 - age] += simd.sum(state.totals[age]).to_f64();
            }
        }
        sums[width] += simd.sum(state.total).to_f64();
        store_history::<S, T>(simd, state.g, g_last);
        // The products with positions before x.
        for age in 1..width {
            for (g, x) in g_first[..age].iter().zip(&x_before[width - 1 - age..]) {
                sums[width - 1 - age] += g.to_f64() * x.to_f64();
            }
        }
    }
}

/// What [`gradient`] reads, in registers where it fits.
struct Gradients<S: Simd, T, const WIDTH: usize> {
    taps: Taps<S, T, WIDTH>,
    silu: bool,
    exact_derivative: bool,
    dy: *const T,
    dx: Output<T>,
}

/// What [`gradient`] carries from pair to pair.
struct State<S: Simd, const WIDTH: usize> {
    /// g of the pair whose dx waits.
    g: [S::Vector; 2],
    /// By age.
    totals: [S::Vector; WIDTH],
    total: S::Vector,
}

impl<S, T, const WIDTH: usize> Gradients<S, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    /// g of the first pair.
    ///
    /// # Safety
    /// As for [`gradient`].
    #[inline(always)]
    unsafe fn first(&self, simd: S, mut x_before: [S::Vector; 2]) -> [S::Vector; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let pre = self.taps.sums::<2>(simd, &mut x_before, 0);
            self.g(simd, pre, 0)
        }
    }

    /// Groups of `N` vectors from `at` on, as many as there are, and where they end; before them there is a pair. Three
    /// groups are in flight, at stages that do not depend on each other, as in forward: the sums of the next one but
    /// one, the results of one whose g is known, and, in the middle, the long chain from sums to g.
    ///
    /// # Safety
    /// As for [`gradient`].
    #[inline(always)]
    unsafe fn groups<const N: usize>(&self, simd: S, state: &mut State<S, WIDTH>, mut at: usize) -> usize {
        let elements = N * S::LANES;
        let groups = (self.dx.count - at) / elements;
        if groups == 0 {
            return at;
        }
        // SAFETY: the caller's promise; groups end at the count.
        unsafe {
            let mut before = T::load_pair(simd, self.taps.x.add(at - 2 * S::LANES));
            let last = at + (groups - 1) * elements;
            let pre = self.taps.sums::<N>(simd, &mut before, at);
            // Past the last group itself again, for nothing.
            let mut next = self.taps.sums::<N>(simd, &mut before, last.min(at + elements));
            let mut g = self.g(simd, pre, at);
            while at < last {
                let later = self.taps.sums::<N>(simd, &mut before, last.min(at + 2 * elements));
                let later = simd.in_step(later);
                self.results(simd, state, g, at);
                at += elements;
                g = simd.in_step(self.g(simd, next, at));
                next = later;
            }
            self.results(simd, state, g, at);
        }
        at + elements
    }

    /// g of `N` vectors.
    ///
    /// # Safety
    /// As for [`gradient`], and `at + N · LANES ≤ dx.count`.
    #[inline(always)]
    unsafe fn g<const N: usize>(&self, simd: S, pre: [S::Vector; N], at: usize) -> [S::Vector; N] {
        let mut dy = [simd.splat(S::Scalar::ZERO); N];
        for pair in 0..N / 2 {
            // SAFETY: the caller's promise.
            unsafe {
                let source = self.dy.add(at + 2 * pair * S::LANES);
                prefetch_pair(simd, source);
                [dy[2 * pair], dy[2 * pair + 1]] = T::load_pair(simd, source);
            }
        }
        if self.silu {
            let derivatives = simd.silu_derivative::<T, N>(self.exact_derivative, pre);
            for i in 0..N {
                dy[i] = simd.mul(dy[i], derivatives[i]);
            }
        }
        dy
    }

    /// dx of the pair before `at` and of the `N` vectors from there on, but for the last pair, and their part of the
    /// sums.
    ///
    /// # Safety
    /// As for [`gradient`], and `2 · LANES ≤ at`, `at + N · LANES ≤ dx.count`.
    #[inline(always)]
    unsafe fn results<const N: usize>(
        &self,
        simd: S,
        state: &mut State<S, WIDTH>,
        g: [S::Vector; N],
        at: usize,
    ) {
        let from = at - 2 * S::LANES;
        let mut dx = g;
        // SAFETY: the caller's promise.
        unsafe {
            for pair in 0..N / 2 {
                let i = 2 * pair;
                [dx[i], dx[i + 1]] = self.pair(simd, state, from + i * S::LANES, [g[i], g[i + 1]]);
            }
            self.dx.store(simd, from, dx);
        }
    }

    /// dx of the pair at `from`, which has waited for the g of the next one; adds its part of the sums.
    ///
    /// # Safety
    /// As for [`gradient`], and the pair lies in x.
    #[inline(always)]
    unsafe fn pair(
        &self,
        simd: S,
        state: &mut State<S, WIDTH>,
        from: usize,
        next: [S::Vector; 2],
    ) -> [S::Vector; 2] {
        let mut dx = [simd.splat(S::Scalar::ZERO); 2];
        // SAFETY: the caller's promise.
        let x = unsafe { T::load_pair(simd, self.taps.x.add(from)) };
        for_each_age!(age in 0..WIDTH {
            if age < self.taps.width {
                let g = T::shift_pair_out(simd, state.g, next, age);
                for part in 0..2 {
                    state.totals[age] = simd.mul_add(g[part], x[part], state.totals[age]);
                    dx[part] = simd.mul_add(self.taps.taps[age], g[part], dx[part]);
                }
            }
        });
        state.total = simd.add(state.total, simd.add(next[0], next[1]));
        state.g = next;
        dx
    }

    /// dx of the last pair. Its part of dweight ends where x does, whatever is there or comes after.
    ///
    /// # Safety
    /// As for [`gradient`].
    #[inline(always)]
    unsafe fn last(
        &self,
        simd: S,
        state: &mut State<S, WIDTH>,
        x_last: &[S::Scalar],
        g_after: &[S::Scalar],
        added: &[S::Scalar],
    ) {
        let from = self.dx.count - 2 * S::LANES;
        let nothing_after = g_after.iter().chain(added).all(|value| value.to_f64() == 0.0);
        // SAFETY: the caller's promise.
        unsafe {
            if nothing_after && x_last.iter().all(|x| x.to_f64().is_finite()) {
                let last = state.g;
                let dx = self.pair(simd, state, from, [simd.splat(S::Scalar::ZERO); 2]);
                state.g = last;
                return self.dx.store(simd, from, dx);
            }
            // Copies: what is pointed at has to be in memory, and the state has been in registers.
            let (mut totals, mut dx) = (state.totals, [simd.splat(S::Scalar::ZERO); 2]);
            simd.apart(Last::<S, T, WIDTH> {
                taps: self.taps.taps,
                width: self.taps.width,
                x: self.taps.x.add(from),
                g: state.g,
                g_after,
                added,
                totals: &mut totals,
                dx: &mut dx,
            });
            state.totals = totals;
            self.dx.store(simd, from, dx);
        }
    }
}

/// The last pair of positions that others follow, or that have something added; and the promise of [`Gradients::last`].
struct Last<'a, S: Simd, T, const WIDTH: usize> {
    /// By age.
    taps: [S::Vector; WIDTH],
    width: usize,
    x: *const T,
    g: [S::Vector; 2],
    g_after: &'a [S::Scalar],
    added: &'a [S::Scalar],
    totals: &'a mut [S::Vector; WIDTH],
    dx: &'a mut [S::Vector; 2],
}

impl<S, T, const WIDTH: usize> Part<S> for Last<'_, S, T, WIDTH>
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let next = load_first::<S, T>(simd, self.g_after);
        let mut dx = [simd.splat(S::Scalar::ZERO); 2];
        // SAFETY: the promise.
        let x = unsafe { T::load_pair(simd, self.x) };
        for_each_age!(age in 0..WIDTH {
            if age < self.width {
                let g = T::shift_pair_out(simd, self.g, next, age);
                // Not a product with zero, which of an infinite x would count.
                let counted = without_last::<S, T>(simd, g, age);
                let x = without_last::<S, T>(simd, x, age);
                for part in 0..2 {
                    self.totals[age] = simd.mul_add(counted[part], x[part], self.totals[age]);
                    dx[part] = simd.mul_add(self.taps[age], g[part], dx[part]);
                }
            }
        });
        let added = load_history::<S, T>(simd, self.added);
        *self.dx = [simd.add(dx[0], added[0]), simd.add(dx[1], added[1])];
    }
}

/// A pair whose first elements are `values`.
#[inline(always)]
fn load_first<S: Simd, T: Lanes<S>>(simd: S, values: &[S::Scalar]) -> [S::Vector; 2] {
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    for (element, &value) in values.iter().enumerate() {
        lanes[T::lane(element)] = value;
    }
    // SAFETY: the array is at least a pair.
    unsafe { load_lanes(simd, lanes.as_ptr()) }
}

/// The first elements of a pair.
#[inline(always)]
fn store_first<S: Simd, T: Lanes<S>>(simd: S, pair: [S::Vector; 2], values: &mut [S::Scalar]) {
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    // SAFETY: the array is at least a pair.
    unsafe { store_lanes(simd, lanes.as_mut_ptr(), pair) };
    for (element, value) in values.iter_mut().enumerate() {
        *value = lanes[T::lane(element)];
    }
}

/// The pair with zeros for its last `count` elements.
#[inline(always)]
fn without_last<S: Simd, T: Lanes<S>>(simd: S, pair: [S::Vector; 2], count: usize) -> [S::Vector; 2] {
    let mut lanes = [S::Scalar::ZERO; MAX_PAIR];
    // SAFETY: the array is at least a pair.
    unsafe {
        store_lanes(simd, lanes.as_mut_ptr(), pair);
        for element in 2 * S::LANES - count..2 * S::LANES {
            lanes[T::lane(element)] = S::Scalar::ZERO;
        }
        load_lanes(simd, lanes.as_ptr())
    }
}
