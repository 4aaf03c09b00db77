//! Plans of gradients at the beginning of a slice, where rows go on from GPU to GPU: kernels/causal_conv1d_backward_halo.cuh.

use super::super::{HaloIndices, striding_blocks, unsupported_halo};
use super::{
    BackwardArguments, Constants, Entry, LaunchBounds, Planner, Traffic, WIDEST, device_struct, kernel,
    refuse_f64,
};
use crate::backend::gpu::message::{Message, MessageArguments};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{Backward, Sizes};
use crate::error::Result;
use crate::tensor::TensorRef;

device_struct! {
    /// What the kernels are given.
    struct HaloArguments in "causal_conv1d" {
        call: BackwardArguments,
        message: MessageArguments,
        halo: HaloIndices,
    }
}

kernel!(HALO, "backward_halo", "backward_halo", HaloArguments);
kernel!(AFTER_HALO, "backward_halo", "backward_after_halo", HaloArguments);

const THREADS: u32 = 128;

/// Computes a call's `dinitial_states` alone, and puts them into a room as [`send`](crate::backend::gpu::message::send) does. No output of
/// the call is written. With `indices`, (batch, width-1), `initial_states` have an index for each of their positions. None where that is
/// left to the call itself: for widths over 8, `cu_seqlens`, gates and norms, and for rows that are shorter than states, twice as long
/// as they are where there are `indices`; and where there are no `dinitial_states`, or they have no elements.
///
/// # Errors
/// For indices of another shape or dtype; [`Error::Unsupported`](crate::Error::Unsupported) for f64.
pub fn plan_halo(
    op: &Backward<'_>,
    sizes: &Sizes,
    indices: Option<&TensorRef<'_>>,
    room: u64,
    facts: &DeviceFacts,
) -> Result<Option<Plan>> {
    let Some(planner) = planner(op, sizes, indices.is_some(), facts)? else { return Ok(None) };
    let Some(dinitial_states) = &op.dinitial_states else { return Ok(None) };
    let Some(message) = Message::new(dinitial_states.meta(), 0, room, true) else { return Ok(None) };
    let halo = indices.map(|indices| HaloIndices::new(indices, sizes)).transpose()?.unwrap_or_default();
    let arguments = HaloArguments { call: planner.arguments(), message: message.arguments, halo };
    let entry = Entry {
        kernel: &HALO,
        bounds: LaunchBounds::new(message.threads, 1),
        problem: planner.problem(),
        tile: message.tile.flag("indexed", indices.is_some()),
    };
    let traffic = Traffic { read: message.bytes * 2, written: message.bytes };
    Ok(Some(entry.plan([message.arguments.blocks, 1, 1], &arguments, traffic, facts)))
}

/// Writes dx of the first width-1 positions of each row again, and adds to dweight and dbias what these positions give with the halo, less
/// what they give without: for a call without `initial_states` that has been computed, and for which `initial_states` are given here, with
/// their `indices`. None if these positions are empty.
///
/// # Errors
/// For indices of another shape or dtype. [`Error::Unsupported`](crate::Error::Unsupported) for f64, and for the calls for which
/// [`plan_halo`] has no plan.
pub fn plan_after_halo(
    op: &Backward<'_>,
    sizes: &Sizes,
    indices: &TensorRef<'_>,
    facts: &DeviceFacts,
) -> Result<Option<Plan>> {
    let halo = HaloIndices::new(indices, sizes)?;
    let planner = planner(op, sizes, true, facts)?.filter(|_| op.initial_states.is_some());
    let planner = planner.ok_or_else(|| unsupported_halo(facts))?;
    let positions = sizes.batch.saturating_mul(sizes.dim).saturating_mul(sizes.width - 1);
    if positions == 0 {
        return Ok(None);
    }
    let sums = sizes.dim.saturating_mul(sizes.width + i64::from(op.dbias.is_some()));
    let blocks = striding_blocks(facts, positions.saturating_add(sums), THREADS);
    let call = BackwardArguments { sum_blocks: blocks, ..planner.arguments() };
    let entry = Entry {
        kernel: &AFTER_HALO,
        bounds: LaunchBounds::new(THREADS, 1),
        problem: planner.problem(),
        tile: Constants::new("Tile").int("threads", THREADS),
    };
    let bytes = positions as u64 * op.x.dtype().size() as u64;
    let arguments = HaloArguments { call, message: MessageArguments::default(), halo };
    let traffic = Traffic { read: 3 * bytes, written: bytes };
    Ok(Some(entry.plan([blocks, 1, 1], &arguments, traffic, facts)))
}

/// The planner of calls that these kernels know.
fn planner<'a>(
    op: &'a Backward<'a>,
    sizes: &'a Sizes,
    is_indexed: bool,
    facts: &'a DeviceFacts,
) -> Result<Option<Planner<'a>>> {
    refuse_f64(op.x.dtype(), facts)?;
    let planner = Planner { op, sizes, facts, beside: false, joined: false };
    let is_plain = op.cu_seqlens.is_none() && !planner.is_gated() && op.norm.is_none();
    let least = (sizes.width - 1) * if is_indexed { 2 } else { 1 };
    let is_known =
        is_plain && sizes.width <= WIDEST && sizes.seqlen >= least && (!is_indexed || op.seq_idx.is_some());
    Ok(is_known.then_some(planner))
}
