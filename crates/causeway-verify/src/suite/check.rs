//! One result against the oracle, and the memory around it against what it was.

use causeway::HostTensor;
use causeway::error::{Error, Result};
use causeway::tensor::{DType, Dims, TensorRef};

use super::case::{Case, Fault};
use super::report::OutputReport;
use super::sample::{count_other_than_poison, count_poison, gather};
use crate::oracle::gemm::Chain;
use crate::oracle::{Comparison, Expected, POISON, WorstElement};

/// Asks for the memory that the truth of a result takes, and gives it back. Where the oracle found none, the process would end, and its
/// report with it.
///
/// # Errors
/// If there is too little.
pub(super) fn reserve_for_oracle(shape: &[i64]) -> Result<()> {
    // Of each element its value, its bound, and what both are computed in and compared with.
    const EACH: usize = 40;
    let elements: i64 = shape.iter().product();
    let bytes = (elements as usize).saturating_mul(EACH);
    match Vec::<u8>::new().try_reserve_exact(bytes) {
        Ok(()) => Ok(()),
        Err(_) => Err(Error::OutOfMemory { shape: Dims::new(shape)?, dtype: DType::F64, bytes }),
    }
}

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

/// As [`output`], for numbers that have to be the same, with the sign of a zero. A NaN is as good as any other.
pub(super) fn same_bits(case: &Case, name: &str, truth: &Expected, found: HostTensor) -> OutputReport {
    compared(case, name, (truth.dtype, &truth.shape), None, found, |found| {
        let mut comparison = truth.compare(found, None);
        let pairs = found.to_f64().into_iter().zip(&truth.values).enumerate();
        let other_zero = |found: f64, truth: f64| {
            found == 0.0 && truth == 0.0 && found.is_sign_negative() != truth.is_sign_negative()
        };
        for (i, (found, &expected)) in pairs.filter(|&(_, (found, &truth))| other_zero(found, truth)) {
            comparison.failures += 1;
            comparison.fraction = f64::INFINITY;
            let coordinate = coordinate(i, &truth.shape);
            let zero = WorstElement { coordinate, found, expected, error: 0.0, bound: 0.0, unwritten: false };
            comparison.worst = Some(zero);
        }
        comparison
    })
}

fn coordinate(mut index: usize, shape: &[i64]) -> Vec<i64> {
    let mut coordinate = vec![0; shape.len()];
    for (at, &size) in coordinate.iter_mut().zip(shape).rev() {
        *at = (index % size as usize) as i64;
        index /= size as usize;
    }
    coordinate
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn a_truth_without_memory_is_an_error() {
        assert!(reserve_for_oracle(&[2, 0, 1 << 40]).is_ok() && reserve_for_oracle(&[2, 3, 4]).is_ok());
        let error = reserve_for_oracle(&[1 << 30, 1 << 29, 1]).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { dtype: DType::F64, .. }), "{error}");
    }

    #[test]
    fn the_sign_of_a_zero_is_a_bit_and_a_nan_is_a_nan() {
        let case = &Suite::open("parity").unwrap().cases[0];
        let check = |found: [f32; 2]| {
            let truth = Expected::exact(DType::F32, &[2, 1], vec![-0.0, f64::NAN]);
            same_bits(case, "y", &truth, HostTensor::from_slice(&found, &[2, 1]).unwrap()).comparison
        };
        assert!(check([-0.0, f32::NAN]).passed() && check([-0.0, -f32::NAN]).passed());
        let zero = check([0.0, f32::NAN]);
        assert_eq!((zero.failures, zero.worst.unwrap().coordinate), (1, vec![0, 0]));
        assert_eq!(check([-0.0, 1.0]).failures, 1);
    }
}
