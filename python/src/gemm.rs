//! The matrix products. Shapes and dtypes are those of the library's argument structs.

use causeway::gemm::{Algorithm, Forward, GradA, GradAB, GradB};
use pyo3::prelude::*;

use crate::call::{Tensors, run};
use crate::error::{Renamed, exception};
use crate::tensor::Tensor;

/// Python's names, in small letters.
const RENAMED: Renamed =
    &[("A", "a"), ("B", "b"), ("C", "c"), ("grad_C", "grad_c"), ("grad_A", "grad_a"), ("grad_B", "grad_b")];

type Object<'a, 'py> = &'a Bound<'py, PyAny>;

fn algorithm(name: &str) -> PyResult<Algorithm> {
    name.parse().map_err(|error| exception(error, RENAMED))
}

/// At least the multiplications of a product of two matrices.
fn products(first: &Tensor, other: &Tensor) -> i64 {
    first.element_count().saturating_mul(other.element_count())
}

/// Writes `c (M, N) = a (M, K) · b (K, N)`.
#[pyfunction]
#[pyo3(signature = (a, b, algorithm_name, c))]
pub fn gemm_forward(a: Object, b: Object, algorithm_name: &str, c: Object) -> PyResult<()> {
    let algorithm = algorithm(algorithm_name)?;
    let first = a;
    let (a, b, c) = (Tensor::read("a", a)?, Tensor::read("b", b)?, Tensor::read("c", c)?);
    Tensors { inputs: &[("a", Some(a)), ("b", Some(b))], outputs: &[("c", Some(c))] }.check()?;
    // SAFETY: the caller holds the objects during the call, and no output shares memory with another tensor.
    let mut call = unsafe { Forward { a: a.view()?, b: b.view()?, algorithm, c: c.view_mut("c")? } };
    run(first, &a, products(&a, &b), &mut call, RENAMED)
}

/// Writes `grad_a (M, K) = grad_c (M, N) · bᵀ`.
#[pyfunction]
#[pyo3(signature = (grad_c, b, algorithm_name, grad_a))]
pub fn gemm_grad_a(grad_c: Object, b: Object, algorithm_name: &str, grad_a: Object) -> PyResult<()> {
    let algorithm = algorithm(algorithm_name)?;
    let first = grad_c;
    let grad_c = Tensor::read("grad_c", grad_c)?;
    let (b, grad_a) = (Tensor::read("b", b)?, Tensor::read("grad_a", grad_a)?);
    Tensors { inputs: &[("grad_c", Some(grad_c)), ("b", Some(b))], outputs: &[("grad_a", Some(grad_a))] }
        .check()?;
    // SAFETY: as in `gemm_forward`.
    let mut call = unsafe {
        GradA { grad_c: grad_c.view()?, b: b.view()?, algorithm, grad_a: grad_a.view_mut("grad_a")? }
    };
    run(first, &grad_c, products(&grad_c, &b), &mut call, RENAMED)
}

/// Writes `grad_b (K, N) = aᵀ · grad_c (M, N)`.
#[pyfunction]
#[pyo3(signature = (grad_c, a, algorithm_name, grad_b))]
pub fn gemm_grad_b(grad_c: Object, a: Object, algorithm_name: &str, grad_b: Object) -> PyResult<()> {
    let algorithm = algorithm(algorithm_name)?;
    let first = grad_c;
    let grad_c = Tensor::read("grad_c", grad_c)?;
    let (a, grad_b) = (Tensor::read("a", a)?, Tensor::read("grad_b", grad_b)?);
    Tensors { inputs: &[("grad_c", Some(grad_c)), ("a", Some(a))], outputs: &[("grad_b", Some(grad_b))] }
        .check()?;
    // SAFETY: as in `gemm_forward`.
    let mut call = unsafe {
        GradB { grad_c: grad_c.view()?, a: a.view()?, algorithm, grad_b: grad_b.view_mut("grad_b")? }
    };
    run(first, &grad_c, products(&grad_c, &a), &mut call, RENAMED)
}

/// Writes both gradients.
#[pyfunction]
#[pyo3(signature = (grad_c, a, b, algorithm_name, grad_a, grad_b))]
pub fn gemm_grad_ab(
    grad_c: Object,
    a: Object,
    b: Object,
    algorithm_name: &str,
    grad_a: Object,
    grad_b: Object,
) -> PyResult<()> {
    let algorithm = algorithm(algorithm_name)?;
    let first = grad_c;
    let grad_c = Tensor::read("grad_c", grad_c)?;
    let (a, b) = (Tensor::read("a", a)?, Tensor::read("b", b)?);
    let (grad_a, grad_b) = (Tensor::read("grad_a", grad_a)?, Tensor::read("grad_b", grad_b)?);
    Tensors {
        inputs: &[("grad_c", Some(grad_c)), ("a", Some(a)), ("b", Some(b))],
        outputs: &[("grad_a", Some(grad_a)), ("grad_b", Some(grad_b))],
    }
    .check()?;
    // SAFETY: as in `gemm_forward`.
    let mut call = unsafe {
        GradAB {
            grad_c: grad_c.view()?,
            a: a.view()?,
            b: b.view()?,
            algorithm,
            grad_a: grad_a.view_mut("grad_a")?,
            grad_b: grad_b.view_mut("grad_b")?,
        }
    };
    run(first, &grad_c, products(&grad_c, &a), &mut call, RENAMED)
}
