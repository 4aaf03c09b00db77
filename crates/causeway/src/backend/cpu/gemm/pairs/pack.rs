//! Packing into pairs: blocks of an operand as panels of 32 lanes (rows of the left operand, columns of
//! the right one), in steps of 32 terms.
//!
//! A step of a panel is two tiles of 16 lanes, each 1 KiB: 16 rows of 16 *pairs* of neighbouring terms.
//!
//! ```text
//! left:  row = lane, column = pair          right: row = pair, column = lane
//! ```
//!
//! Memory gives one of the two for free: lanes whose terms are neighbours come as rows of pairs; terms whose lanes
//! are neighbours are interleaved two by two. The other one is the transpose. Lanes and terms past the end are zero,
//! and 0 · 0 adds nothing.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::transpose::transpose;
use super::{PANEL_STEP, STEP, TILE};
use crate::backend::cpu::gemm::matrix::Matrix;

/// Lanes of a tile, which are those of a vector of pairs.
const LANES: usize = 16;

/// The smallest magnitude of the non-zero numbers of a panel: its bits less one, wrapping, so that zero is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smallest(u16);

impl Smallest {
    /// Of a panel of zeros.
    pub const NONE: Smallest = Smallest(u16::MAX);

    /// With a number, given by its bits.
    pub fn include(&mut self, bits: u16) {
        self.0 = self.0.min((bits & 0x7fff).wrapping_sub(1));
    }

    /// With a vector of such magnitudes, less one each.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn take(&mut self, least: __m512i) {
        let mut values = [0u16; 32];
        // SAFETY: `values` holds 64 bytes.
        unsafe { _mm512_storeu_si512(values.as_mut_ptr().cast(), least) };
        self.0 = values.into_iter().fold(self.0, u16::min);
    }

    /// Whether a product of two panels, or a sum of such products, can be subnormal in f32, or an operand is subnormal itself.
    pub fn may_underflow(self, other: Smallest) -> bool {
        if self == Self::NONE || other == Self::NONE {
            return false;
        }
        let exponent = |smallest: Smallest| i32::from((smallest.0 + 1) >> 7);
        let (a, b) = (exponent(self), exponent(other));
        // Biased by 127 each; the last bits of the significands are 2⁻⁷; normal numbers begin at 2⁻¹²⁶.
        a == 0 || b == 0 || (a - 127 - 7) + (b - 127 - 7) < -126
    }
}

/// The lanes `lanes` of `source`'s rows, at the columns `depth`, as panels in `packed`. The smallest magnitude of
/// each panel goes to `smallest`, unless a smaller one is there.
///
/// # Safety
/// Both ranges lie inside `source`; the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn pack<const RIGHT: bool>(
    source: &Matrix<bf16>,
    lanes: Range<usize>,
    depth: Range<usize>,
    packed: &mut [u32],
    smallest: &mut [Smallest],
) {
    let steps = depth.len().div_ceil(STEP);
    let panels = packed.chunks_exact_mut(steps * PANEL_STEP).zip(smallest);
    for ((panel, smallest), first) in panels.zip(lanes.clone().step_by(TILE)) {
        let mut least = _mm512_set1_epi16(smallest.0 as i16);
        for (tile, to) in panel.chunks_exact_mut(LANES * STEP / 2).enumerate() {
            let lane = (first + tile % 2 * LANES).min(lanes.end);
            let start = depth.start + tile / 2 * STEP;
            let terms = start..depth.end.min(start + STEP);
            // SAFETY: lanes and terms lie inside the source by the caller's promise.
            let rows = unsafe { load::<RIGHT>(source, lane..lanes.end.min(lane + LANES), terms) };
            for (row, to) in rows.into_iter().zip(to.chunks_exact_mut(LANES)) {
                let magnitude = _mm512_and_si512(row, _mm512_set1_epi16(0x7fff));
                least = _mm512_min_epu16(least, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
                // SAFETY: `to` holds sixteen numbers.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
            }
        }
        smallest.take(least);
    }
}

/// One tile, as the left or the right operand has it.
///
/// # Safety
/// At most 16 lanes and 32 terms, inside the source; the processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load<const RIGHT: bool>(
    source: &Matrix<bf16>,
    lanes: Range<usize>,
    terms: Range<usize>,
) -> [__m512i; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        if source.row_stride == 1 {
            let pairs = rows_of_pairs(source, lanes, terms);
            if RIGHT { pairs } else { transpose(pairs) }
        } else {
            let lanes = if source.column_stride == 1 {
                rows_of_lanes(source, lanes, terms)
            } else {
                gathered(source, lanes, terms)
            };
            if RIGHT { transpose(lanes) } else { lanes }
        }
    }
}

/// Row = lane: its terms are neighbours in memory.
///
/// # Safety
/// As [`load`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rows_of_lanes(source: &Matrix<bf16>, lanes: Range<usize>, terms: Range<usize>) -> [__m512i; 16] {
    let mask = u32::MAX >> (STEP - terms.len());
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, lane) in rows.iter_mut().zip(lanes) {
        // SAFETY: the mask keeps the load within the terms.
        *row = unsafe { _mm512_maskz_loadu_epi16(mask, source.at(lane, terms.start).cast()) };
    }
    rows
}

/// Row = pair: its lanes are neighbours in memory, for each of both terms.
///
/// # Safety
/// As [`load`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rows_of_pairs(source: &Matrix<bf16>, lanes: Range<usize>, terms: Range<usize>) -> [__m512i; 16] {
    let mut rows = [_mm512_setzero_si512(); 16];
    if lanes.is_empty() {
        return rows;
    }
    let mask = u16::MAX >> (LANES - lanes.len());
    let load = |term: usize| {
        if !terms.contains(&term) {
            return _mm512_setzero_si512();
        }
        // SAFETY: the mask keeps the load within the lanes.
        _mm512_cvtepu16_epi32(unsafe { _mm256_maskz_loadu_epi16(mask, source.at(lanes.start, term).cast()) })
    };
    for (pair, row) in rows.iter_mut().enumerate() {
        let term = terms.start + 2 * pair;
        *row = _mm512_or_si512(load(term), _mm512_slli_epi32::<16>(load(term + 1)));
    }
    rows
}

/// Row = lane, element by element.
///
/// # Safety
/// As [`load`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn gathered(source: &Matrix<bf16>, lanes: Range<usize>, terms: Range<usize>) -> [__m512i; 16] {
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, lane) in rows.iter_mut().zip(lanes) {
        let mut values = [0u16; STEP];
        for (value, term) in values.iter_mut().zip(terms.clone()) {
            // SAFETY: the caller's promise.
            *value = unsafe { source.at(lane, term).read() }.to_bits();
        }
        // SAFETY: `values` holds 64 bytes.
        *row = unsafe { _mm512_loadu_si512(values.as_ptr().cast()) };
    }
    rows
}
