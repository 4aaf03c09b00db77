//! Not many rows, and a right operand whose terms are neighbours in memory, as the weight of a linear layer has them: vectors run along
//! the terms, and the right operand is read where it is.
//!
//! ```text
//! right, a row for each column of the output    [ 32 terms ]   of some columns
//! left, packed                                  [ 32 terms ]   of each row      → 16 sums for each row and column
//! ```
//!
//! Each of the sixteen sums of an output takes its pairs in increasing order; at the end they are added pairwise.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::pack::{Least, Smallest};
use super::transpose::transpose;
use super::{STEP, TILE, WORTH_A_THREAD, avx512_bf16, panels, round};
use crate::backend::cpu::gemm::exact;
use crate::backend::cpu::gemm::matrix::{Matrix, MatrixMut};
use crate::backend::cpu::gemm::scratch::Scratch;
use crate::backend::cpu::gemm::tiles::{Cut, Tile};

/// Most rows whose sums the registers hold.
const ROWS_TOGETHER: usize = 8;

/// Most rows of the output. With more, packing takes no longer than reading once more for each eight.
const ROWS: usize = 3 * ROWS_TOGETHER;

/// With fewer terms than so many times the rows, adding the sixteen sums of each output in the end takes longer than packing.
const LEAST_TERMS_PER_ROW: usize = 48;

/// Most columns of a tile.
const COLUMNS: usize = 256;

/// Lanes of a vector of sums.
const LANES: usize = 16;

/// Terms of a block, of all rows of a group together: half of a first-level cache.
const DEPTH: usize = 1 << 13;

/// How tiles are cut.
pub const CUT: Cut = Cut { register: (ROWS, 16), largest: (ROWS, COLUMNS), worth_a_thread: WORTH_A_THREAD };

/// Whether an output of so many rows and terms is to be computed here, by a processor with AVX-512 BF16. Where there is AMX, no more
/// than a few rows are.
pub fn suits(right: &Matrix<bf16>, rows: usize, terms: usize, has_amx: bool) -> bool {
    let most = if has_amx { ROWS_TOGETHER } else { ROWS };
    rows <= most && terms >= rows * LEAST_TERMS_PER_ROW && right.column_stride == 1
}

/// The outputs of a tile.
///
/// # Safety
/// The tile lies inside the output and belongs to this call; the operands' sizes agree; [`suits`], and the processor has AVX-512
/// with BF16 and the level of `chain`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn compute(
    left: &Matrix<bf16>,
    right: &Matrix<bf16>,
    output: &MatrixMut<bf16>,
    tile: &Tile,
    chain: exact::Kernel<bf16>,
) {
    let (rows, columns, reduction) = (tile.rows.len(), tile.columns.len(), left.columns);
    let group = rows.div_ceil(rows.div_ceil(ROWS_TOGETHER));
    let depth = DEPTH / group.next_power_of_two();
    let pitch = depth.min(reduction.next_multiple_of(STEP));
    let stride = columns.next_multiple_of(LANES);
    let mut scratch = Scratch::take();
    let [packed, lanes] = scratch.split::<u32, 2>([rows * pitch / 2, rows * stride * LANES]);
    let lanes: &mut [f32] = bytemuck::cast_slice_mut(lanes);
    let mut left_least = Least::new(Smallest::NONE);
    let mut right_least = [left_least; COLUMNS];
    for start in (0..reduction).step_by(depth) {
        let block = start..reduction.min(start + depth);
        for (row, packed) in tile.rows.clone().zip(packed.chunks_exact_mut(pitch / 2)) {
            // SAFETY: row and terms lie in the operand.
            unsafe { pack(left, row, block.clone(), packed, &mut left_least) };
        }
        let of_block = OfBlock { packed, pitch, right, block, is_first: start == 0, stride };
        // The first group brings the right operand's rows into a cache for the others.
        let mut at = 0;
        while at < columns {
            let column = tile.columns.start + at;
            // As many columns as there are registers for, the same for each group.
            let most = if group <= 4 { 4 } else { 2 };
            let together = if columns - at >= most { most } else { 1 };
            for first in (0..rows).step_by(group) {
                let lanes = lanes[(first * stride + at) * LANES..].as_mut_ptr();
                let least = &mut right_least[at..at + together];
                // SAFETY: the caller's promise; columns from `at` on lie in the tile.
                unsafe { of_block.add(first..rows.min(first + group), column, lanes, least) };
            }
            at += together;
        }
    }
    let mut sums = [0.0f32; TILE];
    for (row, lanes) in tile.rows.clone().zip(lanes.chunks_exact(stride * LANES)) {
        for (columns, lanes) in panels(&tile.columns).zip(lanes.chunks(TILE * LANES)) {
            for (sums, lanes) in sums.chunks_exact_mut(LANES).zip(lanes.chunks_exact(LANES * LANES)) {
                // SAFETY: these are sixteen sums, and sixteen lanes of each.
                unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), add_lanes(lanes)) };
            }
            // SAFETY: the row's columns lie inside the output and belong to this call.
            unsafe { round(&sums, output, row..row + 1, columns) };
        }
    }
    drop(scratch);
    let (left_smallest, right_least) = (left_least.get(), &right_least[..columns]);
    // One look for all columns: there is seldom a reason for another.
    if !left_smallest.may_underflow(Least::of_all(right_least).get()) {
        return;
    }
    for (column, least) in tile.columns.clone().zip(right_least) {
        if left_smallest.may_underflow(least.get()) {
            // SAFETY: as this function's, for a part of its tile.
            unsafe {
                chain(left, right, output, &Tile { rows: tile.rows.clone(), columns: column..column + 1 })
            };
        }
    }
}

/// Terms of a row, and zeros up to a whole step.
///
/// # Safety
/// They lie in the operand, and `to` has room for whole steps; the processor has the features.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack(left: &Matrix<bf16>, row: usize, terms: Range<usize>, to: &mut [u32], least: &mut Least) {
    for (start, to) in terms.clone().step_by(STEP).zip(to.chunks_exact_mut(STEP / 2)) {
        let count = STEP.min(terms.end - start);
        // SAFETY: the mask keeps the load within the terms; `values` holds 64 bytes.
        let values = unsafe {
            if left.column_stride == 1 {
                _mm512_maskz_loadu_epi16(u32::MAX >> (STEP - count), left.at(row, start).cast())
            } else {
                let mut values = [bf16::ZERO; STEP];
                for (term, value) in (start..start + count).zip(&mut values) {
                    *value = left.at(row, term).read();
                }
                _mm512_loadu_si512(values.as_ptr().cast())
            }
        };
        least.store(values, to);
    }
}

/// The sums of the lanes of sixteen vectors: of each, those that are eight apart, then four, two and one.
///
/// # Safety
/// There are sixteen vectors; the processor has the feature.
#[target_feature(enable = "avx512f")]
unsafe fn add_lanes(vectors: &[f32]) -> __m512 {
    let mut rows = [_mm512_setzero_si512(); LANES];
    for (row, vector) in rows.iter_mut().zip(vectors.chunks_exact(LANES)) {
        // SAFETY: sixteen numbers.
        *row = unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) };
    }
    let mut lanes = [_mm512_setzero_ps(); LANES];
    for (lane, row) in lanes.iter_mut().zip(transpose(rows)) {
        *lane = _mm512_castsi512_ps(row);
    }
    for apart in [8, 4, 2, 1] {
        for lane in 0..apart {
            lanes[lane] = _mm512_add_ps(lanes[lane], lanes[lane + apart]);
        }
    }
    lanes[0]
}

/// The operands, as far as a block of terms goes.
struct OfBlock<'a> {
    /// Of the left one, rows that are `pitch` terms apart and end in zeros.
    packed: &'a [u32],
    pitch: usize,
    right: &'a Matrix<'a, bf16>,
    block: Range<usize>,
    /// Whether there are no sums yet.
    is_first: bool,
    /// Columns from a row of sums to the next one.
    stride: usize,
}

impl OfBlock<'_> {
    /// Adds the products of some rows with one column, two or four, as many as `least` has, and notes the smallest magnitudes of these
    /// columns.
    ///
    /// # Safety
    /// The columns and the block lie in the operand, whose terms are contiguous; `packed` has the rows, and `pitch` is no less than the block
    /// in whole steps; `lanes` has a vector for each column, and for each row; the processor has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add(&self, rows: Range<usize>, column: usize, lanes: *mut f32, least: &mut [Least]) {
        macro_rules! sizes {
            ($($rows:literal by $($columns:literal)*;)*) => {
                match (rows.len(), least.len()) {
                    $($(
                        // SAFETY: the caller's promise.
                        ($rows, $columns) => unsafe {
                            self.add_columns::<$rows, $columns>(rows.start, column, lanes, least)
                        },
                    )*)*
                    (rows, columns) => unreachable!("no group has {rows} rows and {columns} columns"),
                }
            };
        }
        sizes!(1 by 4 1; 2 by 4 1; 3 by 4 1; 4 by 4 2 1; 5 by 2 1; 6 by 2 1; 7 by 2 1; 8 by 2 1;)
    }

    /// As [`OfBlock::add`], for `R` rows and `C` columns.
    ///
    /// # Safety
    /// As [`OfBlock::add`].
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add_columns<const R: usize, const C: usize>(
        &self,
        first: usize,
        column: usize,
        lanes: *mut f32,
        least: &mut [Least],
    ) {
        let mut tile = [[_mm512_setzero_ps(); C]; R];
        let lanes_of = |r: usize, c: usize| lanes.wrapping_add((r * self.stride + c) * LANES);
        if !self.is_first {
            for (r, tile) in tile.iter_mut().enumerate() {
                for (c, sum) in tile.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    *sum = unsafe { _mm512_loadu_ps(lanes_of(r, c)) };
                }
            }
        }
        let mut seen = [Least::new(Smallest::NONE); C];
        for (seen, &least) in seen.iter_mut().zip(least.iter()) {
            *seen = least;
        }
        let packed = self.packed[first * self.pitch / 2..].as_ptr();
        for (step, term) in self.block.clone().step_by(STEP).enumerate() {
            let mask = u32::MAX >> (STEP - STEP.min(self.block.end - term));
            let mut columns = [_mm512_setzero_si512(); C];
            for (c, value) in columns.iter_mut().enumerate() {
                let at = self.right.at(column + c, term);
                // The columns that come next, which may be none.
                _mm_prefetch::<_MM_HINT_T1>(at.wrapping_offset(C as isize * self.right.row_stride).cast());
                // SAFETY: the mask keeps the load within the terms of a column.
                *value = unsafe { _mm512_maskz_loadu_epi16(mask, at.cast()) };
                seen[c].include(*value);
            }
            for (r, tile) in tile.iter_mut().enumerate() {
                // SAFETY: rows are whole steps.
                let row =
                    unsafe { _mm512_loadu_si512(packed.add((r * self.pitch + step * STEP) / 2).cast()) };
                for (sum, &value) in tile.iter_mut().zip(&columns) {
                    *sum = _mm512_dpbf16_ps(*sum, avx512_bf16::pairs(row), avx512_bf16::pairs(value));
                }
            }
        }
        for (least, &seen) in least.iter_mut().zip(&seen) {
            *least = seen;
        }
        for (r, tile) in tile.iter().enumerate() {
            for (c, sum) in tile.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { _mm512_storeu_ps(lanes_of(r, c), *sum) };
            }
        }
    }
}
