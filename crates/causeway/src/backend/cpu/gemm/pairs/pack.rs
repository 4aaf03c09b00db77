//! Packing into pairs: blocks of an operand as panels of 32 lanes (rows of the left operand, columns of
//! the right one), in steps of 32 terms.
//!
//! A step of a panel is two tiles of 16 lanes, each 1 KiB: 16 rows of 16 *pairs* of neighbouring terms. Both are packed together: 32
//! lanes that are neighbours in memory are then a cache line.
//!
//! ```text
//! left:  row = lane, column = pair          right: row = pair, column = lane
//! ```
//!
//! Memory gives one of the two for free: lanes whose terms are neighbours come as rows of pairs; terms whose lanes
//! are neighbours are interleaved two by two. The other one is the transpose, in place. Terms past the end are zero, and 0 · 0 adds
//! nothing. Lanes past the end may hold anything: nobody asks for their sums.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::transpose::transpose;
use super::{PANEL_STEP, STEP, TILE};
use crate::backend::cpu::gemm::matrix::Matrix;

/// Lanes of a tile, which are those of a vector of pairs.
const LANES: usize = 16;

/// The smallest magnitude of the non-zero numbers of a panel: its bits less one, wrapping, so that zero is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Smallest(u16);

impl Smallest {
    /// Of a panel of zeros.
    pub const NONE: Smallest = Smallest(u16::MAX);

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

/// The lanes `lanes` of `source`'s rows, 32 at most, at the columns `depth`, as a panel in `packed`. Its smallest magnitude goes to
/// `smallest`, unless a smaller one is there.
///
/// # Safety
/// Both ranges lie inside `source`; `packed` has a panel; the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn pack<const RIGHT: bool>(
    source: &Matrix<bf16>,
    lanes: &Range<usize>,
    depth: &Range<usize>,
    packed: &mut [u32],
    smallest: &mut Smallest,
) {
    let mut least = Least::new(*smallest);
    for (start, to) in depth.clone().step_by(STEP).zip(packed.chunks_exact_mut(PANEL_STEP)) {
        let terms = start..depth.end.min(start + STEP);
        // SAFETY: lanes and terms lie inside the source by the caller's promise.
        unsafe { pack_step::<RIGHT>(source, lanes, terms, to, &mut least) };
    }
    *smallest = least.get();
}

/// A step of a panel.
///
/// # Safety
/// At most 32 lanes and 32 terms, inside the source; `to` has a step; the processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_step<const RIGHT: bool>(
    source: &Matrix<bf16>,
    lanes: &Range<usize>,
    terms: Range<usize>,
    to: &mut [u32],
    least: &mut Least,
) {
    // In a register, where the array that it comes from is not.
    let mut seen = *least;
    // SAFETY: the caller's promise.
    let are_columns_lanes = unsafe {
        if source.row_stride == 1 {
            interleave(source, lanes, terms, to, &mut seen);
            true
        } else if source.column_stride == 1 {
            copy(source, lanes, terms, to, &mut seen);
            false
        } else {
            gather(source, lanes, terms, to, &mut seen);
            false
        }
    };
    *least = seen;
    if are_columns_lanes != RIGHT {
        for tile in to.chunks_exact_mut(LANES * LANES) {
            // SAFETY: a tile has sixteen rows of sixteen numbers.
            unsafe {
                let mut rows = [_mm512_setzero_si512(); LANES];
                for (row, from) in rows.iter_mut().zip(tile.chunks_exact(LANES)) {
                    *row = _mm512_loadu_si512(from.as_ptr().cast());
                }
                for (row, to) in transpose(rows).into_iter().zip(tile.chunks_exact_mut(LANES)) {
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), row);
                }
            }
        }
    }
}

/// The smallest magnitude so far, less one, wrapping, in each of 32 positions.
#[derive(Clone, Copy)]
pub struct Least(__m512i);

impl Least {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn new(smallest: Smallest) -> Self {
        Least(_mm512_set1_epi16(smallest.0 as i16))
    }

    /// With sixteen pairs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn include(&mut self, pairs: __m512i) {
        let magnitude = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
        self.0 = _mm512_min_epu16(self.0, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
    }

    /// The smallest of all, in each position.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn of_all(all: &[Least]) -> Self {
        let mut smallest = Least::new(Smallest::NONE);
        for least in all {
            smallest.0 = _mm512_min_epu16(smallest.0, least.0);
        }
        smallest
    }

    /// With sixteen pairs, which are written to `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn store(&mut self, pairs: __m512i, to: &mut [u32]) {
        self.include(pairs);
        let to: &mut [u32; LANES] = to.try_into().expect("sixteen pairs");
        // SAFETY: `to` holds 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn get(self) -> Smallest {
        let mut values = [0u16; 32];
        // SAFETY: `values` holds 64 bytes.
        unsafe { _mm512_storeu_si512(values.as_mut_ptr().cast(), self.0) };
        Smallest(values.into_iter().fold(u16::MAX, u16::min))
    }
}

/// How 32 lanes of a term, and of the next one, become two times 16 pairs.
const ORDERS: [[u16; STEP]; 2] = [order(0), order(LANES as u16)];

/// Lanes from `first` on of one term, each before the same of the other one.
const fn order(first: u16) -> [u16; STEP] {
    let mut order = [0; STEP];
    let mut at = 0;
    while at < STEP {
        order[at] = first + at as u16 / 2 + if at % 2 == 0 { 0 } else { TILE as u16 };
        at += 1;
    }
    order
}

/// Both tiles of a step, row = pair: its lanes are neighbours in memory, for each of both terms.
///
/// # Safety
/// At most 32 lanes and 32 terms, inside the source, whose lanes are contiguous; `to` has a step; the processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn interleave(
    source: &Matrix<bf16>,
    lanes: &Range<usize>,
    terms: Range<usize>,
    to: &mut [u32],
    least: &mut Least,
) {
    // SAFETY: each holds 64 bytes.
    let orders = ORDERS.map(|order| unsafe { _mm512_loadu_si512(order.as_ptr().cast()) });
    let mask = u32::MAX >> (TILE - lanes.len());
    let load = |term: usize| {
        if !terms.contains(&term) {
            return _mm512_setzero_si512();
        }
        let at = source.at(lanes.start, term);
        // Of the next step: rows of the source are often a page or more apart, and no prefetcher follows.
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_offset(STEP as isize * source.column_stride).cast());
        // SAFETY: the mask keeps the load within the lanes.
        unsafe { _mm512_maskz_loadu_epi16(mask, at.cast()) }
    };
    let (left, right) = to.split_at_mut(PANEL_STEP / 2);
    let rows = left.chunks_exact_mut(LANES).zip(right.chunks_exact_mut(LANES));
    for (pair, (left, right)) in rows.enumerate() {
        let term = terms.start + 2 * pair;
        let (even, odd) = (load(term), load(term + 1));
        least.store(_mm512_permutex2var_epi16(even, orders[0], odd), left);
        least.store(_mm512_permutex2var_epi16(even, orders[1], odd), right);
    }
}

/// Both tiles of a step, row = lane: its terms are neighbours in memory.
///
/// # Safety
/// As [`interleave`], of a source whose terms are contiguous.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn copy(
    source: &Matrix<bf16>,
    lanes: &Range<usize>,
    terms: Range<usize>,
    to: &mut [u32],
    least: &mut Least,
) {
    let mask = u32::MAX >> (STEP - terms.len());
    for (lane, to) in lanes.clone().zip(to.chunks_exact_mut(LANES)) {
        let at = source.at(lane, terms.start);
        // Of the step after the next one: there are more rows than a prefetcher follows.
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(2 * STEP).cast());
        // SAFETY: the mask keeps the load within the terms.
        let row = unsafe { _mm512_maskz_loadu_epi16(mask, at.cast()) };
        least.store(row, to);
    }
}

/// As [`copy`], element by element, of any source.
///
/// # Safety
/// As [`interleave`], of any source.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn gather(
    source: &Matrix<bf16>,
    lanes: &Range<usize>,
    terms: Range<usize>,
    to: &mut [u32],
    least: &mut Least,
) {
    for (lane, to) in lanes.clone().zip(to.chunks_exact_mut(LANES)) {
        let mut values = [0u16; STEP];
        for (value, term) in values.iter_mut().zip(terms.clone()) {
            // SAFETY: the caller's promise.
            *value = unsafe { source.at(lane, term).read() }.to_bits();
        }
        // SAFETY: `values` holds 64 bytes.
        least.store(unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }, to);
    }
}
