//! Plan of the first outputs of a slice whose halo has indices: kernels/causal_conv1d_forward_halo.cuh.

use super::super::{HaloIndices, WIDEST, unsupported_halo};
use super::{
    ForwardArguments, LaunchBounds, Planner, Traffic, device_struct, kernel, refuse_f64, striding_blocks,
};
use crate::backend::gpu::choice::Constants;
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{Forward, Sizes};
use crate::error::Result;
use crate::tensor::TensorRef;

device_struct! {
    /// What the kernel is given.
    struct ForwardHaloArguments in "causal_conv1d" {
        call: ForwardArguments,
        halo: HaloIndices,
    }
}

kernel!(HALO, "forward_halo", "forward_halo", ForwardHaloArguments);

const THREADS: u32 = 128;

/// Computes the first width-1 outputs of each row of a call again, whose `initial_states` are the end of the slice before, with an index for
/// each of their positions, (batch, width-1). Nothing else of the call is written. None where that is not for a kernel: without
/// `initial_states` and `seq_idx`, with `cu_seqlens`, gates or a norm, for widths over 8, and for rows that are shorter than states.
///
/// # Errors
/// For indices of another shape or dtype; [`Error::Unsupported`](crate::Error::Unsupported) for f64.
pub fn plan_halo(
    op: &Forward<'_>,
    sizes: &Sizes,
    indices: &TensorRef<'_>,
    facts: &DeviceFacts,
) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    let halo = HaloIndices::new(indices, sizes)?;
    let planner = Planner {
        op,
        sizes,
        facts,
        has_states: false,
        beside: true,
        traffic: Traffic { read: 0, written: 0 },
    };
    let states = sizes.width - 1;
    let is_known = op.initial_states.is_some()
        && op.seq_idx.is_some()
        && !sizes.packed
        && !planner.is_gated()
        && op.norm.is_none()
        && sizes.width <= WIDEST
        && sizes.seqlen >= 2 * states;
    if !is_known {
        return Err(unsupported_halo(facts));
    }
    let outputs = sizes.batch.saturating_mul(sizes.dim).saturating_mul(states);
    if outputs == 0 {
        return Ok(None);
    }
    let blocks = striding_blocks(facts, outputs, THREADS);
    let arguments = ForwardHaloArguments { call: ForwardArguments { blocks, ..planner.arguments() }, halo };
    let tile = Constants::new("Tile").int("threads", THREADS);
    let entry = planner.entry(&HALO, LaunchBounds::new(THREADS, 1), tile);
    let bytes = outputs as u64 * u64::from(planner.element());
    let traffic = Traffic { read: 2 * bytes, written: bytes };
    Ok(Some(entry.plan([blocks, 1, 1], &arguments, traffic, facts)))
}
