//! Matrix products by instructions that take bf16 in pairs: [`amx`], or [`avx512_bf16`] where there is no AMX, of packed operands; and
//! [`in_place`] and [`few_rows`], which do not pack the right one.
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
mod in_place;
mod pack;
mod transpose;

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use self::amx::Amx;
use self::avx512_bf16::Avx512Bf16;
use self::pack::{Smallest, pack};
use super::exact;
use super::matrix::{Matrix, MatrixMut};
use super::scratch::Scratch;
use super::tiles::{Cut, Tile};
use crate::backend::cpu::{Cpu, Level};

/// Rows and columns of the sums that two panels give.
const TILE: usize = 32;

/// Terms of a step of a panel.
const STEP: usize = 32;

/// Pairs of a step.
const PANEL_STEP: usize = TILE * STEP / 2;

/// Panels of either operand that a tile has at most.
const MOST_PANELS: usize = 16;

/// With fewer rows or columns, most of a tile of AMX is empty.
const FEWEST: usize = 8;

/// 32 × 32 sums, row by row.
type Sums = [f32; TILE * TILE];

/// What is added at a time: the products of two panels.
struct Block<'a> {
    left: &'a [u32],
    right: &'a [u32],
    /// Pairs of terms. What follows them in the last step is zero.
    pairs: usize,
    /// Whether there are no sums yet: then those of the products are.
    is_first: bool,
    /// Rows and columns of the sums that are asked for, some at least. The others may hold anything.
    size: (usize, usize),
    /// What is packed next, of either operand.
    ahead: [Ahead; 2],
}

/// Where a panel that will be packed lies in its operand, to be prefetched while other panels are multiplied: its lines are a row
/// apart, so that the processor's own prefetcher does not follow. Every row that is multiplied asks for a part of them.
#[derive(Clone, Copy)]
struct Ahead {
    first: *const u8,
    /// Bytes between neighbouring lines of a step, and between steps.
    line: isize,
    step: isize,
    /// Lines of a step that each eight rows ask for, and rows that ask before those of this block.
    part: usize,
    before: usize,
}

impl Ahead {
    /// The panel that begins with this lane and term, if there is one, for so many rows to ask for.
    fn new(source: &Matrix<bf16>, first: Option<(usize, usize)>, rows: usize, before: usize) -> Self {
        const BYTES: isize = size_of::<bf16>() as isize;
        let (lane, term) = (source.row_stride * BYTES, source.column_stride * BYTES);
        let line = if source.row_stride == 1 { term } else { lane };
        // Elements that are not neighbours are read one by one, which takes longer than they take to come.
        let is_read_by_line = source.row_stride == 1 || source.column_stride == 1;
        let (first, part) = match first {
            Some((lane, term)) if is_read_by_line => {
                (source.at(lane, term).cast(), TILE.div_ceil(rows.div_ceil(8)))
            }
            _ => (std::ptr::null(), 0),
        };
        Ahead { first, line, step: term * STEP as isize, part, before }
    }

    /// Where the lines of a step are that these rows of the left panel ask for.
    #[inline]
    fn lines(&self, step: usize, rows: Range<usize>) -> impl Iterator<Item = *const i8> {
        let lines = |rows: usize| ((self.before + rows) / 8 * self.part).min(TILE);
        let (from, line) = (self.first.wrapping_offset(step as isize * self.step), self.line);
        (lines(rows.start)..lines(rows.end)).map(move |at| from.wrapping_offset(at as isize * line).cast())
    }
}

/// What adds the products of two panels.
trait Adder: Sized {
    /// Deepest block of the reduction.
    const DEPTH: usize;

    /// How tiles are cut for it.
    const CUT: Cut;

    /// # Safety
    /// The processor has the instructions.
    unsafe fn new() -> Self;

    /// Adds products to sums.
    ///
    /// # Safety
    /// Panels are of as many steps as hold the pairs.
    unsafe fn add(&self, block: &Block<'_>, sums: &mut Sums);
}

/// The [`work`](super::tiles::work) below which another thread costs more than it gives: it takes 10 to 20 µs to have it begin and end.
const WORTH_A_THREAD: usize = 1 << 21;

/// The work below which another thread costs more than it gives, on this processor.
pub fn worth_a_thread() -> usize {
    if avx512_bf16::is_available() { WORTH_A_THREAD } else { exact::WORTH_A_THREAD }
}

/// What computes the outputs of a tile, some of them as chains.
type Compute = unsafe fn(&Matrix<bf16>, &Matrix<bf16>, &MatrixMut<bf16>, &Tile, exact::Kernel<bf16>);

/// How tiles are cut, and what computes them.
type Way = (&'static Cut, Compute);

/// `output = left · right`; false, and nothing done, where this processor, or a product of this size, is better off without pairs.
/// `right` is transposed: its rows are the output's columns.
pub fn multiply(cpu: Cpu, left: &Matrix<bf16>, right: &Matrix<bf16>, output: &MatrixMut<bf16>) -> bool {
    // A sum of no terms is left to the chain.
    if cpu.level() != Level::Avx512 || !avx512_bf16::is_available() || left.columns == 0 {
        return false;
    }
    let terms = left.columns;
    if output.columns < output.rows
        && let Some(way) = few_rows_of(left, output.columns, terms)
    {
        // Few columns are the few rows of the transpose.
        // SAFETY: the processor has the instructions, and the operands, whose places are swapped, a layout that suits.
        unsafe { run(cpu, way, right, left, &output.as_transposed()) };
        return true;
    }
    let way: Way = if let Some(way) = few_rows_of(right, output.rows, terms) {
        way
    } else if !amx::is_available() {
        (&Avx512Bf16::CUT, compute::<Avx512Bf16>)
    } else if output.rows.min(output.columns) >= FEWEST {
        (&Amx::CUT, compute::<Amx>)
    } else {
        return false;
    };
    // SAFETY: as above.
    unsafe { run(cpu, way, left, right, output) };
    true
}

/// What computes an output of so few rows that packing `right` would be most of the work, if there is something for its layout.
fn few_rows_of(right: &Matrix<bf16>, rows: usize, terms: usize) -> Option<Way> {
    let has_amx = amx::is_available();
    if few_rows::suits(right, rows, terms, has_amx) {
        Some((&few_rows::CUT, few_rows::compute))
    } else if !has_amx && in_place::suits(right, rows) {
        Some((&in_place::CUT, in_place::compute))
    } else {
        None
    }
}

/// Computes all tiles of an output.
///
/// # Safety
/// The processor has the instructions of `way`, which suits the operands' layouts.
unsafe fn run(cpu: Cpu, way: Way, left: &Matrix<bf16>, right: &Matrix<bf16>, output: &MatrixMut<bf16>) {
    let (cut, compute) = way;
    let (chain, _) = exact::kernel::<bf16>(cpu);
    cut.for_each(output.rows, output.columns, left.columns, |tile| {
        // SAFETY: the caller's promise; tiles lie inside the output and no two overlap.
        unsafe { compute(left, right, output, &tile, chain) };
    });
}

/// # Safety
/// The tile lies inside the output and belongs to this call; the operands' sizes agree, and there are terms; the processor has AVX-512
/// with BF16, the instructions of `A`, and the level of `chain`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn compute<A: Adder>(
    left: &Matrix<bf16>,
    right: &Matrix<bf16>,
    output: &MatrixMut<bf16>,
    tile: &Tile,
    chain: exact::Kernel<bf16>,
) {
    const { assert!(A::CUT.largest.0 <= MOST_PANELS * TILE && A::CUT.largest.1 <= MOST_PANELS * TILE) };
    let reduction = left.columns;
    let (down, across) = (tile.rows.len().div_ceil(TILE), tile.columns.len().div_ceil(TILE));
    // In pairs of bf16.
    let deepest = A::DEPTH.min(reduction).next_multiple_of(STEP) / 2;
    // Of a single block, sums are rounded as soon as they are there, and none are kept.
    let kept = if reduction > A::DEPTH { down * across } else { 1 };
    let mut scratch = Scratch::take();
    let [sums, left_block, right_panel] =
        scratch.split::<u32, 3>([kept * TILE * TILE, down * TILE * deepest, TILE * deepest]);
    let sums: &mut [Sums] = bytemuck::cast_slice_mut(sums);
    let mut left_smallest = [Smallest::NONE; MOST_PANELS];
    let mut right_smallest = [Smallest::NONE; MOST_PANELS];
    for start in (0..reduction).step_by(A::DEPTH) {
        let block = start..reduction.min(start + A::DEPTH);
        let is_last = block.end == reduction;
        let pairs = block.len().div_ceil(2);
        let panel = PANEL_STEP * block.len().div_ceil(STEP);
        let (left_block, right_panel) = (&mut left_block[..down * panel], &mut right_panel[..panel]);
        // SAFETY: the caller's promise.
        let adder = unsafe { A::new() };
        for (column, columns) in panels(&tile.columns).enumerate() {
            // SAFETY: panel and block lie inside the operand.
            unsafe { pack::<true>(right, &columns, &block, right_panel, &mut right_smallest[column]) };
            let is_last_panel = columns.end == tile.columns.end;
            let next_right = match (is_last_panel, is_last) {
                (false, _) => Some((columns.end, block.start)),
                (true, false) => Some((tile.columns.start, block.end)),
                (true, true) => None,
            };
            let left_panels = left_block.chunks_exact_mut(panel).zip(&mut left_smallest);
            for (row, (rows, (left_panel, smallest))) in panels(&tile.rows).zip(left_panels).enumerate() {
                if column == 0 {
                    // SAFETY: as above.
                    unsafe { pack::<false>(left, &rows, &block, left_panel, smallest) };
                }
                let next_left = if column == 0 && rows.end < tile.rows.end {
                    Some((rows.end, block.start))
                } else if is_last_panel && rows.end == tile.rows.end && !is_last {
                    Some((tile.rows.start, block.end))
                } else {
                    None
                };
                let block = Block {
                    left: left_panel,
                    right: right_panel,
                    pairs,
                    is_first: start == 0,
                    size: (rows.len(), columns.len()),
                    ahead: [
                        Ahead::new(left, next_left, rows.len(), 0),
                        Ahead::new(right, next_right, tile.rows.len(), row * TILE),
                    ],
                };
                let sums = &mut sums[(column * down + row) % kept];
                // SAFETY: panels are as long as `pairs` says; these outputs lie inside the tile.
                unsafe {
                    adder.add(&block, sums);
                    if is_last {
                        round(sums, output, rows, columns.clone());
                    }
                }
            }
        }
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

/// Rounds sums into rows and columns of the output.
///
/// # Safety
/// At most 32 of each, inside the output and the caller's alone; the processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn round(sums: &[f32], output: &MatrixMut<bf16>, rows: Range<usize>, columns: Range<usize>) {
    if output.column_stride != 1 {
        // SAFETY: the caller's promise.
        return unsafe { scatter(sums, output, rows, columns) };
    }
    let mask = u32::MAX >> (TILE - columns.len());
    for (row, sums) in rows.zip(sums.chunks_exact(TILE)) {
        let to = output.at(row, columns.start);
        // SAFETY: a row of sums is two vectors; the mask keeps the store within the columns.
        unsafe { _mm512_mask_storeu_epi16(to.cast(), mask, rounded(sums.as_ptr())) };
    }
}

/// As [`round`], into columns that are not neighbours, as those of a transpose. It is not inlined: the addresses of 32 columns would take
/// the registers of the loop above.
///
/// # Safety
/// As [`round`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn scatter(sums: &[f32], output: &MatrixMut<bf16>, rows: Range<usize>, columns: Range<usize>) {
    for (row, sums) in rows.zip(sums.chunks_exact(TILE)) {
        let mut values = [bf16::ZERO; TILE];
        // SAFETY: a row of sums is two vectors; `values` holds 64 bytes; the elements are the caller's.
        unsafe {
            _mm512_storeu_si512(values.as_mut_ptr().cast(), rounded(sums.as_ptr()));
            for (column, value) in columns.clone().zip(values) {
                output.at(row, column).write(value);
            }
        }
    }
}

/// Two vectors of sums, to nearest, ties to even, a NaN to the canonical one.
///
/// The instruction takes a subnormal for zero, as those before it did.
///
/// # Safety
/// They are there; the processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn rounded(sums: *const f32) -> __m512i {
    // SAFETY: the caller's promise; a vector of either type is 64 bytes of which any bits are values.
    let rounded: __m512i = unsafe {
        let (low, high) = (_mm512_loadu_ps(sums), _mm512_loadu_ps(sums.add(TILE / 2)));
        std::mem::transmute(_mm512_cvtne2ps_pbh(high, low))
    };
    let magnitude = _mm512_and_si512(rounded, _mm512_set1_epi16(0x7fff));
    let is_nan = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7f80));
    _mm512_mask_mov_epi16(rounded, is_nan, _mm512_set1_epi16(0x7fc0))
}

/// Ranges of [`TILE`], the last one shorter.
fn panels(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(TILE).map(move |start| start..end.min(start + TILE))
}
