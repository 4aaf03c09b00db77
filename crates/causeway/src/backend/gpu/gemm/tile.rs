//! Planner of kernels/gemm_tile.cuh: products through the matrix units of a wave.

use super::arguments::{Access, Arguments, Grid, constants, result_bytes};
use super::problem::Problem;
use crate::backend::gpu::choice::{ArgumentType, Attribute, Constants, KernelFunction, LaunchBounds};
use crate::backend::gpu::launch::Entry;
use crate::backend::gpu::plan::{DeviceFacts, Plan, Vendor};
use crate::error::Result;
use crate::tensor::DType;

/// Terms of a step.
const DEPTH: u32 = 32;

/// Steps that a part of the reduction should have at least: it pays for its sums' way through memory.
const LEAST_STEPS: u64 = 4;

/// Most parts: their sums are added by one block.
const MOST_PARTS: u64 = 32;

/// A matrix unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// NVIDIA's mma.sync.
    Mma,
    /// CDNA's matrix cores.
    Mfma,
    /// Those of gfx90a, which flush subnormal f16 and bf16.
    MfmaGfx90a(DType),
    /// RDNA's, by generation: 11 or 12.
    Wmma(u32),
}

impl Unit {
    /// The unit of a device that takes the dtype.
    fn of(dtype: DType, facts: &DeviceFacts) -> Option<Self> {
        let name = facts.architecture.as_str();
        match facts.vendor {
            Vendor::Nvidia if name.starts_with("sm_75") => (dtype == DType::F16).then_some(Unit::Mma),
            Vendor::Nvidia => Some(Unit::Mma),
            Vendor::Amd if name.starts_with("gfx90a") => Some(Unit::MfmaGfx90a(dtype)),
            Vendor::Amd if name.starts_with("gfx9") => Some(Unit::Mfma),
            Vendor::Amd if name.starts_with("gfx11") => Some(Unit::Wmma(11)),
            Vendor::Amd => name.starts_with("gfx12").then_some(Unit::Wmma(12)),
        }
    }

    /// The kernel that multiplies with the unit.
    fn kernel(self) -> &'static KernelFunction {
        macro_rules! kernel {
            ($header:literal, $unit:literal) => {{
                static KERNEL: KernelFunction = KernelFunction {
                    header: $header,
                    entry: "gemm_tile",
                    argument: ArgumentType::Struct(&Arguments::DEVICE),
                    function: concat!("gemm::TileProduct<Problem, Tile, causeway::gemm::", $unit, ">::run"),
                };
                &KERNEL
            }};
        }
        match self {
            Unit::Mma => kernel!("gemm_mma.cuh", "Mma<Problem::T>"),
            Unit::Mfma => kernel!("gemm_mfma.cuh", "Mfma<Problem::T>"),
            Unit::MfmaGfx90a(DType::BF16) => kernel!("gemm_mfma_gfx90a.cuh", "MfmaBf16"),
            Unit::MfmaGfx90a(_) => kernel!("gemm_mfma_gfx90a.cuh", "MfmaF32<Problem::T>"),
            Unit::Wmma(11) => kernel!("gemm_wmma.cuh", "Wmma<Problem::T, 11>"),
            Unit::Wmma(_) => kernel!("gemm_wmma.cuh", "Wmma<Problem::T, 12>"),
        }
    }

    /// Slots of operand tiles in shared memory. Copies that pass no registers can run further ahead.
    fn stages(self, facts: &DeviceFacts) -> u32 {
        if self == Unit::Mma && !facts.architecture.starts_with("sm_75") { 4 } else { 2 }
    }
}

/// A block's part of the result, and the waves that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    rows: u32,
    columns: u32,
    waves_down: u32,
    waves_across: u32,
    /// Blocks that should fit on a multiprocessor.
    resident: u32,
}

impl Tile {
    /// For results that fill the device: every element read is used 128 times.
    fn large(facts: &DeviceFacts) -> Self {
        let waves_across = if facts.wave_size == 64 { 2 } else { 4 };
        Tile { rows: 128, columns: 128, waves_down: 2, waves_across, resident: 2 }
    }

    /// For smaller ones.
    fn small() -> Self {
        Tile { rows: 64, columns: 64, waves_down: 2, waves_across: 2, resident: 4 }
    }

    fn threads(&self, facts: &DeviceFacts) -> u32 {
        self.waves_down * self.waves_across * facts.wave_size
    }

    fn size(&self) -> [u32; 2] {
        [self.rows, self.columns]
    }

    /// The larger of what the steps need and what the results need on their way out.
    fn shared_bytes(&self, stages: u32) -> u32 {
        let slot = (self.rows + self.columns) * DEPTH * 2;
        let results = self.rows * (self.columns * 2 + 16);
        (slot * stages).max(results)
    }
}

/// Plans a problem whose result is not empty; `None` where the device has no matrix unit for it.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a result larger than any memory.
pub(super) fn plan(problem: &Problem, facts: &DeviceFacts) -> Result<Option<Plan>> {
    let Some(unit) = Unit::of(problem.dtype, facts) else { return Ok(None) };
    let large = Tile::large(facts);
    let fills = problem.tiles(large.size()) >= u64::from(facts.multiprocessors);
    let tile = if fills { large } else { Tile::small() };
    let threads = tile.threads(facts);
    let grid = Grid::new(problem, tile.size(), threads, facts)?;
    let (part, parts) = parts(problem, &tile, &grid, facts);
    let stages = unit.stages(facts);
    let (left, right) = (Access::left(problem), Access::right(problem));
    // Two blocks on a multiprocessor cap a thread's registers at 128. Operands that pass through registers on their
    // way to shared memory, where there is no other way or by 2 bytes, take more.
    let through_registers = unit.stages(facts) == 2 || left.bytes.min(right.bytes) == 2;
    let resident = if through_registers { 1 } else { tile.resident };
    let shape = Constants::new("Tile")
        .int("rows", tile.rows)
        .int("columns", tile.columns)
        .int("depth", DEPTH)
        .int("threads", threads)
        .int("waves_down", tile.waves_down)
        .int("waves_across", tile.waves_across)
        .int("stages", stages);
    let attribute = match unit {
        Unit::Mfma | Unit::MfmaGfx90a(_) => Attribute::Mfma,
        Unit::Mma | Unit::Wmma(_) => Attribute::Plain,
    };
    let entry = Entry {
        kernel: unit.kernel(),
        bounds: LaunchBounds { attribute, ..LaunchBounds::new(threads, resident) },
        problem: constants(problem, left, right).int("result_bytes", result_bytes(problem, 16)),
        tile: shape,
    };
    let arguments = Arguments::new(problem, &grid, part, parts);
    let mut plan = entry.plan([grid.width, grid.height, parts], &arguments, problem.traffic(), facts);
    plan.shared_bytes = tile.shared_bytes(stages);
    if parts > 1 {
        plan.workspace_bytes = grid.tiles * u64::from(parts) * u64::from(tile.rows * tile.columns) * 4;
        plan.counters = grid.tiles as u32;
        plan.workspace_at = vec![std::mem::offset_of!(Arguments, workspace)];
        plan.counters_at = vec![std::mem::offset_of!(Arguments, counters)];
    }
    Ok(Some(plan))
}

/// Terms of each part of the reduction, and parts: several where one would leave multiprocessors idle.
fn parts(problem: &Problem, tile: &Tile, grid: &Grid, facts: &DeviceFacts) -> (i64, u32) {
    let steps = (problem.reduction as u64).div_ceil(u64::from(DEPTH));
    let wanted = u64::from(facts.multiprocessors) * u64::from(tile.resident / 2) / grid.tiles;
    let most = (steps / LEAST_STEPS).min(MOST_PARTS);
    if wanted < 2 || most < 2 {
        return (problem.reduction, 1);
    }
    let steps_each = steps.div_ceil(wanted.min(most));
    ((steps_each * u64::from(DEPTH)) as i64, steps.div_ceil(steps_each) as u32)
}
