//! Which positions belong together: rows, packed sequences, states before them and sequence indices.

use causeway::tensor::TensorRef;

use super::Inputs;
use super::gates::Products;
use crate::oracle::bounds::Arithmetic;
use crate::oracle::real::Real;

/// Channels that are read side by side where they lie so: as many as have an f32 each in one cache line.
const CHANNELS_TOGETHER: usize = 16;

/// The inputs, with everything but x as plain numbers in row-major order.
pub(super) struct Data<'a> {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    pub width: usize,
    pub x: TensorRef<'a>,
    pub weight: Vec<f64>,
    pub bias: Option<Vec<f64>>,
    pub initial_states: Option<Vec<f64>>,
    /// The gates of x and of the activation.
    pub b: Option<TensorRef<'a>>,
    pub c: Option<TensorRef<'a>>,
    pub products: Products,
    /// Every sequence, in the order of its row of states.
    pub sequences: Vec<Sequence>,
    pub arithmetic: Arithmetic,
}

/// What taps can see of a sequence.
#[derive(Debug, Default)]
pub(super) struct Window<R> {
    pub values: Vec<R>,
    /// What a backend's values may be off by; empty where they are inputs.
    pub errors: Vec<f64>,
}

/// pre of every position: exact to the precision of R, Σ|terms|, and what the errors of the window bring in, which is empty if
/// there are none.
#[derive(Debug, Default)]
pub(super) struct Pre<R> {
    pub sums: Vec<R>,
    pub magnitudes: Vec<f64>,
    pub inherited: Vec<f64>,
}

impl<R: Real> Pre<R> {
    /// The error of a position. Infinite where nothing is known of what a tap reads.
    #[inline(always)]
    pub fn error(&self, t: usize, terms: usize, arithmetic: &Arithmetic) -> f64 {
        let inherited = self.inherited.get(t).copied().unwrap_or(0.0);
        if inherited.is_finite() {
            arithmetic.sum(terms, self.magnitudes[t]) + inherited
        } else {
            f64::INFINITY
        }
    }
}

/// Positions `start..end` of one row of x.
///
/// A *window* is what taps can see of it: `width - 1` places for its initial states, then its positions. Tap `w` of
/// position `t` reads place `t + w`, and position `t` itself is at place `t + width - 1`.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub row: usize,
    pub start: usize,
    pub end: usize,
    /// Row of the states.
    pub state: usize,
    /// The sequence index of every place of the window, if there are such; initial states carry that of the first
    /// position.
    indices: Option<Vec<f64>>,
}

impl Sequence {
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True where positions may belong to different sequences of `seq_idx`, or be padding.
    pub fn has_indices(&self) -> bool {
        self.indices.is_some()
    }

    /// True when a place of the window is padding.
    #[inline(always)]
    pub fn is_padding(&self, place: usize) -> bool {
        self.indices.as_ref().is_some_and(|indices| indices[place] < 0.0)
    }
}

impl<'a> Data<'a> {
    pub fn read(inputs: &Inputs<'a>) -> Self {
        let (x, weight) = (inputs.required("x"), inputs.required("weight"));
        let size = |axis: usize| x.shape()[axis] as usize;
        let (batch, dim, seqlen) = (size(0), size(1), size(2));
        let width = weight.shape()[1] as usize;
        let seq_idx = inputs.numbers("seq_idx");
        let sequence = |row: usize, start: usize, end: usize, state: usize| Sequence {
            row,
            start,
            end,
            state,
            indices: seq_idx.as_ref().map(|indices| {
                let own = &indices[row * seqlen + start..row * seqlen + end];
                let first = own.first().copied().unwrap_or(0.0);
                std::iter::repeat_n(first, width - 1).chain(own.iter().copied()).collect()
            }),
        };
        let sequences = match inputs.numbers("cu_seqlens") {
            None => (0..batch).map(|row| sequence(row, 0, seqlen, row)).collect(),
            Some(boundaries) => {
                let ends = boundaries.windows(2).enumerate();
                ends.map(|(state, pair)| sequence(0, pair[0] as usize, pair[1] as usize, state)).collect()
            }
        };
        Data {
            batch,
            dim,
            seqlen,
            width,
            x,
            weight: weight.to_f64(),
            bias: inputs.numbers("bias"),
            initial_states: inputs.numbers("initial_states"),
            b: inputs.get("B"),
            c: inputs.get("C"),
            products: Products::of(inputs),
            sequences,
            arithmetic: Arithmetic::of(x.dtype()),
        }
    }

    /// The sequences of one row of x.
    pub fn of_row(&self, row: usize) -> &[Sequence] {
        // Only a single row is packed.
        if self.batch == 1 { &self.sequences } else { &self.sequences[row..=row] }
    }

    /// How many channels are read together: several where they lie closer to each other than the positions of one.
    pub fn channels_together(&self) -> usize {
        let strides = self.x.strides();
        if strides[1].abs() < strides[2].abs() { CHANNELS_TOGETHER } else { 1 }
    }

    /// Makes `values` so many rows, from this channel on, of a tensor of the shape of x.
    #[inline(always)]
    pub fn read_rows(
        &self,
        values: &mut Vec<f64>,
        tensor: &TensorRef<'_>,
        row: usize,
        channel: usize,
        rows: usize,
    ) {
        values.resize(rows * self.seqlen, 0.0);
        tensor.read_f64((row * self.dim + channel) * self.seqlen, values);
    }

    /// Roundings in a sum over the taps: of the products, and of what is added to them, the bias or a final state's gradient.
    pub fn terms(&self) -> usize {
        self.width + 1
    }

    /// Places before x.
    pub fn history(&self) -> usize {
        self.width - 1
    }

    /// The first place of a window that holds anything.
    #[inline(always)]
    pub fn first_place(&self) -> usize {
        if self.initial_states.is_some() { 0 } else { self.history() }
    }

    /// Makes `window` that of a channel of a sequence, from this row of x and of its gate, if there is one. Places that hold
    /// nothing are zero.
    #[inline(always)]
    pub fn fill_window<R: Real>(
        &self,
        window: &mut Window<R>,
        sequence: &Sequence,
        channel: usize,
        x: &[f64],
        gate: Option<&[f64]>,
    ) {
        let history = self.history();
        let Window { values, errors } = window;
        values.clear();
        errors.clear();
        match &self.initial_states {
            Some(states) => {
                let states = &states[(sequence.state * self.dim + channel) * history..][..history];
                values.extend(states.iter().map(|&state| R::new(state)));
            }
            None => values.resize(history, R::new(0.0)),
        }
        let own = sequence.start..sequence.end;
        match gate {
            None => values.extend(x[own].iter().map(|&x| R::new(x))),
            Some(gate) => {
                errors.resize(history, 0.0);
                for (&x, &gate) in x[own.clone()].iter().zip(&gate[own]) {
                    let (product, error) = self.products.of_two(gate, x);
                    values.push(product);
                    errors.push(error);
                }
            }
        }
    }

    /// True if tap `w` of position `t` counts: what it reads is there, and belongs to the same sequence.
    #[inline(always)]
    pub fn counts(&self, sequence: &Sequence, t: usize, w: usize) -> bool {
        t + w >= self.first_place()
            && sequence.indices.as_ref().is_none_or(|indices| indices[t + w] == indices[t + self.history()])
    }

    /// Calls `add(tap, positions)` for all positions that a tap counts for, tap by tap: for all of them at once, which
    /// vectors like, or one by one where `seq_idx` decides.
    #[inline(always)]
    pub fn for_each_tap(&self, sequence: &Sequence, mut add: impl FnMut(usize, std::ops::Range<usize>)) {
        for w in 0..self.width {
            let first = self.first_place().saturating_sub(w).min(sequence.len());
            match &sequence.indices {
                None => add(w, first..sequence.len()),
                Some(_) => {
                    for t in (first..sequence.len()).filter(|&t| self.counts(sequence, t, w)) {
                        add(w, t..t + 1);
                    }
                }
            }
        }
    }

    /// pre of every position of a window.
    #[inline(always)]
    pub fn pre<R: Real>(&self, sequence: &Sequence, channel: usize, window: &Window<R>, pre: &mut Pre<R>) {
        let Pre { sums, magnitudes, inherited } = pre;
        let bias = self.bias.as_ref().map_or(0.0, |bias| bias[channel]);
        refill(sums, sequence.len(), R::new(bias));
        refill(magnitudes, sequence.len(), bias.abs());
        self.for_each_tap(sequence, |w, positions| {
            let weight = R::new(self.weight[channel * self.width + w]);
            let read = &window.values[positions.start + w..positions.end + w];
            let written = sums[positions.clone()].iter_mut().zip(&mut magnitudes[positions]);
            for ((sum, magnitude), &x) in written.zip(read) {
                let term = weight * x;
                *sum = *sum + term;
                *magnitude += term.value().abs();
            }
        });
        inherited.clear();
        if window.errors.is_empty() {
            return;
        }
        inherited.resize(sequence.len(), 0.0);
        self.for_each_tap(sequence, |w, positions| {
            let weight = self.weight[channel * self.width + w].abs();
            let read = &window.errors[positions.start + w..positions.end + w];
            for (inherited, &error) in inherited[positions].iter_mut().zip(read) {
                // Infinity times zero is as unknown as infinity.
                *inherited += weight * error;
            }
        });
    }
}

/// Makes a vector hold one value so many times.
#[inline(always)]
pub(super) fn refill<T: Clone>(values: &mut Vec<T>, count: usize, value: T) {
    values.clear();
    values.resize(count, value);
}
