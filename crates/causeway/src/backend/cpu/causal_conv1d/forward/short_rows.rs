//! Forward of rows so short that a vector holds little more than one: the channels of a task are convolved as one row.
//!
//! ```text
//! x        [ history | row of channel 0 | history | row of channel 1 | … ]        in accumulators
//! weight   [        of channel 0        |        of channel 1        | … ]        for each tap, and the bias likewise
//! ```
//!
//! A window begins at every place. Those that reach into the next channel are computed in vain.

use std::marker::PhantomData;

use super::super::partition::Partition;
use super::super::tile::{self, STEP, TILE, UNROLL, whole_steps};
use super::Problem;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Part, Simd};
use crate::causal_conv1d::Sizes;

/// Rows that the kernel takes are shorter than this: a step of the widest vectors.
const LONGEST: i64 = STEP as i64;

/// The widest kernel: history costs as much as positions.
const WIDEST: i64 = 8;

/// Places of a task: so many that arrays of them for four taps, and four more, stay in the L1 cache.
const PLACES: i64 = 12 * STEP as i64;

/// Plain rows whose positions are neighbours in memory.
pub(super) struct ShortRows<T: Number> {
    pub partition: Partition,
    pub problem: Problem<T>,
    pub seqlen: usize,
}

/// The partition for short rows, except whole pairs of vectors, which the other kernel keeps in registers. With f64, whose SiLU takes
/// most of the time, what is computed in vain costs more than is gained, and so does spreading weights for the longer rows of one entry.
pub(super) fn partition<T: Number>(sizes: &Sizes) -> Option<Partition> {
    let Sizes { batch, seqlen, width, .. } = *sizes;
    let longest = if batch > 1 { LONGEST } else { LONGEST / 2 };
    let is_short = (1..longest).contains(&seqlen) && seqlen % (LONGEST / 2) != 0 && width <= WIDEST;
    let pays = size_of::<T::Accumulator>() == size_of::<f32>();
    (is_short && pays).then(|| Partition::new(sizes, PLACES / (seqlen + width - 1), seqlen, i64::MAX))
}

/// What a task works in: arrays with a place for each position and each of history, in whole steps.
struct Rows<A> {
    /// Of each tap, one tap after the other.
    weight: Vec<A>,
    bias: Vec<A>,
    /// Has room for the window of the last place, and a vector more.
    x: Vec<A>,
    y: Vec<A>,
    /// The positions alone, and a vector more.
    packed: Vec<A>,
}

impl<T: Number> Kernel for ShortRows<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (problem, zero) = (&self.problem, T::Accumulator::ZERO);
        let (channels, chunk) = self.partition.task(task);
        let pitch = self.pitch();
        let rows = (channels.end - channels.start) as usize;
        let places = whole_steps(rows * pitch);
        let mut buffers = Rows {
            weight: vec![zero; problem.width * places],
            bias: vec![zero; places],
            x: vec![zero; places + pitch - self.seqlen + S::LANES],
            y: vec![zero; places],
            packed: vec![zero; rows * self.seqlen + S::LANES],
        };
        // SAFETY: the channels and taps lie in weight and bias.
        unsafe {
            for tap in 0..problem.width {
                let of_tap = &mut buffers.weight[tap * places..][..places];
                let put = |i: usize, value| of_tap[i * pitch..][..pitch].fill(value);
                problem.weight.read_channels(channels.clone(), tap as i64, put);
            }
            if let Some(bias) = problem.bias {
                let put = |i: usize, value| buffers.bias[i * pitch..][..pitch].fill(value);
                bias.read_channels(channels.clone(), 0, put);
            }
        }
        for column in self.partition.columns(chunk) {
            self.read(simd, column.batch, channels.clone(), &mut buffers);
            let Rows { weight, bias, x, y, .. } = &mut buffers;
            simd.apart(Convolve::<_, T> { weight, bias, x, y, silu: problem.silu, of: PhantomData });
            self.write(simd, column.batch, channels.clone(), &mut buffers);
        }
        simd.fence();
    }
}

impl<T: Number> ShortRows<T> {
    /// Places from row to row.
    fn pitch(&self) -> usize {
        self.seqlen + self.problem.width - 1
    }

    /// Whether rows of this pitch lie one behind the other.
    fn follow(&self, channel: isize) -> bool {
        channel == self.seqlen as isize
    }

    /// Takes the rows of some channels, with what lies before them, to their places.
    #[inline(always)]
    fn read<S>(&self, simd: S, batch: i64, channels: std::ops::Range<i64>, buffers: &mut Rows<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let history = &self.problem.history;
        let (seqlen, pitch) = (self.seqlen, self.pitch());
        let before = pitch - seqlen;
        let piece = self.problem.sequences.whole_row(batch);
        let Rows { x, packed, .. } = buffers;
        let follow = self.follow(history.x.strides[1]);
        if follow {
            let all = packed.len() - S::LANES;
            // SAFETY: these are the rows of the channels, one behind the other.
            unsafe { tile::widen(simd, history.x.at([batch, channels.start, 0]), &mut packed[..all]) };
        }
        for (row, channel) in channels.enumerate() {
            let at = row * pitch;
            history.values(&self.problem.sequences, &piece, channel, &mut x[at..at + before]);
            if follow {
                copy(simd, &packed[row * seqlen..], &mut x[at + before..], seqlen);
            } else {
                let to = &mut x[at + before..at + pitch];
                // SAFETY: these are the positions of a row.
                unsafe { tile::widen(simd, history.x.at([batch, channel, 0]), to) };
            }
        }
    }

    /// Takes results to memory.
    #[inline(always)]
    fn write<S>(
        &self,
        simd: S,
        batch: i64,
        channels: std::ops::Range<i64>,
        buffers: &mut Rows<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let problem = &self.problem;
        let (seqlen, pitch) = (self.seqlen, self.pitch());
        let Rows { y, packed, .. } = buffers;
        let follow = self.follow(problem.y.strides[1]);
        for (row, channel) in channels.clone().enumerate() {
            if let Some(residual) = &problem.residual {
                let to = &mut y[row * pitch..][..seqlen];
                // SAFETY: the residual has the shape of x.
                unsafe { tile::gather_add(residual.at([batch, channel, 0]), 1, to) };
            }
            if follow {
                copy(simd, &y[row * pitch..], &mut packed[row * seqlen..], seqlen);
            } else {
                let target = problem.y.at([batch, channel, 0]);
                // SAFETY: these are the positions of a row, which no other task writes to.
                unsafe { tile::scatter(simd, &y[row * pitch..][..seqlen], target, 1, problem.stream) };
            }
        }
        if follow {
            let all = packed.len() - S::LANES;
            let target = problem.y.at([batch, channels.start, 0]);
            for (part, values) in packed[..all].chunks(TILE).enumerate() {
                // SAFETY: these are the rows of the channels, one behind the other, which no other task writes to.
                unsafe { tile::scatter(simd, values, target.add(part * TILE), 1, problem.stream) };
            }
        }
    }
}

/// Copies `count` values in whole vectors. What is copied behind them is overwritten later, or only reaches results that nobody keeps.
#[inline(always)]
fn copy<S: Simd>(simd: S, from: &[S::Scalar], to: &mut [S::Scalar], count: usize) {
    let whole = count.next_multiple_of(S::LANES);
    if whole <= from.len() && whole <= to.len() {
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: the vector lies in both.
            unsafe { simd.store(to.as_mut_ptr().add(at), simd.load(from.as_ptr().add(at))) };
        }
    } else {
        to[..count].copy_from_slice(&from[..count]);
    }
}

/// The convolution of all places, in the order of [`tile::convolve`].
struct Convolve<'a, A, T> {
    weight: &'a [A],
    bias: &'a [A],
    x: &'a [A],
    y: &'a mut [A],
    silu: bool,
    of: PhantomData<T>,
}

impl<S: Simd, T: Number> Part<S> for Convolve<'_, S::Scalar, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        let places = self.y.len();
        let width = self.weight.len() / places;
        assert!(self.bias.len() == places && self.x.len() + 1 >= places + width);
        for at in (0..places).step_by(UNROLL * S::LANES) {
            let mut sums = tile::load::<S, UNROLL>(simd, &self.bias[at..at + UNROLL * S::LANES]);
            for tap in 0..width {
                let weights = &self.weight[tap * places + at..][..UNROLL * S::LANES];
                for (i, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the vector of weights lies in the slice, that of x in x, by the assertion: places are whole steps.
                    unsafe {
                        let weight = simd.load(weights.as_ptr().add(i * S::LANES));
                        let x = simd.load(self.x.as_ptr().add(at + tap + i * S::LANES));
                        *sum = simd.mul_add(weight, x, *sum);
                    }
                }
            }
            if self.silu {
                sums = simd.silu::<T, UNROLL>(sums);
            }
            tile::store(simd, sums, &mut self.y[at..at + UNROLL * S::LANES]);
        }
    }
}
