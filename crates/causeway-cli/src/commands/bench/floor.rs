//! What no kernel beats by much: passes that move the same bytes and compute nothing.
//!
//! Forward reads x and writes y, so its floor is a copy. Backward reads x and dy and writes dx, so its floor is
//! one integer addition per lane. Both are tried with one thread and with all of the pool, with ordinary stores
//! and with stores that bypass the cache; the fastest on this machine, at this size, is the floor.

use rayon::prelude::*;

/// One way to make the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    parallel: bool,
    streaming: bool,
}

impl Pass {
    /// All ways that this target has.
    pub fn all() -> Vec<Pass> {
        let stores: &[bool] = if cfg!(target_arch = "x86_64") { &[false, true] } else { &[false] };
        let pass = |parallel| stores.iter().map(move |&streaming| Pass { parallel, streaming });
        [false, true].into_iter().flat_map(pass).collect()
    }

    /// `all threads, streaming stores`
    pub fn describe(self) -> String {
        let threads = if self.parallel { "all threads" } else { "one thread" };
        let stores = if self.streaming { "streaming stores" } else { "ordinary stores" };
        format!("{threads}, {stores}")
    }

    /// `to = from`
    pub fn copy(self, from: &[u8], to: &mut [u8]) {
        self.each(to, |start, to| {
            let from = &from[start..start + to.len()];
            if self.streaming { streaming::copy(from, to) } else { to.copy_from_slice(from) }
        });
    }

    /// `to = first + second`, as 32-bit integers.
    pub fn add(self, first: &[u8], second: &[u8], to: &mut [u8]) {
        self.each(to, |start, to| {
            let range = start..start + to.len();
            let (first, second) = (&first[range.clone()], &second[range]);
            if self.streaming { streaming::add(first, second, to) } else { add(first, second, to) }
        });
    }

    /// Calls `body` with the pieces of `to` and where they start.
    fn each(self, to: &mut [u8], body: impl Fn(usize, &mut [u8]) + Sync) {
        if !self.parallel {
            return body(0, to);
        }
        // A few pieces per thread even out a thread that starts late; 64 bytes keep pieces aligned.
        let pieces = rayon::current_num_threads() * 4;
        let length = to.len().div_ceil(pieces).next_multiple_of(64).max(4096);
        to.par_chunks_mut(length).enumerate().for_each(|(index, piece)| body(index * length, piece));
    }
}

fn add(first: &[u8], second: &[u8], to: &mut [u8]) {
    let lanes = first.chunks_exact(4).zip(second.chunks_exact(4)).zip(to.chunks_exact_mut(4));
    for ((first, second), to) in lanes {
        let lane = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        to.copy_from_slice(&lane(first).wrapping_add(lane(second)).to_ne_bytes());
    }
}

#[cfg(target_arch = "x86_64")]
mod streaming {
    //! SSE2 is part of x86-64. The write-combining buffers join four 16-byte stores to a line, so wider ones
    //! would not move more.

    use std::arch::x86_64::{__m128i, _mm_add_epi32, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    pub fn copy(from: &[u8], to: &mut [u8]) {
        let done = vectors(from, from, to, |value, _| value);
        to[done..].copy_from_slice(&from[done..]);
    }

    pub fn add(first: &[u8], second: &[u8], to: &mut [u8]) {
        // SAFETY: SSE2 is part of every x86-64 target.
        let done = vectors(first, second, to, |first, second| unsafe { _mm_add_epi32(first, second) });
        super::add(&first[done..], &second[done..], &mut to[done..]);
    }

    /// Stores whole vectors and returns how many bytes they were: none when `to` is not aligned.
    fn vectors(
        first: &[u8],
        second: &[u8],
        to: &mut [u8],
        combine: impl Fn(__m128i, __m128i) -> __m128i,
    ) -> usize {
        assert!(first.len() == to.len() && second.len() == to.len(), "a pass reads what it writes");
        const SIZE: usize = size_of::<__m128i>();
        if !to.as_ptr().cast::<__m128i>().is_aligned() {
            return 0;
        }
        let end = to.len() / SIZE * SIZE;
        for at in (0..end).step_by(SIZE) {
            // SAFETY: `at` and the 16 bytes after it lie in the three slices, which are equally long; loads may
            // be unaligned, and `to` plus a multiple of 16 is aligned.
            unsafe {
                let first = _mm_loadu_si128(first.as_ptr().add(at).cast());
                let second = _mm_loadu_si128(second.as_ptr().add(at).cast());
                _mm_stream_si128(to.as_mut_ptr().add(at).cast(), combine(first, second));
            }
        }
        // SAFETY: SSE is part of every x86-64 target. The fence makes the stores part of the time measured, and
        // visible to other threads.
        unsafe { _mm_sfence() };
        end
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod streaming {
    //! No stable stores that bypass the cache: [`Pass::all`](super::Pass::all) never asks for them.

    pub fn copy(from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }

    pub fn add(first: &[u8], second: &[u8], to: &mut [u8]) {
        super::add(first, second, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_moves_every_byte() {
        for length in [0, 4, 60, 4096, 4100, 100_000] {
            let first: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let second: Vec<u8> = (0..length).map(|i| (i % 17) as u8).collect();
            let mut sum = vec![0; length];
            add(&first, &second, &mut sum);
            for pass in Pass::all() {
                let mut to = vec![0xaa; length];
                pass.copy(&first, &mut to);
                assert_eq!(to, first, "{}", pass.describe());
                to.fill(0xaa);
                pass.add(&first, &second, &mut to);
                assert_eq!(to, sum, "{}", pass.describe());
            }
        }
        assert_eq!(
            u32::from_ne_bytes({
                let mut to = [0; 4];
                add(&7u32.to_ne_bytes(), &u32::MAX.to_ne_bytes(), &mut to);
                to
            }),
            6
        );
    }
}
