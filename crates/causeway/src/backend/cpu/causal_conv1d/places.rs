//! Places that lie side by side in memory, of several channels: vectors go over them whatever channel they are of.
//!
//! ```text
//!                 rows of channels                         positions of channels
//! places    | channel 0 | channel 1 | …                    | 0 1 2 | 0 1 2 | 0 1 2 | …      in accumulators
//! weight    |  of 0     |  of 1     | …  spread:           | 0 1 2 | 0 1 2 | 0 1 2 | …      for each tap, and the bias likewise
//! age 2     | s s x x x | s s x x x | …  2 places before   |     6 places before
//! ```
//!
//! Where a tap would reach into the row before, s, it takes what stands in front of its own row: initial states, or zeros. Bits for every
//! place and age say where that is; a product with a zero would not do beside an infinite x. Positions have theirs in front.

use std::ops::{Deref, DerefMut, Range};

use super::blocks::MAX_WIDTH;
use super::columns;
use super::sequences::Sequences;
use super::states::History;
use super::tensors::Parameter;
use super::tile::{self, STEP, TILE, UNROLL};
use crate::backend::cpu::simd::{Accumulator, LINE, Lanes, Number, Part, Simd};

/// Rounds the values of places into neighbouring elements; past the caches if `stream`.
///
/// # Safety
/// There are as many elements, and nobody else uses them meanwhile.
#[inline(always)]
pub(super) unsafe fn write<S, T>(simd: S, values: &[S::Scalar], target: *mut T, stream: bool)
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    for (i, values) in values.chunks(TILE).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { tile::scatter(simd, values, target.add(i * TILE), 1, stream) };
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
    kind: Kind,
    width: usize,
    /// Of each tap, one tap after the other, and then the bias; `pitch` from one to the next.
    parameters: Places<A>,
    pitch: usize,
    /// Of each age from 1 on, likewise: all bits where a place is that far past the start of its row, or further. Empty of positions.
    inside: Places<A>,
    /// Behind whole lines, whose end is what is taken before the first place.
    x: Places<A>,
    /// Of each age from 1 on, where its tap reaches before a row: the initial state that it takes. Empty if all of them are zero.
    states: Places<A>,
}

/// What [`Block::load_parameters`] was called with.
struct LoadParameters<'a, A> {
    block: &'a mut Block<A>,
    weight: &'a Parameter,
    bias: Option<&'a Parameter>,
    channels: Range<i64>,
}

impl<S: Simd> Part<S> for LoadParameters<'_, S::Scalar> {
    #[inline(always)]
    fn run(self, simd: S) {
        let LoadParameters { block, weight, bias, channels } = self;
        block.load_parameters_here(simd, weight, bias, channels);
    }
}

/// What lies side by side.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Rows of so many positions, one channel after the other.
    Rows { seqlen: usize },
    /// So many channels, one position after the other.
    Positions { channels: usize },
}

impl<A: Accumulator> Block<A> {
    /// Of so many places, whole steps.
    #[inline(never)]
    pub fn new(kind: Kind, width: usize, places: usize, has_states: bool) -> Self {
        // What is spread ends with a whole vector, and dx asks for places of rows that are up to an age further on.
        let pitch = places + STEP;
        const { assert!(STEP >= MAX_WIDTH) };
        let of_rows = |wanted| if wanted { (width - 1) * pitch } else { 0 };
        let mut inside = Places::new(of_rows(matches!(kind, Kind::Rows { .. })));
        if let Kind::Rows { seqlen } = kind {
            for (age, inside) in (1..width).zip(inside.chunks_exact_mut(pitch)) {
                for row in inside.chunks_mut(seqlen) {
                    row.iter_mut().skip(age).for_each(|bits| *bits = A::ALL_BITS);
                }
            }
        }
        let mut block = Block {
            kind,
            width,
            parameters: Places::new((width + 1) * pitch),
            pitch,
            inside,
            x: Places::new(0),
            states: Places::new(of_rows(has_states)),
        };
        block.x = Places::new(block.front() + places);
        block
    }

    /// Places from a position of a channel to the next one.
    #[inline(always)]
    fn distance(&self) -> usize {
        match self.kind {
            Kind::Rows { .. } => 1,
            Kind::Positions { channels } => channels,
        }
    }

    /// How far the first tap reaches back.
    #[inline(always)]
    pub fn before(&self) -> usize {
        (self.width - 1) * self.distance()
    }

    /// As many places or more, in whole lines.
    #[inline(always)]
    pub fn front(&self) -> usize {
        self.before().next_multiple_of(LINE / size_of::<A>())
    }

    /// The places of x.
    #[inline(always)]
    pub fn x(&mut self) -> &mut [A] {
        let front = self.front();
        &mut self.x[front..]
    }

    /// What is taken before the first place.
    #[inline(always)]
    pub fn history(&mut self) -> &mut [A] {
        let (front, before) = (self.front(), self.before());
        &mut self.x[front - before..front]
    }

    /// Makes the end of so many places what is taken before the first one.
    #[inline(always)]
    pub fn advance(&mut self, count: usize) {
        let (front, before) = (self.front(), self.before());
        self.x.copy_within(front + count - before..front + count, front - before);
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
        simd.apart(LoadParameters { block: self, weight, bias, channels });
    }

    /// See [`Self::load_parameters`].
    #[inline(always)]
    fn load_parameters_here<S: Simd<Scalar = A>>(
        &mut self,
        simd: S,
        weight: &Parameter,
        bias: Option<&Parameter>,
        channels: Range<i64>,
    ) {
        let width = self.width;
        let mut values = vec![A::ZERO; (channels.end - channels.start) as usize];
        for (term, places) in self.parameters.chunks_exact_mut(self.pitch).take(width + 1).enumerate() {
            // SAFETY: the channels and taps lie in weight and bias.
            unsafe {
                match bias {
                    _ if term < width => {
                        weight.read_channels(simd, channels.clone(), term as i64, &mut values, 1)
                    }
                    Some(bias) => bias.read_channels(simd, channels.clone(), 0, &mut values, 1),
                    None => values.fill(A::ZERO),
                }
            }
            match self.kind {
                Kind::Rows { seqlen } => {
                    assert!(values.len() * seqlen + STEP <= places.len());
                    for (row, &value) in values.iter().enumerate() {
                        for at in (0..seqlen).step_by(S::LANES) {
                            // SAFETY: the row lies in the block, and the vector ends less than a step past it. The next row comes later.
                            unsafe {
                                simd.store(places.as_mut_ptr().add(row * seqlen + at), simd.splat(value))
                            };
                        }
                    }
                }
                Kind::Positions { .. } => {
                    for position in places.chunks_mut(values.len()) {
                        position.copy_from_slice(&values[..position.len()]);
                    }
                }
            }
        }
    }

    /// Takes the initial states of some rows of an entry to where taps reach before them.
    #[inline(never)]
    pub fn load_states<T: Number<Accumulator = A>>(
        &mut self,
        history: &History<T>,
        sequences: &Sequences,
        (batch, channels): (i64, Range<i64>),
    ) {
        let Kind::Rows { seqlen } = self.kind else { return };
        if self.states.is_empty() {
            return;
        }
        let (piece, before) = (sequences.whole_row(batch), self.width - 1);
        for (age, states) in (1..self.width).zip(self.states.chunks_exact_mut(self.pitch)) {
            for (row, channel) in channels.clone().enumerate() {
                let columns = (before - age) as i64..;
                for (state, column) in states[row * seqlen..][..age.min(seqlen)].iter_mut().zip(columns) {
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

    /// The values of places, or what stands `instead` where they are less than the age past the start of their row.
    ///
    /// # Safety
    /// The age is that of a tap of rows, but not 0, and the vector ends less than a step past the block.
    #[inline(always)]
    unsafe fn inside<S: Simd<Scalar = A>>(
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

    /// g of the places that take a vector of places with the tap of an age, which is zero past the end of their row.
    ///
    /// # Safety
    /// The age is that of a tap, and the vector lies in the block; `g` points at as many values as its places and the taps after them.
    #[inline(always)]
    pub unsafe fn taking<S: Simd<Scalar = A>>(
        &self,
        simd: S,
        age: usize,
        at: usize,
        g: *const A,
    ) -> S::Vector {
        // SAFETY: the caller's promise.
        unsafe {
            let g = simd.load(g.add(at + age * self.distance()));
            if age == 0 || self.inside.is_empty() {
                return g;
            }
            self.inside(simd, (age, at + age), g, simd.splat(A::ZERO))
        }
    }

    /// What the tap of an age takes for a vector of places.
    ///
    /// # Safety
    /// The vector lies in the block.
    #[inline(always)]
    pub unsafe fn taken<S: Simd<Scalar = A>>(&self, simd: S, age: usize, at: usize) -> S::Vector {
        // SAFETY: the caller's promise; x has the taps in front.
        unsafe {
            let x = simd.load(self.x.as_ptr().add(self.front() + at - age * self.distance()));
            if age == 0 || self.inside.is_empty() {
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

    /// As [`Self::taken`], of one place.
    pub fn taken_by_one(&self, age: usize, at: usize) -> A {
        self.x[self.front() + at - age * self.distance()]
    }

    /// The convolution of a step of places, in the order of [`tile::convolve`].
    ///
    /// # Safety
    /// The step lies in the block.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    pub unsafe fn sums<S: Simd<Scalar = A>>(&self, simd: S, at: usize) -> [S::Vector; UNROLL] {
        let mut sums = tile::load::<S, UNROLL>(simd, &self.parameters[self.width * self.pitch + at..]);
        for age in self.ages().rev() {
            for i in 0..UNROLL {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = at + i * S::LANES;
                    let x = self.taken(simd, age, at);
                    sums[i] = simd.mul_add(self.weight(simd, age, at), x, sums[i]);
                }
            }
        }
        sums
    }
}
