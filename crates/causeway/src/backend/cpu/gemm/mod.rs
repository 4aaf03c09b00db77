//! GEMM on the CPU. The three products are one: operands are transposed as views, never copied.
//!
//! Both algorithms are the chain of [`exact`]. It runs in vectors across outputs, so nothing is lost by keeping
//! the order within each.

mod chain;
mod exact;
mod half;
mod matrix;
mod pack;
mod vector;

use ::half::{bf16, f16};

use crate::backend::cpu::Cpu;
use crate::gemm::{Forward, GradA, GradAB, GradB};
use crate::tensor::{DType, TensorMut, TensorRef};
use half::Half;
use matrix::{Matrix, MatrixMut};

/// `C = A · B`.
pub(crate) fn forward(cpu: Cpu, call: &mut Forward<'_>) {
    multiply(cpu, call.a, call.b, call.c.reborrow());
}

/// `grad_A = grad_C · Bᵀ`.
pub(crate) fn grad_a(cpu: Cpu, call: &mut GradA<'_>) {
    multiply(cpu, call.grad_c, call.b.permuted(&[1, 0]), call.grad_a.reborrow());
}

/// `grad_B = Aᵀ · grad_C`.
pub(crate) fn grad_b(cpu: Cpu, call: &mut GradB<'_>) {
    multiply(cpu, call.a.permuted(&[1, 0]), call.grad_c, call.grad_b.reborrow());
}

/// Both gradients.
pub(crate) fn grad_ab(cpu: Cpu, call: &mut GradAB<'_>) {
    let (mut a, mut b) = call.split();
    grad_a(cpu, &mut a);
    grad_b(cpu, &mut b);
}

fn multiply(cpu: Cpu, left: TensorRef<'_>, right: TensorRef<'_>, output: TensorMut<'_>) {
    match output.dtype() {
        DType::F16 => of_type::<f16>(cpu, left, right, output),
        DType::BF16 => of_type::<bf16>(cpu, left, right, output),
        other => unreachable!("validation lets f16 and bf16 through, not {other}"),
    }
}

fn of_type<T: Half>(cpu: Cpu, left: TensorRef<'_>, right: TensorRef<'_>, mut output: TensorMut<'_>) {
    exact::multiply(cpu, Matrix::<T>::new(&left), Matrix::<T>::new(&right), MatrixMut::<T>::new(&mut output));
}
