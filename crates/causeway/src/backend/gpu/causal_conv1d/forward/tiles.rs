//! Tile sizes of the forward kernels, measured on an H200 (docs/kernels/history/forward.md).

/// What a block of the channel-last kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastTile {
    /// Most bytes of a thread's packet.
    pub bytes: u32,
    /// Most threads along dim; fewer where dim is smaller, and then more along seqlen.
    pub lanes: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Positions per thread.
    pub rows: u32,
    /// Blocks that should fit on a multiprocessor, if blocks have [`BLOCK`] threads: caps registers.
    pub resident: u32,
}

/// Threads of most blocks of the channel-last kernel.
pub(super) const BLOCK: u32 = 64;

impl LastTile {
    /// The same where rows are 16 bytes apart or less, in blocks of twice as many threads. With eight positions a thread, neighbouring lanes
    /// would read different lines of 128 bytes.
    pub fn of_narrow_rows(self) -> Self {
        LastTile { rows: 4, threads: 2 * self.threads, ..self }
    }
}

/// What a block of the channel-first kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstTile {
    /// Threads of a block.
    pub threads: u32,
    /// Most packets per thread; fewer where rows are shorter.
    pub tiles: u32,
}

/// A row of the table: the first whose limits hold is taken.
struct Rule {
    /// Largest width.
    width: i64,
    /// Bytes of an element of x.
    element: u32,
    /// Largest size of x in packets of 16 bytes per multiprocessor.
    packets: u64,
    tile: LastTile,
}

const ANY: u64 = u64::MAX;

/// Of calls without gates, norms and residual that are alone in their launch. With a few packets per multiprocessor latency rules, so threads
/// do little each. With more, the number of blocks counts as well: a multiprocessor starts one after the other.
const LAST_PLAIN: &[Rule] = &[
    Rule { width: 4, element: 2, packets: 128, tile: last(8, 1, 1) },
    Rule { width: 4, element: 2, packets: 420, tile: last(8, 2, 1) },
    Rule { width: 4, element: 2, packets: 720, tile: twice(8, 2, 1) },
    Rule { width: 4, element: 2, packets: 3000, tile: twice(8, 4, 12) },
    Rule { width: 4, element: 2, packets: ANY, tile: last(8, 8, 14) },
    Rule { width: 4, element: 4, packets: 320, tile: last(8, 2, 1) },
    Rule { width: 4, element: 4, packets: 10_000, tile: twice(8, 4, 12) },
];

/// Of others.
const LAST: &[Rule] = &[
    Rule { width: 4, element: 2, packets: 128, tile: last(8, 1, 1) },
    Rule { width: 4, element: 2, packets: 1024, tile: last(8, 2, 1) },
    Rule { width: 8, element: 2, packets: 512, tile: last(8, 1, 1) },
    Rule { width: 8, element: 4, packets: 512, tile: last(8, 2, 1) },
    Rule { width: 4, element: 2, packets: 2048, tile: last(8, 4, 12) },
    Rule { width: 4, element: 2, packets: 8192, tile: last(8, 8, 12) },
    Rule { width: 4, element: 2, packets: ANY, tile: last(8, 8, 14) },
    Rule { width: 5, element: 2, packets: ANY, tile: last(8, 8, 12) },
    Rule { width: 4, element: 4, packets: 2048, tile: last(8, 4, 12) },
    Rule { width: 4, element: 4, packets: 16_384, tile: last(8, 8, 12) },
    Rule { width: 4, element: 4, packets: ANY, tile: last(8, 8, 14) },
    // Wide windows take registers, and pay for their longer halo with more rows.
    Rule { width: 7, element: 2, packets: ANY, tile: last(8, 12, 8) },
    Rule { width: 8, element: 2, packets: ANY, tile: last(4, 16, 12) },
    Rule { width: 8, element: 4, packets: ANY, tile: last(8, 16, 12) },
];

const fn last(bytes: u32, rows: u32, resident: u32) -> LastTile {
    LastTile { bytes, lanes: 32, threads: BLOCK, rows, resident }
}

/// The same in half as many blocks.
const fn twice(bytes: u32, rows: u32, resident: u32) -> LastTile {
    LastTile { threads: 2 * BLOCK, ..last(bytes, rows, resident) }
}

/// What a channel-first call that tells sequences apart depends on.
pub(super) struct CheckedCall {
    /// Bytes of an element of x.
    pub element: u32,
    pub seq_idx: bool,
    pub initial_states: bool,
    pub residual: bool,
    pub takes_more_registers: bool,
}

impl CheckedCall {
    /// Rows of a group that share what it finds out about sequences.
    pub(super) fn rows(&self) -> u32 {
        match (self.element, self.seq_idx, self.initial_states) {
            (2, true, _) => 2,
            (2, false, false) => 1,
            (_, false, _) => 2,
            (_, true, _) => 4,
        }
    }

    /// Threads that should fit on a multiprocessor: caps registers, which are what such a call lacks. Fewer would spill.
    pub(super) fn threads(&self) -> u32 {
        match (self.element, self.seq_idx, self.residual) {
            (2, false, false) if !self.initial_states && !self.takes_more_registers => 1408,
            (2, false, _) => 1280,
            (_, true, true) => 1024,
            _ => 1152,
        }
    }
}

/// The tile for a width, an element size and a size of x in packets per multiprocessor. Plain: without gates, norm and residual, and
/// alone in its launch.
pub(super) fn last_tile(width: i64, element: u32, packets: u64, plain: bool) -> Option<LastTile> {
    let holds = |rule: &&Rule| width <= rule.width && element == rule.element && packets <= rule.packets;
    let plain = if plain { LAST_PLAIN } else { &[] };
    plain.iter().chain(LAST).find(holds).map(|rule| rule.tile)
}

/// As [`last_tile`], for channel-first: many threads that do little each, or fewer where the call is large. `idle`: no activation to
/// compute, and no boundaries to look for; 4-byte elements leave a thread so little to do then that more threads serve memory better at
/// every size.
pub(super) fn first_tile(width: i64, element: u32, packets: u64, idle: bool) -> FirstTile {
    if packets <= 4096 || idle && element == 4 && width <= 4 {
        FirstTile { threads: 128, tiles: 1 }
    } else {
        FirstTile { threads: 64, tiles: 2 }
    }
}
