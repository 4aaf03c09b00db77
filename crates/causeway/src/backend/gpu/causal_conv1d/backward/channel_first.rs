//! The backward planner where neighbouring positions are neighbours in memory: rows that waves walk.

use super::super::{Constants, PACKET, View, common_residue, kernel, takes_more_registers, weight_access};
use super::tiles::{self, FirstCall, FirstTile, OVERFULL_THREADS};
use super::{BackwardArguments, Launch, LaunchBounds, Planner};
use crate::backend::gpu::plan::Vendor;
use crate::causal_conv1d::{Activation, Sizes};

/// What rows are like, and the tile for them.
struct Rows {
    /// Of a packet.
    bytes: u32,
    /// They begin or end inside a packet.
    ragged: bool,
    /// Some of their tiles take the masked path.
    masked: bool,
    tile: FirstTile,
}

/// How rows are shared out.
struct Cut {
    /// Lanes of a row.
    lanes: u64,
    /// Waves of a channel in a block.
    waves: u64,
    /// Of a block.
    threads: u32,
    /// Channels of a block.
    group_channels: u64,
    channel_groups: u64,
    /// Blocks of a channel.
    parts: u64,
    /// Pieces of a row.
    pieces: u64,
    /// Positions of a piece.
    piece: u64,
    /// Tiles of a step.
    unroll: u64,
    /// Tiles in flight.
    stages: u32,
}

kernel!(CHANNEL_FIRST, "backward_channel_first", "backward_channel_first", BackwardArguments);

impl Planner<'_> {
    pub(super) fn channel_first(&self) -> Option<Launch> {
        let Sizes { dim, seqlen, width, .. } = *self.sizes;
        let element = self.element();
        if !self.all_streams().all(|view| view.is_dense(2)) || !self.fits_32_bits() {
            return None;
        }
        // Indices are read as the positions are.
        if self.op.seq_idx.as_ref().is_some_and(|indices| !View::of(indices).is_dense(1)) {
            return None;
        }
        let bytes = common_residue(2, self.all_streams());
        if bytes < element {
            return None;
        }
        let aligned = self.all_streams().all(|view| view.access(2) >= bytes);
        let ragged = bytes > element && !(aligned && seqlen % i64::from(bytes / element) == 0);
        let plain = || {
            self.whole_tiles_first(bytes, ragged)
                .or_else(|| self.flat_first(bytes, ragged))
                .or_else(|| self.short_first(bytes, ragged))
                .or_else(|| self.tiles_first(bytes, ragged))
        };
        if let Some(plain) = (!self.is_gated()).then(plain).flatten() {
            return Some(plain);
        }
        let has_states = self.meets_states();
        let masked = ragged || has_states || self.has_boundaries();
        let all_options = self.op.seq_idx.is_some() && self.is_packed() && has_states;
        if all_options && self.is_gated() {
            // More than AMD's RDNA has registers for; the general kernel keeps nothing of a row in them.
            return None;
        }
        // Rows of at most half of a wave's packets.
        let shares_wave = 2 * seqlen as u64 * u64::from(element) <= u64::from(PACKET * self.facts.wave_size);
        let tile = tiles::first(&FirstCall {
            width,
            element,
            silu: self.op.activation == Activation::Silu,
            masked,
            gated: self.is_gated(),
            crowded_states: has_states && (ragged || self.is_packed() && shares_wave),
            only_ragged: ragged
                && !(has_states || self.has_boundaries())
                && self.facts.vendor == Vendor::Nvidia,
            all_options,
            takes_more_registers: takes_more_registers(self.facts),
            boundaries: self.has_boundaries(),
            overfull: dim as u64
                > u64::from(self.facts.multiprocessors * OVERFULL_THREADS / self.facts.wave_size),
        });
        self.walk_first(&Rows { bytes, ragged, masked, tile })
    }

    /// Rows, or pieces of them, that waves walk.
    fn walk_first(&self, rows: &Rows) -> Option<Launch> {
        let &Rows { bytes, ragged, tile, .. } = rows;
        let (element, wave) = (self.element(), self.facts.wave_size);
        let cut = self.cut_first(rows);
        let packets = tile.bytes / bytes;
        let sums = cut.group_channels * self.sums_per_channel();
        let resident = (tile.blocks.resident_threads / cut.threads).max(1);
        // A lane's positions of x, dy and gates, and their indices.
        let indices = if self.op.seq_idx.is_some() { 4 * tile.bytes / element } else { 0 };
        let ring = if self.has_async_copy(bytes) {
            cut.stages * cut.threads * (self.fetched() * packets * bytes + indices)
        } else {
            0
        };
        let partial = (cut.threads / wave) * self.sums_per_channel() as u32 * 4 + 4;
        let constants = Constants::new("Tile")
            .int("threads", cut.threads)
            .int("bytes", bytes)
            .int("packets", packets)
            .int("lanes", cut.lanes)
            .flag("ragged", ragged)
            .flag("whole_rows", cut.pieces == 1)
            .int("stages", cut.stages)
            .int("unroll", cut.unroll)
            .flag("full", !ragged && (self.sizes.seqlen as u64).is_multiple_of(cut.piece))
            .int("waves_per_channel", cut.waves)
            .int("weight_bytes", weight_access(&self.op.weight, 1, 1))
            .int("index_bytes", if ragged { 4 } else { self.index_access() });
        Some(Launch {
            shared_bytes: (ring + partial).max(self.crowding_limit(tile.crowded, resident)),
            sums,
            channel_groups: u32::try_from(cut.channel_groups).ok()?,
            parts: cut.parts as u32,
            pieces: u32::try_from(cut.pieces).ok()?,
            piece: u32::try_from(cut.piece).ok()?,
            ..Launch::new(&CHANNEL_FIRST, constants, LaunchBounds::new(cut.threads, resident))
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Shares rows out among lanes, waves and blocks.
    fn cut_first(&self, rows: &Rows) -> Cut {
        /// Tiles in flight, where a step is one tile.
        const STAGES: u32 = 3;
        /// Fewest tiles of a piece, where rows are cut.
        const LEAST_TILES: u64 = 4;
        /// With so many tiles in a piece, an empty one costs less than two tiles per step save.
        const PADDED: u64 = 12;
        let &Rows { bytes, ragged, masked, tile } = rows;
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let (element, wave) = (self.element(), self.facts.wave_size);
        let count = u64::from(tile.bytes / element);
        let positions = seqlen as u64 + if ragged { u64::from(bytes / element) - 1 } else { 0 };

        // Short rows share a wave; long ones take all of it.
        // Half a wave holds the indices beside a tile even where both halos are 7 positions long.
        let fewest = u64::from(if self.op.seq_idx.is_some() { wave / 2 } else { wave / 4 });
        let lanes = positions.div_ceil(count).next_power_of_two().clamp(fewest, u64::from(wave));
        let tiles = positions.div_ceil(lanes * count);

        let splittable = lanes == u64::from(wave);
        let shares = tiles::shares(&tiles::Walk {
            blocks: tile.blocks,
            multiprocessors: u64::from(self.facts.multiprocessors),
            wave: u64::from(wave),
            dim: dim as u64,
            batch: batch as u64,
            rows_at_once: u64::from(wave) / lanes,
            tiles,
            // A piece pays for its halos, so it is some tiles long.
            most_pieces: if splittable { (tiles / LEAST_TILES).max(1) } else { 1 },
        });
        let tiles::Shares { waves, threads, group_channels, channel_groups, parts, pieces, .. } = shares;
        let steps = |unroll: u64| tiles.div_ceil(pieces).next_multiple_of(unroll);
        // Two tiles per step, where a piece has an even number of them. Indices take registers and shared memory for that. Ragged rows
        // are bound by instructions, and gain more by it than a tile of masks costs.
        let masks_fit = width <= 4 && self.has_async_copy(bytes) && !takes_more_registers(self.facts);
        let others = self.op.seq_idx.is_some() || self.is_gated();
        let few_options =
            !masked || masks_fit && !(ragged && others || self.meets_states() || self.is_packed());
        let padded = ragged && steps(1) >= PADDED;
        let unrolled = few_options && splittable && (steps(2) == steps(1) || padded);
        let (unroll, stages) = if unrolled { (2, 4) } else { (1, STAGES) };
        let piece = steps(unroll) * lanes * count;
        let pieces = positions.div_ceil(piece);
        Cut { lanes, waves, threads, group_channels, channel_groups, parts, pieces, piece, unroll, stages }
    }

    /// Whether states stand in front of a row, or gradients of states after it.
    pub(super) fn meets_states(&self) -> bool {
        self.has_states(self.op.initial_states.is_some() || self.op.dfinal_states.is_some())
    }

    /// Shared memory that keeps more than `resident` blocks off a multiprocessor, where they should not crowd it: with
    /// a few more, a grid of two rounds becomes one round and a poorly filled second. Within what is granted unasked.
    fn crowding_limit(&self, crowded: bool, resident: u32) -> u32 {
        const GRANTED: u32 = 48 << 10;
        if crowded || self.facts.vendor != Vendor::Nvidia {
            return 0;
        }
        self.shared_bytes_for(resident + 1).min(GRANTED - 1) + 1
    }

    /// The widest access for a lane's neighbouring indices where the lane's positions are at least 16 bytes.
    fn index_access(&self) -> u32 {
        self.op.seq_idx.as_ref().map_or(4, |indices| View::of(indices).access(1))
    }
}
