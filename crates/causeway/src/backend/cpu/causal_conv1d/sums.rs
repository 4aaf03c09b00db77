//! Sums over positions, for dweight and dbias: taken by many tasks and added in a fixed order.

use std::mem::MaybeUninit;

use super::partition::Work;
use crate::backend::cpu::threads::for_each;
use crate::causal_conv1d::Sizes;
use crate::error::{Error, Result};
use crate::tensor::{DType, Dims};

/// Channels whose chunks are added together.
const TOGETHER: usize = 64;

/// Per chunk of columns: for each tap, and then for the bias, a row with the sums of all channels.
pub(super) struct Sums {
    /// Not set before a task puts its own there.
    values: Vec<MaybeUninit<f64>>,
    chunks: usize,
    dim: usize,
    terms: usize,
}

/// Where tasks put their sums.
pub(super) struct SumsTarget {
    values: *mut f64,
    dim: usize,
    terms: usize,
}

// SAFETY: `put` makes its callers promise disjoint places.
unsafe impl Sync for SumsTarget {}

impl Sums {
    pub fn new(sizes: &Sizes, chunks: i64) -> Result<Self> {
        let (shape, dtype) = (Dims::new(&[chunks, sizes.dim, sizes.width + 1])?, DType::F64);
        let [chunks, dim, terms] = [chunks, sizes.dim, sizes.width + 1].map(|count| count as usize);
        let (mut values, count) = (Vec::new(), chunks * dim * terms);
        let bytes = count * size_of::<f64>();
        values.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { shape, dtype, bytes })?;
        // SAFETY: there is room for so many, and each may be without a value.
        unsafe { values.set_len(count) };
        Ok(Sums { values, chunks, dim, terms })
    }

    /// Valid as long as `self` is not used otherwise.
    pub fn target(&mut self) -> SumsTarget {
        SumsTarget { values: self.values.as_mut_ptr().cast(), dim: self.dim, terms: self.terms }
    }

    /// Adds the chunks in order, and hands each channel's sums to `write`: those of the taps, then that of the bias. Threads may
    /// take part if the call has them.
    ///
    /// # Safety
    /// The sums of every chunk, channel and term have been put.
    pub unsafe fn write(&self, has_threads: bool, write: impl Fn(i64, &[f64]) + Sync) {
        let sums = [self.chunks, self.dim, self.terms].map(|count| count as i64);
        let parallel = has_threads && Work::Copy.is_worth_threads(sums);
        for_each(self.dim.div_ceil(TOGETHER), parallel, &|group| {
            let first = group * TOGETHER;
            let count = TOGETHER.min(self.dim - first);
            // Those of a channel side by side.
            let mut totals = vec![0.0; count * self.terms];
            for term in 0..self.terms {
                for chunk in 0..self.chunks {
                    let sums = &self.values[(chunk * self.terms + term) * self.dim + first..][..count];
                    for (total, sum) in totals[term..].iter_mut().step_by(self.terms).zip(sums) {
                        // SAFETY: the caller's promise.
                        *total += unsafe { sum.assume_init() };
                    }
                }
            }
            (first as i64..)
                .zip(totals.chunks_exact(self.terms))
                .for_each(|(channel, sums)| write(channel, sums));
        });
    }
}

impl SumsTarget {
    /// Stores the sums of channels from `first` on in a chunk, of a tap or, after the taps, of the bias.
    ///
    /// # Safety
    /// The [`Sums`] lives, chunk, term and channels lie in it, and no other task stores to the same place.
    #[inline(always)]
    pub unsafe fn put(&self, chunk: i64, term: usize, first: i64, sums: &[f64]) {
        let at = (chunk as usize * self.terms + term) * self.dim + first as usize;
        // SAFETY: the caller's promise.
        unsafe { self.values.add(at).copy_from_nonoverlapping(sums.as_ptr(), sums.len()) }
    }
}
