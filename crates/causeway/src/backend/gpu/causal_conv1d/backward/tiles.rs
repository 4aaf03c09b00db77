//! Tile sizes of the backward kernels, measured on an H200 (docs/kernels/history/backward.md).

use super::super::SECTOR;
use crate::backend::gpu::candidates::{self, Kept};

/// Segments, or pieces of rows, are numbered in 31 bits with room for this many steps past the last.
pub(super) const MOST_STEPS: u64 = 8;

/// What a block of the channel-last kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastTile {
    /// Most bytes of a thread's packet.
    pub bytes: u32,
    /// Most channels of a thread.
    pub channels: u32,
    /// Most threads along dim; fewer where dim is smaller, and then more along seqlen.
    pub lanes: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that should fit on a multiprocessor: caps registers, and sizes the grid.
    pub resident: u32,
    /// Chunks of rows in flight.
    pub stages: u32,
}

impl LastTile {
    /// The same number of threads per multiprocessor, as given, as small blocks, as two, and as one. With fewer blocks fewer sums are added
    /// at the end; with more, many groups of channels fill a device evenly.
    pub fn groupings(self) -> impl Iterator<Item = LastTile> {
        let threads = self.threads * self.resident;
        let small = (self.threads > 256).then_some(threads / 128);
        let fewer = [2, 1].into_iter().filter(move |resident| *resident < self.resident);
        let regrouped = move |resident| LastTile { threads: threads / resident, resident, ..self };
        std::iter::once(self).chain(small.into_iter().chain(fewer).map(regrouped))
    }
}

/// How the channels and the rows of a channel-last call are shared out to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastSharing {
    pub tile: LastTile,
    /// Threads along dim.
    pub lanes: u32,
    /// The blocks of a group of channels, where all blocks of the grid run at once: one alone, or a cluster. Else there are as many as fill the
    /// device, and they add their sums through the workspace.
    pub group_blocks: Option<u32>,
}

impl LastSharing {
    /// Blocks of a cluster, 1 without.
    pub fn cluster(&self) -> u32 {
        self.group_blocks.unwrap_or(1)
    }

    /// Lines of sums that a block leaves in shared memory: lanes of a wave that share channels add theirs first.
    pub fn lines(&self, wave: u32) -> u32 {
        let sharers = if wave.is_multiple_of(self.lanes) { wave / self.lanes } else { 1 };
        (self.tile.threads / self.lanes / sharers).max(1)
    }

    /// Ways to share `across` packets out to one block for each multiprocessor, which has all the threads that a multiprocessor holds. Groups
    /// begin with a sector of memory, where rows do. For devices with clusters: those have 32 multiprocessors or more.
    pub fn all_at_once(tile: LastTile, across: u64, multiprocessors: u32) -> impl Iterator<Item = Self> {
        let tile = LastTile { threads: tile.threads * tile.resident, resident: 1, ..tile };
        [1, 2, 4].into_iter().filter_map(move |cluster| {
            let groups = clusters_at_once(multiprocessors, 1, u64::from(cluster));
            let sector = u64::from(SECTOR / tile.bytes);
            let lanes = across.div_ceil(groups).next_multiple_of(sector);
            let fits = lanes <= u64::from(tile.threads) && tile.threads <= 1024;
            fits.then_some(LastSharing { tile, lanes: lanes as u32, group_blocks: Some(cluster) })
        })
    }
}

/// Clusters of `cluster` blocks that are at work at once, where a multiprocessor has room for `resident` blocks. All blocks of a cluster lie in one
/// part of the device, of 16 multiprocessors or so, and not every part is whole: 30 clusters of 4 blocks ran at once on 132 multiprocessors,
/// and 32 did not.
pub(super) fn clusters_at_once(multiprocessors: u32, resident: u64, cluster: u64) -> u64 {
    match cluster {
        1 => u64::from(multiprocessors) * resident,
        _ => u64::from(multiprocessors / 16 * 15) * resident / cluster,
    }
}

/// What a block of the channel-first kernel does.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstTile {
    /// Bytes of a lane's positions.
    pub bytes: u32,
    /// Whether more blocks than should be resident may share a multiprocessor.
    pub crowded: bool,
    pub blocks: FirstBlocks,
}

/// The blocks of a kernel whose waves walk rows, and what they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FirstBlocks {
    /// Threads of a block, if there are that many for a channel.
    pub threads: u32,
    /// Threads that should fit on a multiprocessor: caps registers.
    pub resident_threads: u32,
    /// Another number of them, if one may be faster.
    pub more_threads: Option<u32>,
    /// Most waves for one channel.
    pub most_waves: u32,
    /// Least waves for one channel, if it has that many rows.
    pub least_waves: u32,
    pub costs: Costs,
}

/// A row of the table: the first whose limits hold is taken.
struct Rule {
    /// Largest width.
    width: i64,
    /// Most elements of x per multiprocessor.
    elements: u64,
    /// Most bytes that an access may have.
    bytes: u32,
    /// Whether it serves calls with cu_seqlens or seq_idx.
    boundaries: bool,
    tile: LastTile,
}

const ANY: u64 = u64::MAX;

const LAST: &[Rule] = &[
    // Too small to fill the device, and not for short segments.
    Rule {
        width: 8,
        elements: 8 << 10,
        bytes: 16,
        boundaries: true,
        tile: LastTile { bytes: 8, channels: 2, lanes: 8, threads: 128, resident: 1, stages: 2 },
    },
    // Narrow accesses leave registers for more threads, which then hide more latency.
    Rule {
        width: 4,
        elements: ANY,
        bytes: 2,
        boundaries: false,
        tile: LastTile { bytes: 2, channels: 1, lanes: 32, threads: 384, resident: 2, stages: 2 },
    },
    Rule {
        width: 4,
        elements: ANY,
        bytes: 4,
        boundaries: false,
        tile: LastTile { bytes: 4, channels: 2, lanes: 32, threads: 320, resident: 2, stages: 2 },
    },
    Rule {
        width: 4,
        elements: ANY,
        bytes: 16,
        boundaries: true,
        tile: LastTile { bytes: 8, channels: 4, lanes: 32, threads: 256, resident: 2, stages: 2 },
    },
    Rule {
        width: 6,
        elements: ANY,
        bytes: 16,
        boundaries: false,
        tile: LastTile { bytes: 8, channels: 4, lanes: 32, threads: 128, resident: 3, stages: 2 },
    },
    Rule {
        width: 8,
        elements: ANY,
        bytes: 16,
        boundaries: false,
        tile: LastTile { bytes: 8, channels: 2, lanes: 32, threads: 256, resident: 2, stages: 2 },
    },
    Rule {
        width: 8,
        elements: ANY,
        bytes: 16,
        boundaries: true,
        tile: LastTile { bytes: 8, channels: 2, lanes: 32, threads: 128, resident: 3, stages: 2 },
    },
];

/// What the channel-last tile depends on.
pub(super) struct LastCall {
    pub width: i64,
    /// Elements of x per multiprocessor.
    pub elements: u64,
    /// The widest legal access.
    pub bytes: u32,
    /// cu_seqlens or seq_idx is given.
    pub boundaries: bool,
    /// B or C is given.
    pub gated: bool,
    /// Part of a larger launch, in whose blocks others have norms.
    pub beside: bool,
    /// initial_states or dfinal_states are given, and the ring is in registers.
    pub states_beside_ring: bool,
    pub takes_more_registers: bool,
}

/// Rows of a chunk, the width at least. At width 3 four are faster where few chunks are masked and registers are left: in calls without
/// gates, norms and boundaries.
pub(super) fn last_rows(width: i64, seqlen: i64, plain: bool) -> u32 {
    if width < 3 || (width == 3 && plain && seqlen >= 64) { 4 } else { width as u32 }
}

/// The tile for a call.
pub(super) fn last(call: &LastCall) -> Option<LastTile> {
    let fits =
        |rule: &&Rule| call.width <= rule.width && call.elements <= rule.elements && call.bytes <= rule.bytes;
    let tile = LAST.iter().find(|rule| fits(rule) && (rule.boundaries || !call.boundaries))?.tile;
    if call.gated {
        // Up to four rows in flight, and what the sums that are finished are multiplied with.
        let channels = if call.width > 4 { tile.channels.min(2) } else { tile.channels };
        return Some(LastTile { channels, threads: 128, resident: 3, ..tile });
    }
    if call.beside {
        return Some(LastTile { threads: 128, resident: 3, ..tile });
    }
    // Masks for boundaries, or states and the ring, beside four channels.
    let crowded = call.boundaries || call.states_beside_ring;
    if call.takes_more_registers && crowded && tile.channels == 4 {
        return Some(LastTile { threads: 128, resident: 3, ..tile });
    }
    Some(tile)
}

/// Threads along dim of a block, `most` at most, for `across` packets of `bytes`: as many as share them out evenly.
pub(super) fn lanes(across: u64, most: u32, bytes: u32) -> u32 {
    let most = u64::from(most);
    let groups = across.div_ceil(most);
    // Groups that begin with a sector of memory, where rows do.
    let sector = if groups > 1 && bytes > 2 { u64::from(SECTOR / bytes) } else { 1 };
    let even = across.div_ceil(groups).next_multiple_of(sector).min(most);
    // Lanes that a wave is a multiple of add their sums without shared memory.
    let power = even.next_power_of_two();
    (if 8 * even > 7 * power { power } else { even }) as u32
}

/// Lanes of groups that some hundred channels, in so many packets, divide into without a rest. Twice as many groups have half as many blocks
/// each, whose sums are added sooner (docs/kernels/history/backward.md, "Groups of 64 channels").
pub(super) fn whole_groups(across: u64) -> Option<u32> {
    const LANES: u64 = 16;
    ((48..=320).contains(&across) && across.is_multiple_of(LANES)).then_some(LANES as u32)
}

/// Whether lanes copy rows that begin at any element together, or each what it needs. In small calls more threads count for more, and lanes
/// without channels cost more.
pub(super) fn copies_lines(dim: u64, elements: u64) -> bool {
    const LINE: u64 = 128; // channels, where a thread has four
    let full = 4 * dim >= 3 * dim.next_multiple_of(LINE);
    dim >= LINE / 2 && elements >= if full { 16 << 10 } else { 32 << 10 }
}

/// Bytes of shared memory that a block of a cluster has for what others send it (`ClusterSums` in kernels/reduction.cuh): a mailbox, and a slice
/// of the sums from each block.
pub(super) fn sent_bytes(cluster: u32, sums: u64) -> u32 {
    16 + 4 * cluster * sums.div_ceil(u64::from(cluster)) as u32
}

/// Bytes of x, dy and dx for each multiprocessor up to which all blocks may run at once. In larger calls, groups of a poor width cost more than
/// they save on sums.
pub(super) const MOST_AT_ONCE: u64 = 500 << 10;

/// A walk of the channel-last kernel: a model of the time that it takes on an H200, with which walks of one call are compared.
pub(super) struct LastWalk {
    pub blocks: u64,
    /// Blocks that the device holds at once.
    pub resident: u64,
    /// Blocks that share channels.
    pub parts: u64,
    /// Segments of a row.
    pub pieces: u64,
    /// Rows of a segment, and of a chunk.
    pub piece: u64,
    pub rows: u32,
    /// Packets are of fewer than 8 bytes, or of odd rows: a row takes what its latency is, however many blocks there are.
    pub narrow: bool,
    /// Where all blocks run at once.
    pub alone: Option<Alone>,
}

/// A block that has a multiprocessor for itself.
pub(super) struct Alone {
    /// Bytes of a row.
    pub bytes: u32,
    /// Lines of sums that it adds.
    pub lines: u32,
}

impl LastWalk {
    /// Nanoseconds of a row on a full device, and of one on a device that is nearly empty.
    const ROW: u64 = 413;
    const LEAST_ROW: u64 = 334;
    /// The latter where each multiprocessor has one block.
    const LEAST_ALONE: u64 = 360;
    /// From a block's start to its first row, and from its last row to its end.
    const START: u64 = 3500;

    /// Where entries are joined, `sequence` is their length.
    pub fn time(&self, sequence: Option<u64>) -> u64 {
        // Chunks at an end of a sequence are masked, and take about twice the time.
        let masked = sequence.map_or(0, |length| 6 * self.piece * u64::from(self.rows) / (5 * length));
        let steps = self.piece + masked;
        let round = |blocks: u64| {
            let shared = Self::ROW * blocks / self.resident;
            let row = match &self.alone {
                _ if self.narrow => shared.max(Self::ROW),
                None => shared.max(Self::LEAST_ROW),
                // Blocks that have little of a row each take longer for it.
                Some(block) => {
                    let square = u64::from(block.bytes).pow(2);
                    shared.max(Self::LEAST_ALONE) * (square + 640) / square
                }
            };
            Self::START.saturating_add(steps.saturating_mul(row))
        };
        let (full, rest) = (self.blocks / self.resident, self.blocks % self.resident);
        let last = if rest > 0 { round(rest) } else { 0 };
        round(self.resident).saturating_mul(full).saturating_add(last).saturating_add(self.sum_time())
    }

    /// Nanoseconds that the sums take. Through the workspace there is a fence and a counter, and one block reads the sums of sixteen at a time.
    /// What a cluster sends takes too little to be told, but each block has many lines of its own to add.
    fn sum_time(&self) -> u64 {
        const FENCE: u64 = 1400;
        const SIXTEEN: u64 = 390;
        const LINE: u64 = 60;
        match (&self.alone, u64::from(team(self.parts as u32))) {
            (Some(block), _) => u64::from(block.lines) * LINE,
            _ if self.parts == 1 => 0,
            (None, 0) => self.parts.div_ceil(16) * SIXTEEN + FENCE,
            (None, team) => {
                (team.div_ceil(16) + self.parts.div_ceil(team).div_ceil(16)) * SIXTEEN + FENCE + 1000
            }
        }
    }
}

/// Of the blocks that share sums, how many add theirs first (kernels/reduction.cuh); 0 where all of them at once are as fast.
pub(super) fn team(parts: u32) -> u32 {
    if parts <= 64 { 0 } else { 1 << parts.ilog2().div_ceil(2) }
}

/// Elements of x per multiprocessor from which heads are in packets of eight channels.
const WIDE_HEADS: u64 = 64 << 10;

/// The tile for a call with a norm: packets so wide that a wave holds a head, and as many threads side by side.
pub(super) fn last_of_heads(call: &LastCall, head_dim: i64, element: u32, wave: u32) -> LastTile {
    let wave = i64::from(wave);
    // Wide packets keep more bytes on their way where a call has work for the fewer threads.
    let wide =
        element == 2 && call.elements >= WIDE_HEADS && head_dim % 8 == 0 && (head_dim / 8).count_ones() == 1;
    // Wider taps leave no registers for more.
    let channels = if call.width > 4 {
        2
    } else if head_dim > 4 * wave || wide {
        8
    } else {
        4
    };
    let lanes = ((head_dim / channels) as u64).next_power_of_two().clamp(32, wave as u64) as u32;
    let resident = if channels == 8 || call.boundaries && element == 4 { 2 } else { 3 };
    LastTile { bytes: 16, channels: channels as u32, lanes, threads: 128, resident, stages: 2 }
}

/// What the channel-first tile depends on.
pub(super) struct FirstCall {
    pub width: i64,
    /// Bytes of an element.
    pub element: u32,
    pub silu: bool,
    /// Some tiles take the masked path, which needs more registers.
    pub masked: bool,
    /// B or C is given: more tensors in flight, and factors beside sums.
    pub gated: bool,
    /// States, in rows that begin or end inside a packet or in packed rows that share a wave: more registers where a packet has 8
    /// positions.
    pub crowded_states: bool,
    /// Masked by the ends of ragged rows alone, on NVIDIA's devices.
    pub only_ragged: bool,
    /// All options at once, which need even more.
    pub all_options: bool,
    /// `cu_seqlens` or `seq_idx` is given.
    pub boundaries: bool,
    pub takes_more_registers: bool,
    /// More channels than waves that are resident.
    pub overfull: bool,
}

/// The tile for a call.
pub(super) fn first(call: &FirstCall) -> FirstTile {
    let &FirstCall { width, element, silu, masked, gated, crowded_states, only_ragged, .. } = call;
    let &FirstCall { all_options, boundaries, takes_more_registers, overfull, .. } = call;
    let masks_spill = takes_more_registers && boundaries;
    // A lane needs as many positions as a halo.
    let bytes = if i64::from(16 / element) < width - 1 { 32 } else { 16 };
    // Where waves run in several rounds, channels are cut finely, so that the last round is short. What a channel costs
    // once, beside its rows, limits that.
    let least_waves = match (element, silu) {
        _ if !overfull || masked || gated || width > 4 => 1,
        (2, true) => 1,
        (2, false) => 2,
        _ => 4,
    };
    let resident_threads = match (width, masked, all_options) {
        (..=4, false, _) if gated => 384,
        _ if gated => 256,
        (..=4, false, _) if least_waves > 1 && !takes_more_registers => 768,
        (..=4, false, _) if least_waves > 1 => 640,
        (..=4, ..) if element == 2 && (!masked || only_ragged && !takes_more_registers) => 640,
        (_, _, true) => 256,
        (..=4, ..) if masks_spill && crowded_states => 256,
        // 128 registers are some too few (docs/code-objects.md).
        (..=4, ..) if crowded_states && element == 2 || masks_spill => 384,
        _ => 512,
    };
    FirstTile {
        bytes,
        // 4-byte elements: 16 waves fetch enough.
        crowded: element == 2 || least_waves > 1,
        blocks: FirstBlocks {
            threads: 128,
            resident_threads,
            more_threads: None,
            most_waves: 8,
            least_waves,
            costs: Costs { start: 20, sums: 20, sum: 3, crowding: 0, last_is_full: false },
        },
    }
}

/// Threads of a multiprocessor that walk rows; more channels than such waves do not run at once.
pub(super) const OVERFULL_THREADS: u32 = 640;

/// What rounds of a kernel's blocks take. Unit: a wave's step, the 1.5 KB of x, dy and dx that 32 lanes move by 16 bytes each, at the
/// multiprocessor's share of the memory's bandwidth: 50 ns on an H200.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Costs {
    /// From a block's start to its first step, and from its last step to its end.
    pub start: u64,
    /// To add the sums of several blocks, beside `sum` for each of them: the last one reads those of four at a time.
    pub sums: u64,
    pub sum: u64,
    /// Tenths of a step that a wave takes longer for each one beside it, from 16 on.
    pub crowding: u64,
    /// The last one of several rounds takes as long as a full one, however few blocks it has.
    pub last_is_full: bool,
}

/// A grid of equal blocks on a device: a model of what it takes, in tenths of a step.
struct Grid {
    multiprocessors: u64,
    /// Blocks of a multiprocessor.
    resident: u64,
    /// Waves of a block.
    waves: u64,
    costs: Costs,
}

impl Grid {
    /// `parts` blocks for each of `groups` groups of channels. Each of their `walkers` walks one of `jobs` pieces after the other, `steps`
    /// steps each; where they cannot share these out evenly, some have no last one, and the others are alone then.
    fn time(&self, groups: u64, parts: u64, walkers: u64, jobs: u64, steps: u64) -> u64 {
        /// Waves of a multiprocessor that take as long for a step as one alone.
        const LATENCY: u64 = 16;
        let Costs { start, sums, sum, crowding, last_is_full } = self.costs;
        let slots = self.multiprocessors * self.resident;
        let (full, rest) = (groups * parts / slots, groups * parts % slots);
        let each = jobs.div_ceil(walkers);
        let step = |waves: u64| 10 * waves.max(LATENCY) + crowding * waves.saturating_sub(LATENCY);
        // Saturates: no call that fits in memory has so many steps.
        let round = |resident: u64| {
            let waves = resident * self.waves;
            let last = waves * (jobs - (each - 1) * walkers) / walkers;
            steps.saturating_mul((each - 1) * step(waves) + step(last)).saturating_add(10 * start)
        };
        let last = match rest {
            0 => 0,
            _ if last_is_full && full > 0 => round(self.resident),
            _ => round(rest.div_ceil(self.multiprocessors)),
        };
        let split = if parts > 1 { 10 * (sums + sum * parts) } else { 0 };
        round(self.resident).saturating_mul(full).saturating_add(last).saturating_add(split)
    }
}

/// Rows that waves walk, to be shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Walk {
    pub blocks: FirstBlocks,
    pub multiprocessors: u64,
    /// Lanes of a wave.
    pub wave: u64,
    pub dim: u64,
    pub batch: u64,
    /// Rows that share a wave.
    pub rows_at_once: u64,
    /// Tiles of a row.
    pub tiles: u64,
    /// Pieces that a row may be cut into.
    pub most_pieces: u64,
}

/// Who walks them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// Threads that should fit on a multiprocessor.
    pub resident_threads: u32,
    /// Waves of a channel in a block, a power of two.
    pub waves: u64,
    /// Of a block.
    pub threads: u32,
    /// Channels of a block.
    pub group_channels: u64,
    pub channel_groups: u64,
    /// Blocks of a channel.
    pub parts: u64,
    /// Pieces of a row.
    pub pieces: u64,
}

/// The shares that take least by the model of a grid.
pub(super) fn shares(walk: &Walk) -> Shares {
    thread_local! {
        static SHARES: Kept<Walk, Shares> = const { Kept::new() };
    }
    SHARES.with(|kept| {
        kept.get(*walk, || {
            let FirstBlocks { resident_threads, more_threads, .. } = walk.blocks;
            let ways = std::iter::once(resident_threads).chain(more_threads);
            candidates::least(ways.flat_map(|threads| walk.shares(threads)))
                .expect("one wave is always tried")
        })
    })
}

impl Walk {
    /// Ways to share the rows out to blocks of which as many are resident as have `resident_threads`, and what each takes.
    fn shares(&self, resident_threads: u32) -> Vec<(u64, Shares)> {
        /// Rounds of blocks that a device may have, beside one block for each group of channels.
        const ROUNDS: [u64; 7] = [0, 1, 2, 3, 4, 6, 9];
        let &Walk { blocks, multiprocessors, wave, dim, batch, rows_at_once, most_pieces, .. } = self;
        let most_jobs = batch.div_ceil(rows_at_once) * most_pieces;
        let most_waves = u64::from(blocks.most_waves).min(most_jobs);
        let mut found = Vec::new();
        for waves in [1, 2, 4, 8].into_iter().filter(|&waves| waves <= most_waves) {
            if waves < u64::from(blocks.least_waves).min(1 << most_jobs.ilog2()) {
                continue;
            }
            let threads = (waves * wave).max(u64::from(blocks.threads));
            let resident = (u64::from(resident_threads) / threads).max(1);
            let group_channels = threads / wave / waves;
            let channel_groups = dim.div_ceil(group_channels);
            let grid = Grid { multiprocessors, resident, waves: threads / wave, costs: blocks.costs };
            let mut tried = 0;
            for rounds in ROUNDS {
                let parts =
                    (rounds * multiprocessors * resident / channel_groups).clamp(1, most_jobs / waves);
                if parts == tried {
                    continue;
                }
                tried = parts;
                let walkers = waves * parts * rows_at_once;
                // With many rows per walker, whole rows divide evenly enough.
                for jobs in 1..=if batch >= 4 * walkers { 1 } else { 4 } {
                    let pieces = (jobs * walkers / batch).clamp(1, most_pieces);
                    let share = |parts| Shares {
                        resident_threads,
                        waves,
                        threads: threads as u32,
                        group_channels,
                        channel_groups,
                        parts,
                        pieces,
                    };
                    let each = (batch * pieces).div_ceil(walkers);
                    // Either `parts` blocks, if every wave gets a piece, or the fewest blocks that leave the longest wave no more pieces.
                    let fewer = (batch * pieces).div_ceil(each * waves * rows_at_once);
                    if fewer < parts && batch * pieces >= walkers {
                        found.push((self.time(&grid, &share(parts)), share(parts)));
                    }
                    found.push((self.time(&grid, &share(fewer)), share(fewer)));
                    if pieces == most_pieces {
                        break;
                    }
                }
            }
        }
        found
    }

    fn time(&self, grid: &Grid, shares: &Shares) -> u64 {
        /// Steps that a piece costs beside its tiles where rows are cut: halos on both sides.
        const HALOS: u64 = 1;
        let &Shares { waves, channel_groups, parts, pieces, .. } = shares;
        let steps = self.tiles.div_ceil(pieces) + if pieces > 1 { HALOS } else { 0 };
        grid.time(channel_groups, parts, waves * parts * self.rows_at_once, self.batch * pieces, steps)
    }
}

/// Shared memory that a multiprocessor sets aside for each block.
pub(super) const SHARED_RESERVED: u32 = 1 << 10;

/// What a block of the general kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct General {
    /// Threads of a block.
    pub threads: u32,
    /// Channels of a tile.
    pub channels: u32,
    /// Positions of a tile.
    pub positions: u32,
    /// Threads that share a sum.
    pub slices: u32,
    /// Shared memory.
    pub shared_bytes: u32,
}

/// The largest of a few tiles whose shared memory every device grants without asking.
pub(super) fn general(width: i64, dim_fastest: bool) -> General {
    const THREADS: u32 = 256;
    const GRANTED: u32 = 48 << 10;
    let along_dim = [(32, 64), (16, 64), (8, 64), (4, 64), (2, 64)];
    let along_seqlen = [(4, 256), (4, 128), (2, 128), (2, 64), (1, 64)];
    let shapes: [(u32, u32); 5] = if dim_fastest { along_dim } else { along_seqlen };
    let tile = |(channels, positions): (u32, u32)| {
        let width = width as u32;
        let sums = channels * (width + 1);
        let slices = (THREADS / sums).max(1);
        let span = positions + 2 * (width - 1);
        // x and g per channel, weights, sums, four tables of places, a flag: as the kernel lays them out.
        let words = 2 * channels * (span | 1) + channels * width + slices * sums + 4 * span + 1;
        General { threads: THREADS, channels, positions, slices, shared_bytes: words * 4 }
    };
    let smallest = tile(shapes[shapes.len() - 1]);
    shapes.into_iter().map(tile).find(|tile| tile.shared_bytes <= GRANTED).unwrap_or(smallest)
}
