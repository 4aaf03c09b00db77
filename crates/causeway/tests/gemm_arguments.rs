//! Every argument error of the GEMM operations has its own sentence.

use causeway::gemm::{Algorithm, Forward, GradA, GradAB, GradB, Sizes};
use causeway::{DType, Device, Error, HostTensor};

const ALGORITHM: Algorithm = Algorithm::Fast;

fn tensor(dtype: DType, shape: &[i64]) -> HostTensor {
    HostTensor::zeros(dtype, shape).unwrap()
}

/// The error of a forward call on these tensors; checks that C keeps its poison.
fn forward_error(a: &HostTensor, b: &HostTensor, mut c: HostTensor) -> String {
    c.fill_bytes(0xff);
    let mut call = Forward { a: a.view(), b: b.view(), algorithm: ALGORITHM, c: c.view_mut() };
    let error = call.validate().unwrap_err();
    assert_eq!(call.run(&Device::cpu()), Err(error.clone()));
    assert!(c.bytes().iter().all(|&byte| byte == 0xff), "something was written before {error}");
    error.to_string()
}

#[test]
fn sizes_come_from_the_operands() {
    let (a, b) = (tensor(DType::F16, &[3, 5]), tensor(DType::F16, &[5, 4]));
    let mut c = tensor(DType::F16, &[3, 4]);
    let call = Forward { a: a.view(), b: b.view(), algorithm: ALGORITHM, c: c.view_mut() };
    assert_eq!(call.validate(), Ok(Sizes { m: 3, n: 4, k: 5 }));

    let (mut grad_a, mut grad_b) = (tensor(DType::F16, &[3, 5]), tensor(DType::F16, &[5, 4]));
    let call = GradAB {
        grad_c: c.view(),
        a: a.view(),
        b: b.view(),
        algorithm: ALGORITHM,
        grad_a: grad_a.view_mut(),
        grad_b: grad_b.view_mut(),
    };
    assert_eq!(call.validate(), Ok(Sizes { m: 3, n: 4, k: 5 }));
}

#[test]
fn a_matrix_has_two_axes() {
    let (a, b, c) = (tensor(DType::F16, &[3, 5]), tensor(DType::F16, &[5, 4]), tensor(DType::F16, &[3, 4]));
    let cube = tensor(DType::F16, &[1, 3, 5]);
    assert_eq!(forward_error(&cube, &b, c.clone()), "A has shape (1, 3, 5): expected (M, K)");
    assert_eq!(forward_error(&a, &cube, c), "B has shape (1, 3, 5): expected (K, N)");
    assert_eq!(forward_error(&a, &b, tensor(DType::F16, &[12])), "C has shape (12,): expected (M, N)");
}

#[test]
fn the_reduction_has_one_size() {
    let (a, b, c) = (tensor(DType::F16, &[3, 5]), tensor(DType::F16, &[6, 4]), tensor(DType::F16, &[3, 4]));
    assert_eq!(forward_error(&a, &b, c), "B has K 6: expected 5, the K of A");
}

#[test]
fn the_result_has_the_size_of_the_product() {
    let (a, b) = (tensor(DType::BF16, &[3, 5]), tensor(DType::BF16, &[5, 4]));
    let error = forward_error(&a, &b, tensor(DType::BF16, &[2, 4]));
    assert_eq!(error, "C has M 2: expected 3, the M of A");
    let error = forward_error(&a, &b, tensor(DType::BF16, &[3, 7]));
    assert_eq!(error, "C has N 7: expected 4, the N of B");
}

#[test]
fn operands_are_of_one_half_type() {
    let (a, b, c) = (tensor(DType::F16, &[3, 5]), tensor(DType::F16, &[5, 4]), tensor(DType::F16, &[3, 4]));
    let wide = tensor(DType::F32, &[3, 5]);
    assert_eq!(
        forward_error(&wide, &b, c.clone()),
        "A has dtype f32: expected f16 or bf16, the dtypes of a GEMM"
    );
    assert_eq!(
        forward_error(&a, &tensor(DType::BF16, &[5, 4]), c),
        "B has dtype bf16: expected f16, the dtype of A"
    );
    assert_eq!(
        forward_error(&a, &b, tensor(DType::F32, &[3, 4])),
        "C has dtype f32: expected f16, the dtype of A"
    );
}

#[test]
fn each_output_has_a_place_of_its_own() {
    let (a, b) = (tensor(DType::F16, &[3, 5]), tensor(DType::F16, &[5, 4]));
    let c = tensor(DType::F16, &[12]).restrided(0, &[3, 4], &[0, 1]).unwrap();
    let error = forward_error(&a, &b, c);
    assert!(error.starts_with("C has shape (3, 4) and strides (0, 1), which map several"), "{error}");
}

/// The errors of grad_A and of both gradients in one call, which must agree.
fn grad_a_error(grad_c: &HostTensor, b: &HostTensor, mut grad_a: HostTensor) -> Error {
    let call = GradA { grad_c: grad_c.view(), b: b.view(), algorithm: ALGORITHM, grad_a: grad_a.view_mut() };
    call.validate().unwrap_err()
}

fn grad_b_error(grad_c: &HostTensor, a: &HostTensor, mut grad_b: HostTensor) -> Error {
    let call = GradB { grad_c: grad_c.view(), a: a.view(), algorithm: ALGORITHM, grad_b: grad_b.view_mut() };
    call.validate().unwrap_err()
}

#[test]
fn gradients_name_their_own_arguments() {
    let of = |shape: &[i64]| tensor(DType::F16, shape);
    let grad_c = of(&[3, 4]);

    let error = grad_a_error(&grad_c, &of(&[5, 6]), of(&[3, 5]));
    assert_eq!(error.to_string(), "B has N 6: expected 4, the N of grad_C");
    let error = grad_a_error(&grad_c, &of(&[5, 4]), of(&[2, 5]));
    assert_eq!(error.to_string(), "grad_A has M 2: expected 3, the M of grad_C");
    let error = grad_a_error(&grad_c, &of(&[5, 4]), of(&[3, 9]));
    assert_eq!(error.to_string(), "grad_A has K 9: expected 5, the K of B");
    let error = grad_a_error(&grad_c, &tensor(DType::BF16, &[5, 4]), of(&[3, 5]));
    assert_eq!(error.to_string(), "B has dtype bf16: expected f16, the dtype of grad_C");
    let error = grad_a_error(&tensor(DType::F64, &[3, 4]), &of(&[5, 4]), of(&[3, 5]));
    assert_eq!(error.to_string(), "grad_C has dtype f64: expected f16 or bf16, the dtypes of a GEMM");

    let error = grad_b_error(&grad_c, &of(&[7, 5]), of(&[5, 4]));
    assert_eq!(error.to_string(), "A has M 7: expected 3, the M of grad_C");
    let error = grad_b_error(&grad_c, &of(&[3, 5]), of(&[6, 4]));
    assert_eq!(error.to_string(), "grad_B has K 6: expected 5, the K of A");
    let error = grad_b_error(&grad_c, &of(&[3, 5]), of(&[5, 1]));
    assert_eq!(error.to_string(), "grad_B has N 1: expected 4, the N of grad_C");
    let error = grad_b_error(&grad_c, &of(&[5]), of(&[5, 4]));
    assert_eq!(error.to_string(), "A has shape (5,): expected (M, K)");
}

#[test]
fn both_gradients_at_once_are_checked_before_anything_is_written() {
    let of = |shape: &[i64]| tensor(DType::F16, shape);
    // (grad_C, A, B, grad_A, grad_B) of M 3, N 4, K 5, with one of them wrong.
    let right: [&[i64]; 5] = [&[3, 4], &[3, 5], &[5, 4], &[3, 5], &[5, 4]];
    let wrong: [(usize, &[i64], &str); 7] = [
        (1, &[2, 5], "A has M 2: expected 3, the M of grad_C"),
        (2, &[6, 4], "B has K 6: expected 5, the K of A"),
        (2, &[5, 1], "B has N 1: expected 4, the N of grad_C"),
        (3, &[1, 5], "grad_A has M 1: expected 3, the M of grad_C"),
        (3, &[3, 8], "grad_A has K 8: expected 5, the K of A"),
        (4, &[8, 4], "grad_B has K 8: expected 5, the K of A"),
        (4, &[5, 3], "grad_B has N 3: expected 4, the N of grad_C"),
    ];
    for (argument, shape, sentence) in wrong {
        let mut tensors = right.map(of);
        tensors[argument] = of(shape);
        let [grad_c, a, b, mut grad_a, mut grad_b] = tensors;
        grad_a.fill_bytes(0xff);
        let mut call = GradAB {
            grad_c: grad_c.view(),
            a: a.view(),
            b: b.view(),
            algorithm: ALGORITHM,
            grad_a: grad_a.view_mut(),
            grad_b: grad_b.view_mut(),
        };
        assert_eq!(call.run(&Device::cpu()).unwrap_err().to_string(), sentence);
        assert!(grad_a.bytes().iter().all(|&byte| byte == 0xff), "grad_A was written before: {sentence}");
    }
}

#[test]
fn an_algorithm_has_a_name() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
    }
    let error = "quick".parse::<Algorithm>().unwrap_err();
    assert_eq!(error.to_string(), "algorithm is \"quick\": expected fast or exact");
    assert_eq!(Algorithm::default(), Algorithm::Fast);
}
