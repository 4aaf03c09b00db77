//! Memory that a thread keeps between calls.
//!
//! Fresh pages cost more than a small product; a thread therefore reuses its scratch. It holds one tile and one
//! block of each operand, a few MiB at most, whatever the size of the matrices.

use std::cell::Cell;

/// Numbers that fill a cache line, so that vectors never straddle two.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// A thread's memory, in the hands of one task.
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// The memory of this thread. (Who asks while another task has it gets fresh memory.)
    pub fn take() -> Self {
        Scratch(KEPT.take())
    }

    /// Buffers of these lengths, aligned to cache lines. What is in them is left over from others.
    pub fn split<T: bytemuck::Pod, const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [T]; N] {
        let lines = lengths.map(|count| (count * size_of::<T>()).div_ceil(size_of::<Line>()));
        let total = lines.iter().sum();
        if self.0.len() < total {
            self.0.resize(total, Line([0; 64]));
        }
        let mut rest = self.0.as_mut_slice();
        std::array::from_fn(|i| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(lines[i]);
            rest = after;
            &mut bytemuck::cast_slice_mut(part)[..lengths[i]]
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        KEPT.set(std::mem::take(&mut self.0));
    }
}
