//! A block of channels of a tensor that has a few columns for each of them, as a row per column: states and weights of decoding.
//!
//! Columns that are neighbours in memory are taken apart a vector at a time: with their number known, the compiler makes shuffles of
//! the loops below.

use crate::backend::cpu::simd::{Lanes, Number, Part, Simd};

/// Channels in a block: a multiple of every number of lanes.
pub(super) const BLOCK: usize = 64;

/// Numbers of columns that are taken apart a vector at a time.
const APART: std::ops::RangeInclusive<usize> = 2..=4;

/// A column of a block. Vectors that lie across two lines take twice as long.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Row<T>(pub [T; BLOCK]);

impl<T> std::ops::Deref for Row<T> {
    type Target = [T; BLOCK];

    #[inline(always)]
    fn deref(&self) -> &[T; BLOCK] {
        &self.0
    }
}

impl<T> std::ops::DerefMut for Row<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T; BLOCK] {
        &mut self.0
    }
}

/// Reads the first `channels` of a block; strides are those of channels and columns.
///
/// # Safety
/// So many channels, with a column for each row, are elements of a tensor.
#[inline(always)]
pub(super) unsafe fn read<S: Simd, T: Copy>(
    simd: S,
    source: *const T,
    strides: [isize; 2],
    channels: usize,
    rows: &mut [Row<T>],
) {
    if are_whole(strides, channels, rows.len() as isize) && APART.contains(&rows.len()) {
        return simd.apart(Read { source, rows });
    }
    for (column, row) in rows.iter_mut().enumerate() {
        let source = source.wrapping_offset(strides[1].wrapping_mul(column as isize));
        // SAFETY: the caller's promise.
        unsafe {
            if strides[0] == 1 {
                source.copy_to_nonoverlapping(row.as_mut_ptr(), channels);
                continue;
            }
            for (channel, value) in row[..channels].iter_mut().enumerate() {
                *value = *source.wrapping_offset(strides[0].wrapping_mul(channel as isize));
            }
        }
    }
}

/// A whole block of [`read`], and its caller's promise.
struct Read<'a, T> {
    source: *const T,
    rows: &'a mut [Row<T>],
}

impl<S: Simd, T: Copy> Part<S> for Read<'_, T> {
    #[inline(always)]
    fn run(self, _: S) {
        let Read { source, rows } = self;
        // SAFETY: the promise.
        unsafe {
            match rows.len() {
                2 => split::<T, 2>(source, rows),
                3 => split::<T, 3>(source, rows),
                _ => split::<T, 4>(source, rows),
            }
        }
    }
}

/// Writes what [`read`] reads.
///
/// # Safety
/// As for [`read`], and nobody else uses the elements meanwhile.
#[inline(always)]
pub(super) unsafe fn write<S: Simd, T: Copy>(
    simd: S,
    rows: &[Row<T>],
    target: *mut T,
    strides: [isize; 2],
    channels: usize,
) {
    if are_whole(strides, channels, rows.len() as isize) && APART.contains(&rows.len()) {
        return simd.apart(Write { rows, target });
    }
    for (column, row) in rows.iter().enumerate() {
        let target = target.wrapping_offset(strides[1].wrapping_mul(column as isize));
        // SAFETY: the caller's promise.
        unsafe {
            if strides[0] == 1 {
                target.copy_from_nonoverlapping(row.as_ptr(), channels);
                continue;
            }
            for (channel, &value) in row[..channels].iter().enumerate() {
                *target.wrapping_offset(strides[0].wrapping_mul(channel as isize)) = value;
            }
        }
    }
}

/// A whole block of [`write`], and its caller's promise.
struct Write<'a, T> {
    rows: &'a [Row<T>],
    target: *mut T,
}

impl<S: Simd, T: Copy> Part<S> for Write<'_, T> {
    #[inline(always)]
    fn run(self, _: S) {
        let Write { rows, target } = self;
        // SAFETY: the promise.
        unsafe {
            match rows.len() {
                2 => join::<T, 2>(rows, target),
                3 => join::<T, 3>(rows, target),
                _ => join::<T, 4>(rows, target),
            }
        }
    }
}

/// Widens rows.
#[inline(always)]
pub(super) fn widen<S, T>(simd: S, rows: &[Row<T>], widened: &mut [Row<S::Scalar>])
where
    S: Simd,
    T: Lanes<S> + Number<Accumulator = S::Scalar>,
{
    for (row, widened) in rows.iter().zip(widened) {
        let mut at = 0;
        while at < BLOCK {
            // SAFETY: rows are whole vectors.
            unsafe { simd.store(widened.as_mut_ptr().add(at), T::load(simd, row.as_ptr().add(at))) };
            at += S::LANES;
        }
    }
}

/// Whether a block is all there, and without gaps.
#[inline(always)]
pub(super) fn are_whole(strides: [isize; 2], channels: usize, columns: isize) -> bool {
    strides == [columns, 1] && channels == BLOCK
}

/// Reads a whole block without gaps.
///
/// # Safety
/// `source` points at one, and there are `N` rows.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) unsafe fn split<T: Copy, const N: usize>(source: *const T, rows: &mut [Row<T>]) {
    // SAFETY: the caller's promise; arrays of elements are aligned as an element.
    let (channels, rows) =
        unsafe { (&*source.cast::<[[T; N]; BLOCK]>(), &mut *rows.as_mut_ptr().cast::<[Row<T>; N]>()) };
    for channel in 0..BLOCK {
        for column in 0..N {
            rows[column].0[channel] = channels[channel][column];
        }
    }
}

/// Writes a whole block without gaps.
///
/// # Safety
/// `target` points at one that nobody else uses, and there are `N` rows.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) unsafe fn join<T: Copy, const N: usize>(rows: &[Row<T>], target: *mut T) {
    // SAFETY: the caller's promise; arrays of elements are aligned as an element.
    let (channels, rows) =
        unsafe { (&mut *target.cast::<[[T; N]; BLOCK]>(), &*rows.as_ptr().cast::<[Row<T>; N]>()) };
    for channel in 0..BLOCK {
        for column in 0..N {
            channels[channel][column] = rows[column].0[channel];
        }
    }
}
