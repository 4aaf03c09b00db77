//! Forward: `y = C ⊙ act(bias + weight ∗ (B ⊙ x)) + residual`, without gates `act(bias + weight ∗ x) + residual`, or that divided
//! by the norms of heads.

mod along_channels;
mod along_sequence;
mod by_heads;
mod few_channels;
mod places;
mod short_rows;

use along_channels::AlongChannels;
use along_sequence::AlongSequence;
use by_heads::ByHeads;
use few_channels::FewChannels;
use short_rows::ShortRows;

use super::gates::Gate;
use super::heads::Heads;
use super::partition::Partition;
use super::sequences::Sequences;
use super::states::{self, History};
use super::tensors::{Parameter, Source, Target};
use super::{few_channels as few, is_streamed, rows, short_rows as short, with_number};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::simd::Number;
use crate::causal_conv1d::{Activation, Forward, HeadNorm, Sizes};

/// A call as kernels see it.
pub(super) struct Problem<T> {
    pub sequences: Sequences,
    pub history: History<T>,
    pub weight: Parameter,
    pub bias: Option<Parameter>,
    pub residual: Option<Source<T, 3>>,
    /// What multiplies the activation.
    pub gate: Option<Gate<T>>,
    pub y: Target<T, 3>,
    pub width: usize,
    pub silu: bool,
    /// Whether y is stored past the caches.
    pub stream: bool,
}

/// Runs a call that has been validated.
pub(crate) fn forward(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes) {
    if let Some(norm) = call.norm {
        with_number!(call.x.dtype(), by_heads(cpu, call, sizes, &norm))
    } else {
        with_number!(call.x.dtype(), along_either | along_sequence(cpu, call, sizes))
    }
}

fn by_heads<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes, norm: &HeadNorm) {
    let parallel = call.uses_threads();
    let heads = Heads::new(norm);
    if let Some(problem) = Problem::<T>::new(call, sizes) {
        let kernel = ByHeads { partition: heads.partition(sizes), problem, heads };
        kernel.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
    }
}

fn along_either<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes) {
    let strides = strides(call);
    if !rows::are_rows(sizes, &strides) {
        return along_sequence::<T>(cpu, call, sizes);
    }
    let cut = is_plain(call)
        .then(|| few::Cut::new::<T::Accumulator>(sizes, &strides, few_channels::BYTES, i64::MAX));
    match cut.flatten() {
        Some(cut) => few_channels::<T>(cpu, call, sizes, cut),
        None => along_channels::<T>(cpu, call, sizes),
    }
}

/// Whether there are no gates, and every row is one sequence.
fn is_plain(call: &Forward<'_>) -> bool {
    call.seq_idx.is_none() && call.cu_seqlens.is_none() && call.b.is_none() && call.c.is_none()
}

fn few_channels<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes, cut: few::Cut) {
    if let Some(problem) = Problem::new(call, sizes) {
        let kernel = FewChannels::<T> { cut, problem };
        kernel.cut.partition.for_each_task(call.uses_threads(), |task| T::run(cpu, &kernel, task));
    }
}

fn along_channels<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes) {
    let partition = rows::partition(sizes, i64::MAX);
    if let Some(problem) = Problem::new(call, sizes) {
        let kernel = AlongChannels::<T> { partition, problem, weights: rows::Weights::new() };
        kernel.partition.for_each_task(call.uses_threads(), |task| T::run(cpu, &kernel, task));
    }
}

fn along_sequence<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes) {
    let contiguous = strides(call).iter().all(|strides| strides[2] == 1);
    let cut = (contiguous && is_plain(call))
        .then(|| short::Cut::new::<T::Accumulator>(sizes, short_rows::BYTES, i64::MAX));
    if let Some(cut) = cut.flatten() {
        return short_rows::<T>(cpu, call, sizes, cut);
    }
    let partition = Partition::along_sequence(sizes, contiguous, i64::MAX);
    if let Some(problem) = Problem::new(call, sizes) {
        let kernel = AlongSequence::<T> { partition, problem };
        kernel.partition.for_each_task(call.uses_threads(), |task| T::run(cpu, &kernel, task));
    }
}

fn short_rows<T: Number>(cpu: Cpu, call: &mut Forward<'_>, sizes: &Sizes, cut: short::Cut) {
    if let Some(problem) = Problem::new(call, sizes) {
        let kernel = ShortRows::<T> { cut, problem };
        kernel.cut.partition.for_each_task(call.uses_threads(), |task| T::run(cpu, &kernel, task));
    }
}

/// Strides of the tensors with the shape of x.
fn strides<'a>(call: &'a Forward<'_>) -> Vec<&'a [i64]> {
    let mut strides = vec![call.x.strides(), call.y.strides()];
    strides.extend([&call.residual, &call.b, &call.c].into_iter().flatten().map(|view| view.strides()));
    strides
}

impl<T: Number> Problem<T> {
    /// Writes the final states. None if there is nothing else to do.
    fn new(call: &mut Forward<'_>, sizes: &Sizes) -> Option<Self> {
        let sequences = Sequences::new(sizes, call.seq_idx.as_ref(), call.cu_seqlens.as_ref());
        let gate = |view| Gate::new(view, call.round_products);
        let history =
            History::new(&call.x, call.initial_states.as_ref(), sizes.width).gated(gate(call.b.as_ref()));
        let has_threads = call.uses_threads();
        if let Some(final_states) = &mut call.final_states {
            let target = Target::new(final_states);
            states::write_final_states::<T>(sizes, &sequences, &history, target, has_threads);
        }
        (!call.y.meta().is_empty()).then(|| Problem {
            sequences,
            history,
            weight: Parameter::new(&call.weight),
            bias: call.bias.as_ref().map(Parameter::new),
            residual: call.residual.as_ref().map(Source::new),
            gate: Gate::new(call.c.as_ref(), call.round_products),
            y: Target::new(&mut call.y),
            width: sizes.width as usize,
            silu: call.activation == Activation::Silu,
            stream: is_streamed::<T>(sizes),
        })
    }
}
