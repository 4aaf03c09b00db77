//! Backward: `dx`, `dweight`, `dbias`, `dinitial_states`, and `dB` and `dC` of the gates.

mod along_channels;
mod along_sequence;
mod by_heads;
mod few_channels;
mod passes;
mod places;
mod registers;
mod short_rows;

use along_channels::AlongChannels;
use along_sequence::AlongSequence;
use by_heads::{ByHeads, Memory};
use few_channels::FewChannels;
use short_rows::ShortRows;

use super::blocks::MAX_PAIR;
use super::gates::Gate;
use super::heads::Heads;
use super::partition::Partition;
use super::sequences::Sequences;
use super::states::{self, History};
use super::sums::{Sums, SumsTarget};
use super::tensors::{Parameter, ParameterMut, Source, Target};
use super::{few_channels as few, is_streamed, rows, short_rows as short, with_number};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::simd::Number;
use crate::causal_conv1d::{Activation, Backward, HeadNorm, Sizes};
use crate::error::Result;

/// Most sums of dweight's size that are kept side by side.
const MAX_CHUNKS: i64 = 32;

/// A call as kernels see it.
pub(super) struct Problem<T: Number> {
    pub sequences: Sequences,
    pub history: History<T>,
    pub weight: Parameter,
    pub bias: Option<Parameter>,
    pub dy: Source<T, 3>,
    /// g where it has been computed before: there is a norm. It stands for dy then, and there is no activation.
    pub g: Option<Source<T::Accumulator, 3>>,
    pub dfinal_states: Option<Source<T, 3>>,
    pub dx: Target<T, 3>,
    pub dinitial_states: Option<Target<T, 3>>,
    /// What multiplies the activation; that of x is in `history`.
    pub gate: Option<Gate<T>>,
    /// Gradients of the gate of x, and of the other one.
    pub db: Option<Target<T, 3>>,
    pub dc: Option<Target<T, 3>>,
    /// For dweight and dbias.
    pub sums: SumsTarget,
    pub width: usize,
    pub silu: bool,
    /// Whether the derivative of the activation is as exact as sums of 32 bits ask. It enters dx and the sums of dweight and dbias, and
    /// rounding to 16 bits hides what it lacks in either.
    pub exact_derivative: bool,
    /// Whether dx is stored past the caches.
    pub stream: bool,
}

/// Runs a call that has been validated.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is none for sums of chunks, or with a norm for g. Nothing has been written then.
pub(crate) fn backward(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes) -> Result<()> {
    if sizes.dim == 0 {
        return Ok(());
    }
    if let Some(norm) = call.norm {
        with_number!(call.x.dtype(), by_heads | by_heads_along_sequence(cpu, call, sizes, &norm))
    } else {
        with_number!(call.x.dtype(), along_either | along_sequence(cpu, call, sizes))
    }
}

fn by_heads<T: Number>(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes, norm: &HeadNorm) -> Result<()> {
    // In rows of few channels, most of a pair would be empty.
    if sizes.dim < MAX_PAIR as i64 || !rows::are_rows(sizes, &strides(call)) {
        by_heads_along_sequence::<T>(cpu, call, sizes, norm)
    } else {
        by_heads_along_channels::<T>(cpu, call, sizes, norm)
    }
}

fn by_heads_along_channels<T: Number>(
    cpu: Cpu,
    call: &mut Backward<'_>,
    sizes: &Sizes,
    norm: &HeadNorm,
) -> Result<()> {
    let partition = rows::partition(sizes, MAX_CHUNKS);
    with_gradients_of_heads::<T>(cpu, call, sizes, norm, (partition, true), |partition, problem, parallel| {
        let kernel = AlongChannels::<T> { partition, problem, weights: rows::Weights::new() };
        kernel.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
    })
}

fn by_heads_along_sequence<T: Number>(
    cpu: Cpu,
    call: &mut Backward<'_>,
    sizes: &Sizes,
    norm: &HeadNorm,
) -> Result<()> {
    let partition = Partition::along_sequence(sizes, false, MAX_CHUNKS);
    with_gradients_of_heads::<T>(
        cpu,
        call,
        sizes,
        norm,
        (partition, false),
        |partition, problem, parallel| {
            let kernel = AlongSequence::<T> { partition, problem };
            kernel.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
        },
    )
}

/// First g of all positions, then the `rest`, of the tasks of a partition, whose g is in rows or is not.
fn with_gradients_of_heads<T: Number>(
    cpu: Cpu,
    call: &mut Backward<'_>,
    sizes: &Sizes,
    norm: &HeadNorm,
    (partition, rows): (Partition, bool),
    rest: impl FnOnce(Partition, Problem<T>, bool),
) -> Result<()> {
    let mut memory = Memory::new(sizes, rows)?;
    let (g, read) = memory.views();
    with_sums(call, sizes, partition.chunks, |mut problem: Problem<T>, parallel| {
        let heads = Heads::new(norm);
        let (of_heads, silu) = (heads.partition(sizes), problem.silu);
        let first = ByHeads { partition: of_heads, silu, problem: &problem, heads, g, rows };
        first.partition.for_each_task(parallel, |task| T::run(cpu, &first, task));
        (problem.g, problem.silu) = (Some(read), false);
        rest(partition, problem, parallel);
    })
}

/// Runs the tasks of a call, whose partition has so many chunks, and writes dweight and dbias from the sums that they put.
fn with_sums<T: Number>(
    call: &mut Backward<'_>,
    sizes: &Sizes,
    chunks: i64,
    run: impl FnOnce(Problem<T>, bool),
) -> Result<()> {
    let mut sums = Sums::new(sizes, chunks)?;
    run(Problem::new(call, sizes, sums.target()), call.uses_threads());
    write_sums(&sums, call);
    Ok(())
}

fn along_either<T: Number>(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes) -> Result<()> {
    let strides = strides(call);
    if !rows::are_rows(sizes, &strides) {
        return along_sequence::<T>(cpu, call, sizes);
    }
    let cut = is_plain(call)
        .then(|| few::Cut::new::<T::Accumulator>(sizes, &strides, few_channels::BYTES, MAX_CHUNKS));
    match cut.flatten() {
        Some(cut) => few_channels::<T>(cpu, call, sizes, cut),
        None => along_channels::<T>(cpu, call, sizes),
    }
}

/// Whether there are no gates, every row is one sequence, and states take no gradients.
fn is_plain(call: &Backward<'_>) -> bool {
    let rows = call.seq_idx.is_none() && call.cu_seqlens.is_none() && call.b.is_none() && call.c.is_none();
    rows && call.dfinal_states.is_none() && call.dinitial_states.is_none()
}

fn few_channels<T: Number>(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes, cut: few::Cut) -> Result<()> {
    with_sums(call, sizes, cut.partition.chunks, |problem, parallel| {
        let kernel = FewChannels::<T> { cut, seqlen: sizes.seqlen, problem };
        kernel.cut.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
    })
}

fn along_channels<T: Number>(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes) -> Result<()> {
    let partition = rows::partition(sizes, MAX_CHUNKS);
    with_sums(call, sizes, partition.chunks, |problem, parallel| {
        let kernel = AlongChannels::<T> { partition, problem, weights: rows::Weights::new() };
        kernel.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
    })
}

fn along_sequence<T: Number>(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes) -> Result<()> {
    let contiguous = strides(call).iter().all(|strides| strides[2] == 1);
    let cut = (contiguous && is_plain(call))
        .then(|| short::Cut::new::<T::Accumulator>(sizes, short_rows::BYTES, MAX_CHUNKS));
    if let Some(cut) = cut.flatten() {
        return short_rows::<T>(cpu, call, sizes, cut);
    }
    let partition = Partition::along_sequence(sizes, contiguous, MAX_CHUNKS);
    with_sums(call, sizes, partition.chunks, |problem, parallel| {
        let kernel = AlongSequence::<T> { partition, problem };
        kernel.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
    })
}

fn short_rows<T: Number>(cpu: Cpu, call: &mut Backward<'_>, sizes: &Sizes, cut: short::Cut) -> Result<()> {
    with_sums(call, sizes, cut.partition.chunks, |problem, parallel| {
        let kernel = ShortRows::<T> { cut, problem };
        kernel.cut.partition.for_each_task(parallel, |task| T::run(cpu, &kernel, task));
    })
}

fn write_sums(sums: &Sums, call: &mut Backward<'_>) {
    let has_threads = call.uses_threads();
    let dweight = ParameterMut::new(&mut call.dweight);
    let dbias = call.dbias.as_mut().map(ParameterMut::new);
    // SAFETY: every task has run, and each has put the sums of its chunk and channels. Channel and taps lie in the tensors, and each
    // call has a channel of its own.
    unsafe {
        sums.write(has_threads, |channel, sums| {
            let (bias, taps) = sums.split_last().expect("the last sum is that of the bias");
            taps.iter().zip(0..).for_each(|(&sum, tap)| dweight.write(channel, tap, sum));
            if let Some(dbias) = dbias {
                dbias.write(channel, 0, *bias);
            }
        });
    }
}

/// Strides of the tensors with the shape of x.
fn strides<'a>(call: &'a Backward<'_>) -> Vec<&'a [i64]> {
    let mut strides = vec![call.x.strides(), call.dy.strides(), call.dx.strides()];
    strides.extend([&call.b, &call.c].into_iter().flatten().map(|view| view.strides()));
    strides.extend([&call.db, &call.dc].into_iter().flatten().map(|view| view.strides()));
    strides
}

impl<T: Number> Problem<T> {
    /// Writes the gradients of the initial states of empty sequences, which no kernel visits.
    fn new(call: &mut Backward<'_>, sizes: &Sizes, sums: SumsTarget) -> Self {
        let sequences = Sequences::new(sizes, call.seq_idx.as_ref(), call.cu_seqlens.as_ref());
        let dfinal_states = call.dfinal_states.as_ref().map(Source::new);
        let dinitial_states = call.dinitial_states.as_mut().map(Target::new);
        let gate = |view| Gate::new(view, call.round_products);
        let (b, c) = (gate(call.b.as_ref()), gate(call.c.as_ref()));
        if let Some(target) = dinitial_states {
            states::write_initial_gradients_of_empty_sequences(sizes, &sequences, dfinal_states, target);
        }
        Problem {
            sequences,
            history: History::new(&call.x, call.initial_states.as_ref(), sizes.width).gated(b),
            weight: Parameter::new(&call.weight),
            bias: call.bias.as_ref().map(Parameter::new),
            dy: Source::new(&call.dy),
            g: None,
            dfinal_states,
            dx: Target::new(&mut call.dx),
            dinitial_states,
            gate: c,
            db: call.db.as_mut().map(Target::new),
            dc: call.dc.as_mut().map(Target::new),
            sums,
            width: sizes.width as usize,
            silu: call.activation == Activation::Silu,
            exact_derivative: call.dweight.dtype() != call.x.dtype(),
            stream: is_streamed::<T>(sizes),
        }
    }
}
