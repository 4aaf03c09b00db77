//! One result against the oracle, and the memory around it against what it was.

use super::case::{Case, Fault};
use super::report::OutputReport;
use crate::host_tensor::HostTensor;
use crate::oracle::gemm::Chain;
use crate::oracle::{Comparison, Expected, POISON};
use crate::tensor::{DType, TensorRef};

/// Compares an output that was poisoned, or whose surroundings were, before the call.
pub(super) fn output(case: &Case, name: &str, truth: &Expected, found: HostTensor) -> OutputReport {
    let ceiling = case.ceilings.of(name);
    compared(case, name, (truth.dtype, &truth.shape), ceiling, found, |found| truth.compare(found, ceiling))
}

/// As [`output`], for a result of which every bit is known.
pub(super) fn bits(case: &Case, name: &str, truth: &Chain, found: HostTensor) -> OutputReport {
    compared(case, name, (truth.dtype, &truth.shape), None, found, |found| truth.compare(found))
}

fn compared(
    case: &Case,
    name: &str,
    (dtype, shape): (DType, &[i64]),
    ceiling: Option<f64>,
    mut found: HostTensor,
    compare: impl FnOnce(&TensorRef<'_>) -> Comparison,
) -> OutputReport {
    if let Some(fault) = case.fault.as_ref().filter(|fault| fault.output == name) {
        apply(fault, &mut found);
    }
    let comparison = compare(&found.view());
    // With the elements poisoned again, whatever else is not poison has been written by the kernel.
    found.fill_elements(POISON);
    let stray_bytes = found.bytes().iter().filter(|&&byte| byte != POISON).count() as u64;
    OutputReport {
        name: name.to_string(),
        dtype: dtype.to_string(),
        shape: shape.to_vec(),
        comparison,
        ceiling,
        stray_bytes,
    }
}

/// What is wrong with a fault, if it names no element of these outputs.
pub(super) fn misplaced(fault: &Fault, outputs: &[OutputReport]) -> Option<String> {
    let coordinate = &fault.coordinate;
    let output = outputs.iter().find(|output| output.name == fault.output);
    match output {
        None => Some(format!("fault: the case has no output {:?}", fault.output)),
        Some(output) if !is_inside(coordinate, &output.shape) => {
            Some(format!("fault: {} of shape {:?} has no element {coordinate:?}", output.name, output.shape))
        }
        Some(_) => None,
    }
}

fn is_inside(coordinate: &[i64], shape: &[i64]) -> bool {
    coordinate.len() == shape.len() && coordinate.iter().zip(shape).all(|(at, size)| (0..*size).contains(at))
}

fn apply(fault: &Fault, tensor: &mut HostTensor) {
    if !is_inside(&fault.coordinate, tensor.shape()) {
        return;
    }
    let index = fault.coordinate.iter().zip(tensor.shape()).fold(0, |index, (at, size)| index * size + at);
    let values = tensor.to_f64();
    tensor.assign(|i| if i == index as usize { values[i] + fault.add } else { values[i] });
}
