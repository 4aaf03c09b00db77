//! Rows so short that a vector holds little more than one: those of a block of channels are convolved as one row, as they lie in memory.
//!
//! ```text
//! places    | row of channel 0 | row of channel 1 | …              in accumulators
//! weight    |   of channel 0   |   of channel 1   | …              for each tap, and the bias likewise
//! age 2     | s s x x x x x x x| s s x x x x x x x| …              what the tap takes from 2 places before
//! ```
//!
//! Where a tap would reach into the row before, s, it takes what stands in front of its own row: initial states, or zeros. Bits for every
//! place and age say where that is; a product with a zero would not do beside an infinite x.

use std::ops::{Deref, DerefMut, Range};

use super::columns;
use super::partition::Partition;
use super::rows::MAX_WIDTH;
use super::sequences::Sequences;
use super::states::History;
use super::tensors::{Parameter, Source, Target};
use super::tile::{self, STEP, TILE, UNROLL, whole_steps};
use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Simd};
use crate::causal_conv1d::Sizes;

/// Rows have fewer bytes than this in accumulators. Longer ones are not slower with vectors of their own.
const LONGEST: usize = 256;

/// Elements of an entry that a task has at least, if there are so many: it makes room once.
const TASK_ELEMENTS: i64 = 1 << 12;

/// How short rows are cut into tasks, and those into blocks.
pub(super) struct Cut {
    pub partition: Partition,
    seqlen: usize,
    width: usize,
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
        Some(Cut { partition, seqlen: seqlen as usize, width: width as usize, channels: block as usize })
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
            // SAFETY: these are whole rows, one behind the other.
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
            // SAFETY: these are whole rows, one behind the other.
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
            let mut target = target.at([batch, channel, 0]);
            for values in places[places_of_run].chunks(TILE) {
                // SAFETY: these are whole rows, one behind the other, which no other task writes to.
                unsafe { tile::scatter(simd, values, target, 1, stream) };
                target = target.wrapping_add(values.len());
            }
        }
    }
}

/// An array that begins with a cache line.
pub(super) struct Places<A>(Vec<columns::Row<A>>);

impl<A: Number> Places<A> {
    /// Zeros, at least so many.
    pub fn new(count: usize) -> Self {
        Places(vec![columns::Row([A::ZERO; columns::BLOCK]); count.div_ceil(columns::BLOCK)])
    }
}

impl<A> Deref for Places<A> {
    type Target = [A];

    #[inline(always)]
    fn deref(&self) -> &[A] {
        // SAFETY: a row is an array of so many elements.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * columns::BLOCK) }
    }
}

impl<A> DerefMut for Places<A> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [A] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * columns::BLOCK) }
    }
}

/// What the convolution of a block's places takes.
pub(super) struct Block<A> {
    seqlen: usize,
    width: usize,
    /// Of each tap, one tap after the other, and then the bias; `pitch` from one to the next.
    parameters: Places<A>,
    pitch: usize,
    /// Of each age from 1 on, likewise: all bits where a place is that far behind the start of its row, or further.
    inside: Places<A>,
    /// Behind a line that is never looked at.
    x: Places<A>,
    /// Of each age from 1 on, where its tap reaches before a row: the initial state that it takes. Empty if all of them are zero.
    states: Places<A>,
}

impl<A: Accumulator> Block<A> {
    /// Elements in front of x, at least as many as a tap reaches back.
    const FRONT: usize = LINE / size_of::<A>();

    pub fn new(cut: &Cut, has_states: bool) -> Self {
        const { assert!(Self::FRONT >= MAX_WIDTH - 1) };
        let Cut { seqlen, width, .. } = *cut;
        let places = cut.places();
        // What is spread ends with a whole vector, and dx asks for places that are up to an age further on.
        let pitch = places + STEP;
        let mut inside = Places::new((width - 1) * pitch);
        for (age, inside) in (1..width).zip(inside.chunks_exact_mut(pitch)) {
            for row in inside.chunks_mut(seqlen) {
                row.iter_mut().skip(age).for_each(|bits| *bits = A::ALL_BITS);
            }
        }
        Block {
            seqlen,
            width,
            parameters: Places::new((width + 1) * pitch),
            pitch,
            inside,
            x: Places::new(Self::FRONT + places),
            states: Places::new(if has_states { (width - 1) * pitch } else { 0 }),
        }
    }

    /// The places of x.
    #[inline(always)]
    pub fn x(&mut self) -> &mut [A] {
        &mut self.x[Self::FRONT..]
    }

    /// The taps, from the last position's on.
    #[inline(always)]
    pub fn ages(&self) -> Range<usize> {
        0..self.width
    }

    /// Gives each channel's weight and bias to all of its places.
    #[inline(always)]
    pub fn load_parameters<S: Simd<Scalar = A>>(
        &mut self,
        simd: S,
        weight: &Parameter,
        bias: Option<&Parameter>,
        channels: Range<i64>,
    ) {
        let (seqlen, width) = (self.seqlen, self.width);
        let mut values = vec![A::ZERO; (channels.end - channels.start) as usize];
        assert!(values.len() * seqlen + STEP <= self.pitch);
        for (term, places) in self.parameters.chunks_exact_mut(self.pitch).take(width + 1).enumerate() {
            // SAFETY: the channels and taps lie in weight and bias.
            unsafe {
                match bias {
                    _ if term < width => {
                        weight.read_channels(channels.clone(), term as i64, |i, value| values[i] = value)
                    }
                    Some(bias) => bias.read_channels(channels.clone(), 0, |i, value| values[i] = value),
                    None => values.fill(A::ZERO),
                }
            }
            for (row, &value) in values.iter().enumerate() {
                for at in (0..seqlen).step_by(S::LANES) {
                    // SAFETY: the row lies in the block, and the vector ends less than a step behind it. The next row comes later.
                    unsafe { simd.store(places.as_mut_ptr().add(row * seqlen + at), simd.splat(value)) };
                }
            }
        }
    }

    /// Takes the initial states of some channels of an entry to where taps reach before their rows.
    pub fn load_states<T: Number<Accumulator = A>>(
        &mut self,
        history: &History<T>,
        sequences: &Sequences,
        (batch, channels): (i64, Range<i64>),
    ) {
        if self.states.is_empty() {
            return;
        }
        let (piece, before) = (sequences.whole_row(batch), self.width - 1);
        for (age, states) in (1..self.width).zip(self.states.chunks_exact_mut(self.pitch)) {
            for (row, channel) in channels.clone().enumerate() {
                let columns = (before - age) as i64..;
                for (state, column) in
                    states[row * self.seqlen..][..age.min(self.seqlen)].iter_mut().zip(columns)
                {
                    *state = history.initial_state(sequences, &piece, channel, column).widen();
                }
            }
        }
    }

    /// The weights of the tap of an age, from a place on.
    ///
    /// # Safety
    /// The vector lies in the block.
    #[inline(always)]
    pub unsafe fn weight<S: Simd<Scalar = A>>(&self, simd: S, age: usize, at: usize) -> S::Vector {
        // SAFETY: the caller's promise.
        unsafe { simd.load(self.parameters.as_ptr().add((self.width - 1 - age) * self.pitch + at)) }
    }

    /// The values of places, or what stands `instead` where they are less than the age behind the start of their row.
    ///
    /// # Safety
    /// The age is that of a tap, but not 0, and the vector ends less than a step behind the block.
    #[inline(always)]
    pub unsafe fn inside<S: Simd<Scalar = A>>(
        &self,
        simd: S,
        (age, at): (usize, usize),
        values: S::Vector,
        instead: S::Vector,
    ) -> S::Vector {
        // SAFETY: the caller's promise.
        let inside = unsafe { simd.load(self.inside.as_ptr().add((age - 1) * self.pitch + at)) };
        simd.select(inside, values, instead)
    }

    /// What the tap of an age takes for a vector of places.
    ///
    /// # Safety
    /// The vector lies in the block.
    #[inline(always)]
    pub unsafe fn taken<S: Simd<Scalar = A>>(&self, simd: S, age: usize, at: usize) -> S::Vector {
        // SAFETY: the caller's promise; x has a line in front.
        unsafe {
            let x = simd.load(self.x.as_ptr().add(Self::FRONT + at - age));
            if age == 0 {
                return x;
            }
            let instead = if self.states.is_empty() {
                simd.splat(A::ZERO)
            } else {
                simd.load(self.states.as_ptr().add((age - 1) * self.pitch + at))
            };
            self.inside(simd, (age, at), x, instead)
        }
    }

    /// The convolution of a step of places, in the order of [`tile::convolve`].
    ///
    /// # Safety
    /// The step lies in the block.
    #[inline(always)]
    pub unsafe fn sums<S: Simd<Scalar = A>>(&self, simd: S, at: usize) -> [S::Vector; UNROLL] {
        let mut sums = tile::load::<S, UNROLL>(simd, &self.parameters[self.width * self.pitch + at..]);
        for age in self.ages().rev() {
            for (at, sum) in (at..).step_by(S::LANES).zip(&mut sums) {
                // SAFETY: the caller's promise.
                unsafe {
                    let x = self.taken(simd, age, at);
                    *sum = simd.mul_add(self.weight(simd, age, at), x, *sum);
                }
            }
        }
        sums
    }
}
