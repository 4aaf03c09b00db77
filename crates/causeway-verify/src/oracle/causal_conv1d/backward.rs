//! The gradients of forward.

use std::ops::Range;

use causeway::tensor::{DType, TensorRef};

use super::long_sums::{Gradient, LANES, LongSums};
use super::sequences::{Data, Sequence, refill};
use super::{Inputs, Truth, needs_double_double, sigmoid};
use crate::oracle::Expected;
use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::loops::{Loops, map_all, vectorised};
use crate::oracle::real::{DoubleDouble, Real};

/// The truth of [`Backward`](causeway::causal_conv1d::Backward). dweight and dbias are to be of `parameter_dtype`.
///
/// The bounds of dweight and dbias hold with the stated probability when the signs of dy are random and
/// independent of everything else, as they are in generated data.
pub fn backward(inputs: &Inputs<'_>, parameter_dtype: DType) -> Truth {
    if needs_double_double(inputs) {
        backward_in::<DoubleDouble>(inputs, parameter_dtype)
    } else {
        backward_in::<f64>(inputs, parameter_dtype)
    }
}

fn backward_in<R: Real>(inputs: &Inputs<'_>, parameter_dtype: DType) -> Truth {
    let data = Data::read(inputs);
    let problem = Problem {
        dy: inputs.required("dy"),
        dfinal_states: inputs.numbers("dfinal_states"),
        silu: inputs.is_silu(),
        dtype: data.x.dtype(),
        parameter_dtype,
        data,
    };
    let data = &problem.data;
    let (batch, dim, seqlen, width) = (data.batch, data.dim, data.seqlen, data.width);
    let states = data.sequences.len();

    let mut dx = Pair::zeros(batch * dim * seqlen);
    let mut dinitial = Pair::zeros(states * dim * (width - 1));
    let together = data.channels_together();
    let dx_tiles = dx.by_channels(batch * dim, seqlen, dim, together);
    let tiles = dx_tiles.into_iter().zip(dinitial.by_channels(states * dim, width - 1, dim, together));
    let tiles = tiles.enumerate().map(|(tile, (dx, dinitial))| (tile * together, dx, dinitial)).collect();
    let elements = batch * dim * seqlen;
    let parameters = map_all(elements, tiles, |scratch: &mut Scratch<R>, (channel, dx, dinitial)| {
        vectorised(Tile { problem: &problem, channel, dx, dinitial, scratch })
    });

    let parameters = || parameters.iter().flatten();
    let dweight = parameters().flat_map(|channel| &channel[..width]);
    let dbias = parameters().map(|channel| &channel[width]);
    let dtype = problem.dtype;
    Truth(vec![
        ("dx", dx.expected(dtype, data.x.shape())),
        ("dweight", Pair::of(dweight).expected(parameter_dtype, &[dim as i64, width as i64])),
        ("dbias", Pair::of(dbias).expected(parameter_dtype, &[dim as i64])),
        ("dinitial_states", dinitial.expected(dtype, &[states as i64, dim as i64, width as i64 - 1])),
    ])
}

struct Problem<'a> {
    data: Data<'a>,
    dy: TensorRef<'a>,
    dfinal_states: Option<Vec<f64>>,
    silu: bool,
    dtype: DType,
    parameter_dtype: DType,
}

/// Memory that one channel after the other uses.
#[derive(Default)]
struct Scratch<R> {
    x: Vec<f64>,
    dy: Vec<f64>,
    window: Vec<f64>,
    pre: Vec<R>,
    magnitudes: Vec<f64>,
    /// g at every position.
    g: Vec<R>,
    /// What a backend's g may be off by where it enters dx, and where it enters the sums of dweight and dbias: what rounding
    /// to 16 bits hides shows in sums of 32.
    g_errors: Vec<f64>,
    g_errors_in_sums: Vec<f64>,
    dx: Dx<R>,
}

/// dx at every place of a window: the sums, Σ|terms|, and what the errors of g contribute.
#[derive(Default)]
struct Dx<R> {
    sums: Vec<R>,
    magnitudes: Vec<f64>,
    inherited: Vec<f64>,
}

/// Some channels, from `channel` on, with their rows of dx and dinitial_states.
struct Tile<'a, R> {
    problem: &'a Problem<'a>,
    channel: usize,
    dx: PairRows<'a>,
    dinitial: PairRows<'a>,
    scratch: &'a mut Scratch<R>,
}

impl<R: Real> Loops for Tile<'_, R> {
    /// dweight of each channel and, last, its dbias.
    type Output = Vec<Vec<Approximate>>;

    #[inline(always)]
    fn run(mut self) -> Self::Output {
        let (data, scratch) = (&self.problem.data, self.scratch);
        let channels = self.dx.channels;
        let mut sums = vec![ChannelSums::<R>::new(data.width); channels];
        for row in 0..data.batch {
            data.read_rows(&mut scratch.x, &data.x, row, self.channel, channels);
            data.read_rows(&mut scratch.dy, &self.problem.dy, row, self.channel, channels);
            for (i, sums) in sums.iter_mut().enumerate() {
                let channel = self.channel + i;
                let row_at = i * data.seqlen..(i + 1) * data.seqlen;
                for sequence in data.of_row(row) {
                    data.fill_window(&mut scratch.window, sequence, channel, &scratch.x[row_at.clone()]);
                    let own = row_at.start + sequence.start..row_at.start + sequence.end;
                    self.problem.fill_g(sequence, channel, own, scratch);
                    sums.add(data, sequence, scratch);
                    self.problem.fill_dx(sequence, channel, scratch);
                    let (history, dx) = (data.history(), &scratch.dx);
                    let own = sequence.start..sequence.end;
                    let (values, bounds) = self.dx.row(row, i);
                    self.problem.finish_dx(dx, history, &mut values[own.clone()], &mut bounds[own]);
                    if data.initial_states.is_some() {
                        let (values, bounds) = self.dinitial.row(sequence.state, i);
                        self.problem.finish_dx(dx, 0, values, bounds);
                    }
                }
            }
        }
        let (arithmetic, dtype) = (&data.arithmetic, self.problem.parameter_dtype);
        sums.iter().map(|sums| sums.finish(data.width, arithmetic, dtype)).collect()
    }
}

impl Problem<'_> {
    /// g = dy · act'(pre) of every position, which `own` are in the rows of dy; zero at padding.
    #[inline(always)]
    fn fill_g<R: Real>(
        &self,
        sequence: &Sequence,
        channel: usize,
        own: Range<usize>,
        scratch: &mut Scratch<R>,
    ) {
        let Scratch { dy, window, pre, magnitudes, g, g_errors, g_errors_in_sums, .. } = scratch;
        let (data, dy) = (&self.data, &dy[own]);
        refill(g_errors, dy.len(), 0.0);
        refill(g_errors_in_sums, dy.len(), 0.0);
        refill(g, dy.len(), R::new(0.0));
        if self.silu {
            data.pre(sequence, channel, window, pre, magnitudes);
            // e⁻ᵖʳᵉ first, since vectors have no exponential.
            for (g, &pre) in g.iter_mut().zip(&*pre) {
                *g = (-pre).exp();
            }
            let inputs = pre.iter().zip(&*magnitudes).zip(dy);
            let outputs = g.iter_mut().zip(&mut *g_errors).zip(&mut *g_errors_in_sums);
            for (((g, error), in_sums), ((&pre, &magnitude), &dy)) in outputs.zip(inputs) {
                (*g, [*error, *in_sums]) = self.gradient(pre, magnitude, sigmoid(*g), dy);
            }
        } else {
            g.iter_mut().zip(dy).for_each(|(g, &dy)| *g = R::new(dy));
        }
        for t in (0..dy.len()).filter(|&t| sequence.is_padding(t + data.history())) {
            (g[t], g_errors[t], g_errors_in_sums[t]) = (R::new(0.0), 0.0, 0.0);
        }
    }

    /// Σ_w weight[w] · g[p + (width-1) - w] at every place, and the gradient of the state that the place ends up in.
    #[inline(always)]
    fn fill_dx<R: Real>(&self, sequence: &Sequence, channel: usize, scratch: &mut Scratch<R>) {
        let Scratch { g, g_errors, dx: Dx { sums, magnitudes, inherited }, .. } = scratch;
        let (data, history) = (&self.data, self.data.history());
        let places = history + sequence.len();
        refill(sums, places, R::new(0.0));
        refill(magnitudes, places, 0.0);
        refill(inherited, places, 0.0);
        data.for_each_tap(sequence, |w, positions| {
            // With indices it is one position at a time.
            if sequence.is_padding(positions.start + history) {
                return;
            }
            let weight = data.weight[channel * data.width + w];
            let places = positions.start + w..positions.end + w;
            let written = sums[places.clone()].iter_mut().zip(&mut magnitudes[places.clone()]);
            let written = written.zip(&mut inherited[places]);
            let read = g[positions.clone()].iter().zip(&g_errors[positions]);
            for (((sum, magnitude), inherited), (&g, &g_error)) in written.zip(read) {
                let term = R::new(weight) * g;
                *sum = *sum + term;
                *magnitude += term.value().abs();
                *inherited += weight.abs() * g_error;
            }
        });
        if let Some(dfinal) = &self.dfinal_states {
            let row = &dfinal[(sequence.state * data.dim + channel) * history..][..history];
            for (column, &term) in row.iter().enumerate() {
                // The place that this column is a copy of.
                let place = sequence.len() + column;
                if !sequence.is_padding(place) {
                    sums[place] = sums[place] + R::new(term);
                    magnitudes[place] += term.abs();
                }
            }
        }
    }

    /// dy · silu'(pre), and the errors that a backend's may have in dx and in the sums.
    #[inline(always)]
    fn gradient<R: Real>(&self, pre: R, magnitude: f64, sigmoid: R, dy: f64) -> (R, [f64; 2]) {
        let arithmetic = &self.data.arithmetic;
        let error = arithmetic.sum(self.data.terms(), magnitude);
        let approximate = Approximate { value: pre.value(), error };
        let evaluated =
            |results: &[DType]| arithmetic.silu_gradient(approximate, sigmoid.value(), dy, results);
        let error = evaluated(&[self.dtype]);
        if error == f64::INFINITY {
            // Whatever a backend gives here, its sums may hold.
            return (R::new(0.0), [error; 2]);
        }
        let in_sums = match self.parameter_dtype == self.dtype {
            true => error,
            false => evaluated(&[self.dtype, self.parameter_dtype]),
        };
        let slope = sigmoid * (R::new(1.0) + pre * (R::new(1.0) - sigmoid));
        let value = R::new(dy) * slope;
        // The product with dy is rounded.
        let rounding = arithmetic.rounding(value.value());
        (value, [error + rounding, in_sums + rounding])
    }

    /// Values and bounds from this place on.
    #[inline(always)]
    fn finish_dx<R: Real>(&self, dx: &Dx<R>, first: usize, values: &mut [f64], bounds: &mut [f64]) {
        let (arithmetic, terms) = (self.data.arithmetic, self.data.terms());
        let read = dx.sums[first..].iter().zip(&dx.magnitudes[first..]).zip(&dx.inherited[first..]);
        for ((value, bound), ((&sum, &magnitude), &inherited)) in values.iter_mut().zip(bounds).zip(read) {
            let overflows = magnitude.is_finite() && arithmetic.may_overflow(terms, magnitude + inherited);
            let error = if overflows { f64::INFINITY } else { inherited + arithmetic.sum(terms, magnitude) };
            *value = sum.value();
            *bound = arithmetic.rounded(Approximate { value: *value, error }, self.dtype);
        }
    }
}

/// dweight and dbias of a channel.
#[derive(Clone)]
struct ChannelSums<R> {
    /// Of taps `0..LANES`, the next ones, and so on; lanes behind the last tap are never looked at.
    taps: Vec<LongSums<R>>,
    /// Every lane has the same.
    bias: LongSums<R>,
}

impl<R: Real> ChannelSums<R> {
    fn new(width: usize) -> Self {
        ChannelSums { taps: vec![LongSums::default(); width.div_ceil(LANES)], bias: LongSums::default() }
    }

    /// Adds the terms of a sequence.
    #[inline(always)]
    fn add(&mut self, data: &Data<'_>, sequence: &Sequence, scratch: &mut Scratch<R>) {
        let Scratch { window, g, g_errors_in_sums: g_errors, .. } = scratch;
        let (length, history) = (sequence.len(), data.history());
        // The last lanes may look behind the last place.
        window.resize(window.len() + LANES, 0.0);
        let gradient = |t: usize| Gradient { value: g[t], error: g_errors[t] };
        // From here on every tap counts.
        let all = if sequence.has_indices() { length } else { data.first_place().min(length) };
        for (group, sums) in self.taps.iter_mut().enumerate() {
            let first = group * LANES;
            let mut local = *sums;
            for t in (0..all).filter(|&t| !sequence.is_padding(t + history)) {
                let counts = |lane| first + lane < data.width && data.counts(sequence, t, first + lane);
                local.add(gradient(t), |lane| window[t + first + lane], counts);
            }
            let windows = window[all + first..].windows(LANES);
            let gradients = g[all..].iter().zip(&g_errors[all..]);
            for ((&value, &error), x) in gradients.zip(windows) {
                local.add(Gradient { value, error }, |lane| x[lane], |_| true);
            }
            *sums = local;
        }
        // Before the start and behind the end there is no g; a backend may read a zero there.
        let mut leave_unchecked = |w: usize| self.taps[w / LANES].leave_unchecked(w % LANES);
        let lost = |(place, x): (usize, &f64)| (!x.is_finite()).then_some(place);
        for place in window[..history].iter().enumerate().filter_map(lost) {
            (place + 1..data.width).for_each(&mut leave_unchecked);
        }
        for behind in window[length..length + history].iter().enumerate().filter_map(lost) {
            (0..=behind).for_each(&mut leave_unchecked);
        }
        let mut local = self.bias;
        for t in (0..length).filter(|&t| !sequence.is_padding(t + history)) {
            local.add(gradient(t), |_| 1.0, |_| true);
        }
        self.bias = local;
    }

    fn finish(&self, width: usize, arithmetic: &Arithmetic, dtype: DType) -> Vec<Approximate> {
        let tap = |w: usize| self.taps[w / LANES].finish(w % LANES, arithmetic);
        let sums = (0..width).map(tap).chain([self.bias.finish(0, arithmetic)]);
        sums.map(|sum| Approximate { error: arithmetic.rounded(sum, dtype), ..sum }).collect()
    }
}

/// Values and bounds of one output.
struct Pair {
    values: Vec<f64>,
    bounds: Vec<f64>,
}

/// The rows of some channels.
struct PairRows<'a> {
    channels: usize,
    values: Vec<&'a mut [f64]>,
    bounds: Vec<&'a mut [f64]>,
}

impl Pair {
    fn zeros(count: usize) -> Self {
        Pair { values: vec![0.0; count], bounds: vec![0.0; count] }
    }

    fn of<'a>(elements: impl Iterator<Item = &'a Approximate>) -> Self {
        let (values, bounds) = elements.map(|element| (element.value, element.error)).unzip();
        Pair { values, bounds }
    }

    /// Rows `(·, dim, length)` by groups of channels, which can be computed side by side.
    fn by_channels(&mut self, rows: usize, length: usize, dim: usize, together: usize) -> Vec<PairRows<'_>> {
        let groups = (0..dim).step_by(together).map(|first| PairRows {
            channels: together.min(dim - first),
            values: Vec::with_capacity(rows / dim * together),
            bounds: Vec::with_capacity(rows / dim * together),
        });
        let mut groups: Vec<_> = groups.collect();
        let (mut values, mut bounds) = (self.values.as_mut_slice(), self.bounds.as_mut_slice());
        for row in 0..rows {
            let group = &mut groups[row % dim / together];
            group.values.push(values.split_off_mut(..length).expect("there are so many rows"));
            group.bounds.push(bounds.split_off_mut(..length).expect("there are so many rows"));
        }
        groups
    }

    fn expected(self, dtype: DType, shape: &[i64]) -> Expected {
        Expected { dtype, shape: shape.to_vec(), values: self.values, bounds: self.bounds }
    }
}

impl PairRows<'_> {
    /// A row of a channel, counted from the first one of the group.
    fn row(&mut self, row: usize, channel: usize) -> (&mut [f64], &mut [f64]) {
        let at = row * self.channels + channel;
        (&mut *self.values[at], &mut *self.bounds[at])
    }
}
