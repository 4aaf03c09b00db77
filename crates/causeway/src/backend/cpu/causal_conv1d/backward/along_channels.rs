//! Backward with vectors along the channels; see [`super::super::rows`] for the traversal.
//!
//! ```text
//! row of g     t = from ................................ to-1 | to ... to+width-2
//! row of dx    p = t-(width-1): initial states | this piece ..................... |
//! ```
//!
//! dx lags g by `width - 1` rows; g of the last rows waits in `g`, between blocks too. Past the piece's end, g is
//! computed again for dx, but not summed.

use std::ops::Range;

use super::super::blocks::{BLOCK, GROUP, MAX_PAIR, MAX_WIDTH, ROWS, Tail};
use super::super::gates::GateBuffers;
use super::super::partition::Partition;
use super::super::rows::{self, Destination, Finished, HistoryRows, TaskWeights, Weights};
use super::super::sequences::Piece;
use super::Problem;
use super::passes::{BlockRows, Passes, Sums, Waiting};
use crate::backend::cpu::simd::{Accumulator, Kernel, Lanes, Number, Simd};

/// A group of channels of some segments per task.
pub(super) struct AlongChannels<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
    pub weights: Weights<T::Accumulator>,
}

/// Adds the sums of a segment to those of the task, in f64, and starts again: the error does not grow with the length of
/// the sequence.
#[inline(never)]
fn flush<A: Accumulator>(sums: &mut [[A; GROUP]], totals: &mut [[f64; GROUP]]) {
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total += std::mem::replace(sum, A::ZERO).to_f64();
        }
    }
}

/// Takes values from the order of the lanes of pairs that alternate to that of the channels.
#[inline(never)]
fn in_order(values: &mut [f64; GROUP], pair: usize) {
    for values in values.chunks_exact_mut(pair) {
        let mut lanes = [0.0; MAX_PAIR];
        lanes[..pair].copy_from_slice(values);
        for i in 0..pair / 2 {
            values[2 * i] = lanes[i];
            values[2 * i + 1] = lanes[pair / 2 + i];
        }
    }
}

/// What a task works in.
struct Buffers<T: Number> {
    history: HistoryRows<T>,
    x_tail: Tail<T>,
    dy_tail: Tail<T>,
    added_tail: Tail<T>,
    g: Waiting<T::Accumulator>,
    sums: Sums<T::Accumulator>,
    /// Gradients of the final states.
    dfinal: [[T; GROUP]; MAX_WIDTH - 1],
    dx: Finished<T>,
    gates: Option<Box<GateBuffers<T>>>,
    /// Rows of dB and of dC, for kernels with gates.
    dgates: Option<Box<[Finished<T>; 2]>>,
}

impl<T: Number> Buffers<T> {
    #[inline(never)]
    fn new(width: usize, gated: bool) -> Self {
        let zero = T::Accumulator::ZERO;
        Buffers {
            history: HistoryRows::new(width),
            x_tail: Tail::new(),
            dy_tail: Tail::new(),
            added_tail: Tail::new(),
            g: [[zero; GROUP]; MAX_WIDTH - 1],
            sums: [[zero; GROUP]; MAX_WIDTH + 1],
            dfinal: [[T::ZERO; GROUP]; MAX_WIDTH - 1],
            dx: [[T::ZERO; GROUP]; BLOCK],
            gates: gated.then(GateBuffers::new),
            dgates: gated.then(|| Box::new([[[T::ZERO; GROUP]; BLOCK]; 2])),
        }
    }
}

impl<T: Number> Kernel for AlongChannels<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, width) = (&self.problem, self.problem.width);
        let (channels, chunk) = self.partition.task(task);
        let count = channels.clone().count();
        let weights = self.weights.of_task::<S, T>(
            simd,
            &problem.weight,
            problem.bias.as_ref(),
            (self.partition.dim, width),
            channels.start,
        );
        let gated = problem.history.gate.is_some() || problem.gate.is_some();
        let mut buffers = Buffers::new(width, gated);
        let mut totals = vec![[0.0; GROUP]; width + 1];
        let mut pieces = Vec::new();
        for column in self.partition.columns(chunk) {
            problem.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for piece in &pieces {
                if piece.is_padding() {
                    self.padding(piece, channels.start, count);
                } else {
                    self.piece(simd, piece, channels.start, count, weights, &mut buffers);
                }
            }
            flush(&mut buffers.sums[..=width], &mut totals);
        }
        for (term, totals) in totals.iter_mut().enumerate() {
            if T::ALTERNATES {
                in_order(totals, 2 * S::LANES);
            }
            // SAFETY: each task has its own pair of chunk and channels; the sums outlive the tasks.
            unsafe { problem.sums.put(chunk, term, channels.start, &totals[..count]) };
        }
        simd.fence();
    }
}

impl<T: Number> AlongChannels<T> {
    /// Positions of history.
    #[inline(always)]
    fn before(&self) -> i64 {
        self.problem.width as i64 - 1
    }

    /// Padding takes no gradient, and neither do initial states before it.
    #[inline(never)]
    fn padding(&self, piece: &Piece, first: i64, channels: usize) {
        for channel in first..first + channels as i64 {
            for position in piece.from..piece.to {
                let gates = [self.problem.db, self.problem.dc].into_iter().flatten();
                for target in gates.chain([self.problem.dx]) {
                    // SAFETY: the position lies in the row, and no other task writes to it.
                    unsafe { *target.at([piece.batch, channel, position]) = T::ZERO };
                }
            }
            if let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) {
                for column in 0..self.before() {
                    // SAFETY: the states have a row per sequence, written with its first piece only.
                    unsafe { *states.at([piece.sequence, channel, column]) = T::ZERO };
                }
            }
        }
    }

    #[inline(always)]
    fn piece<S>(
        &self,
        simd: S,
        piece: &Piece,
        first: i64,
        channels: usize,
        weights: TaskWeights<'_, T::Accumulator>,
        buffers: &mut Buffers<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        buffers.history.load(&problem.history, &problem.sequences, piece, first..first + channels as i64);
        self.load_dfinal(piece, first, channels, buffers);
        buffers.g[..self.problem.width - 1].fill([T::Accumulator::ZERO; GROUP]);
        let passes = Passes::<T> {
            width: self.problem.width,
            silu: problem.silu,
            exact_derivative: problem.exact_derivative,
            x_stride: problem.history.x.strides[2],
            dy_stride: problem.dy.strides[2],
            weights,
            b: problem.history.gate,
            c: problem.gate,
        };
        // The rows past the end are a block of their own.
        let mut from = piece.from;
        loop {
            let counts = from < piece.to;
            let to = if counts { piece.to.min(from + BLOCK as i64) } else { piece.to + self.before() };
            let mut rows = self.rows(piece, first, from, to, buffers);
            let late = from - self.before()..to - self.before();
            // dB has the rows of dx, and dC those of dy.
            let at = (piece.batch, first);
            let of_late = |tensor| Destination::new(tensor, at, late.clone(), piece.from, problem.stream);
            let (of_dx, of_db) = (of_late(&problem.dx), problem.db.as_ref().map(of_late));
            let dc = problem.dc.as_ref().filter(|_| counts);
            let of_dc = dc.map(|dc| Destination::new(dc, at, from..to, from, problem.stream));
            for span in rows::spans(simd, channels) {
                if span.is_tail && span.pairs > 0 {
                    // SAFETY: the rows hold the channels of the task; the rest is less than a pair.
                    unsafe {
                        rows.x = buffers.x_tail.copy(&rows.x, span.first, channels);
                        rows.dy = buffers.dy_tail.copy(&rows.dy, span.first, channels);
                        rows.added = buffers.added_tail.copy(&rows.added, span.first, channels);
                        if let Some(buffers) = &mut buffers.gates {
                            rows.b = buffers.b_tail.copy(&rows.b, span.first, channels);
                            rows.c = buffers.c_tail.copy(&rows.c, span.first, channels);
                        }
                    }
                }
                rows.dx = of_dx.of_span(span, &mut buffers.dx);
                if let Some([db, dc]) = buffers.dgates.as_deref_mut() {
                    rows.db = of_db.as_ref().map(|of_db| of_db.of_span(span, db));
                    rows.dc = of_dc.as_ref().map(|of_dc| of_dc.of_span(span, dc));
                }
                // SAFETY: rows hold whole pairs from the span's first channel on.
                unsafe {
                    let sums = if counts { Some(&mut buffers.sums) } else { None };
                    passes.walk(simd, span, &rows, &mut buffers.g, sums);
                }
            }
            // SAFETY: the channels lie in dx and in the gradients of gates, and no other task writes to them at these positions.
            unsafe {
                if let Some([db, dc]) = buffers.dgates.as_deref() {
                    if let Some(of_dc) = of_dc {
                        of_dc.finish(simd, dc, channels);
                    }
                    if let Some(of_db) = of_db {
                        of_db.finish(simd, db, channels);
                    }
                }
                of_dx.finish(simd, &buffers.dx, channels);
            }
            if late.start < piece.from {
                self.write_dinitial(piece, first, late, &buffers.dx, channels);
            }
            if !counts {
                return;
            }
            from = to;
        }
    }

    /// Takes the finished rows before the piece to dinitial_states, if it is the sequence's first.
    #[inline(never)]
    fn write_dinitial(
        &self,
        piece: &Piece,
        first: i64,
        positions: Range<i64>,
        rows: &Finished<T>,
        channels: usize,
    ) {
        let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) else { return };
        for (row, position) in rows.iter().zip(positions.start..positions.end.min(piece.from)) {
            let column = position - piece.start + self.before();
            for (&value, channel) in row[..channels].iter().zip(first..) {
                // SAFETY: positions begin `width - 1` before the sequence; only its first piece writes here.
                unsafe { *states.at([piece.sequence, channel, column]) = value };
            }
        }
    }

    /// Copies the gradients of the final states, for a piece that may reach them.
    #[inline(never)]
    fn load_dfinal(&self, piece: &Piece, first: i64, channels: usize, buffers: &mut Buffers<T>) {
        let Some(states) = self.problem.dfinal_states.filter(|_| piece.to > piece.end - self.before()) else {
            return;
        };
        for (column, row) in buffers.dfinal[..self.problem.width - 1].iter_mut().enumerate() {
            for (value, channel) in row[..channels].iter_mut().zip(first..) {
                // SAFETY: the states have a row per sequence and `width - 1` columns.
                *value = unsafe { *states.at([piece.sequence, channel, column as i64]) };
            }
        }
    }

    /// The rows for g at `from .. to`, and for dx `width - 1` rows before.
    #[inline(never)]
    fn rows(&self, piece: &Piece, channel: i64, from: i64, to: i64, buffers: &Buffers<T>) -> BlockRows<T> {
        let problem = &self.problem;
        let null = [std::ptr::null(); ROWS];
        let count = (to - from) as usize;
        let dx = ([std::ptr::null_mut(); BLOCK], false);
        let mut rows = BlockRows {
            x: null,
            dy: null,
            g: None,
            added: null,
            b: null,
            c: null,
            count,
            dx,
            db: None,
            dc: None,
        };
        for (row, position) in rows.x.iter_mut().zip(from - self.before()..to) {
            *row = buffers.history.row(&problem.history.x, &problem.sequences, piece, channel, position);
        }
        for (row, position) in rows.dy.iter_mut().zip(from..to) {
            if position < piece.to || piece.includes(&problem.sequences, position) {
                *row = problem.dy.at([piece.batch, channel, position]);
            }
        }
        if let Some(g) = problem.g {
            let mut of_positions = [std::ptr::null(); ROWS];
            for (row, position) in of_positions.iter_mut().zip(from..to) {
                *row = g.at([piece.batch, channel, position]);
            }
            rows.g = Some(of_positions);
        }
        if let Some(buffers) = &buffers.gates {
            if let Some(gate) = &problem.history.gate {
                for (row, position) in rows.b.iter_mut().zip(from - self.before()..to) {
                    let at = (channel, position);
                    *row = gate.row_of_history(&problem.sequences, piece, at, &buffers.ones);
                }
            }
            if let Some(gate) = &problem.gate {
                for ((row, dy), position) in rows.c.iter_mut().zip(&rows.dy).zip(from..to) {
                    if !dy.is_null() {
                        *row = gate.row(piece.batch, channel, position);
                    }
                }
            }
        }
        if problem.dfinal_states.is_some() {
            // The last `width - 1` positions of the sequence are its final states too.
            for (row, position) in rows.added.iter_mut().zip(from - self.before()..to - self.before()) {
                let column = position - (piece.end - self.before());
                if column >= 0 {
                    *row = buffers.dfinal[column as usize].as_ptr();
                }
            }
        }
        rows
    }
}
