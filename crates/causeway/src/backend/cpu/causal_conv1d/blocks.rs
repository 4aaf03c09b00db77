//! Sizes of what a task along the channels walks over, and copies of the rows of a block.

use crate::backend::cpu::simd::Number;

/// Widths up to this one keep their taps in registers. Loops over taps are compiled for widths 3 and 4, which most models have,
/// and for this one, which passes over the taps that a smaller width lacks.
pub(super) const MAX_WIDTH: usize = 8;
/// Channels of a task: a multiple of every pair of vectors, and so many that a row of them is a page of memory or half of
/// one: pieces of a few lines each keep the prefetcher from following, and cost a page walk each.
pub(super) const GROUP: usize = 1024;
/// Rows that a pair of vectors of channels walks down at a time.
pub(super) const BLOCK: usize = 8;

/// Rows that a block sees: its own and the history.
pub(super) const ROWS: usize = BLOCK + MAX_WIDTH - 1;

/// Pointers to rows of elements; null stands for a row that counts as nothing.
pub(super) type Rows<T> = [*const T; ROWS];

/// Most lanes of any pair of vectors.
pub(super) const MAX_PAIR: usize = 32;

/// Rows copied for the channels that do not fill a pair, so that loads stay inside the tensors.
pub(super) struct Tail<T>([[T; MAX_PAIR]; ROWS]);

impl<T: Number> Tail<T> {
    #[inline(always)]
    pub fn new() -> Self {
        Tail([[T::ZERO; MAX_PAIR]; ROWS])
    }

    /// Copies channels `first .. channels` of each row that is not null, and points there.
    ///
    /// # Safety
    /// The rows have that many elements, and `channels - first` is less than `MAX_PAIR`.
    pub unsafe fn copy(&mut self, rows: &Rows<T>, first: usize, channels: usize) -> Rows<T> {
        let mut copies = [std::ptr::null(); ROWS];
        for i in (0..ROWS).filter(|&i| !rows[i].is_null()) {
            // SAFETY: the caller's promise.
            unsafe { self.0[i].as_mut_ptr().copy_from_nonoverlapping(rows[i].add(first), channels - first) };
            copies[i] = self.0[i].as_ptr();
        }
        copies
    }
}
