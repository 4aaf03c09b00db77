//! Which positions belong together: rows, packed sequences, states before them and sequence indices.

use super::Inputs;
use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::real::Real;

/// The inputs as plain numbers in row-major order.
pub(super) struct Data {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    pub width: usize,
    pub x: Vec<f64>,
    pub weight: Vec<f64>,
    pub bias: Option<Vec<f64>>,
    pub initial_states: Option<Vec<f64>>,
    seq_idx: Option<Vec<f64>>,
    /// Every sequence, in the order of its row of states.
    pub sequences: Vec<Sequence>,
    pub arithmetic: Arithmetic,
}

/// Positions `start..end` of one row of x. Positions in a sequence count from its start; those before it, down to
/// `-(width - 1)`, are its initial states.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sequence {
    pub row: usize,
    pub start: usize,
    pub end: usize,
    /// Row of the states.
    pub state: usize,
}

impl Sequence {
    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

impl Data {
    pub fn read(inputs: &Inputs<'_>) -> Self {
        let size = |axis: usize| inputs.x.shape()[axis] as usize;
        let (batch, dim, seqlen) = (size(0), size(1), size(2));
        let sequences = match &inputs.cu_seqlens {
            None => (0..batch).map(|row| Sequence { row, start: 0, end: seqlen, state: row }).collect(),
            Some(boundaries) => {
                let boundaries = boundaries.to_f64();
                let ends = boundaries.windows(2).enumerate();
                ends.map(|(state, pair)| Sequence {
                    row: 0,
                    start: pair[0] as usize,
                    end: pair[1] as usize,
                    state,
                })
                .collect()
            }
        };
        Data {
            batch,
            dim,
            seqlen,
            width: inputs.weight.shape()[1] as usize,
            x: inputs.x.to_f64(),
            weight: inputs.weight.to_f64(),
            bias: inputs.bias.map(|bias| bias.to_f64()),
            initial_states: inputs.initial_states.map(|states| states.to_f64()),
            seq_idx: inputs.seq_idx.map(|indices| indices.to_f64()),
            sequences,
            arithmetic: Arithmetic::of(inputs.x.dtype()),
        }
    }

    /// x at a position of a sequence, the initial state before it, or nothing.
    pub fn value(&self, sequence: &Sequence, channel: usize, position: isize) -> Option<f64> {
        if position >= 0 {
            let at = (sequence.row * self.dim + channel) * self.seqlen + sequence.start;
            return Some(self.x[at + position as usize]);
        }
        let states = self.initial_states.as_ref()?;
        let history = self.width - 1;
        let at = (sequence.state * self.dim + channel) * history + history;
        Some(states[at.checked_add_signed(position)?])
    }

    /// The sequence index of a position; initial states carry that of the first position.
    fn index(&self, sequence: &Sequence, position: isize) -> f64 {
        match &self.seq_idx {
            Some(indices) if sequence.len() > 0 => {
                indices[sequence.row * self.seqlen + sequence.start + position.max(0) as usize]
            }
            _ => 0.0,
        }
    }

    /// True when a position of x is padding.
    pub fn is_padding(&self, sequence: &Sequence, position: isize) -> bool {
        self.index(sequence, position) < 0.0
    }

    /// What the tap of weight `w` reads for output position `t`: nothing where it does not count.
    pub fn tap(&self, sequence: &Sequence, channel: usize, t: usize, w: usize) -> Option<f64> {
        let position = t as isize - (self.width - 1) as isize + w as isize;
        if self.seq_idx.is_some() && self.index(sequence, position) != self.index(sequence, t as isize) {
            return None;
        }
        self.value(sequence, channel, position)
    }

    /// pre at position `t`, exact to the precision of R, and the error that a backend's may have.
    pub fn pre<R: Real>(&self, sequence: &Sequence, channel: usize, t: usize) -> (R, Approximate) {
        let mut sum = R::new(0.0);
        let mut magnitude = 0.0;
        if let Some(bias) = &self.bias {
            sum = R::new(bias[channel]);
            magnitude = bias[channel].abs();
        }
        for w in 0..self.width {
            if let Some(x) = self.tap(sequence, channel, t, w) {
                let term = R::new(self.weight[channel * self.width + w]) * R::new(x);
                sum = sum + term;
                magnitude += term.value().abs();
            }
        }
        // The width products and the bias.
        let error = self.arithmetic.sum(self.width + 1, magnitude);
        (sum, Approximate { value: sum.value(), error })
    }
}
