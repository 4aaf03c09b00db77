//! Planner of the forward operation: kernels/causal_conv1d_forward*.cuh.

mod halo;
mod tiles;

pub use halo::plan_halo;
use tiles::{BLOCK, CheckedCall, LastTile, first_tile, last_tile};

use super::{
    Constants, Divisor, Entry, KernelFunction, LaunchBounds, NormArguments, PACKET, SECTOR, Strides2,
    Strides3, Traffic, View, WIDEST, blocks_of, common_residue, device_struct, head_lanes, head_packet,
    kernel, layers, most_blocks, power_of_two_in, refuse_f64, refuse_no_sequence, striding_blocks,
    takes_more_registers, weight_access,
};
use crate::backend::gpu::candidates::Kept;
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{Activation, Forward, Sizes};
use crate::error::Result;
use crate::tensor::TensorRef;

device_struct! {
    /// What the forward kernels are given. It reaches a kernel in lines of 64 bytes, and the first use of each line is a wait.
    /// So what every call needs comes first.
    struct ForwardArguments in "causal_conv1d" of Forward {
        x: u64 of x,
        y: u64 of y,
        weight: u64 of weight,
        bias: u64 of bias,
        x_strides: Strides3 of x,
        y_strides: Strides3 of y,
        weight_strides: Strides2 of weight,
        bias_stride: i64 of bias,
        batch: i64,
        dim: i64,
        seqlen: i64,
        /// batch entries along grid axis 1; axis 2 counts layers of them
        batches_per_layer: u32,
        /// blocks at the front of grid axis 0 that write final_states
        state_blocks: u32,
        /// channel-last: blocks along dim; channel-first: pieces of a row
        tile_divisor: Divisor,
        /// state blocks of one sequence (packed), or of one batch entry
        state_divisor: Divisor,
        width: i64,
        sequences: i64,
        initial_states: u64 of initial_states,
        seq_idx: u64 of seq_idx,
        cu_seqlens: u64 of cu_seqlens,
        residual: u64 of residual,
        final_states: u64 of final_states,
        residual_strides: Strides3 of residual,
        initial_strides: Strides3 of initial_states,
        final_strides: Strides3 of final_states,
        seq_idx_strides: Strides2 of seq_idx,
        cu_seqlens_stride: i64 of cu_seqlens,
        /// lowest address of x, and the one after its last (channel-first)
        x_begin: u64,
        x_end: u64,
        /// of residual
        residual_begin: u64,
        residual_end: u64,
        /// of the grid (general)
        blocks: u32,
        padding: u32,
        b: u64 of b as "const void*",
        c: u64 of c as "const void*",
        b_strides: Strides3 of b,
        c_strides: Strides3 of c,
        /// of the gates, as of x
        b_begin: u64,
        b_end: u64,
        c_begin: u64,
        c_end: u64,
        norm: NormArguments,
    }
}

kernel!(CHANNEL_LAST, "forward_channel_last", "forward_channel_last", ForwardArguments);
kernel!(CHANNEL_FIRST, "forward_channel_first", "forward_channel_first", ForwardArguments);
kernel!(GENERAL, "forward_general", "forward_general", ForwardArguments);

/// Plans a forward call whose arguments have been validated.
///
/// `None` if y and final_states are empty.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for f64, [`Error::CuSeqlensEnd`](crate::Error::CuSeqlensEnd) for positions without
/// a sequence.
pub fn plan(op: &Forward<'_>, sizes: &Sizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    planned(op, sizes, facts, false)
}

/// The launch as part of a larger one, whose members have blocks of one size.
///
/// # Errors
/// As for [`plan`].
pub fn plan_beside(op: &Forward<'_>, sizes: &Sizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    planned(op, sizes, facts, true)
}

fn planned(op: &Forward<'_>, sizes: &Sizes, facts: &DeviceFacts, beside: bool) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    refuse_no_sequence(sizes)?;
    let has_states = op.final_states.is_some() && sizes.width > 1 && sizes.sequences > 0;
    let has_output = sizes.batch > 0 && sizes.seqlen > 0;
    if sizes.dim == 0 || !(has_states || has_output) {
        return Ok(None);
    }
    let planner = Planner { op, sizes, facts, has_states, beside, traffic: Traffic::of(op) };
    // The fast paths read indices and boundaries side by side.
    let indices_dense = op.seq_idx.as_ref().is_none_or(|idx| View::of(idx).is_dense(1))
        && op.cu_seqlens.as_ref().is_none_or(|boundaries| View::of(boundaries).is_dense(0));
    let fast = (has_output && sizes.width <= WIDEST && indices_dense)
        .then(|| planner.channel_last().or_else(|| planner.channel_first()));
    Ok(Some(fast.flatten().unwrap_or_else(|| planner.general())))
}

struct Planner<'a> {
    op: &'a Forward<'a>,
    sizes: &'a Sizes,
    facts: &'a DeviceFacts,
    has_states: bool,
    /// Part of a larger launch.
    beside: bool,
    traffic: Traffic,
}

/// Where the blocks of a fast path are.
struct Geometry {
    threads: u32,
    /// Blocks along the first axis for the outputs of one batch entry.
    blocks: u64,
    tile_divisor: u32,
    /// A programmatic launch whatever it moves.
    programmatic: bool,
    shared_bytes: u32,
}

impl Planner<'_> {
    /// x, y, residual and gates: what the fast paths need alike.
    fn streams(&self) -> impl Iterator<Item = View<'_>> + Clone {
        let Forward { x, y, residual, b, c, .. } = self.op;
        let ends = [View::of(x), View::of_mut(y)];
        ends.into_iter().chain([residual, b, c].into_iter().flatten().map(View::of))
    }

    fn is_gated(&self) -> bool {
        self.op.b.is_some() || self.op.c.is_some()
    }

    fn element(&self) -> u32 {
        self.op.x.dtype().size() as u32
    }

    /// True if sizes and the steps along `axis` are in reach of the fast paths' 32-bit offsets. Batches are further
    /// apart, at 64 bits.
    fn fits_32_bits(&self, axis: usize) -> bool {
        let reach = i64::from(i32::MAX) / 2;
        self.streams().all(|view| view.step_bytes(axis).abs() < reach)
            && self.sizes.dim < reach
            && self.sizes.seqlen < reach
    }

    /// True if taps have to be checked for their sequence.
    fn has_boundaries(&self) -> bool {
        self.op.seq_idx.is_some() || self.sizes.packed
    }

    /// Size of x in packets per multiprocessor: what decides between latency and bandwidth.
    fn packets(&self) -> u64 {
        let packets = View::of(&self.op.x).bytes() / u64::from(PACKET);
        packets / u64::from(self.facts.multiprocessors.max(1))
    }

    fn channel_last(&self) -> Option<Plan> {
        let Sizes { dim, seqlen, width, .. } = *self.sizes;
        // A single position per row is channel-last whatever its strides say.
        if !self.streams().all(|view| view.is_dense(1)) || (dim == 1 && seqlen > 1) {
            return None;
        }
        if !self.fits_32_bits(2) {
            return None;
        }
        // Members of a larger launch have blocks of one size.
        let plain = !self.beside && !self.is_gated() && self.op.norm.is_none() && self.op.residual.is_none();
        let mut tile = last_tile(width, self.element(), self.packets(), plain)?;
        if self.is_gated() {
            // Every row is up to three packets in flight.
            tile = LastTile {
                rows: tile.rows.min(8),
                resident: tile.resident.min(if width > 4 { 6 } else { 8 }),
                ..tile
            };
        }
        if let Some(norm) = self.op.norm {
            // As many threads side by side as have a head: a wave, or two where packets would be wide. Those leave registers for half as
            // many threads, and all of a wave's rows wait for one sum after the other.
            let head = (norm.head_dim.max(1) as u64).saturating_mul(u64::from(self.element()));
            let by_wave = head_packet(&norm, self.element(), self.facts.wave_size);
            let by_block = head_packet(&norm, self.element(), tile.threads);
            let bytes = tile.bytes.max(if by_wave > 8 { by_block.max(8) } else { by_wave });
            let lanes = (head / u64::from(bytes)).next_power_of_two().min(u64::from(tile.threads)) as u32;
            tile = LastTile { bytes, lanes: tile.lanes.max(lanes), rows: tile.rows.min(8), ..tile };
        }
        let widest = self.streams().map(|view| view.access(1)).min()?.min(tile.bytes);
        let bytes = widest.min(power_of_two_in((dim * i64::from(self.element())) as u64));
        let channels = bytes / self.element();
        let across = dim / i64::from(channels);
        let most = self.most_packets(tile.bytes / bytes);
        let (lanes, packets) = last_shape(across as u64, bytes, tile.lanes, most);
        let is_narrow = View::of(&self.op.x).step_bytes(2).unsigned_abs() <= u64::from(PACKET)
            && tile.rows == 8
            && self.op.norm.is_none();
        if is_narrow {
            tile = tile.of_narrow_rows();
        }
        // A block reaches along the sequence no further than it has to.
        let reach = (seqlen as u64).div_ceil(u64::from(tile.rows)).next_power_of_two();
        let segments = u64::from(tile.threads / lanes).min(reach) as u32;
        let threads = (lanes * segments).max(self.facts.wave_size);
        let (lanes, segments) = (lanes.max(threads / segments), segments);
        let alone = !self.beside && self.op.norm.is_none() && !self.has_boundaries();
        let (lanes, segments) = if packets == 1 && alone {
            let rows = (seqlen as u64).div_ceil(u64::from(tile.rows));
            Lanes { packets: across as u64, bytes, segments: rows, wave: self.facts.wave_size }
                .full_block((lanes, segments))
        } else {
            (lanes, segments)
        };
        let threads = lanes * segments;

        let head_lanes = head_lanes(self.op.norm.as_ref(), channels, lanes)?;

        let channel_blocks = (across as u64).div_ceil(u64::from(lanes * packets));
        let row_blocks = (seqlen as u64).div_ceil(u64::from(tile.rows * segments));
        let geometry = Geometry {
            threads,
            blocks: channel_blocks * row_blocks,
            tile_divisor: u32::try_from(channel_blocks).ok()?,
            // Its many short blocks lose nothing by it, however many they are.
            programmatic: true,
            shared_bytes: if head_lanes > self.facts.wave_size { EXCHANGE } else { 0 },
        };
        // A third stream, and what tells sequences apart, take registers; a tight cap would spill on some devices.
        let op = self.op;
        let meets_states = self.has_boundaries() && op.initial_states.is_some();
        let tight = [meets_states, tile.rows >= 12, takes_more_registers(self.facts)];
        let tight = tight.into_iter().filter(|tight| *tight).count();
        let resident = if op.residual.is_some() || (op.seq_idx.is_some() && self.sizes.packed) {
            tile.resident.min(8)
        } else if tight >= 2 {
            tile.resident.min(10)
        } else if self.has_boundaries() || op.initial_states.is_some() || takes_more_registers(self.facts)
            // Without an activation there is less to hide.
            || op.activation == Activation::None && self.element() == 2
        {
            tile.resident.min(12)
        } else {
            tile.resident
        };
        // In a joined launch the smallest `resident` applies to all members. With packets of up to 8 bytes, sm_90 has registers for 12 blocks.
        let resident = if head_lanes > 1 {
            let roomy = tight == 0 && !self.has_boundaries() && op.initial_states.is_none();
            resident.min(if roomy && bytes <= 8 && width <= 4 { 12 } else { 8 })
        } else if packets > 2 {
            resident.min(if takes_more_registers(self.facts) { 8 } else { 12 })
        } else {
            resident
        };
        // As many threads, in blocks of any size.
        let whole_waves = threads.next_multiple_of(self.facts.wave_size);
        let resident = (resident * BLOCK / whole_waves).clamp(1, resident);
        let constants = Constants::new("Tile")
            .int("bytes", bytes)
            .int("more_packets", packets - 1)
            .int("lanes", lanes)
            .int("segments", segments)
            .int("rows", tile.rows)
            .int("weight_bytes", weight_access(&self.op.weight, channels, channels));
        let constants =
            if self.op.norm.is_some() { constants.int("head_lanes", head_lanes) } else { constants };
        self.tiled(&CHANNEL_LAST, &geometry, constants, resident)
    }

    /// Most packets that a channel-last thread has of a row, where packets are `narrow` times narrower than they might be. Each
    /// takes whole registers, of which options leave fewer.
    fn most_packets(&self, narrow: u32) -> u32 {
        if self.op.norm.is_some() {
            1
        } else if self.is_gated() || self.has_boundaries() || self.sizes.width > 4 {
            narrow.min(2)
        } else {
            narrow
        }
    }

    fn channel_first(&self) -> Option<Plan> {
        if self.op.norm.is_some() {
            return None;
        }
        let Sizes { dim, seqlen, width, .. } = *self.sizes;
        if !self.streams().all(|view| view.is_dense(2)) {
            return None;
        }
        if !self.fits_32_bits(1) {
            return None;
        }
        let idle = self.op.activation == Activation::None && !self.has_boundaries();
        let tile = first_tile(width, self.element(), self.packets(), idle);
        let aligned = self.streams().map(|view| view.access(2)).min()?;
        let shifted = aligned < PACKET && common_residue(2, self.streams()) == PACKET;
        let whole = aligned == PACKET && seqlen % i64::from(PACKET / self.element()) == 0;
        let access = if shifted { PACKET } else { aligned };

        let packets = View::of(&self.op.x).packets_of_row(2, shifted);
        let shape = first_shape(packets, tile.tiles, self.facts.wave_size);
        let full = packets * 8 >= packets.next_multiple_of(u64::from(shape.0 * shape.1)) * 7;
        // Rows that would leave many lanes idle, and unaligned rows, are laid end to end over the threads.
        let flat = !self.has_boundaries() && (shifted || !full);
        let (lanes, tiles) = if flat { (1, 1) } else { shape };
        // Short rows leave lanes idle. Larger blocks keep the number of blocks, and their start-up cost, down.
        let useful = packets.min(u64::from(lanes * tiles)) * u64::from(tile.threads / lanes * PACKET);
        let threads = match tile.tiles {
            _ if flat => FLAT_THREADS,
            2 if !self.has_boundaries() => {
                tile.threads * (LEAST_BLOCK_BYTES / useful).clamp(1, 4).next_power_of_two() as u32
            }
            _ => tile.threads,
        };
        let groups = threads / lanes;
        let pieces = packets.div_ceil(u64::from(lanes * tiles));
        let checked = CheckedCall {
            element: self.element(),
            seq_idx: self.op.seq_idx.is_some(),
            initial_states: self.op.initial_states.is_some(),
            residual: self.op.residual.is_some(),
            takes_more_registers: takes_more_registers(self.facts),
        };
        // Few where there is little work.
        let rows = if self.has_boundaries() && tiles > 1 { checked.rows() } else { 1 };
        let blocks = if self.has_boundaries() {
            (dim as u64).div_ceil(u64::from(groups * rows)) * pieces
        } else {
            (dim as u64 * pieces).div_ceil(u64::from(groups))
        };
        // The kernel divides numbers of groups as 31-bit numbers.
        if blocks.checked_mul(u64::from(groups * rows))? > i32::MAX as u64 {
            return None;
        }
        let tile_divisor = u32::try_from(pieces).ok()?;
        let geometry = Geometry { threads, blocks, tile_divisor, programmatic: false, shared_bytes: 0 };
        let constants = Constants::new("Tile")
            .int("access", access)
            .int("lanes", lanes)
            .int("groups", groups)
            .int("tiles", tiles)
            .int("rows", rows)
            .flag("shifted", shifted)
            .flag("whole", whole)
            .int("weight_bytes", weight_access(&self.op.weight, 1, 1));
        let constants = match &self.op.seq_idx {
            // A thread's positions are a multiple of 16 bytes apart, and so are their indices.
            Some(indices) => constants.int("index_bytes", View::of(indices).access(1)),
            None => constants,
        };
        let crowded = self.has_boundaries()
            && !self.is_gated()
            && width <= 4
            && tiles > 1
            && !shifted
            && access == PACKET;
        let resident =
            if crowded { checked.threads().min(self.facts.threads_per_multiprocessor) / threads } else { 1 };
        self.tiled(&CHANNEL_FIRST, &geometry, constants, resident)
    }

    /// A fast path: blocks for the states in front, the batch on the second and third axis.
    fn tiled(
        &self,
        kernel: &'static KernelFunction,
        geometry: &Geometry,
        tile: Constants,
        resident: u32,
    ) -> Option<Plan> {
        let &Geometry { threads, blocks, tile_divisor, programmatic, shared_bytes } = geometry;
        let (batches_per_layer, batch_layers) = layers(self.sizes.batch)?;
        let per_sequence = u32::try_from(self.sizes.dim as u64 / u64::from(threads) + 1).ok()?;
        let state_blocks = match (self.has_states, self.sizes.packed) {
            (false, _) => 0,
            (true, false) => u64::from(per_sequence),
            (true, true) => u64::from(per_sequence).checked_mul(self.sizes.sequences as u64)?,
        };
        let total = blocks.checked_add(state_blocks)?;
        if total > most_blocks(self.facts, threads) {
            return None;
        }
        let arguments = ForwardArguments {
            batches_per_layer,
            state_blocks: u32::try_from(state_blocks).ok()?,
            state_divisor: Divisor::new(per_sequence),
            tile_divisor: Divisor::new(tile_divisor),
            ..self.arguments()
        };
        let entry = self.entry(kernel, LaunchBounds::new(threads, resident), tile);
        let grid = [total as u32, batches_per_layer, batch_layers];
        let plan = entry.finish(grid, &arguments, self.traffic, self.facts, programmatic);
        Some(Plan { shared_bytes, ..plan })
    }

    fn general(&self) -> Plan {
        const THREADS: u32 = 128;
        const RUN: i64 = 4;
        let x = View::of(&self.op.x);
        let dim_fastest = x.is_nearer(1, 2);
        let tile = Constants::new("Tile").int("threads", THREADS).flag("dim_fastest", dim_fastest);
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        // Threads: one for each run of a channel, or a wave for each head at a position.
        let (across, along) = match self.op.norm {
            Some(norm) => (dim / norm.head_dim * i64::from(self.facts.wave_size), seqlen),
            None => (dim, blocks_of(seqlen, RUN)),
        };
        let tasks = across.saturating_mul(batch).saturating_mul(along);
        let blocks = striding_blocks(self.facts, tasks, THREADS);
        let arguments = ForwardArguments { blocks, ..self.arguments() };
        let entry = self.entry(&GENERAL, LaunchBounds::new(THREADS, 1), tile);
        entry.plan([blocks, 1, 1], &arguments, self.traffic, self.facts)
    }

    fn entry(&self, kernel: &'static KernelFunction, bounds: LaunchBounds, tile: Constants) -> Entry {
        Entry { kernel, bounds, problem: self.problem(), tile }
    }

    fn problem(&self) -> Constants {
        let op = self.op;
        let rounds = op.round_products && self.is_gated();
        Constants::new("Problem")
            .dtype("X", op.x.dtype())
            .dtype("Weight", op.weight.dtype())
            .convolution(self.sizes.width, op.activation, rounds, op.norm.is_some())
            .given(op, |_| true)
    }

    fn arguments(&self) -> ForwardArguments {
        let (op, sizes) = (self.op, self.sizes);
        let (x_begin, x_end) = View::of(&op.x).span();
        let span =
            |tensor: &Option<TensorRef<'_>>| tensor.as_ref().map_or((0, 0), |tensor| View::of(tensor).span());
        let [(residual_begin, residual_end), (b_begin, b_end), (c_begin, c_end)] =
            [&op.residual, &op.b, &op.c].map(span);
        ForwardArguments {
            batch: sizes.batch,
            dim: sizes.dim,
            seqlen: sizes.seqlen,
            width: sizes.width,
            sequences: sizes.sequences,
            x_begin,
            x_end,
            residual_begin,
            residual_end,
            b_begin,
            b_end,
            c_begin,
            c_end,
            norm: NormArguments::new(op.norm.as_ref()),
            ..ForwardArguments::of(op)
        }
    }
}

/// Bytes of x that a channel-first block of a large call should have at least.
const LEAST_BLOCK_BYTES: u64 = 2 << 10;

/// Shared memory of a channel-last block where two waves share a head: sums of eight rows of each, twice.
const EXCHANGE: u32 = 2 * 2 * 8 * 4;

/// Threads of a channel-first block whose rows lie side by side.
const FLAT_THREADS: u32 = 256;

/// Threads along dim, at most `widest`, and packets of each, at most `most`, for rows of `packets` of `bytes`: those that take least by
/// what a place costs.
fn last_shape(packets: u64, bytes: u32, widest: u32, most: u32) -> (u32, u32) {
    let lanes = packets.div_ceil(u64::from(most)).next_power_of_two().min(u64::from(widest)) as u32;
    let places = |each: u32| packets.next_multiple_of(u64::from(lanes * each));
    // In percent of a place where a thread has 8 bytes of a row.
    let cost = |each: u32| match each * bytes {
        2 => 190,
        own if own < 8 => 108,
        _ => 100,
    };
    let each = (1..=most).rev().min_by_key(|&each| places(each) * cost(each)).unwrap_or(1);
    (lanes, each)
}

/// A channel-last call whose blocks may have idle lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lanes {
    /// Packets of a row, and their bytes.
    packets: u64,
    bytes: u32,
    /// Segments of a row's sequence, one for each thread along it.
    segments: u64,
    wave: u32,
}

impl Lanes {
    /// Threads along dim and along the sequence of a block: the shape that needs the fewest waves for the call, if it saves at least a fifth of
    /// those of `usual`. With 32 lanes, a row of 42 packets leaves a third of them idle.
    fn full_block(self, usual: (u32, u32)) -> (u32, u32) {
        thread_local! {
            static BLOCKS: Kept<Lanes, Option<(u32, u32)>> = const { Kept::new() };
        }
        let saves = |waves: u64| 5 * waves <= 4 * self.waves(usual);
        // Nothing takes fewer than full ones.
        if !saves((self.packets * self.segments).div_ceil(u64::from(self.wave))) {
            return usual;
        }
        let fewest = BLOCKS.with(|blocks| blocks.get(self, || self.fewest_waves()));
        fewest.filter(|&block| saves(self.waves(block))).unwrap_or(usual)
    }

    fn fewest_waves(self) -> Option<(u32, u32)> {
        const LANES: [u32; 2] = [16, 32];
        const THREADS: [u32; 2] = [64, 256];
        // Groups of lanes begin with a sector of memory, where rows do.
        let step = (SECTOR / self.bytes).max(1);
        let most = self.packets.next_multiple_of(u64::from(step));
        let lanes =
            (LANES[0]..=LANES[1]).filter(|&lanes| lanes.is_multiple_of(step) && u64::from(lanes) <= most);
        let blocks = lanes.flat_map(|lanes| (1..=8).map(move |segments| (lanes, segments)));
        let blocks =
            blocks.filter(|(lanes, segments)| (THREADS[0]..=THREADS[1]).contains(&(lanes * segments)));
        blocks.min_by_key(|&block| (self.waves(block), block.0 * block.1))
    }

    /// Waves of a call in blocks of so many lanes and segments.
    fn waves(self, (lanes, segments): (u32, u32)) -> u64 {
        let blocks = self.packets.div_ceil(u64::from(lanes)) * self.segments.div_ceil(u64::from(segments));
        blocks * u64::from((lanes * segments).div_ceil(self.wave))
    }
}

/// Threads of a group and packets per thread, at most `most`, that waste the fewest places on a row of `packets`; the
/// widest group of those.
fn first_shape(packets: u64, most: u32, wave_size: u32) -> (u32, u32) {
    let places =
        |lanes: u32, tiles: u32| packets.div_ceil(u64::from(lanes * tiles)) * u64::from(lanes * tiles);
    let widths = [64, 32, 16, 8, 4].into_iter().filter(|lanes| *lanes <= wave_size);
    let shapes = widths.map(|lanes| (lanes, (packets.div_ceil(u64::from(lanes)) as u32).clamp(1, most)));
    shapes.min_by_key(|&(lanes, tiles)| places(lanes, tiles)).unwrap_or((4, 1))
}

#[cfg(test)]
mod tests;
