//! The backward planner of large plain calls where neighbouring channels are neighbours in memory: tiles that blocks take side by side.

use super::super::{Constants, kernel, weight_access};
use super::{BackwardArguments, Launch, Planner};
use crate::causal_conv1d::Sizes;

kernel!(TILES_LAST, "backward_tiles_last", "backward_tiles_last", BackwardArguments);

/// Waves of a block and rows of each; tiles in shared memory.
const WAVES: u32 = 12;
const ROWS: u32 = 6;
const STAGES: u32 = 3;

/// Bytes of a lane's packet, and of a copy to shared memory.
const PACKET: u32 = 8;
const COPY: u32 = 16;

/// Nanoseconds of a block's first copies and of its sums, and of a tile that memory does not hold up.
const START: u64 = 7000;
const LEAST_STEP: u64 = 1850;

impl Planner<'_> {
    /// Tiles that all blocks take side by side, where copies of `legal` channels at once are whole ones.
    pub(super) fn tiles_last(&self, legal: u32) -> Option<Launch> {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let op = self.op;
        let plain = op.initial_states.is_none() && op.dfinal_states.is_none() && op.dinitial_states.is_none();
        // Nothing later was measured.
        let hopper = self.facts.compute_capability() == 90;
        if !plain || !hopper || width > 4 || legal * self.element() < COPY {
            return None;
        }
        let (halo, wave) = (width as u32 - 1, self.facts.wave_size);
        let channels = PACKET / self.element();
        let piece = WAVES * ROWS - halo;
        let pieces = u32::try_from((seqlen as u64).div_ceil(u64::from(piece))).ok()?;
        let channel_groups = u32::try_from((dim as u64).div_ceil(u64::from(wave * channels))).ok()?;
        let tiles = u32::try_from(batch as u64 * u64::from(pieces)).ok()?;
        let parts = (self.facts.multiprocessors / channel_groups).min(tiles);
        if parts == 0 || !self.gains_by_tiles(tiles.div_ceil(parts)) {
            return None;
        }
        // Stages, and the shares of two tiles.
        let (stage, shares) = ((2 * WAVES * ROWS + halo) * wave * PACKET, WAVES * halo * wave * channels * 4);
        Some(Launch {
            kernel: &TILES_LAST,
            tile: Constants::new("Tile")
                .int("waves", WAVES)
                .int("rows", ROWS)
                .int("stages", STAGES)
                .int("weight_bytes", weight_access(&op.weight, channels, channels)),
            threads: WAVES * wave,
            resident: 1,
            cluster: 1,
            early: false,
            joins: false,
            keeps_together: true,
            shared_bytes: STAGES * stage + 2 * shares,
            sums: u64::from(wave * channels) * self.sums_per_channel(),
            channel_groups,
            parts,
            pieces,
            piece,
            tile_channels: 0,
            slices: 0,
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Whether a call takes less time in `steps` tiles of each block than as a walk: a model of both, in nanoseconds.
    fn gains_by_tiles(&self, steps: u32) -> bool {
        let memory = u64::from(self.facts.memory_gigabytes_per_second);
        if memory == 0 {
            return false;
        }
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        let bytes = 3 * u64::from(self.element()) * dim as u64 * (batch * seqlen) as u64;
        // The floor comes to nine tenths of what memory's clock gives.
        let floor = bytes.saturating_mul(10) / (9 * memory);
        // Rows that begin inside a line of the caches share it with others, which costs 7 %.
        let in_lines = self.streams().iter().all(|view| view.step_bytes(2) % 128 == 0);
        let moved = if in_lines { floor } else { floor / 100 * 107 };
        // A walk takes 1.15 to 1.23 of the floor.
        START + moved.max(u64::from(steps) * LEAST_STEP) < floor / 100 * 114
    }
}
