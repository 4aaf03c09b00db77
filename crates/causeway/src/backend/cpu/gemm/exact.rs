//! The exact algorithm: one chain of f32 fused multiply-adds per output, in increasing reduction index.
//!
//! Vectors run across outputs, tiles are cut as [`tiles`](super::tiles) likes, and sums wait between the blocks
//! of the reduction as f32, which they are anyway: the bits are those of the plain loop.

use std::ops::Range;

use super::chain;
use super::half::Half;
use super::matrix::{Matrix, MatrixMut};
use super::pack::{self, DEPTH};
use super::scratch::Scratch;
use super::tiles::{Cut, Tile};
use super::vector::{self, Part, TILE_VECTORS, Vector};
use crate::backend::cpu::{Cpu, Level};

/// Largest tile, so that its sums and both packed blocks stay in a second-level cache of 2 MiB.
const LARGEST_TILE: (usize, usize) = (256, 576);

/// The [`work`](super::tiles::work) below which another thread costs more than it gives.
pub const WORTH_A_THREAD: usize = 1 << 20;

/// `output = left · right`, by chains. `right` is transposed: its rows are the output's columns. Another thread has to be worth
/// `worth_a_thread` of [`work`](super::tiles::work).
pub fn multiply<T: Half>(
    cpu: Cpu,
    left: &Matrix<T>,
    right: &Matrix<T>,
    output: &MatrixMut<T>,
    worth_a_thread: usize,
) {
    let (kernel, register) = kernel(cpu);
    let cut = Cut { register, largest: LARGEST_TILE, worth_a_thread };
    cut.for_each(output.rows, output.columns, left.columns, |tile| {
        // SAFETY: this processor runs the kernel; tiles lie inside the output and no two overlap.
        unsafe { kernel(left, right, output, &tile) };
    });
}

/// Computes one tile; see [`compute`].
pub type Kernel<T> = unsafe fn(&Matrix<T>, &Matrix<T>, &MatrixMut<T>, &Tile);

/// The kernel of a level, and the rows and columns of its register tile.
pub fn kernel<T: Half>(cpu: Cpu) -> (Kernel<T>, (usize, usize)) {
    fn register_tile<V: Vector>() -> (usize, usize) {
        (V::TILE_ROWS, TILE_VECTORS * V::LANES)
    }
    match cpu.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => (avx512::<T>, register_tile::<vector::Avx512>()),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (avx2::<T>, register_tile::<vector::Avx2>()),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => (compute::<vector::Neon, T>, register_tile::<vector::Neon>()),
        _ => (compute::<vector::Portable, T>, register_tile::<vector::Portable>()),
    }
}

/// # Safety
/// As [`compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<T: Half>(left: &Matrix<T>, right: &Matrix<T>, output: &MatrixMut<T>, tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { compute::<vector::Avx512, T>(left, right, output, tile) }
}

/// # Safety
/// As [`compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: Half>(left: &Matrix<T>, right: &Matrix<T>, output: &MatrixMut<T>, tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { compute::<vector::Avx2, T>(left, right, output, tile) }
}

/// Computes one tile. `right` is transposed: its rows are the output's columns, its columns the reduction.
///
/// # Safety
/// The tile lies inside the output and belongs to this call; the operands' sizes agree; the processor has V's
/// level.
#[inline(always)]
unsafe fn compute<V: Vector, T: Half>(
    left: &Matrix<T>,
    right: &Matrix<T>,
    output: &MatrixMut<T>,
    tile: &Tile,
) {
    let (rows, columns, reduction) = (tile.rows.len(), tile.columns.len(), left.columns);
    let panel_columns = TILE_VECTORS * V::LANES;
    // Panels are whole, so rows of the sums are too.
    let (height, stride) = (rows.next_multiple_of(V::TILE_ROWS), columns.next_multiple_of(panel_columns));
    // Columns that are read where they are.
    let is_used_once = rows <= V::TILE_ROWS && right.row_stride == 1;
    let in_place = if is_used_once { columns / V::LANES } else { 0 };
    let packed_columns = tile.columns.start + in_place * V::LANES..tile.columns.end;
    let deepest = DEPTH.min(reduction);
    let mut scratch = Scratch::take();
    let [sums, left_block, right_block] =
        scratch.split::<f32, 3>([rows * stride, height * deepest, stride * deepest]);
    sums.fill(0.0);
    for start in (0..reduction).step_by(DEPTH) {
        let block = start..reduction.min(start + DEPTH);
        let depth = block.len();
        let packed_left = &mut left_block[..height * depth];
        let packed_right = &mut right_block[..packed_columns.len().next_multiple_of(panel_columns) * depth];
        // SAFETY: tile and block lie inside the operands, and the slices hold whole panels; columns that are neighbours are vectors.
        unsafe {
            pack::pack::<V, T>(left, tile.rows.clone(), block.clone(), V::TILE_ROWS, packed_left);
            pack::pack::<V, T>(right, packed_columns.clone(), block.clone(), panel_columns, packed_right);
            if in_place > 0 {
                let first = right.at(tile.columns.start, block.start);
                chain::add_products_in_place::<V, T>(
                    (rows, in_place),
                    depth,
                    packed_left.as_ptr(),
                    (first, right.column_stride),
                    sums.as_mut_ptr(),
                    stride,
                );
            }
        }
        let columns = in_place * V::LANES..columns;
        let sums = &mut *sums;
        // SAFETY: the caller's promise.
        unsafe {
            V::apart(Panels { left: packed_left, right: packed_right, rows, columns, depth, sums, stride })
        };
    }
    // SAFETY: the tile lies inside the output and belongs to this call.
    unsafe { output.store_rows::<V>(tile.rows.clone(), tile.columns.clone(), sums, stride) };
}

/// Packed panels of a block, and the sums of a tile that their products are added to. What they were packed from does not matter.
struct Panels<'a> {
    left: &'a [f32],
    right: &'a [f32],
    rows: usize,
    /// Those of the right panels.
    columns: Range<usize>,
    depth: usize,
    sums: &'a mut [f32],
    /// From row to row of the sums: a multiple of the width of right panels.
    stride: usize,
}

impl<V: Vector> Part<V> for Panels<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let Panels { left, right, rows, columns, depth, sums, stride } = self;
        let panel_columns = TILE_VECTORS * V::LANES;
        let mut row = 0;
        for left in left.chunks_exact(depth * V::TILE_ROWS) {
            let panel_rows = V::TILE_ROWS.min(rows - row);
            let mut column = columns.start;
            for right in right.chunks_exact(depth * panel_columns) {
                let vectors = TILE_VECTORS.min((columns.end - column).div_ceil(V::LANES));
                let sums = sums[row * stride + column..].as_mut_ptr();
                // SAFETY: both panels hold `depth` groups; `panel_rows` rows of the sums hold `vectors`
                // vectors, since `stride` is a multiple of the panel's width.
                unsafe {
                    chain::add_products::<V>(
                        (panel_rows, vectors),
                        depth,
                        left.as_ptr(),
                        right.as_ptr(),
                        sums,
                        stride,
                    );
                }
                column += panel_columns;
            }
            row += V::TILE_ROWS;
        }
    }
}
