//! Heads: all channels of one, over a tile of positions, in accumulators.
//!
//! ```text
//!              tile of positions
//! channel 0   [ u u u u u u u u ]
//! channel 1   [ u u u u u u u u ]      vectors along the sequence, whatever the strides of x
//!   ...
//!               ↓ Σ u² of each position, channel by channel
//! ```
//!
//! Channels are added in their order, so that results do not depend on layouts and threads.

use std::marker::PhantomData;
use std::ops::Range;

use super::partition::Partition;
use super::sequences::{Piece, Sequences};
use super::states::History;
use super::tensors::Parameter;
use super::tile::{self, Finish, STEP, TILE, UNROLL};
use crate::backend::cpu::simd::{Accumulator, Lanes, Number, Part, Simd};
use crate::causal_conv1d::{HeadNorm, Sizes};

/// Accumulators of a tile, so that what is computed of one stays in the second-level cache.
const TILE_ELEMENTS: usize = 1 << 15;

/// The norm of a call, in its arithmetic.
#[derive(Clone, Copy)]
pub(super) struct Heads<A> {
    pub head_dim: usize,
    pub eps: A,
    pub scale: A,
    /// Positions of a tile.
    pub tile: usize,
}

impl<A: Accumulator> Heads<A> {
    pub fn new(norm: &HeadNorm) -> Self {
        let head_dim = norm.head_dim as usize;
        let tile = (TILE_ELEMENTS / head_dim / STEP * STEP).clamp(STEP, TILE);
        Heads { head_dim, eps: A::from_f64(norm.eps), scale: A::from_f64(norm.scale), tile }
    }

    /// Tasks of whole heads.
    pub fn partition(&self, sizes: &Sizes) -> Partition {
        Partition::new(sizes, self.head_dim as i64, (4 * self.tile) as i64, i64::MAX)
    }

    /// A number for every channel and position of a tile.
    pub fn buffer(&self) -> Vec<A> {
        vec![A::ZERO; self.head_dim * self.tile]
    }

    /// `1 / √(Σ u² + eps)` of some sums.
    #[inline(always)]
    pub fn invert(&self, squares: &mut [A]) {
        for sum in squares {
            *sum = A::ONE / (*sum + self.eps).sqrt();
        }
    }
}

/// What convolves the channels of a head: the tensors, and a buffer for one channel.
pub(super) struct Channels<'a, T: Number> {
    pub sequences: &'a Sequences,
    pub history: &'a History<T>,
    pub weight: &'a Parameter,
    pub bias: Option<&'a Parameter>,
    taps: Vec<T::Accumulator>,
    /// `width - 1` positions of history, then a tile; of every channel where channels are neighbours in memory.
    x: Vec<T::Accumulator>,
    pitch: usize,
}

impl<'a, T: Number> Channels<'a, T> {
    #[inline(never)]
    pub fn new(
        sequences: &'a Sequences,
        history: &'a History<T>,
        (weight, bias): (&'a Parameter, Option<&'a Parameter>),
        width: usize,
        heads: &Heads<T::Accumulator>,
    ) -> Self {
        let zero = T::Accumulator::ZERO;
        // Lines a power of two apart would share few places in a cache.
        let pitch = width - 1 + heads.tile + SQUARE;
        let lines = if history.x.strides[1] == 1 { heads.head_dim } else { 1 };
        let (taps, x) = (vec![zero; width], vec![zero; lines * pitch]);
        Channels { sequences, history, weight, bias, taps, x, pitch }
    }

    /// Reads what the channels from `first` on have at some positions of a piece, where they are neighbours in memory.
    #[inline(always)]
    pub fn load<S>(&mut self, simd: S, piece: &Piece, first: i64, positions: &Range<i64>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        if self.history.x.strides[1] != 1 {
            return;
        }
        let (before, count) = (self.taps.len() - 1, (positions.end - positions.start) as usize);
        let inside = (positions.start - piece.from).min(before as i64) as usize;
        let start = positions.start - inside as i64;
        let source = self.history.x.at([piece.batch, first, start]);
        let at = (self.pitch, before - inside);
        // SAFETY: these are positions of the piece, which have the head's channels side by side.
        unsafe { transpose_in(simd, &mut self.x, at, inside + count, (source, self.history.x.strides[2])) };
    }

    /// The convolution of a channel of a head at some positions of a piece, at most a tile of them, that have been loaded; `out` has
    /// whole steps.
    #[inline(always)]
    pub fn convolve<S>(
        &mut self,
        simd: S,
        piece: &Piece,
        channel: (i64, usize),
        positions: Range<i64>,
        out: &mut [T::Accumulator],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        simd.apart(Convolve { channels: self, piece, channel, positions, out });
    }
}

/// What [`Channels::convolve`] was called with.
struct Convolve<'c, 'a, T: Number> {
    channels: &'c mut Channels<'a, T>,
    piece: &'c Piece,
    channel: (i64, usize),
    positions: Range<i64>,
    out: &'c mut [T::Accumulator],
}

impl<S: Simd<Scalar = T::Accumulator>, T: Lanes<S>> Part<S> for Convolve<'_, '_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Convolve { channels, piece, channel: (first, index), positions, out } = self;
        let (before, count) = (channels.taps.len() - 1, (positions.end - positions.start) as usize);
        let (channel, is_loaded) = (first + index as i64, channels.history.x.strides[1] == 1);
        for (tap, weight) in channels.taps.iter_mut().enumerate() {
            // SAFETY: channel and tap lie in the weight.
            *weight = unsafe { channels.weight.read(channel, tap as i64) };
        }
        // SAFETY: the channel lies in the bias.
        let bias = channels.bias.map_or(T::Accumulator::ZERO, |bias| unsafe { bias.read(channel, 0) });
        // What lies in the piece is read with the tile.
        let inside = (positions.start - piece.from).min(before as i64) as usize;
        let oldest = positions.start - before as i64;
        let line = if is_loaded { &mut channels.x[index * channels.pitch..] } else { &mut channels.x[..] };
        channels.history.values_from(
            channels.sequences,
            piece,
            channel,
            oldest,
            &mut line[..before - inside],
        );
        if !is_loaded {
            let source = channels.history.x.at([piece.batch, channel, positions.start - inside as i64]);
            // SAFETY: these are positions of the piece, which lie in the row.
            unsafe {
                tile::gather(
                    simd,
                    source,
                    channels.history.x.strides[2],
                    &mut line[before - inside..before + count],
                )
            };
        }
        tile::convolve::<S, T>(
            simd,
            (&channels.taps, bias),
            &line[..channels.pitch],
            count,
            out,
            Finish::Keep,
        );
    }
}

/// The activation of whole steps, and Σ u² with it.
#[inline(always)]
pub(super) fn activate<S, T>(
    simd: S,
    silu: bool,
    pre: &[S::Scalar],
    u: &mut [S::Scalar],
    squares: &mut [S::Scalar],
) where
    S: Simd,
    T: Number<Accumulator = S::Scalar>,
{
    simd.apart(Activate::<_, T> { silu, pre, u, squares, of: PhantomData });
}

/// What [`activate`] was called with.
struct Activate<'a, A, T> {
    silu: bool,
    pre: &'a [A],
    u: &'a mut [A],
    squares: &'a mut [A],
    of: PhantomData<T>,
}

impl<S: Simd, T: Number> Part<S> for Activate<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Activate { silu, pre, u, squares, .. } = self;
        let step = UNROLL * S::LANES;
        let mut at = 0;
        while at + step <= pre.len() {
            let mut values = tile::load::<S, UNROLL>(simd, &pre[at..]);
            if silu {
                values = simd.silu::<T, UNROLL>(values);
            }
            let mut sums = tile::load::<S, UNROLL>(simd, &squares[at..]);
            for i in 0..UNROLL {
                sums[i] = simd.mul_add(values[i], values[i], sums[i]);
            }
            tile::store(simd, values, &mut u[at..]);
            tile::store(simd, sums, &mut squares[at..]);
            at += step;
        }
    }
}

/// Channels and positions that change places together: a line of memory each.
const SQUARE: usize = 16;

/// Hands out the first `count` positions of a tile, some neighbouring channels of a position at a time: `put` is given the position, the
/// first channel, and the numbers. It goes through squares, so that neither side is read or written a number at a time, far apart.
#[inline(always)]
pub(super) fn transpose_out<A: Accumulator>(
    values: &[A],
    tile: usize,
    count: usize,
    put: impl Fn(usize, usize, &[A]),
) {
    let channels = values.len() / tile;
    let mut square = [[A::ZERO; SQUARE]; SQUARE];
    for from in (0..count).step_by(SQUARE) {
        let across = SQUARE.min(count - from);
        for first in (0..channels).step_by(SQUARE) {
            let down = SQUARE.min(channels - first);
            for (channel, line) in values[first * tile..].chunks_exact(tile).take(down).enumerate() {
                for (position, &value) in line[from..from + across].iter().enumerate() {
                    square[position][channel] = value;
                }
            }
            for (position, line) in square[..across].iter().enumerate() {
                put(from + position, first, &line[..down]);
            }
        }
    }
}

/// The other way: widens `count` positions, whose channels are neighbours in memory, into lines of `pitch` numbers, one for each channel,
/// from place `at` of each on. `source` is that of the first position, and the distance to the next.
///
/// # Safety
/// There are `lines.len() / pitch` elements of each position.
#[inline(always)]
pub(super) unsafe fn transpose_in<S, T>(
    simd: S,
    lines: &mut [S::Scalar],
    (pitch, at): (usize, usize),
    count: usize,
    (source, stride): (*const T, isize),
) where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    simd.apart(TransposeIn { lines, pitch, at, count, source, stride });
}

/// What [`transpose_in`] was called with, and its caller's promise.
struct TransposeIn<'a, T: Number> {
    lines: &'a mut [T::Accumulator],
    pitch: usize,
    at: usize,
    count: usize,
    source: *const T,
    stride: isize,
}

impl<S, T> Part<S> for TransposeIn<'_, T>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let TransposeIn { lines, pitch, at, count, source, stride } = self;
        let source = |position: usize| source.wrapping_offset(stride.wrapping_mul(position as isize));
        let channels = lines.len() / pitch;
        let mut square = [[S::Scalar::ZERO; SQUARE]; SQUARE];
        for from in (0..count).step_by(SQUARE) {
            let across = SQUARE.min(count - from);
            for first in (0..channels).step_by(SQUARE) {
                let down = SQUARE.min(channels - first);
                for (position, line) in square[..across].iter_mut().enumerate() {
                    // SAFETY: the promise.
                    unsafe { tile::widen(simd, source(from + position).add(first), &mut line[..down]) };
                }
                for (channel, line) in lines[first * pitch..].chunks_exact_mut(pitch).take(down).enumerate() {
                    for (position, value) in line[at + from..at + from + across].iter_mut().enumerate() {
                        *value = square[position][channel];
                    }
                }
            }
        }
    }
}
