//! Forward and backward.

use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, Error, HostTensor};

use crate::{Arguments, Change, check, integers, poisoned, zeros};

/// batch 2, dim 3, seqlen 5, width 4; packed, batch is 1 and 2 sequences make the row.
pub fn conv1d_arguments() -> Arguments {
    let x = || zeros(DType::F16, &[2, 3, 5]);
    let states = || zeros(DType::F16, &[2, 3, 3]);
    Arguments(vec![
        ("x", x()),
        ("weight", zeros(DType::BF16, &[3, 4])),
        ("bias", zeros(DType::BF16, &[3])),
        ("initial_states", states()),
        ("seq_idx", zeros(DType::I32, &[2, 5])),
        ("residual", x()),
        ("y", x()),
        ("final_states", states()),
        ("dy", x()),
        ("dfinal_states", states()),
        ("dx", x()),
        ("dweight", zeros(DType::F32, &[3, 4])),
        ("dbias", zeros(DType::F32, &[3])),
        ("dinitial_states", states()),
        ("B", x()),
        ("C", x()),
        ("dB", x()),
        ("dC", x()),
    ])
}

/// Puts boundaries in, and one row of 5 positions.
fn pack(arguments: &mut Arguments, boundaries: HostTensor) {
    for name in ["x", "residual", "y", "dy", "dx", "B", "C", "dB", "dC"] {
        arguments.replace(name, DType::F16, &[1, 3, 5]);
    }
    arguments.replace("seq_idx", DType::I32, &[1, 5]);
    arguments.0.push(("cu_seqlens", boundaries));
}

fn run_forward(row: usize, change: Change) -> (Result<(), Error>, Vec<HostTensor>) {
    let mut arguments = conv1d_arguments();
    change(&mut arguments);
    let mut y = poisoned(arguments.take("y").unwrap());
    let mut final_states = arguments.take("final_states").map(poisoned);
    let result = Forward {
        x: arguments.get("x").unwrap(),
        weight: arguments.get("weight").unwrap(),
        bias: arguments.get("bias"),
        initial_states: arguments.get("initial_states"),
        seq_idx: arguments.get("seq_idx"),
        cu_seqlens: arguments.get("cu_seqlens"),
        residual: arguments.get("residual"),
        b: arguments.get("B"),
        c: arguments.get("C"),
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        y: y.view_mut(),
        final_states: final_states.as_mut().map(HostTensor::view_mut),
    }
    .run(&Device::cpu());
    assert!(row > 0 || result.is_ok(), "the call that every row changes is right: {result:?}");
    (result, std::iter::once(y).chain(final_states).collect())
}

fn run_backward(row: usize, change: Change) -> (Result<(), Error>, Vec<HostTensor>) {
    let mut arguments = conv1d_arguments();
    change(&mut arguments);
    let mut dx = poisoned(arguments.take("dx").unwrap());
    let mut dweight = poisoned(arguments.take("dweight").unwrap());
    let mut dbias = arguments.take("dbias").map(poisoned);
    let mut dinitial_states = arguments.take("dinitial_states").map(poisoned);
    let [mut db, mut dc] = ["dB", "dC"].map(|name| arguments.take(name).map(poisoned));
    let result = Backward {
        x: arguments.get("x").unwrap(),
        weight: arguments.get("weight").unwrap(),
        bias: arguments.get("bias"),
        dy: arguments.get("dy").unwrap(),
        initial_states: arguments.get("initial_states"),
        seq_idx: arguments.get("seq_idx"),
        cu_seqlens: arguments.get("cu_seqlens"),
        dfinal_states: arguments.get("dfinal_states"),
        b: arguments.get("B"),
        c: arguments.get("C"),
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        dx: dx.view_mut(),
        dweight: dweight.view_mut(),
        dbias: dbias.as_mut().map(HostTensor::view_mut),
        dinitial_states: dinitial_states.as_mut().map(HostTensor::view_mut),
        db: db.as_mut().map(HostTensor::view_mut),
        dc: dc.as_mut().map(HostTensor::view_mut),
    }
    .run(&Device::cpu());
    assert!(row > 0 || result.is_ok(), "the call that every row changes is right: {result:?}");
    (
        result,
        [dx, dweight].into_iter().chain([dbias, dinitial_states, db, dc].into_iter().flatten()).collect(),
    )
}

/// Rows that forward and backward share.
const SHARED: &[(Change, &str)] = &[
    (|a| a.replace("x", DType::F16, &[2, 3]), "x has shape (2, 3): expected (batch, dim, seqlen)"),
    (
        |a| a.replace("x", DType::I32, &[2, 3, 5]),
        "x has dtype i32: expected f32, f16, bf16 or f64, the dtypes of a convolution on a CPU",
    ),
    (
        |a| a.replace("weight", DType::BF16, &[3, 1, 4]),
        "weight has shape (3, 1, 4): expected (dim, width); for the (dim, 1, width) of a torch.nn.Conv1d, pass weight[:, 0]",
    ),
    (
        |a| a.replace("weight", DType::BF16, &[4, 4]),
        "x has shape (2, 3, 5) and weight has shape (4, 4): expected the same dim in both, the second axis of x and the first of weight",
    ),
    (
        |a| a.replace("weight", DType::BF16, &[5, 4]),
        "x has shape (2, 3, 5) and weight has shape (5, 4): expected the same dim in both, the second axis of x and the first of weight; if x is (batch, seqlen, dim), swap its last two axes",
    ),
    (
        |a| a.replace("weight", DType::BF16, &[4, 3]),
        "x has shape (2, 3, 5) and weight has shape (4, 3): expected the same dim in both, the second axis of x and the first of weight; if weight is (width, dim), transpose it",
    ),
    (|a| a.replace("weight", DType::BF16, &[3, 0]), "weight has width 0: widths 1 to 256 are supported"),
    (|a| a.replace("weight", DType::BF16, &[3, 257]), "weight has width 257: widths 1 to 256 are supported"),
    (
        |a| a.replace("weight", DType::F64, &[3, 4]),
        "weight has dtype f64: expected f32, f16 or bf16, the dtypes of a weight",
    ),
    (|a| a.replace("x", DType::F64, &[2, 3, 5]), "weight has dtype bf16: expected f64, since x is f64"),
    (|a| a.replace("bias", DType::BF16, &[1, 3]), "bias has shape (1, 3): expected (dim,)"),
    (|a| a.replace("bias", DType::BF16, &[4]), "bias has dim 4: expected 3, the dim of x"),
    (|a| a.replace("bias", DType::F32, &[3]), "bias has dtype f32: expected bf16, the dtype of weight"),
    (
        |a| a.replace("initial_states", DType::F16, &[2, 3]),
        "initial_states has shape (2, 3): expected (batch, dim, width - 1), or one row per sequence of cu_seqlens",
    ),
    (
        |a| a.replace("initial_states", DType::F16, &[1, 3, 3]),
        "initial_states has batch 1: expected 2, the batch of x",
    ),
    (
        |a| a.replace("initial_states", DType::F16, &[2, 4, 3]),
        "initial_states has dim 4: expected 3, the dim of x",
    ),
    (
        |a| a.replace("initial_states", DType::F16, &[2, 3, 4]),
        "initial_states has length 4: expected 3, the width of weight less one",
    ),
    (
        |a| a.replace("initial_states", DType::F32, &[2, 3, 3]),
        "initial_states has dtype f32: expected f16, the dtype of x",
    ),
    (|a| a.replace("seq_idx", DType::I32, &[2]), "seq_idx has shape (2,): expected (batch, seqlen)"),
    (|a| a.replace("seq_idx", DType::I32, &[1, 5]), "seq_idx has batch 1: expected 2, the batch of x"),
    (|a| a.replace("seq_idx", DType::I32, &[2, 6]), "seq_idx has seqlen 6: expected 5, the seqlen of x"),
    (
        |a| a.replace("seq_idx", DType::I64, &[2, 5]),
        "seq_idx has dtype i64: expected i32, the dtype of sequence indices",
    ),
    (|a| a.replace("B", DType::F16, &[2, 5, 3]), "B has dim 5: expected 3, the dim of x"),
    (|a| a.replace("C", DType::F32, &[2, 3, 5]), "C has dtype f32: expected f16, the dtype of x"),
    (
        |a| a.0.push(("cu_seqlens", integers(DType::I32, &[0, 5]))),
        "x has batch 2: expected 1, since cu_seqlens packs all sequences into one row",
    ),
    (
        |a| pack(a, zeros(DType::I32, &[1, 3])),
        "cu_seqlens has shape (1, 3): expected (n + 1,) for n sequences",
    ),
    (
        |a| pack(a, zeros(DType::F32, &[3])),
        "cu_seqlens has dtype f32: expected i32 or i64, the dtypes of boundaries",
    ),
    (
        |a| pack(a, integers(DType::I32, &[])),
        "cu_seqlens is empty: n sequences need n + 1 boundaries, the first of them 0",
    ),
    (|a| pack(a, integers(DType::I64, &[1, 3, 5])), "cu_seqlens[0] is 1: the first sequence starts at 0"),
    (|a| pack(a, integers(DType::I32, &[-2, 3, 5])), "cu_seqlens[0] is -2: the first sequence starts at 0"),
    (
        |a| pack(a, integers(DType::I32, &[0, 4, 3, 5])),
        "cu_seqlens[2] is 3, less than the 4 before it: boundaries never decrease",
    ),
    (|a| pack(a, integers(DType::I64, &[0, 2, 6])), "cu_seqlens ends at 6: expected 5, the length of x"),
    (
        |a| pack(a, integers(DType::I64, &[0, 1, 2, 5])),
        "initial_states has sequences 2: expected 3, the number of sequences in cu_seqlens",
    ),
];

#[test]
fn forward_explains_wrong_arguments() {
    check(run_forward, SHARED);
    check(
        run_forward,
        &[
            (
                |a| a.replace("residual", DType::F16, &[2, 5, 3]),
                "residual has dim 5: expected 3, the dim of x",
            ),
            (
                |a| a.replace("residual", DType::BF16, &[2, 3, 5]),
                "residual has dtype bf16: expected f16, the dtype of x",
            ),
            (|a| a.replace("y", DType::F16, &[6, 5]), "y has shape (6, 5): expected (batch, dim, seqlen)"),
            (|a| a.replace("y", DType::F16, &[1, 3, 5]), "y has batch 1: expected 2, the batch of x"),
            (|a| a.replace("y", DType::F16, &[2, 3, 4]), "y has seqlen 4: expected 5, the seqlen of x"),
            (|a| a.replace("y", DType::F32, &[2, 3, 5]), "y has dtype f32: expected f16, the dtype of x"),
            (
                |a| {
                    let y = a.at("y").clone();
                    *a.at("y") = y.restrided(0, &[2, 3, 5], &[0, 5, 1]).unwrap();
                },
                "y has shape (2, 3, 5) and strides (0, 5, 1), which map several elements to one address: an output \
                 needs a place for each element; pass a tensor that is not expanded",
            ),
            (
                |a| a.replace("final_states", DType::F16, &[2, 3, 5]),
                "final_states has length 5: expected 3, the width of weight less one",
            ),
            (
                |a| {
                    let states = a.at("final_states").clone();
                    *a.at("final_states") = states.restrided(0, &[2, 3, 3], &[3, 3, 1]).unwrap();
                },
                "final_states has shape (2, 3, 3) and strides (3, 3, 1), which map several elements to one address: \
                 an output needs a place for each element; pass a tensor that is not expanded",
            ),
        ],
    );
}

#[test]
fn backward_explains_wrong_arguments() {
    check(run_backward, SHARED);
    check(
        run_backward,
        &[
            (|a| a.replace("dy", DType::F16, &[2, 3, 6]), "dy has seqlen 6: expected 5, the seqlen of x"),
            (|a| a.replace("dy", DType::F32, &[2, 3, 5]), "dy has dtype f32: expected f16, the dtype of x"),
            (
                |a| a.replace("dfinal_states", DType::F16, &[2, 3, 2]),
                "dfinal_states has length 2: expected 3, the width of weight less one",
            ),
            (|a| a.replace("dx", DType::F16, &[2, 2, 5]), "dx has dim 2: expected 3, the dim of x"),
            (|a| a.replace("dx", DType::BF16, &[2, 3, 5]), "dx has dtype bf16: expected f16, the dtype of x"),
            (
                |a| {
                    let dx = a.at("dx").clone();
                    *a.at("dx") = dx.restrided(0, &[2, 3, 5], &[15, 0, 1]).unwrap();
                },
                "dx has shape (2, 3, 5) and strides (15, 0, 1), which map several elements to one address: an output \
                 needs a place for each element; pass a tensor that is not expanded",
            ),
            (|a| a.replace("dweight", DType::F32, &[12]), "dweight has shape (12,): expected (dim, width)"),
            (
                |a| a.replace("dweight", DType::F32, &[3, 5]),
                "dweight has width 5: expected 4, the width of weight",
            ),
            (
                |a| a.replace("dweight", DType::F16, &[3, 4]),
                "dweight has dtype f16: expected bf16 or f32, the dtype of weight, or f32",
            ),
            (
                |a| {
                    let dweight = a.at("dweight").clone();
                    *a.at("dweight") = dweight.restrided(0, &[3, 4], &[4, 0]).unwrap();
                },
                "dweight has shape (3, 4) and strides (4, 0), which map several elements to one address: an output \
                 needs a place for each element; pass a tensor that is not expanded",
            ),
            (|a| a.replace("dbias", DType::F32, &[1]), "dbias has dim 1: expected 3, the dim of x"),
            (
                |a| a.replace("dbias", DType::BF16, &[3]),
                "dbias has dtype bf16: expected f32, the dtype of dweight",
            ),
            (
                |a| {
                    a.take("bias");
                },
                "dbias is given, but there is no bias",
            ),
            (
                |a| {
                    a.take("initial_states");
                },
                "dinitial_states is given, but there are no initial_states",
            ),
            (
                |a| {
                    a.take("B");
                },
                "dB is given, but there is no B",
            ),
            (|a| a.replace("dC", DType::F16, &[2, 3, 4]), "dC has seqlen 4: expected 5, the seqlen of x"),
            (
                |a| a.replace("dinitial_states", DType::F32, &[2, 3, 3]),
                "dinitial_states has dtype f32: expected f16, the dtype of x",
            ),
        ],
    );
}
