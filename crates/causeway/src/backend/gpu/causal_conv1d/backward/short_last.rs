//! The backward planner of small calls where neighbouring channels are neighbours in memory: short segments of rows.

use super::super::{Constants, kernel, weight_access};
use super::{BackwardArguments, Launch, LaunchBounds, Planner, tiles};
use crate::backend::gpu::candidates::{self, Kept};
use crate::causal_conv1d::{Activation, Sizes};
use crate::tensor::DType;

kernel!(SHORT_LAST, "backward_short_last", "backward_short_last", BackwardArguments);

impl Planner<'_> {
    /// Segments of a few rows, for a call too small to fill the device; packets of at most `legal` channels.
    pub(super) fn short_last(&self, legal: u32) -> Option<Launch> {
        let clusters = self.largest_cluster() > 1;
        let cut = self.short_cut(legal);
        let Cut { channels, lanes, rows, groups, pieces, cluster, .. } = cut;
        let (channel_groups, threads) = (u32::try_from(groups).ok()?, cut.threads as u32);
        let segments = self.sizes.batch as u64 * pieces;
        let parts = if clusters { cluster } else { segments.div_ceil(u64::from(threads / lanes)) };

        let sums = u64::from(lanes * channels) * self.sums_per_channel();
        // A flag, or what the blocks of a cluster send; sums of each wave.
        let sent = if cluster > 1 { tiles::sent_bytes(cluster as u32, sums) } else { 16 };
        let shared_bytes = sent + threads / self.facts.wave_size * sums as u32 * 4;
        let tile = Constants::new("Tile")
            .int("threads", threads)
            .int("lanes", lanes)
            .int("channels", channels)
            .int("rows", rows)
            .int("cluster", cluster)
            .int("weight_bytes", weight_access(&self.op.weight, channels, channels));
        let bounds = LaunchBounds { cluster: cluster as u32, ..LaunchBounds::new(threads, 1) };
        Some(Launch {
            shared_bytes,
            sums,
            channel_groups,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(pieces).ok()?,
            piece: rows,
            ..Launch::new(&SHORT_LAST, tile, bounds)
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Elements of x per multiprocessor up to which this kernel is faster than the walk.
    pub(super) fn most_short_elements(&self, legal: u32) -> u64 {
        let (dim, cluster) = (self.sizes.dim, self.largest_cluster());
        if cluster == 1 {
            return SHORT;
        }
        let costly = self.op.activation == Activation::Silu && self.sizes.width > 3;
        let blocks = (dim as u64).div_ceil(8) * cluster;
        most_elements(dim, legal, self.element(), costly)
            .min(OF_A_BLOCK * blocks / u64::from(self.facts.multiprocessors))
    }

    /// How a call is cut, with packets of at most `legal` channels.
    fn short_cut(&self, legal: u32) -> Cut {
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        let (largest, elements) = (self.largest_cluster(), self.elements_per_multiprocessor());
        let tile = |channels, lanes, rows, threads| Tile { channels, lanes, rows, threads, most_blocks: 8 };
        let sixteen = |tile| Tile { most_blocks: largest, ..tile };
        let tile = match (largest, batch * seqlen) {
            // Two rows keep AMD's scalar registers; large blocks keep the sums over them few.
            (..=1, ..=128) => tile(1, 4, 2, (128, 128)),
            (..=1, ..=1024) => tile(2, 4, 2, (128, 128)),
            (..=1, _) => tile(2, 4, 2, (512, 512)),
            // So few rows that a step fewer counts for more than wider packets.
            (_, ..=128) if elements <= 512 => tile(1, 8, 1, (64, 512)),
            (_, ..=1024) if elements <= 512 => tile(1, 8, 4, (64, 512)),
            (_, ..=1024) if elements <= 1200 => sixteen(tile(2, 8, 4, (64, 512))),
            // Narrower groups use half of each sector of 32 bytes, but without them there are 64 blocks at most.
            (16.., 2049..) if dim < 64 => sixteen(tile(2, 4, 8, (64, 512))),
            (..16, 2049..) if dim < 128 => tile(2, 4, 8, (64, 512)),
            (_, _) => return self.eight_rows(legal.min(2)).cut(),
        };
        self.cut(&tile, legal)
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
        // All segments of a block at once, if there are not too many.
        let wanted = segments.div_ceil(cluster) * u64::from(lanes);
        let threads = wanted.next_power_of_two().clamp(tile.threads.0, tile.threads.1);
        Cut { channels, lanes, rows: tile.rows, groups, pieces, cluster, threads }
    }

    /// A call in segments of eight rows.
    fn eight_rows(&self, channels: u32) -> EightRows {
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        EightRows {
            channels,
            across: (dim as u64).div_ceil(u64::from(channels)),
            pieces: (seqlen as u64).div_ceil(ROWS),
            batch: batch as u64,
            multiprocessors: self.facts.multiprocessors,
            resident_threads: u64::from(self.facts.registers_per_multiprocessor) / self.registers(channels),
            largest_cluster: self.largest_cluster(),
        }
    }

    /// Registers of a thread with segments of eight rows, in whole eights, as sm_90a has them and sm_100 nearly.
    fn registers(&self, channels: u32) -> u64 {
        let (silu, wide) = (self.op.activation == Activation::Silu, self.sizes.width > 3);
        let plain = match (channels, silu, wide, self.op.x.dtype()) {
            (1, ..) | (_, false, false, _) => 64,
            (_, false, true, DType::F32) => 80,
            (_, false, true, _) => 72,
            (_, true, false, DType::F32) => 112,
            (_, true, false, _) => 80,
            (_, true, true, DType::BF16) => 96,
            (_, true, true, DType::F32) => 120,
            (_, true, true, _) => 112,
        };
        if self.meets_states() { (plain + 32).min(128) } else { plain }
    }
}

/// Rows of a segment where there are more than a few.
const ROWS: u64 = 8;

/// What the cut of a call into segments of eight rows depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct EightRows {
    /// Of a packet.
    channels: u32,
    /// Packets of all channels.
    across: u64,
    /// Segments of an entry.
    pieces: u64,
    batch: u64,
    multiprocessors: u32,
    /// Threads for which a multiprocessor has registers.
    resident_threads: u64,
    largest_cluster: u64,
}

impl EightRows {
    /// The cut that takes least time.
    fn cut(self) -> Cut {
        thread_local! {
            static CUTS: Kept<EightRows, Cut> = const { Kept::new() };
        }
        CUTS.with(|cuts| {
            cuts.get(self, || {
                candidates::least(self.ways()).expect("a block for each group is always possible")
            })
        })
    }

    /// Ways to cut the call, and what each takes, in twentieths of a step of a small block that has a multiprocessor for itself. The figures were
    /// fitted on an H200 (docs/kernels/history/backward.md#cuts-of-small-calls).
    fn ways(self) -> impl Iterator<Item = (u64, Cut)> {
        /// Threads of a block, and what a step of theirs takes.
        const BLOCKS: [(u64, u64); 4] = [(64, 20), (128, 20), (256, 21), (512, 28)];
        /// So many threads of a multiprocessor, above 256, make a step longer by one.
        const CROWD: u64 = 46;
        /// Blocks of a cluster, and what they take beside their steps.
        const CLUSTERS: [(u64, u64); 5] = [(1, 0), (2, 0), (4, 0), (8, 2), (16, 5)];
        /// Threads along dim, what they take once, and in each step.
        const LANES: [(u64, u64, u64); 2] = [(8, 5, 3), (16, 0, 0)];
        /// Channels up to which 16 threads along dim would leave too few blocks.
        const FEW_CHANNELS: u64 = 160;
        /// What it takes that there are blocks for half of the multiprocessors; twice that for a quarter, and so on.
        const FEW_BLOCKS: u64 = 4;

        let Self { channels, pieces, .. } = self;
        let segments = self.batch * pieces;
        let few_channels = self.across * u64::from(channels) <= FEW_CHANNELS;
        let lanes = LANES.into_iter().take(if few_channels { 1 } else { 2 });
        let most_blocks = self.largest_cluster.min(segments).max(1);
        let clusters = CLUSTERS.into_iter().filter(move |&(cluster, _)| cluster <= most_blocks);
        let blocks = clusters.flat_map(|cluster| BLOCKS.map(|block| (cluster, block)));
        blocks.flat_map(move |((cluster, sends), (threads, small_step))| {
            let resident = (self.resident_threads / threads).max(1);
            let at_once = tiles::clusters_at_once(self.multiprocessors, resident, cluster);
            let places = cluster * tiles::clusters_at_once(self.multiprocessors, 1, cluster);
            lanes.clone().map(move |(most_lanes, narrow, narrow_step)| {
                let lanes = self.across.next_power_of_two().min(most_lanes);
                let groups = self.across.div_ceil(lanes);
                let steps = (segments.div_ceil(cluster) * lanes).div_ceil(threads);
                let crowd = (groups * cluster).div_ceil(places).min(resident) * threads;
                let step = small_step + narrow_step + crowd.saturating_sub(256) / CROWD;
                let few = u64::from(self.multiprocessors) / (2 * groups * cluster);
                // A second round of clusters takes as long as the first.
                let rounds = groups.div_ceil(at_once);
                let time = rounds * steps * step + sends + narrow + few * FEW_BLOCKS;
                let rows = ROWS as u32;
                (time, Cut { channels, lanes: lanes as u32, rows, groups, pieces, cluster, threads })
            })
        })
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
const SHORT: u64 = 8 << 10;

/// The same where clusters add the sums, by the number of channels and those of a packet: few groups of channels leave a part of the device idle,
/// and a walk of narrow packets is slow. A call is `costly` that computes SiLU of four taps. In f32 the walk moves twice the bytes as fast.
fn most_elements(dim: i64, legal: u32, element: u32, costly: bool) -> u64 {
    match (legal, dim) {
        (2, 128..) if !costly => SHORT * 5 / 2,
        (3.., 128..) if element == 4 => SHORT,
        (3.., 128..) if !costly => SHORT * 2,
        (2, 64..) | (3.., 128..) => SHORT * 3 / 2,
        _ => SHORT,
    }
}

/// Elements of x for each block up to which few blocks are faster than a walk on the whole device: 8 channels have one cluster
/// (docs/kernels/history/backward.md, "Few channels").
const OF_A_BLOCK: u64 = 10 << 10;

/// How a call is cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    channels: u32,
    lanes: u32,
    rows: u32,
    /// Groups of channels.
    groups: u64,
    /// Segments of a row.
    pieces: u64,
    /// Blocks of a group that form a cluster; 1 without clusters.
    cluster: u64,
    threads: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_has_a_thread_for_every_channel_and_fits_its_device() {
        for (multiprocessors, largest_cluster) in [(32, 8), (114, 8), (132, 16), (148, 16)] {
            for resident_threads in [0, 500, 682, 1024] {
                for (batch, channels, across, pieces) in [
                    (1, 1, 1, 1),
                    (1, 2, 2, 3),
                    (3, 1, 80, 5),
                    (7, 2, 81, 17),
                    (1, 2, 70_001, 9),
                    (70_000, 2, 8, 2_000_000),
                ] {
                    let call = EightRows {
                        channels,
                        across,
                        pieces,
                        batch,
                        multiprocessors,
                        resident_threads,
                        largest_cluster,
                    };
                    let ways: Vec<_> = call.ways().collect();
                    assert!(!ways.is_empty());
                    for (time, cut) in ways {
                        assert!(time > 0 && cut.groups * u64::from(cut.lanes) >= across, "{call:?}: {cut:?}");
                        assert!((cut.groups - 1) * u64::from(cut.lanes) < across, "{call:?}: {cut:?}");
                        assert!(
                            cut.lanes.is_power_of_two() && cut.threads.is_multiple_of(u64::from(cut.lanes))
                        );
                        assert!(cut.cluster <= largest_cluster.min(batch * pieces), "{call:?}: {cut:?}");
                    }
                }
            }
        }
    }
}
