//! Whether what was measured was also right.

use causeway::HostTensor;
use causeway::oracle::causal_conv1d::{self as oracle, Inputs};
use causeway::suite::Conv1d;

use super::buffers::{Buffers, Call};

/// Of two calls on the first set, with poisoned outputs: the bits must agree, and a sample of channels must be within the bounds of
/// the oracle. Returns what is wrong.
pub(super) fn check(
    buffers: &Buffers,
    problem: &Conv1d,
    call: Call,
    [first, second]: [Vec<HostTensor>; 2],
) -> Option<String> {
    let names = match call {
        Call::Forward => &["y"][..],
        Call::Backward => &["dx", "dweight", "dbias"],
    };
    for ((first, second), name) in first.iter().zip(&second).zip(names) {
        if first.bytes() != second.bytes() {
            return Some(format!("{name} differs from one call to the next"));
        }
    }
    let mut channels = vec![0, problem.dim / 2, problem.dim - 1];
    channels.dedup();
    let mut wrong =
        channels.into_iter().map(|channel| check_channel(buffers, problem, call, &first, channel));
    wrong.find_map(|wrong| wrong)
}

/// One channel alone is a convolution too, since channels do not mix.
fn check_channel(
    buffers: &Buffers,
    problem: &Conv1d,
    call: Call,
    outputs: &[HostTensor],
    channel: i64,
) -> Option<String> {
    let set = &buffers.sets[0];
    let inputs = Inputs {
        x: set.x.view().narrow(1, channel, 1),
        weight: buffers.weight.view().narrow(0, channel, 1),
        bias: buffers.bias.as_ref().map(|bias| bias.view().narrow(0, channel, 1)),
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        residual: None,
        activation: problem.activation,
    };
    let expected = match call {
        Call::Forward => vec![("y", 1, oracle::forward(&inputs).y)],
        Call::Backward => {
            let dy = set.dy.view().narrow(1, channel, 1);
            let truth = oracle::backward(&inputs, &dy, None, problem.dweight_dtype);
            vec![("dx", 1, truth.dx), ("dweight", 0, truth.dweight), ("dbias", 0, truth.dbias)]
        }
    };
    expected.iter().zip(outputs).find_map(|((name, axis, expected), output)| {
        let comparison = expected.compare(&output.view().narrow(*axis, channel, 1), None);
        let worst = comparison.worst.as_ref()?;
        (!comparison.passed()).then(|| format!("channel {channel}: {name}{worst}"))
    })
}
