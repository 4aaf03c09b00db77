//! The backward planner of plain calls where neighbouring positions are neighbours in memory: tiles that waves with few registers walk.

use super::super::{Constants, PACKET, SECTOR, View, kernel, weight_access};
use super::tiles::{self, Costs, FirstBlocks, SHARED_RESERVED, Shares};
use super::{BackwardArguments, Launch, LaunchBounds, Planner};
use crate::backend::gpu::plan::DeviceFacts;
use crate::causal_conv1d::{Activation, Sizes};

kernel!(TILES_FIRST, "backward_tiles_first", "backward_tiles_first", BackwardArguments);

/// Tiles in a wave's ring.
const STAGES: u32 = 4;

/// Fitted to 540 ways to share out the rows of 18 drawn calls (docs/kernels/history/backward-first.md, "Rows that end inside a tile").
pub(super) const BLOCKS: FirstBlocks = FirstBlocks {
    threads: 128,
    // 16 waves of a multiprocessor keep enough under way; with more, memory takes longer for what lies so far apart.
    resident_threads: 512,
    more_threads: Some(768),
    most_waves: 8,
    least_waves: 1,
    costs: Costs { start: 40, sums: 60, sum: 8, crowding: 2, last_is_full: true },
};

/// How rows are shared out.
struct Cut {
    /// Of a block.
    threads: u32,
    /// Blocks that should fit on a multiprocessor: caps registers.
    resident: u32,
    /// All blocks are resident at once, as many on each multiprocessor as fit.
    one_round: bool,
    /// Waves of a channel in a block.
    waves: u64,
    /// Blocks of a channel.
    parts: u64,
    /// Tiles of a piece, a multiple of two.
    tiles: u64,
}

impl Planner<'_> {
    /// Rows that are whole tiles, in calls whose blocks are all resident at once or walk little. `bytes`: the widest packet
    /// for which the rows of all tensors have the same residue.
    pub(super) fn whole_tiles_first(&self, bytes: u32, ragged: bool) -> Option<Launch> {
        let Sizes { batch, dim, .. } = *self.sizes;
        let tiles = self.row_bytes() / self.tile_bytes();
        let elements = self.elements_per_multiprocessor();
        let enough = elements > if self.element() == 2 { 16 << 10 } else { 32 << 10 };
        let whole = !ragged && self.row_bytes().is_multiple_of(self.tile_bytes());
        if !enough || !whole || !self.is_tileable(bytes, false) {
            return None;
        }
        let room = Room::of(self.facts, self.shared_bytes_of_wave());
        let cut = whole_tiles(batch as u64, dim as u64, tiles, self.element(), room)?;
        self.launch_tiles(&cut, tiles, false)
    }

    /// Rows of any length. `bytes`: as for `whole_tiles_first`.
    pub(super) fn tiles_first(&self, bytes: u32, ragged: bool) -> Option<Launch> {
        /// Of large calls of many rows, in 16 bit with SiLU. Fitted to 500 ways to share out the rows of 50 drawn calls (the same page, "Large
        /// calls of many rows"): many blocks of few rows take longer than what they add up to.
        const BLOCKS_OF_LARGE: FirstBlocks = FirstBlocks {
            resident_threads: 640,
            more_threads: None,
            costs: Costs { sum: 30, ..BLOCKS.costs },
            ..BLOCKS
        };
        /// Tiles and rows for each multiprocessor that such calls have.
        const LARGE: u64 = 600;
        const MANY_ROWS: u64 = 12;
        /// Tiles for each multiprocessor above which whole rows of other dtypes, or without SiLU, take as long in the walk, or less.
        const WALKED_ABOVE: u64 = 1000;
        /// Fewest tiles of a piece, where rows are cut.
        const LEAST_TILES: u64 = 8;
        /// Fewest tiles of a row. With fewer, the last one, which is slower, is too large a part.
        const LEAST: u64 = 5;
        let Sizes { batch, dim, .. } = *self.sizes;
        if !self.is_tileable(bytes, ragged) {
            return None;
        }
        // What may lie before a row in its first tile.
        let lead = if ragged { u64::from(SECTOR - self.element()) } else { 0 };
        let tiles = (self.row_bytes() + lead).div_ceil(self.tile_bytes());
        if tiles < LEAST {
            return None;
        }
        let multiprocessors = u64::from(self.facts.multiprocessors);
        let rows = (batch as u64).saturating_mul(dim as u64);
        let all = rows.saturating_mul(tiles);
        let is_large =
            self.is_measured() && all > LARGE * multiprocessors && rows > MANY_ROWS * multiprocessors;
        let Shares { resident_threads, waves, threads, parts, pieces, .. } = tiles::shares(&tiles::Walk {
            blocks: self.blocks_that_fit(if is_large { BLOCKS_OF_LARGE } else { BLOCKS }),
            multiprocessors,
            wave: u64::from(self.facts.wave_size),
            dim: dim as u64,
            batch: batch as u64,
            rows_at_once: 1,
            tiles,
            most_pieces: (tiles / LEAST_TILES).max(1),
        });
        if pieces == 1 && all > WALKED_ABOVE * multiprocessors && !self.is_measured() {
            return None;
        }
        let each = tiles.div_ceil(pieces);
        // Steps of four tiles where the empty ones past a row are few.
        let each = each.next_multiple_of(if each >= 16 { 4 } else { 2 });
        let parts = parts.min((batch as u64 * tiles.div_ceil(each)).div_ceil(waves));
        let resident = resident_threads / threads;
        let cut = Cut { threads, resident, one_round: false, waves, parts, tiles: each };
        self.launch_tiles(&cut, tiles, ragged)
    }

    /// Whether waves can fetch whole packets of a plain call's rows. `bytes`: as for `whole_tiles_first`. What lies before a ragged row in its
    /// first packet has to be the tensor's memory.
    pub(super) fn is_tileable(&self, bytes: u32, ragged: bool) -> bool {
        let begins_packet = |view: View<'_>| view.span().0.is_multiple_of(u64::from(PACKET));
        bytes == PACKET
            && self.row_bytes() <= i32::MAX as u64 / 2
            && self.sizes.width <= 4
            && self.has_async_copy(PACKET)
            && !self.has_boundaries()
            && !self.meets_states()
            && (!ragged || self.read_streams().all(begins_packet))
    }

    fn row_bytes(&self) -> u64 {
        self.sizes.seqlen as u64 * u64::from(self.element())
    }

    /// Whether the call is one of those that the rules for large calls, and for ragged rows of few packets, were measured with.
    pub(super) fn is_measured(&self) -> bool {
        self.element() == 2 && self.op.activation == Activation::Silu
    }

    fn tile_bytes(&self) -> u64 {
        u64::from(PACKET * self.facts.wave_size)
    }

    /// Blocks of waves with a ring each, with more of them on a multiprocessor only where its shared memory has room for them.
    pub(super) fn blocks_that_fit(&self, blocks: FirstBlocks) -> FirstBlocks {
        let block = blocks.threads / self.facts.wave_size * self.shared_bytes_of_wave() + SHARED_RESERVED;
        let fits = |threads: &u32| threads / blocks.threads * block < self.facts.shared_per_multiprocessor;
        FirstBlocks { more_threads: blocks.more_threads.filter(fits), ..blocks }
    }

    /// Of x and dy in a wave's ring, and its sums.
    pub(super) fn shared_bytes_of_wave(&self) -> u32 {
        2 * STAGES * PACKET * self.facts.wave_size + self.sums_per_channel() as u32 * 4
    }

    /// `tiles`: of a row.
    fn launch_tiles(&self, cut: &Cut, tiles: u64, ragged: bool) -> Option<Launch> {
        let &Cut { threads, resident, one_round, waves, parts, tiles: each } = cut;
        let block_waves = threads / self.facts.wave_size;
        let channels = u64::from(block_waves) / waves;
        let unroll = if each.is_multiple_of(4) { 4 } else { 2 };
        let piece = each * self.tile_bytes() / u64::from(self.element());
        let pieces = tiles.div_ceil(each);
        // With the empty lane of a row of whole packets that begins inside a sector, the row is as many tiles.
        let whole_sectors = self.row_bytes().is_multiple_of(u64::from(SECTOR));
        let row_bytes = match (ragged, whole_sectors) {
            (true, _) => self.element(),
            (false, true) => SECTOR,
            (false, false) => PACKET,
        };
        // What blocks of a channel tell each other with, besides.
        let shared = block_waves * self.shared_bytes_of_wave() + 4;
        let tile = Constants::new("Tile")
            .int("threads", threads)
            .int("waves_per_channel", waves)
            .flag("split", parts > 1)
            .flag("whole_rows", pieces == 1)
            .flag("full", !ragged && (self.sizes.seqlen as u64).is_multiple_of(piece))
            .int("row_bytes", row_bytes)
            .flag("one_step", each == unroll)
            .int("unroll", unroll)
            .int("weight_bytes", weight_access(&self.op.weight, 1, 1));
        Some(Launch {
            programmatic: one_round,
            shared_bytes: shared,
            sums: channels * self.sums_per_channel(),
            channel_groups: u32::try_from((self.sizes.dim as u64).div_ceil(channels)).ok()?,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(pieces).ok()?,
            piece: u32::try_from(piece).ok()?,
            ..Launch::new(&TILES_FIRST, tile, LaunchBounds::new(threads, resident))
        })
        .filter(|launch| self.is_launchable(launch))
    }
}

/// What one multiprocessor has for rows that are whole tiles.
#[derive(Debug, Clone, Copy)]
struct Room {
    multiprocessors: u64,
    /// Threads of a wave.
    wave_size: u64,
    /// Waves whose registers, threads and shared memory fit.
    waves: u64,
}

impl Room {
    /// `shared` is what each wave asks for.
    fn of(facts: &DeviceFacts, shared: u32) -> Self {
        /// Vector registers of a thread, which the blocks that should fit bring about.
        const REGISTERS: u32 = 64;
        let threads = facts.threads_per_multiprocessor.min(facts.registers_per_multiprocessor / REGISTERS);
        // The smallest block has four waves.
        let each = shared + SHARED_RESERVED.div_ceil(LEAST_WAVES);
        Room {
            multiprocessors: u64::from(facts.multiprocessors.max(1)),
            wave_size: u64::from(facts.wave_size),
            waves: u64::from((threads / facts.wave_size).min(facts.shared_per_multiprocessor / each)),
        }
    }
}

/// Fewest waves of its blocks.
const LEAST_WAVES: u32 = 4;

/// How `dim` channels of `batch` rows of `tiles` tiles are cut, where all rows are whole tiles. A wave of a channel takes the same piece of
/// several rows. None where a row is not an even number of tiles, where a multiprocessor has too little room, where blocks are too few
/// for the device, and where the walk has measured faster.
fn whole_tiles(batch: u64, dim: u64, tiles: u64, element: u32, room: Room) -> Option<Cut> {
    /// Waves of a multiprocessor that fetch enough: with more, each has less to do between its start and its end.
    const ENOUGH: u64 = 16;
    let Room { multiprocessors, wave_size, waves: most } = room;
    // With how many waves registers are ample.
    let ample = most.min(20);
    /// Tiles of a channel that still leave little for a last round.
    const SHORT: u64 = 8;
    /// Tiles of a multiprocessor in calls for whose rows more blocks are worth adding more sums.
    const WORTH_SPLITTING: u64 = 256;
    // A channel has no more than one block. They may be half as many as multiprocessors, or as many where the call is large.
    let few_blocks = dim
        < if batch * dim * tiles < multiprocessors * WORTH_SPLITTING {
            multiprocessors / 2
        } else {
            multiprocessors
        };
    if !tiles.is_multiple_of(2) || tiles == 0 || most < ENOUGH || few_blocks {
        return None;
    }
    let wanted = 1u64 << (multiprocessors * ENOUGH / dim).clamp(1, most).ilog2();
    // What the busiest wave does, in half tiles: a piece pays for its ends.
    let longest = |pieces: u64| {
        let rows = batch.div_ceil(wanted / pieces);
        rows * (2 * tiles / pieces + u64::from(pieces > 1))
    };
    let pieces = (0..=wanted.ilog2().min((tiles / 2).trailing_zeros())).map(|power| 1u64 << power);
    let pieces = pieces.min_by_key(|&pieces| longest(pieces)).unwrap_or(1);
    let waves = wanted.min(pieces * batch.next_power_of_two());
    let block = waves.max(u64::from(LEAST_WAVES));
    let blocks = (dim * waves).div_ceil(block);
    let each = blocks.div_ceil(multiprocessors);
    let one_round = each * block <= most;
    if element == 4 && each * block > ample || !one_round && batch * tiles > SHORT {
        return None;
    }
    // In several rounds, with whichever number of waves the last one is fuller.
    let places = |resident: u64| blocks.div_ceil(multiprocessors * (resident / block)) * (resident / block);
    let resident = match one_round {
        true => each,
        false if places(most) < places(ample) => most / block,
        false => ample / block,
    };
    Some(Cut {
        threads: (block * wave_size) as u32,
        resident: resident as u32,
        one_round,
        waves,
        parts: 1,
        tiles: tiles / pieces,
    })
}
