//! The innermost loop: a register tile of outputs, each lane of it one chain of fused multiply-adds.
//!
//! ```text
//!                    right[d] : VECTORS vectors, one per group of columns
//!                   ┌────────┬────────┬────────┐
//!  left[d][row] ──► │  sum  +=  left · right    │   ROWS × VECTORS sums stay in registers
//!  (broadcast)      └────────┴────────┴────────┘   while d runs over the panel, upwards
//! ```
//!
//! A step reads ROWS + VECTORS values and makes ROWS · VECTORS vector operations. No sum ever meets another
//! one, so the bits depend neither on the number of lanes nor on the tile.

use super::vector::{TILE_VECTORS, Vector};

/// Adds `depth` products to each of `rows × vectors` vectors of sums.
///
/// # Safety
/// * `left` holds `depth` groups of `V::TILE_ROWS` values, `right` of `TILE_VECTORS` vectors.
/// * `sums` holds `rows` rows of `vectors` vectors, `stride` values apart, for this call alone.
/// * `1 <= rows <= V::TILE_ROWS`, `1 <= vectors <= TILE_VECTORS`; the processor has V's level.
#[inline(always)]
pub unsafe fn add_products<V: Vector>(
    (rows, vectors): (usize, usize),
    depth: usize,
    left: *const f32,
    right: *const f32,
    sums: *mut f32,
    stride: usize,
) {
    macro_rules! sizes {
        ($($rows:literal)*) => {
            // SAFETY: the caller's promise; each call has the sizes that the caller gave.
            unsafe {
                match (rows, vectors) {
                    $(
                        ($rows, 1) => tile::<V, $rows, 1>(depth, left, right, sums, stride),
                        ($rows, 2) => tile::<V, $rows, 2>(depth, left, right, sums, stride),
                        ($rows, 3) => tile::<V, $rows, 3>(depth, left, right, sums, stride),
                    )*
                    _ => unreachable!("no tile has {rows} rows of {vectors} vectors"),
                }
            }
        };
    }
    sizes!(1 2 3 4 5 6 7 8)
}

/// # Safety
/// As [`add_products`].
#[inline(always)]
unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(
    depth: usize,
    left: *const f32,
    right: *const f32,
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise covers every address: row < ROWS, vector < VECTORS and d < depth.
    unsafe {
        let mut tile = [[V::splat(0.0); VECTORS]; ROWS];
        for (row, tile) in tile.iter_mut().enumerate() {
            for (vector, sum) in tile.iter_mut().enumerate() {
                *sum = V::load(sums.add(row * stride + vector * V::LANES));
            }
        }
        for d in 0..depth {
            let left = left.add(d * V::TILE_ROWS);
            let right = right.add(d * TILE_VECTORS * V::LANES);
            let mut columns = [V::splat(0.0); VECTORS];
            for (vector, column) in columns.iter_mut().enumerate() {
                *column = V::load(right.add(vector * V::LANES));
            }
            for (row, tile) in tile.iter_mut().enumerate() {
                let factor = V::splat(*left.add(row));
                for (sum, &column) in tile.iter_mut().zip(&columns) {
                    *sum = factor.mul_add(column, *sum);
                }
            }
        }
        for (row, tile) in tile.iter().enumerate() {
            for (vector, sum) in tile.iter().enumerate() {
                sum.store(sums.add(row * stride + vector * V::LANES));
            }
        }
    }
}
