//! What the tile kernels are told of a problem: kernels/gemm.cuh.

use super::problem::{Matrix, Problem};
use crate::backend::gpu::choice::Constants;
use crate::backend::gpu::device_struct::device_struct;
use crate::backend::gpu::launch::{most_blocks, power_of_two_in};
use crate::backend::gpu::plan::DeviceFacts;
use crate::error::{Error, Result};

/// Bytes of an element: f16 or bf16.
const ELEMENT: i64 = 2;

device_struct! {
    /// An operand, as 16-bit elements. Strides are in elements.
    pub(super) struct Operand in "gemm" {
        data: u64 as "const void*",
        outer_stride: i64,
        reduction_stride: i64,
    }
}

device_struct! {
    /// What the tile kernels are given.
    pub(super) struct Arguments in "gemm" {
        left: Operand,
        right: Operand,
        result: u64 as "void*",
        /// of the result, in elements
        row_stride: i64,
        column_stride: i64,
        /// partial sums, where the reduction is split
        workspace: u64 as "float*",
        counters: u64 as "u32*",
        rows: i64,
        columns: i64,
        reduction: i64,
        /// terms of each part of the reduction
        part: i64,
        /// of the reduction
        parts: u32,
        /// tiles along grid axis 0; axis 1 counts rows of them
        grid_width: u32,
    }
}

/// How the chunks of an operand lie in memory, and how they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    /// Along the reduction, else along the outer axis: the rows of left, the columns of right.
    pub along_reduction: bool,
    /// Bytes of an access; 2 where no axis is dense.
    pub bytes: u32,
}

impl Access {
    /// Of an operand whose rows are outer positions and whose columns are terms.
    fn of(operand: &Matrix) -> Self {
        let Matrix { address, row_stride: outer, column_stride: reduction } = *operand;
        let bytes = |other: i64| power_of_two_in(address | other.wrapping_mul(ELEMENT) as u64);
        match (outer, reduction) {
            (_, 1) => Access { along_reduction: true, bytes: bytes(outer) },
            (1, _) => Access { along_reduction: false, bytes: bytes(reduction) },
            _ => Access { along_reduction: reduction.unsigned_abs() < outer.unsigned_abs(), bytes: 2 },
        }
    }

    pub fn left(problem: &Problem) -> Self {
        Self::of(&problem.left)
    }

    pub fn right(problem: &Problem) -> Self {
        Self::of(&problem.right.transposed())
    }
}

/// The widest access to neighbouring results in a row, of at most `most` bytes.
pub(super) fn result_bytes(problem: &Problem, most: u32) -> u32 {
    match problem.result.column_stride {
        1 => {
            let rows = problem.result.row_stride.wrapping_mul(ELEMENT) as u64;
            power_of_two_in(problem.result.address | rows).min(most)
        }
        _ => ELEMENT as u32,
    }
}

/// The constants that say how a problem lies in memory.
pub(super) fn constants(problem: &Problem, left: Access, right: Access) -> Constants {
    Constants::new("Problem")
        .dtype("T", problem.dtype)
        .flag("left_along_reduction", left.along_reduction)
        .int("left_bytes", left.bytes)
        .flag("right_along_reduction", right.along_reduction)
        .int("right_bytes", right.bytes)
}

/// A grid of tiles: blocks along the first axis, rows of them along the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    pub tiles: u64,
    pub width: u32,
    pub height: u32,
}

impl Grid {
    /// Tiles of `tile` rows and columns over a problem's result, by blocks of `threads` threads.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a result with more tiles than a grid has blocks.
    pub fn new(problem: &Problem, tile: [u32; 2], threads: u32, facts: &DeviceFacts) -> Result<Self> {
        const MOST_HEIGHT: u64 = 65_535;
        let tiles = problem.tiles(tile);
        let width = tiles.min(most_blocks(facts, threads));
        let height = tiles.div_ceil(width.max(1));
        if height > MOST_HEIGHT {
            return Err(Error::Unsupported {
                what: format!("a result of {} × {} elements", problem.rows, problem.columns),
                device: facts.architecture.clone(),
                instead: "cut the result into smaller ones",
            });
        }
        Ok(Grid { tiles, width: width as u32, height: height as u32 })
    }
}

impl Arguments {
    /// For a problem whose reduction is cut into parts of `part` terms.
    pub fn new(problem: &Problem, grid: &Grid, part: i64, parts: u32) -> Self {
        let operand = |matrix: Matrix| Operand {
            data: matrix.address,
            outer_stride: matrix.row_stride,
            reduction_stride: matrix.column_stride,
        };
        Arguments {
            left: operand(problem.left),
            right: operand(problem.right.transposed()),
            result: problem.result.address,
            row_stride: problem.result.row_stride,
            column_stride: problem.result.column_stride,
            workspace: 0,
            counters: 0,
            rows: problem.rows,
            columns: problem.columns,
            reduction: problem.reduction,
            part,
            parts,
            grid_width: grid.width,
        }
    }
}
