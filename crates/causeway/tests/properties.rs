//! The CPU backend against the oracle: random shapes, strides, dtypes and options.

mod common;

use causeway::causal_conv1d::{Activation, Backward, Forward, Update, VarlenStates};
use causeway::oracle::{POISON, causal_conv1d as oracle};
use causeway::{DType, Device, HostTensor};
use common::{Placement, Random, check, float_dtype, placement, weight_dtype};
use proptest::prelude::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn activation() -> impl Strategy<Value = Activation> {
    prop::sample::select(vec![Activation::None, Activation::Silu])
}

fn width() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 1..=8i64, 2 => 9..=20i64, 1 => Just(64i64), 1 => Just(256i64)]
}

fn seqlen() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 1..40i64, 1 => Just(0i64), 2 => 40..300i64]
}

/// A forward and backward call.
#[derive(Debug, Clone)]
struct Conv1d {
    shape: [i64; 3],
    width: i64,
    dtype: DType,
    weight_dtype: DType,
    dweight_f32: bool,
    activation: Activation,
    bias: bool,
    residual: bool,
    initial_states: bool,
    final_states: bool,
    /// Indices are drawn from -1 to this, in runs.
    seq_idx: Option<i64>,
    /// Cuts of the row in 1000ths of its length, i64 or i32.
    cu_seqlens: Option<(Vec<i64>, bool)>,
    /// Of x, dy, residual, initial_states, dfinal_states, y, final_states, dx, dinitial_states.
    placements: Vec<Placement>,
    /// Of weight and dweight, and of seq_idx.
    flat: Vec<Placement>,
    seed: u64,
}

fn conv1d() -> impl Strategy<Value = Conv1d> {
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
        (prop::collection::vec(placement(3), 9), prop::collection::vec(placement(2), 3), any::<u64>());
    (sizes, types, flags, sequences, memory).prop_map(
        |(
            (batch, dim, seqlen, width),
            (dtype, weight, dweight_f32, activation),
            (bias, residual, initial_states, final_states),
            (seq_idx, cu_seqlens),
            (placements, flat, seed),
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
            seed,
        },
    )
}

/// The tensors of a [`Conv1d`].
struct Tensors {
    x: HostTensor,
    weight: HostTensor,
    bias: Option<HostTensor>,
    residual: Option<HostTensor>,
    initial_states: Option<HostTensor>,
    seq_idx: Option<HostTensor>,
    cu_seqlens: Option<HostTensor>,
    dy: HostTensor,
    dfinal_states: Option<HostTensor>,
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

    fn tensors(&self) -> Tensors {
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
        Tensors {
            x: place(0).uniform(self.dtype, &self.shape, random, 1.0),
            weight: self.flat[0].uniform(self.weight_dtype, &[dim, self.width], random, 0.7),
            bias,
            residual,
            initial_states,
            seq_idx,
            cu_seqlens,
            dy,
            dfinal_states,
        }
    }
}

/// What a forward and a backward call wrote.
struct Results {
    y: HostTensor,
    final_states: Option<HostTensor>,
    dx: HostTensor,
    dweight: HostTensor,
    dbias: Option<HostTensor>,
    dinitial_states: Option<HostTensor>,
}

fn view(tensor: &Option<HostTensor>) -> Option<causeway::TensorRef<'_>> {
    tensor.as_ref().map(HostTensor::view)
}

fn run(problem: &Conv1d, tensors: &Tensors) -> Results {
    let device = Device::cpu();
    let poisoned = |at: usize, shape: &[i64]| problem.placements[at].clone().poisoned(problem.dtype, shape);
    let (dim, states) = (problem.shape[1], problem.states_shape());
    let mut results = Results {
        y: poisoned(5, &problem.shape),
        final_states: problem.final_states.then(|| poisoned(6, &states)),
        dx: poisoned(7, &problem.shape),
        dweight: problem.flat[0].clone().poisoned(problem.dweight_dtype(), &[dim, problem.width]),
        dbias: problem.bias.then(|| {
            let mut dbias = HostTensor::zeros(problem.dweight_dtype(), &[dim]).unwrap();
            dbias.fill_bytes(POISON);
            dbias
        }),
        dinitial_states: problem.initial_states.then(|| poisoned(8, &states)),
    };
    Forward {
        x: tensors.x.view(),
        weight: tensors.weight.view(),
        bias: view(&tensors.bias),
        initial_states: view(&tensors.initial_states),
        seq_idx: view(&tensors.seq_idx),
        cu_seqlens: view(&tensors.cu_seqlens),
        residual: view(&tensors.residual),
        activation: problem.activation,
        y: results.y.view_mut(),
        final_states: results.final_states.as_mut().map(HostTensor::view_mut),
    }
    .run(&device)
    .unwrap();
    Backward {
        x: tensors.x.view(),
        weight: tensors.weight.view(),
        bias: view(&tensors.bias),
        dy: tensors.dy.view(),
        initial_states: view(&tensors.initial_states),
        seq_idx: view(&tensors.seq_idx),
        cu_seqlens: view(&tensors.cu_seqlens),
        dfinal_states: view(&tensors.dfinal_states),
        activation: problem.activation,
        dx: results.dx.view_mut(),
        dweight: results.dweight.view_mut(),
        dbias: results.dbias.as_mut().map(HostTensor::view_mut),
        dinitial_states: results.dinitial_states.as_mut().map(HostTensor::view_mut),
    }
    .run(&device)
    .unwrap();
    results
}

impl Tensors {
    fn oracle_inputs(&self, activation: Activation) -> oracle::Inputs<'_> {
        oracle::Inputs {
            x: self.x.view(),
            weight: self.weight.view(),
            bias: view(&self.bias),
            initial_states: view(&self.initial_states),
            seq_idx: view(&self.seq_idx),
            cu_seqlens: view(&self.cu_seqlens),
            residual: view(&self.residual),
            activation,
        }
    }
}

/// A decode update.
#[derive(Debug, Clone)]
struct Decode {
    /// batch, dim, seqlen; the last axis is left out of x when `flat`.
    shape: [i64; 3],
    flat: bool,
    width: i64,
    extra_state: i64,
    dtype: DType,
    weight_dtype: DType,
    activation: Activation,
    bias: bool,
    ring: bool,
    indices: bool,
    /// Of x, conv_state and y.
    placements: Vec<Placement>,
    seed: u64,
}

fn decode() -> impl Strategy<Value = Decode> {
    let sizes = (0..=5i64, 0..=20i64, 0..=6i64, any::<bool>(), width(), 0..=4i64);
    let types = (float_dtype(), 0..3usize, activation());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (sizes, types, flags, prop::collection::vec(placement(3), 3), any::<u64>()).prop_map(
        |(
            (batch, dim, seqlen, flat, width, extra_state),
            (dtype, weight, activation),
            (bias, ring, indices),
            placements,
            seed,
        )| Decode {
            shape: [batch, dim, if flat { 1 } else { seqlen }],
            flat,
            width,
            extra_state,
            dtype,
            weight_dtype: weight_dtype(dtype, weight),
            activation,
            bias,
            ring,
            indices,
            placements,
            seed,
        },
    )
}

impl Decode {
    /// (batch, dim) instead of (batch, dim, 1).
    fn flattened(&self, tensor: HostTensor) -> HostTensor {
        if !self.flat {
            return tensor;
        }
        let (offset, strides) = (tensor.offset(), [tensor.strides()[0], tensor.strides()[1]]);
        tensor.restrided(offset, &self.shape[..2], &strides).unwrap()
    }
}

fn check_decode(problem: &Decode) -> Result<(), TestCaseError> {
    let random = &mut Random(problem.seed);
    let [batch, dim, _] = problem.shape;
    let state_len = problem.width - 1 + problem.extra_state;
    let rows = if problem.indices { batch + 2 } else { batch };
    let x = problem.flattened(problem.placements[0].uniform(problem.dtype, &problem.shape, random, 1.0));
    let mut conv_state = problem.placements[1].clone().poisoned(problem.dtype, &[rows, dim, state_len]);
    conv_state.assign(|_| random.uniform());
    let weight_shape = [dim, problem.width];
    let weight = HostTensor::from_fn(problem.weight_dtype, &weight_shape, |_| random.uniform()).unwrap();
    let bias = problem
        .bias
        .then(|| HostTensor::from_fn(problem.weight_dtype, &[dim], |_| random.uniform()).unwrap());
    let cache_seqlens = problem.ring.then(|| {
        HostTensor::from_fn(DType::I32, &[batch], |_| random.below(3 * state_len + 3) as f64).unwrap()
    });
    let conv_state_indices = problem.indices.then(|| {
        // Distinct rows from a random one on, some of them left out.
        let first = random.below(rows);
        HostTensor::from_fn(DType::I32, &[batch], |i| {
            if random.below(4) == 0 { -1.0 - i as f64 } else { ((first + i as i64) % rows) as f64 }
        })
        .unwrap()
    });
    let truth = oracle::update(&oracle::UpdateInputs {
        x: x.view(),
        conv_state: conv_state.view(),
        weight: weight.view(),
        bias: view(&bias),
        cache_seqlens: view(&cache_seqlens),
        conv_state_indices: view(&conv_state_indices),
        activation: problem.activation,
    });
    let mut y = problem.flattened(problem.placements[2].clone().poisoned(problem.dtype, &problem.shape));
    Update {
        x: x.view(),
        conv_state: conv_state.view_mut(),
        weight: weight.view(),
        bias: view(&bias),
        cache_seqlens: view(&cache_seqlens),
        conv_state_indices: view(&conv_state_indices),
        activation: problem.activation,
        y: y.view_mut(),
    }
    .run(&Device::cpu())
    .unwrap();
    check("y", &truth.y, &y)?;
    check("conv_state", &truth.conv_state, &conv_state)
}

fn bytes(results: &Results) -> Vec<&[u8]> {
    let optional = [&results.final_states, &results.dbias, &results.dinitial_states];
    [&results.y, &results.dx, &results.dweight]
        .into_iter()
        .chain(optional.into_iter().flatten())
        .map(HostTensor::bytes)
        .collect()
}

proptest! {
    #![proptest_config(config(1400))]

    #[test]
    fn forward_and_backward_agree_with_the_oracle(problem in conv1d()) {
        let tensors = problem.tensors();
        let results = run(&problem, &tensors);
        let inputs = tensors.oracle_inputs(problem.activation);
        let truth = oracle::forward(&inputs);
        check("y", &truth.y, &results.y)?;
        if let Some(states) = &results.final_states {
            check("final_states", &truth.final_states, states)?;
        }
        let dfinal_states = view(&tensors.dfinal_states);
        let truth =
            oracle::backward(&inputs, &tensors.dy.view(), dfinal_states.as_ref(), problem.dweight_dtype());
        check("dx", &truth.dx, &results.dx)?;
        check("dweight", &truth.dweight, &results.dweight)?;
        if let Some(dbias) = &results.dbias {
            check("dbias", &truth.dbias, dbias)?;
        }
        if let Some(states) = &results.dinitial_states {
            check("dinitial_states", &truth.dinitial_states, states)?;
        }
    }
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn update_agrees_with_the_oracle(problem in decode()) {
        check_decode(&problem)?;
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn varlen_states_agree_with_the_oracle(
        dim in 0..30i64,
        state_len in 0..12i64,
        lengths in prop::collection::vec(0..15i64, 0..8),
        long in any::<bool>(),
        dtype in float_dtype(),
        x_placement in placement(2),
        states_placement in placement(3),
        seed in any::<u64>(),
    ) {
        let total = lengths.iter().sum::<i64>();
        let boundaries: Vec<i64> = (0..=lengths.len()).map(|end| lengths[..end].iter().sum()).collect();
        let x = x_placement.uniform(dtype, &[total, dim], &mut Random(seed), 1.0);
        let index = if long { DType::I64 } else { DType::I32 };
        let cu_seqlens =
            HostTensor::from_fn(index, &[boundaries.len() as i64], |i| boundaries[i] as f64).unwrap();
        let mut states = states_placement.poisoned(dtype, &[lengths.len() as i64, dim, state_len]);
        let mut call =
            VarlenStates { x: x.view(), cu_seqlens: cu_seqlens.view(), states: states.view_mut() };
        call.run(&Device::cpu()).unwrap();
        check("states", &oracle::varlen_states(&x.view(), &cu_seqlens.view(), state_len), &states)?;
    }
}

/// One call in pools of 1, 2 and 3 threads, and again in each.
fn check_bits(problem: &Conv1d) -> Result<(), TestCaseError> {
    use std::sync::LazyLock;
    static POOLS: LazyLock<Vec<rayon::ThreadPool>> = LazyLock::new(|| {
        (1..=3).map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap()).collect()
    });
    let tensors = problem.tensors();
    let reference = POOLS[0].install(|| run(problem, &tensors));
    for (threads, pool) in POOLS.iter().enumerate() {
        for _ in 0..2 {
            let again = pool.install(|| run(problem, &tensors));
            prop_assert!(bytes(&again) == bytes(&reference), "{} threads: {problem:?}", threads + 1);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn bits_do_not_depend_on_threads_or_repetition(problem in conv1d()) {
        check_bits(&problem)?;
    }
}

proptest! {
    #![proptest_config(config(12))]

    /// Sizes for which the work is split: along dim, along batch, and along one long row.
    #[test]
    fn bits_do_not_depend_on_threads_for_large_shapes(
        problem in conv1d(),
        shape in prop::sample::select(vec![
            [2, 300, 501], [1, 3, 60_003], [129, 2, 600], [1, 700, 333], [3, 33, 4_001],
        ]),
        channel_last in any::<bool>(),
        width in 1..=6i64,
    ) {
        let batch = if problem.cu_seqlens.is_some() { 1 } else { shape[0] };
        let mut problem = Conv1d { shape: [batch, shape[1], shape[2]], width, ..problem };
        let order = if channel_last { [0, 2, 1] } else { [0, 1, 2] };
        for placement in &mut problem.placements {
            *placement = placement.clone().dense(&order);
        }
        check_bits(&problem)?;
    }
}

/// A dense f64 problem for the checks that compare two ways of computing one thing.
fn plain(seqlen: i64, width: i64, activation: Activation, placements: Vec<Placement>, seed: u64) -> Conv1d {
    let dense = |placement: &Placement| placement.clone().without_expanding(&[0, 1, 2]);
    Conv1d {
        shape: [2, 5, seqlen],
        width,
        dtype: DType::F64,
        weight_dtype: DType::F64,
        dweight_f32: false,
        activation,
        bias: true,
        residual: true,
        initial_states: true,
        final_states: true,
        seq_idx: None,
        cu_seqlens: None,
        placements: placements.iter().map(dense).collect(),
        flat: vec![Placement::plain(2); 3],
        seed,
    }
}

/// Positions `from..to`.
fn part(tensor: &HostTensor, from: i64, to: i64) -> HostTensor {
    let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
    let offset = tensor.offset() + from * strides[2];
    tensor.clone().restrided(offset, &[shape[0], shape[1], to - from], &strides).unwrap()
}

fn close(name: &str, whole: &[f64], parts: &[f64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(whole.len(), parts.len());
    for (a, b) in whole.iter().zip(parts) {
        prop_assert!((a - b).abs() < 1e-12 * (1.0 + a.abs()), "{name}: {a} whole, {b} in parts");
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(200))]

    /// Two chunks, with the states and their gradients carried over, are the whole.
    #[test]
    fn chunks_with_carried_states_are_the_whole(
        (seqlen, cut) in (1..60i64).prop_flat_map(|seqlen| (Just(seqlen), 0..=seqlen)),
        width in 1..=9i64,
        activation in activation(),
        placements in prop::collection::vec(placement(3), 9),
        seed in any::<u64>(),
    ) {
        let whole_problem = plain(seqlen, width, activation, placements.clone(), seed);
        let whole_tensors = whole_problem.tensors();
        let whole = run(&whole_problem, &whole_tensors);
        let chunk = |from: i64, to: i64| {
            let problem = plain(to - from, width, activation, placements.clone(), seed);
            let tensors = Tensors {
                x: part(&whole_tensors.x, from, to),
                dy: part(&whole_tensors.dy, from, to),
                residual: whole_tensors.residual.as_ref().map(|residual| part(residual, from, to)),
                ..whole_problem.tensors()
            };
            (problem, tensors)
        };
        let (first_problem, mut first_tensors) = chunk(0, cut);
        let (second_problem, mut second_tensors) = chunk(cut, seqlen);
        // Forward: states go on.
        second_tensors.initial_states = run(&first_problem, &first_tensors).final_states;
        let second = run(&second_problem, &second_tensors);
        // Backward: their gradients come back.
        first_tensors.dfinal_states = second.dinitial_states.clone();
        let first = run(&first_problem, &first_tensors);

        for (name, whole, first, second) in
            [("y", &whole.y, &first.y, &second.y), ("dx", &whole.dx, &first.dx, &second.dx)]
        {
            close(name, &part(whole, 0, cut).to_f64(), &first.to_f64())?;
            close(name, &part(whole, cut, seqlen).to_f64(), &second.to_f64())?;
        }
        let states = |states: &Option<HostTensor>| states.as_ref().unwrap().to_f64();
        close("final_states", &states(&whole.final_states), &states(&second.final_states))?;
        close("dinitial_states", &states(&whole.dinitial_states), &states(&first.dinitial_states))?;
        let sum = |a: &HostTensor, b: &HostTensor| -> Vec<f64> {
            a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a + b).collect()
        };
        close("dweight", &whole.dweight.to_f64(), &sum(&first.dweight, &second.dweight))?;
        let dbias = |results: &Results| results.dbias.clone().unwrap();
        close("dbias", &dbias(&whole).to_f64(), &sum(&dbias(&first), &dbias(&second)))?;
    }

    /// Token by token through update is the whole row through forward.
    #[test]
    fn updates_one_by_one_are_a_forward_call(
        seqlen in 1..40i64,
        width in 1..=9i64,
        activation in activation(),
        ring in any::<bool>(),
        extra in 0..4i64,
        seed in any::<u64>(),
    ) {
        let mut problem = plain(seqlen, width, activation, vec![Placement::plain(3); 9], seed);
        problem.residual = false;
        problem.initial_states = false;
        let tensors = problem.tensors();
        let whole = run(&problem, &tensors).y;
        let mut conv_state = HostTensor::zeros(DType::F64, &[2, 5, width - 1 + extra]).unwrap();
        for t in 0..seqlen {
            let x = part(&tensors.x, t, t + 1);
            let mut y = HostTensor::zeros(DType::F64, &[2, 5, 1]).unwrap();
            let lengths = HostTensor::from_fn(DType::I32, &[2], |_| t as f64).unwrap();
            Update {
                x: x.view(),
                conv_state: conv_state.view_mut(),
                weight: tensors.weight.view(),
                bias: view(&tensors.bias),
                cache_seqlens: ring.then(|| lengths.view()),
                conv_state_indices: None,
                activation,
                y: y.view_mut(),
            }
            .run(&Device::cpu())
            .unwrap();
            close("y", &part(&whole, t, t + 1).to_f64(), &y.to_f64())?;
        }
    }
}
