//! Decode update: a few new positions per batch entry, and the state changed in place.
//!
//! Vectors run along the channels, whatever the strides: a block of channels is gathered into the rows of a
//! small window, `[history, x]`, convolved, and scattered.

use std::ops::Range;

use super::columns::{self, BLOCK, Row};
use super::gates::Gate;
use super::heads::Heads;
use super::tensors::{Parameter, Source, Target};
use super::{tile, with_number};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::simd::{Kernel, Lanes, Number, Part, Simd};
use crate::backend::cpu::threads::for_each;
use crate::causal_conv1d::{Activation, Update, UpdateSizes};

/// Vectors whose arithmetic is interleaved; a block has whole groups of them.
const TOGETHER: usize = 4;
/// Columns of a state that a task keeps beside its window.
const MOST_COLUMNS: usize = 8;
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
    let of_block = sizes.seqlen.saturating_mul(sizes.batch).saturating_mul(BLOCK as i64);
    let blocks = (TASK_ELEMENTS / of_block).max(1);
    let channels = call.norm.map_or(blocks * BLOCK as i64, |norm| norm.head_dim);
    let parts = (sizes.dim - 1) / channels + 1;
    let entries = (TASK_ELEMENTS / sizes.seqlen.saturating_mul(channels)).clamp(1, sizes.batch);
    let chunks = (sizes.batch - 1) / entries + 1;
    let kernel = AlongChannels::<T> {
        sizes: *sizes,
        channels,
        parts,
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
        heads: call.norm.as_ref().map(Heads::new),
        keeps_state: call.cache_seqlens.is_none() && sizes.state_len <= MOST_COLUMNS as i64,
    };
    for_each((parts * chunks) as usize, call.uses_threads(), &|task| T::run(cpu, &kernel, task));
}

/// Some blocks of channels, or a head, of some batch entries per task.
struct AlongChannels<T: Number> {
    sizes: UpdateSizes,
    /// Channels of a task, and parts of dim that have as many.
    channels: i64,
    parts: i64,
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
    /// The norm that a task has a head of.
    heads: Option<Heads<T::Accumulator>>,
    /// Whether states are read and written as a whole: they are short, and shifted.
    keeps_state: bool,
}

/// What a task works in.
struct Buffers<T: Number> {
    /// A row per tap, as the tensor has them, and widened.
    taps: Vec<Row<T>>,
    weight: Vec<Row<T::Accumulator>>,
    bias: Row<T::Accumulator>,
    /// A state, if it is kept.
    state: [Row<T>; MOST_COLUMNS],
    /// `width - 1` positions of history, then `ROWS` new ones.
    window: Vec<Row<T::Accumulator>>,
    y: Row<T::Accumulator>,
    /// With a norm: the activation, of every entry, position and channel of the task.
    u: Vec<T::Accumulator>,
}

/// A block of channels of some batch entries.
struct Entries<'a, T: Number> {
    kernel: &'a AlongChannels<T>,
    channels: Range<i64>,
    entries: Range<i64>,
    buffers: &'a mut Buffers<T>,
}

/// [`AlongChannels::step`] of each entry, and its caller's promise.
struct Steps<E, const WIDTH: usize, const N: usize>(E);

impl<S, T, const WIDTH: usize, const N: usize> Part<S> for Steps<Entries<'_, T>, WIDTH, N>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let Entries { kernel, channels, entries, buffers } = self.0;
        for entry in entries {
            if let Some(place) = kernel.place(&channels, entry) {
                // SAFETY: the promise.
                unsafe { kernel.step::<S, WIDTH, N>(simd, &place, buffers) };
            }
        }
    }
}

/// What [`AlongChannels::write_heads`] takes.
struct WriteHeads<'a, T: Number> {
    kernel: &'a AlongChannels<T>,
    heads: &'a Heads<T::Accumulator>,
    first: i64,
    entries: Range<i64>,
    u: &'a mut [T::Accumulator],
}

impl<S, T> Part<S> for WriteHeads<'_, T>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let WriteHeads { kernel, heads, first, entries, u } = self;
        kernel.write_heads(simd, heads, first, entries, u);
    }
}

/// [`AlongChannels::positions`] of each entry.
struct Positions<E>(E);

impl<S, T> Part<S> for Positions<Entries<'_, T>>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    fn run(self, simd: S) {
        let Entries { kernel, channels, entries, buffers } = self.0;
        for entry in entries {
            if let Some(place) = kernel.place(&channels, entry) {
                kernel.positions(simd, &place, buffers);
            }
        }
    }
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
        let UpdateSizes { batch, dim, .. } = self.sizes;
        let (chunk, part) = (task as i64 / self.parts, task as i64 % self.parts);
        let first = part * self.channels;
        let channels = first..(first + self.channels).min(dim);
        let entries = chunk * self.entries..((chunk + 1) * self.entries).min(batch);
        let mut buffers = self.buffers();
        let mut first = channels.start;
        while first < channels.end {
            let block = first..(first + BLOCK as i64).min(channels.end);
            self.update_block(simd, block, entries.clone(), &mut buffers);
            first += BLOCK as i64;
        }
        if let Some(heads) = &self.heads {
            let u = &mut buffers.u;
            simd.apart(WriteHeads { kernel: self, heads, first: channels.start, entries, u });
        }
    }
}

impl<T: Number> AlongChannels<T> {
    #[inline(never)]
    fn buffers(&self) -> Buffers<T> {
        let UpdateSizes { seqlen, width, .. } = self.sizes;
        let zero = T::Accumulator::ZERO;
        let outputs = if self.heads.is_some() { self.entries * seqlen * self.channels } else { 0 };
        Buffers {
            taps: vec![Row([T::ZERO; BLOCK]); width as usize],
            weight: vec![Row([zero; BLOCK]); width as usize],
            bias: Row([zero; BLOCK]),
            state: [Row([T::ZERO; BLOCK]); MOST_COLUMNS],
            window: vec![Row([zero; BLOCK]); width as usize - 1 + ROWS.min(seqlen as usize)],
            y: Row([zero; BLOCK]),
            u: vec![zero; outputs as usize],
        }
    }

    /// The state row of a batch entry; below zero, there is none.
    fn row(&self, entry: i64) -> i64 {
        // SAFETY: there is an index per batch entry.
        self.indices.map_or(entry, |indices| unsafe { i64::from(*indices.at([entry])) })
    }

    #[inline(always)]
    fn update_block<S>(&self, simd: S, channels: Range<i64>, entries: Range<i64>, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        self.load_weight(simd, channels.clone(), &mut buffers.taps, &mut buffers.weight);
        if let Some(bias) = self.bias {
            // SAFETY: the channels lie in the bias.
            unsafe { bias.read_channels(simd, channels.clone(), 0, &mut buffers.bias[..], 1) };
        }
        let (width, columns) = (self.sizes.width, self.columns_of_step(&channels));
        let block = Entries { kernel: self, channels, entries, buffers };
        match (width, columns) {
            (3, 2) => simd.apart(Steps::<_, 3, 2>(block)),
            (4, 3) => simd.apart(Steps::<_, 4, 3>(block)),
            (5, 4) => simd.apart(Steps::<_, 5, 4>(block)),
            // What models of the Mamba and Qwen families keep: as many columns as taps.
            (3, 3) => simd.apart(Steps::<_, 3, 3>(block)),
            (4, 4) => simd.apart(Steps::<_, 4, 4>(block)),
            _ => simd.apart(Positions(block)),
        }
    }

    /// A batch entry's place, if it has a state; else its results are zero.
    #[inline(always)]
    fn place(&self, channels: &Range<i64>, entry: i64) -> Option<Place> {
        let place = Place { channels: channels.clone(), batch: entry, row: self.row(entry) };
        if place.row < 0 {
            self.write_zeros(&place);
            return None;
        }
        Some(place)
    }

    /// Where a task has the activation of a position, from a channel on.
    #[inline(always)]
    fn place_in_task(&self, entry: i64, position: i64, channel: i64) -> usize {
        let at = (entry % self.entries) * self.sizes.seqlen + position;
        (at * self.channels + channel % self.channels) as usize
    }

    /// Divides what a task has of a head, from channel `first` on, and writes it. Channels are added in their order.
    #[inline(always)]
    fn write_heads<S>(
        &self,
        simd: S,
        heads: &Heads<T::Accumulator>,
        first: i64,
        entries: Range<i64>,
        u: &mut [T::Accumulator],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        /// Rows whose chains of sums run side by side.
        const SIDE_BY_SIDE: usize = 8;
        let zero = T::Accumulator::ZERO;
        let seqlen = self.sizes.seqlen as usize;
        let count = (entries.end - entries.start) as usize * seqlen;
        let rows = u[..count * heads.head_dim].chunks_mut(SIDE_BY_SIDE * heads.head_dim);
        for (chunk, rows) in rows.enumerate() {
            let mut sums = [simd.splat(zero); SIDE_BY_SIDE];
            for channel in 0..heads.head_dim {
                for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(heads.head_dim)) {
                    let u = simd.splat(row[channel]);
                    *sum = simd.mul_add(u, u, *sum);
                }
            }
            for (i, (sum, row)) in sums.into_iter().zip(rows.chunks_exact_mut(heads.head_dim)).enumerate() {
                let at = chunk * SIDE_BY_SIDE + i;
                let (entry, position) = (entries.start + (at / seqlen) as i64, (at % seqlen) as i64);
                if self.row(entry) < 0 {
                    continue;
                }
                let mut lanes = Row([zero; BLOCK]);
                // SAFETY: a row is several vectors.
                unsafe { simd.store(lanes.as_mut_ptr(), sum) };
                heads.invert(&mut lanes[..1]);
                let factor = lanes[0] * heads.scale;
                row.iter_mut().for_each(|u| *u = *u * factor);
                // SAFETY: the indices lie in y, and no other task writes there.
                unsafe {
                    tile::scatter(simd, row, self.y.at([entry, first, position]), self.y.strides[1], false)
                };
            }
        }
    }

    #[inline(never)]
    fn write_zeros(&self, place: &Place) {
        for channel in place.channels.clone() {
            for position in 0..self.sizes.seqlen {
                // SAFETY: the indices lie in y, and no other task writes there.
                unsafe { *self.y.at([place.batch, channel, position]) = T::ZERO };
            }
        }
    }

    /// Columns of the state, if [`Self::step`] can take a block; else 0.
    #[inline(always)]
    fn columns_of_step(&self, channels: &Range<i64>) -> i64 {
        let UpdateSizes { seqlen, state_len, .. } = self.sizes;
        let are_neighbours = self.x.strides[1] == 1 && self.y.strides[1] == 1;
        let is_plain = [self.b.is_none(), self.c.is_none(), self.heads.is_none()] == [true; 3];
        let is_plain = is_plain && self.keeps_state && seqlen == 1;
        let is_whole = columns::are_whole(self.state_strides(), channels.clone().count(), state_len as isize);
        if are_neighbours && is_plain && is_whole { state_len } else { 0 }
    }

    /// One position of a whole block without gaps and gates, as most decoding has it: with all counts known, the compiler keeps
    /// sums in registers, and unrolls every loop.
    ///
    /// # Safety
    /// The width is `WIDTH`, and [`Self::columns_of_step`] has said `N`, at least `WIDTH - 1`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn step<S, const WIDTH: usize, const N: usize>(
        &self,
        simd: S,
        place: &Place,
        buffers: &mut Buffers<T>,
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Buffers { weight, bias, state: window, .. } = buffers;
        // Slices, whose addresses no store to a tensor can change as far as the compiler knows.
        let (weight, silu) = (&weight[..WIDTH], self.silu);
        let state = self.state.at([place.row, place.channels.start, 0]);
        let index = [place.batch, place.channels.start, 0];
        let (x, y) = (self.x.at(index), self.y.at(index));
        // SAFETY: the caller's promise: the block lies in x, y and the state, whose row belongs to this batch entry alone. All rows
        // are `BLOCK` long, a multiple of the number of lanes in a group.
        unsafe {
            columns::split::<T, N>(state, &mut window[..N]);
            x.copy_to_nonoverlapping(window[N].as_mut_ptr(), BLOCK);
            let mut first = 0;
            while first < BLOCK {
                let lane = |i| first + i * S::LANES;
                let mut sums = [simd.splat(T::Accumulator::ZERO); TOGETHER];
                for i in 0..TOGETHER {
                    sums[i] = simd.load(bias.as_ptr().add(lane(i)));
                }
                for tap in 0..WIDTH {
                    for i in 0..TOGETHER {
                        let x = T::load(simd, window[N + 1 - WIDTH + tap].as_ptr().add(lane(i)));
                        sums[i] = simd.mul_add(simd.load(weight[tap].as_ptr().add(lane(i))), x, sums[i]);
                    }
                }
                if silu {
                    sums = simd.silu::<T, TOGETHER>(sums);
                }
                for i in 0..TOGETHER {
                    T::store(simd, y.add(lane(i)), sums[i]);
                }
                first += TOGETHER * S::LANES;
            }
            columns::join::<T, N>(&window[1..=N], state);
        }
    }

    /// All positions of a block, whatever its strides.
    #[inline(always)]
    fn positions<S>(&self, simd: S, place: &Place, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        self.load_history(simd, place, buffers);
        self.convolve(simd, place, buffers);
        if self.keeps_state {
            self.write_state(simd, place, buffers);
        } else {
            self.update_state(place);
        }
    }

    /// Positions seen so far, where the state is a ring buffer.
    fn seen(&self, place: &Place) -> Option<i64> {
        // SAFETY: there is a length per batch entry.
        self.cache_seqlens.map(|lengths| unsafe { i64::from(*lengths.at([place.batch])) })
    }

    #[inline(always)]
    fn load_weight<S>(
        &self,
        simd: S,
        channels: Range<i64>,
        rows: &mut [Row<T>],
        weight: &mut [Row<T::Accumulator>],
    ) where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let Some(source) = self.weight.of_type::<T>() else {
            for (tap, row) in weight.iter_mut().enumerate() {
                // SAFETY: channels and taps lie in the weight.
                unsafe { self.weight.read_channels(simd, channels.clone(), tap as i64, &mut row[..], 1) };
            }
            return;
        };
        // SAFETY: as above; and rows are whole vectors.
        unsafe {
            columns::read(simd, source.at([channels.start, 0]), source.strides, channels.count(), rows);
            columns::widen(simd, rows, weight);
        }
    }

    #[inline(always)]
    fn load_history<S>(&self, simd: S, place: &Place, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let (before, state_len) = (self.sizes.width - 1, self.sizes.state_len);
        let count = place.channels.clone().count();
        let history = &mut buffers.window[..before as usize];
        if self.keeps_state {
            let state = &mut buffers.state[..state_len as usize];
            let source = self.state.at([place.row, place.channels.start, 0]).cast_const();
            // SAFETY: the channels lie in the state, whose row belongs to this batch entry alone.
            unsafe { columns::read(simd, source, self.state_strides(), count, state) };
            columns::widen(simd, &state[(state_len - before) as usize..], history);
            return;
        }
        for (i, row) in (0..).zip(history) {
            let column = match self.seen(place) {
                Some(seen) => (seen - before + i).rem_euclid(state_len),
                None => state_len - before + i,
            };
            let source = self.state.at([place.row, place.channels.start, column]);
            // SAFETY: the indices lie in the state, whose row belongs to this batch entry alone.
            unsafe { tile::gather(simd, source.cast_const(), self.state.strides[1], &mut row[..count]) };
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    fn convolve<S>(&self, simd: S, place: &Place, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let before = self.sizes.width as usize - 1;
        let count = place.channels.clone().count();
        let Buffers { weight, bias, window, y, u, .. } = buffers;
        let mut position = 0;
        while position < self.sizes.seqlen {
            let rows = (self.sizes.seqlen - position).min(ROWS as i64) as usize;
            for row in 0..rows {
                let index = [place.batch, place.channels.start, position + row as i64];
                let new = &mut window[before + row][..count];
                // SAFETY: the indices lie in x.
                unsafe {
                    tile::gather(simd, self.x.at(index), self.x.strides[1], new);
                    self.b.inspect(|gate| gate.multiply(simd, index, 1, new));
                }
                let mut lane = 0;
                while lane < BLOCK {
                    // SAFETY: all rows are `BLOCK` long, a multiple of the number of lanes in a group.
                    unsafe {
                        let load =
                            |row: &Row<T::Accumulator>, i| simd.load(row.as_ptr().add(lane + i * S::LANES));
                        let mut sums = [simd.splat(T::Accumulator::ZERO); TOGETHER];
                        for i in 0..TOGETHER {
                            sums[i] = load(bias, i);
                        }
                        for (weight, x) in weight.iter().zip(&window[row..]) {
                            for i in 0..TOGETHER {
                                sums[i] = simd.mul_add(load(weight, i), load(x, i), sums[i]);
                            }
                        }
                        if self.silu {
                            sums = simd.silu::<T, TOGETHER>(sums);
                        }
                        for i in 0..TOGETHER {
                            simd.store(y.as_mut_ptr().add(lane + i * S::LANES), sums[i]);
                        }
                    }
                    lane += TOGETHER * S::LANES;
                }
                let y = &mut y[..count];
                if self.heads.is_some() {
                    u[self.place_in_task(place.batch, index[2], index[1])..][..count].copy_from_slice(y);
                    continue;
                }
                // SAFETY: the indices lie in y, and no other task writes there.
                unsafe {
                    if let Some(gate) = &self.c {
                        gate.enter(y);
                        gate.multiply(simd, index, 1, y);
                    }
                    tile::scatter(simd, y, self.y.at(index), self.y.strides[1], false);
                }
            }
            window.copy_within(rows..rows + before, 0);
            position += rows as i64;
        }
    }

    /// Strides of a state's channels and columns.
    fn state_strides(&self) -> [isize; 2] {
        let [_, channels, columns] = self.state.strides;
        [channels, columns]
    }

    /// Shifts a state that was kept to the left, appends x, and writes it.
    #[inline(always)]
    fn write_state<S>(&self, simd: S, place: &Place, buffers: &mut Buffers<T>)
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        let UpdateSizes { seqlen, state_len, .. } = self.sizes;
        let count = place.channels.clone().count();
        let state = &mut buffers.state[..state_len as usize];
        for column in 0..state_len {
            let from = column + seqlen;
            if from < state_len {
                state[column as usize] = state[from as usize];
                continue;
            }
            let index = [place.batch, place.channels.start, from - state_len];
            let row = &mut state[column as usize];
            // SAFETY: the channels lie in x, and rows are as long as a block.
            unsafe {
                if let Some(gate) = &self.b {
                    let products = &mut buffers.y[..count];
                    tile::gather(simd, self.x.at(index), self.x.strides[1], products);
                    gate.multiply(simd, index, 1, products);
                    tile::scatter(simd, products, row.as_mut_ptr(), 1, false);
                } else {
                    let strides = [self.x.strides[1], self.x.strides[2]];
                    columns::read(simd, self.x.at(index), strides, count, std::slice::from_mut(row));
                }
            }
        }
        let target = self.state.at([place.row, place.channels.start, 0]);
        // SAFETY: the channels lie in the state, whose row belongs to this batch entry alone.
        unsafe { columns::write(simd, state, target, self.state_strides(), count) };
    }

    /// Writes x into the ring, or shifts a state that was not kept to the left and appends x.
    #[inline(never)]
    fn update_state(&self, place: &Place) {
        let UpdateSizes { seqlen, state_len, .. } = self.sizes;
        let seen = self.seen(place);
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
                if let Some(seen) = seen {
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
