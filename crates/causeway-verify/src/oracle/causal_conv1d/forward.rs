//! `y = C ⊙ act(bias + weight ∗ (B ⊙ x)) + residual`, and the states after each sequence.

use causeway::tensor::{DType, TensorRef};

use super::norm::Norms;
use super::sequences::{Data, Pre, Sequence, Window, refill};
use super::{Inputs, Truth, activate, finish, gate, needs_double_double, sigmoid};
use crate::oracle::Expected;
use crate::oracle::bounds::Approximate;
use crate::oracle::loops::{Loops, map_all, vectorised};
use crate::oracle::real::{DoubleDouble, Real};

/// The truth of [`Forward`](causeway::causal_conv1d::Forward).
pub fn forward(inputs: &Inputs<'_>) -> Truth {
    if needs_double_double(inputs) { forward_in::<DoubleDouble>(inputs) } else { forward_in::<f64>(inputs) }
}

fn forward_in<R: Real>(inputs: &Inputs<'_>) -> Truth {
    let data = Data::read(inputs);
    let silu = inputs.is_silu();
    let norms = Norms::of(inputs.norm.as_ref(), &data, silu, None);
    let problem = Problem { residual: inputs.get("residual"), silu, dtype: data.x.dtype(), norms, data };
    let Data { batch, dim, seqlen, .. } = problem.data;

    let mut values = vec![0.0; batch * dim * seqlen];
    let mut bounds = vec![0.0; values.len()];
    let together = problem.data.channels_together();
    let (row_length, tile_length) = ((dim * seqlen).max(1), (together * seqlen).max(1));
    let rows = values.chunks_mut(row_length).zip(bounds.chunks_mut(row_length)).enumerate();
    let tiles = rows.flat_map(|(row, (values, bounds))| {
        let tiles = values.chunks_mut(tile_length).zip(bounds.chunks_mut(tile_length)).enumerate();
        tiles.map(move |(tile, (values, bounds))| (row, tile * together, values, bounds))
    });
    map_all(
        batch * dim * seqlen,
        tiles.collect(),
        |scratch: &mut Scratch<R>, (row, channel, values, bounds)| {
            vectorised(Tile { problem: &problem, row, channel, values, bounds, scratch });
        },
    );

    let data = &problem.data;
    let shape = [data.sequences.len() as i64, dim as i64, data.history() as i64];
    Truth(vec![
        ("y", Expected { dtype: problem.dtype, shape: data.x.shape().to_vec(), values, bounds }),
        ("final_states", Expected::exact(problem.dtype, &shape, final_states(data))),
    ])
}

/// The last `width - 1` places of every window, zero at padding.
fn final_states(data: &Data<'_>) -> Vec<f64> {
    let history = data.history();
    let mut states = vec![0.0; data.sequences.len() * data.dim * history];
    if states.is_empty() {
        return states;
    }
    for (row, state) in states.chunks_exact_mut(history).enumerate() {
        let (sequence, channel) = (&data.sequences[row / data.dim], row % data.dim);
        let length = sequence.len();
        let (old, new) = state.split_at_mut(history.saturating_sub(length));
        if let Some(initial) = &data.initial_states {
            old.copy_from_slice(&initial[row * history + length.min(history)..][..old.len()]);
        }
        let end = (sequence.row * data.dim + channel) * data.seqlen + sequence.end;
        let first = end - new.len();
        data.x.read_f64(first, new);
        if let Some(gate) = &data.b {
            let mut factors = vec![0.0; new.len()];
            gate.read_f64(first, &mut factors);
            new.iter_mut().zip(factors).for_each(|(x, factor)| *x = data.products.kept(factor, *x));
        }
        for (column, value) in state.iter_mut().enumerate() {
            if sequence.is_padding(length + column) {
                *value = 0.0;
            }
        }
    }
    states
}

struct Problem<'a, R> {
    data: Data<'a>,
    residual: Option<TensorRef<'a>>,
    norms: Option<Norms<R>>,
    silu: bool,
    dtype: DType,
}

/// Memory that one row after the other uses.
#[derive(Default)]
struct Scratch<R> {
    x: Vec<f64>,
    residual: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    window: Window<R>,
    pre: Pre<R>,
    /// e⁻ᵖʳᵉ.
    exponentials: Vec<R>,
}

/// Some channels of y, from `channel` on, in one row of the batch.
struct Tile<'a, R> {
    problem: &'a Problem<'a, R>,
    row: usize,
    channel: usize,
    values: &'a mut [f64],
    bounds: &'a mut [f64],
    scratch: &'a mut Scratch<R>,
}

impl<R: Real> Loops for Tile<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (data, scratch) = (&self.problem.data, self.scratch);
        let rows = self.values.len() / data.seqlen;
        data.read_rows(&mut scratch.x, &data.x, self.row, self.channel, rows);
        let others = [
            (&mut scratch.residual, &self.problem.residual),
            (&mut scratch.b, &data.b),
            (&mut scratch.c, &data.c),
        ];
        for (values, tensor) in others {
            if let Some(tensor) = tensor {
                data.read_rows(values, tensor, self.row, self.channel, rows);
            }
        }
        let outputs =
            self.values.chunks_exact_mut(data.seqlen).zip(self.bounds.chunks_exact_mut(data.seqlen));
        for (i, (values, bounds)) in outputs.enumerate() {
            let row = i * data.seqlen..(i + 1) * data.seqlen;
            let (x, b) = (&scratch.x[row.clone()], data.b.map(|_| &scratch.b[row.clone()]));
            for sequence in data.of_row(self.row) {
                let own = sequence.start..sequence.end;
                let residual = self.problem.residual.map(|_| &scratch.residual[row.clone()][own.clone()]);
                let c = data.c.map(|_| &scratch.c[row.clone()][own.clone()]);
                data.fill_window(&mut scratch.window, sequence, self.channel + i, x, b);
                let pre = &mut scratch.pre;
                data.pre(sequence, self.channel + i, &scratch.window, pre);
                if self.problem.silu {
                    refill(&mut scratch.exponentials, pre.sums.len(), R::new(0.0));
                    for (exponential, &pre) in scratch.exponentials.iter_mut().zip(&pre.sums) {
                        *exponential = (-pre).exp();
                    }
                }
                let exponentials = self.problem.silu.then_some(&*scratch.exponentials);
                let (values, bounds) = (&mut values[own.clone()], &mut bounds[own]);
                let of = (sequence, self.channel + i);
                self.problem.outputs(of, pre, exponentials, [c, residual], values, bounds);
            }
        }
    }
}

impl<R: Real> Problem<'_, R> {
    /// y of one channel of a sequence, with the bounds of its rounded values, from its gate and its residual where it has them.
    #[inline(always)]
    fn outputs(
        &self,
        (sequence, channel): (&Sequence, usize),
        pre: &Pre<R>,
        exponentials: Option<&[R]>,
        [factor, residual]: [Option<&[f64]>; 2],
        values: &mut [f64],
        bounds: &mut [f64],
    ) {
        let (arithmetic, history, terms) = (self.data.arithmetic, self.data.history(), self.data.terms());
        let kept_as = self.data.products.kept_as();
        for (t, (value, bound)) in values.iter_mut().zip(bounds).enumerate() {
            let (activated, error) = if sequence.is_padding(t + history) {
                (R::new(0.0), 0.0)
            } else {
                let (sum, error) = (pre.sums[t], pre.error(t, terms, &arithmetic));
                let approximate = Approximate { value: sum.value(), error };
                let sigmoid = exponentials.map(|exponentials| sigmoid(exponentials[t]));
                let activated = activate(&arithmetic, sum, approximate, sigmoid);
                let activated = if error == f64::INFINITY { (activated.0, error) } else { activated };
                if let Some(norms) = &self.norms {
                    norms.divided(&arithmetic, (sequence.row, channel, sequence.start + t), activated)
                } else {
                    gate(&arithmetic, activated, factor.map(|factor| factor[t]), kept_as)
                }
            };
            let y = finish(&arithmetic, activated, error, residual.map(|residual| residual[t]), self.dtype);
            (*value, *bound) = (y.value, y.error);
        }
    }
}
