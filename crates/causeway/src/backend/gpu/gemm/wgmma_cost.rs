//! What a schedule of a product on Hopper's matrix units takes, by a model of a few terms.
//!
//! ```text
//! time = LAUNCH + (work^1.5 + memory^1.5)^⅔        memory: all three matrices, once
//! work = FILL + the longer of loading and of multiplying and storing all tiles of a block, and a little of the shorter
//!        + a last store + what it takes to add parts
//! load = the longest of the cache lines that arrive, those that the block asks for, and latency / stages, for each step
//! ```
//!
//! Cache lines count, not bytes: one of 128 bytes that begins within a cache line touches two. Constants are nanoseconds, and were
//! fitted by tests/tune_gemm.py to times on an H100, but for `memory`, which is that of an H200: there it was fitted before, and the H100's
//! fit has been scaled (docs/kernels/history/gemm-wgmma.md).

use super::wgmma_schedule::{Cluster, Deal, Operand, Product, Schedule, Tile, Tiles};
use crate::backend::gpu::plan::DeviceFacts;

/// Constants of the model.
struct Model {
    /// Before the first block begins and after the last one ends.
    launch: f64,
    /// From there to a block's first step.
    fill: f64,
    /// A line that arrives at a multiprocessor; what more it takes if it touches two cache lines.
    arrival: f64,
    arrival_straddling: f64,
    /// A line that a block asks for, on a full device; what more if it touches two cache lines.
    request: f64,
    request_straddling: f64,
    /// What more if the line comes from memory.
    from_memory: f64,
    /// What more for a line that 32 blocks ask for at the same time, and what each doubling of such a
    /// crowd adds to the first step.
    crowd: f64,
    crowd_fill: f64,
    /// A line outside the matrix, by one inside.
    outside: f64,
    /// What more a step takes where a part of a cluster's blocks has no tile, by that part.
    idle: f64,
    /// From a request to its data.
    latency: f64,
    /// How much the shorter of loading and multiplying adds to the longer one.
    hidden: f64,
    /// Per column, of 64 rows by 64 terms.
    multiply: f64,
    /// Any step.
    step: f64,
    /// A tile's store, and for 64 elements of it; what more if lines straddle cache lines, or are stored in narrow pieces.
    store: f64,
    store_line: f64,
    store_straddling: f64,
    store_narrow: f64,
    /// How much of the stores is not hidden behind loading, and of the last one.
    stores_seen: f64,
    last_store: f64,
    /// A split: its barriers, those for each block, and 64 × 64 sums of a block.
    split: f64,
    split_block: f64,
    split_sums: f64,
    /// The way through the workspace.
    handover: f64,
    /// 512 sums that are added, of clusters that split a tile.
    handover_sums: f64,
    /// Pieces of a rest that a warp asks for together, and 512 sums of them.
    rest_wait: f64,
    rest_sums: f64,
    /// A piece after the first of a cluster, by the root of 4096 sums.
    turn: f64,
    /// Clusters of blocks that share: of two, and of more.
    share_two: f64,
    share_more: f64,
    /// Bytes of memory in a nanosecond.
    memory: f64,
    /// How much more of them for an operand whose lines are terms, a straddling result, and one stored in narrow pieces.
    memory_reduction_major: f64,
    memory_straddling: f64,
    memory_narrow: f64,
}

const MODEL: Model = Model {
    launch: 732.0,
    fill: 499.0,
    arrival: 0.99,
    arrival_straddling: 0.21,
    request: 1.49,
    request_straddling: 0.53,
    from_memory: 0.32,
    crowd: 0.21,
    crowd_fill: 115.0,
    outside: 1.78,
    idle: 0.3,
    latency: 1057.0,
    hidden: 0.10,
    multiply: 1.14,
    step: 11.1,
    store: 149.0,
    store_line: 0.69,
    store_straddling: 0.64,
    store_narrow: 0.29,
    stores_seen: 0.74,
    last_store: 1.96,
    split: 239.0,
    split_block: 164.0,
    split_sums: 780.0,
    handover: 1700.0,
    handover_sums: 69.0,
    rest_wait: 150.0,
    rest_sums: 18.0,
    turn: 1550.0,
    share_two: 92.1,
    share_more: 84.3,
    memory: 5200.0,
    memory_reduction_major: 0.08,
    memory_straddling: 0.53,
    memory_narrow: 0.16,
};

/// A line that aligners move, and a line of a result that threads store, element by element.
const ALIGNED_LINE: f64 = 5.0;
const STORED_BY_THREADS: f64 = 4.0;

/// What the schedules of a tile and a cluster have in common.
pub(super) struct Estimate {
    /// Steps of a tile.
    steps: u64,
    /// Clusters at a time, and tiles.
    at_a_time: u64,
    tiles: u64,
    cluster: Cluster,
    /// Blocks of a full device, and of each multiprocessor.
    multiprocessors: f64,
    resident: f64,
    /// A step, of a block alone on its multiprocessor: lines that arrive, those asked for on a full device, those from memory.
    arrive: f64,
    request: f64,
    from_memory: f64,
    /// Lines of a step, of the left and of the right operand, and the blocks that have them in common on a full device.
    asked: [(f64, f64); 2],
    /// The least that a step's loads take.
    latency: f64,
    multiply: f64,
    store: f64,
    /// What blocks without a tile make of a step.
    idle: f64,
    /// 64 × 64 sums of a tile.
    sums: f64,
    /// Widths that a tile is stored in, and pieces of a rest that a warp asks for at a time.
    widths: u64,
    together: u64,
    memory: f64,
}

/// Lines that a tile's step has of an operand, on average over the `tiles` along it: inside the matrix, and outside.
fn lines(operand: Operand, extent: u64, tiles: u64, of_tile: u32) -> (f64, f64) {
    // Row-major, 64 rows (or columns) have 64 lines.
    let whole = |extent: u64| if operand.row_major { extent.next_multiple_of(64) } else { extent };
    let inside = whole(extent) as f64 / tiles as f64;
    (inside, (whole(u64::from(of_tile)) as f64 - inside).max(0.0))
}

/// Cache lines that a line touches, beyond one.
fn beyond(eighths: u32) -> f64 {
    f64::from(eighths) / 8.0 - 1.0
}

impl Estimate {
    pub fn new(
        product: &Product,
        tile: &Tile,
        cluster: Cluster,
        tiles: Tiles,
        at_a_time: u64,
        facts: &DeviceFacts,
    ) -> Self {
        let m = &MODEL;
        let (down, across) =
            (product.rows.div_ceil(u64::from(tile.rows)), product.columns.div_ceil(u64::from(tile.columns)));
        let (left, outside_left) = lines(product.left, product.rows, down, tile.rows);
        let (right, outside_right) = lines(product.right, product.columns, across, tile.columns);
        let (straddle_left, straddle_right) = (beyond(product.left.eighths), beyond(product.right.eighths));
        let (share_right, share_left) = cluster.tiles();
        let (by_left, by_right) = (f64::from(share_left), f64::from(share_right));
        let arrive = left * (1.0 + m.arrival_straddling * straddle_left)
            + right * (1.0 + m.arrival_straddling * straddle_right)
            + m.outside * (outside_left + outside_right);
        let asked_left = left / by_left * (1.0 + m.request_straddling * straddle_left);
        let asked_right = right / by_right * (1.0 + m.request_straddling * straddle_right);
        let outside = m.outside * (outside_left / by_left + outside_right / by_right);
        // The first to read a line has it from memory.
        let first = asked_left * by_left / (across as f64).max(by_left)
            + asked_right * by_right / (down as f64).max(by_right);
        let blocks = tiles.count() * u64::from(share_right) * u64::from(share_left);
        // `PACKETS_IN_FLIGHT` of gemm_wgmma_work.cuh, in columns.
        let in_flight = if tile.rows > 128 { 128 } else { 256 };
        let pieces = 64.0 / f64::from(product.stored(tile)) - 1.0;
        let straddle_result = beyond(product.eighths);
        let stored = product.rows as f64 / down as f64 * (product.columns as f64 / across as f64) / 64.0;
        let by_threads = if product.stored_by_threads { STORED_BY_THREADS } else { 1.0 };
        let bytes = |first: u64, second: u64| 2.0 * first as f64 * second as f64;
        let of = |operand: Operand| if operand.row_major { 1.0 } else { 1.0 + m.memory_reduction_major };
        let moved = bytes(product.rows, product.terms) * of(product.left)
            + bytes(product.columns, product.terms) * of(product.right)
            + bytes(product.rows, product.columns)
                * (1.0 + m.memory_straddling * straddle_result + m.memory_narrow * pieces);
        let aligned =
            if tile.aligners > 0 { ALIGNED_LINE * f64::from(tile.rows + tile.columns) } else { 0.0 };
        Estimate {
            steps: product.steps(),
            at_a_time,
            tiles: tiles.count(),
            cluster,
            multiprocessors: f64::from(facts.multiprocessors),
            resident: f64::from(tile.resident),
            arrive: (m.arrival * arrive).max(aligned),
            request: m.request * (asked_left + asked_right + outside),
            from_memory: m.from_memory * first,
            asked: [(asked_left, across as f64 / by_left), (asked_right, down as f64 / by_right)],
            latency: m.latency / f64::from(tile.stages),
            multiply: m.multiply * f64::from(tile.columns * tile.rows / 64) + m.step,
            store: m.store
                + m.store_line
                    * stored
                    * (1.0 + m.store_straddling * straddle_result)
                    * (1.0 + m.store_narrow * pieces)
                    * by_threads,
            idle: 1.0 + m.idle * (1.0 - (down * across) as f64 / blocks as f64),
            sums: f64::from(tile.rows * tile.columns) / 4096.0,
            widths: u64::from(tile.columns / tile.stored_columns()),
            together: u64::from(in_flight / tile.stored_columns()),
            memory: moved / m.memory,
        }
    }

    /// Nanoseconds of a schedule's work, if memory gave all at once.
    pub fn work(&self, schedule: &Schedule) -> f64 {
        let m = &MODEL;
        let blocks = u64::from(self.cluster.blocks());
        let running = (schedule.clusters.min(self.at_a_time) * blocks) as f64;
        // Blocks on a multiprocessor share what it can do.
        let shared = (running / self.multiprocessors).clamp(1.0, self.resident);
        let busy = (running / self.multiprocessors).min(1.0);
        // Doublings of the blocks that ask for the same line at the same time.
        let doublings = self.asked.map(|(_, blocks)| blocks.min(running).max(1.0).log2());
        let crowd: f64 =
            self.asked.iter().zip(doublings).map(|((lines, _), of)| lines * (of / 5.0).min(1.0)).sum();
        let request = self.request * busy.sqrt() + self.from_memory + m.crowd * crowd;
        let load = (self.arrive.max(request) * shared).max(self.latency) * self.idle;
        let (multiply, store) = (self.multiply * shared * self.idle, self.store * shared);
        let (split, parts) = match (self.cluster, schedule.deal) {
            (Cluster::Split(_), Deal::Parts(parts)) => (true, parts),
            (Cluster::Split(_), _) => (true, 1),
            _ => (false, 1),
        };
        let steps = if split { self.steps.div_ceil(blocks * parts) } else { self.steps } as f64;
        let rounds = (self.tiles * parts).div_ceil(self.at_a_time) as f64;
        let (rounds, stores) = match schedule.deal {
            Deal::Rest(rest) => {
                let full = self.tiles / self.at_a_time;
                let longest = rest.head.max(rest.turns * rest.part);
                (full as f64 + longest as f64 / steps, (full + 1) as f64)
            }
            _ => (rounds, rounds),
        };
        let loading = rounds * steps * load;
        let computing = rounds * steps * multiply + stores * store * m.stores_seen;
        let mut work = loading.max(computing)
            + m.hidden * loading.min(computing)
            + store * m.last_store
            + m.fill
            + m.crowd_fill * doublings[0].max(doublings[1]);
        if split {
            // Blocks do not stay.
            work += (rounds - 1.0) * m.fill
                + rounds * (m.split + m.split_block * blocks as f64 + m.split_sums * self.sums);
        }
        work += match (self.cluster, schedule.deal) {
            (_, Deal::Whole) => 0.0,
            (_, Deal::Parts(parts)) => {
                m.handover + m.handover_sums * 8.0 * self.sums / blocks as f64 * parts as f64
            }
            (_, Deal::Rest(rest)) => {
                m.handover
                    + m.rest_wait * (self.widths * rest.pieces.div_ceil(self.together)) as f64
                    + m.rest_sums * 8.0 * self.sums * rest.pieces as f64
                    + m.turn * self.sums.sqrt() * (rest.turns.max(1) - 1) as f64
            }
        };
        work + match self.cluster {
            Cluster::Share { .. } if blocks == 2 => m.share_two,
            Cluster::Share { .. } if blocks > 2 => m.share_more,
            _ => 0.0,
        }
    }

    /// Nanoseconds of a launch whose work takes so many.
    pub fn nanoseconds(&self, work: f64) -> f64 {
        let power = |time: f64| time * time.sqrt();
        let sum = power(work) + power(self.memory);
        MODEL.launch + (sum * sum).cbrt()
    }
}
