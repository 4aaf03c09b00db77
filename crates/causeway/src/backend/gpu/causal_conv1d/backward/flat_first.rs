//! The backward planner of plain calls where neighbouring positions are neighbours in memory, and rows are short: waves that walk the packets
//! of all rows of a channel, one row after the other.

use super::super::{Constants, PACKET, View, kernel, weight_access};
use super::tiles::{self, FirstBlocks, Shares};
use super::{BackwardArguments, Launch, LaunchBounds, Planner, tiles_first};
use crate::causal_conv1d::Sizes;

kernel!(FLAT_FIRST, "backward_flat_first", "backward_flat_first", BackwardArguments);

/// Elements of x for each multiprocessor below which neither this kernel nor the others are always faster.
const LEAST: u64 = 16 << 10;

impl Planner<'_> {
    /// Short rows. `bytes`: the widest packet for which the rows of all tensors have the same residue.
    pub(super) fn flat_first(&self, bytes: u32, ragged: bool) -> Option<Launch> {
        const BLOCKS: FirstBlocks =
            FirstBlocks { resident_threads: 768, more_threads: Some(1024), ..tiles_first::BLOCKS };
        /// Packets of a line of memory.
        const LINE: u64 = 8;
        /// Fewest packets of a row that divides a tile, of a ragged one in 16 bit with SiLU, and of any other.
        const FEWEST: u64 = 4;
        const FEWEST_RAGGED: u64 = 6;
        const FEWEST_OF_OTHERS: u64 = 12;
        /// Most packets of a ragged row. `tiles_first` walks most tiles of longer ones without masks.
        const MOST_RAGGED: u64 = 200;
        /// Tiles of a run that is worth a block's start.
        const LEAST_TILES: u64 = 4;
        let Sizes { batch, dim, .. } = *self.sizes;
        let wave = u64::from(self.facts.wave_size);
        let multiprocessors = u64::from(self.facts.multiprocessors);
        if !self.is_tileable(bytes, ragged) {
            return None;
        }
        let packets = View::of(&self.op.x).packets_of_row(2, ragged);
        let divides = packets >= FEWEST && wave.is_multiple_of(packets);
        let all = packets.checked_mul(batch as u64).filter(|&all| all <= i32::MAX as u64 / 2)?;
        let (tiles, elements) = (all.div_ceil(wave), self.elements_per_multiprocessor());
        if tiles < LEAST_TILES || elements < LEAST || !self.steps_fit(wave, packets) {
            return None;
        }
        // From three tiles on, those of a row are worth walking alone.
        let is_short = packets < 3 * wave;
        let in_lines = is_short && packets.is_multiple_of(LINE);
        // Tiles that begin anywhere in a line are slower: runs have to be long, and channels many.
        let others = is_short
            && packets >= FEWEST_OF_OTHERS
            && tiles > 2 * LEAST_TILES
            && dim as u64 >= 2 * multiprocessors
            && elements >= 2 * LEAST;
        let wanted = if ragged {
            let fewest = if self.is_measured() { FEWEST_RAGGED } else { FEWEST_OF_OTHERS };
            (fewest..=MOST_RAGGED).contains(&packets)
        } else {
            divides || in_lines || others
        };
        if !wanted {
            return None;
        }
        let Shares { resident_threads, waves, threads, group_channels, channel_groups, parts, .. } =
            tiles::shares(&tiles::Walk {
                blocks: self.blocks_that_fit(BLOCKS),
                multiprocessors,
                wave,
                dim: dim as u64,
                // All rows of a channel are one.
                batch: 1,
                rows_at_once: 1,
                tiles,
                most_pieces: (tiles / LEAST_TILES).max(1),
            });
        let piece = tiles.div_ceil(waves * parts) * wave;
        let parts = all.div_ceil(piece).div_ceil(waves);
        let tile = Constants::new("Tile")
            .int("threads", threads)
            .int("waves_per_channel", waves)
            .flag("split", parts > 1)
            .flag("even", divides)
            .flag("ragged", ragged)
            .int("weight_bytes", weight_access(&self.op.weight, 1, 1));
        Some(Launch {
            // What blocks of a channel tell each other with, besides.
            shared_bytes: threads / self.facts.wave_size * self.shared_bytes_of_wave() + 4,
            sums: group_channels * self.sums_per_channel(),
            channel_groups: u32::try_from(channel_groups).ok()?,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(packets).ok()?,
            piece: u32::try_from(piece).ok()?,
            ..Launch::new(&FLAT_FIRST, tile, LaunchBounds::new(threads, resident_threads / threads))
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Whether the bytes from a lane's packet to that of the tile before fit 32 bits.
    fn steps_fit(&self, wave: u64, packets: u64) -> bool {
        let (rows, own) = (wave / packets + 1, u64::from(PACKET) * (wave + packets));
        let most = (i32::MAX as u64).saturating_sub(own) / rows;
        self.streams().into_iter().all(|view| view.step_bytes(0).unsigned_abs() <= most)
    }
}
