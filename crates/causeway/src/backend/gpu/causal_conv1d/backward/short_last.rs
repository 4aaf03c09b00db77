//! The backward planner of small calls where neighbouring channels are neighbours in memory: short segments of rows.

use super::super::{Constants, kernel, weight_access};
use super::{BackwardArguments, Launch, Planner, tiles};
use crate::causal_conv1d::Sizes;

kernel!(SHORT_LAST, "backward_short_last", "backward_short_last", BackwardArguments);

impl Planner<'_> {
    /// Segments of a few rows, for a call too small to fill the device; packets of at most `legal` channels.
    pub(super) fn short_last(&self, legal: u32) -> Option<Launch> {
        let clusters = self.largest_cluster() > 1;
        let (tile, cut) = self.short_tile(legal);
        if clusters && last_round_is_empty(self.elements_per_multiprocessor(), cut.steps, cut.threads) {
            return None;
        }
        let Cut { channels, lanes, groups, pieces, cluster, .. } = cut;
        let (channel_groups, threads) = (u32::try_from(groups).ok()?, cut.threads as u32);
        let segments = self.sizes.batch as u64 * pieces;
        let parts = if clusters { cluster } else { segments.div_ceil(u64::from(threads / lanes)) };

        let sums = u64::from(lanes * channels) * self.sums_per_channel();
        // A flag, or what the blocks of a cluster send; sums of each wave.
        let sent = if cluster > 1 { tiles::sent_bytes(cluster as u32, sums) } else { 16 };
        let shared_bytes = sent + threads / self.facts.wave_size * sums as u32 * 4;
        Some(Launch {
            kernel: &SHORT_LAST,
            tile: Constants::new("Tile")
                .int("threads", threads)
                .int("lanes", lanes)
                .int("channels", channels)
                .int("rows", tile.rows)
                .int("cluster", cluster)
                .int("weight_bytes", weight_access(&self.op.weight, channels, channels)),
            threads,
            resident: 1,
            cluster: cluster as u32,
            early: false,
            joins: false,
            keeps_together: false,
            shared_bytes,
            sums,
            channel_groups,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(pieces).ok()?,
            piece: tile.rows,
            tile_channels: 0,
            slices: 0,
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// The tile of a call with packets of at most `legal` channels, and its cut.
    fn short_tile(&self, legal: u32) -> (Tile, Cut) {
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        let (largest, elements) = (self.largest_cluster(), self.elements_per_multiprocessor());
        let tile = |channels, lanes, rows, threads| Tile { channels, lanes, rows, threads, most_blocks: 8 };
        let sixteen = |tile| Tile { most_blocks: largest.min(16), ..tile };
        let tile = match (largest, batch * seqlen) {
            // Two rows keep AMD's scalar registers; large blocks keep the sums over them few.
            (..=1, ..=128) => tile(1, 4, 2, (128, 128)),
            (..=1, ..=1024) => tile(2, 4, 2, (128, 128)),
            (..=1, _) => tile(2, 4, 2, (512, 512)),
            // So few rows that a step fewer counts for more than wider packets.
            (_, ..=128) if elements <= 512 => tile(1, 8, 1, (64, 512)),
            (_, ..=1024) if elements <= 512 => tile(1, 8, 4, (64, 512)),
            (_, ..=1024) if elements <= 2560 => sixteen(tile(2, 8, 4, (64, 512))),
            // Narrower groups use half of each sector of 32 bytes, but without them there are 64 blocks at most.
            (16.., 2049..) if dim < 64 => sixteen(tile(2, 4, 8, (64, 512))),
            (16.., 2049..) if dim < 128 => sixteen(tile(2, 8, 8, (64, 512))),
            (_, 2049..) if dim < 128 => tile(2, 4, 8, (64, 512)),
            (_, _) => return self.widened(sixteen(tile(2, 8, 8, (64, 256))), legal),
        };
        (tile, self.cut(&tile, legal))
    }

    /// A tile, or one with wider and so fewer groups of channels: a second round of clusters takes as long as the first.
    fn widened(&self, tile: Tile, legal: u32) -> (Tile, Cut) {
        let cut = self.cut(&tile, legal);
        let waits = cut.groups >= self.clusters_at_once(&cut);
        if waits && legal >= 4 && cut.steps <= cut.threads {
            // Of four channels to a thread, registers leave room for few large blocks.
            let wide = Tile { channels: 4, ..tile };
            let cut = self.cut(&wide, legal);
            if cut.threads <= 128 {
                return (wide, cut);
            }
        }
        if waits || cut.groups >= MANY_GROUPS {
            let wide = Tile { lanes: 16, ..tile };
            return (wide, self.cut(&wide, legal));
        }
        (tile, cut)
    }

    fn cut(&self, tile: &Tile, legal: u32) -> Cut {
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        let channels = legal.min(tile.channels);
        let across = (dim as u64).div_ceil(u64::from(channels));
        let lanes = across.next_power_of_two().min(u64::from(tile.lanes)) as u32;
        let groups = across.div_ceil(u64::from(lanes));
        let pieces = (seqlen as u64).div_ceil(u64::from(tile.rows));
        let segments = batch as u64 * pieces;
        // As many blocks for a group as give each multiprocessor 1024 threads.
        let blocks = u64::from(self.facts.multiprocessors) * 1024 / tile.threads.1;
        let most = (blocks / groups).max(1).min(tile.most_blocks).min(segments);
        let cluster = if self.largest_cluster() > 1 { 1 << most.ilog2() } else { 1 };
        let steps = segments.div_ceil(cluster) * u64::from(lanes);
        let threads = steps.next_power_of_two().clamp(tile.threads.0, tile.threads.1);
        Cut { channels, lanes, groups, pieces, cluster, steps, threads }
    }

    /// Clusters of a cut with two channels to a thread that are at work at once: each in one part of the device, of 16 multiprocessors.
    fn clusters_at_once(&self, cut: &Cut) -> u64 {
        // With SiLU.
        let registers = if self.sizes.width > 3 { 104 } else { 80 };
        let resident = u64::from(self.facts.registers_per_multiprocessor) / (registers * cut.threads);
        u64::from(self.facts.multiprocessors / 16) * (16 * resident / cut.cluster)
    }
}

/// What a block of the short channel-last kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    /// Most channels of a thread.
    channels: u32,
    /// Most threads along dim, a power of two.
    lanes: u32,
    /// Rows of a segment.
    rows: u32,
    /// Fewest and most threads of a block.
    threads: (u64, u64),
    /// Most blocks of a channel group, where they form a cluster.
    most_blocks: u64,
}

/// Elements of x per multiprocessor up to which the short channel-last kernel is faster than the walk.
pub(super) const SHORT: u64 = 8 << 10;

/// The same where clusters add the sums, by the channels of a row and of a packet: few groups of channels leave a part of the device idle,
/// and a walk of narrow packets is slow.
pub(super) fn most(dim: i64, legal: u32) -> u64 {
    match (legal, dim) {
        (2, 128..) => SHORT * 5 / 2,
        (3.., 128..) => SHORT * 2,
        (2, 64..) => SHORT * 3 / 2,
        _ => SHORT,
    }
}

/// Whether the walk is faster, in a larger call, than rounds of `threads` for `steps` of them: if little is left for the last round.
fn last_round_is_empty(elements: u64, steps: u64, threads: u64) -> bool {
    elements > SHORT && steps > threads && 10 * steps < 7 * steps.next_multiple_of(threads)
}

/// How a tile cuts a call.
struct Cut {
    channels: u32,
    lanes: u32,
    /// Groups of channels.
    groups: u64,
    /// Segments of a row.
    pieces: u64,
    /// Blocks of a group that form a cluster; 1 without clusters.
    cluster: u64,
    /// Segments of a block times lanes: threads that it would take to have them all at once.
    steps: u64,
    threads: u64,
}

/// Groups of channels from which twice as wide ones are faster: each has clusters enough.
const MANY_GROUPS: u64 = 26;
