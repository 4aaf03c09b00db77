//! Which tile a product on Hopper's matrix units gets.
//!
//! Every tile is compared in every cluster: with whole tiles, with the last ones shared by several clusters, and with the terms of
//! each split; and so for the product as it is and for the transposed one, since tiles have few heights and many widths. The schedule
//! that takes least by the model of wgmma_cost.rs is taken.

use super::wgmma_cost::Estimate;
use super::wgmma_schedule::{Cluster, Deal, Product, Rest, Schedule, Tile, Tiles};
use crate::backend::gpu::candidates::Kept;
use crate::backend::gpu::plan::DeviceFacts;

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
    use super::super::wgmma_schedule::{Operand, RUN};
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
