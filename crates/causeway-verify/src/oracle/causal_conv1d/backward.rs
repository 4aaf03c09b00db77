//! The gradients of forward.

use std::ops::Range;

use causeway::tensor::{DType, TensorRef};

use super::long_sums::{Gradient, LANES, LongSums};
use super::norm::Norms;
use super::sequences::{Data, Pre, Sequence, Window, refill};
use super::{Inputs, Truth, activate, gate, needs_double_double, sigmoid};
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
    let (dy, silu) = (inputs.required("dy"), inputs.is_silu());
    let problem = Problem {
        dy,
        dfinal_states: inputs.numbers("dfinal_states"),
        norms: Norms::<R>::of(inputs.norm.as_ref(), &data, silu, Some(dy)),
        silu,
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
    // Without a gate no memory is kept for its gradient.
    let length = |gate: Option<TensorRef<'_>>| gate.map_or(0, |_| seqlen);
    let (b_length, c_length) = (length(data.b), length(data.c));
    let [mut db, mut dc] = [b_length, c_length].map(|length| Pair::zeros(batch * dim * length));
    let dx_tiles = dx.by_channels(batch * dim, seqlen, dim, together).into_iter();
    let gates = db.by_channels(batch * dim, b_length, dim, together).into_iter();
    let gates = gates.zip(dc.by_channels(batch * dim, c_length, dim, together));
    let tiles = dx_tiles.zip(dinitial.by_channels(states * dim, width - 1, dim, together)).zip(gates);
    let tiles = tiles.enumerate().map(|(tile, rows)| (tile * together, rows)).collect();
    let elements = batch * dim * seqlen;
    let parameters = map_all(elements, tiles, |scratch: &mut Scratch<R>, (channel, rows)| {
        let ((dx, dinitial), (db, dc)) = rows;
        vectorised(Tile { problem: &problem, channel, dx, dinitial, db, dc, scratch })
    });

    let parameters = || parameters.iter().flatten();
    let dweight = parameters().flat_map(|channel| &channel[..width]);
    let dbias = parameters().map(|channel| &channel[width]);
    let dtype = problem.dtype;
    let gates = [("dB", db, data.b), ("dC", dc, data.c)].into_iter();
    let gates =
        gates.filter_map(|(name, gradient, gate)| Some((name, gradient.expected(dtype, gate?.shape()))));
    let mut truth = vec![
        ("dx", dx.expected(dtype, data.x.shape())),
        ("dweight", Pair::of(dweight).expected(parameter_dtype, &[dim as i64, width as i64])),
        ("dbias", Pair::of(dbias).expected(parameter_dtype, &[dim as i64])),
        ("dinitial_states", dinitial.expected(dtype, &[states as i64, dim as i64, width as i64 - 1])),
    ];
    truth.extend(gates);
    Truth(truth)
}

struct Problem<'a, R> {
    data: Data<'a>,
    dy: TensorRef<'a>,
    norms: Option<Norms<R>>,
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
    b: Vec<f64>,
    c: Vec<f64>,
    window: Window<R>,
    pre: Pre<R>,
    /// What comes to the activation, dy times the gate, and what a backend's may be off by.
    incoming: Vec<(R, f64)>,
    /// act(pre) at every position, where its gate needs it.
    activated: Vec<Approximate>,
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
    problem: &'a Problem<'a, R>,
    channel: usize,
    dx: PairRows<'a>,
    dinitial: PairRows<'a>,
    /// Without elements where there is no gate.
    db: PairRows<'a>,
    dc: PairRows<'a>,
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
            for (values, gate) in [(&mut scratch.b, &data.b), (&mut scratch.c, &data.c)] {
                if let Some(gate) = gate {
                    data.read_rows(values, gate, row, self.channel, channels);
                }
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let channel = self.channel + i;
                let row_at = i * data.seqlen..(i + 1) * data.seqlen;
                for sequence in data.of_row(row) {
                    let b = data.b.map(|_| &scratch.b[row_at.clone()]);
                    let x = &scratch.x[row_at.clone()];
                    data.fill_window(&mut scratch.window, sequence, channel, x, b);
                    let own = row_at.start + sequence.start..row_at.start + sequence.end;
                    self.problem.fill_g(sequence, channel, own.clone(), scratch);
                    if data.c.is_some() {
                        let (values, bounds) = self.dc.row(row, i);
                        let places = sequence.start..sequence.end;
                        let targets = (&mut values[places.clone()], &mut bounds[places]);
                        self.problem.finish_dc(
                            sequence,
                            &scratch.dy[own.clone()],
                            &scratch.activated,
                            targets,
                        );
                    }
                    sums.add(data, sequence, scratch);
                    self.problem.fill_dx(sequence, channel, scratch);
                    let (history, dx) = (data.history(), &scratch.dx);
                    let factors = data.b.map(|_| [&scratch.b[own.clone()], &scratch.x[own]]);
                    let own = sequence.start..sequence.end;
                    let (values, bounds) = self.dx.row(row, i);
                    let targets = (&mut values[own.clone()], &mut bounds[own.clone()]);
                    match factors {
                        None => self.problem.finish_dx(dx, history, targets.0, targets.1),
                        Some([b, x]) => {
                            self.problem.finish_product(sequence, dx, b, targets);
                            let (values, bounds) = self.db.row(row, i);
                            let targets = (&mut values[own.clone()], &mut bounds[own]);
                            self.problem.finish_product(sequence, dx, x, targets);
                        }
                    }
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

impl<R: Real> Problem<'_, R> {
    /// g = dy · act'(pre) of every position, which `own` are in the rows of dy; zero at padding.
    #[inline(always)]
    fn fill_g(&self, sequence: &Sequence, channel: usize, own: Range<usize>, scratch: &mut Scratch<R>) {
        let Scratch { dy, c, window, pre, incoming, activated, g, g_errors, g_errors_in_sums, .. } = scratch;
        let (data, dy) = (&self.data, &dy[own.clone()]);
        let (arithmetic, terms) = (&data.arithmetic, data.terms());
        refill(g_errors, dy.len(), 0.0);
        refill(g_errors_in_sums, dy.len(), 0.0);
        refill(g, dy.len(), R::new(0.0));
        incoming.clear();
        match data.c {
            None => incoming.extend(dy.iter().map(|&dy| (R::new(dy), 0.0))),
            Some(_) => {
                incoming.extend(dy.iter().zip(&c[own]).map(|(&dy, &c)| data.products.of_two::<R>(dy, c)));
            }
        }
        if self.silu || data.c.is_some() || self.norms.is_some() {
            data.pre(sequence, channel, window, pre);
        }
        if self.silu {
            // e⁻ᵖʳᵉ first, since vectors have no exponential.
            for (g, &pre) in g.iter_mut().zip(&pre.sums) {
                *g = (-pre).exp();
            }
        }
        if let Some(norms) = &self.norms {
            // What comes to the activation is the gradient of what is divided.
            for (t, (incoming, &exponential)) in incoming.iter_mut().zip(&*g).enumerate() {
                let error = pre.error(t, terms, arithmetic);
                let approximate = Approximate { value: pre.sums[t].value(), error };
                let sigmoid = self.silu.then(|| sigmoid(exponential));
                let (u, evaluated) = activate(arithmetic, pre.sums[t], approximate, sigmoid);
                let error = if error == f64::INFINITY { error } else { evaluated };
                let at = (sequence.row, channel, sequence.start + t);
                *incoming = norms.gradient(arithmetic, at, (u, error), dy[t]);
            }
        }
        if data.c.is_some() {
            activated.clear();
            activated.extend(g.iter().zip(&pre.sums).enumerate().map(|(t, (&exponential, &sum))| {
                let error = pre.error(t, terms, arithmetic);
                let approximate = Approximate { value: sum.value(), error };
                let sigmoid = self.silu.then(|| sigmoid(exponential));
                let (value, evaluated) = activate(arithmetic, sum, approximate, sigmoid);
                let error = if error == f64::INFINITY { error } else { evaluated };
                Approximate { value: value.value(), error }
            }));
        }
        let outputs = g.iter_mut().zip(&mut *g_errors).zip(&mut *g_errors_in_sums);
        for (t, (((g, error), in_sums), &(dy, dy_error))) in outputs.zip(&*incoming).enumerate() {
            if self.silu {
                let pre_error = pre.error(t, terms, arithmetic);
                let approximate = Approximate { value: pre.sums[t].value(), error: pre_error };
                (*g, [*error, *in_sums]) =
                    self.gradient(pre.sums[t], approximate, sigmoid(*g), (dy, dy_error));
            } else {
                *g = dy;
                [*error, *in_sums] = [dy_error; 2];
            }
        }
        for t in (0..dy.len()).filter(|&t| sequence.is_padding(t + data.history())) {
            (g[t], g_errors[t], g_errors_in_sums[t]) = (R::new(0.0), 0.0, 0.0);
        }
    }

    /// Σ_w weight[w] · g[p + (width-1) - w] at every place, and the gradient of the state that the place ends up in.
    #[inline(always)]
    fn fill_dx(&self, sequence: &Sequence, channel: usize, scratch: &mut Scratch<R>) {
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

    /// dC = dy · act(pre) of a sequence; zero at padding.
    #[inline(always)]
    fn finish_dc(
        &self,
        sequence: &Sequence,
        dy: &[f64],
        activated: &[Approximate],
        (values, bounds): (&mut [f64], &mut [f64]),
    ) {
        let (arithmetic, kept_as) = (&self.data.arithmetic, self.data.products.kept_as());
        for (t, (value, bound)) in values.iter_mut().zip(bounds).enumerate() {
            let (product, error) = match sequence.is_padding(t + self.data.history()) {
                true => (0.0, 0.0),
                false => gate(arithmetic, (activated[t].value, activated[t].error), Some(dy[t]), kept_as),
            };
            *value = product;
            *bound = arithmetic.rounded(Approximate { value: product, error }, self.dtype);
        }
    }

    /// Factors times d(B ⊙ x) at the positions of a sequence: dx and dB.
    #[inline(always)]
    fn finish_product(
        &self,
        sequence: &Sequence,
        dx: &Dx<R>,
        factors: &[f64],
        (values, bounds): (&mut [f64], &mut [f64]),
    ) {
        let (arithmetic, history) = (&self.data.arithmetic, self.data.history());
        let kept_as = self.data.products.kept_as();
        for (t, (value, bound)) in values.iter_mut().zip(bounds).enumerate() {
            let sum = (dx.sums[history + t], self.dx_error(dx, history + t));
            let (product, error) = match sequence.is_padding(history + t) {
                true => (R::new(0.0), 0.0),
                false => gate(arithmetic, sum, Some(factors[t]), kept_as),
            };
            *value = product.value();
            *bound = arithmetic.rounded(Approximate { value: *value, error }, self.dtype);
        }
    }

    /// dy · silu'(pre), and the errors that a backend's may have in dx and in the sums.
    #[inline(always)]
    fn gradient(
        &self,
        pre: R,
        approximate: Approximate,
        sigmoid: R,
        (dy, dy_error): (R, f64),
    ) -> (R, [f64; 2]) {
        let arithmetic = &self.data.arithmetic;
        let evaluated =
            |results: &[DType]| arithmetic.silu_gradient(approximate, sigmoid.value(), dy.value(), results);
        let error = evaluated(&[self.dtype]);
        if error == f64::INFINITY || approximate.error == f64::INFINITY || dy_error == f64::INFINITY {
            let error = f64::INFINITY;
            // Whatever a backend gives here, its sums may hold.
            return (R::new(0.0), [error; 2]);
        }
        let in_sums = match self.parameter_dtype == self.dtype {
            true => error,
            false => evaluated(&[self.dtype, self.parameter_dtype]),
        };
        let derivative = sigmoid * (R::new(1.0) + pre * (R::new(1.0) - sigmoid));
        let value = dy * derivative;
        // The product with dy is rounded.
        let rounding = arithmetic.rounding(value.value()) + derivative.value().abs() * dy_error;
        (value, [error + rounding, in_sums + rounding])
    }

    /// Values and bounds from this place on.
    #[inline(always)]
    fn finish_dx(&self, dx: &Dx<R>, first: usize, values: &mut [f64], bounds: &mut [f64]) {
        for (place, (value, bound)) in (first..).zip(values.iter_mut().zip(bounds)) {
            *value = dx.sums[place].value();
            let error = self.dx_error(dx, place);
            *bound = self.data.arithmetic.rounded(Approximate { value: *value, error }, self.dtype);
        }
    }

    /// The error of the sum of a place.
    #[inline(always)]
    fn dx_error(&self, dx: &Dx<R>, place: usize) -> f64 {
        let (arithmetic, magnitude, inherited) =
            (&self.data.arithmetic, dx.magnitudes[place], dx.inherited[place]);
        let overflows =
            magnitude.is_finite() && arithmetic.may_overflow(self.data.terms(), magnitude + inherited);
        if overflows { f64::INFINITY } else { inherited + arithmetic.sum(self.data.terms(), magnitude) }
    }
}

/// dweight and dbias of a channel.
#[derive(Clone)]
struct ChannelSums<R> {
    /// Of taps `0..LANES`, the next ones, and so on; lanes past the last tap are never looked at.
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
        // The last lanes may look past the last place.
        let Window { values: window, errors } = window;
        window.resize(window.len() + LANES, R::new(0.0));
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
            if !errors.is_empty() {
                for t in (0..length).filter(|&t| !sequence.is_padding(t + history)) {
                    let counts = |lane| first + lane < data.width && data.counts(sequence, t, first + lane);
                    local.add_errors(g[t], |lane| errors[t + first + lane], counts);
                }
            }
            *sums = local;
        }
        // Before the start and past the end there is no g; a backend may read a zero there.
        let mut leave_unchecked = |w: usize| self.taps[w / LANES].leave_unchecked(w % LANES);
        let unknown = |place: usize| errors.get(place).is_some_and(|&error| error == f64::INFINITY);
        let lost = |place: &usize| !window[*place].value().is_finite() || unknown(*place);
        for place in (0..history).filter(lost) {
            (place + 1..data.width).for_each(&mut leave_unchecked);
        }
        for place in (length..length + history).filter(lost) {
            (0..=place - length).for_each(&mut leave_unchecked);
        }
        let mut local = self.bias;
        for t in (0..length).filter(|&t| !sequence.is_padding(t + history)) {
            local.add(gradient(t), |_| R::new(1.0), |_| true);
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
