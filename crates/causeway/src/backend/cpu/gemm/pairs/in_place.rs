//! Not many rows, and a right operand whose columns are neighbours in memory: it is read where it is, since packing it costs more than so
//! few rows make of it. Two terms of 32 columns are interleaved in registers, which the instructions that multiply leave room for.
//!
//! ```text
//!                     right, a term: [ 32 columns ]  [ 32 columns ]
//!                     the next one:  [ 32 columns ]  [ 32 columns ]    → pairs, of two vectors each
//! left, a pair of each row, packed                                     → 16 sums for each row and vector
//! ```
//!
//! A sum takes its pairs in the order in which the packed kernel ([`avx512_bf16`]) does: the bits are the same.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::pack::{Least, Smallest, pack};
use super::{PANEL_STEP, STEP, TILE, WORTH_A_THREAD, avx512_bf16, panels, round};
use crate::backend::cpu::gemm::exact;
use crate::backend::cpu::gemm::matrix::{Matrix, MatrixMut};
use crate::backend::cpu::gemm::scratch::Scratch;
use crate::backend::cpu::gemm::tiles::{Cut, Tile};

/// Most rows whose sums the registers hold.
const ROWS_TOGETHER: usize = 12;

/// Most rows of the output. With more, packing takes no longer than interleaving once more for each twelve.
const ROWS: usize = 2 * ROWS_TOGETHER;

/// Most panels of columns of a tile.
const PANELS: usize = 16;

/// Terms of a block of the left operand, which is packed.
const DEPTH: usize = 1024;

/// Terms that are read of all columns of a tile before the next ones: no more pages than the first-level TLB holds, a kilobyte of
/// each.
const TERMS: usize = 64;

/// How tiles are cut.
pub const CUT: Cut =
    Cut { register: (ROWS, TILE), largest: (ROWS, PANELS * TILE), worth_a_thread: WORTH_A_THREAD };

/// Whether a product is to be computed here, by a processor with AVX-512 BF16 that is as fast as with f32.
pub fn suits(right: &Matrix<bf16>, rows: usize) -> bool {
    rows <= ROWS && right.row_stride == 1
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
    let (rows, reduction) = (tile.rows.len(), left.columns);
    let groups = rows.div_ceil(ROWS_TOGETHER);
    let group = rows.div_ceil(groups);
    let pairs = DEPTH.min(reduction).next_multiple_of(STEP) / 2;
    let mut scratch = Scratch::take();
    let [packed, sums] =
        scratch.split::<u32, 2>([TILE * pairs, tile.columns.len().next_multiple_of(TILE) * rows]);
    let sums: &mut [f32] = bytemuck::cast_slice_mut(sums);
    sums.fill(0.0);
    let mut left_smallest = Smallest::NONE;
    let mut least = [Least::new(Smallest::NONE); PANELS];
    for start in (0..reduction).step_by(DEPTH) {
        let block = start..reduction.min(start + DEPTH);
        let packed = &mut packed[..PANEL_STEP * block.len().div_ceil(STEP)];
        // SAFETY: rows and block lie inside the operand.
        unsafe { pack::<false>(left, &tile.rows, &block, packed, &mut left_smallest) };
        for (terms, left) in block.clone().step_by(TERMS).zip(packed.chunks(TERMS / STEP * PANEL_STEP)) {
            let terms = terms..block.end.min(terms + TERMS);
            for first in (0..rows).step_by(group) {
                let part = Part { left, right, terms: terms.clone(), first, all_rows: rows };
                // SAFETY: the caller's promise.
                unsafe { part.add(rows.min(first + group) - first, &tile.columns, sums, &mut least) };
            }
        }
    }
    for (columns, sums) in panels(&tile.columns).zip(sums.chunks_exact_mut(rows * TILE)) {
        // SAFETY: these outputs lie inside the tile.
        unsafe {
            sort(sums);
            round(sums, output, tile.rows.clone(), columns);
        }
    }
    drop(scratch);
    for (columns, least) in panels(&tile.columns).zip(least) {
        if left_smallest.may_underflow(least.get()) {
            // SAFETY: as this function's, for a part of its tile.
            unsafe { chain(left, right, output, &Tile { rows: tile.rows.clone(), columns }) };
        }
    }
}

/// Puts the sums of a panel into the order of its columns. Interleaving takes four columns in turns for the first vector and for the second.
///
/// # Safety
/// The processor has the feature.
#[target_feature(enable = "avx512f")]
unsafe fn sort(sums: &mut [f32]) {
    for row in sums.chunks_exact_mut(TILE) {
        let row: *mut f64 = row.as_mut_ptr().cast();
        // SAFETY: a row is two vectors of eight pairs of sums.
        unsafe {
            let (first, second) = (_mm512_loadu_pd(row), _mm512_loadu_pd(row.add(TILE / 4)));
            let low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            let high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
            _mm512_storeu_pd(row, _mm512_permutex2var_pd(first, low, second));
            _mm512_storeu_pd(row.add(TILE / 4), _mm512_permutex2var_pd(first, high, second));
        }
    }
}

/// Some rows, and some terms of them.
struct Part<'a> {
    /// Steps of the left panel.
    left: &'a [u32],
    right: &'a Matrix<'a, bf16>,
    terms: Range<usize>,
    /// The first of the rows, and how many there are in the tile.
    first: usize,
    all_rows: usize,
}

impl Part<'_> {
    /// Adds products of `rows` rows with all columns to their sums, and notes the smallest magnitudes of the columns.
    ///
    /// # Safety
    /// Terms and columns lie in the operand, whose columns are neighbours; for each panel of columns `sums` has a vector and another one for
    /// each row of the tile; the processor has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add(&self, rows: usize, columns: &Range<usize>, sums: &mut [f32], least: &mut [Least]) {
        // As many panels of columns as there are registers for their sums.
        macro_rules! walk {
            ($($rows:literal: $together:literal),*) => {
                match rows {
                    $($rows => {
                        let (mut at, mut panel) = (columns.start, 0);
                        while at < columns.end {
                            let sums = sums[panel * self.all_rows * TILE..].as_mut_ptr();
                            // SAFETY: the caller's promise; panels from `panel` on lie in the tile.
                            unsafe {
                                if at + $together * TILE <= columns.end {
                                    self.add_panels::<$rows, $together>(at, u32::MAX, sums, &mut least[panel..]);
                                    (at, panel) = (at + $together * TILE, panel + $together);
                                } else {
                                    let mask = u32::MAX >> (TILE - TILE.min(columns.end - at));
                                    self.add_panels::<$rows, 1>(at, mask, sums, &mut least[panel..]);
                                    (at, panel) = (at + TILE, panel + 1);
                                }
                            }
                        }
                    })*
                    _ => unreachable!("no group has {rows} rows"),
                }
            };
        }
        walk!(1: 8, 2: 4, 3: 3, 4: 2, 5: 2, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1);
    }

    /// As [`Part::add`], for `P` panels of columns; `mask` has the columns that exist in each.
    ///
    /// # Safety
    /// As [`Part::add`].
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add_panels<const R: usize, const P: usize>(
        &self,
        column: usize,
        mask: u32,
        sums: *mut f32,
        least: &mut [Least],
    ) {
        let pitch = self.right.column_stride;
        let at = |p: usize, r: usize, half: usize| {
            sums.wrapping_add((p * self.all_rows + self.first + r) * TILE + half * TILE / 2)
        };
        let mut tile = [[[_mm512_setzero_ps(); 2]; P]; R];
        for (r, tile) in tile.iter_mut().enumerate() {
            for (p, tile) in tile.iter_mut().enumerate() {
                for (half, sum) in tile.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    *sum = unsafe { _mm512_loadu_ps(at(p, r, half)) };
                }
            }
        }
        let mut seen = [Least::new(Smallest::NONE); P];
        for (seen, &least) in seen.iter_mut().zip(least.iter()) {
            *seen = least;
        }
        let left = self.left.as_ptr().wrapping_add(self.first * (STEP / 2));
        let mut from = self.right.at(column, self.terms.start);
        for pair in 0..self.terms.len().div_ceil(2) {
            let has_second = 2 * pair + 1 < self.terms.len();
            let left = left.wrapping_add(pair / (STEP / 2) * PANEL_STEP + pair % (STEP / 2));
            for (p, seen) in seen.iter_mut().enumerate() {
                let first = from.wrapping_add(p * TILE);
                let second = first.wrapping_offset(pitch);
                // The next terms of these columns, which may be none: rows are often pages apart, and no prefetcher follows.
                _mm_prefetch::<_MM_HINT_T1>(first.wrapping_offset(TERMS as isize * pitch).cast());
                _mm_prefetch::<_MM_HINT_T1>(second.wrapping_offset(TERMS as isize * pitch).cast());
                // SAFETY: the masks keep the loads within columns and terms.
                let (even, odd) = unsafe {
                    if mask == u32::MAX && has_second {
                        (_mm512_loadu_si512(first.cast()), _mm512_loadu_si512(second.cast()))
                    } else {
                        let second_mask = if has_second { mask } else { 0 };
                        let even = _mm512_maskz_loadu_epi16(mask, first.cast());
                        (even, _mm512_maskz_loadu_epi16(second_mask, second.cast()))
                    }
                };
                seen.include(even);
                seen.include(odd);
                let columns = [_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)];
                for (r, tile) in tile.iter_mut().enumerate() {
                    // SAFETY: a step has 16 pairs of each row; its two tiles lie one after the other.
                    let factor = unsafe { left.add(r * (STEP / 2)).cast::<i32>().read() };
                    let factor = avx512_bf16::pairs(_mm512_set1_epi32(factor));
                    for (sum, column) in tile[p].iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, factor, avx512_bf16::pairs(column));
                    }
                }
            }
            from = from.wrapping_offset(2 * pitch);
        }
        for (least, &seen) in least.iter_mut().zip(&seen) {
            *least = seen;
        }
        for (r, tile) in tile.iter().enumerate() {
            for (p, tile) in tile.iter().enumerate() {
                for (half, sum) in tile.iter().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { _mm512_storeu_ps(at(p, r, half), *sum) };
                }
            }
        }
    }
}
