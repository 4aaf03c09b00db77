//! The backward planner of large calls where neighbouring channels are neighbours in memory, without states and boundaries: tiles that
//! blocks take side by side.

use std::ops::Range;

use super::super::{Constants, kernel, weight_access};
use super::{BackwardArguments, Launch, LaunchBounds, Planner};
use crate::backend::gpu::candidates;
use crate::causal_conv1d::{Activation, Sizes};

kernel!(TILES_LAST, "backward_tiles_last", "backward_tiles_last", BackwardArguments);

/// Waves of a block; tiles in shared memory.
const WAVES: u32 = 8;
const STAGES: u32 = 3;

/// Bytes of a lane's packet, and of a copy to shared memory.
const LANE_BYTES: u32 = 8;
const COPY: u32 = 16;

/// Memory speed in GB/s from which more bytes must be in flight; and that of H100s, on which gates were not measured. Slower devices of this
/// generation are simulated ones.
const FAST: u32 = 4000;
const H100: Range<u32> = 1500..FAST;

/// Rows of a wave when `tensors` are copied. The bytes in flight must cover the latency of memory; with more of them blocks drift apart.
const fn rows(memory_gigabytes_per_second: u32, tensors: u32) -> u32 {
    let of_one = if memory_gigabytes_per_second < FAST { 16 } else { 32 };
    // Rows are computed in pairs.
    of_one / tensors / 2 * 2
}

/// Picoseconds of a row of a tile that memory does not hold up: a fixed part, a part for each tap, and a part for each gate (without SiLU, with
/// SiLU).
const LEAST_ROW: u64 = 14_000;
const LEAST_TAP: u64 = 2_100;
const LEAST_GATE: (u64, u64) = (9_000, 15_500);
/// Nanoseconds of a block's first copies, of its last tile and of its sums; and of the shortest step, which its copies have to arrive in.
const START: u64 = 6000;
const LEAST_STEP: u64 = 1600;

impl Planner<'_> {
    /// Tiles that all blocks take side by side, where copies of `legal` channels at once are whole ones.
    pub(super) fn tiles_last(&self, legal: u32) -> Option<Launch> {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let op = self.op;
        let plain = op.initial_states.is_none() && op.dfinal_states.is_none() && op.dinitial_states.is_none();
        // Nothing later was measured.
        let hopper = self.facts.compute_capability() == 90 && self.facts.memory_gigabytes_per_second > 0;
        let measured = hopper && !(self.is_gated() && H100.contains(&self.facts.memory_gigabytes_per_second));
        if !plain || !measured || width > 4 || legal * self.element() < COPY {
            return None;
        }
        let (halo, wave) = (width as u32 - 1, self.facts.wave_size);
        let tensors = self.fetched();
        let rows = rows(self.facts.memory_gigabytes_per_second, tensors);
        let channels = LANE_BYTES / self.element();
        let piece = WAVES * rows - halo;
        let channel_groups = u32::try_from((dim as u64).div_ceil(u64::from(wave * channels))).ok()?;
        let pieces = u32::try_from((seqlen as u64).div_ceil(u64::from(piece))).ok()?;
        let tiles = u32::try_from(batch as u64 * u64::from(pieces)).ok()?;
        let parts = (self.facts.multiprocessors / channel_groups).min(tiles);
        if parts == 0 || !self.gains_by_tiles(parts, tiles.div_ceil(parts), pieces, piece) {
            return None;
        }
        // Stages, and the shares of two tiles.
        let of_taps = 1 + u32::from(op.b.is_some());
        let stage = (tensors * WAVES * rows + of_taps * halo) * wave * LANE_BYTES;
        let shares = WAVES * halo * wave * channels * 4;
        let tile = Constants::new("Tile")
            .int("waves", WAVES)
            .int("rows", rows)
            .int("stages", STAGES)
            .int("weight_bytes", weight_access(&op.weight, channels, channels));
        Some(Launch {
            keeps_together: true,
            shared_bytes: STAGES * stage + 2 * shares,
            sums: u64::from(wave * channels) * self.sums_per_channel(),
            channel_groups,
            parts,
            pieces,
            piece,
            ..Launch::new(&TILES_LAST, tile, LaunchBounds::new(WAVES * wave, 1))
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Whether a call takes less time in `steps` tiles of each block than as a walk: a model of both, in nanoseconds. An entry has `pieces` tiles
    /// of `piece` rows, which `parts` blocks share.
    fn gains_by_tiles(&self, parts: u32, steps: u32, pieces: u32, piece: u32) -> bool {
        let Sizes { batch, seqlen, width, .. } = *self.sizes;
        // In every step the blocks move what their tiles have, and either that or the arithmetic of a tile takes longer. Each slows the other down by
        // 4 %.
        let moved = self.floor(u64::from(parts) * u64::from(piece)).saturating_mul(104) / 100;
        let width = width as u64;
        let gate = if self.op.activation == Activation::Silu { LEAST_GATE.1 } else { LEAST_GATE.0 };
        let gates = u64::from(self.fetched() - 2);
        let row = LEAST_ROW + LEAST_TAP * width + gate * gates;
        let tile = (u64::from(piece) + width - 1) * row / 1000;
        // The last tile of an entry has masks: the shorter entries are, the more of a block's tiles are such.
        let masks = (45 / u64::from(pieces)).min(8);
        let step = moved.max(tile * (104 + masks) / 100).max(LEAST_STEP);
        // A walk takes 1.16 to 1.37 of the floor, with gates 1.18 to 1.52.
        let of_floor = if self.is_gated() { 127 } else { 121 };
        let walk = self.floor((batch * seqlen) as u64).saturating_mul(of_floor) / 100;
        let tiles = START + u64::from(steps) * step;
        candidates::least([(tiles, true), (walk, false)].into_iter()) == Some(true)
    }

    /// Nanoseconds that memory takes for `rows` of x, dy and dx, and of the gates with their gradients, at nine tenths of what its clock gives.
    fn floor(&self, rows: u64) -> u64 {
        let tensors = self.all_streams().count() as u64;
        let bytes = tensors * u64::from(self.element()) * self.sizes.dim as u64 * rows;
        bytes.saturating_mul(10) / (9 * u64::from(self.facts.memory_gigabytes_per_second))
    }
}
