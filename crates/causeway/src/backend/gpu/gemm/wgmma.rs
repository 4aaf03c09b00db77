//! Products on Hopper's matrix units: kernels/gemm_wgmma.cuh.

use super::problem::{Matrix, Problem};
use super::wgmma_tiles::{Cluster, Tile, choose};
use crate::backend::gpu::launch::Constants;
use crate::backend::gpu::plan::{DeviceFacts, Plan, TensorMap, Vendor};
use crate::tensor::DType;

/// Terms of a stage: 128 bytes.
const STEP: u64 = 64;
/// Rows of a tile that are walked together, so that the tiles under way form a patch that is about square.
const BAND_ROWS: u32 = 2048;
/// Residues of line numbers, where lines begin anywhere.
const RESIDUES: u64 = 8;
/// Elements that are copied of a line that begins anywhere: those of a stage, and the remainder of an address.
const RAW_ELEMENTS: u32 = 72;
/// Bytes of 64 such lines.
const RAW_GROUP: u32 = 64 * RAW_ELEMENTS * 2;
/// Bytes of what a warp stores at a time: 16 rows × 64 columns.
const CHUNK: u32 = 2048;
/// Coordinates are 32-bit, and tiles may reach past the matrix.
const LARGEST: i64 = (1 << 31) - (1 << 16);

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
    let by_lines = !left.direct || !right.direct;
    let steps = (problem.reduction as u64).div_ceil(STEP);
    let (tile, cluster) = choose(problem.rows as u64, problem.columns as u64, steps, by_lines, facts);
    Some(Launch { problem, left, right, result, tile, cluster, steps }.plan(facts))
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
    /// The copy engine takes the lines as they are: they begin at multiples of 16 bytes.
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
        // Lines that overlap, or run backwards, are not a matrix to the copy engine.
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

    /// For the copy engine, in boxes of `box_lines` lines of 64 elements.
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

    fn numbers(&mut self, numbers: [u64; 4]) {
        // Each is below 2^31: sizes are, and these are quotients of sizes.
        self.bytes.extend(numbers.iter().flat_map(|number| (*number as i32).to_ne_bytes()));
    }
}

struct Launch<'a> {
    problem: &'a Problem,
    left: Lines,
    right: Lines,
    result: Lines,
    tile: Tile,
    cluster: Cluster,
    steps: u64,
}

impl Launch<'_> {
    fn plan(&self, facts: &DeviceFacts) -> Plan {
        let (tile, blocks) = (&self.tile, self.cluster.blocks());
        let share_left = self.cluster == Cluster::ShareLeft;
        let across = if share_left { 2 } else { 1 };
        let row_tiles = (self.problem.rows as u64).div_ceil(u64::from(tile.rows));
        let column_tiles = (self.problem.columns as u64).div_ceil(u64::from(tile.columns * across));
        let arguments = self.arguments(row_tiles, column_tiles, across);
        let threads = self.threads();
        let clusters = match self.cluster {
            Cluster::Split(_) => row_tiles * column_tiles,
            // Blocks stay and walk over tiles.
            _ => (row_tiles * column_tiles).min(u64::from((facts.multiprocessors / blocks).max(1))),
        };
        Plan {
            header: "gemm_wgmma.cuh",
            instantiation: self.instantiation(threads),
            entry: "gemm_wgmma",
            grid: [(clusters * u64::from(blocks)) as u32, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: self.shared_bytes(),
            workspace_bytes: 0,
            counters: 0,
            arguments: arguments.bytes,
            workspace_at: None,
            counters_at: None,
            tensor_maps: arguments.maps,
            begins_early: true,
            read_bytes: self.problem.read_bytes(),
            written_bytes: self.problem.written_bytes(),
        }
    }

    fn arguments(&self, row_tiles: u64, column_tiles: u64, across: u32) -> Block {
        let (tile, dtype) = (&self.tile, self.problem.dtype);
        let box_lines = |lines: &Lines, extent| if lines.row_major { STEP as u32 } else { extent };
        let mut block = Block::default();
        // Blocks that share an operand load a part each.
        block.operand(&self.left, dtype, box_lines(&self.left, tile.rows / across));
        block.operand(&self.right, dtype, box_lines(&self.right, tile.columns));
        if self.result.direct {
            let piece = if matches!(self.cluster, Cluster::Split(_)) { 8 } else { 16 };
            block.map(self.result.map(dtype, piece));
        } else {
            block.bytes.extend(self.result.address.to_ne_bytes());
            block.bytes.extend(self.result.stride.to_ne_bytes());
            block.bytes.extend((self.problem.rows as i32).to_ne_bytes());
            block.bytes.extend((self.problem.columns as i32).to_ne_bytes());
        }
        block.numbers([row_tiles, column_tiles, self.steps, u64::from((BAND_ROWS / tile.rows).max(1))]);
        block.align(64);
        block
    }

    /// Groups of 64 lines that are copied raw.
    fn raw_groups(&self) -> u32 {
        let groups = |lines: &Lines, extent: u32| if lines.direct { 0 } else { extent / 64 };
        groups(&self.left, self.tile.rows) + groups(&self.right, self.tile.columns)
    }

    fn threads(&self) -> u32 {
        self.tile.rows * 2 + 32 + self.tile.aligners * 32
    }

    fn shared_bytes(&self) -> u32 {
        let tile = &self.tile;
        let stages = tile.stages * (tile.rows + tile.columns) * 128;
        let raw = tile.raw_stages * self.raw_groups() * RAW_GROUP;
        let barriers = 16 * (tile.stages + tile.raw_stages);
        stages + raw + tile.staging * tile.rows / 16 * CHUNK + barriers
    }

    fn instantiation(&self, threads: u32) -> String {
        let (tile, blocks) = (&self.tile, self.cluster.blocks());
        let constants = Constants::new("Tile")
            .flag("bf16", self.problem.dtype == DType::BF16)
            .flag("left_row_major", self.left.row_major)
            .flag("right_row_major", self.right.row_major)
            .flag("left_by_rows", !self.left.direct)
            .flag("right_by_rows", !self.right.direct)
            .flag("result_by_rows", !self.result.direct)
            .flag("share_left", self.cluster == Cluster::ShareLeft)
            .flag("split", matches!(self.cluster, Cluster::Split(_)))
            .int("tile_rows", tile.rows)
            .int("tile_columns", tile.columns)
            .int("stages", tile.stages)
            .int("staging", tile.staging)
            .int("raw_stages", tile.raw_stages)
            .int("aligners", tile.aligners)
            .int("cluster", blocks)
            .finish();
        format!(
            "{constants}CAUSEWAY_KERNEL({threads}, 1) __cluster_dims__({blocks}, 1, 1) \
             gemm_wgmma(const __grid_constant__ causeway::gemm::Arguments<Tile> arguments) {{\n    \
             causeway::gemm::gemm_wgmma<Tile>(arguments);\n}}\n"
        )
    }
}

#[cfg(test)]
#[path = "wgmma_tests.rs"]
mod tests;
