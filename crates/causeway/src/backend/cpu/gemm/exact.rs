//! The exact algorithm: one chain of f32 fused multiply-adds per output, in increasing reduction index.
//!
//! ```text
//!              right (depth × columns)
//!             ┌───────┬───────┬──
//!  left       │ packed│       │        The output is cut into tiles, and a task computes one. It walks the
//!  (rows ×  ┌─┼───────┼───────┼──      reduction in blocks: packs a block of both operands, adds its products
//!   depth)  │▒│ tile  │       │        to the tile's f32 sums, and takes the next. At the end it rounds.
//!           ├─┼───────┼───────┼──
//! ```
//!
//! Tiles are cut to feed the threads and the caches. The cut decides who computes a chain, never its order,
//! and sums wait between blocks as f32, which they are anyway: the bits are those of the plain loop. Scratch is
//! one tile and one block of each operand per thread, whatever the size of the matrices.

use rayon::prelude::*;

use super::chain;
use super::half::Half;
use super::matrix::{Matrix, MatrixMut};
use super::pack::{self, DEPTH};
use super::vector::{self, TILE_VECTORS, Vector};
use crate::backend::cpu::{Cpu, Level};

/// Largest tile, so that its sums and both packed blocks stay in a second-level cache of 2 MiB.
const ROWS: usize = 256;
const COLUMNS: usize = 576;

/// Multiply-adds below which another thread costs more than it gives.
const WORTH_A_TASK: usize = 1 << 18;

/// Numbers that fill a cache line, so that vectors never straddle two.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

fn lines(count: usize) -> Vec<Line> {
    vec![Line([0.0; 16]); count.div_ceil(16)]
}

/// What a thread keeps between its tasks.
struct Scratch {
    sums: Vec<Line>,
    left: Vec<Line>,
    right: Vec<Line>,
}

/// `output = left · right`, by chains.
pub fn multiply<T: Half>(cpu: Cpu, left: Matrix<T>, right: Matrix<T>, output: MatrixMut<T>) {
    // Vectors run along the columns. An output whose columns are its long strides is computed as its transpose:
    // a product does not mind the order of its factors, so each chain is the same.
    if output.column_stride.unsigned_abs() > output.row_stride.unsigned_abs() {
        run(cpu, &right.transposed(), &left.transposed(), &output.transposed());
    } else {
        run(cpu, &left, &right, &output);
    }
}

fn run<T: Half>(cpu: Cpu, left: &Matrix<T>, right: &Matrix<T>, output: &MatrixMut<T>) {
    let (rows, columns) = (output.rows, output.columns);
    if rows == 0 || columns == 0 {
        return;
    }
    let right = &right.transposed();
    let level = level(cpu);
    let work = rows.saturating_mul(columns).saturating_mul(left.columns.max(1));
    let threads = rayon::current_num_threads().min(work / WORTH_A_TASK).max(1);
    let (tile_rows, tile_columns) = tile_size((rows, columns), (level.rows, level.columns), threads);
    let across = columns.div_ceil(tile_columns);
    let tasks = rows.div_ceil(tile_rows) * across;

    let depth = DEPTH.min(left.columns);
    let scratch = || Scratch {
        sums: lines(tile_rows * tile_columns),
        left: lines(tile_rows * depth),
        right: lines(tile_columns * depth),
    };
    let task = |scratch: &mut Scratch, index: usize| {
        let (row, column) = (index / across * tile_rows, index % across * tile_columns);
        let tile = Tile {
            rows: row..rows.min(row + tile_rows),
            columns: column..columns.min(column + tile_columns),
        };
        // SAFETY: `level` gave a kernel that this processor runs; the scratch has room for every tile of this
        // size, and no two tasks share an output.
        unsafe { (level.kernel)(left, right, output, &tile, scratch) };
    };
    if threads == 1 {
        let mut scratch = scratch();
        (0..tasks).for_each(|index| task(&mut scratch, index));
    } else {
        (0..tasks).into_par_iter().with_max_len(1).for_each_init(scratch, task);
    }
}

/// A range of outputs.
struct Tile {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
}

/// Tiles of whole register tiles, as large as the caches take, but enough of them to keep the threads busy.
fn tile_size(
    (rows, columns): (usize, usize),
    (register_rows, register_columns): (usize, usize),
    threads: usize,
) -> (usize, usize) {
    // Equal shares, so that the last tile is not a sliver.
    let share = |size: usize, parts: usize, step: usize| size.div_ceil(parts).next_multiple_of(step);
    let (mut down, mut across) = (rows.div_ceil(ROWS), columns.div_ceil(COLUMNS));
    // Several tasks per thread level out the difference between fast and slow ones.
    while threads > 1 && down * across < 4 * threads {
        let (tall, wide) = (share(rows, down, register_rows), share(columns, across, register_columns));
        if tall <= register_rows && wide <= register_columns {
            break;
        }
        if tall * register_columns > wide * register_rows { down *= 2 } else { across *= 2 }
    }
    (share(rows, down, register_rows), share(columns, across, register_columns))
}

type Kernel<T> = unsafe fn(&Matrix<T>, &Matrix<T>, &MatrixMut<T>, &Tile, &mut Scratch);

/// The kernel of a level, and the size of its register tile.
struct AtLevel<T> {
    kernel: Kernel<T>,
    rows: usize,
    columns: usize,
}

fn level<T: Half>(cpu: Cpu) -> AtLevel<T> {
    fn at<V: Vector, T>(kernel: Kernel<T>) -> AtLevel<T> {
        AtLevel { kernel, rows: V::TILE_ROWS, columns: TILE_VECTORS * V::LANES }
    }
    match cpu.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => at::<vector::Avx512, T>(avx512),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => at::<vector::Avx2, T>(avx2),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => at::<vector::Neon, T>(compute::<vector::Neon, T>),
        _ => at::<vector::Portable, T>(compute::<vector::Portable, T>),
    }
}

/// # Safety
/// As [`compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<T: Half>(
    left: &Matrix<T>,
    right: &Matrix<T>,
    output: &MatrixMut<T>,
    tile: &Tile,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe { compute::<vector::Avx512, T>(left, right, output, tile, scratch) }
}

/// # Safety
/// As [`compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: Half>(
    left: &Matrix<T>,
    right: &Matrix<T>,
    output: &MatrixMut<T>,
    tile: &Tile,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe { compute::<vector::Avx2, T>(left, right, output, tile, scratch) }
}

/// Computes one tile. `right` is transposed: its rows are the output's columns, its columns the reduction.
///
/// # Safety
/// The tile lies inside the output and belongs to this call; the scratch has room for it; the operands' sizes
/// agree; the processor has V's level.
#[inline(always)]
unsafe fn compute<V: Vector, T: Half>(
    left: &Matrix<T>,
    right: &Matrix<T>,
    output: &MatrixMut<T>,
    tile: &Tile,
    scratch: &mut Scratch,
) {
    let (rows, columns) = (tile.rows.len(), tile.columns.len());
    let panel_columns = TILE_VECTORS * V::LANES;
    let stride = columns.next_multiple_of(panel_columns);
    let sums: &mut [f32] = &mut bytemuck::cast_slice_mut(&mut scratch.sums)[..rows * stride];
    sums.fill(0.0);
    let reduction = left.columns;
    for start in (0..reduction).step_by(DEPTH) {
        let block = start..reduction.min(start + DEPTH);
        let depth = block.len();
        let packed_left =
            &mut bytemuck::cast_slice_mut(&mut scratch.left)[..rows.next_multiple_of(V::TILE_ROWS) * depth];
        let packed_right = &mut bytemuck::cast_slice_mut(&mut scratch.right)[..stride * depth];
        // SAFETY: tile and block lie inside the operands, and the slices hold whole panels.
        unsafe {
            pack::pack::<V, T>(left, tile.rows.clone(), block.clone(), V::TILE_ROWS, packed_left);
            pack::pack::<V, T>(right, tile.columns.clone(), block, panel_columns, packed_right);
        }
        for (panel, row) in packed_left.chunks_exact(depth * V::TILE_ROWS).zip((0..).step_by(V::TILE_ROWS)) {
            let panel_rows = V::TILE_ROWS.min(rows - row);
            for (right, column) in
                packed_right.chunks_exact(depth * panel_columns).zip((0..).step_by(panel_columns))
            {
                let vectors = TILE_VECTORS.min((columns - column).div_ceil(V::LANES));
                let sums = sums[row * stride + column..].as_mut_ptr();
                // SAFETY: both panels hold `depth` groups; `panel_rows` rows of the sums hold `vectors`
                // vectors, since `stride` is a multiple of the panel's width.
                unsafe {
                    chain::add_products::<V>(
                        (panel_rows, vectors),
                        depth,
                        panel.as_ptr(),
                        right.as_ptr(),
                        sums,
                        stride,
                    );
                }
            }
        }
    }
    for (row, sums) in tile.rows.clone().zip(sums.chunks_exact(stride)) {
        // SAFETY: the row's columns lie inside the output and belong to this call.
        unsafe { store_row::<V, T>(output, row, tile.columns.clone(), sums) };
    }
}

/// Rounds sums into `columns` of a row of the output.
///
/// # Safety
/// These elements exist and belong to this call; `sums` holds as many; the processor has V's level.
#[inline(always)]
unsafe fn store_row<V: Vector, T: Half>(
    output: &MatrixMut<T>,
    row: usize,
    columns: std::ops::Range<usize>,
    sums: &[f32],
) {
    let count = columns.len();
    let vectors = if output.column_stride == 1 { count / V::LANES } else { 0 };
    // SAFETY: every index is below `count`; vectors are written only where neighbours are neighbours in memory.
    unsafe {
        for vector in 0..vectors {
            let at = vector * V::LANES;
            T::store(output.at(row, columns.start + at), V::load(sums.as_ptr().add(at)));
        }
        for (at, &sum) in sums[..count].iter().enumerate().skip(vectors * V::LANES) {
            output.at(row, columns.start + at).write(T::round(sum));
        }
    }
}
