//! Sums over positions: dweight and dbias, taken by many tasks and added in a fixed order.

use super::partition::{for_each, is_worth_threads};
use super::tensors::ParameterMut;
use crate::causal_conv1d::Sizes;

/// Per chunk of columns and channel: `width` sums for the taps, and one for the bias.
pub(super) struct Sums {
    values: Vec<f64>,
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
    pub fn new(sizes: &Sizes, chunks: i64) -> Self {
        let (chunks, dim, terms) = (chunks as usize, sizes.dim as usize, sizes.width as usize + 1);
        Sums { values: vec![0.0; chunks * dim * terms], chunks, dim, terms }
    }

    /// Valid as long as `self` is not used otherwise.
    pub fn target(&mut self) -> SumsTarget {
        SumsTarget { values: self.values.as_mut_ptr(), dim: self.dim, terms: self.terms }
    }

    /// Adds the chunks in order, and rounds once.
    pub fn write(&self, dweight: ParameterMut, dbias: Option<ParameterMut>) {
        let row = self.dim * self.terms;
        let parallel = is_worth_threads(self.chunks as i64, self.dim as i64, self.terms as i64);
        for_each(self.dim, parallel, |channel| {
            for term in 0..self.terms {
                let at = channel * self.terms + term;
                let total: f64 = (0..self.chunks).map(|chunk| self.values[chunk * row + at]).sum();
                // SAFETY: channel and tap lie in the tensors, and each call has a channel of its own.
                unsafe {
                    if term + 1 < self.terms {
                        dweight.write(channel as i64, term as i64, total);
                    } else if let Some(dbias) = dbias {
                        dbias.write(channel as i64, 0, total);
                    }
                }
            }
        });
    }
}

impl SumsTarget {
    /// Stores the sums of a channel in a chunk.
    ///
    /// # Safety
    /// The [`Sums`] lives, chunk and channel lie in it, and no other task stores to the same place.
    pub unsafe fn put(&self, chunk: i64, channel: i64, sums: &[f64]) {
        assert_eq!(sums.len(), self.terms);
        let at = (chunk as usize * self.dim + channel as usize) * self.terms;
        // SAFETY: the caller's promise.
        unsafe { self.values.add(at).copy_from_nonoverlapping(sums.as_ptr(), sums.len()) }
    }
}
