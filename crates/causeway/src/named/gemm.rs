//! The products on named tensors.

use super::tensors::{Inputs, Results, timed};
use crate::device::Device;
use crate::error::Result;
use crate::gemm::{Algorithm, Forward, GradA, GradAB, GradB};
use crate::placement::Output;

/// Room for `rows × columns`, each an axis of an input, in the first one's dtype. Inputs of another rank are left
/// for the operation to refuse.
fn room(device: &Device, inputs: &Inputs, rows: (&str, usize), columns: (&str, usize)) -> Result<Output> {
    let size = |(name, axis): (&str, usize)| inputs.required(name).shape().get(axis).copied().unwrap_or(0);
    inputs.room(device, inputs.required(rows.0).dtype(), &[size(rows), size(columns)])
}

pub(super) fn forward(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Results> {
    let placed = inputs.place(device)?;
    let mut c = room(device, inputs, ("A", 0), ("B", 1))?;
    let mut operation = Forward { a: placed.required("A"), b: placed.required("B"), algorithm, c: c.view() };
    let elapsed = timed(device, || operation.run(device))?;
    inputs.fetch([("C", c)].into(), elapsed)
}

pub(super) fn grad_a(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Results> {
    let placed = inputs.place(device)?;
    let mut grad_a = room(device, inputs, ("grad_C", 0), ("B", 0))?;
    let (grad_c, b) = (placed.required("grad_C"), placed.required("B"));
    let mut operation = GradA { grad_c, b, algorithm, grad_a: grad_a.view() };
    let elapsed = timed(device, || operation.run(device))?;
    inputs.fetch([("grad_A", grad_a)].into(), elapsed)
}

pub(super) fn grad_b(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Results> {
    let placed = inputs.place(device)?;
    let mut grad_b = room(device, inputs, ("A", 1), ("grad_C", 1))?;
    let (grad_c, a) = (placed.required("grad_C"), placed.required("A"));
    let mut operation = GradB { grad_c, a, algorithm, grad_b: grad_b.view() };
    let elapsed = timed(device, || operation.run(device))?;
    inputs.fetch([("grad_B", grad_b)].into(), elapsed)
}

pub(super) fn grad_ab(device: &Device, inputs: &Inputs, algorithm: Algorithm) -> Result<Results> {
    let placed = inputs.place(device)?;
    let mut grad_a = room(device, inputs, ("grad_C", 0), ("B", 0))?;
    let mut grad_b = room(device, inputs, ("A", 1), ("grad_C", 1))?;
    let mut operation = GradAB {
        grad_c: placed.required("grad_C"),
        a: placed.required("A"),
        b: placed.required("B"),
        algorithm,
        grad_a: grad_a.view(),
        grad_b: grad_b.view(),
    };
    let elapsed = timed(device, || operation.run(device))?;
    inputs.fetch([("grad_A", grad_a), ("grad_B", grad_b)].into(), elapsed)
}
