//! Every wrong argument of the convolutions: which error, which sentence, and that nothing was written.
//!
//! Each row changes one thing of a call that is right.

use causeway::causal_conv1d::{Activation, Backward, Forward, Update, VarlenStates};
use causeway::oracle::POISON;
use causeway::{DType, Device, Error, HostTensor, Location, TensorRef};

/// The arguments of a call by name.
struct Arguments(Vec<(&'static str, HostTensor)>);

impl Arguments {
    fn at(&mut self, name: &str) -> &mut HostTensor {
        &mut self.0.iter_mut().find(|(key, _)| *key == name).expect("a name of the call").1
    }

    fn get(&self, name: &str) -> Option<TensorRef<'_>> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, tensor)| tensor.view())
    }

    fn take(&mut self, name: &str) -> Option<HostTensor> {
        let at = self.0.iter().position(|(key, _)| *key == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn replace(&mut self, name: &str, dtype: DType, shape: &[i64]) {
        *self.at(name) = zeros(dtype, shape);
    }
}

type Change = fn(&mut Arguments);

fn zeros(dtype: DType, shape: &[i64]) -> HostTensor {
    HostTensor::zeros(dtype, shape).unwrap()
}

fn integers(dtype: DType, values: &[i64]) -> HostTensor {
    HostTensor::from_fn(dtype, &[values.len() as i64], |i| values[i] as f64).unwrap()
}

/// An output whose every byte is poison.
fn poisoned(mut tensor: HostTensor) -> HostTensor {
    tensor.fill_bytes(POISON);
    tensor
}

fn expect(row: usize, result: Result<(), Error>, sentence: &str, outputs: &[&HostTensor]) {
    let error = result.expect_err(sentence);
    assert_eq!(error.to_string(), sentence, "row {row}");
    for output in outputs {
        let untouched = output.bytes().iter().all(|&byte| byte == POISON);
        assert!(untouched, "row {row}: {sentence:?}, but something was written");
    }
}

/// batch 2, dim 3, seqlen 5, width 4; packed, batch is 1 and 2 sequences make the row.
fn conv1d_arguments() -> Arguments {
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
    ])
}

/// Puts boundaries in, and one row of 5 positions.
fn pack(arguments: &mut Arguments, boundaries: HostTensor) {
    for name in ["x", "residual", "y", "dy", "dx"] {
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
        activation: Activation::Silu,
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
    let result = Backward {
        x: arguments.get("x").unwrap(),
        weight: arguments.get("weight").unwrap(),
        bias: arguments.get("bias"),
        dy: arguments.get("dy").unwrap(),
        initial_states: arguments.get("initial_states"),
        seq_idx: arguments.get("seq_idx"),
        cu_seqlens: arguments.get("cu_seqlens"),
        dfinal_states: arguments.get("dfinal_states"),
        activation: Activation::Silu,
        dx: dx.view_mut(),
        dweight: dweight.view_mut(),
        dbias: dbias.as_mut().map(HostTensor::view_mut),
        dinitial_states: dinitial_states.as_mut().map(HostTensor::view_mut),
    }
    .run(&Device::cpu());
    assert!(row > 0 || result.is_ok(), "the call that every row changes is right: {result:?}");
    (result, [dx, dweight].into_iter().chain(dbias).chain(dinitial_states).collect())
}

type Run = fn(usize, Change) -> (Result<(), Error>, Vec<HostTensor>);

fn check(run: Run, rows: &[(Change, &str)]) {
    run(0, |_| {}).0.unwrap();
    for (row, &(change, sentence)) in rows.iter().enumerate() {
        let (result, outputs) = run(row + 1, change);
        expect(row, result, sentence, &outputs.iter().collect::<Vec<_>>());
    }
}

/// Rows that forward and backward share.
const SHARED: &[(Change, &str)] = &[
    (|a| a.replace("x", DType::F16, &[2, 3]), "x has shape (2, 3): expected (batch, dim, seqlen)"),
    (
        |a| a.replace("x", DType::I32, &[2, 3, 5]),
        "x has dtype i32: expected f32, f16, bf16 or f64, the dtypes of a convolution on a CPU",
    ),
    (|a| a.replace("weight", DType::BF16, &[3, 1, 4]), "weight has shape (3, 1, 4): expected (dim, width)"),
    (|a| a.replace("weight", DType::BF16, &[4, 4]), "weight has dim 4: expected 3, the dim of x"),
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
    (
        |a| a.0.push(("cu_seqlens", integers(DType::I32, &[0, 5]))),
        "x has batch 2: expected 1, since cu_seqlens packs all sequences into one row",
    ),
    (|a| pack(a, zeros(DType::I32, &[1, 3])), "cu_seqlens has shape (1, 3): expected (n + 1,)"),
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
    (
        |a| pack(a, integers(DType::I64, &[0, 2, 6])),
        "cu_seqlens ends at 6: expected 5, the packed length of x",
    ),
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
                |a| a.replace("dinitial_states", DType::F32, &[2, 3, 3]),
                "dinitial_states has dtype f32: expected f16, the dtype of x",
            ),
        ],
    );
}

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
        activation: Activation::None,
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
            (|a| a.replace("weight", DType::F32, &[2, 4]), "weight has dim 2: expected 3, the dim of x"),
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
                "conv_state_indices[0] is 5: expected -2147483648 to 4, the rows of conv_state (a negative index is \
                 padding)",
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
                "cu_seqlens ends at 6: expected 7, the packed length of x",
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

/// The same view, said to be of a GPU's memory. It is refused before anybody reads it.
fn elsewhere<'a>(view: &TensorRef<'a>) -> TensorRef<'a> {
    let location = Location::Cuda(1);
    // SAFETY: the memory is that of `view`, whose dtype, shape and strides are kept.
    let moved =
        unsafe { TensorRef::from_raw(view.pointer(), view.dtype(), view.shape(), view.strides(), location) };
    moved.unwrap()
}

#[test]
fn tensors_elsewhere_are_refused() {
    let arguments = conv1d_arguments();
    let mut y = poisoned(zeros(DType::F16, &[2, 3, 5]));
    let get = |name: &str| arguments.get(name).unwrap();
    let mut call = |x: TensorRef<'_>, weight: TensorRef<'_>, residual: Option<TensorRef<'_>>| {
        let result = Forward {
            x,
            weight,
            bias: None,
            initial_states: None,
            seq_idx: None,
            cu_seqlens: None,
            residual,
            activation: Activation::None,
            y: y.view_mut(),
            final_states: None,
        }
        .run(&Device::cpu());
        assert!(y.bytes().iter().all(|&byte| byte == POISON));
        result.unwrap_err().to_string()
    };
    assert_eq!(
        call(get("x"), elsewhere(&get("weight")), None),
        "weight is on cuda:1: expected the host, where x is; copy it there first"
    );
    assert_eq!(
        call(get("x"), get("weight"), Some(elsewhere(&get("residual")))),
        "residual is on cuda:1: expected the host, where x is; copy it there first"
    );
    assert_eq!(
        call(elsewhere(&get("x")), elsewhere(&get("weight")), None),
        "y is on the host: expected cuda:1, where x is; copy it there first"
    );
    let call = VarlenStates {
        x: elsewhere(&zeros(DType::F64, &[7, 3]).view()),
        cu_seqlens: integers(DType::I32, &[0, 7]).view(),
        states: zeros(DType::F64, &[1, 3, 2]).view_mut(),
    }
    .validate();
    assert_eq!(
        call.unwrap_err().to_string(),
        "x has dtype f64: expected f32, f16 or bf16, the dtypes of a convolution on a GPU"
    );
}

#[test]
fn views_that_leave_their_memory_are_refused() {
    let data = [0.0f32; 12];
    let table = [
        (
            TensorRef::strided(&data, 1, &[3, 4], &[4, 1]),
            "a view of shape (3, 4) with strides (4, 1) at offset 1 touches elements 1 to 12, but the slice holds 12",
        ),
        (
            TensorRef::strided(&data, 2, &[4], &[-1]),
            "a view of shape (4,) with strides (-1,) at offset 2 touches elements -1 to 2, but the slice holds 12",
        ),
        (TensorRef::new(&data, &[3, -4]), "shape (3, -4) has a negative size: sizes are 0 or more"),
        (
            TensorRef::strided(&data, 0, &[3, 4], &[4]),
            "shape has 2 axes and strides 1: both need the same number, at most 4",
        ),
        (
            TensorRef::new(&data, &[1, 1, 1, 1, 1]),
            "shape has 5 axes and strides 5: both need the same number, at most 4",
        ),
        (
            TensorRef::new(&data, &[1 << 40, 1 << 40]),
            "a tensor of shape (1099511627776, 1099511627776) and dtype f32 is larger than the address space",
        ),
    ];
    for (result, sentence) in table {
        assert_eq!(result.expect_err(sentence).to_string(), sentence);
    }
}

#[test]
fn names_that_name_nothing_are_refused() {
    assert_eq!(
        "gelu".parse::<Activation>().unwrap_err().to_string(),
        "activation is \"gelu\": expected none, silu or swish"
    );
    assert_eq!(
        Device::open("tpu").unwrap_err().to_string(),
        "device is \"tpu\": expected best, cpu, cuda, cuda:N, hip or hip:N"
    );
    assert_eq!(
        "f8".parse::<DType>().unwrap_err(),
        "dtype is \"f8\": expected f32, f16, bf16, f64, i32 or i64"
    );
}
