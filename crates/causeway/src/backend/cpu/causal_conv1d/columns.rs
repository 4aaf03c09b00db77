//! A block of channels of a tensor that has a few columns for each of them, as a row per column: states and weights of decoding.
//!
//! Columns that are neighbours in memory are taken apart a vector at a time: with their number known, the compiler makes shuffles of
//! the loops below.

/// Channels in a block: a multiple of every number of lanes.
pub(super) const BLOCK: usize = 64;

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
pub(super) unsafe fn read<T: Copy>(
    source: *const T,
    strides: [isize; 2],
    channels: usize,
    rows: &mut [Row<T>],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows.len() {
            2 if are_whole(strides, channels, 2) => split::<T, 2>(source, rows),
            3 if are_whole(strides, channels, 3) => split::<T, 3>(source, rows),
            4 if are_whole(strides, channels, 4) => split::<T, 4>(source, rows),
            _ => {
                for (column, row) in rows.iter_mut().enumerate() {
                    let source = source.wrapping_offset(strides[1].wrapping_mul(column as isize));
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
    }
}

/// Writes what [`read`] reads.
///
/// # Safety
/// As for [`read`], and nobody else uses the elements meanwhile.
#[inline(always)]
pub(super) unsafe fn write<T: Copy>(rows: &[Row<T>], target: *mut T, strides: [isize; 2], channels: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows.len() {
            2 if are_whole(strides, channels, 2) => join::<T, 2>(rows, target),
            3 if are_whole(strides, channels, 3) => join::<T, 3>(rows, target),
            4 if are_whole(strides, channels, 4) => join::<T, 4>(rows, target),
            _ => {
                for (column, row) in rows.iter().enumerate() {
                    let target = target.wrapping_offset(strides[1].wrapping_mul(column as isize));
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
pub(super) unsafe fn split<T: Copy, const N: usize>(source: *const T, rows: &mut [Row<T>]) {
    // SAFETY: the caller's promise; arrays of elements are aligned as an element.
    let (channels, rows) =
        unsafe { (&*source.cast::<[[T; N]; BLOCK]>(), &mut *rows.as_mut_ptr().cast::<[Row<T>; N]>()) };
    for (channel, columns) in channels.iter().enumerate() {
        for column in 0..N {
            rows[column][channel] = columns[column];
        }
    }
}

/// Writes a whole block without gaps.
///
/// # Safety
/// `target` points at one that nobody else uses, and there are `N` rows.
#[inline(always)]
pub(super) unsafe fn join<T: Copy, const N: usize>(rows: &[Row<T>], target: *mut T) {
    // SAFETY: the caller's promise; arrays of elements are aligned as an element.
    let (channels, rows) =
        unsafe { (&mut *target.cast::<[[T; N]; BLOCK]>(), &*rows.as_ptr().cast::<[Row<T>; N]>()) };
    for (channel, columns) in channels.iter_mut().enumerate() {
        for column in 0..N {
            columns[column] = rows[column][channel];
        }
    }
}
