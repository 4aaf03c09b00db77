//! Forward: `y = act(bias + weight ∗ x) + residual`.

use super::forward_along_channels::AlongChannels;
use super::forward_along_sequence::{self, AlongSequence};
use super::partition::Partition;
use super::rows;
use super::sequences::Sequences;
use super::states::{self, History};
use super::tensors::{Parameter, Source, Target};
use super::{is_streamed, with_number, with_width};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::simd::Number;
use crate::causal_conv1d::{Activation, Forward, Sizes};

/// A call as kernels see it.
pub(super) struct Problem<T> {
    pub sequences: Sequences,
    pub history: History<T>,
    pub weight: Parameter,
    pub bias: Option<Parameter>,
    pub residual: Option<Source<T, 3>>,
    pub y: Target<T, 3>,
    pub width: usize,
    pub silu: bool,
    /// Whether y is stored past the caches.
    pub stream: bool,
}

/// Runs a call that has been validated.
pub(crate) fn forward(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes) {
    with_number!(call.x.dtype(), typed(cpu, call, sizes))
}

fn typed<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes) {
    let sequences = Sequences::new(sizes, call.seq_idx.as_ref(), call.cu_seqlens.as_ref());
    let history = History::new(&call.x, call.initial_states.as_ref(), sizes.width);
    if let Some(final_states) = &mut call.final_states {
        states::write_final_states::<T>(sizes, &sequences, &history, Target::new(final_states));
    }
    if call.y.meta().is_empty() {
        return;
    }
    let mut strides = vec![call.x.strides(), call.y.strides()];
    strides.extend(call.residual.as_ref().map(|residual| residual.strides()));
    let (along_channels, contiguous) =
        (rows::are_rows(sizes, &strides), strides.iter().all(|strides| strides[2] == 1));
    let problem = Problem {
        sequences,
        history,
        weight: Parameter::new(&call.weight),
        bias: call.bias.as_ref().map(Parameter::new),
        residual: call.residual.as_ref().map(Source::new),
        y: Target::new(&mut call.y),
        width: sizes.width as usize,
        silu: call.activation == Activation::Silu,
        stream: is_streamed::<T>(sizes),
    };
    if along_channels {
        let partition = rows::partition(sizes, i64::MAX);
        with_width!(sizes.width, run_along_channels(cpu, partition, problem));
    } else {
        let partition = forward_along_sequence::partition(sizes, contiguous, i64::MAX);
        let kernel = AlongSequence { partition, problem };
        kernel.partition.for_each_task(|task| T::run(cpu, &kernel, task));
    }
}

fn run_along_channels<T: Number, const WIDTH: usize>(cpu: Cpu, partition: Partition, problem: Problem<T>) {
    let kernel = AlongChannels::<T, WIDTH> { partition, problem };
    kernel.partition.for_each_task(|task| T::run(cpu, &kernel, task));
}
