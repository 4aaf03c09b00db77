//! Matrix products on the tile registers of Intel AMX, for bf16.
//!
//! One instruction multiplies a tile of 16 × 32 bf16 with one of 32 × 16 and adds the product to 16 × 16 sums in
//! f32: as much as 512 vector ones. Each sum takes two neighbouring terms at a time, in increasing order,
//! whatever the cut into tiles and the number of threads.
//!
//! # Small numbers
//!
//! The unit takes subnormal operands for zero and flushes subnormal results to zero. Whether that can have
//! happened is seen while packing, from the smallest magnitude in each panel: with `a` and `b` the exponents of
//! the smallest non-zero numbers of two panels, all products, and all of their sums, are multiples of
//! 2^(a-7) · 2^(b-7). If that is a normal f32, nothing can be flushed. If not, the 32 × 32 outputs of the two
//! panels are computed again, as chains of fused multiply-adds.

mod pack;
mod transpose;
mod unit;

use std::ops::Range;

use half::bf16;

use self::pack::{Smallest, pack};
use self::unit::{Configured, STEP, TILE};
use super::exact;
use super::matrix::{Matrix, MatrixMut};
use super::scratch::Scratch;
use super::tiles::{Cut, Tile};
use super::vector::Avx512;
use crate::backend::cpu::{Cpu, Level};

/// Deepest block of the reduction: a panel of the right operand then stays in the L1 cache.
const DEPTH: usize = 512;

/// How tiles are cut: sums and both packed blocks share a second-level cache of 2 MiB.
const CUT: Cut = Cut { register: (TILE, TILE), largest: (512, 384), worth_a_thread: 1 << 21 };

/// Outputs with fewer rows or columns leave most of a tile register empty.
const SMALLEST: usize = 8;

/// Whether products of this size are to be computed here.
pub fn suits(cpu: Cpu, rows: usize, columns: usize) -> bool {
    cpu.level() == Level::Avx512 && rows.min(columns) >= SMALLEST && unit::is_available()
}

/// `output = left · right`. `right` is transposed: its rows are the output's columns.
///
/// # Safety
/// [`suits`] has said yes.
pub unsafe fn multiply(cpu: Cpu, left: &Matrix<bf16>, right: &Matrix<bf16>, output: &MatrixMut<bf16>) {
    let (chain, _) = exact::kernel::<bf16>(cpu);
    CUT.for_each(output.rows, output.columns, left.columns, |tile| {
        // SAFETY: the caller's promise; tiles lie inside the output and no two overlap.
        unsafe { compute(left, right, output, &tile, chain) };
    });
}

/// # Safety
/// The tile lies inside the output and belongs to this call; the operands' sizes agree; the processor has the
/// unit, and the level of `chain`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn compute(
    left: &Matrix<bf16>,
    right: &Matrix<bf16>,
    output: &MatrixMut<bf16>,
    tile: &Tile,
    chain: exact::Kernel<bf16>,
) {
    let reduction = left.columns;
    let (height, stride) =
        (tile.rows.len().next_multiple_of(TILE), tile.columns.len().next_multiple_of(TILE));
    // In pairs of bf16, which is what the unit works in.
    let deepest = DEPTH.min(reduction).next_multiple_of(STEP) / 2;
    let mut scratch = Scratch::take();
    let [sums, left_block, right_block] =
        scratch.split::<u32, 3>([height * stride, height * deepest, stride * deepest]);
    if reduction == 0 {
        sums.fill(0);
    }
    let mut left_smallest = [Smallest::NONE; CUT.largest.0 / TILE];
    let mut right_smallest = [Smallest::NONE; CUT.largest.1 / TILE];
    for start in (0..reduction).step_by(DEPTH) {
        let block = start..reduction.min(start + DEPTH);
        let steps = block.len().div_ceil(STEP);
        let panel = TILE * STEP / 2 * steps;
        let left_block = &mut left_block[..height / TILE * panel];
        let right_block = &mut right_block[..stride / TILE * panel];
        // SAFETY: tile and block lie inside the operands.
        unsafe {
            pack::<false>(left, tile.rows.clone(), block.clone(), left_block, &mut left_smallest);
            pack::<true>(right, tile.columns.clone(), block, right_block, &mut right_smallest);
        }
        // SAFETY: the caller's promise.
        let unit = unsafe { Configured::new() };
        for (column, right) in right_block.chunks_exact(panel).enumerate() {
            for (row, left) in left_block.chunks_exact(panel).enumerate() {
                let sums = &mut sums[row * TILE * stride + column * TILE..];
                unit.add_products(start == 0, left, right, sums, stride);
            }
        }
    }
    let sums: &[f32] = bytemuck::cast_slice(sums);
    for (row, sums) in tile.rows.clone().zip(sums.chunks_exact(stride)) {
        // SAFETY: the row's columns lie inside the output and belong to this call.
        unsafe { output.store_row::<Avx512>(row, tile.columns.clone(), sums) };
    }
    drop(scratch);
    for (rows, left_smallest) in panels(&tile.rows).zip(left_smallest) {
        for (columns, right_smallest) in panels(&tile.columns).zip(right_smallest) {
            if left_smallest.may_underflow(right_smallest) {
                // SAFETY: as this function's, for a part of its tile.
                unsafe { chain(left, right, output, &Tile { rows: rows.clone(), columns }) };
            }
        }
    }
}

/// Ranges of [`TILE`], the last one shorter.
fn panels(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(TILE).map(move |start| start..end.min(start + TILE))
}
