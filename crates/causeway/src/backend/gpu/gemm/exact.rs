//! Planner of kernels/gemm_exact.cuh: one chain of fused multiply-adds per output, on any device.

use super::arguments::{Access, Arguments, Grid, constants, result_bytes};
use super::problem::Problem;
use crate::backend::gpu::choice::{ArgumentType, Constants, KernelFunction, LaunchBounds};
use crate::backend::gpu::launch::Entry;
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::error::Result;

const THREADS: u32 = 256;

static KERNEL: KernelFunction = KernelFunction {
    header: "gemm_exact.cuh",
    entry: "gemm_exact",
    argument: ArgumentType::Struct(&Arguments::DEVICE),
    function: "gemm::exact<Problem, Tile>",
};

/// Outputs of a tile along each axis. The largest does the most with what it reads; a smaller one is for results that
/// would else leave multiprocessors idle.
const SIZES: [u32; 3] = [128, 64, 32];

/// Plans any problem whose result is not empty.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a result larger than any memory.
pub(super) fn plan(problem: &Problem, facts: &DeviceFacts) -> Result<Plan> {
    let fills = |&size: &u32| problem.tiles([size, size]) >= u64::from(facts.multiprocessors);
    let size = SIZES.into_iter().find(fills).unwrap_or(SIZES[2]);
    let grid = Grid::new(problem, [size, size], THREADS, facts)?;
    let (left, right) = (Access::left(problem), Access::right(problem));
    // A thread's neighbouring results: 4, or 2 of the smallest tile.
    let results = result_bytes(problem, (size / 8).min(8));
    // Two blocks on a multiprocessor cap a thread's registers at 128. Accesses of 4 and 8 bytes take a few more, and so do
    // two kinds of access on sm_75.
    let fits = [left.bytes, right.bytes].iter().all(|bytes| matches!(bytes, 2 | 16))
        && (left.bytes == right.bytes || facts.architecture != "sm_75");
    let resident = if fits { 2 } else { 1 };
    let entry = Entry {
        kernel: &KERNEL,
        bounds: LaunchBounds::new(THREADS, resident),
        problem: constants(problem, left, right).int("result_bytes", results),
        tile: Constants::new("Tile").int("size", size),
    };
    let arguments = Arguments::new(problem, &grid, problem.reduction, 1);
    let plan = entry.plan([grid.width, grid.height, 1], &arguments, problem.traffic(), facts);
    Ok(Plan { shared_bytes: shared_bytes(), ..plan })
}

/// Two buffers of each operand, of a chunk of 8 elements per thread as f32.
const fn shared_bytes() -> u32 {
    2 * 2 * THREADS * 8 * 4
}
