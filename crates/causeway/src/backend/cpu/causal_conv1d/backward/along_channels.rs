//! Backward with vectors along the channels; see [`super::super::rows`] for the traversal.
//!
//! ```text
//! row of g     t = from ................................ to-1 | to ... to+width-2
//! row of dx    p = t-(width-1): initial states | this piece ..................... |
//! ```
//!
//! dx lags g by `width - 1` rows; g of the last rows waits in `g`, between blocks too. Past the piece's end, g is
//! computed again for dx, but not summed.

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
#[inline(always)]
fn flush<A: Accumulator>(sums: &mut [[A; GROUP]], totals: &mut [[f64; GROUP]]) {
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total += std::mem::replace(sum, A::ZERO).to_f64();
        }
    }
}

/// Takes values from the order of the lanes of pairs to that of the channels.
#[inline(always)]
fn in_order<S: Simd, T: Lanes<S>>(values: &mut [f64; GROUP]) {
    if T::ALTERNATES {
        for pair in values.chunks_exact_mut(2 * S::LANES) {
            let mut lanes = [0.0; MAX_PAIR];
            lanes[..2 * S::LANES].copy_from_slice(pair);
            for (element, value) in pair.iter_mut().enumerate() {
                *value = lanes[T::lane(element)];
            }
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
        let zero = T::Accumulator::ZERO;
        let weights = self.weights.of_task::<S, T>(
            &problem.weight,
            problem.bias.as_ref(),
            (self.partition.dim, width),
            channels.start,
        );
        let gated = problem.history.gate.is_some() || problem.gate.is_some();
        let mut buffers = Buffers {
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
        };
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
            in_order::<S, T>(totals);
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
            exact_slope: problem.exact_slope,
            x_stride: problem.history.x.strides[2],
            dy_stride: problem.dy.strides[2],
            weights,
            b: problem.history.gate,
            c: problem.gate,
        };
        // The rows past the end are a block of their own.
        let blocks =
            (piece.from..piece.to).step_by(BLOCK).map(|from| (from, piece.to.min(from + BLOCK as i64)));
        for (from, to) in blocks.chain([(piece.to, piece.to + self.before())]) {
            let mut rows = self.rows(piece, first, from, to, buffers);
            let late = from - self.before()..to - self.before();
            let target = |position| problem.dx.at([piece.batch, first, position]);
            let targets = (late.start >= piece.from).then(|| late.clone().map(target));
            let destination = Destination::new(targets, problem.stream);
            // dB has the rows of dx, and dC those of dy.
            let of_db = problem.db.map(|db| {
                let target = move |position| db.at([piece.batch, first, position]);
                let targets = (late.start >= piece.from).then(|| late.clone().map(target));
                (target, Destination::new(targets, problem.stream))
            });
            let of_dc = problem.dc.filter(|_| from < piece.to).map(|dc| {
                let target = move |position| dc.at([piece.batch, first, position]);
                (target, Destination::new(Some((from..to).map(target)), problem.stream))
            });
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
                rows.dx = destination.of_span(span, &mut buffers.dx);
                if let Some([db, dc]) = buffers.dgates.as_deref_mut() {
                    rows.db = of_db.as_ref().map(|(_, of_db)| of_db.of_span(span, db));
                    rows.dc = of_dc.as_ref().map(|(_, of_dc)| of_dc.of_span(span, dc));
                }
                // SAFETY: rows hold whole pairs from the span's first channel on.
                unsafe {
                    let sums = (from < piece.to).then_some(&mut buffers.sums);
                    passes.walk(simd, span, &rows, &mut buffers.g, sums);
                }
            }
            if let Some([db, dc]) = buffers.dgates.as_deref() {
                if let Some((target, destination)) = of_dc {
                    for (row, position) in dc.iter().zip(from..to) {
                        // SAFETY: the channels lie in dC, and no other task writes to them at this position.
                        unsafe { destination.finish(simd, &row[..channels], target(position)) };
                    }
                }
                if let Some((target, destination)) = of_db {
                    for (row, position) in db.iter().zip(late.clone()).filter(|(_, p)| *p >= piece.from) {
                        // SAFETY: as above, in dB.
                        unsafe { destination.finish(simd, &row[..channels], target(position)) };
                    }
                }
            }
            for (row, position) in buffers.dx.iter().zip(late) {
                if position >= piece.from {
                    // SAFETY: the channels lie in dx, and no other task writes to them at this position.
                    unsafe { destination.finish(simd, &row[..channels], target(position)) };
                } else {
                    self.write_dinitial(piece, first, position, &row[..channels]);
                }
            }
        }
    }

    /// Takes a finished row before the piece to dinitial_states, if it is the sequence's first.
    fn write_dinitial(&self, piece: &Piece, first: i64, position: i64, row: &[T]) {
        if let Some(states) = self.problem.dinitial_states.filter(|_| piece.from == piece.start) {
            let column = position - piece.start + self.before();
            for (&value, channel) in row.iter().zip(first..) {
                // SAFETY: positions begin `width - 1` before the sequence; only its first piece writes here.
                unsafe { *states.at([piece.sequence, channel, column]) = value };
            }
        }
    }

    /// Copies the gradients of the final states, for a piece that may reach them.
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
    #[inline(always)]
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
