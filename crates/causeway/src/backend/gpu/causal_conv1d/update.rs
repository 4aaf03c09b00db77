//! Planner of the decode update: kernels/causal_conv1d_update.cuh.

use super::{
    Constants, Entry, LONGEST_STATE, LaunchBounds, NormArguments, PACKET, Strides2, Strides3, Traffic, View,
    WIDEST, blocks_of, device_struct, head_lanes, head_packet, kernel, layers, most_blocks, power_of_two_in,
    refuse_f64, striding_blocks, weight_access,
};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d::{Update, UpdateSizes};
use crate::error::{Error, Result};

/// The constant `layout`, a `StateLayout` of causal_conv1d_update.cuh.
const COLUMNS: &str = "layout = causeway::causal_conv1d::StateLayout::columns";
const CHANNELS: &str = "layout = causeway::causal_conv1d::StateLayout::channels";
const ELEMENTS: &str = "layout = causeway::causal_conv1d::StateLayout::elements";

kernel!(VECTOR, "update", "update_vector", UpdateArguments);
kernel!(GENERAL, "update", "update_general", UpdateArguments);

device_struct! {
    /// What the update kernels are given.
    struct UpdateArguments in "causal_conv1d" of Update {
        x: u64 of x,
        conv_state: u64 of conv_state,
        weight: u64 of weight,
        bias: u64 of bias,
        cache_seqlens: u64 of cache_seqlens,
        conv_state_indices: u64 of conv_state_indices,
        y: u64 of y,
        x_strides: Strides3,
        y_strides: Strides3,
        /// of conv_state, along (row, dim, position)
        state_strides: Strides3 of conv_state,
        weight_strides: Strides2 of weight,
        bias_stride: i64 of bias,
        cache_seqlens_stride: i64 of cache_seqlens,
        indices_stride: i64 of conv_state_indices,
        batch: i64,
        dim: i64,
        seqlen: i64,
        width: i64,
        rows: i64,
        state_len: i64,
        /// of the grid (general)
        blocks: u32,
        /// blocks along the batch on grid axis 1; axis 2 counts layers of them
        blocks_per_layer: u32,
        b: u64 of b as "const void*",
        c: u64 of c as "const void*",
        b_strides: Strides3,
        c_strides: Strides3,
        norm: NormArguments,
    }
}

/// Largest size of x, in packets of 16 bytes per multiprocessor, for which a thread's packet has 4 bytes and not 8; and most blocks of a
/// multiprocessor that are faster without branches. Measured on an H200 (docs/kernels/history/forward.md).
const NARROW: u64 = 16;
const WITHOUT_BRANCHES: u64 = 4;

/// Plans an update whose arguments have been validated.
///
/// `None` if y is empty; the state does not change then.
///
/// # Errors
/// [`Error::Unsupported`] for f64, and for a ring of more slots than `cache_seqlens` can tell apart.
pub fn plan(op: &Update<'_>, sizes: &UpdateSizes, facts: &DeviceFacts) -> Result<Option<Plan>> {
    refuse_f64(op.x.dtype(), facts)?;
    if sizes.batch == 0 || sizes.dim == 0 || sizes.seqlen == 0 {
        return Ok(None);
    }
    // Kernels divide counts of 32 bits.
    if op.cache_seqlens.is_some() && u32::try_from(sizes.state_len).is_err() {
        return Err(Error::Unsupported {
            what: format!("a ring of {} slots", sizes.state_len),
            device: facts.architecture.clone(),
            instead: "pass a conv_state of at most 4294967295 positions",
        });
    }
    let row = sizes.dim as u64 * op.x.dtype().size() as u64;
    let rows = sizes.batch as u64 * row;
    // Of a ring, the history is read and the new positions are written; of a shifted state, everything.
    let (read, written) = match op.cache_seqlens {
        Some(_) => (sizes.width - 1, sizes.seqlen.min(sizes.state_len)),
        None => (sizes.state_len, sizes.state_len),
    };
    let (whole, state) = (Traffic::of(op), View::of_mut(&op.conv_state).bytes());
    let traffic = Traffic {
        read: whole.read - state + rows * read as u64,
        written: whole.written - state + rows * written as u64,
    };
    Ok(Some(vector(op, sizes, traffic, facts).unwrap_or_else(|| general(op, sizes, traffic, facts))))
}

/// The kernel for one new position per entry.
fn vector(op: &Update<'_>, sizes: &UpdateSizes, traffic: Traffic, facts: &DeviceFacts) -> Option<Plan> {
    const THREADS: u32 = 128;
    let (x, y, state) = (View::of(&op.x), View::of_mut(&op.y), View::of_mut(&op.conv_state));
    let ring = op.cache_seqlens.is_some();
    let short = sizes.state_len <= LONGEST_STATE;
    let fits = sizes.seqlen == 1 && sizes.width <= WIDEST && (ring || short);
    let gates = [&op.b, &op.c].into_iter().flatten().map(View::of);
    if !fits
        || !x.is_dense(1)
        || !y.is_dense(1)
        || !gates.clone().all(|gate| gate.is_dense(1))
        || sizes.dim >= i64::from(i32::MAX)
    {
        return None;
    }
    let element = op.x.dtype().size() as u32;
    let multiprocessors = u64::from(facts.multiprocessors.max(1));
    let usual = if x.bytes() / u64::from(PACKET) / multiprocessors <= NARROW { 4 } else { 8 };
    let most = op.norm.map_or(usual, |norm| usual.max(head_packet(&norm, element, facts.wave_size)));
    let row_bytes = (sizes.dim * i64::from(element)) as u64;
    let gates = gates.map(|gate| gate.access(1)).min().unwrap_or(PACKET);
    let widest =
        gates.min(x.access(1)).min(y.access(1)).min(most.max(element)).min(power_of_two_in(row_bytes));

    let (layout, bytes, state_bytes) = if state.is_dense(1) && sizes.state_len != 1 {
        (COLUMNS, widest.min(state.access(1)), 0)
    } else if short && state.is_dense(2) && (sizes.dim == 1 || state.stride(1) == sizes.state_len) {
        let channels = i64::from(widest / element);
        let run = channels * sizes.state_len * i64::from(element);
        (CHANNELS, widest, power_of_two_in(state.address | (state.step_bytes(0) | run) as u64))
    } else if ring {
        (ELEMENTS, widest, element)
    } else {
        return None;
    };
    let channels = bytes / element;
    let across = (sizes.dim as u64).div_ceil(u64::from(channels));
    let lanes = across.next_power_of_two().min(u64::from(THREADS)) as u32;
    let entries = THREADS / lanes;
    let head_lanes = head_lanes(op.norm.as_ref(), channels, lanes.min(facts.wave_size))?;
    let rows = blocks_of(sizes.batch, i64::from(entries));
    let (blocks_per_layer, batch_layers) = layers(rows)?;
    let blocks = across.div_ceil(u64::from(lanes));
    if blocks > most_blocks(facts, THREADS) {
        return None;
    }
    let all_have_states = op.conv_state_indices.is_none()
        && op.norm.is_none()
        && blocks.saturating_mul(rows as u64) <= WITHOUT_BRANCHES * multiprocessors;
    let tile = Constants::new("Tile")
        .int("bytes", bytes)
        .int("lanes", lanes)
        .int("entries", entries)
        .enumerator(layout)
        .int("state_len", if ring && layout != CHANNELS { 0 } else { sizes.state_len })
        .int("state_bytes", state_bytes)
        .int("weight_bytes", weight_access(&op.weight, channels, channels))
        .flag("all_have_states", all_have_states);
    let tile = if op.norm.is_some() { tile.int("head_lanes", head_lanes) } else { tile };
    let entry =
        Entry { kernel: &VECTOR, bounds: LaunchBounds::new(THREADS, 1), problem: problem(op, sizes), tile };
    let arguments = UpdateArguments { blocks_per_layer, ..arguments(op, sizes) };
    Some(entry.plan([blocks as u32, blocks_per_layer, batch_layers], &arguments, traffic, facts))
}

fn general(op: &Update<'_>, sizes: &UpdateSizes, traffic: Traffic, facts: &DeviceFacts) -> Plan {
    const THREADS: u32 = 128;
    // Threads: one for each channel, or a wave for each head.
    let across = op.norm.map_or(sizes.dim, |norm| sizes.dim / norm.head_dim * i64::from(facts.wave_size));
    let blocks = striding_blocks(facts, sizes.batch.saturating_mul(across), THREADS);
    let tile = Constants::new("Tile").int("threads", THREADS);
    let entry =
        Entry { kernel: &GENERAL, bounds: LaunchBounds::new(THREADS, 1), problem: problem(op, sizes), tile };
    entry.plan([blocks, 1, 1], &UpdateArguments { blocks, ..arguments(op, sizes) }, traffic, facts)
}

fn is_gated(op: &Update<'_>) -> bool {
    op.b.is_some() || op.c.is_some()
}

fn problem(op: &Update<'_>, sizes: &UpdateSizes) -> Constants {
    Constants::new("Problem")
        .dtype("X", op.x.dtype())
        .dtype("Weight", op.weight.dtype())
        .convolution(sizes.width, op.activation, op.round_products && is_gated(op), op.norm.is_some())
        .given(op, |_| true)
}

fn arguments(op: &Update<'_>, sizes: &UpdateSizes) -> UpdateArguments {
    // Without a third axis there is one position.
    let strides = |view: View<'_>| Strides3 {
        batch: view.stride(0),
        dim: view.stride(1),
        seqlen: if view.meta.shape.len() > 2 { view.stride(2) } else { 0 },
    };
    UpdateArguments {
        x_strides: strides(View::of(&op.x)),
        y_strides: strides(View::of_mut(&op.y)),
        b_strides: op.b.as_ref().map_or_else(Strides3::default, |gate| strides(View::of(gate))),
        c_strides: op.c.as_ref().map_or_else(Strides3::default, |gate| strides(View::of(gate))),
        batch: sizes.batch,
        dim: sizes.dim,
        seqlen: sizes.seqlen,
        width: sizes.width,
        rows: sizes.rows,
        state_len: sizes.state_len,
        norm: NormArguments::new(op.norm.as_ref()),
        ..UpdateArguments::of(op)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_tensors::{read, written};
    use super::*;
    use crate::causal_conv1d::Activation;
    use crate::tensor::DType;

    fn call<'a>(batch: i64, dim: i64, state: [i64; 2]) -> Update<'a> {
        let [state_len, state_step] = state;
        let dtype = DType::BF16;
        let strides =
            if state_step == 1 { [dim * state_len, state_len, 1] } else { [dim * state_len, 1, dim] };
        Update {
            x: read(0x1000, dtype, &[batch, dim], &[dim, 1]),
            conv_state: written(0x10_0000, dtype, &[batch, dim, state_len], &strides),
            weight: read(0x2000, dtype, &[dim, 4], &[4, 1]),
            bias: None,
            cache_seqlens: None,
            conv_state_indices: None,
            b: None,
            c: None,
            activation: Activation::Silu,
            round_products: false,
            norm: None,
            y: written(0x80_0000, dtype, &[batch, dim], &[dim, 1]),
        }
    }

    #[test]
    fn a_ring_has_at_most_as_many_slots_as_counts_of_32_bits() {
        let ring = |slots: i64| {
            let lengths = Some(read(0x3000, DType::I32, &[1], &[1]));
            let op = Update { cache_seqlens: lengths, ..call(1, 1, [slots, 1]) };
            plan(&op, &op.validate().unwrap(), &DeviceFacts::h200())
        };
        assert!(ring((1 << 32) - 1).unwrap().is_some());
        let error = ring(1 << 32).unwrap_err();
        assert!(error.to_string().contains("a ring of 4294967296 slots"), "{error}");
    }

    fn planned(op: &Update<'_>) -> Option<Plan> {
        plan(op, &op.validate().unwrap(), &DeviceFacts::h200()).unwrap()
    }

    #[test]
    fn the_state_moves_in_the_widest_legal_access() {
        let plan = planned(&call(256, 2048, [4, 1])).unwrap();
        assert_eq!(plan.entry(), "causal_conv1d_update_vector");
        assert!(plan.choice.source().contains("StateLayout::channels"), "{plan}");
        assert!(plan.choice.source().contains("state_bytes = 16"), "{plan}");
        assert_eq!(plan.read_bytes, (256 * 2048 * 5 + 2048 * 4) * 2);
        assert_eq!(plan.written_bytes, 256 * 2048 * 5 * 2);

        // Rows of odd length: only single elements are aligned.
        let odd = planned(&call(256, 2047, [3, 1])).unwrap();
        assert!(odd.choice.source().contains("state_bytes = 2"), "{odd}");
        assert!(odd.choice.source().contains(" bytes = 2"), "{odd}");
    }

    #[test]
    fn every_state_layout_has_its_plan() {
        let columns = planned(&call(8, 64, [4, 64])).unwrap();
        assert!(columns.choice.source().contains("StateLayout::columns"), "{columns}");

        let counts = [0i32; 8];
        let rings =
            [([4, 1], "channels"), ([4, 64], "columns"), ([40, 64], "columns"), ([40, 1], "elements")];
        for (state, layout) in rings {
            let mut ring = call(8, 64, state);
            ring.cache_seqlens = Some(read(counts.as_ptr() as u64, DType::I32, &[8], &[1]));
            let ring = planned(&ring).unwrap();
            assert!(ring.choice.source().contains(&format!("StateLayout::{layout}")), "{ring}");
        }

        let long = planned(&call(8, 64, [40, 1])).unwrap();
        assert_eq!(long.entry(), "causal_conv1d_update_general");
    }

    #[test]
    fn an_empty_update_needs_no_launch() {
        assert_eq!(planned(&call(0, 64, [4, 1])), None);
        assert_eq!(planned(&call(8, 0, [4, 1])), None);
    }

    #[test]
    fn large_batches_fit_the_grid() {
        let plan = planned(&call(200_000, 2048, [4, 1])).unwrap();
        assert_eq!(plan.grid[1..], [32_768, 7]);
    }
}
