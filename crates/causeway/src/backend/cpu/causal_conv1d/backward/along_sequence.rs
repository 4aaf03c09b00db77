//! Backward with vectors along the sequence; see [`super::super::tile`].
//!
//! ```text
//! positions    from - (width-1)          from                     to       to + (width-1)
//!                    |  history  |  tile | tile | ... | tile  |   halo   |
//! g = dy · act'(pre)               computed here, and again past the end: dx needs it
//! dx                 |- initial -|---------- this piece ------|
//! ```
//!
//! dx lags g by `width - 1` positions. Sums for dweight and dbias are taken over the piece, not over its halo;
//! they are kept per chunk of columns, and chunks are added in a fixed order.

use std::ops::Range;

use super::super::partition::Partition;
use super::super::registers::{self, MAX_WIDTH, Output, with_taps};
use super::super::sequences::Piece;
use super::super::tile::{self, Finish, TILE};
use super::Problem;
use super::registers::{Gradient, gradient};
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Part, Simd};

/// One channel at a time, vectors along the sequence; see [`super::super::tile`].
pub(super) struct AlongSequence<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
}

/// What a task works in.
struct Buffers<A> {
    /// Weights of one channel, and the same from the last to the first.
    weight: Vec<A>,
    reversed: Vec<A>,
    bias: A,
    /// `width - 1` positions of history, then a tile.
    x: Vec<A>,
    /// As x.
    g: Vec<A>,
    /// A tile.
    dy: Vec<A>,
    /// A tile.
    dx: Vec<A>,
    /// A tile of what a gate's gradient is made of.
    gate: Vec<A>,
}

/// Positions of a channel.
struct At<'a, T: Number> {
    kernel: &'a AlongSequence<T>,
    piece: &'a Piece,
    channel: i64,
    from: i64,
    count: usize,
    buffers: &'a mut Buffers<T::Accumulator>,
}

/// What [`AlongSequence::tile`] takes.
struct Tile<'a, T: Number> {
    at: At<'a, T>,
    sums: &'a mut [f64],
}

impl<S: Simd<Scalar = T::Accumulator>, T: Lanes<S>> Part<S> for Tile<'_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let At { kernel, piece, channel, from, count, buffers } = self.at;
        kernel.tile(simd, piece, channel, from, count, buffers, self.sums);
    }
}

/// What [`AlongSequence::write_dx`] takes.
struct WriteDx<'a, T: Number> {
    at: At<'a, T>,
    written: i64,
}

impl<S: Simd<Scalar = T::Accumulator>, T: Lanes<S>> Part<S> for WriteDx<'_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let WriteDx { at: At { kernel, piece, channel, from, count, buffers }, written } = self;
        let before = kernel.problem.width as i64 - 1;
        let first = from.max(written).min(from + count as i64);
        let dx = &mut buffers.dx[(first - from) as usize..count];
        kernel.dfinal(piece, channel, first, dx, |dx, state| *dx += state);
        let inside = (piece.from - first).clamp(0, dx.len() as i64) as usize;
        kernel.write_dinitial(piece, channel, first - piece.start + before, &dx[..inside]);
        let index = [piece.batch, channel, first + inside as i64];
        let dx = &mut dx[inside..];
        // SAFETY: the positions lie in the piece, and no other task writes to them.
        unsafe {
            if let Some(gate) = kernel.problem.history.gate {
                gate.enter(dx);
                if let Some(db) = kernel.problem.db {
                    let x = &kernel.problem.history.x;
                    let products = &mut buffers.gate[..dx.len()];
                    tile::gather(simd, x.at(index), x.strides[2], products);
                    products.iter_mut().zip(&*dx).for_each(|(product, &dx)| *product = *product * dx);
                    tile::scatter(simd, products, db.at(index), db.strides[2], false);
                }
                gate.multiply(simd, index, 2, dx);
            }
            let target = kernel.problem.dx.at(index);
            tile::scatter(simd, dx, target, kernel.problem.dx.strides[2], kernel.problem.stream);
        };
    }
}

impl<T: Number> Kernel for AlongSequence<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let mut buffers = self.buffers();
        let terms = self.problem.width + 1;
        let mut sums = vec![0.0; self.partition.group() * terms];
        let mut pieces = Vec::new();
        let (channels, chunk) = self.partition.task(task);
        for column in self.partition.columns(chunk) {
            self.problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for (channel, sums) in channels.clone().zip(sums.chunks_exact_mut(terms)) {
                self.load_parameters(channel, &mut buffers);
                for piece in &pieces {
                    if piece.is_padding() {
                        self.padding(piece, channel);
                    } else {
                        self.piece(simd, piece, channel, &mut buffers, sums);
                    }
                }
            }
        }
        self.put_sums(chunk, channels, &sums);
        simd.fence();
    }
}

impl<T: Number> AlongSequence<T> {
    #[inline(never)]
    fn buffers(&self) -> Buffers<T::Accumulator> {
        let (zero, before) = (T::Accumulator::ZERO, self.problem.width - 1);
        let tile = self.partition.tile(before);
        Buffers {
            weight: vec![zero; self.problem.width],
            reversed: vec![zero; self.problem.width],
            bias: zero,
            x: vec![zero; before + tile],
            g: vec![zero; before + tile],
            dy: vec![zero; tile],
            dx: vec![zero; tile],
            gate: vec![zero; tile],
        }
    }

    #[inline(never)]
    fn put_sums(&self, chunk: i64, channels: Range<i64>, sums: &[f64]) {
        for (channel, sums) in channels.zip(sums.chunks_exact(self.problem.width + 1)) {
            for (term, sum) in sums.iter().enumerate() {
                // SAFETY: each task has its own pair of chunk and channel; the sums outlive the tasks.
                unsafe { self.problem.sums.put(chunk, term, channel, std::slice::from_ref(sum)) };
            }
        }
    }

    #[inline(never)]
    fn load_parameters(&self, channel: i64, buffers: &mut Buffers<T::Accumulator>) {
        for (tap, weight) in buffers.weight.iter_mut().enumerate() {
            // SAFETY: channel and tap lie in the weight.
            *weight = unsafe { self.problem.weight.read(channel, tap as i64) };
        }
        for (reversed, weight) in buffers.reversed.iter_mut().rev().zip(&buffers.weight) {
            *reversed = *weight;
        }
        // SAFETY: the channel lies in the bias.
        buffers.bias =
            self.problem.bias.map_or(T::Accumulator::ZERO, |bias| unsafe { bias.read(channel, 0) });
    }

    /// Padding takes no gradient, and neither do initial states before it.
    #[inline(never)]
    fn padding(&self, piece: &Piece, channel: i64) {
        for position in piece.from..piece.to {
            // SAFETY: the position lies in the row, and no other task writes to it.
            unsafe { *self.problem.dx.at([piece.batch, channel, position]) = T::ZERO };
            for target in [self.problem.db, self.problem.dc].into_iter().flatten() {
                // SAFETY: as above; gradients of gates have the shape of x.
                unsafe { *target.at([piece.batch, channel, position]) = T::ZERO };
            }
        }
        if let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) {
            for column in 0..self.problem.width as i64 - 1 {
                // SAFETY: the states have a row per sequence, written with the sequence's first piece only.
                unsafe { *states.at([piece.sequence, channel, column]) = T::ZERO };
            }
        }
    }

    #[inline(always)]
    fn piece<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        buffers: &mut Buffers<T::Accumulator>,
        sums: &mut [f64],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        let first = piece.from - before as i64;
        problem.history.values_from(&problem.sequences, piece, channel, first, &mut buffers.x[..before]);
        buffers.g[..before].fill(T::Accumulator::ZERO);
        let strides = [problem.history.x.strides[2], problem.dy.strides[2], problem.dx.strides[2]];
        let plain = problem.history.gate.is_none() && problem.gate.is_none() && problem.g.is_none();
        let neighbours = strides == [1; 3] && plain;
        let mut from = piece.from;
        // dx is done up to here.
        let mut written = from - before as i64;
        while from < piece.to {
            let mut count = (piece.to - from) as usize;
            if neighbours {
                let target = problem.dx.at([piece.batch, channel, from]);
                let unaligned = registers::unaligned(target, problem.stream);
                let whole = registers::whole_pairs(simd, problem.width, count);
                if unaligned > 0 {
                    count = count.min(unaligned);
                } else if whole > 0 {
                    self.vectors(simd, piece, channel, from, whole, buffers, sums);
                    from += whole as i64;
                    written = from;
                    continue;
                }
            }
            count = count.min(TILE);
            simd.apart(Tile { at: At { kernel: self, piece, channel, from, count, buffers }, sums });
            self.write_dx(simd, piece, channel, written, from - before as i64, count, buffers);
            from += count as i64;
            written = written.max(from - before as i64);
        }
        if written < piece.to {
            self.g_after(simd, piece, channel, piece.to, buffers);
            self.convolve_dx(simd, before, buffers);
            self.write_dx(simd, piece, channel, written, piece.to - before as i64, before, buffers);
        }
    }

    /// Whole pairs of neighbours, from memory to the sums and to dx, and dx that has waited for their g.
    #[inline(always)]
    fn vectors<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        from: i64,
        count: usize,
        buffers: &mut Buffers<T::Accumulator>,
        sums: &mut [f64],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        // All of them are copied, though `before` count: a few instructions instead of calls.
        let mut ends = [[T::Accumulator::ZERO; MAX_WIDTH - 1]; 6];
        ends[0].copy_from_slice(&buffers.x[..MAX_WIDTH - 1]);
        ends[1].copy_from_slice(&buffers.g[..MAX_WIDTH - 1]);
        let last = from + count as i64 - before as i64;
        problem.history.values_from(&problem.sequences, piece, channel, last, &mut buffers.x[..before]);
        self.dfinal(piece, channel, last, &mut ends[5][..before], |added, state| *added = state);
        self.g_after(simd, piece, channel, from + count as i64, buffers);
        ends[4].copy_from_slice(&buffers.g[before..before + MAX_WIDTH - 1]);
        let [x_before, g_before, g_first, g_last, g_after, added] =
            ends.each_mut().map(|values| &mut values[..before]);
        let index = [piece.batch, channel, from];
        let work = Gradient {
            silu: problem.silu,
            exact_derivative: problem.exact_derivative,
            weight: &buffers.weight,
            bias: buffers.bias,
            x: problem.history.x.at(index),
            dy: problem.dy.at(index),
            x_before,
            x_last: &buffers.x[..before],
            g_first,
            g_last,
            g_after,
            added,
            dx: Output { pointer: problem.dx.at(index), count, stream: problem.stream },
            sums,
        };
        // SAFETY: these are positions of the row, whole pairs of them; dy and dx have the shape of x, and no other
        // task writes to these positions of dx.
        unsafe { with_taps!(problem.width, gradient::<S, T>(simd, work)) };
        if from > piece.from || problem.dinitial_states.is_some() {
            buffers.g[..before].copy_from_slice(g_before);
            buffers.g[before..2 * before].copy_from_slice(g_first);
            self.convolve_dx(simd, before, buffers);
            let waiting = from - before as i64;
            self.write_dx(simd, piece, channel, waiting, waiting, before, buffers);
        }
        buffers.g[..MAX_WIDTH - 1].copy_from_slice(&ends[3]);
    }

    /// What the final states add to dx from a position on, where they add anything: the last `width - 1` positions of a sequence are
    /// its final states too.
    #[inline(never)]
    fn dfinal(
        &self,
        piece: &Piece,
        channel: i64,
        first: i64,
        dx: &mut [T::Accumulator],
        put: fn(&mut T::Accumulator, T::Accumulator),
    ) {
        let Some(states) = &self.problem.dfinal_states else { return };
        let column = first - (piece.end - (self.problem.width as i64 - 1));
        for (dx, column) in dx.iter_mut().zip(column..).skip((-column).max(0) as usize) {
            // SAFETY: positions end before the piece does, so that the column is one of the states.
            put(dx, unsafe { *states.at([piece.sequence, channel, column]) }.widen());
        }
    }

    /// A tile of any stride, into the sums and, `width - 1` positions late, into `buffers.dx`.
    #[inline(always)]
    fn tile<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        from: i64,
        count: usize,
        buffers: &mut Buffers<T::Accumulator>,
        sums: &mut [f64],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        let x = problem.history.x.at([piece.batch, channel, from]);
        let dy = problem.dy.at([piece.batch, channel, from]);
        // SAFETY: `from .. from + count` are positions of the row; dy has the shape of x, and so has g, whose positions are neighbours.
        unsafe {
            tile::gather(simd, x, problem.history.x.strides[2], &mut buffers.x[before..before + count]);
            match problem.g {
                None => tile::gather(simd, dy, problem.dy.strides[2], &mut buffers.dy[..count]),
                Some(g) => {
                    let g = std::slice::from_raw_parts(g.at([piece.batch, channel, from]), count);
                    buffers.dy[..count].copy_from_slice(g);
                }
            }
            self.gates(simd, [piece.batch, channel, from], count, buffers);
        }
        self.gradient(simd, count, buffers);
        tile::correlate(simd, &buffers.g[before..], &buffers.x, count, sums);
        self.convolve_dx(simd, count, buffers);
        buffers.x.copy_within(count..count + before, 0);
        buffers.g.copy_within(count..count + before, 0);
    }

    /// Multiplies a tile's x and dy with the gates, and writes dC of it.
    ///
    /// # Safety
    /// So many positions from the index on lie in the piece.
    #[inline(always)]
    unsafe fn gates<S>(&self, simd: S, index: [i64; 3], count: usize, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let before = problem.width - 1;
        // SAFETY: the caller's promise; gates and their gradients have the shape of x, and no other task writes there.
        unsafe {
            if let Some(gate) = problem.history.gate {
                gate.multiply(simd, index, 2, &mut buffers.x[before..before + count]);
            }
            let Some(gate) = problem.gate else { return };
            if let Some(dc) = problem.dc {
                let Buffers { weight, bias, x, dy, gate: activation, .. } = &mut *buffers;
                let finish = Finish::activation(problem.silu);
                tile::convolve::<S, T>(simd, (weight, *bias), x, count, activation, finish);
                let activation = &mut activation[..count];
                gate.enter(activation);
                activation.iter_mut().zip(dy).for_each(|(activation, dy)| *activation = *activation * *dy);
                tile::scatter(simd, activation, dc.at(index), dc.strides[2], false);
            }
            gate.multiply(simd, index, 2, &mut buffers.dy[..count]);
        }
    }

    /// dx of a tile, from its g.
    #[inline(always)]
    fn convolve_dx<S>(&self, simd: S, count: usize, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
    {
        let Buffers { reversed, g, dx, .. } = buffers;
        tile::convolve::<S, T>(simd, (reversed, T::Accumulator::ZERO), g, count, dx, Finish::Keep);
    }

    /// g of a tile, from its x and dy.
    #[inline(always)]
    fn gradient<S>(&self, simd: S, count: usize, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Buffers { weight, bias, x, g, dy, .. } = buffers;
        let g = &mut g[self.problem.width - 1..];
        if self.problem.silu {
            let finish = Finish::Derivative { exact: self.problem.exact_derivative, dy };
            tile::convolve::<S, T>(simd, (weight, *bias), x, count, g, finish);
        } else {
            g[..count].copy_from_slice(&dy[..count]);
        }
    }

    /// g of the `width - 1` positions from `from` on, after that of the positions before: zero where they take no part in
    /// the piece.
    #[inline(always)]
    fn g_after<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        from: i64,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        if self.load_after(piece, channel, from, buffers) {
            self.gradient(simd, self.problem.width - 1, buffers);
            self.clear_after(piece, from, buffers);
        }
    }

    /// x and dy for [`Self::g_after`], if a position takes part; else g.
    #[inline(never)]
    fn load_after(
        &self,
        piece: &Piece,
        channel: i64,
        from: i64,
        buffers: &mut Buffers<T::Accumulator>,
    ) -> bool {
        let problem = &self.problem;
        let before = problem.width - 1;
        let includes = |i: usize| piece.includes(&problem.sequences, from + i as i64);
        if !(0..before).any(includes) {
            buffers.g[before..2 * before].fill(T::Accumulator::ZERO);
            return false;
        }
        let x = &mut buffers.x[before..2 * before];
        problem.history.values_from(&problem.sequences, piece, channel, from, x);
        for i in 0..before {
            buffers.dy[i] = T::Accumulator::ZERO;
            if includes(i) {
                let index = [piece.batch, channel, from + i as i64];
                // SAFETY: a position that takes part lies in the row.
                buffers.dy[i] = unsafe {
                    match (problem.g, problem.gate) {
                        (Some(g), _) => *g.at(index),
                        (None, Some(gate)) => gate.times(index, (*problem.dy.at(index)).widen()),
                        (None, None) => (*problem.dy.at(index)).widen(),
                    }
                };
            }
        }
        true
    }

    /// Clears g of positions that take no part.
    #[inline(never)]
    fn clear_after(&self, piece: &Piece, from: i64, buffers: &mut Buffers<T::Accumulator>) {
        let before = self.problem.width - 1;
        for i in 0..before {
            if !piece.includes(&self.problem.sequences, from + i as i64) {
                buffers.g[before + i] = T::Accumulator::ZERO;
            }
        }
    }

    /// Takes gradients before the piece to dinitial_states, from a column on, if it is the sequence's first.
    #[inline(never)]
    fn write_dinitial(&self, piece: &Piece, channel: i64, column: i64, dx: &[T::Accumulator]) {
        let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) else { return };
        for (&value, column) in dx.iter().zip(column..) {
            // SAFETY: positions before the piece are at most `width - 1` before the sequence; only the
            // sequence's first piece writes here.
            unsafe { *states.at([piece.sequence, channel, column]) = T::narrow(value) };
        }
    }

    /// Writes the gradients of `count` positions from `from` on, which are in `buffers.dx`, but for those before `written`:
    /// those of the piece to dx, those before the sequence to dinitial_states.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn write_dx<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        written: i64,
        from: i64,
        count: usize,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        simd.apart(WriteDx { at: At { kernel: self, piece, channel, from, count, buffers }, written });
    }
}
