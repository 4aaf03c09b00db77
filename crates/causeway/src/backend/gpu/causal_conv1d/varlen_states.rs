//! Planner of the states of a packed batch: kernels/causal_conv1d_varlen_states.cuh.

use super::{
    Constants, Entry, LONGEST_STATE, LaunchBounds, Strides2, Strides3, Traffic, View, blocks_of,
    device_struct, kernel, layers, power_of_two_in, refuse_f64, striding_blocks,
};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{VarlenStates, VarlenStatesSizes};
use crate::error::Result;

kernel!(VECTOR, "varlen_states", "varlen_states_vector", VarlenStatesArguments);
kernel!(GENERAL, "varlen_states", "varlen_states_general", VarlenStatesArguments);

device_struct! {
    /// What the kernels are given.
    struct VarlenStatesArguments in "causal_conv1d" of VarlenStates {
        x: u64 of x,
        cu_seqlens: u64 of cu_seqlens,
        states: u64 of states,
        x_strides: Strides2 of x,
        states_strides: Strides3 of states,
        cu_seqlens_stride: i64 of cu_seqlens,
        total: i64,
        dim: i64,
        sequences: i64,
        state_len: i64,
        /// of the grid (general)
        blocks: u32,
        /// sequences along grid axis 1; axis 2 counts layers of them
        blocks_per_layer: u32,
    }
}

/// Plans a call whose arguments have been validated; `None` if states is empty.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for f64.
pub fn plan(op: &VarlenStates<'_>, sizes: &VarlenStatesSizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    if op.states.meta().is_empty() {
        return Ok(None);
    }
    let kept = View::of_mut(&op.states).bytes();
    let read = kept.min(View::of(&op.x).bytes()) + View::of(&op.cu_seqlens).bytes();
    let traffic = Traffic { read, written: kept };
    Ok(Some(vector(op, sizes, traffic, facts).unwrap_or_else(|| general(op, sizes, traffic, facts))))
}

fn vector(
    op: &VarlenStates<'_>,
    sizes: &VarlenStatesSizes,
    traffic: Traffic,
    facts: &DeviceFacts,
) -> Option<Plan> {
    let (x, states) = (View::of(&op.x), View::of_mut(&op.states));
    let side_by_side = states.is_dense(2) && (sizes.dim == 1 || states.stride(1) == sizes.state_len);
    if sizes.state_len > LONGEST_STATE || !x.is_dense(1) || !side_by_side {
        return None;
    }
    let element = op.x.dtype().size() as i64;
    let bytes = x.access(1).min(power_of_two_in((sizes.dim * element) as u64));
    let channels = i64::from(bytes) / element;
    let run = channels * sizes.state_len * element;
    let state_bytes = power_of_two_in(states.address | (states.step_bytes(0) | run) as u64);
    let across = sizes.dim / channels;
    let threads = (across.min(128) as u32).next_multiple_of(facts.wave_size);
    let blocks =
        u32::try_from(blocks_of(across, i64::from(threads))).ok().filter(|n| *n <= i32::MAX as u32 / 128)?;
    let (blocks_per_layer, sequence_layers) = layers(sizes.sequences)?;
    let tile = Constants::new("Tile")
        .int("bytes", bytes)
        .int("threads", threads)
        .int("state_len", sizes.state_len)
        .int("state_bytes", state_bytes);
    let entry = Entry { kernel: &VECTOR, bounds: LaunchBounds::new(threads, 1), problem: problem(op), tile };
    let arguments = VarlenStatesArguments { blocks_per_layer, ..arguments(op, sizes) };
    Some(entry.plan([blocks, blocks_per_layer, sequence_layers], &arguments, traffic, facts))
}

fn general(op: &VarlenStates<'_>, sizes: &VarlenStatesSizes, traffic: Traffic, facts: &DeviceFacts) -> Plan {
    const THREADS: u32 = 128;
    let blocks = striding_blocks(facts, op.states.meta().element_count(), THREADS);
    let tile = Constants::new("Tile").int("threads", THREADS);
    let entry = Entry { kernel: &GENERAL, bounds: LaunchBounds::new(THREADS, 1), problem: problem(op), tile };
    entry.plan([blocks, 1, 1], &VarlenStatesArguments { blocks, ..arguments(op, sizes) }, traffic, facts)
}

fn problem(op: &VarlenStates<'_>) -> Constants {
    Constants::new("Problem").dtype("X", op.x.dtype()).int("cu_seqlens", op.cu_seqlens.dtype().size() as u32)
}

fn arguments(op: &VarlenStates<'_>, sizes: &VarlenStatesSizes) -> VarlenStatesArguments {
    VarlenStatesArguments {
        total: sizes.total,
        dim: sizes.dim,
        sequences: sizes.sequences,
        state_len: sizes.state_len,
        ..VarlenStatesArguments::of(op)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_tensors::{read, written};
    use super::*;
    use crate::backend::gpu::device_struct::DeviceStruct;
    use crate::tensor::DType;

    fn planned(dim: i64, state_len: i64, x_step: i64) -> Option<Plan> {
        let dtype = DType::F16;
        let strides = [dim * state_len, state_len, 1];
        let op = VarlenStates {
            x: read(0x1000, dtype, &[500, dim], &[dim * x_step, x_step]),
            cu_seqlens: read(0x8_0000, DType::I32, &[6], &[1]),
            states: written(0x9_0000, dtype, &[5, dim, state_len], &strides),
        };
        plan(&op, &op.validate().unwrap(), &DeviceFacts::h200()).unwrap()
    }

    #[test]
    fn packets_follow_the_rows() {
        let plan = planned(1024, 4, 1).unwrap();
        assert_eq!(plan.entry(), "causal_conv1d_varlen_states_vector");
        assert_eq!((plan.grid, plan.block), ([1, 5, 1], [128, 1, 1]));
        assert!(plan.choice.source().contains("state_bytes = 16"), "{plan}");
        assert!(planned(1023, 3, 1).unwrap().choice.source().contains(" bytes = 2"));
    }

    #[test]
    fn other_strides_and_long_states_take_the_general_kernel() {
        assert_eq!(planned(64, 4, 2).unwrap().entry(), "causal_conv1d_varlen_states_general");
        assert_eq!(planned(64, 40, 1).unwrap().entry(), "causal_conv1d_varlen_states_general");
    }

    #[test]
    fn the_page_about_kernels_shows_these_arguments() {
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/README.md"));
        let header = DeviceStruct::header(&[&VarlenStatesArguments::DEVICE]);
        assert!(page.contains(&header), "kernels/README.md lacks\n{header}");
    }

    #[test]
    fn empty_states_need_no_launch() {
        assert_eq!(planned(64, 0, 1), None);
        assert_eq!(planned(0, 4, 1), None);
    }
}
