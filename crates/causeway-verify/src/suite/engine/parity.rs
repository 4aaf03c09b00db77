//! The same tokens computed in other ways: every one has to give the bits of the plain call.
//!
//! ```text
//! y, channel-first ── the oracle
//!        └─ bit for bit: layouts, parts of the batch and of the channels, packed rows, chunks with states, updates,
//!           pools of other sizes
//! ```

use std::ops::Range;

use causeway::causal_conv1d::{Forward, Update};
use causeway::device::Device;
use causeway::error::Result;
use causeway::operation::Operation as _;
use causeway::placement::{Input, Output};
use causeway::tensor::{DType, TensorMut, TensorRef};
use causeway::{Arrangement, HostTensor};

use super::super::calls::Call;
use super::super::case::Conv1d;
use super::super::check;
use super::super::layout::{Layout, dense};
use super::super::random::Random;
use super::super::tensors::{Tensors, channel_axis};
use super::Run;
use crate::oracle::{Expected, POISON};

/// Most calls of one way: where chunks are short, they cover the beginning of the rows.
const MOST_CALLS: i64 = 150;
/// Positions that updates compute.
const UPDATED: i64 = 48;

/// Computes y plainly, compares it with the oracle, and then with what every other way gives.
pub(super) fn run(run: &mut Run<'_>, plain: &Conv1d) -> Result<()> {
    let mut tensors = plain.tensors(&run.case.name)?;
    for bias in tensors.change(&["bias"]) {
        // With a bias of -0 the sign of a zero is promised nowhere: docs/verification.md, where parity ends.
        let values = bias.to_f64();
        bias.assign(|channel| values[channel] + 0.0);
    }
    let placed = tensors.try_map(|_, tensor| Input::place(run.device, tensor))?;
    let inputs = placed.views(Input::view);
    let results = plain.forward_results(|_, arrangement| run.poisoned(&arrangement))?;
    let mut results = run.call("conv1d-forward", results, |results, with| {
        with(&mut plain.forward(&inputs, results, Output::view))
    })?;
    let found = results.take("y").expect("forward has y");
    let y = found.duplicate()?.fetch()?.to_f64();
    run.check("y", tensors.forward_truth(plain).of("y"), found)?;

    let residual = tensors.get("residual").map(HostTensor::to_f64);
    let random = Random::new(&run.case.name, "ways");
    let mut ways = Ways { run, plain, inputs, x: tensors.of("x").to_f64(), residual, y, random };
    ways.layouts()?;
    ways.parts()?;
    ways.indices()?;
    for layout in [Layout::ChannelFirst, Layout::ChannelLast] {
        ways.packed(layout)?;
        ways.pieces(layout)?;
    }
    ways.chunks()?;
    // An update has no residual, say.
    if plain.given.iter().all(|flag| Update::ARGUMENTS.iter().any(|known| known.name == *flag)) {
        ways.updates()?;
    }
    ways.pools()
}

/// A part of an axis.
fn part<'t>(tensor: &'t Input<'_>, axis: usize, range: Range<i64>) -> TensorRef<'t> {
    tensor.view().narrow(axis, range.start, range.end - range.start)
}

struct Ways<'a, 'b, 'r> {
    run: &'b mut Run<'r>,
    plain: &'a Conv1d,
    /// On the device.
    inputs: Tensors<TensorRef<'a>>,
    /// Values, in the order of the logical shape.
    x: Vec<f64>,
    residual: Option<Vec<f64>>,
    y: Vec<f64>,
    random: Random,
}

impl<'a> Ways<'a, '_, '_> {
    /// A plain call on other tensors.
    fn forward<'t>(&self, x: TensorRef<'t>, residual: Option<TensorRef<'t>>, y: TensorMut<'t>) -> Forward<'t>
    where
        'a: 't,
    {
        self.forward_of(0..self.plain.dim, x, residual, y)
    }

    /// The same of some channels, which x, the residual and y are of.
    fn forward_of<'t>(
        &self,
        channels: Range<i64>,
        x: TensorRef<'t>,
        residual: Option<TensorRef<'t>>,
        y: TensorMut<'t>,
    ) -> Forward<'t>
    where
        'a: 't,
    {
        let input = |name: &str| match name {
            "x" => Some(x),
            "residual" => residual,
            // Of one sequence, which begins where x does.
            "initial_states" | "seq_idx" | "cu_seqlens" => None,
            name => self.inputs.view(name).map(|tensor| match channel_axis(name) {
                Some(axis) => tensor.narrow(axis, channels.start, channels.end - channels.start),
                None => tensor,
            }),
        };
        let mut y = Some(y);
        Forward::from_named(self.plain.activation, false, None, input, |name| {
            if name == "y" { y.take() } else { None }
        })
    }

    /// Makes a call. What the first one of a way launches goes into the report.
    fn make(&mut self, is_first: bool, call: &mut dyn Call) -> Result<()> {
        if is_first {
            self.run.note_launches("conv1d-forward", call)?;
        }
        call.run(self.run.device)
    }

    fn compare(&mut self, way: &str, found: Output, shape: &[i64], values: Vec<f64>) -> Result<()> {
        let truth = Expected::exact(self.plain.dtype, shape, values);
        let report = check::same_bits(self.run.case, way, &truth, found.fetch()?);
        self.run.note(report);
        Ok(())
    }

    /// As [`Self::compare`], for all rows and channels at these positions.
    fn compare_positions(&mut self, way: &str, found: Output, positions: Range<i64>) -> Result<()> {
        let [batch, dim, seqlen] = self.plain.x_shape();
        let part = positions.start as usize..positions.end as usize;
        let rows = self.y.chunks_exact(seqlen.max(1) as usize);
        let values = rows.flat_map(|row| &row[part.clone()]).copied().collect();
        self.compare(way, found, &[batch, dim, positions.end - positions.start], values)
    }

    /// An input of the device, of any values.
    fn place(&self, arrangement: &Arrangement, value: impl Fn(usize) -> f64) -> Result<Input<'static>> {
        let mut tensor = arrangement.zeros()?;
        tensor.assign(value);
        Input::place_owned(self.run.device, tensor)
    }

    fn arrange(&self, layout: Layout, shape: [i64; 3]) -> Result<Arrangement> {
        layout.arrange(self.plain.dtype, shape)
    }

    fn poisoned(&self, layout: Layout, shape: [i64; 3]) -> Result<Output> {
        self.run.poisoned(&self.arrange(layout, shape)?)
    }

    /// x and the residual in another layout.
    fn laid_out(&self, layout: Layout) -> Result<(Input<'static>, Option<Input<'static>>)> {
        let arrangement = self.arrange(layout, self.plain.x_shape())?;
        let residual = self.residual.as_ref().map(|values| self.place(&arrangement, |i| values[i]));
        Ok((self.place(&arrangement, |i| self.x[i])?, residual.transpose()?))
    }

    /// Ends of pieces of a length, each at most `longest`.
    fn ends(&mut self, length: i64, longest: i64) -> Vec<i64> {
        let mut ends = Vec::new();
        let mut end = 0;
        while end < length {
            end = length.min(end + 1 + self.random.below(longest.max(1) as usize) as i64);
            ends.push(end);
        }
        ends
    }

    fn layouts(&mut self) -> Result<()> {
        let others = Layout::ALL.into_iter().filter(|&layout| layout != Layout::ChannelFirst);
        let mixed =
            [(Layout::ChannelFirst, Layout::ChannelLast), (Layout::ChannelLast, Layout::ChannelFirst)];
        for (from, to) in others.map(|layout| (layout, layout)).chain(mixed) {
            let (x, residual) = self.laid_out(from)?;
            let mut y = self.poisoned(to, self.plain.x_shape())?;
            let residual = residual.as_ref().map(Input::view);
            let mut call = self.forward(x.view(), residual, y.view());
            self.make(true, &mut call)?;
            let way = if from == to { format!("y {from}") } else { format!("y {from} to {to}") };
            self.compare_positions(&way, y, 0..self.plain.seqlen)?;
        }
        Ok(())
    }

    /// Each row of the batch, and groups of channels, alone.
    fn parts(&mut self) -> Result<()> {
        let [batch, dim, seqlen] = self.plain.x_shape();
        for layout in [Layout::ChannelFirst, Layout::ChannelLast] {
            let (x, residual) = self.laid_out(layout)?;
            let channels = self.ends(dim, dim / 2);
            for (way, axis, ends) in [
                (format!("y rows apart {layout}"), 0, (1..=batch.min(MOST_CALLS)).collect()),
                (format!("y channels apart {layout}"), 1, channels),
            ] {
                let mut shape = self.plain.x_shape();
                shape[axis] = ends.last().copied().unwrap_or(0);
                let mut y = self.poisoned(layout, shape)?;
                let mut from = 0;
                for &to in &ends {
                    let part = |tensor| part(tensor, axis, from..to);
                    let y = y.view().narrow(axis, from, to - from);
                    let channels = if axis == 1 { from..to } else { 0..dim };
                    let mut call = self.forward_of(channels, part(&x), residual.as_ref().map(part), y);
                    self.make(from == 0, &mut call)?;
                    from = to;
                }
                let values = self.y[..(shape[0] * dim * seqlen) as usize].to_vec();
                self.compare(&way, y, &shape, values)?;
            }
        }
        Ok(())
    }

    /// All positions of one sequence, said with indices.
    fn indices(&mut self) -> Result<()> {
        for layout in [Layout::ChannelFirst, Layout::ChannelLast] {
            let (x, residual) = self.laid_out(layout)?;
            let shape = [self.plain.batch, self.plain.seqlen];
            let indices = self.place(&dense(DType::I32, &shape)?, |_| 3.0)?;
            let mut y = self.poisoned(layout, self.plain.x_shape())?;
            let mut call = self.forward(x.view(), residual.as_ref().map(Input::view), y.view());
            call.seq_idx = Some(indices.view());
            self.make(true, &mut call)?;
            self.compare_positions(&format!("y seq_idx {layout}"), y, 0..self.plain.seqlen)?;
        }
        Ok(())
    }

    /// Element `i` of a packed tensor `(1, dim, batch · seqlen)`, in a tensor of x's shape.
    fn unpacked(&self, i: usize) -> usize {
        let [batch, dim, seqlen] = self.plain.x_shape().map(|size| size as usize);
        let (channel, at) = (i / (batch * seqlen), i % (batch * seqlen));
        ((at / seqlen) * dim + channel) * seqlen + at % seqlen
    }

    /// All rows in one, with boundaries at these ends, and with states where there are any.
    fn packed_at(
        &mut self,
        way: &str,
        layout: Layout,
        ends: &[i64],
        states: Option<&Input<'_>>,
    ) -> Result<()> {
        let shape = [1, self.plain.dim, self.plain.batch * self.plain.seqlen];
        let arrangement = self.arrange(layout, shape)?;
        let x = self.place(&arrangement, |i| self.x[self.unpacked(i)])?;
        let residual = self.residual.as_ref();
        let residual =
            residual.map(|values| self.place(&arrangement, |i| values[self.unpacked(i)])).transpose()?;
        let boundaries = dense(DType::I32, &[ends.len() as i64 + 1])?;
        let boundaries = self.place(&boundaries, |i| if i == 0 { 0.0 } else { ends[i - 1] as f64 })?;
        let mut y = self.run.poisoned(&arrangement)?;
        let mut call = self.forward(x.view(), residual.as_ref().map(Input::view), y.view());
        call.cu_seqlens = Some(boundaries.view());
        call.initial_states = states.map(Input::view);
        self.make(true, &mut call)?;
        let values = (0..self.y.len()).map(|i| self.y[self.unpacked(i)]).collect();
        self.compare(way, y, &shape, values)
    }

    fn packed(&mut self, layout: Layout) -> Result<()> {
        let ends: Vec<i64> = (1..=self.plain.batch).map(|row| row * self.plain.seqlen).collect();
        self.packed_at(&format!("y packed {layout}"), layout, &ends, None)
    }

    /// As [`Self::packed`], with the rows cut, and what lies before each piece as its states.
    fn pieces(&mut self, layout: Layout) -> Result<()> {
        let (dim, seqlen) = (self.plain.dim as usize, self.plain.seqlen as usize);
        let mut ends = Vec::new();
        for row in 0..self.plain.batch {
            let pieces = self.ends(self.plain.seqlen, self.plain.seqlen / 3);
            ends.extend(pieces.into_iter().map(|end| row * self.plain.seqlen + end));
        }
        let starts: Vec<usize> = [0].into_iter().chain(ends.iter().map(|&end| end as usize)).collect();
        let before = self.plain.width as usize - 1;
        let arrangement = self.arrange(layout, [ends.len() as i64, self.plain.dim, before as i64])?;
        let states = self.place(&arrangement, |i| {
            let (piece, channel, column) = (i / before / dim, i / before % dim, i % before);
            let (row, position) = (starts[piece] / seqlen, starts[piece] % seqlen + column);
            if position < before { 0.0 } else { self.x[(row * dim + channel) * seqlen + position - before] }
        })?;
        self.packed_at(&format!("y packed pieces {layout}"), layout, &ends, Some(&states))
    }

    /// One piece of the rows after the other, each with the states that the one before left.
    fn chunks(&mut self) -> Result<()> {
        let layouts = [Layout::ChannelFirst, Layout::ChannelLast];
        for (size, layout) in [1, 3, 7, 64].into_iter().zip(layouts.into_iter().cycle()) {
            let length = self.plain.seqlen.min(size * MOST_CALLS);
            let ends = (1..=(length + size - 1) / size).map(|chunk| length.min(chunk * size)).collect();
            self.chunked(&format!("y chunks of {size} {layout}"), layout, ends)?;
        }
        for layout in layouts {
            let ends = self.ends(self.plain.seqlen, self.plain.seqlen / 4);
            self.chunked(&format!("y chunks {layout}"), layout, ends)?;
        }
        Ok(())
    }

    fn chunked(&mut self, way: &str, layout: Layout, ends: Vec<i64>) -> Result<()> {
        let [batch, dim, _] = self.plain.x_shape();
        let length = ends.last().copied().unwrap_or(0);
        let (x, residual) = self.laid_out(layout)?;
        let states = [batch, dim, self.plain.width - 1];
        let mut y = self.poisoned(layout, [batch, dim, length])?;
        let (mut before, mut after) = (self.poisoned(layout, states)?, self.poisoned(layout, states)?);
        let mut from = 0;
        for to in ends {
            let part = |tensor| part(tensor, 2, from..to);
            let carried = before.view();
            let y = y.view().narrow(2, from, to - from);
            let mut call = self.forward(part(&x), residual.as_ref().map(part), y);
            call.initial_states = (from > 0).then(|| carried.as_ref());
            call.final_states = Some(after.view());
            self.make(from == 0, &mut call)?;
            std::mem::swap(&mut before, &mut after);
            from = to;
        }
        self.compare_positions(way, y, 0..length)
    }

    /// From a random position on, with states that hold what lies before it.
    fn updates(&mut self) -> Result<()> {
        let seqlen = self.plain.seqlen;
        let start = self.random.below(seqlen as usize + 1) as i64;
        let span = start..seqlen.min(start + UPDATED);
        let one = (span.start + 1..=span.end).collect();
        let several = self.ends(span.end - span.start, 5).into_iter().map(|end| start + end).collect();
        let some = self.ends(span.end - span.start, 3).into_iter().map(|end| start + end).collect();
        let before = self.plain.width - 1;
        let updates: [(&str, Layout, i64, bool, Vec<i64>); 4] = [
            ("y update", Layout::ChannelLast, before, false, one),
            ("y update by several", Layout::ChannelFirst, before + 2, false, several),
            ("y update ring", Layout::ChannelFirst, before + 3, true, (span.start + 1..=span.end).collect()),
            ("y update ring by several", Layout::ChannelLast, before + 1, true, some),
        ];
        for (way, layout, state_len, ring, ends) in updates {
            self.updated(way, layout, (state_len, ring), span.clone(), &ends)?;
        }
        Ok(())
    }

    /// Calls of one position have a two-dimensional x. In a ring, rows of the state are the batch backwards.
    fn updated(
        &mut self,
        way: &str,
        layout: Layout,
        (state_len, ring): (i64, bool),
        span: Range<i64>,
        ends: &[i64],
    ) -> Result<()> {
        let [batch, dim, seqlen] = self.plain.x_shape();
        let (x, _) = self.laid_out(layout)?;
        let mut y = self.poisoned(layout, [batch, dim, span.end - span.start])?;
        let mut state = self.arrange(layout, [batch, dim, state_len])?.zeros()?;
        state.fill_bytes(POISON);
        state.assign(|i| {
            let (row, channel, column) =
                (i as i64 / state_len / dim, i as i64 / state_len % dim, i as i64 % state_len);
            // A ring holds position p at p mod state_len.
            let (row, position) = match ring {
                false => (row, span.start - state_len + column),
                true => (batch - 1 - row, span.start - 1 - (span.start - 1 - column).rem_euclid(state_len)),
            };
            if position < 0 { 0.0 } else { self.x[((row * dim + channel) * seqlen + position) as usize] }
        });
        let mut state = Output::place(self.run.device, state)?;
        let per_row = dense(DType::I32, &[batch])?;
        let indices = self.place(&per_row, |row| (batch - 1 - row as i64) as f64)?;
        let mut from = span.start;
        for &to in ends {
            let seen = self.place(&per_row, |_| from as f64)?;
            let (at, count) = (from - span.start, to - from);
            let (x, y) = match count {
                1 => (x.view().select(2, from), y.view().select(2, at)),
                _ => (x.view().narrow(2, from, count), y.view().narrow(2, at, count)),
            };
            let input = |name: &str| match name {
                "x" => Some(x),
                "cache_seqlens" => ring.then(|| seen.view()),
                "conv_state_indices" => ring.then(|| indices.view()),
                name => self.inputs.view(name),
            };
            let mut written = [Some(y), Some(state.view())];
            let output = |name: &str| written[usize::from(name == "conv_state")].take();
            let mut call = Update::from_named(self.plain.activation, false, None, input, output);
            if from == span.start {
                self.run.note_launches("conv1d-update", &mut call)?;
            }
            call.run(self.run.device)?;
            from = to;
        }
        self.compare_positions(way, y, span)
    }

    /// On a CPU, with pools of one and of three threads.
    fn pools(&mut self) -> Result<()> {
        let Device::Cpu(cpu) = *self.run.device else { return Ok(()) };
        for layout in [Layout::ChannelFirst, Layout::ChannelLast] {
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let pool = pool.expect("a machine has a few threads to give");
                let (x, residual) = self.laid_out(layout)?;
                let mut y = self.poisoned(layout, self.plain.x_shape())?;
                let mut call = self.forward(x.view(), residual.as_ref().map(Input::view), y.view());
                pool.install(|| call.run(&Device::Cpu(cpu)))?;
                self.compare_positions(&format!("y threads {threads} {layout}"), y, 0..self.plain.seqlen)?;
            }
        }
        Ok(())
    }
}
