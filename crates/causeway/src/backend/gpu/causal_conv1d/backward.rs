//! Planner of the backward operation: kernels/causal_conv1d_backward*.cuh.
//!
//! * neighbouring channels side by side in memory: `channel_last`, a thread walks down a segment of rows, `tiles_last` or `short_last`;
//! * neighbouring positions side by side: `channel_first`, a wave walks a row from its end, `tiles_first`, `flat_first`,
//!   `short_first` or `rows_first`;
//! * anything else, widths over 8, and empty rows: `general`.
//!
//! The grid is blocks that compute dx, dweight and dbias, then blocks that compute dinitial_states. Channels are cut
//! into groups; `parts` blocks share a group and, if there are several, add their sums through the workspace or in a
//! cluster.

mod channel_first;
mod channel_last;
mod flat_first;
mod halo;
mod short_first;
mod short_last;
mod tiles;
mod tiles_first;
mod tiles_last;

pub use halo::{plan_after_halo, plan_halo};
use tiles::{General, MOST_STEPS, SHARED_RESERVED};

use super::{
    Constants, Divisor, Entry, KernelFunction, LaunchBounds, NormArguments, OfTensor, Strides2, Traffic,
    View, WIDEST, device_struct, has_programmatic_launch, kernel, most_blocks, refuse_f64,
    refuse_no_sequence,
};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{Activation, Backward, Sizes};
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

device_struct! {
    /// Memory of a tensor (batch or sequence, dim, seqlen or position); strides count elements.
    struct Memory in "causal_conv1d" {
        data: u64 as "void*",
        entry: i64,
        channel: i64,
        position: i64,
    }
}

impl OfTensor for Memory {
    #[inline]
    fn of(view: View<'_>) -> Self {
        let (entry, channel, position) = (view.stride(0), view.stride(1), view.stride(2));
        Memory { data: view.address, entry, channel, position }
    }
}

device_struct! {
    /// What the backward kernels are given. It reaches a kernel in lines of 64 bytes, and the first use of each line is a wait.
    /// So what every call needs comes first.
    struct BackwardArguments in "causal_conv1d" of Backward {
        x: Memory of x,
        dy: Memory of dy,
        dx: Memory of dx,
        weight: u64 of weight,
        weight_strides: Strides2 of weight,
        dweight: u64 of dweight,
        dweight_strides: Strides2 of dweight,
        bias: u64 of bias,
        bias_stride: i64 of bias,
        dbias: u64 of dbias,
        dbias_stride: i64 of dbias,
        workspace: u64 as "float*",
        counters: u64 as "u32*",
        batch: i64,
        dim: i64,
        seqlen: i64,
        groups_divisor: Divisor,
        parts_divisor: Divisor,
        pieces_divisor: Divisor,
        /// channel-last kernels: bytes from row to row
        x_pitch: i32,
        dy_pitch: i32,
        dx_pitch: i32,
        width: i32,
        /// blocks that compute dx and sums; those after them compute dinitial_states
        sum_blocks: u32,
        /// groups of channels that one block works on
        channel_groups: u32,
        /// blocks that share a channel group
        parts: u32,
        /// of them, those whose sums are added first, and then the sums of such teams; 0: all at once
        team: u32,
        /// positions of a sequence, where the entries of a batch are taken as one
        length: u32,
        /// pieces that a row is cut into: segments, or tiles of the general kernel
        pieces: u32,
        /// positions of a piece
        piece: u32,
        /// general kernel: channels of a tile; rows_first: of a block
        tile_channels: u32,
        /// general kernel and rows_first: threads that share one sum
        slices: u32,
        sequences: i64,
        /// addresses between which x's memory lies (channel-first: a packet may read past a row)
        x_begin: i64,
        x_end: i64,
        /// likewise for dy
        dy_begin: i64,
        dy_end: i64,
        initial_states: Memory of initial_states,
        dfinal_states: Memory of dfinal_states,
        dinitial_states: Memory of dinitial_states,
        seq_idx: u64 of seq_idx as "const i32*",
        seq_idx_strides: Strides2 of seq_idx,
        cu_seqlens: u64 of cu_seqlens,
        cu_seqlens_stride: i64 of cu_seqlens,
        b: Memory of b,
        c: Memory of c,
        db: Memory of db,
        dc: Memory of dc,
        /// channel-last: bytes from row to row
        b_pitch: i32,
        c_pitch: i32,
        db_pitch: i32,
        dc_pitch: i32,
        /// addresses between which the memory of the gates lies (channel-first)
        b_begin: i64,
        b_end: i64,
        c_begin: i64,
        c_end: i64,
        norm: NormArguments,
        /// general kernel: blocks that compute dinitial_states; each takes every `state_blocks`-th group of states
        state_blocks: i64,
    }
}

/// What the kernels take for the bytes of an element of cu_seqlens where there is none, and entries are joined.
const EVEN: i32 = 1;

kernel!(GENERAL, "backward_general", "backward_general", BackwardArguments);

/// Plans a backward call whose arguments have been validated.
///
/// `None` if every output is empty, that is, if there are no channels. With an empty batch or empty rows dweight and
/// dbias are zeros, which the kernel writes.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for f64, [`Error::CuSeqlensEnd`](crate::Error::CuSeqlensEnd) for positions without
/// a sequence.
pub fn plan(op: &Backward<'_>, sizes: &Sizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    planned(op, sizes, facts, false)
}

/// The same of a call whose launch is part of a larger one: in blocks of the size that norms have, without clusters.
///
/// # Errors
/// As for [`plan`].
pub fn plan_beside(op: &Backward<'_>, sizes: &Sizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    planned(op, sizes, facts, true)
}

/// Whether calls with and without a norm, moving this many bytes, run faster as two launches than as one (measured on an H200:
/// docs/kernels/history/backward.md).
pub fn gains_in_two(element: usize, bytes: [u64; 2]) -> bool {
    const LEAST: u64 = 20_000_000;
    let least_of_both = if element < 4 { 70_000_000 } else { 500_000_000 };
    bytes.iter().all(|bytes| *bytes >= LEAST) && bytes[0] + bytes[1] >= least_of_both
}

fn planned(op: &Backward<'_>, sizes: &Sizes, facts: &DeviceFacts, beside: bool) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    refuse_no_sequence(sizes)?;
    if sizes.dim == 0 {
        return Ok(None);
    }
    let planner = Planner { op, sizes, facts, beside, joined: false };
    let is_fast = sizes.width <= WIDEST && sizes.batch > 0 && sizes.seqlen > 0;
    let Some(launch) = is_fast.then(|| planner.channel_last()).flatten() else {
        let first = (is_fast && op.norm.is_none()).then(|| planner.channel_first()).flatten();
        return Ok(Some(planner.finish(first.unwrap_or_else(|| planner.general()))));
    };
    if let Some(sizes) = launch.joins.then(|| planner.joined_entries()).flatten() {
        let joined = Planner { sizes: &sizes, joined: true, ..planner };
        if let Some(launch) = joined.channel_last() {
            return Ok(Some(joined.finish(launch)));
        }
    }
    Ok(Some(planner.finish(launch)))
}

pub(super) struct Planner<'a> {
    pub op: &'a Backward<'a>,
    pub sizes: &'a Sizes,
    pub facts: &'a DeviceFacts,
    /// Part of a larger launch.
    pub beside: bool,
    /// The entries of the batch are taken as one that holds sequences, and `sizes` are those of that one.
    pub joined: bool,
}

/// What the paths decide.
pub(super) struct Launch {
    pub kernel: &'static KernelFunction,
    pub tile: Constants,
    /// The blocks of a channel group form a cluster, if there are clusters.
    pub bounds: LaunchBounds,
    /// A programmatic launch whatever it moves, where all of its blocks are resident at once.
    pub programmatic: bool,
    /// Faster if the entries of the batch are joined.
    pub joins: bool,
    /// Its blocks wait for each other: they have a counter of steps after those of their sums.
    pub keeps_together: bool,
    pub shared_bytes: u32,
    /// Sums of a channel group.
    pub sums: u64,
    pub channel_groups: u32,
    pub parts: u32,
    pub pieces: u32,
    pub piece: u32,
    pub tile_channels: u32,
    pub slices: u32,
}

impl Launch {
    /// The options that few launches have are off. The planner sets the sizes, all of which are 0.
    pub(super) fn new(kernel: &'static KernelFunction, tile: Constants, bounds: LaunchBounds) -> Self {
        Launch {
            kernel,
            tile,
            bounds,
            programmatic: false,
            joins: false,
            keeps_together: false,
            shared_bytes: 0,
            sums: 0,
            channel_groups: 0,
            parts: 0,
            pieces: 0,
            piece: 0,
            tile_channels: 0,
            slices: 0,
        }
    }
}

impl Planner<'_> {
    pub(super) fn is_gated(&self) -> bool {
        self.op.b.is_some() || self.op.c.is_some()
    }

    pub(super) fn element(&self) -> u32 {
        self.op.x.dtype().size() as u32
    }

    pub(super) fn streams(&self) -> [View<'_>; 3] {
        [View::of(&self.op.x), View::of(&self.op.dy), View::of_mut(&self.op.dx)]
    }

    /// The gates and their gradients, as far as they are there.
    pub(super) fn gates(&self) -> impl Iterator<Item = View<'_>> {
        let Backward { b, c, db, dc, .. } = self.op;
        let read = [b, c].into_iter().flatten().map(View::of);
        read.chain([db, dc].into_iter().flatten().map(View::of_mut))
    }

    /// All tensors with the shape of x.
    pub(super) fn all_streams(&self) -> impl Iterator<Item = View<'_>> {
        self.streams().into_iter().chain(self.gates())
    }

    /// Tensors with the shape of x that are read, which walks prefetch.
    pub(super) fn read_streams(&self) -> impl Iterator<Item = View<'_>> {
        let Backward { x, dy, b, c, .. } = &self.op;
        [x, dy].into_iter().chain([b, c].into_iter().flatten()).map(View::of)
    }

    /// How many those are.
    pub(super) fn fetched(&self) -> u32 {
        self.read_streams().count() as u32
    }

    /// States exist only where a sequence and a tap before its start do.
    pub(super) fn has_states(&self, given: bool) -> bool {
        given && self.sizes.width > 1 && self.sizes.sequences > 0
    }

    /// True where an entry holds several sequences: those of cu_seqlens, or entries that are joined. Where nothing but its own element
    /// reaches an output, it does not matter where they begin.
    pub(super) fn is_packed(&self) -> bool {
        self.sizes.sequences > 0 && (self.op.cu_seqlens.is_some() || self.joined && self.sizes.width > 1)
    }

    /// True where taps or gradients may be cut off inside a row.
    pub(super) fn has_boundaries(&self) -> bool {
        self.op.seq_idx.is_some() || self.is_packed()
    }

    /// Sums of one channel: dweight's, and dbias.
    pub(super) fn sums_per_channel(&self) -> u64 {
        self.sizes.width as u64 + u64::from(self.op.dbias.is_some())
    }

    /// cp.async, which fills the prefetch ring in shared memory, is NVIDIA's from sm_80 on.
    pub(super) fn has_async_copy(&self, bytes: u32) -> bool {
        bytes >= 4 && self.facts.compute_capability() >= 80
    }

    /// Most blocks that reach each other's shared memory: on data-centre GPUs from sm_90 on. A slice of such a device may be
    /// too small for a cluster. All blocks of one lie in one of about eight parts of the device, and a cluster of 16 large
    /// blocks takes a multiprocessor each.
    pub(super) fn largest_cluster(&self) -> u64 {
        match self.facts.multiprocessors {
            _ if !(90..110).contains(&self.facts.compute_capability()) => 1,
            0..32 => 1,
            32..128 => 8,
            _ => 16,
        }
    }

    /// Elements of x per multiprocessor: what decides between latency and bandwidth.
    pub(super) fn elements_per_multiprocessor(&self) -> u64 {
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        (batch * seqlen) as u64 * dim as u64 / u64::from(self.facts.multiprocessors.max(1))
    }

    /// Sizes that fit the fast kernels' 32-bit positions and row numbers.
    pub(super) fn fits_32_bits(&self) -> bool {
        const MOST: i64 = i32::MAX as i64 / 2;
        self.sizes.batch < MOST && self.sizes.seqlen < MOST
    }

    fn general(&self) -> Launch {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let x = View::of(&self.op.x);
        let dim_fastest = x.is_nearer(1, 2);
        let General { threads, channels, positions, slices, shared_bytes } =
            tiles::general(width, dim_fastest);
        let channel_groups = (dim as u64).div_ceil(u64::from(channels));
        let pieces = (seqlen as u64).div_ceil(u64::from(positions));
        let tiles = (batch as u64).saturating_mul(pieces);
        let filling = (u64::from(self.facts.multiprocessors) * 4).div_ceil(channel_groups);
        let parts = filling.min(tiles).max(1);
        let tile = Constants::new("Tile").int("threads", threads).flag("dim_fastest", dim_fastest);
        Launch {
            shared_bytes,
            sums: u64::from(channels) * (width as u64 + 1),
            channel_groups: channel_groups.min(u64::from(u32::MAX)) as u32,
            parts: parts as u32,
            pieces: pieces.min(u64::from(u32::MAX)) as u32,
            piece: positions,
            tile_channels: channels,
            slices,
            ..Launch::new(&GENERAL, tile, LaunchBounds::new(threads, 1))
        }
    }

    /// Blocks that compute dinitial_states: each takes a group of threads / (width - 1) pairs of sequence and channel. Those of the general
    /// kernel take several groups, since a grid may have no room for all: they are as many as fill the device.
    fn state_blocks(&self, launch: &Launch) -> u64 {
        if !self.has_states(self.op.dinitial_states.is_some()) {
            return 0;
        }
        let pairs = self.sizes.sequences as u64 * self.sizes.dim as u64;
        let groups = pairs.div_ceil(u64::from(launch.bounds.threads) / (self.sizes.width as u64 - 1));
        match std::ptr::eq(launch.kernel, &GENERAL) {
            true => groups.min(u64::from(self.facts.multiprocessors.max(1)) * 8),
            false => groups,
        }
    }

    pub(super) fn is_launchable(&self, launch: &Launch) -> bool {
        let blocks = u64::from(launch.channel_groups) * u64::from(launch.parts);
        let segments = self.sizes.batch as u64 * u64::from(launch.pieces);
        launch.shared_bytes <= self.facts.shared_per_block
            && blocks + self.state_blocks(launch) <= most_blocks(self.facts, launch.bounds.threads)
            && segments <= i32::MAX as u64 / MOST_STEPS
    }

    /// Shared memory with which exactly `resident` blocks fit on a multiprocessor. Otherwise blocks that start early crowd onto the
    /// multiprocessors that are free first.
    fn exclusive_shared_bytes(&self, resident: u32) -> u32 {
        (self.shared_bytes_for(resident + 1) + 16).min(self.facts.shared_per_block)
    }

    /// The most shared memory with which `blocks` fit on a multiprocessor.
    fn shared_bytes_for(&self, blocks: u32) -> u32 {
        (self.facts.shared_per_multiprocessor / blocks).saturating_sub(SHARED_RESERVED)
    }

    fn finish(&self, launch: Launch) -> Plan {
        let LaunchBounds { threads, resident, cluster, .. } = launch.bounds;
        let sum_blocks = launch.channel_groups * launch.parts;
        let state_blocks = self.state_blocks(&launch) as u32;
        // A grid is whole clusters; blocks past the last state find nothing to do.
        let blocks = (sum_blocks + state_blocks).next_multiple_of(cluster);
        let traffic = Traffic::of(self.op);
        let each = blocks.div_ceil(self.facts.multiprocessors.max(1));
        // Clusters are sure to run all at once where the planner has seen to it, with one block for each multiprocessor.
        let one_round = each <= resident.min(if cluster > 1 { 1 } else { u32::MAX })
            && launch.shared_bytes <= self.shared_bytes_for(each);
        // Starting early costs nothing if all blocks are resident at once and no multiprocessor has room for another.
        let programmatic = one_round
            && !self.beside
            && has_programmatic_launch(self.facts)
            && (launch.programmatic || traffic.is_mid_size());
        let exclusive = if programmatic { self.exclusive_shared_bytes(each) } else { 0 };
        let arguments = BackwardArguments {
            groups_divisor: Divisor::new(launch.channel_groups),
            parts_divisor: Divisor::new(launch.parts),
            pieces_divisor: Divisor::new(launch.pieces),
            sum_blocks,
            channel_groups: launch.channel_groups,
            parts: launch.parts,
            team: tiles::team(launch.parts),
            pieces: launch.pieces,
            piece: launch.piece,
            tile_channels: launch.tile_channels,
            slices: launch.slices,
            state_blocks: i64::from(state_blocks),
            ..self.arguments()
        };
        let Launch { kernel, tile, bounds, .. } = launch;
        let entry = Entry { kernel, bounds, problem: self.problem(), tile };
        let mut plan = entry.finish([blocks, 1, 1], &arguments, traffic, self.facts, programmatic);
        // dinitial_states needs a number per thread.
        plan.shared_bytes = launch.shared_bytes.max(threads * 4).max(exclusive);
        if launch.parts > 1 && cluster == 1 {
            plan.workspace_bytes = u64::from(sum_blocks) * launch.sums * 4;
            let teams = match arguments.team {
                0 => 0,
                team => launch.parts.div_ceil(team),
            };
            plan.counters = launch.channel_groups * (1 + teams);
            plan.workspace_at = vec![std::mem::offset_of!(BackwardArguments, workspace)];
        }
        plan.counters += u32::from(launch.keeps_together);
        if plan.counters > 0 {
            plan.counters_at = vec![std::mem::offset_of!(BackwardArguments, counters)];
        }
        plan
    }

    fn problem(&self) -> Constants {
        let op = self.op;
        let rounds = op.round_products && self.is_gated();
        let counts = |name: &str| match name {
            // Without an activation g does not depend on pre; the gradient of its gate does, and what a norm makes of dy.
            "bias" => op.activation == Activation::Silu || op.dc.is_some() || op.norm.is_some(),
            "cu_seqlens" => self.sizes.sequences > 0,
            _ => true,
        };
        let problem = Constants::new("Problem")
            .dtype("X", op.x.dtype())
            .dtype("Weight", op.weight.dtype())
            .dtype("DWeight", op.dweight.dtype())
            .convolution(self.sizes.width, op.activation, rounds, op.norm.is_some())
            .given(op, counts);
        if self.joined && self.is_packed() { problem.with_int("cu_seqlens", EVEN) } else { problem }
    }

    fn arguments(&self) -> BackwardArguments {
        let (op, sizes) = (self.op, self.sizes);
        let [x_begin, x_end] = extent(View::of(&op.x));
        let [dy_begin, dy_end] = extent(View::of(&op.dy));
        // Only the channel-last kernel reads them, and its planner has seen that they fit.
        let [x_pitch, dy_pitch, dx_pitch] = self.streams().map(pitch);
        let read = |gate: &Option<TensorRef<'_>>| gate.as_ref().map(View::of).map_or(0, pitch);
        let written = |gate: &Option<TensorMut<'_>>| gate.as_ref().map(View::of_mut).map_or(0, pitch);
        let memory = |gate: &Option<TensorRef<'_>>| gate.as_ref().map(View::of).map_or([0; 2], extent);
        let [[b_begin, b_end], [c_begin, c_end]] = [&op.b, &op.c].map(memory);
        BackwardArguments {
            batch: sizes.batch,
            dim: sizes.dim,
            seqlen: sizes.seqlen,
            sequences: sizes.sequences,
            width: sizes.width as i32,
            length: if self.joined { (sizes.seqlen / sizes.sequences) as u32 } else { 0 },
            x_begin,
            x_end,
            dy_begin,
            dy_end,
            x_pitch,
            dy_pitch,
            dx_pitch,
            b_pitch: read(&op.b),
            c_pitch: read(&op.c),
            db_pitch: written(&op.db),
            dc_pitch: written(&op.dc),
            b_begin,
            b_end,
            c_begin,
            c_end,
            norm: NormArguments::new(op.norm.as_ref()),
            ..BackwardArguments::of(op)
        }
    }
}

/// Bytes from row to row, where rows are positions.
fn pitch(view: View<'_>) -> i32 {
    view.step_bytes(2) as i32
}

/// Addresses of the first byte of a view's memory and of the one after its last.
fn extent(view: View<'_>) -> [i64; 2] {
    let (begin, end) = view.span();
    [begin as i64, end as i64]
}

#[cfg(test)]
mod tests;
