//! Cutting an output into tiles, one task each.
//!
//! ```text
//!              right (reduction × columns)
//!             ┌───────┬───────┬──
//!  left       │ packed│       │        A task computes one tile. It walks the reduction in blocks: packs a block
//!  (rows ×  ┌─┼───────┼───────┼──      of both operands, adds its products to the tile's f32 sums, and takes the
//!  reduction)│▒│ tile  │       │        next. At the end it rounds.
//!           ├─┼───────┼───────┼──
//! ```
//!
//! The cut feeds the threads and the caches. It decides who computes an output, never in which order its terms
//! are added.

use std::ops::Range;

use crate::backend::cpu::threads;

/// A range of outputs.
pub struct Tile {
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

/// What a product costs, in multiply-adds: an output takes as long as 16 of them, an element of an operand as 4. A product of few terms is
/// bound by its output, one of few rows by its operand.
pub fn work(rows: usize, columns: usize, reduction: usize) -> usize {
    const OUTPUT: usize = 16;
    const ELEMENT: usize = 4;
    let elements = rows.saturating_add(columns).saturating_mul(reduction).saturating_mul(ELEMENT);
    rows.saturating_mul(columns).saturating_mul(reduction.saturating_add(OUTPUT)).saturating_add(elements)
}

/// How an algorithm likes its tiles.
pub struct Cut {
    /// Rows and columns that the registers hold: tiles are multiples of this.
    pub register: (usize, usize),
    /// What the caches hold, in rows and columns.
    pub largest: (usize, usize),
    /// The [`work`] below which another thread costs more than it gives.
    pub worth_a_thread: usize,
}

impl Cut {
    /// Runs `task` once for every tile of an output.
    pub fn for_each(&self, rows: usize, columns: usize, reduction: usize, task: impl Fn(Tile) + Sync) {
        if rows == 0 || columns == 0 {
            return;
        }
        let threads = work(rows, columns, reduction) / self.worth_a_thread;
        let threads = if threads > 1 { threads.min(threads::count()) } else { 1 };
        let (tile_rows, tile_columns) = self.tile(rows, columns, threads);
        let across = columns.div_ceil(tile_columns);
        let task = |index: usize| {
            let (row, column) = (index / across * tile_rows, index % across * tile_columns);
            task(Tile {
                rows: row..rows.min(row + tile_rows),
                columns: column..columns.min(column + tile_columns),
            });
        };
        threads::for_each(rows.div_ceil(tile_rows) * across, threads > 1, &task);
    }

    /// Rows and columns of a tile: as large as the caches take, but so that every thread has two, and threads as much as one another.
    fn tile(&self, rows: usize, columns: usize, threads: usize) -> (usize, usize) {
        /// What packing a row or a column of a tile costs, in outputs of it.
        const PACKING: usize = 16;
        // Tiles of one size, so that the last one is not a sliver.
        let even = |size: usize, most: usize, step: usize| {
            size.div_ceil(size.div_ceil(most)).next_multiple_of(step).min(most)
        };
        let tallest = even(rows, self.largest.0, self.register.0);
        let widest = even(columns, self.largest.1, self.register.1);
        if threads == 1 {
            return (tallest, widest);
        }
        let (mut best, mut least) = (self.register, usize::MAX);
        for tall in (self.register.0..=tallest).rev().step_by(self.register.0) {
            let down = rows.div_ceil(tall);
            for wide in (self.register.1..=widest).rev().step_by(self.register.1) {
                let tiles = down * columns.div_ceil(wide);
                // Two tasks per thread level out the difference between fast and slow ones.
                if tiles >= 2 * threads {
                    let longest = tiles.div_ceil(threads) * (tall * wide + PACKING * (tall + wide));
                    if longest < least {
                        (best, least) = ((tall, wide), longest);
                    }
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const CUT: Cut = Cut { register: (8, 48), largest: (256, 576), worth_a_thread: 1 << 18 };

    #[test]
    fn every_output_belongs_to_one_tile() {
        for (rows, columns) in [(1, 1), (8, 48), (9, 49), (255, 1000), (1000, 255), (1, 5000), (5000, 1)] {
            let owners = Mutex::new(vec![0; rows * columns]);
            CUT.for_each(rows, columns, 1 << 20, |tile| {
                assert!(tile.rows.start % 8 == 0 && tile.columns.start % 48 == 0);
                assert!(tile.rows.len() <= 256 && tile.columns.len() <= 576);
                let mut owners = owners.lock().unwrap();
                for row in tile.rows {
                    for column in tile.columns.clone() {
                        owners[row * columns + column] += 1;
                    }
                }
            });
            assert!(owners.into_inner().unwrap().iter().all(|&owners| owners == 1), "{rows} × {columns}");
        }
    }

    #[test]
    fn more_threads_get_smaller_tiles() {
        assert_eq!(CUT.tile(256, 576, 1), (256, 576));
        let (rows, columns) = CUT.tile(256, 576, 8);
        assert!(256usize.div_ceil(rows) * 576usize.div_ceil(columns) >= 16, "{rows} × {columns}");
        // There is nothing smaller than a register tile.
        assert_eq!(CUT.tile(8, 40, 64), (8, 48));
    }

    #[test]
    fn threads_get_as_much_as_one_another() {
        for (rows, columns, threads) in [(36, 2480, 2), (1000, 700, 4), (8, 5000, 2)] {
            let (tall, wide) = CUT.tile(rows, columns, threads);
            let tiles = rows.div_ceil(tall) * columns.div_ceil(wide);
            assert!(tiles.is_multiple_of(threads), "{rows} × {columns} is {tiles} tiles of {tall} × {wide}");
        }
    }
}
