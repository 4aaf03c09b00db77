//! Planners of the matrix products.
//!
//! C, grad_A and grad_B are one problem: `result = left · right`, where a transposed operand is a view with its
//! strides swapped. A planner chooses a kernel of `kernels/`, its template arguments and the grid from the problem
//! and the device's facts.

mod arguments;
mod exact;
mod problem;
mod tile;
mod wgmma;
mod wgmma_cost;
mod wgmma_schedule;
mod wgmma_tiles;

pub use problem::{Matrix, Problem};

use super::plan::{DeviceFacts, Plan};
use crate::error::Result;
use crate::gemm::Algorithm;

/// Plans a product whose arguments have been validated; `None` if the result is empty.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a result larger than any memory.
pub fn plan(problem: &Problem, facts: &DeviceFacts) -> Result<Option<Plan>> {
    if problem.rows == 0 || problem.columns == 0 {
        return Ok(None);
    }
    choose(&problem.with_row_major_result(), facts).map(Some)
}

/// The kernel for a problem whose result is not empty and lies in rows if it can.
fn choose(problem: &Problem, facts: &DeviceFacts) -> Result<Plan> {
    if problem.algorithm == Algorithm::Fast {
        // The device's matrix units by preference: the first planner that takes the problem.
        if let Some(plan) = wgmma::plan(problem, facts) {
            return Ok(plan);
        }
        if let Some(plan) = tile::plan(problem, facts)? {
            return Ok(plan);
        }
    }
    // Without a matrix unit, chains are a good order for vector units too.
    exact::plan(problem, facts)
}

#[cfg(test)]
mod tests;
