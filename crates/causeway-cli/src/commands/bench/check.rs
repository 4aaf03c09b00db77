//! Whether what was measured was also right.

use causeway::{HostTensor, Result};
use causeway_verify::oracle::Expected;
use causeway_verify::oracle::causal_conv1d as oracle;
use causeway_verify::suite::{gather, sample_channels};

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
    match inputs {
        Inputs::Conv1d(problem, tensors) => {
            let channels = sample_channels(problem.dim);
            let part = problem.of_channels(&channels);
            let tensors = tensors.of_channels(&channels)?;
            let truths = match call {
                Call::Backward => {
                    let expected = tensors.backward_truth(&part);
                    vec![
                        truth("dx", Some(1), expected.dx),
                        truth("dweight", Some(0), expected.dweight),
                        truth("dbias", Some(0), expected.dbias),
                        truth("dinitial_states", Some(1), expected.dinitial_states),
                    ]
                }
                _ => {
                    let expected = oracle::forward(&tensors.oracle_inputs(&part));
                    vec![
                        truth("y", Some(1), expected.y),
                        truth("final_states", Some(1), expected.final_states),
                    ]
                }
            };
            Ok((truths, channels))
        }
        Inputs::Update(problem, tensors) => {
            let expected = oracle::update(&tensors.oracle_inputs(problem));
            let truths = vec![truth("y", None, expected.y), truth("conv_state", None, expected.conv_state)];
            Ok((truths, Vec::new()))
        }
        Inputs::VarlenStates(problem, tensors) => {
            let (x, boundaries) = (tensors.x.view(), tensors.cu_seqlens.view());
            let expected = oracle::varlen_states(&x, &boundaries, problem.state_len);
            Ok((vec![truth("states", None, expected)], Vec::new()))
        }
    }
}
