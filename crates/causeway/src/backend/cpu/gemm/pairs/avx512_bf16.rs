//! AVX-512 BF16: one instruction multiplies sixteen pairs with sixteen others and adds both products of each to a sum in f32. On
//! AMD, from Zen 4 on, it takes as long as one multiply-add of f32. On Intel it takes as long as two, and most processors that
//! have it have AMX.

use std::arch::x86_64::*;

use super::{Adder, STEP, TILE};
use crate::backend::cpu::gemm::tiles::Cut;

/// Lanes of a vector of sums.
const LANES: usize = 16;

/// Rows of sums that are in registers at a time, with all columns of the tile: 16 accumulators, enough to hide the instruction's latency.
const ROWS: usize = 8;

/// Whether the processor has the instruction.
pub fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// The vector registers: there is nothing to switch on.
pub struct Avx512Bf16(());

impl Adder for Avx512Bf16 {
    const DEPTH: usize = 512;

    /// Wide tiles: each packs its operands anew. Sums and packed blocks are a little more than a second-level cache of 1 MiB has room
    /// for, which costs less than packing more often.
    const CUT: Cut = Cut { register: (TILE, TILE), largest: (256, 512), worth_a_thread: 1 << 20 };

    unsafe fn new() -> Self {
        Avx512Bf16(())
    }

    unsafe fn add(
        &self,
        first: bool,
        rows: usize,
        (left, right): (&[u32], &[u32]),
        sums: &mut [u32],
        stride: usize,
    ) {
        for row in (0..rows.min(TILE)).step_by(ROWS) {
            // SAFETY: `self` shows that the processor has the instruction; the caller's promise covers the lengths.
            unsafe { add_rows(first, row, left, right, &mut sums[row * stride..], stride) };
        }
    }
}

/// Adds the products of rows `row` to `row + ROWS` of the left panel, whose sums begin at `sums`.
///
/// # Safety
/// The processor has the features. Panels have whole steps and equal lengths; `row` is a multiple of [`ROWS`] and less than [`TILE`];
/// `sums` holds [`ROWS`] rows of [`TILE`], `stride` apart.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_rows(first: bool, row: usize, left: &[u32], right: &[u32], sums: &mut [u32], stride: usize) {
    /// Numbers of one of the two tiles of a step.
    const HALF: usize = LANES * STEP / 2;
    // SAFETY: rows of sums lie within `sums` by the caller's promise; in each step the left panel has a tile for rows 0 to 15 and one
    // for the others, with a row of 16 pairs for each, and the right panel one for columns 0 to 15 and one for the others.
    unsafe {
        let mut tile = [[_mm512_setzero_ps(); TILE / LANES]; ROWS];
        if !first {
            for (r, tile) in tile.iter_mut().enumerate() {
                for (half, sum) in tile.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(sums.as_ptr().add(r * stride + half * LANES).cast());
                }
            }
        }
        // The sums of the rows that come next: the packed blocks have pushed them out of the first-level cache.
        for r in 0..ROWS {
            for half in 0..TILE / LANES {
                let ahead = sums.as_ptr().wrapping_add((ROWS + r) * stride + half * LANES);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
        }
        let left_start = left.as_ptr().add(row / LANES * HALF + row % LANES * LANES);
        for step in 0..left.len() / (2 * HALF) {
            let (left, right) = (left_start.add(step * 2 * HALF), right.as_ptr().add(step * 2 * HALF));
            for pair in 0..STEP / 2 {
                let right = right.add(pair * LANES);
                let columns = [load(right), load(right.add(HALF))];
                for (r, tile) in tile.iter_mut().enumerate() {
                    let factor = pairs(_mm512_set1_epi32(left.add(r * LANES + pair).cast::<i32>().read()));
                    for (sum, column) in tile.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, factor, column);
                    }
                }
            }
        }
        for (r, tile) in tile.iter().enumerate() {
            for (half, sum) in tile.iter().enumerate() {
                _mm512_storeu_ps(sums.as_mut_ptr().add(r * stride + half * LANES).cast(), *sum);
            }
        }
    }
}

/// Sixteen pairs.
///
/// # Safety
/// They are there; the processor has the feature.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const u32) -> __m512bh {
    // SAFETY: the caller's promise.
    unsafe { pairs(_mm512_loadu_si512(from.cast())) }
}

/// The same bits, as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes without padding, and any bits are values of either.
    unsafe { std::mem::transmute(bits) }
}
