//! Backward of a block of rows, for a pair of vectors of channels at a time; see [`super::super::rows`].
//!
//! ```text
//! pass 1    x             → x, widened                  pre
//! pass 2    pre, dy       → g = dy · act'(pre)
//! pass 3    g, x          → the sums of dweight and dbias
//! pass 4    g             → dx
//! ```
//!
//! With norms, pass 2 reads g, which has been computed before.
//!
//! With gates, x is B ⊙ x up to pass 3, and dy is C ⊙ dy in pass 2, which leaves dC. Pass 4 has B and x once more, for dx and dB.
//!
//! What a pass leaves for the next one stays in the L1 cache. In one pass there would be more values in flight
//! than registers: the taps, the sums, `width` rows of x and of g, and the terms of several SiLUs.

use super::super::blocks::{BLOCK, GROUP, MAX_WIDTH, ROWS, Rows};
use super::super::gates::Gate;
use super::super::registers::{INTERLEAVED, WIDE_LANES};
use super::super::rows::{PairAt, Span, TaskWeights, load_lanes, prefetch_pair, store_lanes};
use crate::backend::cpu::simd::{Lanes, Number, Part, Simd};

/// Where the first row's g is among those that wait and those of a block, whatever the width.
const BEFORE: usize = MAX_WIDTH - 1;

/// Rows of dx that are computed together.
const TOGETHER: usize = 4;

/// Sums over rows: a row of `GROUP` per tap and one for the bias, in the order of the lanes of pairs.
pub(super) type Sums<A> = [[A; GROUP]; MAX_WIDTH + 1];

/// g of the last `width - 1` rows, the newest first, in the order of the lanes of pairs.
pub(super) type Waiting<A> = [[A; GROUP]; MAX_WIDTH - 1];

/// The rows that a block reads and writes.
pub(super) struct BlockRows<T: Number> {
    /// History first.
    pub x: Rows<T>,
    /// Null where g is zero.
    pub dy: Rows<T>,
    /// g, where it has been computed before: whole pairs of the task's channels, in the order of their lanes.
    pub g: Option<Rows<T::Accumulator>>,
    /// What is added to dx, if anything.
    pub added: Rows<T>,
    /// The gates of x and of dy, where they are.
    pub b: Rows<T>,
    pub c: Rows<T>,
    /// Rows of dy and dx.
    pub count: usize,
    pub dx: Results<T>,
    pub db: Option<Results<T>>,
    /// None for rows that do not count, as well.
    pub dc: Option<Results<T>>,
}

impl<T: Number> BlockRows<T> {
    /// Whether they are a block, each has dy, and nothing is added to dx.
    fn are_plain(&self) -> bool {
        self.count == BLOCK
            && self.dy[..BLOCK].iter().all(|row| !row.is_null())
            && self.added[..BLOCK].iter().all(|row| row.is_null())
    }
}

/// Where results go, and whether past the caches.
pub(super) type Results<T> = ([*mut T; BLOCK], bool);

/// Stores a pair of a row, from a channel on.
///
/// # Safety
/// The row has so many channels.
#[inline(always)]
unsafe fn put<S, T>(simd: S, (rows, stream): &Results<T>, row: usize, channel: usize, pair: [S::Vector; 2])
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    // SAFETY: the caller's promise.
    unsafe {
        let target = rows[row].add(channel);
        if *stream {
            T::store_pair::<true>(simd, target, pair);
        } else {
            T::store_pair::<false>(simd, target, pair);
        }
    }
}

/// What the passes need to know of a call and of a task.
pub(super) struct Passes<'a, T: Number> {
    pub width: usize,
    pub silu: bool,
    /// See [`Simd::silu_derivative`].
    pub exact_derivative: bool,
    /// From row to row.
    pub x_stride: isize,
    pub dy_stride: isize,
    pub weights: TaskWeights<'a, T::Accumulator>,
    pub b: Option<Gate<T>>,
    pub c: Option<Gate<T>>,
}

/// What [`Passes::walk`] was called with, and its caller's promise.
struct Walk<'a, T: Number> {
    passes: &'a Passes<'a, T>,
    span: Span,
    rows: &'a BlockRows<T>,
    waiting: &'a mut Waiting<T::Accumulator>,
    sums: Option<&'a mut Sums<T::Accumulator>>,
}

/// A walk by [`Passes::column`] with these constants.
struct Compiled<W, const PLAIN: bool, const WIDTH: usize, const GATED: bool>(W);

impl<S, T, const PLAIN: bool, const WIDTH: usize, const GATED: bool> Part<S>
    for Compiled<Walk<'_, T>, PLAIN, WIDTH, GATED>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let Walk { passes, span, rows, waiting, mut sums } = self.0;
        // A copy, which no store to a tensor can change as far as the compiler knows.
        let passes = &Passes { ..*passes };
        let passed = &mut Passed::new(simd);
        for pair in 0..span.pairs {
            let column = PairAt::new(simd, span, pair);
            let sums = sums.as_deref_mut();
            // SAFETY: the promise.
            unsafe { passes.column::<S, PLAIN, WIDTH, GATED>(simd, rows, column, waiting, sums, passed) };
        }
    }
}

impl<T: Number> Passes<'_, T> {
    /// The width of passes that are compiled for `WIDTH`: `MAX_WIDTH` stands for any, and they pass over the taps that it lacks.
    #[inline(always)]
    fn width<const WIDTH: usize>(&self) -> usize {
        if WIDTH < MAX_WIDTH { WIDTH } else { self.width }
    }

    /// Each pair of a span walks down the rows. There are no `sums` for rows that do not count.
    ///
    /// # Safety
    /// Rows that are not null hold the span's pairs; x has `count + width - 1` rows.
    #[inline(always)]
    pub unsafe fn walk<S>(
        &self,
        simd: S,
        span: Span,
        rows: &BlockRows<T>,
        waiting: &mut Waiting<T::Accumulator>,
        sums: Option<&mut Sums<T::Accumulator>>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        if span.pairs == 0 {
            return;
        }
        let is_gated = self.b.is_some() || self.c.is_some();
        let walk = Walk { passes: self, span, rows, waiting, sums };
        match (rows.are_plain(), self.width) {
            (true, 4) if !is_gated => simd.apart(Compiled::<_, true, 4, false>(walk)),
            (true, 3) => simd.apart(Compiled::<_, true, 3, true>(walk)),
            (true, _) => simd.apart(Compiled::<_, true, MAX_WIDTH, true>(walk)),
            (false, _) => simd.apart(Compiled::<_, false, MAX_WIDTH, true>(walk)),
        }
    }

    /// A pair's rows. `PLAIN`: they are a block, each has dy, and nothing is added to dx. `WIDTH`: see [`Self::width`]. Unless `GATED`
    /// there are no gates.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn column<S, const PLAIN: bool, const WIDTH: usize, const GATED: bool>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        column: PairAt,
        waiting: &mut Waiting<T::Accumulator>,
        sums: Option<&mut Sums<T::Accumulator>>,
        passed: &mut Passed<S>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            if GATED && self.b.is_some() {
                self.convolve::<S, PLAIN, WIDTH, true>(simd, rows, column, passed);
            } else {
                self.convolve::<S, PLAIN, WIDTH, false>(simd, rows, column, passed);
            }
            simd.to_memory(passed);
            // As many vectors have their SiLU computed together as there are registers for.
            if const { !PLAIN } {
                self.gradients::<S, 2, PLAIN, WIDTH, GATED>(simd, rows, column, waiting, passed);
            } else if const { S::LANES == WIDE_LANES } {
                self.gradients::<S, { 2 * INTERLEAVED }, PLAIN, WIDTH, GATED>(
                    simd, rows, column, waiting, passed,
                );
            } else {
                self.gradients::<S, INTERLEAVED, PLAIN, WIDTH, GATED>(simd, rows, column, waiting, passed);
            }
            simd.to_memory(passed);
            if let Some(sums) = sums {
                self.add_sums::<S, PLAIN, WIDTH>(simd, rows, column, passed, sums);
                simd.to_memory(passed);
            }
            self.store_dx::<S, PLAIN, WIDTH, GATED>(simd, rows, column, passed);
        }
    }

    /// Rows of dy and dx: known when the body is compiled, but for ends.
    #[inline(always)]
    fn count<const PLAIN: bool>(rows: &BlockRows<T>) -> usize {
        if PLAIN { BLOCK } else { rows.count }
    }

    /// The first pass: x, widened, which a gate multiplies if it is there and `GATED`, and its convolution.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn convolve<S, const PLAIN: bool, const WIDTH: usize, const GATED: bool>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        column: PairAt,
        passed: &mut Passed<S>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let ahead = column.ahead(self.x_stride);
        let (width, before) = (self.width::<WIDTH>(), self.width::<WIDTH>() - 1);
        // By age: 0 is the newest position.
        let mut window = [[simd.splat(T::Accumulator::ZERO); 2]; WIDTH];
        // SAFETY: the caller's promise; channels lie in rows of `GROUP`.
        unsafe {
            let bias = load_lanes(simd, self.weights.bias().add(column.channel));
            let taps = self.taps::<S, WIDTH>(simd, column);
            // The ages index several arrays, each up to a limit of its own.
            #[allow(clippy::needless_range_loop)]
            for age in 0..WIDTH {
                if age < before {
                    window[age] = self.tap::<S, GATED>(simd, rows, before - 1 - age, column.offset);
                    passed.x[before - 1 - age] = window[age];
                }
            }
            for row in 0..Self::count::<PLAIN>(rows) {
                let source = rows.x[row + before].wrapping_add(column.offset);
                prefetch_pair(simd, source.wrapping_offset(ahead));
                for age in (1..WIDTH).rev() {
                    window[age] = window[age - 1];
                }
                window[0] = self.tap::<S, GATED>(simd, rows, row + before, column.offset);
                passed.x[row + before] = window[0];
                for part in 0..2 {
                    let mut pre = bias[part];
                    for age in (0..WIDTH).rev() {
                        if age < width {
                            pre = simd.mul_add(taps[width - 1 - age][part], window[age][part], pre);
                        }
                    }
                    passed.pre[row][part] = pre;
                }
            }
        }
    }

    /// What a tap reads of a row.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn tap<S, const GATED: bool>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        row: usize,
        offset: usize,
    ) -> [S::Vector; 2]
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise; a gate has a row for each of x.
        unsafe {
            let x = T::load_pair(simd, rows.x[row].add(offset));
            if GATED && let Some(gate) = &self.b {
                return gate.times_pair(simd, rows.b[row].add(offset), x);
            }
            x
        }
    }

    /// The second pass: g, `N / 2` rows at a time, after that of the last `width - 1` rows, which wait for it between blocks.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn gradients<S, const N: usize, const PLAIN: bool, const WIDTH: usize, const GATED: bool>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        column: PairAt,
        waiting: &mut Waiting<T::Accumulator>,
        passed: &mut Passed<S>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let ahead = column.ahead(self.dy_stride);
        let count = Self::count::<PLAIN>(rows);
        let zero = simd.splat(T::Accumulator::ZERO);
        // SAFETY: the caller's promise; channels lie in rows of `GROUP`.
        unsafe {
            for first in (0..count).step_by(N / 2) {
                let mut derivatives = [zero; N];
                if self.silu {
                    for (pre, pair) in derivatives.chunks_exact_mut(2).zip(&passed.pre[first..]) {
                        pre.copy_from_slice(pair);
                    }
                    derivatives = simd.silu_derivative::<T, N>(self.exact_derivative, derivatives);
                }
                // g of rows that take no part is zero, whatever they hold.
                let mut g = [zero; N];
                for row in 0..N / 2 {
                    let dy = rows.dy[first + row];
                    if PLAIN || !dy.is_null() {
                        if let Some(given) = rows.g {
                            let given = given[first + row].add(column.channel);
                            [g[2 * row], g[2 * row + 1]] = load_lanes(simd, given);
                            continue;
                        }
                        let dy = dy.wrapping_add(column.offset);
                        prefetch_pair(simd, dy.wrapping_offset(ahead));
                        [g[2 * row], g[2 * row + 1]] = T::load_pair(simd, dy);
                    }
                }
                if GATED && let Some(gate) = &self.c {
                    self.gate::<S, N>(simd, gate, rows, column, first, passed, &mut g);
                }
                if self.silu {
                    for i in 0..N {
                        if PLAIN || !rows.dy[first + i / 2].is_null() {
                            g[i] = simd.mul(g[i], derivatives[i]);
                        }
                    }
                }
                for (row, g) in g.chunks_exact(2).enumerate() {
                    passed.g[BEFORE + first + row] = [g[0], g[1]];
                }
            }
            let before = self.width::<WIDTH>() - 1;
            for (age, waiting) in waiting[..before].iter_mut().enumerate() {
                let waiting = waiting.as_mut_ptr().add(column.channel);
                passed.g[BEFORE - 1 - age] = load_lanes(simd, waiting);
            }
            for (age, waiting) in waiting[..before].iter_mut().enumerate() {
                let waiting = waiting.as_mut_ptr().add(column.channel);
                store_lanes(simd, waiting, passed.g[BEFORE + count - 1 - age]);
            }
        }
    }

    /// Multiplies `N / 2` rows of dy with their gate, and stores dC.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn gate<S, const N: usize>(
        &self,
        simd: S,
        gate: &Gate<T>,
        rows: &BlockRows<T>,
        column: PairAt,
        first: usize,
        passed: &Passed<S>,
        dy: &mut [S::Vector; N],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise; a gate has a row for each of dy.
        unsafe {
            if let Some(dc) = &rows.dc {
                let mut activations = [simd.splat(T::Accumulator::ZERO); N];
                for (activation, pair) in activations.chunks_exact_mut(2).zip(&passed.pre[first..]) {
                    activation.copy_from_slice(pair);
                }
                if self.silu {
                    activations = simd.silu::<T, N>(activations);
                }
                for (row, pair) in activations.chunks_exact(2).enumerate() {
                    let kept = gate.kept_pair(simd, [pair[0], pair[1]]);
                    let product = [simd.mul(kept[0], dy[2 * row]), simd.mul(kept[1], dy[2 * row + 1])];
                    put::<S, T>(simd, dc, first + row, column.channel, product);
                }
            }
            for (row, dy) in dy.chunks_exact_mut(2).enumerate() {
                let factors = rows.c[first + row];
                if !factors.is_null() {
                    dy.copy_from_slice(&gate.times_pair(simd, factors.add(column.offset), [dy[0], dy[1]]));
                }
            }
        }
    }

    /// The third pass: what the rows add to dweight and dbias.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn add_sums<S, const PLAIN: bool, const WIDTH: usize>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        column: PairAt,
        passed: &Passed<S>,
        sums: &mut Sums<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let width = self.width::<WIDTH>();
        let mut dweight = [[simd.splat(T::Accumulator::ZERO); 2]; WIDTH];
        // SAFETY: the caller's promise; channels lie in rows of `GROUP`.
        unsafe {
            for tap in 0..WIDTH {
                if tap < width {
                    dweight[tap] = load_lanes(simd, sums[tap].as_ptr().add(column.channel));
                }
            }
            let mut dbias = load_lanes(simd, sums[width].as_ptr().add(column.channel));
            for row in 0..Self::count::<PLAIN>(rows) {
                let g = passed.g[BEFORE + row];
                for part in 0..2 {
                    for (tap, sum) in dweight.iter_mut().enumerate() {
                        if tap < width {
                            sum[part] = simd.mul_add(g[part], passed.x[row + tap][part], sum[part]);
                        }
                    }
                    dbias[part] = simd.add(dbias[part], g[part]);
                }
            }
            for tap in 0..WIDTH {
                if tap < width {
                    store_lanes(simd, sums[tap].as_mut_ptr().add(column.channel), dweight[tap]);
                }
            }
            store_lanes(simd, sums[width].as_mut_ptr().add(column.channel), dbias);
        }
    }

    /// The last pass: dx, `width - 1` rows late.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn store_dx<S, const PLAIN: bool, const WIDTH: usize, const GATED: bool>(
        &self,
        simd: S,
        rows: &BlockRows<T>,
        column: PairAt,
        passed: &Passed<S>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (width, count) = (self.width::<WIDTH>(), Self::count::<PLAIN>(rows));
        // SAFETY: the caller's promise.
        unsafe {
            let taps = self.taps::<S, WIDTH>(simd, column);
            let together = if PLAIN { TOGETHER } else { 1 };
            for first in (0..count).step_by(together) {
                let mut dx = [[simd.splat(T::Accumulator::ZERO); 2]; TOGETHER];
                let dx = &mut dx[..together];
                for (row, dx) in (first..).zip(dx.iter_mut()) {
                    for part in 0..2 {
                        // The last tap's g is the oldest.
                        for tap in (0..WIDTH).rev() {
                            if tap < width {
                                let g = passed.g[BEFORE + row - tap][part];
                                dx[part] = simd.mul_add(taps[tap][part], g, dx[part]);
                            }
                        }
                    }
                    if !PLAIN && !rows.added[row].is_null() {
                        let added = T::load_pair(simd, rows.added[row].add(column.offset));
                        *dx = [simd.add(dx[0], added[0]), simd.add(dx[1], added[1])];
                    }
                }
                if GATED && let Some(gate) = &self.b {
                    for (row, dx) in (first..).zip(dx.iter_mut()) {
                        let product = gate.kept_pair(simd, *dx);
                        if let Some(db) = &rows.db {
                            let x = T::load_pair(simd, rows.x[row].add(column.offset));
                            let db_pair = [simd.mul(x[0], product[0]), simd.mul(x[1], product[1])];
                            put::<S, T>(simd, db, row, column.channel, db_pair);
                        }
                        let b = T::load_pair(simd, rows.b[row].add(column.offset));
                        *dx = [simd.mul(b[0], product[0]), simd.mul(b[1], product[1])];
                    }
                }
                for (row, &dx) in (first..).zip(dx.iter()) {
                    put::<S, T>(simd, &rows.dx, row, column.channel, dx);
                }
            }
        }
    }

    /// A pair's taps, in their own order: dx takes the first with the newest g, the convolution the last with the newest
    /// x.
    ///
    /// # Safety
    /// As for [`Self::walk`].
    #[inline(always)]
    unsafe fn taps<S, const WIDTH: usize>(&self, simd: S, column: PairAt) -> [[S::Vector; 2]; WIDTH]
    where
        S: Simd<Scalar = T::Accumulator>,
    {
        let mut taps = [[simd.splat(T::Accumulator::ZERO); 2]; WIDTH];
        for (tap, pair) in taps.iter_mut().enumerate() {
            if tap < self.width::<WIDTH>() {
                // SAFETY: channels lie in rows of `GROUP`.
                *pair = unsafe { load_lanes(simd, self.weights.tap(tap).add(column.channel)) };
            }
        }
        taps
    }
}

/// What passes over a pair's rows leave for the next one.
struct Passed<S: Simd> {
    /// With `width - 1` rows of history.
    x: [[S::Vector; 2]; ROWS],
    pre: [[S::Vector; 2]; BLOCK],
    /// From `BEFORE` on, with the `width - 1` rows before.
    g: [[S::Vector; 2]; ROWS],
}

impl<S: Simd> Passed<S> {
    #[inline(always)]
    fn new(simd: S) -> Self {
        let zero = [simd.splat(S::Scalar::ZERO); 2];
        Passed { x: [zero; ROWS], pre: [zero; BLOCK], g: [zero; ROWS] }
    }
}
