//! Products on Hopper's matrix units: kernels/gemm_wgmma.cuh.

use std::mem::offset_of;

use bytemuck::Pod;

use super::problem::{Matrix, Problem};
use super::wgmma_schedule::{Cluster, Deal, Operand, Product, Schedule, WARP_ROWS};
use super::wgmma_tiles::choose;
use crate::backend::gpu::choice::{ArgumentType, Attribute, Choice, Constants, KernelFunction, LaunchBounds};
use crate::backend::gpu::device_struct::device_struct;
use crate::backend::gpu::plan::{DeviceFacts, Plan, TensorMap, Vendor};
use crate::tensor::DType;

/// Terms of a stage: 128 bytes.
const STEP: u64 = 64;
/// Rows of a tile that are walked together, so that those computed at one time form a patch that is about square.
const BAND_ROWS: u32 = 2048;
/// Residues of line numbers, where lines begin anywhere.
const RESIDUES: u64 = 8;
/// Elements that are copied of a line that begins anywhere: those of a stage, and the remainder of an address.
const RAW_ELEMENTS: u32 = 72;
/// Bytes of 64 such lines.
const RAW_GROUP: u32 = 64 * RAW_ELEMENTS * 2;
/// Bytes of what a warp stores at a time, at most: 16 rows × 64 columns.
const BUFFER_BYTES: u32 = 2048;
/// Coordinates are 32-bit, and tiles may reach past the matrix.
const LARGEST: i64 = (1 << 31) - (1 << 16);

device_struct! {
    /// The result, where TMA cannot store it.
    struct ResultByRows in "gemm" {
        address: u64,
        /// elements
        row_stride: i64,
        rows: i32,
        columns: i32,
    }
}

device_struct! {
    /// Which tiles and terms are whose.
    struct Shares in "gemm" {
        /// in units of a cluster's tiles
        row_tiles: i32,
        column_tiles: i32,
        /// ⌈terms / 64⌉
        steps: i32,
        /// rows of tiles that are walked together
        band: i32,
        /// tiles that one cluster sums
        whole: i32,
        /// of each other tile
        pieces: u32,
        /// steps of the first piece
        head: i32,
        /// steps of any other
        part: i32,
        /// the sums of pieces
        workspace: u64 as "float*",
        /// one for each warp of each tile of the rest: how many pieces are in the workspace
        counters: u64 as "u32*",
    }
}

static KERNEL: KernelFunction = KernelFunction {
    header: "gemm_wgmma.cuh",
    entry: "gemm_wgmma",
    argument: ArgumentType::Template(
        "__grid_constant__ causeway::gemm::Arguments<Tile>",
        &[&ResultByRows::DEVICE, &Shares::DEVICE],
    ),
    function: "gemm::gemm_wgmma<Tile>",
};

/// The launch; None if the device or the matrices are not for this kernel.
pub(super) fn plan(problem: &Problem, facts: &DeviceFacts) -> Option<Plan> {
    let sizes = [problem.rows, problem.columns, problem.reduction];
    let fits = sizes.iter().all(|size| (1..=LARGEST).contains(size));
    if facts.vendor != Vendor::Nvidia || facts.architecture != "sm_90a" || !fits {
        return None;
    }
    let left = Lines::of(problem.left, problem.rows, problem.reduction)?;
    let right = Lines::of(problem.right.transposed(), problem.columns, problem.reduction)?;
    let result = Lines::of_result(problem)?;
    let product = Product {
        rows: problem.rows as u64,
        columns: problem.columns as u64,
        terms: problem.reduction as u64,
        left: left.operand(),
        right: right.operand(),
        eighths: result.eighths(),
        by_lines: !left.direct || !right.direct,
        stored_by_threads: !result.direct,
        transposed: false,
    };
    let schedule = choose(product, facts);
    let (left, right) = if schedule.transposed { (right, left) } else { (left, right) };
    Some(Launch { problem, left, right, result, schedule, steps: product.steps() }.plan())
}

/// A matrix as lines of elements that lie side by side. For operands, a line has the terms of one row (or column of the
/// right operand), or one term of all rows.
#[derive(Clone, Copy)]
struct Lines {
    address: u64,
    /// Elements of a line.
    length: u64,
    count: u64,
    /// Elements from one line to the next.
    stride: u64,
    /// A line holds one term of all rows.
    row_major: bool,
    /// TMA takes the lines as they are: they begin at multiples of 16 bytes.
    direct: bool,
}

impl Lines {
    /// An operand of `rows` × `terms`; None if neither rows nor columns lie side by side.
    fn of(matrix: Matrix, rows: i64, terms: i64) -> Option<Self> {
        let by_row = Self::new(matrix.address, rows, terms, matrix.row_stride, matrix.column_stride);
        let by_term = Self::new(matrix.address, terms, rows, matrix.column_stride, matrix.row_stride);
        let by_term = by_term.map(|lines| Lines { row_major: true, ..lines });
        // A vector is both; one way may be direct where the other is not.
        by_row.filter(|lines| lines.direct).or(by_term.filter(|lines| lines.direct)).or(by_row).or(by_term)
    }

    fn of_result(problem: &Problem) -> Option<Self> {
        let matrix = problem.result;
        let lines = Self::new(
            matrix.address,
            problem.rows,
            problem.columns,
            matrix.row_stride,
            matrix.column_stride,
        )?;
        // What the engine writes ends at a multiple of 16 bytes, not at the matrix.
        let direct = lines.direct && lines.length.is_multiple_of(RESIDUES);
        Some(Lines { direct, ..lines })
    }

    fn new(address: u64, count: i64, length: i64, stride: i64, element_stride: i64) -> Option<Self> {
        if length > 1 && element_stride != 1 || !address.is_multiple_of(2) {
            return None;
        }
        // A single line may be followed by any other.
        let stride = if count > 1 { stride } else { (length as u64).next_multiple_of(RESIDUES) as i64 };
        // Lines that overlap, or run backwards, are not a matrix to TMA.
        if stride < length || stride >= 1 << 35 {
            return None;
        }
        Some(Lines {
            address,
            length: length as u64,
            count: count as u64,
            stride: stride as u64,
            row_major: false,
            direct: address.is_multiple_of(16) && (stride as u64).is_multiple_of(RESIDUES),
        })
    }

    fn operand(&self) -> Operand {
        Operand { row_major: self.row_major, eighths: self.eighths() }
    }

    /// Cache lines of 128 bytes, in eighths, that 128 bytes of a line touch on average: lines begin at the multiples of a power of two.
    fn eighths(&self) -> u32 {
        let granule = 1 << (self.address | (self.stride * 2) | 128).trailing_zeros();
        16 - (granule / 16).max(1)
    }

    /// For TMA, in boxes of `box_lines` lines of 64 elements.
    fn map(&self, dtype: DType, box_lines: u32) -> TensorMap {
        TensorMap {
            dtype,
            address: self.address,
            sizes: [self.length, self.count],
            stride_bytes: self.stride * 2,
            box_sizes: [STEP as u32, box_lines],
            swizzled: true,
        }
    }

    /// The lines of one residue, and the elements between the rounded address and theirs. Where there are none, a
    /// matrix of one element that is always skipped.
    fn residue(&self, dtype: DType, residue: u64) -> (TensorMap, u32) {
        let address = self.address + residue * self.stride * 2;
        let (begin, shift) = (address & !15, (address & 15) / 2);
        let count = (self.count + RESIDUES - 1 - residue) / RESIDUES;
        let map = |address, sizes, stride_bytes| TensorMap {
            dtype,
            address,
            sizes,
            stride_bytes,
            box_sizes: [RAW_ELEMENTS, RESIDUES as u32],
            swizzled: false,
        };
        match count {
            0 => (map(self.address & !15, [1, 1], 16), 1),
            _ => (map(begin, [self.length + shift, count], self.stride * 2 * RESIDUES), shift as u32),
        }
    }
}

/// The kernel's argument as it is put together: `Arguments` of gemm_wgmma.cuh.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    maps: Vec<(usize, TensorMap)>,
    /// Where [`Shares`] are.
    shares_at: usize,
}

impl Block {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn map(&mut self, map: TensorMap) {
        self.align(64);
        self.maps.push((self.bytes.len(), map));
        self.bytes.resize(self.bytes.len() + TensorMap::BYTES, 0);
    }

    fn operand(&mut self, lines: &Lines, dtype: DType, box_lines: u32) {
        if lines.direct {
            return self.map(lines.map(dtype, box_lines));
        }
        let mut shifts = 0u32;
        for residue in 0..RESIDUES {
            let (map, shift) = lines.residue(dtype, residue);
            self.map(map);
            shifts |= shift << (4 * residue);
        }
        self.bytes.extend(shifts.to_ne_bytes());
        self.align(64);
    }

    fn push(&mut self, part: &impl Pod) {
        self.bytes.extend(bytemuck::bytes_of(part));
    }
}

struct Launch<'a> {
    problem: &'a Problem,
    left: Lines,
    right: Lines,
    result: Lines,
    schedule: Schedule,
    steps: u64,
}

impl Launch<'_> {
    fn plan(&self) -> Plan {
        let Schedule { tile, cluster, tiles, clusters, deal, .. } = self.schedule;
        let arguments = self.arguments();
        let threads = self.threads();
        let traffic = self.problem.traffic();
        let warps = u64::from(cluster.blocks() * tile.rows / 16);
        let bytes = &arguments.bytes;
        // A piece has the f32 sums of what a cluster computes at a time.
        let sums = match cluster {
            Cluster::Share { .. } => u64::from(cluster.blocks() * tile.rows * tile.columns),
            Cluster::Split(_) => u64::from(tile.rows * tile.columns),
        };
        let (in_pieces, pieces) = match deal {
            Deal::Whole => (0, 0),
            Deal::Rest(rest) => (rest.tiles, rest.pieces),
            Deal::Parts(parts) => (tiles.count(), parts),
        };
        let places = |offset| Vec::from_iter((pieces > 0).then_some(arguments.shares_at + offset));
        Plan {
            grid: [(clusters * u64::from(cluster.blocks())) as u32, 1, 1],
            block: [threads, 1, 1],
            cluster: cluster.blocks(),
            shared_bytes: self.shared_bytes(),
            workspace_bytes: in_pieces * pieces * sums * 4,
            // One for each warp of such a tile.
            counters: (in_pieces * warps) as u32,
            workspace_at: places(offset_of!(Shares, workspace)),
            counters_at: places(offset_of!(Shares, counters)),
            programmatic_launch: true,
            tensor_maps: arguments.maps,
            ..Plan::new(self.choice(threads), bytes, traffic.read, traffic.written)
        }
    }

    fn arguments(&self) -> Block {
        let Schedule { transposed, tile, cluster, tiles, deal, .. } = self.schedule;
        let (down, across) = cluster.tiles();
        let dtype = self.problem.dtype;
        // Blocks that share an operand load a part of its lines each.
        let box_lines =
            |lines: &Lines, extent, parts| if lines.row_major { STEP as u32 / parts } else { extent / parts };
        let mut block = Block::default();
        block.operand(&self.left, dtype, box_lines(&self.left, tile.rows, across));
        block.operand(&self.right, dtype, box_lines(&self.right, tile.columns, down));
        if self.result.direct {
            let columns = tile.stored_columns();
            let box_sizes = match cluster {
                _ if transposed => [WARP_ROWS, columns],
                Cluster::Split(_) => [columns, 8],
                Cluster::Share { .. } => [columns, WARP_ROWS],
            };
            let map = self.result.map(dtype, box_sizes[1]);
            block.map(TensorMap { box_sizes, swizzled: box_sizes[0] == 64, ..map });
        } else {
            block.push(&ResultByRows {
                address: self.result.address,
                row_stride: self.result.stride as i64,
                rows: self.problem.rows as i32,
                columns: self.problem.columns as i32,
            });
        }
        let [in_rest, pieces, head, part] = match deal {
            Deal::Whole => [0; 4],
            Deal::Rest(rest) => [rest.tiles, rest.pieces, rest.head, rest.part],
            Deal::Parts(parts) => [0, parts, 0, 0],
        };
        block.shares_at = block.bytes.len();
        // Numbers are below 2^31: sizes are, and these are quotients of sizes.
        block.push(&Shares {
            row_tiles: tiles.down as i32,
            column_tiles: tiles.across as i32,
            steps: self.steps as i32,
            band: (BAND_ROWS / (tile.rows * down)).max(1) as i32,
            whole: (tiles.count() - in_rest) as i32,
            pieces: pieces as u32,
            head: head as i32,
            part: part as i32,
            ..Shares::default()
        });
        block.align(64);
        block
    }

    /// Groups of 64 lines that are copied raw.
    fn raw_groups(&self) -> u32 {
        let groups = |lines: &Lines, extent: u32| if lines.direct { 0 } else { extent / 64 };
        groups(&self.left, self.schedule.tile.rows) + groups(&self.right, self.schedule.tile.columns)
    }

    fn threads(&self) -> u32 {
        self.schedule.tile.rows * 2 + 32 + self.schedule.tile.aligners * 32
    }

    fn shared_bytes(&self) -> u32 {
        let tile = &self.schedule.tile;
        let stages = tile.stages * (tile.rows + tile.right_lines(self.right.row_major)) * 128;
        let raw = tile.raw_stages * self.raw_groups() * RAW_GROUP;
        let barriers = 16 * (tile.stages + tile.raw_stages);
        stages + raw + tile.staging * tile.rows / 16 * BUFFER_BYTES + barriers
    }

    fn choice(&self, threads: u32) -> Choice {
        let Schedule { transposed, tile, cluster, deal, .. } = self.schedule;
        let blocks = cluster.blocks();
        let constants = Constants::new("Tile")
            .flag("bf16", self.problem.dtype == DType::BF16)
            .flag("left_row_major", self.left.row_major)
            .flag("right_row_major", self.right.row_major)
            .flag("left_by_rows", !self.left.direct)
            .flag("right_by_rows", !self.right.direct)
            .flag("result_by_rows", !self.result.direct)
            .flag("result_transposed", transposed)
            .flag("split", matches!(cluster, Cluster::Split(_)))
            .flag("shared_rest", deal != Deal::Whole)
            .int("tile_rows", tile.rows)
            .int("tile_columns", tile.columns)
            .int("stages", tile.stages)
            .int("staging", tile.staging)
            .int("raw_stages", tile.raw_stages)
            .int("aligners", tile.aligners)
            .int("cluster", blocks)
            .int("share_rows", cluster.tiles().0);
        let bounds = LaunchBounds {
            cluster: blocks,
            attribute: Attribute::Cluster,
            ..LaunchBounds::new(threads, tile.resident)
        };
        // The kernel itself says where it waits for the launch before it.
        Choice::new(&KERNEL, bounds, false, [None, Some(constants)])
    }
}

#[cfg(test)]
#[path = "wgmma_tests.rs"]
mod tests;
