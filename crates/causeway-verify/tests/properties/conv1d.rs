//! Forward and backward.

use causeway::causal_conv1d::Activation;
use causeway::{DType, Device, HostTensor};
use causeway_verify::oracle::POISON;
use proptest::prelude::*;

use crate::calls::{Gates, Gradients, Incoming, Inputs, Outputs};
use crate::placement::{Placement, Random, check, cpu, float_dtype, placement, weight_dtype};
use crate::{activation, config, width};

fn seqlen() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 1..40i64, 1 => Just(0i64), 2 => 40..300i64]
}

/// A forward and backward call.
#[derive(Debug, Clone)]
pub struct Conv1d {
    pub shape: [i64; 3],
    pub width: i64,
    pub dtype: DType,
    pub weight_dtype: DType,
    pub dweight_f32: bool,
    pub activation: Activation,
    pub bias: bool,
    pub residual: bool,
    pub initial_states: bool,
    pub final_states: bool,
    /// Indices are drawn from -1 to this, in runs.
    pub seq_idx: Option<i64>,
    /// Cuts of the row in 1000ths of its length, i64 or i32.
    pub cu_seqlens: Option<(Vec<i64>, bool)>,
    /// Of x, dy, residual, initial_states, dfinal_states, y, final_states, dx, dinitial_states.
    pub placements: Vec<Placement>,
    /// Of weight and dweight, of seq_idx, and of bias.
    pub flat: Vec<Placement>,
    pub device: Device,
    pub seed: u64,
}

pub fn conv1d() -> impl Strategy<Value = Conv1d> {
    let sizes = (
        prop_oneof![9 => 1..=4i64, 1 => Just(0i64)],
        prop_oneof![12 => 1..=10i64, 3 => 11..=70i64, 1 => Just(0i64)],
        seqlen(),
        width(),
    );
    let types = (float_dtype(), 0..3usize, any::<bool>(), activation());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let sequences = (
        prop::option::weighted(0.4, 0..3i64),
        prop::option::weighted(0.4, (prop::collection::vec(0..=1000i64, 0..6), any::<bool>())),
    );
    let memory =
        (prop::collection::vec(placement(3), 9), prop::collection::vec(placement(2), 3), cpu(), any::<u64>());
    (sizes, types, flags, sequences, memory).prop_map(
        |(
            (batch, dim, seqlen, width),
            (dtype, weight, dweight_f32, activation),
            (bias, residual, initial_states, final_states),
            (seq_idx, cu_seqlens),
            (placements, flat, device, seed),
        )| Conv1d {
            shape: [if cu_seqlens.is_some() { 1 } else { batch }, dim, seqlen],
            width,
            dtype,
            weight_dtype: weight_dtype(dtype, weight),
            dweight_f32,
            activation,
            bias,
            residual,
            initial_states,
            final_states,
            seq_idx,
            cu_seqlens,
            placements,
            flat,
            device,
            seed,
        },
    )
}

/// The tensors of a [`Conv1d`].
#[derive(Clone)]
pub struct Tensors {
    pub inputs: Inputs,
    pub incoming: Incoming,
}

impl Conv1d {
    fn sequences(&self) -> i64 {
        self.cu_seqlens.as_ref().map_or(self.shape[0], |(cuts, _)| cuts.len() as i64 + 1)
    }

    fn states_shape(&self) -> [i64; 3] {
        [self.sequences(), self.shape[1], self.width - 1]
    }

    fn dweight_dtype(&self) -> DType {
        if self.dweight_f32 && self.dtype != DType::F64 { DType::F32 } else { self.weight_dtype }
    }

    pub fn tensors(&self) -> Tensors {
        let random = &mut Random(self.seed);
        let ([batch, dim, seqlen], states) = (self.shape, self.states_shape());
        let place = |at: usize| &self.placements[at];
        let mut optional = |wanted: bool, placement: &Placement, dtype: DType, shape: &[i64]| {
            wanted.then(|| placement.uniform(dtype, shape, random, 1.0))
        };
        let bias = optional(self.bias, &self.flat[2], self.weight_dtype, &[1, dim]);
        let bias = bias.map(|bias| {
            let (offset, stride) = (bias.offset(), bias.strides()[1]);
            bias.restrided(offset, &[dim], &[stride]).unwrap()
        });
        let residual = optional(self.residual, place(2), self.dtype, &self.shape);
        let initial_states = optional(self.initial_states, place(3), self.dtype, &states);
        let dfinal_states = optional(self.final_states, place(4), self.dtype, &states);
        let seq_idx = self.seq_idx.map(|largest| {
            let mut tensor =
                self.flat[1].clone().without_expanding(&[0, 1]).zeros(DType::I32, &[batch, seqlen]);
            let mut index = 0;
            tensor.assign(|_| {
                if random.below(4) == 0 {
                    index = random.below(largest + 2) - 1;
                }
                index as f64
            });
            tensor
        });
        let cu_seqlens = self.cu_seqlens.as_ref().map(|(cuts, long)| {
            let mut boundaries: Vec<i64> = cuts.iter().map(|cut| cut * seqlen / 1000).collect();
            boundaries.extend([0, seqlen]);
            boundaries.sort_unstable();
            let dtype = if *long { DType::I64 } else { DType::I32 };
            HostTensor::from_fn(dtype, &[boundaries.len() as i64], |i| boundaries[i] as f64).unwrap()
        });
        // The bounds of long sums ask for independent signs of dy within a channel.
        let dy = place(1).clone().without_expanding(&[0, 2]).uniform(self.dtype, &self.shape, random, 1.0);
        let inputs = Inputs {
            x: place(0).uniform(self.dtype, &self.shape, random, 1.0),
            weight: self.flat[0].uniform(self.weight_dtype, &[dim, self.width], random, 0.7),
            bias,
            initial_states,
            seq_idx,
            cu_seqlens,
            residual,
            gates: Gates::default(),
            activation: self.activation,
        };
        Tensors { inputs, incoming: Incoming { dy, dfinal_states } }
    }
}

/// What a forward and a backward call wrote.
pub struct Results {
    pub outputs: Outputs,
    pub gradients: Gradients,
}

pub fn run(problem: &Conv1d, tensors: &Tensors) -> Results {
    let poisoned = |at: usize, shape: &[i64]| problem.placements[at].clone().poisoned(problem.dtype, shape);
    let (dim, states) = (problem.shape[1], problem.states_shape());
    let mut outputs = Outputs {
        y: poisoned(5, &problem.shape),
        final_states: problem.final_states.then(|| poisoned(6, &states)),
    };
    tensors.inputs.forward(&mut outputs, &problem.device).unwrap();
    let mut gradients = Gradients {
        dx: poisoned(7, &problem.shape),
        dweight: problem.flat[0].clone().poisoned(problem.dweight_dtype(), &[dim, problem.width]),
        dbias: problem.bias.then(|| {
            let mut dbias = HostTensor::zeros(problem.dweight_dtype(), &[dim]).unwrap();
            dbias.fill_bytes(POISON);
            dbias
        }),
        dinitial_states: problem.initial_states.then(|| poisoned(8, &states)),
        dgates: Gates {
            b: tensors.inputs.gates.b.as_ref().map(|_| poisoned(7, &problem.shape)),
            c: tensors.inputs.gates.c.as_ref().map(|_| poisoned(5, &problem.shape)),
        },
    };
    tensors.inputs.backward(&tensors.incoming, &mut gradients, &problem.device).unwrap();
    Results { outputs, gradients }
}

proptest! {
    #![proptest_config(config(1400))]

    #[test]
    fn forward_and_backward_agree_with_the_oracle(problem in conv1d()) {
        let tensors = problem.tensors();
        let results = run(&problem, &tensors);
        for (name, truth, found) in results.outputs.judged(&tensors.inputs.true_outputs()) {
            check(name, truth, found)?;
        }
        let truth = tensors.inputs.true_gradients(&tensors.incoming, problem.dweight_dtype());
        for (name, truth, found) in results.gradients.judged(&truth) {
            check(name, truth, found)?;
        }
    }
}
