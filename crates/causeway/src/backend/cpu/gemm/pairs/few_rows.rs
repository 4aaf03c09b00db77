//! A few rows, and a right operand whose terms are neighbours in memory, as the weight of a linear layer has them: vectors run along the
//! terms, and the right operand is read where it is, once.
//!
//! ```text
//! right, a row for each column of the output    [ 32 terms ]   of some columns
//! left, packed                                  [ 32 terms ]   of each row      → 16 sums for each row and column
//! ```
//!
//! The sixteen sums of an output are added at the end of a block of terms, pairwise; blocks are added in their order.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::pack::{Least, Smallest};
use super::{STEP, WORTH_A_THREAD, avx512_bf16};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::gemm::exact;
use crate::backend::cpu::gemm::matrix::{Matrix, MatrixMut};
use crate::backend::cpu::gemm::scratch::Scratch;
use crate::backend::cpu::gemm::tiles::{Cut, Tile};
use crate::backend::cpu::gemm::vector::Avx512;

/// Most rows of the output.
const ROWS: usize = 8;

/// Most columns of a tile.
const COLUMNS: usize = 256;

/// Terms of a block: eight rows of them stay in a second-level cache.
const DEPTH: usize = 4096;

const CUT: Cut = Cut { register: (ROWS, 4), largest: (ROWS, COLUMNS), worth_a_thread: WORTH_A_THREAD };

/// Whether a product is to be computed here, by a processor with AVX-512 BF16.
pub fn suits(right: &Matrix<bf16>, output: &MatrixMut<bf16>) -> bool {
    output.rows <= ROWS && right.column_stride == 1
}

/// `output = left · right`. `right` is transposed: its rows are the output's columns.
///
/// # Safety
/// [`suits`], and the processor has AVX-512 with BF16.
pub unsafe fn multiply(cpu: Cpu, left: &Matrix<bf16>, right: &Matrix<bf16>, output: &MatrixMut<bf16>) {
    let (chain, _) = exact::kernel::<bf16>(cpu);
    CUT.for_each(output.rows, output.columns, left.columns, |tile| {
        // SAFETY: the caller's promise; tiles lie inside the output and no two overlap.
        unsafe { compute(left, right, output, &tile, chain) };
    });
}

/// # Safety
/// The tile lies inside the output and belongs to this call; the operands' sizes agree; [`suits`], and the processor has AVX-512
/// with BF16 and the level of `chain`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn compute(
    left: &Matrix<bf16>,
    right: &Matrix<bf16>,
    output: &MatrixMut<bf16>,
    tile: &Tile,
    chain: exact::Kernel<bf16>,
) {
    let (rows, columns, reduction) = (tile.rows.len(), tile.columns.len(), left.columns);
    let pitch = DEPTH.min(reduction.next_multiple_of(STEP));
    let mut scratch = Scratch::take();
    let [packed] = scratch.split::<u16, 1>([rows * pitch]);
    let mut sums = [[0.0f32; COLUMNS]; ROWS];
    let mut left_smallest = Smallest::NONE;
    let mut right_smallest = [Smallest::NONE; COLUMNS];
    for start in (0..reduction).step_by(DEPTH) {
        let block = start..reduction.min(start + DEPTH);
        for (row, packed) in tile.rows.clone().zip(packed.chunks_exact_mut(pitch)) {
            for (term, value) in block.clone().zip(packed.iter_mut()) {
                // SAFETY: row and term lie in the operand.
                *value = unsafe { left.at(row, term).read() }.to_bits();
            }
            packed[block.len()..].fill(0);
            packed.iter().for_each(|&bits| left_smallest.include(bits));
        }
        let of_block = OfBlock { packed, pitch, right, block };
        macro_rules! walk {
            ($($rows:literal: $together:literal),*) => {
                match rows {
                    $($rows => {
                        let mut at = 0;
                        while at < columns {
                            let column = tile.columns.start + at;
                            let (sums, smallest) = (&mut sums, &mut right_smallest[at..]);
                            // SAFETY: the caller's promise; columns from `at` on lie in the tile.
                            unsafe {
                                if at + $together <= columns {
                                    of_block.add::<$rows, $together>(column, at, sums, smallest);
                                    at += $together;
                                } else {
                                    of_block.add::<$rows, 1>(column, at, sums, smallest);
                                    at += 1;
                                }
                            }
                        }
                    })*
                    _ => unreachable!("no tile has {rows} rows"),
                }
            };
        }
        walk!(1: 4, 2: 4, 3: 4, 4: 4, 5: 2, 6: 2, 7: 2, 8: 2);
    }
    for (row, sums) in tile.rows.clone().zip(&sums) {
        // SAFETY: the row's columns lie inside the output and belong to this call.
        unsafe { output.store_row::<Avx512>(row, tile.columns.clone(), sums) };
    }
    drop(scratch);
    for (column, smallest) in tile.columns.clone().zip(right_smallest) {
        if left_smallest.may_underflow(smallest) {
            // SAFETY: as this function's, for a part of its tile.
            unsafe {
                chain(left, right, output, &Tile { rows: tile.rows.clone(), columns: column..column + 1 })
            };
        }
    }
}

/// The operands, as far as a block of terms goes.
struct OfBlock<'a> {
    /// Of the left one, rows that are `pitch` apart and end in zeros.
    packed: &'a [u16],
    pitch: usize,
    right: &'a Matrix<'a, bf16>,
    block: Range<usize>,
}

impl OfBlock<'_> {
    /// Adds the products of all rows with `C` columns to the sums from `at` on, and notes the smallest magnitudes of these columns.
    ///
    /// # Safety
    /// The columns and the block lie in the operand, whose terms are contiguous; `packed` has `R` rows, and `pitch` is no less than the
    /// block in whole steps; the processor has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add<const R: usize, const C: usize>(
        &self,
        column: usize,
        at: usize,
        sums: &mut [[f32; COLUMNS]; ROWS],
        smallest: &mut [Smallest],
    ) {
        let mut tile = [[_mm512_setzero_ps(); C]; R];
        let mut least = [Least::new(Smallest::NONE); C];
        for (least, &smallest) in least.iter_mut().zip(smallest.iter()) {
            *least = Least::new(smallest);
        }
        for (step, term) in self.block.clone().step_by(STEP).enumerate() {
            let mask = u32::MAX >> (STEP - STEP.min(self.block.end - term));
            let mut columns = [_mm512_setzero_si512(); C];
            for (c, value) in columns.iter_mut().enumerate() {
                // SAFETY: the mask keeps the load within the terms of a column.
                *value = unsafe { _mm512_maskz_loadu_epi16(mask, self.right.at(column + c, term).cast()) };
                least[c].include(*value);
            }
            for (r, tile) in tile.iter_mut().enumerate() {
                // SAFETY: rows are whole steps.
                let row = unsafe {
                    _mm512_loadu_si512(self.packed.as_ptr().add(r * self.pitch + step * STEP).cast())
                };
                for (sum, &value) in tile.iter_mut().zip(&columns) {
                    *sum = _mm512_dpbf16_ps(*sum, avx512_bf16::pairs(row), avx512_bf16::pairs(value));
                }
            }
        }
        for (sums, tile) in sums.iter_mut().zip(&tile) {
            for (sum, &lanes) in sums[at..].iter_mut().zip(tile) {
                *sum += _mm512_reduce_add_ps(lanes);
            }
        }
        for (smallest, &least) in smallest.iter_mut().zip(&least) {
            *smallest = least.get();
        }
    }
}
