//! How work is cut into tasks: by the shape alone, so that results do not depend on the number of threads.

use std::ops::Range;

use super::tile::{TILE, whole_steps};
use crate::backend::cpu::threads;
use crate::causal_conv1d::Sizes;
use crate::tensor::TensorRef;

/// Elements that a task should have at least, to be worth handing to another thread.
const TASK_ELEMENTS: i64 = 1 << 16;

/// What takes less, in picoseconds on one core, stays on the calling thread: two threads, woken one after the other, and the
/// caller after them, have been seen to take as long.
const WORTH_THREADS: i64 = 60_000_000;

/// What a row that is taken along the sequence takes besides its elements, and what it takes at most for each of them: short rows are
/// convolved side by side.
const ROW: i64 = 40_000;
const SHORT_ROW: i64 = 600;

/// What an element takes about, in picoseconds on one core with wide vectors and warm caches.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Forward = 400,
    Backward = 1000,
    Update = 700,
    /// One element after the other, whatever the strides.
    Copy = 1200,
}

impl Work {
    /// Whether a result with the shape of x is worth more than the calling thread.
    pub(crate) fn of_x_is_worth_threads(self, x: &TensorRef<'_>) -> bool {
        let rows = match (x.shape(), x.strides()) {
            (&[_, _, _], &[_, 1, _]) => 0,
            (&[batch, dim, seqlen], _) => {
                let row = seqlen.saturating_mul(SHORT_ROW).min(ROW);
                batch.saturating_mul(dim).saturating_mul(row)
            }
            _ => 0,
        };
        rows.saturating_add(self.picoseconds(x.shape().iter().copied())) >= WORTH_THREADS
    }

    /// Whether so many elements are worth more than the calling thread.
    pub(crate) fn is_worth_threads(self, elements: impl IntoIterator<Item = i64>) -> bool {
        self.picoseconds(elements) >= WORTH_THREADS
    }

    fn picoseconds(self, elements: impl IntoIterator<Item = i64>) -> i64 {
        elements.into_iter().fold(self as i64, i64::saturating_mul)
    }
}

/// A grid of channel groups times chunks of columns. A *column* is a segment of a row of x.
#[derive(Debug, Clone)]
pub(super) struct Partition {
    pub dim: i64,
    seqlen: i64,
    /// Channels in a group.
    group: i64,
    groups: i64,
    /// Positions in a segment.
    segment: i64,
    segments: i64,
    columns: i64,
    /// Chunks of columns.
    pub chunks: i64,
}

/// A segment of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub batch: i64,
    pub from: i64,
    pub to: i64,
}

impl Partition {
    /// Groups of `group` channels and segments of `segment` positions, both at least 1; at most `max_chunks`
    /// chunks.
    pub fn new(sizes: &Sizes, group: i64, segment: i64, max_chunks: i64) -> Self {
        let Sizes { batch, dim, seqlen, .. } = *sizes;
        let groups = dim / group + i64::from(dim % group != 0);
        let segments = seqlen / segment + i64::from(seqlen % segment != 0);
        let columns = batch * segments;
        let column_elements = group.min(dim).max(1) * segment.min(seqlen).max(1);
        let columns_per_task = (TASK_ELEMENTS / column_elements).max(1);
        let chunks = (columns / columns_per_task).clamp(1, max_chunks);
        Partition { dim, seqlen, group, groups, segment, segments, columns, chunks }
    }

    /// As [`Partition::new`], for kernels that work along the sequence. Where positions are not neighbours in memory, a
    /// group of channels shares the cache lines of a segment.
    pub fn along_sequence(sizes: &Sizes, contiguous: bool, max_chunks: i64) -> Self {
        let segment = if contiguous { 8 * TILE } else { 2 * TILE };
        Partition::new(sizes, 16, segment as i64, max_chunks)
    }

    /// Positions of a tile: `before` at least, and no more than a row has, since every task allocates a tile, and sets it to zero.
    pub fn tile(&self, before: usize) -> usize {
        whole_steps(before.max(self.seqlen.min(TILE as i64) as usize)).min(TILE)
    }

    /// Number of tasks: none when there is no channel.
    pub fn tasks(&self) -> usize {
        (self.groups * self.chunks) as usize
    }

    /// Most channels that a task has.
    pub fn group(&self) -> usize {
        self.group.min(self.dim) as usize
    }

    /// The channels of a task, and its chunk.
    pub fn task(&self, task: usize) -> (Range<i64>, i64) {
        let (chunk, group) = (task as i64 / self.groups, task as i64 % self.groups);
        (group * self.group..((group + 1) * self.group).min(self.dim), chunk)
    }

    /// The columns of a chunk.
    pub fn columns(&self, chunk: i64) -> impl Iterator<Item = Column> + '_ {
        // Chunks differ by at most one column. In 128 bits: the product may be large.
        let bound =
            |chunk: i64| (i128::from(self.columns) * i128::from(chunk) / i128::from(self.chunks)) as i64;
        (bound(chunk)..bound(chunk + 1)).map(|column| {
            let (batch, from) = (column / self.segments, column % self.segments * self.segment);
            Column { batch, from, to: (from + self.segment).min(self.seqlen) }
        })
    }

    /// Does every task, on more threads than one if `parallel`.
    pub fn for_each_task(&self, parallel: bool, task: impl Fn(usize) + Sync) {
        threads::for_each(self.tasks(), parallel, &task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_every_position_of_every_channel_once() {
        for (batch, dim, seqlen) in
            [(1, 1, 1), (3, 37, 1000), (2, 16, 70_000), (5, 3, 17), (0, 4, 4), (2, 0, 9), (2, 9, 0)]
        {
            let sizes = Sizes { batch, dim, seqlen, width: 4, sequences: batch, packed: false };
            for (group, segment, max_chunks) in [(16, 256, 8), (1, 4096, 1), (1000, 10, i64::MAX)] {
                let partition = Partition::new(&sizes, group, segment, max_chunks);
                let mut seen = vec![0u8; (batch * dim * seqlen) as usize];
                for task in 0..partition.tasks() {
                    let (channels, chunk) = partition.task(task);
                    for column in partition.columns(chunk) {
                        for channel in channels.clone() {
                            for t in column.from..column.to {
                                seen[((column.batch * dim + channel) * seqlen + t) as usize] += 1;
                            }
                        }
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{sizes:?} {partition:?}");
            }
        }
    }
}
