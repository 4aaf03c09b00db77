//! One result against the oracle, and the memory around it against what it was.

use super::case::{Case, Fault};
use super::report::OutputReport;
use super::sample::{count_other_than_poison, count_poison, gather};
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::oracle::gemm::Chain;
use crate::oracle::{Comparison, Expected, POISON};
use crate::tensor::{DType, TensorRef};

/// Compares an output that was poisoned, or whose surroundings were, before the call.
pub(super) fn output(case: &Case, name: &str, truth: &Expected, found: HostTensor) -> OutputReport {
    let ceiling = case.ceilings.of(name);
    compared(case, name, (truth.dtype, &truth.shape), ceiling, found, |found| truth.compare(found, ceiling))
}

/// As [`output`], of some channels only; the rest is checked for having been written. `axis` is that of the channels.
///
/// # Errors
/// If the sample does not fit into memory.
pub(super) fn sample(
    case: &Case,
    name: &str,
    truth: &Expected,
    mut found: HostTensor,
    (axis, channels): (usize, &[i64]),
) -> Result<OutputReport> {
    apply_fault(case, name, &mut found);
    let ceiling = case.ceilings.of(name);
    let mut comparison = truth.compare(&gather(&found.view(), axis, channels)?.view(), ceiling);
    if let Some(worst) = &mut comparison.worst {
        worst.coordinate[axis] = channels[worst.coordinate[axis] as usize];
    }
    let (unwritten, stray_bytes) = count_poison(&found);
    comparison.failures += unwritten - comparison.unwritten;
    comparison.unwritten = unwritten;
    Ok(OutputReport {
        name: name.to_string(),
        dtype: truth.dtype.to_string(),
        shape: found.shape().to_vec(),
        comparison,
        ceiling,
        differed: false,
        stray_bytes,
    })
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
    apply_fault(case, name, &mut found);
    let comparison = compare(&found.view());
    // With the elements poisoned again, whatever else is not poison has been written by the kernel.
    found.fill_elements(POISON);
    let stray_bytes = count_other_than_poison(found.bytes());
    OutputReport {
        name: name.to_string(),
        dtype: dtype.to_string(),
        shape: shape.to_vec(),
        comparison,
        ceiling,
        differed: false,
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

fn apply_fault(case: &Case, name: &str, tensor: &mut HostTensor) {
    let Some(fault) = case.fault.as_ref().filter(|fault| fault.output == name) else { return };
    if !is_inside(&fault.coordinate, tensor.shape()) {
        return;
    }
    tensor.adjust(&fault.coordinate, |value| value + fault.add);
}
