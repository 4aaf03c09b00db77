//! Which tile a product on Hopper's matrix units gets.
//!
//! The time of a launch is estimated in clocks of a multiprocessor,
//!
//! ```text
//! rounds · (steps · step + tail)        rounds = ⌈tiles / what runs at a time⌉, a step is 64 terms
//! ```
//!
//! and the tile with the least is taken. `step` and `tail` were fitted to measurements on an H200; see
//! docs/kernels/history/gemm-wgmma.md. The last round is seldom full; where its tiles are long, clusters share them.

use std::cell::Cell;
use std::hash::BuildHasher;

use rustc_hash::FxBuildHasher;

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
    /// How the right operand has to lie, if that matters: true if its columns are side by side. They come in blocks of 64
    /// then, so a tile that is no multiple as wide takes more room and more traffic.
    right_row_major: Option<bool>,
    /// Clocks of a step.
    step: u64,
    /// Clocks of what comes before and after the steps of a tile.
    tail: u64,
}

impl Tile {
    /// Columns that a warp stores at a time.
    pub fn stored_columns(&self) -> u32 {
        [64, 48, 32]
            .into_iter()
            .find(|columns| self.columns.is_multiple_of(*columns))
            .expect("a multiple of 16")
    }

    /// Lines of 64 terms that a stage has for the right operand.
    pub fn right_lines(&self, row_major: bool) -> u32 {
        if row_major { self.columns.next_multiple_of(64) } else { self.columns }
    }
}

/// What is known of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Operands {
    /// At least one has lines that begin anywhere.
    pub by_lines: bool,
    /// The columns of the right one are side by side.
    pub right_row_major: bool,
    /// Lines of at least one begin within cache lines.
    pub straddle: bool,
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

    /// Tiles side by side that its blocks compute.
    pub fn across(self) -> u32 {
        if self == Cluster::ShareLeft { 2 } else { 1 }
    }
}

/// Operands that TMA takes as they are.
const DIRECT: &[Tile] = &[
    tile(128, 256, 4, 2, 1040, 1500),
    tile(128, 224, 4, 2, 960, 1350),
    tile(128, 192, 4, 2, 800, 1200),
    tile_where(true, tile(128, 160, 4, 2, 750, 1050)),
    tile_where(false, tile(128, 160, 5, 2, 690, 1050)),
    tile_where(false, tile(128, 144, 5, 2, 645, 1000)),
    tile(128, 128, 6, 2, 600, 900),
    tile(128, 64, 8, 2, 400, 600),
    tile(64, 128, 8, 2, 380, 600),
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
    Tile { rows, columns, stages, staging, raw_stages: 0, aligners: 0, right_row_major: None, step, tail }
}

/// A tile for right operands of one layout.
const fn tile_where(right_row_major: bool, tile: Tile) -> Tile {
    Tile { right_row_major: Some(right_row_major), ..tile }
}

/// Clocks in which the warps of a block write or read the sums of a tile, per column: 512 bytes for 128 rows.
const SUMS_PER_COLUMN: u64 = 10;

/// Clocks that a workspace costs: its allocation, and the way to the L2 cache, three times.
const HANDOVER: u64 = 8000;

/// Pieces of every tile of the rest that are tried.
const PIECES: std::ops::RangeInclusive<u64> = 2..=8;

/// Least steps of a piece.
const RUN: u64 = 4;

/// Of a result, in units of what a cluster computes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    pub down: u64,
    pub across: u64,
}

impl Tiles {
    fn new(rows: u64, columns: u64, tile: &Tile, cluster: Cluster) -> Self {
        let across = columns.div_ceil(u64::from(tile.columns * cluster.across()));
        Tiles { down: rows.div_ceil(u64::from(tile.rows)), across }
    }

    pub fn count(self) -> u64 {
        self.down * self.across
    }
}

/// The last tiles, fewer than there are clusters, when several clusters sum a tile in pieces.
///
/// Clusters that share rows or columns should read the same terms at the same time. So as many clusters as there are
/// tiles take a first piece each, and the others take all other pieces in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rest {
    pub tiles: u64,
    /// Of each tile.
    pub pieces: u64,
    /// Steps of the first piece.
    pub head: u64,
    /// Steps of every other piece.
    pub part: u64,
    /// Pieces that one of the other clusters takes, at most.
    turns: u64,
}

impl Rest {
    /// `clusters` are more than `tiles`. None if pieces would be too short.
    fn new(tiles: u64, pieces: u64, steps: u64, clusters: u64) -> Option<Self> {
        let turns = ((pieces - 1) * tiles).div_ceil(clusters - tiles);
        // The first pieces are to take as long as the turns of the others.
        let part = steps / (turns + pieces - 1);
        (part >= RUN).then(|| Rest { tiles, pieces, head: steps - (pieces - 1) * part, part, turns })
    }

    /// From the beginning of the first piece to the end of the last tile.
    fn clocks(self, tile: &Tile) -> u64 {
        let sums = u64::from(tile.columns) * SUMS_PER_COLUMN;
        let piece = |steps| steps * tile.step + tile.tail + sums;
        piece(self.head).max(self.turns * piece(self.part)) + HANDOVER + self.pieces * sums
    }
}

/// How a product is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    pub tile: Tile,
    pub cluster: Cluster,
    pub tiles: Tiles,
    /// That are launched.
    pub clusters: u64,
    /// None if every tile is one cluster's.
    pub rest: Option<Rest>,
}

/// What a schedule follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Question {
    rows: u64,
    columns: u64,
    steps: u64,
    operands: Operands,
    multiprocessors: u32,
}

/// Answers that a thread keeps: a model multiplies the same few shapes over and over.
const KEPT: usize = 64;

/// For a result of `rows` × `columns` and sums over `steps` · 64 terms.
///
/// Some sixty schedules are compared, which takes longer than the rest of a call: answers are kept, each in the place that its
/// question's hash names.
pub(super) fn choose(
    rows: u64,
    columns: u64,
    steps: u64,
    operands: Operands,
    facts: &DeviceFacts,
) -> Schedule {
    thread_local! {
        static ANSWERS: [Cell<Option<(Question, Schedule)>>; KEPT] = const { [const { Cell::new(None) }; KEPT] };
    }
    let question = Question { rows, columns, steps, operands, multiprocessors: facts.multiprocessors };
    let place = FxBuildHasher.hash_one(question) as usize % KEPT;
    ANSWERS.with(|answers| {
        let answer = &answers[place];
        match answer.get() {
            Some((known, schedule)) if known == question => schedule,
            _ => {
                let schedule = compare(rows, columns, steps, operands, facts);
                answer.set(Some((question, schedule)));
                schedule
            }
        }
    })
}

/// The schedule that takes the fewest clocks by the model.
fn compare(rows: u64, columns: u64, steps: u64, operands: Operands, facts: &DeviceFacts) -> Schedule {
    let candidates = if operands.by_lines { BY_LINES } else { DIRECT };
    let fits =
        |tile: &&Tile| tile.right_row_major.is_none_or(|row_major| row_major == operands.right_row_major);
    let splits = [2, 3, 4, 8].map(Cluster::Split);
    let clusters = [Cluster::ShareLeft, Cluster::None].into_iter().chain(splits);
    let choices =
        candidates.iter().filter(fits).flat_map(|tile| clusters.clone().map(|cluster| (*tile, cluster)));
    let possible = choices.filter(|(tile, cluster)| match cluster {
        Cluster::None => true,
        // Each loads half of the rows, 64 at least.
        Cluster::ShareLeft => !operands.by_lines && tile.rows >= 128 && columns > u64::from(tile.columns),
        // Measured for the smallest tile only.
        Cluster::Split(3) if operands.by_lines || tile.columns > 64 || tile.rows > 64 => false,
        // The sums take the place of the stages, and every block has terms to sum. They are added 64 columns at a time.
        Cluster::Split(parts) => {
            tile.columns <= 128 && tile.columns.is_multiple_of(64) && steps >= u64::from(*parts)
        }
    });
    let timed = possible.map(|(tile, cluster)| timed(rows, columns, steps, tile, cluster, operands, facts));
    let (_, fastest) = timed.min_by_key(|(clocks, _)| *clocks).expect("the first tile is always possible");
    fastest
}

/// The schedule of this tile and cluster, and its clocks.
fn timed(
    rows: u64,
    columns: u64,
    steps: u64,
    tile: Tile,
    cluster: Cluster,
    operands: Operands,
    facts: &DeviceFacts,
) -> (u64, Schedule) {
    let blocks = u64::from(cluster.blocks());
    let tiles = Tiles::new(rows, columns, &tile, cluster);
    // A cluster lies within one of the groups that multiprocessors come in, whose sizes leave some over.
    let usable = match blocks {
        1 | 2 => u64::from(facts.multiprocessors),
        3 => u64::from(facts.multiprocessors) * 8 / 9,
        4 => u64::from(facts.multiprocessors) * 6 / 7,
        _ => u64::from(facts.multiprocessors) * 3 / 4,
    };
    let at_a_time = (usable / blocks).max(1);
    let rounds = tiles.count().div_ceil(at_a_time);
    let schedule = |clusters, rest| Schedule { tile, cluster, tiles, clusters, rest };
    if let Cluster::Split(_) = cluster {
        let clocks = rounds * (steps.div_ceil(blocks) * tile.step + tile.tail + SPLIT);
        return (clocks, schedule(tiles.count(), None));
    }
    let round = steps * tile.step + tile.tail;
    // Blocks stay and walk over tiles.
    let whole = (rounds * round, schedule(tiles.count().min(at_a_time), None));
    let shared = shared(tiles.count(), steps, at_a_time, &tile).map(|rest| {
        let clocks = (rounds - 1) * round + rest.clocks(&tile);
        // Estimates are that good, and a workspace costs something too.
        (clocks * 101 / 100, schedule(at_a_time, Some(rest)))
    });
    let (clocks, schedule) =
        shared.into_iter().fold(whole, |best, next| if next.0 < best.0 { next } else { best });
    // Blocks that share nothing read more, and where lines straddle cache lines, much more.
    let clocks = match cluster {
        // What aligns lines hides that.
        Cluster::None if operands.straddle && !operands.by_lines => clocks * 5 / 4,
        Cluster::None => clocks * 51 / 50,
        _ => clocks,
    };
    (clocks, schedule)
}

/// The best way to share the tiles of the last round, if that round is not full.
fn shared(tiles: u64, steps: u64, at_a_time: u64, tile: &Tile) -> Option<Rest> {
    let rest = tiles % at_a_time;
    // Where there is no full round, all is over too soon to gain from it (docs/kernels/history/gemm-wgmma.md). Warps that align
    // leave too few registers.
    if rest == 0 || tiles < at_a_time || tile.aligners > 0 {
        return None;
    }
    let possible = PIECES.filter_map(|pieces| Rest::new(rest, pieces, steps, at_a_time));
    possible.min_by_key(|rest| rest.clocks(tile))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIGNED: Operands = Operands { by_lines: false, right_row_major: true, straddle: false };

    fn chosen(rows: u64, columns: u64, terms: u64) -> (u32, u32, Cluster) {
        let schedule = choose(rows, columns, terms.div_ceil(64), ALIGNED, &DeviceFacts::h200());
        (schedule.tile.rows, schedule.tile.columns, schedule.cluster)
    }

    #[test]
    fn large_products_take_the_largest_tile() {
        for size in [2048, 4096, 8192] {
            assert_eq!(chosen(size, size, size), (128, 256, Cluster::ShareLeft), "{size}");
        }
    }

    #[test]
    fn small_products_take_tiles_that_fill_the_device() {
        for (rows, columns, terms, chosen_here) in [
            (512, 512, 512, (64, 64, Cluster::None)),
            (768, 768, 768, (64, 128, Cluster::None)),
            (1024, 1024, 1024, (64, 128, Cluster::None)),
            (1280, 1280, 1280, (128, 128, Cluster::ShareLeft)),
            (1536, 1536, 1536, (128, 160, Cluster::ShareLeft)),
            (1792, 1792, 1792, (128, 224, Cluster::ShareLeft)),
            (2176, 2176, 2176, (128, 160, Cluster::ShareLeft)),
        ] {
            assert_eq!(chosen(rows, columns, terms), chosen_here, "{rows}×{columns}×{terms}");
        }
    }

    #[test]
    fn the_layout_of_the_operands_decides_too() {
        let chosen = |size: u64, operands| {
            let schedule = choose(size, size, size.div_ceil(64), operands, &DeviceFacts::h200());
            (schedule.tile.rows, schedule.tile.columns, schedule.tile.stages, schedule.cluster)
        };
        // 12 × 11 tiles of 144 columns are one for each multiprocessor; row-major, they would load 192.
        let reduction_major = Operands { right_row_major: false, ..ALIGNED };
        assert_eq!(chosen(1536, reduction_major), (128, 144, 5, Cluster::None));
        assert_eq!(chosen(1536, ALIGNED), (128, 160, 4, Cluster::ShareLeft));
        assert_eq!(chosen(2176, reduction_major), (128, 160, 5, Cluster::ShareLeft));
        // Lines that straddle cache lines are read once for two blocks.
        let straddling = Operands { straddle: true, ..ALIGNED };
        assert_eq!(chosen(1000, ALIGNED).3, Cluster::None);
        assert_eq!(chosen(1000, straddling), (128, 64, 8, Cluster::ShareLeft));
        let by_lines = Operands { by_lines: true, ..straddling };
        assert_eq!(chosen(4096, by_lines), (128, 128, 3, Cluster::None));
    }

    #[test]
    fn tiles_are_stored_in_pieces_of_one_width() {
        for tile in DIRECT.iter().chain(BY_LINES) {
            let (across, lines) = (tile.stored_columns(), tile.right_lines(true));
            assert!(tile.columns.is_multiple_of(across) && across % 16 == 0 && across <= 64, "{tile:?}");
            assert!(
                lines.is_multiple_of(64) && lines >= tile.columns && lines - tile.columns < 64,
                "{tile:?}"
            );
            assert_eq!(tile.right_lines(false), tile.columns);
        }
        assert_eq!(tile(128, 144, 5, 2, 1, 1).stored_columns(), 48);
        assert_eq!(tile(128, 160, 5, 2, 1, 1).stored_columns(), 32);
    }

    #[test]
    fn tiles_of_a_last_round_are_shared_where_they_are_long() {
        let rest = |rows, columns, terms: u64| {
            let schedule = choose(rows, columns, terms.div_ceil(64), ALIGNED, &DeviceFacts::h200());
            let before = schedule.tiles.count() - schedule.rest.map_or(0, |rest| rest.tiles);
            assert!(schedule.rest.is_none() || before.is_multiple_of(schedule.clusters), "{schedule:?}");
            schedule.rest.map(|rest| (rest.tiles, rest.pieces, rest.head, rest.part))
        };
        // 1792 tiles of two blocks on 66 pairs of multiprocessors: 27 rounds, and 10 tiles for 66.
        assert_eq!(rest(8192, 14336, 4096), Some((10, 4, 16, 16)));
        // 34 tiles leave 32 clusters for their other pieces.
        assert_eq!(rest(8192, 8192, 8192), Some((34, 3, 78, 25)));
        // The last round is nearly full, or is the only one, or is over soon.
        for (rows, columns, terms) in
            [(4096, 4096, 4096), (4096, 50304, 2048), (512, 512, 4096), (2176, 2176, 256)]
        {
            assert_eq!(rest(rows, columns, terms), None, "{rows}×{columns}×{terms}");
        }
        // Those of suites/huge.toml, with one and with several pieces for each of the other clusters.
        assert!(rest(896, 1216, 8192).is_some() && rest(2880, 1024, 8192).is_some());
    }

    #[test]
    fn pieces_make_up_a_tile() {
        for (tiles, steps, clusters) in
            [(1, 8, 66), (10, 64, 66), (34, 128, 66), (65, 786, 66), (131, 1000, 132)]
        {
            for pieces in PIECES {
                let Some(rest) = Rest::new(tiles, pieces, steps, clusters) else { continue };
                assert_eq!(rest.head + (pieces - 1) * rest.part, steps, "{rest:?}");
                assert!(rest.part >= RUN && rest.head >= rest.part, "{rest:?}");
                assert!(rest.turns * (clusters - tiles) >= (pieces - 1) * tiles, "{rest:?}");
            }
        }
    }

    #[test]
    fn few_outputs_with_long_sums_are_split() {
        assert_eq!(chosen(64, 4096, 4096), (64, 64, Cluster::Split(2)));
        assert_eq!(chosen(64, 2048, 4096), (64, 64, Cluster::Split(3)));
        assert_eq!(chosen(64, 64, 4096).2, Cluster::Split(8));
        // As many parts as there are steps, at most.
        assert_eq!(chosen(64, 64, 64).2, Cluster::None);
    }
}
