//! Two ways to one result: chunks with carried states, tokens one by one.

use causeway::causal_conv1d::Activation;
use causeway::{DType, Device, HostTensor};
use proptest::prelude::*;

use crate::calls::{Incoming, Inputs, UpdateInputs};
use crate::conv1d::{Conv1d, Tensors, run};
use crate::placement::{Placement, placement};
use crate::{activation, config};

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
        device: Device::cpu(),
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
            let Tensors { inputs, incoming } = whole_tensors.clone();
            let inputs = Inputs {
                x: part(&inputs.x, from, to),
                residual: inputs.residual.as_ref().map(|residual| part(residual, from, to)),
                ..inputs
            };
            let incoming = Incoming { dy: part(&incoming.dy, from, to), ..incoming };
            (problem, Tensors { inputs, incoming })
        };
        let (first_problem, mut first_tensors) = chunk(0, cut);
        let (second_problem, mut second_tensors) = chunk(cut, seqlen);
        // Forward: states go on.
        second_tensors.inputs.initial_states = run(&first_problem, &first_tensors).outputs.final_states;
        let second = run(&second_problem, &second_tensors);
        // Backward: their gradients come back.
        first_tensors.incoming.dfinal_states = second.gradients.dinitial_states.clone();
        let first = run(&first_problem, &first_tensors);

        let in_parts = |name, whole: &HostTensor, first: &HostTensor, second: &HostTensor| {
            close(name, &part(whole, 0, cut).to_f64(), &first.to_f64())?;
            close(name, &part(whole, cut, seqlen).to_f64(), &second.to_f64())
        };
        in_parts("y", &whole.outputs.y, &first.outputs.y, &second.outputs.y)?;
        in_parts("dx", &whole.gradients.dx, &first.gradients.dx, &second.gradients.dx)?;

        let values = |tensor: &Option<HostTensor>| tensor.as_ref().unwrap().to_f64();
        let sum = |a: Vec<f64>, b: Vec<f64>| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        close("final_states", &values(&whole.outputs.final_states), &values(&second.outputs.final_states))?;
        let (whole, first, second) = (whole.gradients, first.gradients, second.gradients);
        close("dinitial_states", &values(&whole.dinitial_states), &values(&first.dinitial_states))?;
        close("dweight", &whole.dweight.to_f64(), &sum(first.dweight.to_f64(), second.dweight.to_f64()))?;
        close("dbias", &values(&whole.dbias), &sum(values(&first.dbias), values(&second.dbias)))?;
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
        let whole = run(&problem, &tensors).outputs.y;
        let mut conv_state = HostTensor::zeros(DType::F64, &[2, 5, width - 1 + extra]).unwrap();
        for t in 0..seqlen {
            let mut y = HostTensor::zeros(DType::F64, &[2, 5, 1]).unwrap();
            let lengths = HostTensor::from_fn(DType::I32, &[2], |_| t as f64).unwrap();
            let inputs = UpdateInputs {
                x: part(&tensors.inputs.x, t, t + 1),
                weight: tensors.inputs.weight.clone(),
                bias: tensors.inputs.bias.clone(),
                cache_seqlens: ring.then_some(lengths),
                conv_state_indices: None,
                activation,
            };
            inputs.update(&mut conv_state, &mut y, &Device::cpu()).unwrap();
            close("y", &part(&whole, t, t + 1).to_f64(), &y.to_f64())?;
        }
    }
}
