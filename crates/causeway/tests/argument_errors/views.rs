//! Tensors in the wrong memory, views that leave theirs, and names that name nothing.

use crate::POISON;
use causeway::causal_conv1d::{Activation, Forward, VarlenStates};
use causeway::{DType, Device, Location, TensorRef};

use crate::{integers, poisoned, zeros};

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
    let arguments = crate::conv1d::conv1d_arguments();
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
            b: None,
            c: None,
            activation: Activation::None,
            round_products: false,
            norm: None,
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
        "device is \"tpu\": expected best, cpu, cpu:portable (or neon, avx2, avx512), cuda, cuda:N, hip or hip:N"
    );
    assert_eq!(
        "f8".parse::<DType>().unwrap_err(),
        "dtype is \"f8\": expected f32, f16, bf16, f64, i32 or i64"
    );
}
