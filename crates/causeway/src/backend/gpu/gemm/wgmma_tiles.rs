//! Which tile a product on Hopper's matrix units gets.
//!
//! The time of a launch is estimated in clocks of a multiprocessor,
//!
//! ```text
//! rounds · (steps · step + tail)        rounds = ⌈tiles / what runs at a time⌉, a step is 64 terms
//! ```
//!
//! and the tile with the least is taken. `step` and `tail` were fitted to measurements on an H200; see
//! docs/kernels/gemm-wgmma.md.

use crate::backend::gpu::plan::DeviceFacts;

/// A tile and the pipeline that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub rows: u32,
    pub columns: u32,
    /// Stages of the ring.
    pub stages: u32,
    /// Buffers of 16 rows × 64 columns that a warp stores through.
    pub staging: u32,
    /// Raw stages, and warps that align, where lines of operands begin anywhere.
    pub raw_stages: u32,
    pub aligners: u32,
    /// Clocks of a step.
    step: u64,
    /// Clocks of what comes before and after the steps of a tile.
    tail: u64,
}

/// How the blocks of a cluster work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Blocks on their own.
    None,
    /// Two blocks side by side share their rows of the left operand.
    ShareLeft,
    /// This many blocks each sum a part of the terms of one tile.
    Split(u32),
}

impl Cluster {
    /// Blocks.
    pub fn blocks(self) -> u32 {
        match self {
            Cluster::None => 1,
            Cluster::ShareLeft => 2,
            Cluster::Split(parts) => parts,
        }
    }
}

/// Operands that the copy engine takes as they are.
const DIRECT: &[Tile] = &[
    tile(128, 256, 4, 2, 1040, 1500),
    tile(128, 192, 4, 2, 800, 1200),
    tile(128, 128, 6, 2, 600, 900),
    tile(128, 64, 8, 2, 400, 600),
    tile(64, 128, 6, 2, 420, 600),
    tile(64, 64, 8, 2, 270, 400),
];

/// At least one operand whose lines begin anywhere: bound by the warps that align, of which there are as many as the
/// registers allow.
const BY_LINES: &[Tile] = &[
    Tile { raw_stages: 3, aligners: 7, ..tile(128, 128, 3, 1, 2300, 3000) },
    Tile { raw_stages: 4, aligners: 7, ..tile(64, 64, 6, 2, 1100, 1000) },
];

/// What a split adds to a tile's tail, in clocks: two barriers of the cluster and the sums' way through shared memory.
const SPLIT: u64 = 4500;

const fn tile(rows: u32, columns: u32, stages: u32, staging: u32, step: u64, tail: u64) -> Tile {
    Tile { rows, columns, stages, staging, raw_stages: 0, aligners: 0, step, tail }
}

/// The tile and cluster for a result of `rows` × `columns` and sums over `steps` · 64 terms.
pub(super) fn choose(
    rows: u64,
    columns: u64,
    steps: u64,
    by_lines: bool,
    facts: &DeviceFacts,
) -> (Tile, Cluster) {
    let candidates = if by_lines { BY_LINES } else { DIRECT };
    let clusters =
        [Cluster::ShareLeft, Cluster::None, Cluster::Split(2), Cluster::Split(4), Cluster::Split(8)];
    let choices = candidates.iter().flat_map(|tile| clusters.map(|cluster| (*tile, cluster)));
    let possible = choices.filter(|(tile, cluster)| match cluster {
        Cluster::None => true,
        // Each loads half of the rows, 64 at least.
        Cluster::ShareLeft => !by_lines && tile.rows >= 128 && columns > u64::from(tile.columns),
        // The sums take the place of the stages, and every block has terms to sum.
        Cluster::Split(parts) => tile.columns <= 128 && steps >= u64::from(*parts),
    });
    let fastest = possible.min_by_key(|(tile, cluster)| clocks(rows, columns, steps, tile, *cluster, facts));
    fastest.expect("the first tile is always possible, on its own")
}

fn clocks(rows: u64, columns: u64, steps: u64, tile: &Tile, cluster: Cluster, facts: &DeviceFacts) -> u64 {
    let blocks = u64::from(cluster.blocks());
    let across = columns.div_ceil(u64::from(tile.columns));
    let down = rows.div_ceil(u64::from(tile.rows));
    // A cluster lies within one of the groups that multiprocessors come in, whose sizes leave some over.
    let usable = match blocks {
        1 | 2 => u64::from(facts.multiprocessors),
        4 => u64::from(facts.multiprocessors) * 6 / 7,
        _ => u64::from(facts.multiprocessors) * 3 / 4,
    };
    let at_a_time = (usable / blocks).max(1);
    match cluster {
        Cluster::None => (down * across).div_ceil(at_a_time) * (steps * tile.step + tile.tail) * 51 / 50,
        Cluster::ShareLeft => {
            (down * across.div_ceil(2)).div_ceil(at_a_time) * (steps * tile.step + tile.tail)
        }
        Cluster::Split(_) => {
            (down * across).div_ceil(at_a_time) * (steps.div_ceil(blocks) * tile.step + tile.tail + SPLIT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(rows: u64, columns: u64, terms: u64) -> (u32, u32, Cluster) {
        let (tile, cluster) = choose(rows, columns, terms.div_ceil(64), false, &DeviceFacts::h200());
        (tile.rows, tile.columns, cluster)
    }

    #[test]
    fn large_products_take_the_largest_tile() {
        for size in [2048, 4096, 8192] {
            assert_eq!(chosen(size, size, size), (128, 256, Cluster::ShareLeft), "{size}");
        }
    }

    #[test]
    fn small_products_take_tiles_that_fill_the_device() {
        assert_eq!(chosen(1024, 1024, 1024), (128, 64, Cluster::ShareLeft));
        assert_eq!(chosen(1536, 1536, 1536), (128, 192, Cluster::ShareLeft));
        assert_eq!(chosen(512, 512, 512).0, 64);
    }

    #[test]
    fn few_outputs_with_long_sums_are_split() {
        assert_eq!(chosen(64, 4096, 4096), (64, 64, Cluster::Split(2)));
        assert_eq!(chosen(64, 64, 4096).2, Cluster::Split(8));
        // As many parts as there are steps, at most.
        assert_eq!(chosen(64, 64, 64).2, Cluster::None);
    }
}
