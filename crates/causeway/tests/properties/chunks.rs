//! Two ways to one result: chunks with carried states, tokens one by one.

use causeway::causal_conv1d::{Activation, Update};
use causeway::{DType, Device, HostTensor};
use proptest::prelude::*;

use crate::conv1d::{Conv1d, Results, Tensors, run};
use crate::placement::{Placement, placement};
use crate::{activation, config, view};

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
