//! The products on named tensors.

use causeway::gemm::{Algorithm, Forward, GradA, GradAB, GradB};
use causeway::{Device, HostTensor, Result};

use super::tensors::{Computed, Inputs, timed};

/// `rows × columns`, each an axis of an input; zeros of the first one's dtype. Inputs of another rank are left
/// for the operation to refuse.
fn zeros(inputs: &Inputs, rows: (&str, usize), columns: (&str, usize)) -> Result<HostTensor> {
    let size = |(name, axis): (&str, usize)| inputs.required(name).shape().get(axis).copied().unwrap_or(0);
    HostTensor::zeros(inputs.required(rows.0).dtype(), &[size(rows), size(columns)])
}

pub(super) fn forward(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Computed> {
    let mut c = zeros(inputs, ("A", 0), ("B", 1))?;
    let mut operation =
        Forward { a: inputs.required("A"), b: inputs.required("B"), algorithm, c: c.view_mut() };
    let elapsed = timed(|| operation.run(device))?;
    Ok(Computed { outputs: vec![("C", c)], elapsed })
}

pub(super) fn grad_a(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Computed> {
    let mut grad_a = zeros(inputs, ("grad_C", 0), ("B", 0))?;
    let (grad_c, b) = (inputs.required("grad_C"), inputs.required("B"));
    let mut operation = GradA { grad_c, b, algorithm, grad_a: grad_a.view_mut() };
    let elapsed = timed(|| operation.run(device))?;
    Ok(Computed { outputs: vec![("grad_A", grad_a)], elapsed })
}

pub(super) fn grad_b(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Computed> {
    let mut grad_b = zeros(inputs, ("A", 1), ("grad_C", 1))?;
    let (grad_c, a) = (inputs.required("grad_C"), inputs.required("A"));
    let mut operation = GradB { grad_c, a, algorithm, grad_b: grad_b.view_mut() };
    let elapsed = timed(|| operation.run(device))?;
    Ok(Computed { outputs: vec![("grad_B", grad_b)], elapsed })
}

pub(super) fn grad_ab(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Computed> {
    let mut grad_a = zeros(inputs, ("grad_C", 0), ("B", 0))?;
    let mut grad_b = zeros(inputs, ("A", 1), ("grad_C", 1))?;
    let mut operation = GradAB {
        grad_c: inputs.required("grad_C"),
        a: inputs.required("A"),
        b: inputs.required("B"),
        algorithm,
        grad_a: grad_a.view_mut(),
        grad_b: grad_b.view_mut(),
    };
    let elapsed = timed(|| operation.run(device))?;
    Ok(Computed { outputs: vec![("grad_A", grad_a), ("grad_B", grad_b)], elapsed })
}
