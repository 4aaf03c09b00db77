//! Decode update: a few new positions per batch entry, and the state changed in place.
//!
//! Vectors run along the channels, whatever the strides: a block of channels is gathered into the rows of a
//! small window, `[history, x]`, convolved, and scattered.

use std::ops::Range;

use super::gates::Gate;
use super::partition::{for_each, is_worth_threads};
use super::tensors::{Parameter, Source, Target};
use super::{tile, with_number};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Simd};
use crate::causal_conv1d::{Activation, Update, UpdateSizes};

/// Channels in a block: a multiple of every number of lanes.
const BLOCK: usize = 64;
/// New positions in a window.
const ROWS: usize = 16;
/// New elements that a task should have at least.
const TASK_ELEMENTS: i64 = 1 << 13;

/// Runs a call that has been validated.
pub(crate) fn update(cpu: Cpu, call: &mut Update<'_>, sizes: &UpdateSizes) {
    with_number!(call.x.dtype(), typed(cpu, call, sizes))
}

fn typed<T: Number>(cpu: Cpu, call: &mut Update<'_>, sizes: &UpdateSizes) {
    if call.y.meta().is_empty() {
        return;
    }
    let blocks = (sizes.dim - 1) / BLOCK as i64 + 1;
    let entries = (TASK_ELEMENTS / (sizes.seqlen * BLOCK as i64)).clamp(1, sizes.batch);
    let chunks = (sizes.batch - 1) / entries + 1;
    let kernel = AlongChannels::<T> {
        sizes: *sizes,
        blocks,
        entries,
        silu: call.activation == Activation::Silu,
        x: Source::new(&call.x),
        state: Target::new(&mut call.conv_state),
        weight: Parameter::new(&call.weight),
        bias: call.bias.as_ref().map(Parameter::new),
        cache_seqlens: call.cache_seqlens.as_ref().map(Source::new),
        indices: call.conv_state_indices.as_ref().map(Source::new),
        b: Gate::new(call.b.as_ref(), call.round_products),
        c: Gate::new(call.c.as_ref(), call.round_products),
        y: Target::new(&mut call.y),
    };
    let parallel = is_worth_threads(sizes.batch, sizes.dim, sizes.seqlen);
    for_each((blocks * chunks) as usize, parallel, |task| T::run(cpu, &kernel, task));
}

/// A block of channels of some batch entries per task.
struct AlongChannels<T: Number> {
    sizes: UpdateSizes,
    /// Blocks of channels.
    blocks: i64,
    /// Batch entries of a task.
    entries: i64,
    x: Source<T, 3>,
    state: Target<T, 3>,
    weight: Parameter,
    bias: Option<Parameter>,
    cache_seqlens: Option<Source<i32, 1>>,
    indices: Option<Source<i32, 1>>,
    /// What multiplies x, and the activation.
    b: Option<Gate<T>>,
    c: Option<Gate<T>>,
    y: Target<T, 3>,
    silu: bool,
}

/// What a task works in: rows of `BLOCK` channels.
struct Buffers<A> {
    /// A row per tap.
    weight: Vec<A>,
    bias: [A; BLOCK],
    /// `width - 1` positions of history, then `ROWS` new ones.
    window: Vec<A>,
    y: [A; BLOCK],
}

/// The channels of a task, and the rows of a batch entry.
struct Place {
    channels: Range<i64>,
    batch: i64,
    /// Row of the state.
    row: i64,
}

impl<T: Number> Kernel for AlongChannels<T> {
    type Number = T;

    #[inline(always)]
    fn run<S>(&self, simd: S, task: usize)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let UpdateSizes { batch, dim, seqlen, width, .. } = self.sizes;
        let (chunk, block) = (task as i64 / self.blocks, task as i64 % self.blocks);
        let first = block * BLOCK as i64;
        let channels = first..(first + BLOCK as i64).min(dim);
        let zero = T::Accumulator::ZERO;
        let mut buffers = Buffers {
            weight: vec![zero; width as usize * BLOCK],
            bias: [zero; BLOCK],
            window: vec![zero; (width as usize - 1 + ROWS.min(seqlen as usize)) * BLOCK],
            y: [zero; BLOCK],
        };
        for (i, channel) in channels.clone().enumerate() {
            for tap in 0..width {
                // SAFETY: channel and tap lie in the weight.
                buffers.weight[tap as usize * BLOCK + i] = unsafe { self.weight.read(channel, tap) };
            }
            // SAFETY: the channel lies in the bias.
            buffers.bias[i] = self.bias.map_or(zero, |bias| unsafe { bias.read(channel, 0) });
        }
        for entry in chunk * self.entries..((chunk + 1) * self.entries).min(batch) {
            // SAFETY: there is an index per batch entry.
            let row = self.indices.map_or(entry, |indices| unsafe { i64::from(*indices.at([entry])) });
            let place = Place { channels: channels.clone(), batch: entry, row };
            if row < 0 {
                self.write_zeros(&place);
            } else {
                self.load_history(simd, &place, &mut buffers);
                self.convolve(simd, &place, &mut buffers);
                self.update_state(&place);
            }
        }
    }
}

impl<T: Number> AlongChannels<T> {
    fn write_zeros(&self, place: &Place) {
        for channel in place.channels.clone() {
            for position in 0..self.sizes.seqlen {
                // SAFETY: the indices lie in y, and no other task writes there.
                unsafe { *self.y.at([place.batch, channel, position]) = T::ZERO };
            }
        }
    }

    /// Positions seen so far, where the state is a ring buffer.
    fn seen(&self, place: &Place) -> Option<i64> {
        // SAFETY: there is a length per batch entry.
        self.cache_seqlens.map(|lengths| unsafe { i64::from(*lengths.at([place.batch])) })
    }

    #[inline(always)]
    fn load_history<S>(&self, simd: S, place: &Place, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (before, state_len) = (self.sizes.width - 1, self.sizes.state_len);
        let count = place.channels.clone().count();
        for i in 0..before {
            let column = match self.seen(place) {
                Some(seen) => (seen - before + i).rem_euclid(state_len),
                None => state_len - before + i,
            };
            let source = self.state.at([place.row, place.channels.start, column]);
            let row = &mut buffers.window[i as usize * BLOCK..][..count];
            // SAFETY: the indices lie in the state, whose row belongs to this batch entry alone.
            unsafe { tile::gather(simd, source.cast_const(), self.state.strides[1], row) };
        }
    }

    #[inline(always)]
    fn convolve<S>(&self, simd: S, place: &Place, buffers: &mut Buffers<T::Accumulator>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let before = self.sizes.width as usize - 1;
        let count = place.channels.clone().count();
        let Buffers { weight, bias, window, y } = buffers;
        let mut position = 0;
        while position < self.sizes.seqlen {
            let rows = (self.sizes.seqlen - position).min(ROWS as i64) as usize;
            for row in 0..rows {
                let index = [place.batch, place.channels.start, position + row as i64];
                let new = &mut window[(before + row) * BLOCK..][..count];
                // SAFETY: the indices lie in x.
                unsafe {
                    tile::gather(simd, self.x.at(index), self.x.strides[1], new);
                    self.b.inspect(|gate| gate.multiply(simd, index, 1, new));
                }
                for lane in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: all rows are `BLOCK` long, a multiple of the number of lanes.
                    unsafe {
                        let mut sum = simd.load(bias.as_ptr().add(lane));
                        for tap in 0..=before {
                            let weight = simd.load(weight[tap * BLOCK..].as_ptr().add(lane));
                            let x = simd.load(window[(row + tap) * BLOCK..].as_ptr().add(lane));
                            sum = simd.mul_add(weight, x, sum);
                        }
                        if self.silu {
                            [sum] = simd.silu::<T, 1>([sum]);
                        }
                        simd.store(y.as_mut_ptr().add(lane), sum);
                    }
                }
                let y = &mut y[..count];
                // SAFETY: the indices lie in y, and no other task writes there.
                unsafe {
                    if let Some(gate) = &self.c {
                        gate.enter(y);
                        gate.multiply(simd, index, 1, y);
                    }
                    tile::scatter(simd, y, self.y.at(index), self.y.strides[1], false);
                }
            }
            window.copy_within(rows * BLOCK..(rows + before) * BLOCK, 0);
            position += rows as i64;
        }
    }

    /// Writes x into the ring, or shifts the state to the left and appends x.
    fn update_state(&self, place: &Place) {
        let UpdateSizes { seqlen, state_len, .. } = self.sizes;
        for channel in place.channels.clone() {
            let state = |column| self.state.at([place.row, channel, column]);
            let index = |position| [place.batch, channel, position];
            // SAFETY: positions are those of x.
            let x = |position| unsafe {
                let x = *self.x.at(index(position));
                self.b.map_or(x, |gate| T::narrow(gate.times(index(position), x.widen())))
            };
            // SAFETY: the indices lie in state and x; the state's row belongs to this batch entry alone.
            // Columns go up, and each is read before it is written.
            unsafe {
                if let Some(seen) = self.seen(place) {
                    // Of more positions than the ring holds, the last ones stay.
                    for position in (seqlen - state_len).max(0)..seqlen {
                        *state((seen + position) % state_len) = x(position);
                    }
                } else {
                    for column in 0..state_len {
                        let from = column + seqlen;
                        *state(column) = if from < state_len { *state(from) } else { x(from - state_len) };
                    }
                }
            }
        }
    }
}
