//! Gated calls that round their products give the bits of separate kernels.

use causeway::backend::cpu::{Cpu, Level};
use causeway::{Device, HostTensor};
use proptest::prelude::*;

use crate::calls::{Gates, Incoming, Inputs};
use crate::config;
use crate::conv1d::{Conv1d, Tensors, conv1d, run};
use crate::placement::{Placement, Random, placement};

/// A call as it is drawn for other tests, with rows that are short as often as long, and one layout for all tensors in two of three
/// calls: kernels for either layout ask for that.
fn gated() -> impl Strategy<Value = (Conv1d, [Option<Placement>; 2])> {
    let seqlen = prop_oneof![1 => 1..=9i64, 2 => 10..=70i64, 2 => 71..=300i64, 1 => 1000..=1200i64];
    let dim = prop_oneof![2 => 1..=10i64, 2 => 11..=70i64];
    let width = prop_oneof![8 => 1..=8i64, 1 => 9..=20i64];
    let layout = prop::sample::select(vec![None, Some([0, 1, 2]), Some([0, 2, 1])]);
    let gate = || prop::option::weighted(0.8, placement(3));
    (conv1d(), seqlen, dim, width, layout, gate(), gate()).prop_map(
        |(problem, seqlen, dim, width, layout, b, c)| {
            let mut problem = Conv1d { shape: [problem.shape[0], dim, seqlen], width, ..problem };
            let mut gates = [b, c];
            if let Some(order) = layout {
                for placement in problem.placements.iter_mut().chain(gates.iter_mut().flatten()) {
                    *placement = placement.clone().dense(&order);
                }
            }
            (problem, gates)
        },
    )
}

/// What a kernel of its own writes of two tensors, in a place of its own: their product or their sum, which f64 holds so precisely that
/// rounding it to their dtype is the only rounding.
fn written(a: &HostTensor, b: Option<&HostTensor>, place: &Placement, of: fn(f64, f64) -> f64) -> HostTensor {
    let Some(b) = b else { return a.clone() };
    let (a_values, b_values) = (a.to_f64(), b.to_f64());
    let mut result = place.clone().without_expanding(&[0, 1, 2]).zeros(a.dtype(), a.shape());
    result.assign(|i| of(a_values[i], b_values[i]));
    result
}

fn product(a: &HostTensor, b: Option<&HostTensor>, place: &Placement) -> HostTensor {
    written(a, b, place, |a, b| a * b)
}

/// -0 is 0: products with results at padding have signs, and zeros that are written there have none.
fn same(name: &str, found: &HostTensor, expected: &HostTensor) -> Result<(), TestCaseError> {
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let differs = (0..found.len()).find(|&i| found[i] != expected[i]);
    prop_assert!(
        differs.is_none(),
        "{name}[{}] is {:e}, and {:e} of separate kernels",
        differs.unwrap(),
        found[differs.unwrap()],
        expected[differs.unwrap()]
    );
    Ok(())
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn rounded_products_have_the_bits_of_separate_kernels((mut problem, gates) in gated()) {
        let separate = problem.tensors();
        let random = &mut Random(problem.seed ^ 1);
        let [b, c] = gates
            .map(|gate| gate.map(|gate| gate.uniform(problem.dtype, &problem.shape, random, 1.0)));
        let mut fused = separate.clone();
        fused.inputs.gates = Gates { b: b.clone(), c: c.clone() };

        let place = |at: usize| &problem.placements[at];
        let (x, dy) = (&separate.inputs.x, &separate.incoming.dy);
        let mut inputs = Inputs { x: product(x, b.as_ref(), place(0)), ..separate.inputs.clone() };
        // It is added to what C has multiplied; without C a kernel adds it to a sum that is not rounded.
        let residual = inputs.residual.take_if(|_| c.is_some());
        let incoming = Incoming { dy: product(dy, c.as_ref(), place(1)), ..separate.incoming.clone() };
        let tensors = Tensors { inputs, incoming };
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            problem.device = Device::Cpu(Cpu::with_level(level).unwrap());
            let found = run(&problem, &fused);
            let expected = run(&problem, &tensors);

            let (activated, dbx) = (&expected.outputs.y, &expected.gradients.dx);
            let place = |at: usize| &problem.placements[at];
            let y = product(activated, c.as_ref(), place(5));
            same("y", &found.outputs.y, &written(&y, residual.as_ref(), place(5), |y, more| y + more))?;
            same("dx", &found.gradients.dx, &product(dbx, b.as_ref(), place(7)))?;
            let states = [
                ("final_states", &found.outputs.final_states, &expected.outputs.final_states),
                ("dinitial_states", &found.gradients.dinitial_states, &expected.gradients.dinitial_states),
            ];
            for (name, found, expected) in states {
                if let (Some(found), Some(expected)) = (found, expected) {
                    same(name, found, expected)?;
                }
            }
            let products = [("dB", &found.gradients.dgates.b, x, dbx), ("dC", &found.gradients.dgates.c, dy, activated)];
            for (name, found, one, other) in products {
                if let Some(found) = found {
                    same(name, found, &product(one, Some(other), place(7)))?;
                }
            }
        }
    }
}
