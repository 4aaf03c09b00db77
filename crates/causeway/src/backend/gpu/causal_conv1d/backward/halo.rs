//! Plan of the gradient of initial_states that is sent ahead to another GPU: kernels/causal_conv1d_backward_halo.cuh.

use super::{
    BackwardArguments, Entry, LaunchBounds, Planner, Traffic, WIDEST, device_struct, kernel, refuse_f64,
};
use crate::backend::gpu::message::{Message, MessageArguments};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{Backward, Sizes};
use crate::error::Result;

device_struct! {
    /// What the kernel is given.
    struct HaloArguments in "causal_conv1d" {
        call: BackwardArguments,
        message: MessageArguments,
    }
}

kernel!(HALO, "backward_halo", "backward_halo", HaloArguments);

/// Computes a call's `dinitial_states` alone, and puts them into a room as [`send`](crate::backend::gpu::message::send) does. No output of
/// the call is written. None where that is left to the call itself: for widths over 8, `cu_seqlens`, gates and norms, and for rows
/// that are shorter than states; and where there are no `dinitial_states`, or they have no elements.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for f64.
pub fn plan_halo(op: &Backward<'_>, sizes: &Sizes, room: u64, facts: &DeviceFacts) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    let planner = Planner { op, sizes, facts, beside: false, joined: false };
    let Some(dinitial_states) = &op.dinitial_states else { return Ok(None) };
    let is_plain = op.cu_seqlens.is_none() && !planner.is_gated() && op.norm.is_none();
    if !is_plain || sizes.width > WIDEST || sizes.seqlen < sizes.width - 1 {
        return Ok(None);
    }
    let Some(message) = Message::new(dinitial_states.meta(), 0, room, true) else { return Ok(None) };
    let arguments = HaloArguments { call: planner.arguments(), message: message.arguments };
    let entry = Entry {
        kernel: &HALO,
        bounds: LaunchBounds::new(message.threads, 1),
        problem: planner.problem(),
        tile: message.tile.clone(),
    };
    let traffic = Traffic { read: message.bytes * 2, written: message.bytes };
    Ok(Some(message.finish(entry.plan(&arguments, traffic, facts))))
}
