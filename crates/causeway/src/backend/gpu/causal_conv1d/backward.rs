//! Planner of the backward operation: kernels/causal_conv1d_backward*.cuh.
//!
//! * neighbouring channels side by side in memory: `channel_last`, a thread walks down a segment of rows;
//! * neighbouring positions side by side: `channel_first`, a wave walks a row from its end;
//! * anything else, widths over 8, and empty rows: `general`.
//!
//! The grid is blocks that compute dx, dweight and dbias, then blocks that compute dinitial_states. Channels are cut
//! into groups; `parts` blocks share a group and, if there are several, add their sums through the workspace.

use bytemuck::{Pod, Zeroable};

use super::backward_tiles::{self, General, MOST_STEPS};
use super::{
    Constants, Strides3, View, address, bytes, instantiation, meta_bytes, most_blocks, plain_plan,
    power_of_two_in, refuse_f64, weight_access,
};
use crate::backend::gpu::plan::{DeviceFacts, Plan, Vendor};
use crate::causal_conv1d::{Activation, Backward, Sizes};
use crate::error::Result;
use crate::tensor::TensorRef;

/// Largest width of the fast kernels, whose taps are unrolled.
const WIDEST: i64 = 8;

/// `View` of causal_conv1d_backward.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Memory {
    address: u64,
    strides: Strides3,
}

/// `BackwardArguments` of causal_conv1d_backward.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Arguments {
    x: Memory,
    dy: Memory,
    dx: Memory,
    initial_states: Memory,
    dfinal_states: Memory,
    dinitial_states: Memory,
    weight: u64,
    weight_strides: [i64; 2],
    dweight: u64,
    dweight_strides: [i64; 2],
    bias: u64,
    bias_stride: i64,
    dbias: u64,
    dbias_stride: i64,
    seq_idx: u64,
    seq_idx_strides: [i64; 2],
    cu_seqlens: u64,
    cu_seqlens_stride: i64,
    workspace: u64,
    counters: u64,
    batch: i64,
    dim: i64,
    seqlen: i64,
    sequences: i64,
    /// Addresses of the first byte of x and of the one after its last.
    x_extent: [u64; 2],
    dy_extent: [u64; 2],
    width: i32,
    sum_blocks: u32,
    channel_groups: u32,
    parts: u32,
    pieces: u32,
    piece: u32,
    tile_channels: u32,
    slices: u32,
    /// Bytes from row to row of x, dy and dx where channels are neighbours.
    pitches: [i32; 3],
    padding: u32,
}
const _: () = assert!(size_of::<Arguments>() == 440, "as the kernel's static_assert");

/// Plans a backward call whose arguments have been validated.
///
/// `None` if every output is empty, that is, if there are no channels. With an empty batch or empty rows dweight and
/// dbias are zeros, which the kernel writes.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for f64.
pub fn plan(op: &Backward<'_>, sizes: &Sizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    if sizes.dim == 0 {
        return Ok(None);
    }
    let planner = Planner { op, sizes, facts };
    let fast = || planner.channel_last().or_else(|| planner.channel_first());
    let is_fast = sizes.width <= WIDEST && sizes.batch > 0 && sizes.seqlen > 0;
    let launch = is_fast.then(fast).flatten().unwrap_or_else(|| planner.general());
    Ok(Some(planner.finish(launch)))
}

struct Planner<'a> {
    op: &'a Backward<'a>,
    sizes: &'a Sizes,
    facts: &'a DeviceFacts,
}

/// What the three paths decide.
struct Launch {
    header: &'static str,
    entry: &'static str,
    body: &'static str,
    tile: Constants,
    threads: u32,
    resident: u32,
    shared_bytes: u32,
    /// Sums of a channel group.
    sums: u64,
    channel_groups: u32,
    parts: u32,
    pieces: u32,
    piece: u32,
    tile_channels: u32,
    slices: u32,
}

impl Planner<'_> {
    fn element(&self) -> u32 {
        self.op.x.dtype().size() as u32
    }

    fn streams(&self) -> [View<'_>; 3] {
        [View::of(&self.op.x), View::of(&self.op.dy), View::of_mut(&self.op.dx)]
    }

    /// States exist only where a sequence and a tap before its start do.
    fn has_states(&self, given: bool) -> bool {
        given && self.sizes.width > 1 && self.sizes.sequences > 0
    }

    fn boundaries(&self) -> Option<&TensorRef<'_>> {
        self.op.cu_seqlens.as_ref().filter(|_| self.sizes.sequences > 0)
    }

    /// True where taps or gradients may be cut off inside a row.
    fn has_places(&self) -> bool {
        self.op.seq_idx.is_some() || self.boundaries().is_some()
    }

    /// Sums of one channel: dweight's, and dbias.
    fn sums_per_channel(&self) -> u64 {
        self.sizes.width as u64 + u64::from(self.op.dbias.is_some())
    }

    /// cp.async, which fills the prefetch ring in shared memory, is NVIDIA's from sm_80 on.
    fn has_async_copy(&self, bytes: u32) -> bool {
        let number: String = self
            .facts
            .architecture
            .trim_start_matches("sm_")
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        self.facts.vendor == Vendor::Nvidia && bytes >= 4 && number.parse::<u32>().is_ok_and(|sm| sm >= 80)
    }

    /// Sizes that fit the fast kernels' 32-bit positions and row numbers.
    fn fits_32_bits(&self) -> bool {
        const MOST: i64 = i32::MAX as i64 / 2;
        self.sizes.batch < MOST && self.sizes.seqlen < MOST
    }

    fn channel_last(&self) -> Option<Launch> {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let element = self.element();
        let streams = self.streams();
        let row_fits = |view: &View<'_>| i32::try_from(view.step_bytes(2)).is_ok();
        // A single channel is better walked along its positions.
        if (dim == 1 && seqlen > 1) || !streams.iter().all(|view| view.is_dense(1) && row_fits(view)) {
            return None;
        }
        if !self.fits_32_bits() {
            return None;
        }
        let rows = if width < 3 { 4 } else { width as u32 };
        let legal = streams.iter().map(|view| view.access(1)).min()? / element;
        let legal = legal.min(1 << (dim as u64).trailing_zeros().min(3));
        let elements_each =
            (batch * seqlen) as u64 * dim as u64 / u64::from(self.facts.multiprocessors.max(1));
        let tile = backward_tiles::last(width, elements_each, legal * element, self.has_places())?;
        let channels = legal.min(tile.channels).min((tile.bytes / element).max(1));
        let across = (dim as u64).div_ceil(u64::from(channels));
        let lanes = across.next_power_of_two().min(u64::from(tile.lanes)) as u32;
        let channel_groups = u32::try_from(across.div_ceil(u64::from(lanes))).ok()?;

        // Segments of about the length that lets the grid fill the device once.
        let segments_per_block = tile.threads / lanes;
        let piece = if tile.rows > 0 {
            u64::from(tile.rows)
        } else {
            let resident = u64::from(self.facts.multiprocessors * tile.resident);
            let segments = (resident / u64::from(channel_groups)).max(1) * u64::from(segments_per_block);
            let pieces = (segments / batch as u64).clamp(1, seqlen as u64);
            (seqlen as u64).div_ceil(pieces).next_multiple_of(u64::from(rows))
        };
        let pieces = (seqlen as u64).div_ceil(piece);
        let parts = (batch as u64 * pieces).div_ceil(u64::from(segments_per_block));

        let bytes = channels * element;
        let sums = u64::from(lanes * channels) * self.sums_per_channel();
        let sharers = (self.facts.wave_size / lanes).max(1);
        let lines = (segments_per_block / sharers).max(1);
        // The ring and, over it when it is done, sums and a flag; then what each segment leaves for the one above.
        let ring = if self.has_async_copy(bytes) { tile.stages * rows * 2 * tile.threads * bytes } else { 0 };
        let shares = (width as u32 - 1) * channels * tile.threads * 4;
        let lines_bytes = lines * sums as u32 * 4 + 16;
        let shared_bytes = if tile.rows > 0 { lines_bytes } else { ring.max(lines_bytes) + shares };
        let tile_constants = Constants::new("Tile")
            .int("threads", tile.threads)
            .int("lanes", lanes)
            .int("channels", channels)
            .int("stages", tile.stages)
            .int("rows", tile.rows)
            .int("weight_bytes", weight_access(&self.op.weight, channels));
        Some(Launch {
            header: "causal_conv1d_backward_channel_last.cuh",
            entry: "causal_conv1d_backward_channel_last",
            body: "backward_channel_last",
            tile: tile_constants,
            threads: tile.threads,
            resident: tile.resident,
            shared_bytes,
            sums,
            channel_groups,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(pieces).ok()?,
            piece: u32::try_from(piece).ok()?,
            tile_channels: 0,
            slices: 0,
        })
        .filter(|launch| self.is_launchable(launch))
    }

    fn channel_first(&self) -> Option<Launch> {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let element = self.element();
        if !self.streams().iter().all(|view| view.is_dense(2)) || !self.fits_32_bits() {
            return None;
        }
        // Indices are read as the positions are.
        if self.op.seq_idx.as_ref().is_some_and(|indices| !View::of(indices).is_dense(1)) {
            return None;
        }
        let bytes = self.common_residue();
        if bytes < element {
            return None;
        }
        let aligned = self.streams().iter().all(|view| view.access(2) >= bytes);
        let ragged = bytes > element && !(aligned && seqlen % i64::from(bytes / element) == 0);
        let has_states = self.has_states(self.op.initial_states.is_some() || self.op.dfinal_states.is_some());
        let careful = ragged || has_states || self.has_places();
        let all_options = self.op.seq_idx.is_some() && self.boundaries().is_some() && has_states;
        let tile = backward_tiles::first(width, element, careful, all_options)?;
        let packets = tile.bytes / bytes;
        let count = u64::from(tile.bytes / element);
        let positions = seqlen as u64 + if ragged { u64::from(bytes / element) - 1 } else { 0 };

        // Short rows share a wave; long ones take all of it.
        let wave = self.facts.wave_size;
        // Half a wave holds the indices beside a tile even where both halos are 7 positions long.
        let fewest = u64::from(if self.op.seq_idx.is_some() { wave / 2 } else { wave / 4 });
        let lanes = positions.div_ceil(count).next_power_of_two().clamp(fewest, u64::from(wave));
        let tiles = positions.div_ceil(lanes * count);

        // Enough waves to fill the device, as long as there are rows, or pieces of rows, for them.
        let filling = u64::from(self.facts.multiprocessors * tile.resident_threads / wave);
        let wanted = (filling * 3 / 2 / dim as u64).clamp(1, u64::from(tile.most_waves));
        let splittable = lanes == u64::from(wave);
        let rows_at_once = u64::from(wave) / lanes;
        // A piece pays for its halos, so it is some tiles long.
        let most_pieces = if splittable { (tiles / tile.least_tiles).max(1) } else { 1 };
        let most_jobs = (batch as u64).div_ceil(rows_at_once) * most_pieces;
        let per_channel = 1u64 << wanted.min(most_jobs).ilog2();
        let threads = (per_channel as u32 * wave).max(tile.threads);
        let group_channels = u64::from(threads / wave) / per_channel;
        let channel_groups = (dim as u64).div_ceil(group_channels);
        // With too few channels for that, several blocks share a channel.
        let blocks = filling * u64::from(wave) / u64::from(threads);
        let parts = if channel_groups * 4 <= blocks {
            (blocks / channel_groups).clamp(1, most_jobs / per_channel)
        } else {
            1
        };
        let walkers = per_channel * parts;
        let pieces = walkers.div_ceil(batch as u64).min(most_pieces);
        let piece = tiles.div_ceil(pieces) * lanes * count;
        let pieces = positions.div_ceil(piece);

        let resident = (tile.resident_threads / threads).max(1);
        let sums = group_channels * self.sums_per_channel();
        let ring = if self.has_async_copy(bytes) { tile.stages * 2 * packets * threads * bytes } else { 0 };
        let partial = (threads / wave) * self.sums_per_channel() as u32 * 4 + 4;
        let tile_constants = Constants::new("Tile")
            .int("threads", threads)
            .int("bytes", bytes)
            .int("packets", packets)
            .int("lanes", lanes)
            .flag("ragged", ragged)
            .flag("whole_rows", pieces == 1)
            .int("stages", tile.stages)
            .int("waves_per_channel", per_channel)
            .int("weight_bytes", weight_access(&self.op.weight, 1))
            .int("index_bytes", if ragged { 4 } else { self.index_access() });
        Some(Launch {
            header: "causal_conv1d_backward_channel_first.cuh",
            entry: "causal_conv1d_backward_channel_first",
            body: "backward_channel_first",
            tile: tile_constants,
            threads,
            resident,
            shared_bytes: (ring + partial).max(self.crowding_limit(tile.crowded, resident)),
            sums,
            channel_groups: u32::try_from(channel_groups).ok()?,
            parts: parts as u32,
            pieces: u32::try_from(pieces).ok()?,
            piece: u32::try_from(piece).ok()?,
            tile_channels: 0,
            slices: 0,
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Shared memory that keeps more than `resident` blocks off a multiprocessor, where they should not crowd it: with
    /// a few more, a grid of two rounds becomes one round and a poorly filled second. Within what is granted unasked.
    fn crowding_limit(&self, crowded: bool, resident: u32) -> u32 {
        const RESERVED: u32 = 1 << 10;
        const GRANTED: u32 = 48 << 10;
        if crowded || self.facts.vendor != Vendor::Nvidia {
            return 0;
        }
        (self.facts.shared_per_multiprocessor / (resident + 1)).saturating_sub(RESERVED).min(GRANTED - 1) + 1
    }

    /// The widest packet for which x, dy and dx have the same residue at every row: after moving the rows' starts
    /// back by that residue, all accesses are legal.
    fn common_residue(&self) -> u32 {
        let [x, dy, dx] = self.streams();
        let difference = |other: View<'_>| {
            let steps = x.step_bytes(0).wrapping_sub(other.step_bytes(0))
                | x.step_bytes(1).wrapping_sub(other.step_bytes(1));
            x.address.wrapping_sub(other.address) | steps as u64
        };
        power_of_two_in(difference(dy) | difference(dx))
    }

    /// The widest access for a lane's neighbouring indices where the lane's positions are at least 16 bytes.
    fn index_access(&self) -> u32 {
        self.op.seq_idx.as_ref().map_or(4, |indices| View::of(indices).access(1))
    }

    fn general(&self) -> Launch {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let x = View::of(&self.op.x);
        let dim_fastest = x.stride(1).unsigned_abs() < x.stride(2).unsigned_abs();
        let General { threads, channels, positions, slices, shared_bytes } =
            backward_tiles::general(width, dim_fastest);
        let channel_groups = (dim as u64).div_ceil(u64::from(channels));
        let pieces = (seqlen as u64).div_ceil(u64::from(positions));
        let tiles = (batch as u64).saturating_mul(pieces);
        let filling = (u64::from(self.facts.multiprocessors) * 4).div_ceil(channel_groups);
        let parts = filling.min(tiles).max(1);
        Launch {
            header: "causal_conv1d_backward_general.cuh",
            entry: "causal_conv1d_backward_general",
            body: "backward_general",
            tile: Constants::new("Tile").int("threads", threads).flag("dim_fastest", dim_fastest),
            threads,
            resident: 1,
            shared_bytes,
            sums: u64::from(channels) * (width as u64 + 1),
            channel_groups: channel_groups.min(u64::from(u32::MAX)) as u32,
            parts: parts as u32,
            pieces: pieces.min(u64::from(u32::MAX)) as u32,
            piece: positions,
            tile_channels: channels,
            slices,
        }
    }

    /// Blocks that compute dinitial_states: each takes threads / (width - 1) pairs of sequence and channel.
    fn state_blocks(&self, threads: u32) -> u64 {
        if !self.has_states(self.op.dinitial_states.is_some()) {
            return 0;
        }
        let pairs = self.sizes.sequences as u64 * self.sizes.dim as u64;
        pairs.div_ceil(u64::from(threads) / (self.sizes.width as u64 - 1))
    }

    fn is_launchable(&self, launch: &Launch) -> bool {
        let blocks = u64::from(launch.channel_groups) * u64::from(launch.parts);
        let segments = self.sizes.batch as u64 * u64::from(launch.pieces);
        launch.shared_bytes <= self.facts.shared_per_block
            && blocks + self.state_blocks(launch.threads) <= most_blocks(self.facts, launch.threads)
            && segments <= i32::MAX as u64 / MOST_STEPS
    }

    fn finish(&self, launch: Launch) -> Plan {
        let sum_blocks = launch.channel_groups * launch.parts;
        let arguments = Arguments {
            sum_blocks,
            channel_groups: launch.channel_groups,
            parts: launch.parts,
            pieces: launch.pieces,
            piece: launch.piece,
            tile_channels: launch.tile_channels,
            slices: launch.slices,
            ..self.arguments()
        };
        let text = instantiation(
            self.problem(),
            launch.tile,
            launch.entry,
            "BackwardArguments",
            launch.body,
            launch.threads,
            launch.resident,
        );
        let mut plan = plain_plan(launch.header, launch.entry, text, &arguments);
        plan.grid[0] = sum_blocks + self.state_blocks(launch.threads) as u32;
        plan.block[0] = launch.threads;
        // dinitial_states needs a number per thread.
        plan.shared_bytes = launch.shared_bytes.max(launch.threads * 4);
        if launch.parts > 1 {
            plan.workspace_bytes = u64::from(sum_blocks) * launch.sums * 4;
            plan.counters = launch.channel_groups;
            plan.workspace_at = Some(std::mem::offset_of!(Arguments, workspace));
            plan.counters_at = Some(std::mem::offset_of!(Arguments, counters));
        }
        let op = self.op;
        let inputs = [&op.bias, &op.initial_states, &op.seq_idx, &op.cu_seqlens, &op.dfinal_states];
        plan.read_bytes = meta_bytes(op.x.meta())
            + meta_bytes(op.dy.meta())
            + meta_bytes(op.weight.meta())
            + inputs.into_iter().map(|tensor| bytes(tensor.as_ref())).sum::<u64>();
        let outputs = [Some(&op.dx), Some(&op.dweight), op.dbias.as_ref(), op.dinitial_states.as_ref()];
        plan.written_bytes = outputs.into_iter().flatten().map(|tensor| meta_bytes(tensor.meta())).sum();
        plan
    }

    fn problem(&self) -> Constants {
        let op = self.op;
        // The general kernel reads the width from its arguments: one compilation serves all of them.
        let width = if self.sizes.width <= WIDEST { self.sizes.width } else { 0 };
        let silu = op.activation == Activation::Silu;
        Constants::new("Problem")
            .dtype("X", op.x.dtype())
            .dtype("Weight", op.weight.dtype())
            .dtype("DWeight", op.dweight.dtype())
            .int("width", width)
            .silu(op.activation)
            // Without an activation g does not depend on pre.
            .flag("bias", op.bias.is_some() && silu)
            .flag("dbias", op.dbias.is_some())
            .flag("initial_states", self.has_states(op.initial_states.is_some()))
            .flag("dinitial_states", self.has_states(op.dinitial_states.is_some()))
            .flag("dfinal_states", self.has_states(op.dfinal_states.is_some()))
            .flag("seq_idx", op.seq_idx.is_some())
            .int("cu_seqlens", self.boundaries().map_or(0, |boundaries| boundaries.dtype().size()))
    }

    fn arguments(&self) -> Arguments {
        let (op, sizes) = (self.op, self.sizes);
        let memory = |view: View<'_>| Memory { address: view.address, strides: view.strides3() };
        let optional = |tensor: Option<View<'_>>| tensor.map_or(Memory::default(), memory);
        let first_stride = |tensor: Option<View<'_>>| tensor.map_or(0, |view| view.stride(0));
        let pair = |view: View<'_>| [view.stride(0), view.stride(1)];
        let dweight = View::of_mut(&op.dweight);
        let dbias = op.dbias.as_ref().map(View::of_mut);
        Arguments {
            x: memory(View::of(&op.x)),
            dy: memory(View::of(&op.dy)),
            dx: memory(View::of_mut(&op.dx)),
            initial_states: optional(op.initial_states.as_ref().map(View::of)),
            dfinal_states: optional(op.dfinal_states.as_ref().map(View::of)),
            dinitial_states: optional(op.dinitial_states.as_ref().map(View::of_mut)),
            weight: address(Some(&op.weight)),
            weight_strides: pair(View::of(&op.weight)),
            dweight: dweight.address,
            dweight_strides: pair(dweight),
            bias: address(op.bias.as_ref()),
            bias_stride: first_stride(op.bias.as_ref().map(View::of)),
            dbias: dbias.map_or(0, |view| view.address),
            dbias_stride: first_stride(dbias),
            seq_idx: address(op.seq_idx.as_ref()),
            seq_idx_strides: op.seq_idx.as_ref().map_or([0, 0], |tensor| pair(View::of(tensor))),
            cu_seqlens: address(op.cu_seqlens.as_ref()),
            cu_seqlens_stride: first_stride(op.cu_seqlens.as_ref().map(View::of)),
            batch: sizes.batch,
            dim: sizes.dim,
            seqlen: sizes.seqlen,
            sequences: sizes.sequences,
            x_extent: extent(View::of(&op.x)),
            dy_extent: extent(View::of(&op.dy)),
            width: sizes.width as i32,
            // Only the channel-last kernel reads them, and its planner has seen that they fit.
            pitches: self.streams().map(|view| view.step_bytes(2) as i32),
            ..Arguments::default()
        }
    }
}

/// Addresses of the first byte of a view's memory and of the one after its last.
fn extent(view: View<'_>) -> [u64; 2] {
    let steps = (0..view.meta.shape.len())
        .map(|axis| view.step_bytes(axis).wrapping_mul((view.size(axis) - 1).max(0)));
    let (below, above) =
        steps.fold((0, 0), |(below, above), step| (below + step.min(0), above + step.max(0)));
    let element = view.meta.dtype.size() as i64;
    [view.address.wrapping_add_signed(below), view.address.wrapping_add_signed(above + element)]
}

#[cfg(test)]
#[path = "backward_tests.rs"]
mod tests;
