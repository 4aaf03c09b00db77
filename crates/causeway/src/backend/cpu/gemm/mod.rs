//! GEMM on the CPU. The three products are one: operands are transposed as views, never copied.

mod chain;
mod exact;
mod fast;
mod half;
mod matrix;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod scratch;
mod tiles;
mod vector;

use ::half::{bf16, f16};

use crate::backend::cpu::Cpu;
use crate::gemm::{Algorithm, Forward, GradA, GradAB, GradB};
use crate::tensor::{DType, TensorMut, TensorRef};
use fast::Fast;
use matrix::{Matrix, MatrixMut};

/// Whether a product is worth more than the calling thread: one of these sizes and this many terms.
pub(crate) fn is_worth_threads(
    algorithm: Algorithm,
    dtype: DType,
    output: &[i64],
    terms: Option<&i64>,
) -> bool {
    // Shapes have not been checked yet.
    let size = |size: Option<&i64>| size.map_or(0, |&size| usize::try_from(size).unwrap_or(0));
    let work = tiles::work(size(output.first()), size(output.get(1)), size(terms));
    work >= 2 * worth_a_thread(algorithm, dtype)
}

/// The work below which another thread costs more than it gives.
fn worth_a_thread(algorithm: Algorithm, dtype: DType) -> usize {
    match dtype {
        #[cfg(target_arch = "x86_64")]
        DType::BF16 if algorithm == Algorithm::Fast => pairs::worth_a_thread(),
        _ => exact::WORTH_A_THREAD,
    }
}

/// `C = A · B`.
pub(crate) fn forward(cpu: Cpu, call: &mut Forward<'_>) {
    multiply(cpu, call.algorithm, call.a, call.b, call.c.reborrow());
}

/// `grad_A = grad_C · Bᵀ`.
pub(crate) fn grad_a(cpu: Cpu, call: &mut GradA<'_>) {
    multiply(cpu, call.algorithm, call.grad_c, call.b.permuted(&[1, 0]), call.grad_a.reborrow());
}

/// `grad_B = Aᵀ · grad_C`.
pub(crate) fn grad_b(cpu: Cpu, call: &mut GradB<'_>) {
    multiply(cpu, call.algorithm, call.a.permuted(&[1, 0]), call.grad_c, call.grad_b.reborrow());
}

/// Both gradients.
pub(crate) fn grad_ab(cpu: Cpu, call: &mut GradAB<'_>) {
    let (mut a, mut b) = call.split();
    grad_a(cpu, &mut a);
    grad_b(cpu, &mut b);
}

fn multiply(
    cpu: Cpu,
    algorithm: Algorithm,
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    output: TensorMut<'_>,
) {
    match output.dtype() {
        DType::F16 => of_type::<f16>(cpu, algorithm, left, right, output),
        DType::BF16 => of_type::<bf16>(cpu, algorithm, left, right, output),
        other => unreachable!("validation lets f16 and bf16 through, not {other}"),
    }
}

fn of_type<T: Fast>(
    cpu: Cpu,
    algorithm: Algorithm,
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    mut output: TensorMut<'_>,
) {
    let dtype = output.dtype();
    // Both operands as rows of terms: the right one is transposed.
    let (mut left, mut right) = (Matrix::<T>::new(&left), Matrix::<T>::new(&right).transposed());
    let mut output = MatrixMut::<T>::new(&mut output);
    // Vectors run along the columns. An output whose columns are its long strides is computed as its transpose:
    // a product does not mind the order of its factors, so each sum is the same.
    if output.column_stride.unsigned_abs() > output.row_stride.unsigned_abs() {
        (left, right, output) = (right, left, output.transposed());
    }
    // Callers that were told of no threads have none to give, so this is the number that they were told by.
    let worth_a_thread = worth_a_thread(algorithm, dtype);
    match algorithm {
        Algorithm::Fast => fast::multiply(cpu, &left, &right, &output, worth_a_thread),
        Algorithm::Exact => exact::multiply(cpu, &left, &right, &output, worth_a_thread),
    }
}
