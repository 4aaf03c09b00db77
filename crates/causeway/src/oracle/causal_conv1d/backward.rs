//! The gradients of forward.

use rayon::prelude::*;

use super::sequences::{Data, Sequence};
use super::{Inputs, needs_double_double, rows_by_channel, sigmoid};
use crate::causal_conv1d::Activation;
use crate::oracle::Expected;
use crate::oracle::bounds::{Approximate, Arithmetic, independent};
use crate::oracle::real::{DoubleDouble, Real};
use crate::tensor::{DType, TensorRef};

/// What a backward call has to write.
#[derive(Debug, Clone, PartialEq)]
pub struct BackwardTruth {
    /// `(batch, dim, seqlen)`.
    pub dx: Expected,
    /// `(dim, width)`.
    pub dweight: Expected,
    /// `(dim,)`.
    pub dbias: Expected,
    /// `(sequences, dim, width - 1)`.
    pub dinitial_states: Expected,
}

/// The truth of [`Backward`](crate::causal_conv1d::Backward). dweight and dbias are to be of `parameter_dtype`.
///
/// The bounds of dweight and dbias hold with the stated probability when the signs of dy are random and
/// independent of everything else, as they are in generated data.
pub fn backward(
    inputs: &Inputs<'_>,
    dy: &TensorRef<'_>,
    dfinal_states: Option<&TensorRef<'_>>,
    parameter_dtype: DType,
) -> BackwardTruth {
    if needs_double_double(&inputs.x) {
        backward_in::<DoubleDouble>(inputs, dy, dfinal_states, parameter_dtype)
    } else {
        backward_in::<f64>(inputs, dy, dfinal_states, parameter_dtype)
    }
}

fn backward_in<R: Real>(
    inputs: &Inputs<'_>,
    dy: &TensorRef<'_>,
    dfinal_states: Option<&TensorRef<'_>>,
    parameter_dtype: DType,
) -> BackwardTruth {
    let problem = Problem {
        data: Data::read(inputs),
        dy: dy.to_f64(),
        dfinal_states: dfinal_states.map(TensorRef::to_f64),
        activation: inputs.activation,
        dtype: inputs.x.dtype(),
        parameter_dtype,
    };
    let data = &problem.data;
    let (batch, dim, seqlen, width) = (data.batch, data.dim, data.seqlen, data.width);
    let states = data.sequences.len();

    let mut dx = Pair::zeros(batch * dim * seqlen);
    let mut dinitial = Pair::zeros(states * dim * (width - 1));
    let parameters: Vec<Vec<Approximate>> = dx
        .by_channel(batch * dim, seqlen, dim)
        .into_par_iter()
        .zip(dinitial.by_channel(states * dim, width - 1, dim))
        .enumerate()
        .map(|(channel, (mut dx, mut dinitial))| problem.channel::<R>(channel, &mut dx, &mut dinitial))
        .collect();

    let dweight = parameters.iter().flat_map(|channel| &channel[..width]);
    let dbias = parameters.iter().map(|channel| &channel[width]);
    let dtype = inputs.x.dtype();
    BackwardTruth {
        dx: dx.expected(dtype, inputs.x.shape()),
        dweight: Pair::of(dweight).expected(parameter_dtype, inputs.weight.shape()),
        dbias: Pair::of(dbias).expected(parameter_dtype, &[dim as i64]),
        dinitial_states: dinitial.expected(dtype, &[states as i64, dim as i64, width as i64 - 1]),
    }
}

struct Problem {
    data: Data,
    dy: Vec<f64>,
    dfinal_states: Option<Vec<f64>>,
    activation: Activation,
    dtype: DType,
    parameter_dtype: DType,
}

/// g at one position, and the errors that a backend's may have.
#[derive(Clone, Copy)]
struct Gradient<R> {
    value: R,
    /// Where it enters dx, of x's dtype.
    error: f64,
    /// Where it enters the sums of dweight and dbias: what rounding to 16 bits would hide shows in those of 32.
    error_in_sums: f64,
}

impl Problem {
    /// Writes dx and dinitial_states of a channel; returns its dweight and, last, its dbias.
    fn channel<R: Real>(
        &self,
        channel: usize,
        dx: &mut PairRows<'_>,
        dinitial: &mut PairRows<'_>,
    ) -> Vec<Approximate> {
        let data = &self.data;
        let mut sums = vec![LongSum::<R>::new(); data.width + 1];
        for sequence in &data.sequences {
            let g: Vec<Option<Gradient<R>>> =
                (0..sequence.len()).map(|t| self.g(sequence, channel, t)).collect();
            for (t, g) in g.iter().enumerate() {
                let Some(g) = g else { continue };
                for (w, sum) in sums[..data.width].iter_mut().enumerate() {
                    if let Some(x) = data.tap(sequence, channel, t, w) {
                        sum.add(*g, x);
                    }
                }
                sums[data.width].add(*g, 1.0);
            }
            for p in 0..sequence.len() {
                let at = sequence.start + p;
                dx.set(sequence.row, at, self.dx(sequence, channel, &g, p as isize));
            }
            if data.initial_states.is_some() {
                for column in 0..data.width - 1 {
                    let position = column as isize - (data.width - 1) as isize;
                    dinitial.set(sequence.state, column, self.dx(sequence, channel, &g, position));
                }
            }
        }
        sums.iter().map(|sum| sum.finish(&data.arithmetic, self.parameter_dtype)).collect()
    }

    /// g = dy · act'(pre); nothing at padding.
    fn g<R: Real>(&self, sequence: &Sequence, channel: usize, t: usize) -> Option<Gradient<R>> {
        let data = &self.data;
        if data.is_padding(sequence, t as isize) {
            return None;
        }
        let dy = self.dy[(sequence.row * data.dim + channel) * data.seqlen + sequence.start + t];
        Some(match self.activation {
            Activation::None => Gradient { value: R::new(dy), error: 0.0, error_in_sums: 0.0 },
            Activation::Silu => {
                let (pre, approximate) = data.pre::<R>(sequence, channel, t);
                let sigmoid = sigmoid(pre);
                let evaluated = |results: &[DType]| {
                    data.arithmetic.silu_gradient(approximate, sigmoid.value(), dy, results)
                };
                let error = evaluated(&[self.dtype]);
                if error == f64::INFINITY {
                    // Whatever a backend gives here, its sums may hold.
                    return Some(Gradient { value: R::new(0.0), error, error_in_sums: error });
                }
                let error_in_sums = match self.parameter_dtype == self.dtype {
                    true => error,
                    false => evaluated(&[self.dtype, self.parameter_dtype]),
                };
                let slope = sigmoid * (R::new(1.0) + pre * (R::new(1.0) - sigmoid));
                let value = R::new(dy) * slope;
                // The product with dy is rounded.
                let rounding = data.arithmetic.rounding(value.value());
                Gradient { value, error: error + rounding, error_in_sums: error_in_sums + rounding }
            }
        })
    }

    /// Σ_w weight[w] · g[p + (width-1) - w], and the gradient of the state that the position ends up in.
    fn dx<R: Real>(
        &self,
        sequence: &Sequence,
        channel: usize,
        g: &[Option<Gradient<R>>],
        p: isize,
    ) -> Approximate {
        let data = &self.data;
        let (width, history) = (data.width, data.width - 1);
        let mut sum = R::new(0.0);
        let (mut magnitude, mut inherited) = (0.0, 0.0);
        for w in 0..width {
            let t = p + (history - w) as isize;
            let Some(Some(g)) = usize::try_from(t).ok().and_then(|t| g.get(t)) else { continue };
            if data.tap(sequence, channel, t as usize, w).is_none() {
                continue;
            }
            let weight = data.weight[channel * width + w];
            let term = R::new(weight) * g.value;
            sum = sum + term;
            magnitude += term.value().abs();
            inherited += weight.abs() * g.error;
        }
        // Column of final_states that this position is copied to.
        let column = p - (sequence.len() as isize - history as isize);
        if let Some(dfinal) = &self.dfinal_states
            && (0..history as isize).contains(&column)
            && !data.is_padding(sequence, p)
        {
            let term = dfinal[(sequence.state * data.dim + channel) * history + column as usize];
            sum = sum + R::new(term);
            magnitude += term.abs();
        }
        let error = inherited + data.arithmetic.sum(width + 1, magnitude);
        let exact = Approximate { value: sum.value(), error };
        Approximate { value: exact.value, error: data.arithmetic.rounded(exact, self.dtype) }
    }
}

/// Σ g·x over batch and seqlen, with what its bound needs.
#[derive(Clone)]
struct LongSum<R> {
    value: R,
    terms: usize,
    /// Σ|term| and Σ term².
    magnitude: f64,
    squares: f64,
    /// Σ of the errors that g brings in, and of their squares.
    inherited: f64,
    inherited_squares: f64,
}

impl<R: Real> LongSum<R> {
    fn new() -> Self {
        LongSum {
            value: R::new(0.0),
            terms: 0,
            magnitude: 0.0,
            squares: 0.0,
            inherited: 0.0,
            inherited_squares: 0.0,
        }
    }

    fn add(&mut self, g: Gradient<R>, x: f64) {
        let term = g.value * R::new(x);
        self.value = self.value + term;
        self.terms += 1;
        self.magnitude += term.value().abs();
        self.squares += term.value() * term.value();
        let inherited = g.error_in_sums * x.abs();
        self.inherited += inherited;
        self.inherited_squares += inherited * inherited;
    }

    fn finish(&self, arithmetic: &Arithmetic, dtype: DType) -> Approximate {
        let error = arithmetic.long_sum(self.terms, self.magnitude, self.squares)
            + independent(self.inherited, self.inherited_squares);
        let exact = Approximate { value: self.value.value(), error };
        Approximate { value: exact.value, error: arithmetic.rounded(exact, dtype) }
    }
}

/// Values and bounds of one output.
struct Pair {
    values: Vec<f64>,
    bounds: Vec<f64>,
}

/// The rows of one channel.
struct PairRows<'a> {
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

    fn by_channel(&mut self, rows: usize, length: usize, dim: usize) -> Vec<PairRows<'_>> {
        let values = rows_by_channel(&mut self.values, rows, length, dim);
        let bounds = rows_by_channel(&mut self.bounds, rows, length, dim);
        values.into_iter().zip(bounds).map(|(values, bounds)| PairRows { values, bounds }).collect()
    }

    fn expected(self, dtype: DType, shape: &[i64]) -> Expected {
        Expected { dtype, shape: shape.to_vec(), values: self.values, bounds: self.bounds }
    }
}

impl PairRows<'_> {
    fn set(&mut self, row: usize, column: usize, element: Approximate) {
        self.values[row][column] = element.value;
        self.bounds[row][column] = element.error;
    }
}
