//! Which tile a product on Hopper's matrix units gets.
//!
//! Every tile is compared in every cluster: with whole tiles, with the last ones shared by several clusters, and with the terms of
//! each split; and so for the product as it is and for the transposed one, since tiles have few heights and many widths. The schedule
//! that takes least by the model of wgmma_cost.rs is taken.

use super::wgmma_cost::Estimate;
use crate::backend::gpu::candidates::Kept;
use crate::backend::gpu::plan::DeviceFacts;

/// Rows that a warp multiplies and stores.
pub(super) const WARP_ROWS: u32 = 16;

/// A tile and the pipeline that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub rows: u32,
    pub columns: u32,
    /// Stages of the ring.
    pub stages: u32,
    /// Buffers of 16 rows × 64 columns that a warp stores through.
    pub staging: u32,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// Raw stages, and warps that align, where lines of operands begin anywhere.
    pub raw_stages: u32,
    pub aligners: u32,
    /// How the right operand has to lie, if that matters: true if its columns are side by side. They come in blocks of 64
    /// then, so a tile that is no multiple as wide takes more room and more traffic.
    right_row_major: Option<bool>,
}

impl Tile {
    /// Columns that a warp stores at a time.
    pub fn stored_columns(&self) -> u32 {
        [64, 48, 32, 16]
            .into_iter()
            .find(|columns| self.columns.is_multiple_of(*columns))
            .expect("a multiple of 16")
    }

    /// Lines of 64 terms that a stage has for the right operand.
    pub fn right_lines(&self, row_major: bool) -> u32 {
        if row_major { self.columns.next_multiple_of(64) } else { self.columns }
    }

    /// The sums of a block fit where its stages were, and are added 64 columns at a time.
    fn can_split(&self) -> bool {
        let (stages, sums) =
            (self.stages * (self.rows + self.columns) * 128, self.rows * (self.columns * 4 + 32));
        self.columns.is_multiple_of(64) && sums <= stages && self.resident == 1
    }
}

/// How an operand lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    /// A line has one term of all rows (or columns of the right operand), not all terms of one.
    pub row_major: bool,
    /// Cache lines, in eighths, that 128 bytes of a line touch on average.
    pub eighths: u32,
}

/// A product as far as schedules depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub rows: u64,
    pub columns: u64,
    pub terms: u64,
    pub left: Operand,
    pub right: Operand,
    /// Of the result.
    pub eighths: u32,
    /// At least one operand has lines that begin anywhere.
    pub by_lines: bool,
    /// Threads store the result.
    pub stored_by_threads: bool,
    /// Rows and columns have changed places: the elements of a column of the result lie side by side in memory, and a warp stores 16
    /// of them at a time.
    pub transposed: bool,
}

impl Product {
    /// The same sums with rows and columns swapped.
    fn transpose(self) -> Self {
        Product {
            rows: self.columns,
            columns: self.rows,
            left: self.right,
            right: self.left,
            transposed: !self.transposed,
            ..self
        }
    }

    /// Elements of a line that a warp stores at a time.
    pub fn stored(&self, tile: &Tile) -> u32 {
        if self.transposed { WARP_ROWS } else { tile.stored_columns() }
    }

    /// Steps of a sum.
    pub fn steps(&self) -> u64 {
        self.terms.div_ceil(64)
    }
}

/// How the blocks of a cluster work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Each computes a tile. Those above each other share the right operand, those side by side the left one.
    Share { down: u32, across: u32 },
    /// This many blocks each sum a part of the terms of one tile.
    Split(u32),
}

impl Cluster {
    /// A block on its own.
    pub const ONE: Self = Cluster::Share { down: 1, across: 1 };

    const ALL: [Self; 9] = [
        Self::ONE,
        Cluster::Share { down: 1, across: 2 },
        Cluster::Share { down: 2, across: 1 },
        Cluster::Share { down: 2, across: 2 },
        Cluster::Share { down: 1, across: 4 },
        Cluster::Share { down: 4, across: 1 },
        Cluster::Split(2),
        Cluster::Split(4),
        Cluster::Split(8),
    ];

    /// Blocks.
    pub fn blocks(self) -> u32 {
        match self {
            Cluster::Share { down, across } => down * across,
            Cluster::Split(parts) => parts,
        }
    }

    /// Tiles that it computes at a time: above each other, and side by side.
    pub fn tiles(self) -> (u32, u32) {
        match self {
            Cluster::Share { down, across } => (down, across),
            Cluster::Split(_) => (1, 1),
        }
    }

    /// Whether blocks of such a cluster can compute tiles of this kind, and all have something to do.
    fn takes(self, tile: &Tile, product: &Product) -> bool {
        let (down, across) = match self {
            Cluster::ONE => return true,
            Cluster::Share { down, across } => (down, across),
            Cluster::Split(parts) => {
                return !product.transposed && tile.can_split() && product.steps() >= u64::from(parts);
            }
        };
        // Each loads a part of the lines, a multiple of 8 of them.
        let parts = |operand: Operand, extent: u32, blocks: u32| {
            operand.row_major || (extent / blocks).is_multiple_of(8)
        };
        let tall = down == 1 || product.rows > u64::from(tile.rows * (down / 2));
        let wide = across == 1 || product.columns > u64::from(tile.columns * (across / 2));
        let whole = parts(product.left, tile.rows, across) && parts(product.right, tile.columns, down);
        tall && wide && whole && !product.by_lines && tile.resident == 1
    }

    /// Clusters that run at a time. One lies within one of the groups that multiprocessors come in, whose sizes leave some over.
    fn at_a_time(self, tile: &Tile, facts: &DeviceFacts) -> u64 {
        let all = u64::from(facts.multiprocessors);
        let clusters = match self.blocks() {
            1 => all,
            2 => all / 2,
            4 => all * 10 / 11 / 4,
            blocks => all * 3 / 4 / u64::from(blocks),
        };
        (clusters * u64::from(tile.resident)).max(1)
    }
}

/// Operands that TMA takes as they are.
const DIRECT: &[Tile] = &[
    tile(128, 256, 4, 2),
    tile(128, 224, 4, 2),
    tile(128, 192, 4, 2),
    tile_where(true, tile(128, 160, 4, 2)),
    tile_where(false, tile(128, 160, 5, 2)),
    tile_where(false, tile(128, 144, 5, 2)),
    tile(128, 128, 6, 2),
    tile(128, 64, 8, 2),
    tile(64, 256, 5, 2),
    tile(64, 128, 8, 2),
    tile(64, 64, 8, 2),
    Tile { resident: 2, ..tile(64, 64, 6, 2) },
    // Widths that few rows, or few columns, fill. Right operands whose columns are side by side come in blocks of 64.
    tile_where(false, tile(128, 112, 6, 2)),
    tile_where(false, tile(128, 96, 6, 2)),
    tile_where(false, tile(128, 80, 7, 2)),
    tile_where(false, tile(128, 48, 8, 2)),
    tile_where(false, tile(128, 32, 9, 2)),
    tile_where(false, tile(128, 16, 10, 2)),
    tile_where(false, tile(64, 96, 10, 2)),
    tile_where(false, tile(64, 48, 14, 2)),
    tile_where(false, tile(64, 32, 16, 2)),
    tile_where(false, tile(64, 16, 16, 2)),
    tile(128, 240, 4, 2),
    // Three warpgroups.
    tile_where(false, tile(192, 176, 4, 1)),
    tile(192, 160, 4, 1),
    tile(192, 128, 5, 1),
];

/// At least one operand whose lines begin anywhere: bound by the warps that align, of which there are as many as the
/// registers allow.
const BY_LINES: &[Tile] = &[
    Tile { raw_stages: 3, aligners: 7, ..tile(128, 128, 3, 1) },
    Tile { raw_stages: 4, aligners: 7, ..tile(64, 64, 6, 2) },
];

const fn tile(rows: u32, columns: u32, stages: u32, staging: u32) -> Tile {
    Tile { rows, columns, stages, staging, resident: 1, raw_stages: 0, aligners: 0, right_row_major: None }
}

/// A tile for right operands of one layout.
const fn tile_where(right_row_major: bool, tile: Tile) -> Tile {
    Tile { right_row_major: Some(right_row_major), ..tile }
}

/// The most pieces of a tile that are tried.
const MOST_PIECES: u64 = 16;

/// Of a last round that comes after full ones.
const MOST_PIECES_OF_REST: u64 = 8;

/// What sharing the only round has to gain: a split does as well where both are near (docs/kernels/history/gemm-wgmma.md).
const ONLY_ROUND: f64 = 1.02;

/// Least steps of a piece.
const RUN: u64 = 3;

/// Of a result, in units of what a cluster computes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    pub down: u64,
    pub across: u64,
}

impl Tiles {
    fn new(product: &Product, tile: &Tile, cluster: Cluster) -> Self {
        let (down, across) = cluster.tiles();
        Tiles {
            down: product.rows.div_ceil(u64::from(tile.rows * down)),
            across: product.columns.div_ceil(u64::from(tile.columns * across)),
        }
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
    pub turns: u64,
}

impl Rest {
    /// `clusters` are more than `tiles`. None if pieces would be too short.
    fn new(tiles: u64, pieces: u64, steps: u64, clusters: u64) -> Option<Self> {
        let turns = ((pieces - 1) * tiles).div_ceil(clusters - tiles);
        // The first pieces are to take as long as the turns of the others.
        let part = steps / (turns + pieces - 1);
        (part >= RUN).then(|| Rest { tiles, pieces, head: steps - (pieces - 1) * part, part, turns })
    }
}

/// How tiles and terms are dealt out to clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deal {
    /// Every tile is one cluster's.
    Whole,
    /// Every tile but the last ones.
    Rest(Rest),
    /// Every tile is split over this many clusters, and what each has over its blocks.
    Parts(u64),
}

/// How a product is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Rows and columns are swapped, and the result is stored transposed.
    pub transposed: bool,
    pub tile: Tile,
    pub cluster: Cluster,
    pub tiles: Tiles,
    /// That are launched.
    pub clusters: u64,
    pub deal: Deal,
}

/// What a schedule follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Question {
    product: Product,
    multiprocessors: u32,
}

/// Hundreds of schedules are compared, which takes longer than the rest of a call: answers are kept.
pub(super) fn choose(product: Product, facts: &DeviceFacts) -> Schedule {
    thread_local! {
        static SCHEDULES: Kept<Question, Schedule> = const { Kept::new() };
    }
    let question = Question { product, multiprocessors: facts.multiprocessors };
    SCHEDULES.with(|schedules| schedules.get(question, || compare(&product, facts)))
}

/// The schedule that takes the least time by the model.
fn compare(product: &Product, facts: &DeviceFacts) -> Schedule {
    // Lines that begin anywhere are aligned as they lie.
    let (tiles, transposed) =
        if product.by_lines { (BY_LINES, None) } else { (DIRECT, Some(product.transpose())) };
    let choices = std::iter::once(*product).chain(transposed).flat_map(|product| {
        let fits = move |tile: &&Tile| {
            tile.right_row_major.is_none_or(|row_major| row_major == product.right.row_major)
        };
        let of_tile = move |tile: &Tile| Cluster::ALL.map(|cluster| (product, *tile, cluster));
        tiles.iter().filter(fits).flat_map(of_tile)
    });
    let possible = choices.filter(|(product, tile, cluster)| cluster.takes(tile, product));
    let timed = possible.map(|(product, tile, cluster)| best_deal(&product, tile, cluster, facts));
    let least = timed.min_by(|(one, _), (other, _)| one.total_cmp(other));
    least.expect("the first tile is always possible").1
}

/// The best way to deal these tiles out to these clusters, and the nanoseconds that it takes.
fn best_deal(product: &Product, tile: Tile, cluster: Cluster, facts: &DeviceFacts) -> (f64, Schedule) {
    let (steps, tiles) = (product.steps(), Tiles::new(product, &tile, cluster));
    let at_a_time = cluster.at_a_time(&tile, facts);
    let count = tiles.count();
    let transposed = product.transposed;
    let schedule = |clusters, deal| Schedule { transposed, tile, cluster, tiles, clusters, deal };
    let split = matches!(cluster, Cluster::Split(_));
    // Blocks stay and walk over tiles, but those that have split theirs.
    let whole = schedule(if split { count } else { count.min(at_a_time) }, Deal::Whole);
    let shared = |pieces| {
        // Warps that align leave too few registers.
        if tile.aligners > 0 {
            return None;
        }
        if split {
            let parts = pieces * u64::from(cluster.blocks());
            // The kernel multiplies steps by parts.
            let longest = steps >= 2 * parts && steps * parts <= i32::MAX as u64;
            return (count * pieces <= at_a_time && longest)
                .then(|| schedule(count * pieces, Deal::Parts(pieces)));
        }
        let rest = count % at_a_time;
        let possible = rest > 0 && (count < at_a_time || pieces <= MOST_PIECES_OF_REST);
        let rest = possible.then(|| Rest::new(rest, pieces, steps, at_a_time)).flatten()?;
        Some(schedule(at_a_time.min(count * pieces), Deal::Rest(rest)))
    };
    let estimate = Estimate::new(product, &tile, cluster, tiles, at_a_time, facts);
    let all = std::iter::once(whole).chain((2..=MOST_PIECES).filter_map(shared));
    let timed = all.map(|schedule| (estimate.work(&schedule), schedule));
    let (work, least) =
        timed.min_by(|(one, _), (other, _)| one.total_cmp(other)).expect("whole tiles are always possible");
    let time = estimate.nanoseconds(work);
    let only_round = matches!(least.deal, Deal::Rest(_)) && count < at_a_time;
    (if only_round { time * ONLY_ROUND } else { time }, least)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dense matrices in rows.
    fn product(rows: u64, columns: u64, terms: u64) -> Product {
        let eighths = |length: u64| 16 - (1 << ((length * 2) | 128).trailing_zeros()) / 16;
        Product {
            rows,
            columns,
            terms,
            left: Operand { row_major: false, eighths: eighths(terms) },
            right: Operand { row_major: true, eighths: eighths(columns) },
            eighths: eighths(columns),
            by_lines: false,
            stored_by_threads: false,
            transposed: false,
        }
    }

    fn chosen(rows: u64, columns: u64, terms: u64) -> Schedule {
        choose(product(rows, columns, terms), &DeviceFacts::h200())
    }

    #[test]
    fn large_products_take_large_tiles() {
        for size in [2048, 4096, 8192] {
            let tile = chosen(size, size, size).tile;
            assert!(tile.rows * tile.columns >= 128 * 192, "{size}: {tile:?}");
        }
    }

    #[test]
    fn small_products_take_tiles_that_fill_the_device() {
        for size in [512, 768, 1024, 1280, 1536, 1792, 2176] {
            let schedule = chosen(size, size, size);
            let blocks = schedule.clusters * u64::from(schedule.cluster.blocks());
            assert!(blocks >= 64, "{size}: {schedule:?}");
        }
    }

    #[test]
    fn few_outputs_with_long_sums_are_split() {
        // A few tiles: as many blocks as there are terms for.
        for (rows, columns, terms) in [(24, 56, 25808), (120, 24, 19424), (64, 64, 4096)] {
            let schedule = chosen(rows, columns, terms);
            let blocks = schedule.clusters * u64::from(schedule.cluster.blocks());
            assert!(
                blocks >= 8 && schedule.deal != Deal::Whole || schedule.cluster.blocks() == 8,
                "{schedule:?}"
            );
        }
        // As many parts as there are steps, at most.
        let Schedule { cluster, deal, .. } = chosen(64, 64, 64);
        assert!(matches!((cluster, deal), (Cluster::Share { .. }, Deal::Whole)), "{cluster:?} {deal:?}");
    }

    #[test]
    fn lines_that_straddle_cache_lines_are_shared() {
        let aligned = chosen(20480, 576, 2496).cluster.blocks();
        let Schedule { cluster, .. } = chosen(20480, 568, 2488);
        assert!(cluster.blocks() >= aligned.min(2), "{cluster:?}");
        let by_lines = Product { by_lines: true, stored_by_threads: true, ..product(4095, 4095, 4095) };
        assert_eq!(choose(by_lines, &DeviceFacts::h200()).tile, BY_LINES[0]);
    }

    #[test]
    fn every_deal_covers_every_tile_and_every_term() {
        let sizes = [8, 64, 72, 200, 520, 1000, 4096, 20000];
        for (rows, columns) in sizes.iter().flat_map(|rows| sizes.map(|columns| (*rows, columns))) {
            for terms in [16, 64, 448, 4096, 25808] {
                let schedule = chosen(rows, columns, terms);
                let Schedule { transposed, tile, cluster, tiles, clusters, deal } = schedule;
                let (down, across) = cluster.tiles();
                let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
                assert!(tiles.down * u64::from(tile.rows * down) >= rows, "{schedule:?}");
                assert!(tiles.across * u64::from(tile.columns * across) >= columns, "{schedule:?}");
                let steps = terms.div_ceil(64);
                match deal {
                    Deal::Whole => assert!(clusters <= tiles.count()),
                    Deal::Parts(parts) => {
                        assert_eq!(clusters, tiles.count() * parts);
                        assert!(steps >= parts * u64::from(cluster.blocks()), "{schedule:?}");
                    }
                    Deal::Rest(rest) => {
                        assert!(rest.tiles < clusters && rest.tiles <= tiles.count(), "{schedule:?}");
                        assert!(
                            (tiles.count() - rest.tiles).is_multiple_of(clusters)
                                || tiles.count() == rest.tiles
                        );
                        assert_eq!(rest.head + (rest.pieces - 1) * rest.part, steps, "{schedule:?}");
                    }
                }
            }
        }
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
        assert_eq!(tile(128, 144, 5, 2).stored_columns(), 48);
        assert_eq!(tile(128, 160, 5, 2).stored_columns(), 32);
        assert_eq!(tile(128, 112, 6, 2).stored_columns(), 16);
    }

    #[test]
    fn pieces_make_up_a_tile() {
        for (tiles, steps, clusters) in
            [(1, 8, 66), (10, 64, 66), (34, 128, 66), (65, 786, 66), (131, 1000, 132)]
        {
            for pieces in 2..=MOST_PIECES {
                let Some(rest) = Rest::new(tiles, pieces, steps, clusters) else { continue };
                assert_eq!(rest.head + (pieces - 1) * rest.part, steps, "{rest:?}");
                assert!(rest.part >= RUN && rest.head >= rest.part, "{rest:?}");
                assert!(rest.turns * (clusters - tiles) >= (pieces - 1) * tiles, "{rest:?}");
            }
        }
    }
}
