//! Matrix products by instructions that take bf16 in pairs: [`amx`], [`avx512_bf16`] where there is no AMX, and [`few_rows`].
//!
//! In which order a sum takes its terms is fixed by the sizes and strides of a product, whatever the tiling and the number of threads.
//!
//! # Small numbers
//!
//! These instructions take subnormal operands for zero and flush subnormal results to zero. Whether that can have
//! happened is seen while packing, from the smallest magnitude in each panel: with `a` and `b` the exponents of
//! the smallest non-zero numbers of two panels, all products, and all of their sums, are multiples of
//! 2^(a-7) · 2^(b-7). If that is a normal f32, nothing can be flushed. If not, the 32 × 32 outputs of the two
//! panels are computed again, as chains of fused multiply-adds.

mod amx;
mod avx512_bf16;
mod few_rows;
mod pack;
mod transpose;

use std::ops::Range;

use half::bf16;

use self::amx::Amx;
use self::avx512_bf16::Avx512Bf16;
use self::pack::{Smallest, pack};
use super::exact;
use super::matrix::{Matrix, MatrixMut};
use super::scratch::Scratch;
use super::tiles::{Cut, Tile};
use super::vector::Avx512;
use crate::backend::cpu::{Cpu, Level};

/// Rows and columns of the sums that two panels give.
const TILE: usize = 32;

/// Terms of a step of a panel.
const STEP: usize = 32;

/// Pairs of a step.
const PANEL_STEP: usize = TILE * STEP / 2;

/// Panels of either operand that a tile has at most.
const MOST_PANELS: usize = 16;

/// Outputs with fewer rows or columns leave most of a tile empty.
const FEWEST: usize = 8;

/// What adds the products of two panels.
trait Adder: Sized {
    /// Deepest block of the reduction.
    const DEPTH: usize;

    /// How tiles are cut for it.
    const CUT: Cut;

    /// # Safety
    /// The processor has the instructions.
    unsafe fn new() -> Self;

    /// Adds the products of two panels to 32 × 32 sums in f32, whose rows are `stride` apart; with `first`, to zero. Only the first
    /// `rows` are asked for.
    ///
    /// # Safety
    /// Panels have whole steps and equal lengths, and are not empty; the sums hold the tile.
    unsafe fn add(&self, first: bool, rows: usize, panels: (&[u32], &[u32]), sums: &mut [u32], stride: usize);

    /// As [`Adder::add`].
    ///
    /// # Panics
    /// If the panels are not of whole steps and equal lengths, or the sums do not hold the tile.
    #[inline]
    fn add_products(
        &self,
        first: bool,
        rows: usize,
        (left, right): (&[u32], &[u32]),
        sums: &mut [u32],
        stride: usize,
    ) {
        assert!(left.len() == right.len() && left.len().is_multiple_of(PANEL_STEP) && !left.is_empty());
        assert!(stride >= TILE && sums.len() >= (TILE - 1) * stride + TILE);
        // SAFETY: as just asserted.
        unsafe { self.add(first, rows, (left, right), sums, stride) };
    }
}

/// What multiplies two matrices.
type Multiply = unsafe fn(Cpu, &Matrix<bf16>, &Matrix<bf16>, &MatrixMut<bf16>);

/// `output = left · right`; false, and nothing done, where this processor, or a product of this size, is better off without pairs.
/// `right` is transposed: its rows are the output's columns.
pub fn multiply(cpu: Cpu, left: &Matrix<bf16>, right: &Matrix<bf16>, output: &MatrixMut<bf16>) -> bool {
    if cpu.level() != Level::Avx512 {
        return false;
    }
    let multiply: Multiply = if few_rows::suits(right, output) {
        few_rows::multiply
    } else if amx::is_available() {
        if output.rows.min(output.columns) < FEWEST {
            return false;
        }
        multiply_with::<Amx>
    } else if avx512_bf16::is_available() {
        // The chain multiplies a few rows without packing, if columns are neighbours.
        if output.columns < FEWEST || output.rows <= FEWEST && right.row_stride == 1 {
            return false;
        }
        multiply_with::<Avx512Bf16>
    } else {
        return false;
    };
    // SAFETY: as just asked.
    unsafe { multiply(cpu, left, right, output) };
    true
}

/// # Safety
/// The processor has AVX-512 and the instructions of `A`.
unsafe fn multiply_with<A: Adder>(
    cpu: Cpu,
    left: &Matrix<bf16>,
    right: &Matrix<bf16>,
    output: &MatrixMut<bf16>,
) {
    let (chain, _) = exact::kernel::<bf16>(cpu);
    A::CUT.for_each(output.rows, output.columns, left.columns, |tile| {
        // SAFETY: the caller's promise; tiles lie inside the output and no two overlap.
        unsafe { compute::<A>(left, right, output, &tile, chain) };
    });
}

/// # Safety
/// The tile lies inside the output and belongs to this call; the operands' sizes agree; the processor has the
/// instructions of `A`, and the level of `chain`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn compute<A: Adder>(
    left: &Matrix<bf16>,
    right: &Matrix<bf16>,
    output: &MatrixMut<bf16>,
    tile: &Tile,
    chain: exact::Kernel<bf16>,
) {
    const { assert!(A::CUT.largest.0 <= MOST_PANELS * TILE && A::CUT.largest.1 <= MOST_PANELS * TILE) };
    let reduction = left.columns;
    let (height, stride) =
        (tile.rows.len().next_multiple_of(TILE), tile.columns.len().next_multiple_of(TILE));
    // In pairs of bf16.
    let deepest = A::DEPTH.min(reduction).next_multiple_of(STEP) / 2;
    let mut scratch = Scratch::take();
    let [sums, left_block, right_block] =
        scratch.split::<u32, 3>([height * stride, height * deepest, stride * deepest]);
    if reduction == 0 {
        sums.fill(0);
    }
    let mut left_smallest = [Smallest::NONE; MOST_PANELS];
    let mut right_smallest = [Smallest::NONE; MOST_PANELS];
    for start in (0..reduction).step_by(A::DEPTH) {
        let block = start..reduction.min(start + A::DEPTH);
        let steps = block.len().div_ceil(STEP);
        let panel = PANEL_STEP * steps;
        let left_block = &mut left_block[..height / TILE * panel];
        let right_block = &mut right_block[..stride / TILE * panel];
        // SAFETY: tile and block lie inside the operands.
        unsafe {
            pack::<false>(left, tile.rows.clone(), block.clone(), left_block, &mut left_smallest);
            pack::<true>(right, tile.columns.clone(), block, right_block, &mut right_smallest);
        }
        // SAFETY: the caller's promise.
        let adder = unsafe { A::new() };
        for (column, right) in right_block.chunks_exact(panel).enumerate() {
            for (row, left) in left_block.chunks_exact(panel).enumerate() {
                let rows = TILE.min(tile.rows.len() - row * TILE);
                let sums = &mut sums[row * TILE * stride + column * TILE..];
                adder.add_products(start == 0, rows, (left, right), sums, stride);
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
