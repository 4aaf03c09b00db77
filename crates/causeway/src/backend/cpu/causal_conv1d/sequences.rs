//! Which positions belong together.
//!
//! A row is cut into *pieces*: runs of positions of one sequence with one index. All outputs of a piece have
//! the same taps open: a position outside the piece takes part if it lies in the same sequence and carries the
//! same index. So a piece is a plain convolution over `[history, piece]` in which the history's other positions
//! count as zero, whatever order the indices come in.

use super::tensors::Source;
use crate::causal_conv1d::Sizes;
use crate::tensor::{DType, TensorRef};

/// The sequences of a call.
pub(super) struct Sequences {
    seqlen: i64,
    count: i64,
    seq_idx: Option<Source<i32, 2>>,
    boundaries: Option<Boundaries>,
}

enum Boundaries {
    I32(Source<i32, 1>),
    I64(Source<i64, 1>),
}

impl Boundaries {
    /// `index` is 0 to the number of sequences.
    fn get(&self, index: i64) -> i64 {
        // SAFETY: the view holds one boundary more than there are sequences.
        unsafe {
            match self {
                Boundaries::I32(values) => i64::from(*values.at([index])),
                Boundaries::I64(values) => *values.at([index]),
            }
        }
    }
}

/// A run of positions of one sequence with one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Row of x.
    pub batch: i64,
    /// Row of the states.
    pub sequence: i64,
    /// First position of the sequence.
    pub start: i64,
    /// One past the last position of the sequence.
    pub end: i64,
    /// First position of the piece.
    pub from: i64,
    /// One past the last position of the piece.
    pub to: i64,
    /// The index that its positions carry; negative for padding, 0 where there is no seq_idx.
    pub index: i32,
}

impl Sequences {
    pub fn new(sizes: &Sizes, seq_idx: Option<&TensorRef<'_>>, cu_seqlens: Option<&TensorRef<'_>>) -> Self {
        let boundaries = cu_seqlens.map(|view| match view.dtype() {
            DType::I64 => Boundaries::I64(Source::new(view)),
            _ => Boundaries::I32(Source::new(view)),
        });
        let seq_idx = seq_idx.map(Source::new);
        Sequences { seqlen: sizes.seqlen, count: sizes.sequences, seq_idx, boundaries }
    }

    /// The row of x, the first position and the end of a sequence.
    pub fn bounds(&self, sequence: i64) -> (i64, i64, i64) {
        match &self.boundaries {
            Some(boundaries) => (0, boundaries.get(sequence), boundaries.get(sequence + 1)),
            None => (sequence, 0, self.seqlen),
        }
    }

    /// The index that a position of the row carries; 0 where there is no seq_idx.
    pub fn index(&self, batch: i64, position: i64) -> i32 {
        // SAFETY: seq_idx is as large as the rows.
        self.seq_idx.as_ref().map_or(0, |values| unsafe { *values.at([batch, position]) })
    }

    /// The sequence that a position of the packed row lies in.
    fn packed_sequence(&self, boundaries: &Boundaries, position: i64) -> i64 {
        // The last sequence that starts at or before the position: empty ones share their start with it.
        let (mut low, mut high) = (0, self.count);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if boundaries.get(middle) <= position {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// A row that is one sequence without indices.
    pub fn whole_row(&self, batch: i64) -> Piece {
        debug_assert!(self.seq_idx.is_none() && self.boundaries.is_none());
        Piece { batch, sequence: batch, start: 0, end: self.seqlen, from: 0, to: self.seqlen, index: 0 }
    }

    /// Cuts `from..to` of a row into pieces.
    pub fn pieces(&self, batch: i64, from: i64, to: i64, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let mut at = from;
        while at < to {
            let (sequence, start, end) = match &self.boundaries {
                Some(boundaries) => {
                    let sequence = self.packed_sequence(boundaries, at);
                    (sequence, boundaries.get(sequence), boundaries.get(sequence + 1))
                }
                None => (batch, 0, self.seqlen),
            };
            let limit = end.min(to);
            while at < limit {
                let index = self.index(batch, at);
                let mut next = limit;
                if self.seq_idx.is_some() {
                    next = at + 1;
                    while next < limit && self.index(batch, next) == index {
                        next += 1;
                    }
                }
                pieces.push(Piece { batch, sequence, start, end, from: at, to: next, index });
                at = next;
            }
        }
    }
}

impl Piece {
    pub fn is_padding(&self) -> bool {
        self.index < 0
    }

    /// Whether a position takes part in the piece's convolution.
    pub fn includes(&self, sequences: &Sequences, position: i64) -> bool {
        (self.start..self.end).contains(&position) && sequences.index(self.batch, position) == self.index
    }

    /// Whether the positions before the sequence, its initial states, take part.
    pub fn includes_initial_states(&self, sequences: &Sequences) -> bool {
        sequences.index(self.batch, self.start) == self.index
    }
}
