//! Channel-last tensors of few channels: positions are taken one after the other, as they lie in memory; see [`super::places`]. Along the
//! channels, as in [`super::rows`], much of their pairs of vectors would be empty.

use std::ops::Range;

use super::blocks::{MAX_PAIR, MAX_WIDTH};
use super::partition::{Column, Partition};
use super::places::{Block, Kind};
use super::sequences::Sequences;
use super::states::History;
use super::tile::whole_steps;
use crate::backend::cpu::simd::Number;
use crate::causal_conv1d::Sizes;

/// Most channels. With more, and with one pair of the widest vectors, pairs are full enough.
const MOST: i64 = 47;

/// Positions of a segment: what its ends take is little beside them.
const SEGMENT: i64 = 1024;

/// Most lanes of a vector.
const LANES: usize = 16;

/// How rows are cut into tasks, and those into blocks.
pub(super) struct Cut {
    pub partition: Partition,
    channels: usize,
    /// Positions of a block.
    positions: usize,
}

impl Cut {
    /// Blocks whose array of accumulators has about so many bytes. None for tensors that another kernel takes; `strides` are those of
    /// tensors that are rows of channels.
    pub fn new<A>(sizes: &Sizes, strides: &[&[i64]], bytes: usize, max_chunks: i64) -> Option<Self> {
        let Sizes { dim, seqlen, .. } = *sizes;
        if dim == MAX_PAIR as i64 || dim > MOST || strides.iter().any(|strides| strides[2] != dim) {
            return None;
        }
        // So many positions end where a vector does.
        let together = LANES >> dim.trailing_zeros().min(LANES.trailing_zeros());
        let positions = (bytes / size_of::<A>() / dim as usize).max(1).next_multiple_of(together);
        let positions = positions.min(seqlen as usize).max(MAX_WIDTH);
        let partition = Partition::new(sizes, dim, SEGMENT, max_chunks);
        Some(Cut { partition, channels: dim as usize, positions })
    }

    /// What lies side by side.
    pub fn kind(&self) -> Kind {
        Kind::Positions { channels: self.channels }
    }

    /// Places of so many positions.
    pub fn places_of(&self, positions: i64) -> usize {
        positions as usize * self.channels
    }

    /// Places of a block, in whole steps.
    pub fn places(&self) -> usize {
        whole_steps(self.positions * self.channels)
    }

    /// The blocks of some positions: the first position of each, and places.
    pub fn blocks(&self, positions: Range<i64>) -> impl Iterator<Item = (i64, usize)> + use<> {
        let (block, channels, end) = (self.positions as i64, self.channels, positions.end);
        positions.step_by(self.positions).map(move |from| (from, (end - from).min(block) as usize * channels))
    }

    /// Takes what stands before a column to where its first block looks for it.
    pub fn load_history<T: Number>(
        &self,
        block: &mut Block<T::Accumulator>,
        history: &History<T>,
        sequences: &Sequences,
        column: &Column,
    ) {
        let values = block.history();
        if column.from == 0 && !history.has_initial_states() {
            values.fill(T::Accumulator::ZERO);
            return;
        }
        let piece = sequences.whole_row(column.batch);
        let positions = column.from - (values.len() / self.channels) as i64..;
        for (values, position) in values.chunks_exact_mut(self.channels).zip(positions) {
            for (value, channel) in values.iter_mut().zip(0..) {
                let value = std::slice::from_mut(value);
                history.values_from(sequences, &piece, channel, position, value);
            }
        }
    }
}
