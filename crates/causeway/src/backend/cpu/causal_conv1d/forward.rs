//! Forward: `y = act(bias + weight ∗ x) + residual`.

use super::partition::Partition;
use super::sequences::{Piece, Sequences};
use super::states::{self, History};
use super::tensors::{Parameter, Source, Target};
use super::tile::{self, Keep, Silu, TILE};
use super::{STREAM_BYTES, with_number};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};
use crate::causal_conv1d::{Activation, Forward, Sizes};

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
    let y = Target::new(&mut call.y);
    let kernel = AlongSequence::<T> {
        partition: tile_partition(sizes, history.x.strides[2] == 1 && y.strides[2] == 1, i64::MAX),
        stream: sizes.batch * sizes.dim * sizes.seqlen * size_of::<T>() as i64 >= STREAM_BYTES,
        silu: call.activation == Activation::Silu,
        width: sizes.width as usize,
        sequences,
        history,
        weight: Parameter::new(&call.weight),
        bias: call.bias.as_ref().map(Parameter::new),
        residual: call.residual.as_ref().map(Source::new),
        y,
    };
    kernel.partition.for_each_task(|task| T::run(cpu, &kernel, task));
}

/// The partition of kernels that work along the sequence. Where positions are not neighbours in memory, a
/// group of channels shares the cache lines of a segment.
pub(super) fn tile_partition(sizes: &Sizes, contiguous: bool, max_chunks: i64) -> Partition {
    let segment = if contiguous { 8 * TILE } else { 2 * TILE };
    Partition::new(sizes, 16, segment as i64, max_chunks)
}

/// One channel at a time, vectors along the sequence: at full speed where positions are neighbours in memory,
/// correct for every stride and width.
struct AlongSequence<T: Number> {
    partition: Partition,
    sequences: Sequences,
    history: History<T>,
    weight: Parameter,
    bias: Option<Parameter>,
    residual: Option<Source<T, 3>>,
    y: Target<T, 3>,
    width: usize,
    silu: bool,
    stream: bool,
}

/// What a task works in.
struct Buffers<A> {
    /// Weights of one channel.
    weight: Vec<A>,
    /// `width - 1` positions of history, then a tile.
    x: Vec<A>,
    /// A tile.
    y: Vec<A>,
}

impl<T: Number> Kernel for AlongSequence<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let zero = T::Accumulator::ZERO;
        let mut buffers = Buffers {
            weight: vec![zero; self.width],
            x: vec![zero; self.width - 1 + TILE],
            y: vec![zero; TILE],
        };
        let mut pieces = Vec::new();
        let (channels, chunk) = self.partition.task(task);
        for column in self.partition.columns(chunk) {
            self.sequences.pieces(column.batch, column.from, column.to, &mut pieces);
            for channel in channels.clone() {
                for (tap, weight) in buffers.weight.iter_mut().enumerate() {
                    // SAFETY: channel and tap lie in the weight.
                    *weight = unsafe { self.weight.read(channel, tap as i64) };
                }
                // SAFETY: the channel lies in the bias.
                let bias = self.bias.map_or(zero, |bias| unsafe { bias.read(channel, 0) });
                for piece in &pieces {
                    self.piece(simd, piece, channel, bias, &mut buffers);
                }
            }
        }
        simd.fence();
    }
}

impl<T: Number> AlongSequence<T> {
    #[inline(always)]
    fn piece<S>(
        &self,
        simd: S,
        piece: &Piece,
        channel: i64,
        bias: T::Accumulator,
        buffers: &mut Buffers<T::Accumulator>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Buffers { weight, x, y } = buffers;
        let before = self.width - 1;
        for (i, value) in x[..before].iter_mut().enumerate() {
            let position = piece.from - before as i64 + i as i64;
            *value = self.history.value(&self.sequences, piece, channel, position);
        }
        let mut from = piece.from;
        while from < piece.to {
            let count = (piece.to - from).min(TILE as i64) as usize;
            if piece.is_padding() {
                y[..count].fill(T::Accumulator::ZERO);
            } else {
                let source = self.history.x.at([piece.batch, channel, from]);
                // SAFETY: `from .. from + count` are positions of the row.
                unsafe {
                    tile::gather(simd, source, self.history.x.strides[2], &mut x[before..before + count])
                };
                if self.silu {
                    let finish = Silu { precise: size_of::<T>() > 2 };
                    tile::convolve(simd, weight, bias, x, count, y, &finish);
                } else {
                    tile::convolve(simd, weight, bias, x, count, y, &Keep);
                }
                x.copy_within(count..count + before, 0);
            }
            if let Some(residual) = &self.residual {
                let source = residual.at([piece.batch, channel, from]);
                // SAFETY: as above; the residual has the shape of x.
                unsafe { tile::gather_add(source, residual.strides[2], &mut y[..count]) };
            }
            let target = self.y.at([piece.batch, channel, from]);
            // SAFETY: as above, and no other task writes to these positions of this channel.
            unsafe { tile::scatter(simd, &y[..count], target, self.y.strides[2], self.stream) };
            from += count as i64;
        }
    }
}
