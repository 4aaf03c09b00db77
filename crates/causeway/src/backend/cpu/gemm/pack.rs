//! Packing: blocks of an operand, widened to f32 and laid out in the order in which the kernel reads them.
//!
//! A block is cut into *panels* of WIDTH neighbouring rows (of the left operand) or columns (of the right
//! one), its *lanes*. Within a panel, the lanes of one reduction index lie side by side:
//!
//! ```text
//! panel:  depth 0: lane 0 … lane WIDTH-1 │ depth 1: lane 0 … lane WIDTH-1 │ …
//! ```
//!
//! Lanes past the end of the operand are zero; nothing is ever added along the reduction.

use std::ops::Range;

use super::half::Half;
use super::matrix::Matrix;
use super::vector::{Part, Vector};

/// Deepest block: what a task adds before it moves to the next block of the reduction.
pub const DEPTH: usize = 256;

/// Lanes that are widened together before they are transposed.
const GROUP: usize = 8;

/// The lanes `lanes` of `source`'s rows, at the columns `depth`, as panels of `width` lanes in `packed`.
///
/// # Safety
/// Both ranges lie inside `source`, `depth` is at most [`DEPTH`] long, and `packed` holds every panel; the
/// processor has V's level.
#[inline(always)]
pub unsafe fn pack<V: Vector, T: Half>(
    source: &Matrix<T>,
    lanes: Range<usize>,
    depth: Range<usize>,
    width: usize,
    packed: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe { V::apart(Pack { source, lanes, depth, width, packed }) }
}

/// What [`pack`] was called with.
struct Pack<'a, T> {
    source: &'a Matrix<'a, T>,
    lanes: Range<usize>,
    depth: Range<usize>,
    width: usize,
    packed: &'a mut [f32],
}

impl<V: Vector, T: Half> Part<V> for Pack<'_, T> {
    #[inline(always)]
    unsafe fn run(self) {
        let Pack { source, lanes, depth, width, packed } = self;
        let panel_length = depth.len() * width;
        let mut first = lanes.start;
        for panel in packed.chunks_exact_mut(panel_length) {
            let count = width.min(lanes.end - first);
            if count < width {
                panel.fill(0.0);
            }
            // SAFETY: `count` lanes from `first`, and `depth`, lie inside the source by the caller's promise.
            unsafe {
                if source.row_stride == 1 {
                    along_lanes::<V, T>(source, first, count, depth.clone(), width, panel);
                } else {
                    along_depth::<V, T>(source, first, count, depth.clone(), width, panel);
                }
            }
            first += width;
        }
    }
}

/// Neighbouring lanes are neighbours in memory: rows of the panel are copied.
///
/// # Safety
/// As [`pack`]; `count` is at most `width`.
#[inline(always)]
unsafe fn along_lanes<V: Vector, T: Half>(
    source: &Matrix<T>,
    first: usize,
    count: usize,
    depth: Range<usize>,
    width: usize,
    panel: &mut [f32],
) {
    for (d, lanes) in depth.zip(panel.chunks_exact_mut(width)) {
        // SAFETY: `count` elements from here on are neighbours in the source.
        unsafe { widen_run::<V, T>(source.at(first, d), &mut lanes[..count]) };
    }
}

/// Any other layout: runs along the reduction are widened, then transposed into the panel.
///
/// # Safety
/// As [`pack`]; `count` is at most `width`.
#[inline(always)]
unsafe fn along_depth<V: Vector, T: Half>(
    source: &Matrix<T>,
    first: usize,
    count: usize,
    depth: Range<usize>,
    width: usize,
    panel: &mut [f32],
) {
    let mut runs = [[0.0f32; DEPTH]; GROUP];
    for group in (0..count).step_by(GROUP) {
        let lanes = GROUP.min(count - group);
        for (lane, run) in runs[..lanes].iter_mut().enumerate() {
            let run = &mut run[..depth.len()];
            if source.column_stride == 1 {
                // SAFETY: the elements of a row are neighbours in the source.
                unsafe { widen_run::<V, T>(source.at(first + group + lane, depth.start), run) };
            } else {
                for (d, value) in depth.clone().zip(run) {
                    // SAFETY: the caller's promise.
                    *value = unsafe { source.at(first + group + lane, d).read() }.widen();
                }
            }
        }
        if lanes == GROUP {
            for (d, to) in panel.chunks_exact_mut(width).enumerate() {
                let values: [f32; GROUP] = std::array::from_fn(|lane| runs[lane][d]);
                to[group..group + GROUP].copy_from_slice(&values);
            }
        } else {
            for (d, to) in panel.chunks_exact_mut(width).enumerate() {
                for (lane, run) in runs[..lanes].iter().enumerate() {
                    to[group + lane] = run[d];
                }
            }
        }
    }
}

/// # Safety
/// `from` points at `to.len()` neighbouring elements; the processor has V's level.
#[inline(always)]
unsafe fn widen_run<V: Vector, T: Half>(from: *const T, to: &mut [f32]) {
    let vectors = to.len() / V::LANES;
    // SAFETY: every index is below `to.len()`.
    unsafe {
        for vector in 0..vectors {
            T::load::<V>(from.add(vector * V::LANES)).store(to.as_mut_ptr().add(vector * V::LANES));
        }
        for (i, to) in to.iter_mut().enumerate().skip(vectors * V::LANES) {
            *to = from.add(i).read().widen();
        }
    }
}
