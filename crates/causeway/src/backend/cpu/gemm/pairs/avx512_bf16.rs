//! AVX-512 BF16: one instruction multiplies sixteen pairs with sixteen others and adds both products of each to a sum in f32. On
//! AMD, from Zen 4 on, it takes as long as one multiply-add of f32. On Intel it takes as long as two, and most processors that
//! have it have AMX.

use std::arch::x86_64::*;

use super::{Adder, Block, STEP, Sums, TILE, WORTH_A_THREAD};
use crate::backend::cpu::gemm::tiles::Cut;

/// Lanes of a vector of sums.
const LANES: usize = 16;

/// Whether the processor has the instruction.
pub fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// The vector registers: there is nothing to switch on.
pub struct Avx512Bf16(());

impl Adder for Avx512Bf16 {
    const DEPTH: usize = 512;

    /// Wide tiles: each packs its operands anew. Sums, the left block and a right panel are 800 KiB of a second-level cache of 1 MiB.
    const CUT: Cut = Cut { register: (TILE, TILE), largest: (256, 512), worth_a_thread: WORTH_A_THREAD };

    unsafe fn new() -> Self {
        Avx512Bf16(())
    }

    unsafe fn add(&self, block: &Block<'_>, sums: &mut Sums) {
        let (rows, columns) = block.size;
        // SAFETY: `self` shows that the processor has the instruction; the rest is the caller's promise.
        unsafe {
            if columns > LANES {
                for row in (0..rows.min(TILE)).step_by(8) {
                    add_rows::<8, 2>(block, row, sums);
                }
            } else {
                for row in (0..rows.min(TILE)).step_by(16) {
                    add_rows::<16, 1>(block, row, sums);
                }
            }
        }
    }
}

/// As [`Adder::add`], for rows `row` to `row + ROWS` and the first `VECTORS` vectors of columns. Sixteen vectors of sums are enough to
/// hide the instruction's latency.
///
/// # Safety
/// As for [`Adder::add`]; the processor has the features; `row` is a multiple of `ROWS` and less than [`TILE`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_rows<const ROWS: usize, const VECTORS: usize>(block: &Block<'_>, row: usize, sums: &mut Sums) {
    const { assert!(LANES.is_multiple_of(ROWS) && VECTORS <= TILE / LANES) };
    /// Numbers of one of the two tiles of a step.
    const HALF: usize = LANES * STEP / 2;
    // SAFETY: rows of sums lie within `sums`, as `row` says; in each step the left panel has a tile for rows 0 to 15 and one for the
    // others, with a row of 16 pairs for each, and the right panel one for columns 0 to 15 and one for the others.
    unsafe {
        let sums = sums.as_mut_ptr().add(row * TILE);
        let mut tile = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        if !block.is_first {
            for (r, tile) in tile.iter_mut().enumerate() {
                for (vector, sum) in tile.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(sums.add(r * TILE + vector * LANES));
                }
            }
            // The sums that come next: the packed blocks have pushed them out of the first-level cache.
            for line in 0..ROWS * TILE / LANES {
                _mm_prefetch::<_MM_HINT_T0>(sums.wrapping_add(ROWS * TILE + line * LANES).cast());
            }
        }
        let mut left = block.left.as_ptr().add(row / LANES * HALF + row % LANES * LANES);
        let mut right = block.right.as_ptr();
        let mut pairs = block.pairs;
        let mut step = 0;
        while pairs > 0 {
            for line in block.ahead.iter().flat_map(|ahead| ahead.lines(step, row..row + ROWS)) {
                _mm_prefetch::<_MM_HINT_T1>(line);
            }
            step += 1;
            for pair in 0..pairs.min(STEP / 2) {
                // No `from_fn`: a closure that loads vectors has not been inlined in some builds.
                let mut columns = [self::pairs(_mm512_setzero_si512()); VECTORS];
                for (vector, column) in columns.iter_mut().enumerate() {
                    *column = load(right.add(vector * HALF + pair * LANES));
                }
                for (r, tile) in tile.iter_mut().enumerate() {
                    let factor =
                        self::pairs(_mm512_set1_epi32(left.add(r * LANES + pair).cast::<i32>().read()));
                    for (sum, column) in tile.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, factor, column);
                    }
                }
            }
            (left, right) = (left.wrapping_add(2 * HALF), right.wrapping_add(2 * HALF));
            pairs = pairs.saturating_sub(STEP / 2);
        }
        for (r, tile) in tile.iter().enumerate() {
            for (vector, sum) in tile.iter().enumerate() {
                _mm512_storeu_ps(sums.add(r * TILE + vector * LANES), *sum);
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
