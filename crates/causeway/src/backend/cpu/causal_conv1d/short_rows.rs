//! Rows so short that a vector holds little more than one: those of a block of channels are convolved as one row, as they lie in memory; see
//! [`super::places`].

use std::ops::Range;

use super::blocks::MAX_WIDTH;
use super::partition::Partition;
use super::places::{self, Kind};
use super::tensors::{Source, Target};
use super::tile::{self, whole_steps};
use crate::backend::cpu::simd::{Lanes, Number, Simd};
use crate::causal_conv1d::Sizes;

/// Rows have fewer bytes than this in accumulators. Longer ones are not slower with vectors of their own.
const LONGEST: usize = 256;

/// Elements of an entry that a task has at least, if there are so many: it allocates once.
const TASK_ELEMENTS: i64 = 1 << 12;

/// How short rows are cut into tasks, and those into blocks.
pub(super) struct Cut {
    pub partition: Partition,
    seqlen: usize,
    /// Channels of a block.
    channels: usize,
}

impl Cut {
    /// Blocks whose array of accumulators has about so many bytes. None for rows that another kernel takes.
    pub fn new<A>(sizes: &Sizes, bytes: usize, max_chunks: i64) -> Option<Self> {
        let Sizes { dim, seqlen, width, .. } = *sizes;
        let [longest, places] = [LONGEST, bytes].map(|bytes| (bytes / size_of::<A>()) as i64);
        if !(1..longest).contains(&seqlen) || width > MAX_WIDTH as i64 {
            return None;
        }
        let block = (places / seqlen).clamp(1, dim.max(1));
        let blocks = (TASK_ELEMENTS / (block * seqlen)).max(1);
        let partition = Partition::new(sizes, block * blocks, seqlen, max_chunks);
        Some(Cut { partition, seqlen: seqlen as usize, channels: block as usize })
    }

    /// The blocks of a task's channels.
    pub fn blocks(&self, channels: Range<i64>) -> impl Iterator<Item = Range<i64>> + use<> {
        let block = self.channels;
        channels.clone().step_by(block).map(move |first| first..channels.end.min(first + block as i64))
    }

    /// Places of a channel.
    pub fn seqlen(&self) -> usize {
        self.seqlen
    }

    /// What lies side by side.
    pub fn kind(&self) -> Kind {
        Kind::Rows { seqlen: self.seqlen }
    }

    /// Places of a block, in whole steps.
    pub fn places(&self) -> usize {
        whole_steps(self.channels * self.seqlen)
    }

    /// Elements that are neighbours in memory: a first channel, and the places from there on.
    fn runs(&self, stride: isize, channels: Range<i64>) -> impl Iterator<Item = (i64, Range<usize>)> + use<> {
        let seqlen = self.seqlen;
        let rows = (channels.end - channels.start) as usize;
        let together = if stride == seqlen as isize { rows } else { 1 };
        let run = move |row| (channels.start + row as i64, row * seqlen..(row + together) * seqlen);
        (0..rows).step_by(together).map(run)
    }

    /// Widens the rows of some channels of an entry.
    #[inline(always)]
    pub fn read<S, T>(
        &self,
        simd: S,
        source: &Source<T, 3>,
        (batch, channels): (i64, Range<i64>),
        places: &mut [S::Scalar],
    ) where
        S: Simd,
        T: Lanes<S> + Number<Accumulator = S::Scalar>,
    {
        for (channel, places_of_run) in self.runs(source.strides[1], channels) {
            // SAFETY: these are whole rows, one after the other.
            unsafe { tile::widen(simd, source.at([batch, channel, 0]), &mut places[places_of_run]) };
        }
    }

    /// Adds the rows of some channels of an entry.
    #[inline(always)]
    pub fn add<T: Number>(
        &self,
        source: &Source<T, 3>,
        (batch, channels): (i64, Range<i64>),
        places: &mut [T::Accumulator],
    ) {
        for (channel, places_of_run) in self.runs(source.strides[1], channels) {
            // SAFETY: these are whole rows, one after the other.
            unsafe { tile::gather_add(source.at([batch, channel, 0]), 1, &mut places[places_of_run]) };
        }
    }

    /// Rounds results into the rows of some channels of an entry; past the caches if `stream`.
    #[inline(always)]
    pub fn write<S, T>(
        &self,
        simd: S,
        places: &[S::Scalar],
        target: &Target<T, 3>,
        (batch, channels): (i64, Range<i64>),
        stream: bool,
    ) where
        S: Simd,
        T: Lanes<S> + Number<Accumulator = S::Scalar>,
    {
        for (channel, places_of_run) in self.runs(target.strides[1], channels) {
            // SAFETY: these are whole rows, one after the other, which no other task writes to.
            unsafe { places::write(simd, &places[places_of_run], target.at([batch, channel, 0]), stream) };
        }
    }
}
