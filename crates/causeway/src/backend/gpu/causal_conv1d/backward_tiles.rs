//! Tile sizes of the backward kernels, measured on an H200 (docs/kernels/backward.md).

/// Segments, or pieces of rows, are numbered in 31 bits with room for this many steps past the last.
pub(super) const MOST_STEPS: u64 = 8;

/// What a block of the channel-last kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastTile {
    /// Most channels of a thread.
    pub channels: u32,
    /// Most threads along dim, a power of two; fewer where dim is smaller, and then more along seqlen.
    pub lanes: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that should fit on a multiprocessor: caps registers.
    pub resident: u32,
    /// Chunks of rows under way.
    pub stages: u32,
    /// The grid fills the device about this many times.
    pub waves: u32,
    /// Fewest rows of a segment.
    pub least: u32,
}

/// What a block of the channel-first kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstTile {
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that should fit on a multiprocessor: caps registers.
    pub resident: u32,
    /// Bytes of a lane's positions.
    pub bytes: u32,
    /// Tiles under way.
    pub stages: u32,
    /// Waves per multiprocessor that are wanted.
    pub waves: u32,
}

/// A row of a table: the first whose limits hold is taken.
struct Rule<T> {
    /// Largest width.
    width: i64,
    /// Most elements of x per multiprocessor.
    elements: u64,
    /// Whether it serves calls with cu_seqlens or seq_idx, whose careful path needs more registers.
    places: bool,
    tile: T,
}

const ANY: u64 = u64::MAX;

const LAST: &[Rule<LastTile>] = &[
    // Few rows for each multiprocessor: short segments, for latency.
    Rule {
        width: 8,
        elements: 8 << 10,
        places: true,
        tile: LastTile { channels: 2, lanes: 8, threads: 128, resident: 1, stages: 2, waves: 1, least: 4 },
    },
    Rule {
        width: 4,
        elements: 256 << 10,
        places: false,
        tile: LastTile { channels: 4, lanes: 32, threads: 256, resident: 2, stages: 2, waves: 1, least: 16 },
    },
    Rule {
        width: 4,
        elements: ANY,
        places: false,
        tile: LastTile { channels: 4, lanes: 32, threads: 256, resident: 2, stages: 2, waves: 2, least: 16 },
    },
    Rule {
        width: 4,
        elements: ANY,
        places: true,
        tile: LastTile { channels: 4, lanes: 32, threads: 128, resident: 3, stages: 2, waves: 1, least: 16 },
    },
    Rule {
        width: 8,
        elements: ANY,
        places: false,
        tile: LastTile { channels: 2, lanes: 32, threads: 256, resident: 2, stages: 2, waves: 1, least: 16 },
    },
    Rule {
        width: 8,
        elements: ANY,
        places: true,
        tile: LastTile { channels: 2, lanes: 32, threads: 128, resident: 3, stages: 2, waves: 1, least: 16 },
    },
];

/// The tile for a width and a number of elements of x per multiprocessor.
pub(super) fn last(width: i64, elements: u64, places: bool) -> Option<LastTile> {
    LAST.iter()
        .find(|rule| width <= rule.width && elements <= rule.elements && (rule.places || !places))
        .map(|rule| rule.tile)
}

/// The tile for a width and the bytes of an element.
pub(super) fn first(width: i64, element: u32, places: bool, ragged: bool) -> Option<FirstTile> {
    // A lane needs as many positions as a halo.
    let bytes = if i64::from(16 / element) < width - 1 { 32 } else { 16 };
    let resident = match (width, places, ragged) {
        (..=4, false, false) => 5,
        (_, false, _) => 4,
        (_, true, _) => 3,
    };
    (width <= 8).then_some(FirstTile { threads: 128, resident, bytes, stages: 4, waves: 16 })
}

/// What a block of the general kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct General {
    /// Threads of a block.
    pub threads: u32,
    /// Channels of a tile.
    pub channels: u32,
    /// Positions of a tile.
    pub positions: u32,
    /// Threads that share a sum.
    pub slices: u32,
    /// Shared memory.
    pub shared_bytes: u32,
}

/// The largest of a few tiles whose shared memory every device grants without asking.
pub(super) fn general(width: i64, dim_fastest: bool) -> General {
    const THREADS: u32 = 256;
    const GRANTED: u32 = 48 << 10;
    let shapes: [(u32, u32); 5] = if dim_fastest {
        [(32, 64), (16, 64), (8, 64), (4, 64), (2, 64)]
    } else {
        [(4, 256), (4, 128), (2, 128), (2, 64), (1, 64)]
    };
    let tile = |(channels, positions): (u32, u32)| {
        let width = width as u32;
        let sums = channels * (width + 1);
        let slices = (THREADS / sums).max(1);
        let span = positions + 2 * (width - 1);
        // x and g per channel, weights, sums, four tables of places, a flag: as the kernel lays them out.
        let words = 2 * channels * (span | 1) + channels * width + slices * sums + 4 * span + 1;
        General { threads: THREADS, channels, positions, slices, shared_bytes: words * 4 }
    };
    let smallest = tile(shapes[shapes.len() - 1]);
    shapes.into_iter().map(tile).find(|tile| tile.shared_bytes <= GRANTED).unwrap_or(smallest)
}
