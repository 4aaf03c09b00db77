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

use super::half::Half;
use super::vector::{Part, TILE_VECTORS, Vector};

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
    let right = &Packed(right);
    macro_rules! sizes {
        ($($rows:literal)*) => {
            // SAFETY: the caller's promise; each call has the sizes that the caller gave.
            unsafe {
                $(
                    if const { $rows <= V::TILE_ROWS } && rows == $rows {
                        return match vectors {
                            1 => tile::<V, $rows, 1>(depth, left, right, sums, stride),
                            2 => tile::<V, $rows, 2>(depth, left, right, sums, stride),
                            3 => tile::<V, $rows, 3>(depth, left, right, sums, stride),
                            _ => unreachable!("no tile has {vectors} vectors"),
                        };
                    }
                )*
                unreachable!("no tile has {rows} rows");
            }
        };
    }
    sizes!(1 2 3 4 5 6 7 8)
}

/// As [`add_products`], of `vectors` vectors of columns that are read where they are: no more than a register tile of rows would make
/// use of what packing them costs. The first of `depth` terms is at `right`, and the next one `pitch` elements further.
///
/// # Safety
/// * `left` holds `depth` groups of `V::TILE_ROWS` values; every term of `right` has `vectors` vectors side by side.
/// * `sums` holds `rows` rows of `vectors` vectors, `stride` values apart, for this call alone.
/// * `1 <= rows <= V::TILE_ROWS`; the processor has V's level.
#[inline(always)]
pub unsafe fn add_products_in_place<V: Vector, T: Half>(
    (rows, vectors): (usize, usize),
    depth: usize,
    left: *const f32,
    (right, pitch): (*const T, isize),
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { V::apart(AddInPlace { rows, vectors, depth, left, right, pitch, sums, stride }) }
}

/// What [`add_products_in_place`] was called with.
struct AddInPlace<T> {
    rows: usize,
    vectors: usize,
    depth: usize,
    left: *const f32,
    right: *const T,
    pitch: isize,
    sums: *mut f32,
    stride: usize,
}

impl<V: Vector, T: Half> Part<V> for AddInPlace<T> {
    #[inline(always)]
    unsafe fn run(self) {
        let AddInPlace { rows, vectors, depth, left, right, pitch, sums, stride } = self;
        // As many vectors of columns as the registers hold sums for; then one at a time.
        macro_rules! sizes {
            ($($rows:literal: $few:literal or $many:literal)*) => {{
                $(
                    if const { $rows <= V::TILE_ROWS } && rows == $rows {
                        let wide = const { if V::TILE_ROWS == MOST_ROWS { $many } else { $few } };
                        let mut at = 0;
                        while at < vectors {
                            let first = right.wrapping_add(at * V::LANES);
                            let right = InPlace { first, pitch };
                            // SAFETY: the caller's promise, of vectors from `at` on.
                            unsafe {
                                let sums = sums.add(at * V::LANES);
                                if at + wide > vectors {
                                    tile::<V, $rows, 1>(depth, left, &right, sums, stride);
                                    at += 1;
                                } else if const { V::TILE_ROWS == MOST_ROWS } {
                                    tile::<V, $rows, $many>(depth, left, &right, sums, stride);
                                    at += wide;
                                } else {
                                    tile::<V, $rows, $few>(depth, left, &right, sums, stride);
                                    at += wide;
                                }
                            }
                        }
                        return;
                    }
                )*
                unreachable!("no tile has {rows} rows");
            }};
        }
        sizes!(1: 12 or 24 2: 6 or 12 3: 4 or 8 4: 3 or 6 5: 1 or 4 6: 1 or 4 7: 1 or 3 8: 1 or 3)
    }
}

/// Terms from a load in place to what is asked for meanwhile.
const AHEAD: isize = 8;

/// Rows of the largest register tile.
const MOST_ROWS: usize = 8;

/// The right operand of a tile.
trait Right<V> {
    /// A vector of its columns, of a term.
    ///
    /// # Safety
    /// It is there; the processor has V's level.
    unsafe fn load(&self, term: usize, vector: usize) -> V;
}

/// Groups of [`TILE_VECTORS`] vectors.
struct Packed(*const f32);

impl<V: Vector> Right<V> for Packed {
    #[inline(always)]
    unsafe fn load(&self, term: usize, vector: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(self.0.add((term * TILE_VECTORS + vector) * V::LANES)) }
    }
}

/// Elements in memory, `pitch` from term to term.
struct InPlace<T> {
    first: *const T,
    pitch: isize,
}

impl<V: Vector, T: Half> Right<V> for InPlace<T> {
    #[inline(always)]
    unsafe fn load(&self, term: usize, vector: usize) -> V {
        let at = self.first.wrapping_offset(term as isize * self.pitch).wrapping_add(vector * V::LANES);
        // A row of the operand is often a page or more: no prefetcher follows.
        V::prefetch(at.wrapping_offset(AHEAD * self.pitch).cast());
        // SAFETY: the caller's promise.
        unsafe { T::load::<V>(at) }
    }
}

/// # Safety
/// As [`add_products`].
#[inline(always)]
// Plain loops compile faster than chains of iterators, and there are many sizes.
#[allow(clippy::needless_range_loop)]
unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(
    depth: usize,
    left: *const f32,
    right: &impl Right<V>,
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise covers every address: row < ROWS, vector < VECTORS and d < depth.
    unsafe {
        let mut tile = [[V::splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                tile[row][vector] = V::load(sums.add(row * stride + vector * V::LANES));
            }
        }
        for d in 0..depth {
            let left = left.add(d * V::TILE_ROWS);
            let mut columns = [V::splat(0.0); VECTORS];
            for vector in 0..VECTORS {
                columns[vector] = right.load(d, vector);
            }
            for row in 0..ROWS {
                let factor = V::splat(*left.add(row));
                for vector in 0..VECTORS {
                    tile[row][vector] = factor.mul_add(columns[vector], tile[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                tile[row][vector].store(sums.add(row * stride + vector * V::LANES));
            }
        }
    }
}
