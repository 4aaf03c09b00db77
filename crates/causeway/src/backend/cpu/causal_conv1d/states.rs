//! What comes before a sequence, and what is left after it.

use super::gates::Gate;
use super::partition::Work;
use super::sequences::{Piece, Sequences};
use super::tensors::{Source, Target};
use crate::backend::cpu::simd::Number;
use crate::backend::cpu::threads::for_each;
use crate::causal_conv1d::Sizes;
use crate::tensor::TensorRef;

/// `[initial_states, x]` of every sequence, x times its gate.
pub(super) struct History<T> {
    pub x: Source<T, 3>,
    pub gate: Option<Gate<T>>,
    initial_states: Option<Source<T, 3>>,
    /// Positions before a sequence: `width - 1`.
    before: i64,
}

impl<T: Number> History<T> {
    pub fn new(x: &TensorRef<'_>, initial_states: Option<&TensorRef<'_>>, width: i64) -> Self {
        let initial_states = initial_states.map(Source::new);
        History { x: Source::new(x), gate: None, initial_states, before: width - 1 }
    }

    pub fn has_initial_states(&self) -> bool {
        self.initial_states.is_some()
    }

    /// The same, with what multiplies x.
    pub fn gated(self, gate: Option<Gate<T>>) -> Self {
        History { gate, ..self }
    }

    /// What taps read at a position of x.
    ///
    /// # Safety
    /// The index lies in x.
    #[inline(always)]
    unsafe fn at(&self, index: [i64; 3]) -> T::Accumulator {
        // SAFETY: the caller's promise.
        unsafe {
            let x = (*self.x.at(index)).widen();
            self.gate.map_or(x, |gate| gate.times(index, x))
        }
    }

    /// What a piece's convolution sees at a position outside of it, from `width - 1` before its sequence on:
    /// zero where the position takes no part.
    fn value(&self, sequences: &Sequences, piece: &Piece, channel: i64, position: i64) -> T::Accumulator {
        if piece.includes(sequences, position) {
            // SAFETY: positions of a sequence are positions of the row.
            return unsafe { self.at([piece.batch, channel, position]) };
        }
        let column = position - piece.start + self.before;
        self.initial_state(sequences, piece, channel, column).widen()
    }

    /// What a piece's convolution sees at the `width - 1` positions before it.
    #[inline(always)]
    pub fn values(&self, sequences: &Sequences, piece: &Piece, channel: i64, values: &mut [T::Accumulator]) {
        if piece.from == piece.start && self.initial_states.is_none() {
            values.fill(T::Accumulator::ZERO);
            return;
        }
        self.values_from(sequences, piece, channel, piece.from - self.before, values);
    }

    /// As [`Self::value`], at each position from one on.
    #[inline(never)]
    pub fn values_from(
        &self,
        sequences: &Sequences,
        piece: &Piece,
        channel: i64,
        first: i64,
        values: &mut [T::Accumulator],
    ) {
        for (value, position) in values.iter_mut().zip(first..) {
            *value = self.value(sequences, piece, channel, position);
        }
    }

    /// The column of its initial states that a piece sees; zero where there is none, or where they take no part.
    pub fn initial_state(&self, sequences: &Sequences, piece: &Piece, channel: i64, column: i64) -> T {
        match &self.initial_states {
            Some(states)
                if (0..self.before).contains(&column) && piece.includes_initial_states(sequences) =>
            {
                // SAFETY: the states have a row per sequence and `width - 1` columns.
                unsafe { *states.at([piece.sequence, channel, column]) }
            }
            _ => T::ZERO,
        }
    }
}

/// The last `width - 1` columns of `[initial_states, x]` of every sequence; zero at padding, and in front where
/// there are fewer. Threads may take part if the call has them.
pub(super) fn write_final_states<T: Number>(
    sizes: &Sizes,
    sequences: &Sequences,
    history: &History<T>,
    target: Target<T, 3>,
    has_threads: bool,
) {
    let before = history.before;
    if sizes.dim == 0 || before == 0 {
        return;
    }
    let parallel = has_threads && Work::Copy.is_worth_threads([sizes.sequences, sizes.dim, before]);
    for_each(sizes.sequences as usize, parallel, &|sequence| {
        let sequence = sequence as i64;
        let (batch, start, end) = sequences.bounds(sequence);
        for column in 0..before {
            let position = end - before + column;
            let source = if is_padding(sequences, batch, start, end, position) {
                None
            } else if position >= start {
                Some((history.x, batch, position))
            } else {
                history.initial_states.map(|states| (states, sequence, position - start + before))
            };
            let gated = history.gate.is_some() && position >= start;
            for channel in 0..sizes.dim {
                // SAFETY: the position lies in the sequence or in its initial states; final states have a row
                // per sequence, which no other task writes to.
                unsafe {
                    *target.at([sequence, channel, column]) = match source {
                        Some((_, row, at)) if gated => T::narrow(history.at([row, channel, at])),
                        Some((tensor, row, at)) => *tensor.at([row, channel, at]),
                        None => T::ZERO,
                    };
                }
            }
        }
    });
}

/// The gradient of the initial states of sequences without a position: that of their final states.
pub(super) fn write_initial_gradients_of_empty_sequences<T: Number>(
    sizes: &Sizes,
    sequences: &Sequences,
    dfinal_states: Option<Source<T, 3>>,
    target: Target<T, 3>,
) {
    if sizes.dim == 0 || sizes.width == 1 {
        return;
    }
    for sequence in 0..sizes.sequences {
        let (_, start, end) = sequences.bounds(sequence);
        if start < end {
            continue;
        }
        for channel in 0..sizes.dim {
            for column in 0..sizes.width - 1 {
                let index = [sequence, channel, column];
                // SAFETY: both tensors have a row per sequence, dim channels and `width - 1` columns.
                unsafe { *target.at(index) = dfinal_states.map_or(T::ZERO, |states| *states.at(index)) };
            }
        }
    }
}

/// Whether a position of `[initial_states, x]` is padding. Initial states carry the index of the first
/// position; those of an empty sequence carry none.
fn is_padding(sequences: &Sequences, batch: i64, start: i64, end: i64, position: i64) -> bool {
    start < end && sequences.index(batch, position.max(start)) < 0
}
