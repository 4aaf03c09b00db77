//! Whether what was measured was also right.

use causeway::{HostTensor, Result};
use causeway_verify::oracle::Expected;
use causeway_verify::oracle::causal_conv1d as oracle;
use causeway_verify::suite::{Problem, channel_axis, gather};

use super::buffers::{Call, Inputs};

/// What a call has to give, of some channels or of all.
struct Truth {
    name: &'static str,
    expected: Expected,
    /// The axis of the channels, where a sample of them is compared.
    axis: Option<usize>,
}

/// Of two runs of the first call, with poisoned outputs: the bits must agree, and the results (of a convolution: of a
/// sample of channels) must be within the bounds of the oracle. Returns what is wrong.
pub(super) fn check(
    inputs: &Inputs,
    call: Call,
    [first, second]: [Vec<(&'static str, HostTensor)>; 2],
) -> Result<Option<String>> {
    for ((name, first), (_, second)) in first.iter().zip(&second) {
        if first.bytes() != second.bytes() {
            return Ok(Some(format!("{name} differs from one call to the next")));
        }
    }
    let (truths, channels) = truths(inputs, call)?;
    for truth in truths {
        let Some((_, found)) = first.iter().find(|(name, _)| *name == truth.name) else { continue };
        let comparison = match truth.axis {
            Some(axis) => truth.expected.compare(&gather(&found.view(), axis, &channels)?.view(), None),
            None => truth.expected.compare(&found.view(), None),
        };
        if let Some(worst) = comparison.worst.as_ref().filter(|_| !comparison.passed()) {
            let of = truth.axis.map_or(String::new(), |_| format!(" of channels {channels:?}"));
            return Ok(Some(format!("{}{worst}{of}", truth.name)));
        }
    }
    Ok(None)
}

fn truths(inputs: &Inputs, call: Call) -> Result<(Vec<Truth>, Vec<i64>)> {
    let truth = |name, axis, expected| Truth { name, expected, axis };
    let tensors = &inputs.tensors;
    match &inputs.problem {
        Problem::Conv1d(problem) => {
            let channels = problem.sample_channels();
            let part = problem.of_channels(&channels);
            let tensors = tensors.of_channels(&channels)?;
            let expected = match call {
                Call::Backward => tensors.backward_truth(&part),
                _ => tensors.forward_truth(&part),
            };
            let truth = |(name, expected)| truth(name, channel_axis(name), expected);
            let truths = expected.into_iter().map(truth).collect();
            Ok((truths, channels))
        }
        Problem::Update(problem) => {
            let expected = tensors.update_truth(problem).into_iter();
            Ok((expected.map(|(name, expected)| truth(name, None, expected)).collect(), Vec::new()))
        }
        Problem::VarlenStates(problem) => {
            let (x, boundaries) = (tensors.of("x").view(), tensors.of("cu_seqlens").view());
            let expected = oracle::varlen_states(&x, &boundaries, problem.state_len);
            Ok((vec![truth("states", None, expected)], Vec::new()))
        }
        _ => unreachable!("other cases have no inputs"),
    }
}
