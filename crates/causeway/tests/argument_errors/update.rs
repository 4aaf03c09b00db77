//! The decode update, and the states of a packed batch.

use causeway::causal_conv1d::{Activation, Update, VarlenStates};
use causeway::{DType, Device, Error, HostTensor};

use crate::{Arguments, Change, check, integers, poisoned, zeros};

/// batch 2, dim 3, 2 tokens, width 4, 5 rows of 6 positions.
fn run_update(row: usize, change: Change) -> (Result<(), Error>, Vec<HostTensor>) {
    let mut arguments = Arguments(vec![
        ("x", zeros(DType::F32, &[2, 3, 2])),
        ("conv_state", zeros(DType::F32, &[5, 3, 6])),
        ("weight", zeros(DType::F32, &[3, 4])),
        ("bias", zeros(DType::F32, &[3])),
        ("cache_seqlens", integers(DType::I32, &[0, 7])),
        ("conv_state_indices", integers(DType::I32, &[4, -1])),
        ("y", zeros(DType::F32, &[2, 3, 2])),
        ("B", zeros(DType::F32, &[2, 3, 2])),
        ("C", zeros(DType::F32, &[2, 3, 2])),
    ]);
    change(&mut arguments);
    let mut y = poisoned(arguments.take("y").unwrap());
    let mut conv_state = poisoned(arguments.take("conv_state").unwrap());
    let result = Update {
        x: arguments.get("x").unwrap(),
        conv_state: conv_state.view_mut(),
        weight: arguments.get("weight").unwrap(),
        bias: arguments.get("bias"),
        cache_seqlens: arguments.get("cache_seqlens"),
        conv_state_indices: arguments.get("conv_state_indices"),
        b: arguments.get("B"),
        c: arguments.get("C"),
        activation: Activation::None,
        round_products: false,
        norm: None,
        y: y.view_mut(),
    }
    .run(&Device::cpu());
    assert!(row > 0 || result.is_ok(), "the call that every row changes is right: {result:?}");
    (result, vec![y, conv_state])
}

#[test]
fn update_explains_wrong_arguments() {
    check(
        run_update,
        &[
            (
                |a| a.replace("x", DType::F32, &[2]),
                "x has shape (2,): expected (batch, dim) or (batch, dim, seqlen)",
            ),
            (|a| a.replace("B", DType::F32, &[2, 3]), "B has shape (2, 3): expected the shape of x"),
            (|a| a.replace("C", DType::F16, &[2, 3, 2]), "C has dtype f16: expected f32, the dtype of x"),
            (
                |a| a.replace("weight", DType::F32, &[2, 4]),
                "x has shape (2, 3, 2) and weight has shape (2, 4): expected the same dim in both, the second axis of x and the first of weight; if x is (batch, seqlen, dim), swap its last two axes",
            ),
            (
                |a| a.replace("bias", DType::F16, &[3]),
                "bias has dtype f16: expected f32, the dtype of weight",
            ),
            (
                |a| a.replace("conv_state", DType::F32, &[5, 18]),
                "conv_state has shape (5, 18): expected (batch, dim, state_len)",
            ),
            (
                |a| a.replace("conv_state", DType::F32, &[5, 2, 6]),
                "conv_state has dim 2: expected 3, the dim of x",
            ),
            (
                |a| a.replace("conv_state", DType::F32, &[5, 3, 2]),
                "conv_state holds 2 positions: a convolution of width 4 needs at least 3; allocate (·, dim, 3) or \
                 longer",
            ),
            (
                |a| a.replace("conv_state", DType::F16, &[5, 3, 6]),
                "conv_state has dtype f16: expected f32, the dtype of x",
            ),
            (
                |a| {
                    let state = a.at("conv_state").clone();
                    *a.at("conv_state") = state.restrided(0, &[5, 3, 6], &[0, 6, 1]).unwrap();
                },
                "conv_state has shape (5, 3, 6) and strides (0, 6, 1), which map several elements to one address: an \
                 output needs a place for each element; pass a tensor that is not expanded",
            ),
            (|a| a.replace("y", DType::F32, &[2, 3]), "y has shape (2, 3): expected the shape of x"),
            (|a| a.replace("y", DType::BF16, &[2, 3, 2]), "y has dtype bf16: expected f32, the dtype of x"),
            (
                |a| a.replace("cache_seqlens", DType::I32, &[2, 1]),
                "cache_seqlens has shape (2, 1): expected (batch,)",
            ),
            (
                |a| a.replace("cache_seqlens", DType::I32, &[3]),
                "cache_seqlens has batch 3: expected 2, the batch of x",
            ),
            (
                |a| a.replace("cache_seqlens", DType::I64, &[2]),
                "cache_seqlens has dtype i64: expected i32, the dtype of indices",
            ),
            (
                |a| *a.at("cache_seqlens") = integers(DType::I32, &[0, -3]),
                "cache_seqlens[1] is -3: expected 0 to 2147483647, a count of positions",
            ),
            (
                |a| *a.at("conv_state_indices") = integers(DType::I32, &[5, 0]),
                "conv_state_indices[0] is 5: expected 0 to 4, the rows of conv_state, or a \
                 negative index for padding",
            ),
            (
                |a| *a.at("conv_state_indices") = integers(DType::I32, &[3, 3]),
                "conv_state_indices[0] and conv_state_indices[1] are both 3: each row may be updated by one batch \
                 entry only; use a negative index for padded entries",
            ),
            (
                |a| {
                    a.take("conv_state_indices");
                },
                "conv_state has batch 5: expected 2, the batch of x",
            ),
        ],
    );
}

fn run_varlen_states(row: usize, change: Change) -> (Result<(), Error>, Vec<HostTensor>) {
    let mut arguments = Arguments(vec![
        ("x", zeros(DType::BF16, &[7, 3])),
        ("cu_seqlens", integers(DType::I32, &[0, 4, 7])),
        ("states", zeros(DType::BF16, &[2, 3, 5])),
    ]);
    change(&mut arguments);
    let mut states = poisoned(arguments.take("states").unwrap());
    let result = VarlenStates {
        x: arguments.get("x").unwrap(),
        cu_seqlens: arguments.get("cu_seqlens").unwrap(),
        states: states.view_mut(),
    }
    .run(&Device::cpu());
    assert!(row > 0 || result.is_ok(), "the call that every row changes is right: {result:?}");
    (result, vec![states])
}

#[test]
fn varlen_states_explain_wrong_arguments() {
    check(
        run_varlen_states,
        &[
            (|a| a.replace("x", DType::BF16, &[1, 7, 3]), "x has shape (1, 7, 3): expected (total, dim)"),
            (
                |a| *a.at("cu_seqlens") = integers(DType::I32, &[0, 4, 6]),
                "cu_seqlens ends at 6: expected 7, the length of x",
            ),
            (
                |a| a.replace("states", DType::BF16, &[2, 15]),
                "states has shape (2, 15): expected (n, dim, state_len)",
            ),
            (
                |a| a.replace("states", DType::BF16, &[3, 3, 5]),
                "states has n 3: expected 2, the number of sequences in cu_seqlens",
            ),
            (|a| a.replace("states", DType::BF16, &[2, 7, 5]), "states has dim 7: expected 3, the dim of x"),
            (
                |a| a.replace("states", DType::F32, &[2, 3, 5]),
                "states has dtype f32: expected bf16, the dtype of x",
            ),
            (
                |a| {
                    let states = a.at("states").clone();
                    *a.at("states") = states.restrided(0, &[2, 3, 5], &[15, 2, 1]).unwrap();
                },
                "states has shape (2, 3, 5) and strides (15, 2, 1), which map several elements to one address: an \
                 output needs a place for each element; pass a tensor that is not expanded",
            ),
        ],
    );
}
