//! Calls with gates take the kernels that calls without take, wherever the gates lie as x does.

use causeway::backend::gpu::plan::DeviceFacts;
use causeway::causal_conv1d::{Activation, Backward, Forward, Update};
use causeway::tensor::{DType, Location, TensorMut, TensorRef};

const DTYPE: DType = DType::BF16;
const SHAPE: [i64; 3] = [4, 2048, 4096];
const FIRST: [i64; 3] = [2048 * 4096, 4096, 1];
const LAST: [i64; 3] = [2048 * 4096, 1, 2048];
/// A third of a projection.
const THIRD: [i64; 3] = [3 * 2048 * 4096, 1, 3 * 2048];

fn read<'a>(shape: &[i64], strides: &[i64]) -> TensorRef<'a> {
    // SAFETY: planners never touch the memory.
    unsafe { TensorRef::from_raw(0x1000_0000 as *const u8, DTYPE, shape, strides, Location::Cuda(0)) }
        .unwrap()
}

fn written<'a>(shape: &[i64], strides: &[i64]) -> TensorMut<'a> {
    // SAFETY: as above.
    unsafe { TensorMut::from_raw(0x2000_0000 as *mut u8, DTYPE, shape, strides, Location::Cuda(0)) }.unwrap()
}

fn entries(strides: &[i64; 3], gates: [Option<&[i64; 3]>; 2], width: i64) -> [&'static str; 2] {
    let weight = || read(&[2048, width], &[width, 1]);
    let [b, c] = gates;
    let gate = |strides: Option<&[i64; 3]>| strides.map(|strides| read(&SHAPE, strides));
    let gradient = |strides: Option<&[i64; 3]>| strides.map(|strides| written(&SHAPE, strides));
    let facts = DeviceFacts::h200();
    let forward = Forward {
        x: read(&SHAPE, strides),
        weight: weight(),
        bias: None,
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        residual: None,
        b: gate(b),
        c: gate(c),
        activation: Activation::None,
        round_products: false,
        norm: None,
        y: written(&SHAPE, strides),
        final_states: None,
    };
    let backward = Backward {
        x: read(&SHAPE, strides),
        weight: weight(),
        bias: None,
        dy: read(&SHAPE, strides),
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        dfinal_states: None,
        b: gate(b),
        c: gate(c),
        activation: Activation::None,
        round_products: false,
        norm: None,
        dx: written(&SHAPE, strides),
        dweight: written(&[2048, width], &[width, 1]),
        dbias: None,
        dinitial_states: None,
        db: gradient(b),
        dc: gradient(c),
    };
    let plans = [forward.plan(&facts), backward.plan(&facts)];
    plans.map(|plan| plan.unwrap().unwrap().entry())
}

#[test]
fn gates_take_the_fast_kernels_of_their_layout() {
    for width in [1, 3, 4, 7, 8] {
        for gates in [[Some(()), Some(())], [Some(()), None], [None, Some(())]] {
            let lie = |strides| gates.map(|gate: Option<()>| gate.map(|()| strides));
            // Wider windows have no room for tiles.
            let backward = ["causal_conv1d_backward_tiles_last", "causal_conv1d_backward_channel_last"]
                [usize::from(width > 4)];
            let last = ["causal_conv1d_forward_channel_last", backward];
            assert_eq!(entries(&LAST, lie(&LAST), width), last);
            assert_eq!(entries(&LAST, lie(&THIRD), width), last);
            let first = ["causal_conv1d_forward_channel_first", "causal_conv1d_backward_channel_first"];
            assert_eq!(entries(&FIRST, lie(&FIRST), width), first);
        }
    }
}

#[test]
fn a_gate_that_lies_otherwise_takes_the_general_kernels() {
    let general = ["causal_conv1d_forward_general", "causal_conv1d_backward_general"];
    assert_eq!(entries(&LAST, [Some(&FIRST), Some(&LAST)], 4), general);
    assert_eq!(entries(&FIRST, [None, Some(&LAST)], 4), general);
    assert_eq!(entries(&LAST, [Some(&LAST), None], 9), general);
}

#[test]
fn a_gated_update_moves_packets() {
    let update = |gate: &[i64; 2]| Update {
        x: read(&[64, 2048], &[2048, 1]),
        weight: read(&[2048, 3], &[3, 1]),
        bias: None,
        cache_seqlens: None,
        conv_state_indices: None,
        b: Some(read(&[64, 2048], gate)),
        c: Some(read(&[64, 2048], gate)),
        activation: Activation::None,
        round_products: false,
        norm: None,
        conv_state: written(&[64, 2048, 2], &[2048 * 2, 2, 1]),
        y: written(&[64, 2048], &[2048, 1]),
    };
    let entry = |update: Update<'_>| update.plan(&DeviceFacts::h200()).unwrap().unwrap().entry();
    assert_eq!(entry(update(&[2048, 1])), "causal_conv1d_update_vector");
    assert_eq!(entry(update(&[1, 64])), "causal_conv1d_update_general");
}
