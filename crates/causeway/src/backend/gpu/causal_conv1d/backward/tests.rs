//! Plans of the backward operation, checked without a device.

use super::super::test_tensors::{read, written};
use super::*;
use crate::Error;
use crate::backend::gpu::compiler::Target;
use crate::backend::gpu::plan::Vendor;
use crate::causal_conv1d::HeadNorm;
use crate::tensor::DType;

const X: u64 = 0x100_0000;
const DY: u64 = 0x200_0000;
const DX: u64 = 0x300_0000;

fn first([_, dim, seqlen]: [i64; 3]) -> [i64; 3] {
    [dim * seqlen, seqlen, 1]
}

fn last([_, dim, seqlen]: [i64; 3]) -> [i64; 3] {
    [dim * seqlen, 1, dim]
}

/// A call with bias and its gradient, without other options.
fn call<'a>(dtype: DType, shape: [i64; 3], strides: [i64; 3], width: i64) -> Backward<'a> {
    let dim = shape[1];
    Backward {
        x: read(X, dtype, &shape, &strides),
        weight: read(0x400_0000, dtype, &[dim, width], &[width, 1]),
        bias: Some(read(0x500_0000, dtype, &[dim], &[1])),
        dy: read(DY, dtype, &shape, &strides),
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        dfinal_states: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        dx: written(DX, dtype, &shape, &strides),
        dweight: written(0x600_0000, dtype, &[dim, width], &[width, 1]),
        dbias: Some(written(0x700_0000, dtype, &[dim], &[1])),
        dinitial_states: None,
        db: None,
        dc: None,
    }
}

/// The same with both gates and their gradients.
fn gated(mut op: Backward<'_>) -> Backward<'_> {
    let (dtype, shape) = (op.x.dtype(), op.x.shape().to_vec());
    let strides = op.x.strides().to_vec();
    op.b = Some(read(0xb00_0000, dtype, &shape, &strides));
    op.c = Some(read(0xc00_0000, dtype, &shape, &strides));
    op.db = Some(written(0xd00_0000, dtype, &shape, &strides));
    op.dc = Some(written(0xe00_0000, dtype, &shape, &strides));
    op
}

/// The same with states and all of their gradients.
fn with_states(mut op: Backward<'_>, sequences: i64) -> Backward<'_> {
    let dtype = op.x.dtype();
    let (dim, width) = (op.x.shape()[1], op.weight.shape()[1]);
    let (shape, strides) = ([sequences, dim, width - 1], [dim * (width - 1), width - 1, 1]);
    op.initial_states = Some(read(0x800_0000, dtype, &shape, &strides));
    op.dfinal_states = Some(read(0x900_0000, dtype, &shape, &strides));
    op.dinitial_states = Some(written(0xa00_0000, dtype, &shape, &strides));
    op
}

fn planned_for(op: &Backward<'_>, facts: &DeviceFacts) -> Plan {
    plan(op, &op.validate().unwrap(), facts).unwrap().expect("something to launch")
}

fn planned(op: &Backward<'_>) -> Plan {
    planned_for(op, &DeviceFacts::h200())
}

fn of_architecture(name: &str) -> DeviceFacts {
    DeviceFacts::of_target(&Target::parse(name).unwrap())
}

fn number(plan: &Plan, name: &str) -> u64 {
    plan.constant(name).parse().unwrap()
}

fn arguments(plan: &Plan) -> BackwardArguments {
    bytemuck::pod_read_unaligned(&plan.arguments)
}

/// Every position of every channel belongs to exactly one block, and scratch memory holds all sums.
fn assert_covers(op: &Backward<'_>, plan: &Plan, facts: &DeviceFacts) {
    let a = arguments(plan);
    let sizes = op.validate().unwrap();
    let (pieces, piece) = (u64::from(a.pieces), u64::from(a.piece));
    let (rows, seqlen) = match a.length {
        0 => (sizes.batch as u64, sizes.seqlen as u64),
        length => {
            assert_eq!(i64::from(length), sizes.seqlen, "{plan}");
            (1, (sizes.batch * sizes.seqlen) as u64)
        }
    };
    assert!(pieces * piece >= seqlen, "{plan}");
    assert_eq!(a.sum_blocks, a.channel_groups * a.parts, "{plan}");
    assert!(plan.grid[0] >= a.sum_blocks && plan.grid[1..] == [1, 1], "{plan}");
    let group_channels = match plan.entry() {
        "causal_conv1d_backward_channel_last" => {
            let segments = u64::from(plan.block[0]) / number(plan, "lanes");
            assert!(u64::from(a.parts) * segments >= rows * pieces, "{plan}");
            let cluster = number(plan, "cluster");
            assert!(cluster == 1 || cluster == u64::from(a.parts), "{plan}");
            assert_eq!((u64::from(plan.grid[0]) % cluster, u64::from(plan.cluster)), (0, cluster), "{plan}");
            number(plan, "lanes") * number(plan, "channels")
        }
        "causal_conv1d_backward_tiles_last" => {
            let halo = sizes.width as u64 - 1;
            assert_eq!(piece, number(plan, "waves") * number(plan, "rows") - halo, "{plan}");
            assert!(number(plan, "rows") >= halo, "{plan}");
            assert!(u64::from(a.parts) <= rows * pieces, "{plan}");
            assert!(a.sum_blocks <= facts.multiprocessors, "all blocks are at work at once: {plan}");
            8 / op.x.dtype().size() as u64 * u64::from(facts.wave_size)
        }
        "causal_conv1d_backward_short_last" => {
            assert_eq!(piece, number(plan, "rows"), "{plan}");
            let cluster = number(plan, "cluster");
            assert!(cluster == 1 || cluster == u64::from(a.parts), "{plan}");
            assert_eq!(u64::from(plan.grid[0]) % cluster, 0, "{plan}");
            number(plan, "lanes") * number(plan, "channels")
        }
        "causal_conv1d_backward_short_first" => {
            if plan.constant("ragged") == "false" {
                assert_eq!(pieces * piece, sizes.seqlen as u64, "whole packets: {plan}");
            }
            assert_eq!(u64::from(plan.block[0]) % (number(plan, "channels") * 32), 0, "{plan}");
            assert_eq!(plan.constant("split") == "true", a.parts > 1, "{plan}");
            number(plan, "channels")
        }
        "causal_conv1d_backward_rows_first" => {
            assert_eq!(plan.constant("split") == "true", a.parts > 1, "{plan}");
            assert!(i64::from(a.parts) <= sizes.batch, "{plan}");
            let lanes = u64::from(facts.wave_size) - u64::from(sizes.width > 1);
            let places = u64::from(plan.block[0] / facts.wave_size) * lanes;
            assert!(u64::from(a.tile_channels) * pieces <= places, "{plan}");
            assert!(a.slices.is_power_of_two() && a.slices <= facts.wave_size, "{plan}");
            u64::from(a.tile_channels)
        }
        "causal_conv1d_backward_tiles_first" => {
            let element = op.x.dtype().size() as u64;
            let (row, tiles, unroll) =
                (sizes.seqlen as u64 * element, piece * element / 512, number(plan, "unroll"));
            assert_eq!(piece * element % 512, 0, "whole tiles: {plan}");
            let row_bytes = number(plan, "row_bytes");
            assert!([element, 16, 32].contains(&row_bytes) && row.is_multiple_of(row_bytes), "{plan}");
            if row_bytes >= 16 {
                assert_eq!(row_bytes == 32, row.is_multiple_of(32), "{plan}");
                assert!((pieces - 1) * piece * element < row, "no piece is empty: {plan}");
            }
            // With what may lie before the row in its sector.
            assert!(row + 32 - row_bytes <= pieces * piece * element, "all packets: {plan}");
            assert_eq!(tiles % unroll, 0, "whole steps: {plan}");
            assert_eq!(plan.constant("one_step") == "true", tiles == unroll, "{plan}");
            let is_full = row_bytes >= 16 && pieces * piece * element == row;
            assert_eq!(plan.constant("full") == "true", is_full, "{plan}");
            assert_eq!(plan.constant("whole_rows") == "true", pieces == 1, "{plan}");
            assert_eq!(plan.constant("split") == "true", a.parts > 1, "{plan}");
            let waves = number(plan, "waves_per_channel");
            assert!(waves.is_power_of_two() && u64::from(a.parts) * waves < rows * pieces + waves, "{plan}");
            u64::from(plan.block[0] / facts.wave_size) / waves
        }
        "causal_conv1d_backward_flat_first" => {
            let packets = rows * pieces;
            let waves = number(plan, "waves_per_channel");
            let runs = u64::from(a.parts) * waves;
            let (element, ragged) = (op.x.dtype().size() as u64, plan.constant("ragged") == "true");
            let lead = if ragged { 16 - u64::from(View::of(&op.x).access(2)) } else { 0 };
            let row = sizes.seqlen as u64 * element + lead;
            assert!(row <= pieces * 16 && pieces * 16 < row + 16, "all packets, and no more: {plan}");
            assert!(ragged || row.is_multiple_of(16), "{plan}");
            assert_eq!(piece % 32, 0, "whole tiles: {plan}");
            assert!(runs * piece >= packets, "all packets: {plan}");
            assert!((u64::from(a.parts) - 1) * waves * piece < packets, "no block is without a run: {plan}");
            assert_eq!(plan.constant("even") == "true", 32 % pieces == 0, "{plan}");
            assert_eq!(plan.constant("split") == "true", a.parts > 1, "{plan}");
            u64::from(plan.block[0] / facts.wave_size) / waves
        }
        "causal_conv1d_backward_channel_first" => {
            let element = op.x.dtype().size() as u64;
            let count = number(plan, "bytes") * number(plan, "packets") / element;
            assert_eq!(piece % (number(plan, "lanes") * count), 0, "whole tiles: {plan}");
            assert!(count >= sizes.width as u64 - 1, "halos fit a lane: {plan}");
            if plan.constant("ragged") == "true" {
                assert!(
                    pieces * piece >= sizes.seqlen as u64 + number(plan, "bytes") / element - 1,
                    "{plan}"
                );
            }
            u64::from(plan.block[0] / facts.wave_size) / number(plan, "waves_per_channel")
        }
        _ => u64::from(a.tile_channels),
    };
    assert!(group_channels * u64::from(a.channel_groups) >= sizes.dim as u64, "{plan}");
    assert!(plan.shared_bytes >= plan.block[0] * 4 && plan.shared_bytes <= facts.shared_per_block, "{plan}");
    let steps = u32::from(plan.entry() == "causal_conv1d_backward_tiles_last");
    if a.parts > 1 && !plan.choice.source().contains("CAUSEWAY_CLUSTER_KERNEL") {
        let teams = if a.team == 0 { 0 } else { a.parts.div_ceil(a.team) };
        assert_eq!(plan.counters, a.channel_groups * (1 + teams) + steps, "{plan}");
        let sums = group_channels * (sizes.width as u64 + u64::from(op.dbias.is_some()));
        assert!(plan.workspace_bytes >= u64::from(a.sum_blocks) * sums * 4, "{plan}");
        assert!(plan.workspace_at.len() == 1 && plan.counters_at.len() == 1, "{plan}");
    } else {
        assert_eq!((plan.workspace_bytes, plan.counters), (0, steps), "{plan}");
    }
}

#[test]
fn all_shapes_are_covered_on_both_vendors() {
    let shapes = [
        [1, 1, 1],
        [1, 32, 64],
        [2, 64, 128],
        [3, 5, 7],
        [8, 2048, 1024],
        [4, 5376, 4096],
        [4, 4096, 512],
        [4, 256, 4096],
        [1, 16, 1_000_003],
        [70_000, 8, 5],
        [1, 70_001, 9],
    ];
    for facts in [DeviceFacts::h200(), DeviceFacts::h100(), DeviceFacts::mi300x()] {
        for shape in shapes {
            for width in [1, 2, 3, 4, 5, 8, 9, 256] {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    for strides in [first(shape), last(shape), [shape[1] * shape[2] * 6, shape[2] * 6, 3]] {
                        let op = call(dtype, shape, strides, width);
                        assert_covers(&op, &planned_for(&op, &facts), &facts);
                    }
                }
            }
        }
    }
}

#[test]
fn large_plain_calls_have_tiles_side_by_side_where_these_are_full() {
    let of = |facts: &DeviceFacts, shape, strides| {
        planned_for(&call(DType::BF16, shape, strides, 4), facts).entry().to_string()
    };
    let (h200, h100) = (DeviceFacts::h200(), DeviceFacts::h100());
    let unknown = DeviceFacts { memory_gigabytes_per_second: 0, ..h100.clone() };
    let (walk, tiles) = ("causal_conv1d_backward_channel_last", "causal_conv1d_backward_tiles_last");
    let large = [4, 5376, 4096];
    assert_eq!([&h200, &h100, &unknown].map(|facts| of(facts, large, last(large))), [tiles, tiles, walk]);
    // Few tiles for each block; entries that leave their tiles half full; rows that are not whole copies of 16 bytes; half of the
    // multiprocessors idle.
    for shape in [[1, 4096, 1024], [94, 6032, 72], [4, 5372, 4096], [9, 8960, 1000]] {
        assert_eq!(of(&h100, shape, last(shape)), walk, "{shape:?}");
    }
    // Rows that share lines of the caches with others are no slower.
    for shape in [[4, 1536, 4000], [4, 1512, 4000]] {
        assert_eq!(of(&h100, shape, last(shape)), tiles, "{shape:?}");
    }
    // Faster memory has more rows under way, and leaves less time for masks.
    let rows = |facts| number(&planned_for(&call(DType::BF16, large, last(large), 4), facts), "rows");
    assert_eq!([&h200, &h100].map(rows), [16, 8]);
    assert_eq!([&h200, &h100].map(|facts| of(facts, [14, 8192, 672], last([14, 8192, 672]))), [walk, tiles]);
    // Options, wide windows and members of a larger launch.
    let plain = || call(DType::BF16, large, last(large), 4);
    let wide = call(DType::BF16, large, last(large), 5);
    let gated = gated(plain());
    let (indices, bounds) = (read(0xc00_0000, DType::I32, &[4, 4096], &[4096, 1]), [1, 5376, 16384]);
    let indexed = Backward { seq_idx: Some(indices), ..plain() };
    let packed = Backward {
        cu_seqlens: Some(read(0xc00_0000, DType::I32, &[5], &[1])),
        ..call(DType::BF16, bounds, last(bounds), 4)
    };
    for op in [with_states(plain(), 4), wide, gated, indexed, packed] {
        assert_ne!(planned_for(&op, &h100).entry(), tiles);
    }
    let beside = plan_beside(&plain(), &plain().validate().unwrap(), &h100).unwrap().unwrap();
    assert_ne!(beside.entry(), tiles);
}

#[test]
fn gated_calls_have_tiles_side_by_side_where_that_was_measured() {
    let (h200, h100) = (DeviceFacts::h200(), DeviceFacts::h100());
    let planned = |shape: [i64; 3], width, activation, facts| {
        let op = Backward { activation, ..gated(call(DType::BF16, shape, last(shape), width)) };
        let plan = planned_for(&op, facts);
        assert_covers(&op, &plan, facts);
        (plan.entry() == "causal_conv1d_backward_tiles_last").then(|| number(&plan, "rows"))
    };
    // Two gates leave room for half as many rows.
    let model = [4, 2048, 4096];
    assert_eq!(planned(model, 3, Activation::None, &h200), Some(8));
    assert_eq!(planned(model, 4, Activation::Silu, &h200), Some(8));
    assert_eq!(planned(model, 3, Activation::None, &h100), None);
    // Few tiles for each block; windows for which shared memory has no room.
    assert_eq!(planned([1, 3400, 592], 3, Activation::None, &h200), None);
    assert_eq!(planned(model, 7, Activation::None, &h200), None);
    // One gate.
    let op = Backward { c: None, dc: None, ..gated(call(DType::BF16, model, last(model), 3)) };
    assert_eq!(number(&planned_for(&op, &h200), "rows"), 10);
}

#[test]
fn some_hundred_channels_lie_in_groups_of_64() {
    let lanes = |shape| {
        let plan = planned(&call(DType::BF16, shape, last(shape), 4));
        (plan.entry() == "causal_conv1d_backward_channel_last").then(|| number(&plan, "lanes"))
    };
    assert_eq!(lanes([2, 256, 4096]), Some(16));
    assert_eq!(lanes([1, 640, 10736]), Some(16));
    // A rest, fewer channels, more of them, and a call that is large.
    assert_eq!(lanes([9, 336, 2208]), Some(28));
    assert_eq!(lanes([4, 128, 4096]), Some(32));
    assert_eq!(lanes([4, 2048, 2888]), Some(32));
    assert_eq!(lanes([40, 320, 8000]), Some(28));
}

#[test]
fn memory_order_and_size_decide_the_kernel() {
    let (small, large) = ([2, 64, 128], [8, 2048, 1024]);
    let entry = |shape, strides, width| planned(&call(DType::BF16, shape, strides, width)).entry();
    assert_eq!(entry(large, last(large), 4), "causal_conv1d_backward_channel_last");
    assert_eq!(entry(small, last(small), 4), "causal_conv1d_backward_short_last");
    assert_eq!(entry(small, last(small), 5), "causal_conv1d_backward_channel_last");
    // Eight channels have 16 blocks of the former, 64 have enough of them for as many elements.
    assert_eq!(entry([1, 8, 8192], last([1, 8, 8192]), 4), "causal_conv1d_backward_short_last");
    assert_eq!(entry([4, 8, 32768], last([4, 8, 32768]), 4), "causal_conv1d_backward_channel_last");
    assert_eq!(entry([8, 64, 2048], last([8, 64, 2048]), 4), "causal_conv1d_backward_short_last");
    assert_eq!(entry(large, first(large), 4), "causal_conv1d_backward_tiles_first");
    assert_eq!(entry(large, first(large), 5), "causal_conv1d_backward_channel_first");
    // Three tiles, the last of which is nearly empty, in rows that are too few to walk one after the other; and ten tiles.
    assert_eq!(entry([3, 2048, 520], first([3, 2048, 520]), 4), "causal_conv1d_backward_short_first");
    assert_eq!(entry([8, 2048, 2504], first([8, 2048, 2504]), 4), "causal_conv1d_backward_tiles_first");
    // Ragged rows, short and long.
    assert_eq!(entry([8, 2048, 1031], first([8, 2048, 1031]), 4), "causal_conv1d_backward_flat_first");
    assert_eq!(entry([8, 2048, 5119], first([8, 2048, 5119]), 4), "causal_conv1d_backward_tiles_first");
    assert_eq!(entry(small, first(small), 4), "causal_conv1d_backward_short_first");
    assert_eq!(entry([2, 64, 127], first([2, 64, 127]), 4), "causal_conv1d_backward_short_first");
    // Short rows of whole packets: parts of a tile, whole lines of memory, and neither, in many channels and in few.
    assert_eq!(entry([64, 2048, 128], first([64, 2048, 128]), 4), "causal_conv1d_backward_flat_first");
    assert_eq!(entry([64, 1024, 384], first([64, 1024, 384]), 4), "causal_conv1d_backward_flat_first");
    assert_eq!(entry([40, 1000, 328], first([40, 1000, 328]), 4), "causal_conv1d_backward_flat_first");
    assert_eq!(entry([80, 250, 328], first([80, 250, 328]), 4), "causal_conv1d_backward_short_first");
    let plain = |shape| {
        let plain = Backward { activation: Activation::None, ..call(DType::BF16, shape, first(shape), 4) };
        planned(&plain).entry()
    };
    assert_eq!(plain([40, 1000, 328]), "causal_conv1d_backward_flat_first");
    // Ragged rows of nine packets are worth it with SiLU alone.
    assert_eq!(entry([90, 1000, 61], first([90, 1000, 61]), 4), "causal_conv1d_backward_flat_first");
    assert_eq!(plain([90, 1000, 61]), "causal_conv1d_backward_short_first");
    let full = [5, 2952, 7160];
    assert_eq!(
        planned(&call(DType::F32, full, first(full), 4)).entry(),
        "causal_conv1d_backward_channel_first"
    );
    // Short rows: many, one each of many channels, and a few.
    assert_eq!(entry([1745, 1904, 24], first([1745, 1904, 24]), 4), "causal_conv1d_backward_rows_first");
    assert_eq!(entry([1, 4696, 149], first([1, 4696, 149]), 4), "causal_conv1d_backward_rows_first");
    assert_eq!(entry([12, 633, 84], first([12, 633, 84]), 4), "causal_conv1d_backward_short_first");
    assert_eq!(entry(small, [128 * 128, 2, 128], 4), "causal_conv1d_backward_general");
    assert_eq!(entry(small, first(small), 9), "causal_conv1d_backward_general");
    assert_eq!(planned(&call(DType::BF16, small, first(small), 9)).constant("width"), "0");
}

#[test]
fn long_rows_are_walked_in_tiles() {
    // Pieces, parts, threads that should be resident, and whether all pieces are whole tiles.
    for (shape, expected) in [
        ([1, 136, 581_416], Some((15, 15, 512, false))),
        ([3, 1558, 2816], Some((1, 1, 768, false))),
        ([5, 627, 6248], Some((1, 5, 768, false))),
        ([1, 3934, 4008], Some((1, 1, 512, false))),
        // 143 tiles: pieces are rounded up to steps, and no block is left without one.
        ([1, 120, 36_600], Some((15, 2, 512, false))),
        // Ragged rows: up to 30 bytes before a row count as well.
        ([3, 1558, 2816 - 15], Some((1, 1, 768, false))),
        ([1, 120, 36_345], Some((15, 2, 512, false))),
        // Large calls, in many rounds, and in one where sums of three blocks would take what two rounds save; and rows of four tiles.
        ([5, 2952, 7160], Some((1, 3, 640, false))),
        ([3, 1558, 5816], Some((1, 1, 640, false))),
        ([19, 672, 1000], None),
    ] {
        let plan = planned(&call(DType::BF16, shape, first(shape), 4));
        let Some(expected) = expected else {
            assert_eq!(plan.entry(), "causal_conv1d_backward_channel_first", "{plan}");
            continue;
        };
        assert_eq!(plan.entry(), "causal_conv1d_backward_tiles_first", "{plan}");
        let a = arguments(&plan);
        let bounds = format!("CAUSEWAY_KERNEL({0}, {1})", plan.block[0], expected.2 / plan.block[0]);
        assert!(plan.choice.source().contains(&bounds), "{plan}");
        assert_eq!(
            (a.pieces, a.parts, plan.constant("full") == "true"),
            (expected.0, expected.1, expected.3),
            "{plan}"
        );
    }
}

#[test]
fn calls_of_middling_size_are_programmatic_where_all_blocks_are_resident() {
    let (thousand, long) = ([1, 4096, 1000], [1, 24, 300_000]);
    let calls = [(thousand, last(thousand)), (long, first(long))]
        .map(|(shape, strides)| call(DType::BF16, shape, strides, 4));
    for facts in [DeviceFacts::h200(), of_architecture("sm_100a"), of_architecture("sm_120")] {
        for op in &calls {
            let plan = planned_for(op, &facts);
            let each = plan.grid[0].div_ceil(facts.multiprocessors);
            let fit = facts.shared_per_multiprocessor / (plan.shared_bytes + 1024);
            assert!(
                plan.programmatic_launch && fit == each,
                "room for as many as there are: {facts:?}: {plan}"
            );
        }
    }
    // Devices without programmatic launches, and members of a larger launch, keep their shared memory.
    let (programmatic, alone) =
        (planned(&calls[0]), DeviceFacts { architecture: "sm_89".to_string(), ..DeviceFacts::h200() });
    let beside =
        plan_beside(&calls[0], &calls[0].validate().unwrap(), &DeviceFacts::h200()).unwrap().unwrap();
    for plan in [planned_for(&calls[0], &alone), beside] {
        assert!(!plan.programmatic_launch && plan.shared_bytes < programmatic.shared_bytes, "{plan}");
    }
    // Several rounds, and too much.
    let (rounds, large) = ([2, 5000, 1000], [4, 5376, 4096]);
    let plan = planned(&call(DType::BF16, rounds, first(rounds), 4));
    let bounds = plan.choice.source().contains("CAUSEWAY_KERNEL(128, 5)");
    assert!(!plan.programmatic_launch && bounds && plan.grid[0].div_ceil(132) > 5, "{plan}");
    assert!(!planned(&call(DType::BF16, large, last(large), 4)).programmatic_launch);
}

#[test]
fn blocks_of_a_channel_group_form_a_cluster_where_there_are_clusters() {
    let shape = [4, 64, 1024];
    let op = call(DType::BF16, shape, last(shape), 4);
    let plan = planned(&op);
    assert!(plan.choice.source().contains("CAUSEWAY_CLUSTER_KERNEL(256, 1, 16)"), "{plan}");
    assert_eq!((plan.grid[0], plan.cluster, plan.counters), (64, 16, 0), "{plan}");
    // A device with parts too small for 16 blocks, and one too small for 8.
    let fewer = |multiprocessors| DeviceFacts { multiprocessors, ..DeviceFacts::h200() };
    let plan = planned_for(&op, &fewer(114));
    assert!(plan.choice.source().contains("CAUSEWAY_CLUSTER_KERNEL(256, 1, 8)"), "{plan}");
    assert_eq!((plan.grid[0], plan.cluster), (64, 8), "{plan}");
    assert_eq!(planned_for(&op, &fewer(16)).cluster, 1);
    let ampere = DeviceFacts { architecture: "sm_80".to_string(), ..DeviceFacts::h200() };
    for facts in [ampere, DeviceFacts::mi300x()] {
        let plan = planned_for(&op, &facts);
        assert!(plan.choice.source().contains("CAUSEWAY_KERNEL(512, 1)"), "{plan}");
        assert!(arguments(&plan).parts > 1 && plan.counters > 0, "{plan}");
    }
    // The blocks for states are rounded up to whole clusters.
    let plan = planned(&with_states(call(DType::BF16, shape, last(shape), 4), 4));
    assert_eq!(plan.grid[0], 64 + 16, "4 blocks have states to compute: {plan}");
}

#[test]
fn clusters_of_small_calls_are_at_work_at_once_and_take_one_step() {
    // Registers as the table of machine code has them.
    let plain = |dtype, shape| call(dtype, shape, last(shape), 4);
    let none = |op| Backward { activation: Activation::None, ..op };
    for (registers, op) in [
        (96, plain(DType::BF16, [1, 512, 560])),
        (96, plain(DType::BF16, [6, 1024, 128])),
        (96, plain(DType::BF16, [2, 2048, 256])),
        (96, plain(DType::BF16, [1, 352, 1496])),
        (96, plain(DType::BF16, [1, 1400, 152])),
        (112, plain(DType::F16, [4, 384, 240])),
        (120, plain(DType::F32, [3, 568, 232])),
        (80, none(plain(DType::F32, [1, 408, 792]))),
        (128, with_states(plain(DType::BF16, [1, 336, 920]), 1)),
    ] {
        let plan = planned(&op);
        assert_eq!(plan.entry(), "causal_conv1d_backward_short_last", "{plan}");
        let (threads, BackwardArguments { batch, pieces, parts, sum_blocks, .. }) =
            (plan.block[0], arguments(&plan));
        assert!(sum_blocks <= 120 * (65_536 / (registers * threads)), "{plan}");
        let segments = u64::from(threads) / number(&plan, "lanes") * u64::from(parts);
        assert!(batch as u64 * u64::from(pieces) <= segments, "{plan}");
    }
    // Larger calls are walked; without an activation the limit is higher.
    let large = plain(DType::BF16, [2, 512, 2048]);
    assert_eq!(planned(&large).entry(), "causal_conv1d_backward_channel_last");
    assert_eq!(planned(&none(large)).entry(), "causal_conv1d_backward_short_last");
}

#[test]
fn channels_that_do_not_fit_at_once_are_cut_finely() {
    // Rows that are not whole tiles.
    let shape = [4, 4096, 504];
    let waves = |dtype, activation| {
        let mut op = call(dtype, shape, first(shape), 4);
        op.activation = activation;
        let plan = planned(&op);
        assert_eq!((number(&plan, "unroll"), plan.constant("ragged")), (2, "false"), "{plan}");
        number(&plan, "waves_per_channel")
    };
    assert_eq!(waves(DType::BF16, Activation::Silu), 1);
    assert_eq!(waves(DType::BF16, Activation::None), 2);
    assert_eq!(waves(DType::F32, Activation::Silu), 4);
}

#[test]
fn waves_of_tiles_take_rows_first_and_pieces_where_rows_are_few() {
    // Waves of a channel, pieces of a row and tiles of a piece.
    for (shape, expected) in [
        ([8, 2048, 1024], (1, 1, 4)),
        ([4, 4096, 512], (1, 1, 2)),
        ([4, 256, 4096], (8, 2, 8)),
        ([3, 512, 6144], (4, 4, 6)),
        ([1, 1024, 8192], (2, 2, 16)),
        ([64, 128, 512], (16, 1, 2)),
        // One row for each of four waves would leave a fifth to one of them.
        ([5, 320, 4096], (4, 4, 4)),
    ] {
        let plan = planned(&call(DType::BF16, shape, first(shape), 4));
        let found =
            (number(&plan, "waves_per_channel"), arguments(&plan).pieces, arguments(&plan).piece / 256);
        assert_eq!(found, expected, "{plan}");
    }
    // Blocks of a multiprocessor: all at once where registers allow it, else as many as leave the last round fuller.
    for (shape, expected) in [
        ([4, 256, 4096], (256, 2, true)),
        ([4, 4096, 512], (128, 8, true)),
        ([4, 8192, 512], (128, 8, false)),
        ([2, 5280, 1024], (128, 5, false)),
    ] {
        let plan = planned(&call(DType::BF16, shape, first(shape), 4));
        let bounds = format!("CAUSEWAY_KERNEL({}, {})", expected.0, expected.1);
        assert!(plan.choice.source().contains(&bounds), "{plan}");
        assert_eq!(plan.programmatic_launch, expected.2, "{plan}");
        // Blocks that come early cannot crowd a multiprocessor.
        let fit = 233_472 / (plan.shared_bytes + 1024);
        assert_eq!(fit == expected.1, expected.2, "{plan}");
    }
    // Where all blocks begin at once, they fit, whatever a multiprocessor has; with less shared memory, fewer do.
    for facts in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"].map(of_architecture) {
        for (dim, seqlen) in [(256, 4096), (1024, 512), (2048, 512), (4096, 512), (4608, 512)] {
            let op = call(DType::BF16, [4, dim, seqlen], first([4, dim, seqlen]), 4);
            let plan = planned_for(&op, &facts);
            if plan.entry() != "causal_conv1d_backward_tiles_first" {
                continue;
            }
            let fit = (facts.shared_per_multiprocessor / (plan.shared_bytes + 1024))
                .min(facts.threads_per_multiprocessor / plan.block[0]);
            let each = plan.grid[0].div_ceil(facts.multiprocessors);
            assert!(!plan.programmatic_launch || each <= fit, "{facts:?}: {plan}");
        }
    }
    let wide = [4, 4096, 512];
    let wide = planned_for(&call(DType::BF16, wide, first(wide), 4), &of_architecture("sm_89"));
    assert!(wide.choice.source().contains("CAUSEWAY_KERNEL(128, 5)") && !wide.programmatic_launch, "{wide}");
    // Blocks for a part of the device, in a large call: several share a channel.
    for (shape, expected) in [([1, 64, 1 << 20], (256, 4, 32)), ([1, 80, 1 << 19], (128, 13, 26))] {
        let plan = planned(&call(DType::BF16, shape, first(shape), 4));
        let found = (plan.block[0], arguments(&plan).parts, arguments(&plan).pieces);
        assert_eq!((plan.entry(), found), ("causal_conv1d_backward_tiles_first", expected), "{plan}");
    }
    // Three tiles, and two whole ones between others.
    for shape in [[8, 2048, 768], [8, 2048, 1016]] {
        let plan = planned(&call(DType::BF16, shape, first(shape), 4));
        assert_eq!(plan.entry(), "causal_conv1d_backward_channel_first", "{plan}");
    }
}

#[test]
fn channel_last_packets_divide_dim_and_strides() {
    let channels =
        |dim: i64| number(&planned(&call(DType::BF16, [8, dim, 1024], last([8, dim, 1024]), 4)), "channels");
    let access = |op: &Backward| number(&planned(op), "access");
    // In large calls, rows that begin at any element or word are copied in lines.
    assert_eq!([channels(2048), channels(2050), channels(2047)], [4, 4, 4]);
    let odd = [8, 2047, 1024];
    let even = [8, 2050, 1024];
    assert_eq!(access(&call(DType::BF16, odd, last(odd), 4)), 2);
    assert_eq!(access(&call(DType::BF16, even, last(even), 4)), 4);
    let mut op = call(DType::BF16, odd, last(odd), 4);
    op.dx = written(DX + 2, DType::BF16, &odd, &last(odd));
    assert_eq!(number(&planned(&op), "channels"), 1, "rows of dx begin elsewhere than those of x");
    let small = [1, 2047, 1024];
    assert_eq!(number(&planned(&call(DType::BF16, small, last(small), 4)), "channels"), 1);
    // Rows of one tensor are further apart than those of the others: by whole packets, or by other distances.
    let with_pitch = |dx: i64, x: i64| {
        let mut op = call(DType::BF16, odd, [dx * 1024, 1, dx], 4);
        op.x = read(X, DType::BF16, &odd, &[(x * 1024) & !7, 1, x]);
        number(&planned(&op), "channels")
    };
    assert_eq!([with_pitch(2047, 2055), with_pitch(2047, 2050)], [4, 1]);
    // What lies beside a row is read, so each row lies after the one before it.
    for step in [0, 2, -2048] {
        let mut op = call(DType::BF16, odd, [2056 * 1024, 1, 2048 + step % 8], 4);
        op.x = read(X, DType::BF16, &odd, &[2048 * 1024, 1, step]);
        op.dy = read(DY, DType::BF16, &odd, &[2048 * 1024, 1, step]);
        assert_eq!(number(&planned(&op), "channels"), 1, "{step}");
    }
    // A view of a wider tensor: rows are 2050 elements apart.
    let op = call(DType::BF16, [8, 2048, 1024], [2050 * 1024, 1, 2050], 4);
    assert_eq!((number(&planned(&op), "channels"), access(&op)), (4, 4));
}

/// Measured on an H100 (docs/kernels/history/backward.md, "Fewer and larger blocks").
#[test]
fn blocks_are_large_where_many_would_share_sums() {
    let threads = |shape: [i64; 3]| {
        let op = call(DType::BF16, shape, last(shape), 4);
        let plan = planned(&op);
        assert_covers(&op, &plan, &DeviceFacts::h200());
        plan.block[0]
    };
    assert_eq!([[16, 768, 512], [3, 576, 14_844], [1, 4096, 3072]].map(threads), [512, 512, 256]);
    // Packets of one element, and of two; many groups of channels fill a device evenly as small blocks alone.
    assert_eq!([[23, 163, 448], [1, 1923, 1000], [1, 5051, 400]].map(threads), [768, 384, 128]);
    assert_eq!(threads([3, 1022, 600]), 320);
    // From 16 Ki elements a multiprocessor on, the same rows are copied in lines, with four elements to a thread.
    assert_eq!([[1, 5051, 700], [3, 1022, 1000]].map(threads), [256, 512]);
}

/// Measured on an H200 (docs/kernels/history/backward.md, "All blocks at once").
#[test]
fn blocks_of_a_group_are_a_cluster_in_calls_of_middling_size() {
    let of = |shape: [i64; 3], facts: &DeviceFacts| {
        let op = call(DType::BF16, shape, last(shape), 4);
        let plan = planned_for(&op, facts);
        assert_covers(&op, &plan, facts);
        (plan.cluster, arguments(&plan).parts, number(&plan, "lanes"))
    };
    let h200 = DeviceFacts::h200();
    // Lanes so that 30 clusters have all channels; one block has them alone where there are many; larger calls go through the workspace.
    assert_eq!(of([1, 4312, 1000], &h200), (4, 4, 36));
    assert_eq!(of([1, 11_144, 582], &h200), (1, 1, 24));
    assert_eq!(of([1, 4312, 8000], &h200).0, 1);
    assert!(of([1, 4312, 8000], &h200).1 > 4);
    // Devices without clusters; blocks that compute gradients of states beside them.
    assert_eq!(of([1, 4312, 1000], &of_architecture("sm_80")).0, 1);
    let op = with_states(call(DType::BF16, [1, 4312, 1000], last([1, 4312, 1000]), 4), 1);
    assert_eq!(planned(&op).cluster, 1);
}

#[test]
fn odd_rows_keep_wide_accesses_when_all_tensors_share_their_residues() {
    let shape = [40, 640, 4095];
    let mut op = call(DType::BF16, shape, first(shape), 4);
    assert_eq!(number(&planned(&op), "row_bytes"), 2);
    // What lies before the first row may not be memory.
    op.x = read(X + 2, DType::BF16, &shape, &first(shape));
    op.dy = read(DY + 2, DType::BF16, &shape, &first(shape));
    op.dx = written(DX + 2, DType::BF16, &shape, &first(shape));
    let plan = planned(&op);
    assert_eq!((number(&plan, "bytes"), plan.constant("ragged")), (16, "true"));
    op = call(DType::BF16, shape, first(shape), 4);
    op.dx = written(DX + 4, DType::BF16, &shape, &first(shape));
    let plan = planned(&op);
    assert_eq!((number(&plan, "bytes"), number(&plan, "packets")), (4, 4));
    op.dx = written(DX, DType::BF16, &shape, &[640 * 4096, 4096, 1]);
    let plan = planned(&op);
    assert_eq!((number(&plan, "bytes"), plan.constant("ragged")), (2, "false"));
}

#[test]
fn empty_batches_and_rows_still_write_zero_gradients() {
    for shape in [[0, 40, 16], [2, 40, 0]] {
        let op = call(DType::F32, shape, first(shape), 4);
        let plan = planned(&op);
        assert_covers(&op, &plan, &DeviceFacts::h200());
        assert_eq!(arguments(&plan).parts, 1, "{plan}");
    }
    let op = call(DType::F32, [2, 0, 16], [0, 16, 1], 4);
    assert_eq!(plan(&op, &op.validate().unwrap(), &DeviceFacts::h200()).unwrap(), None);
}

#[test]
fn states_add_blocks_and_nothing_else() {
    let shape = [8, 2048, 1024];
    let plain = planned(&call(DType::BF16, shape, last(shape), 4));
    let plan = planned(&with_states(call(DType::BF16, shape, last(shape), 4), 8));
    let pairs_per_block = u64::from(plan.block[0]) / 3;
    let state_blocks = (8 * 2048u64).div_ceil(pairs_per_block) as u32;
    assert_eq!(plan.grid[0], plain.grid[0] + state_blocks);
    assert_eq!(plan.constant("dinitial_states"), "true");
    // A width of one has no states.
    let plan = planned(&with_states(call(DType::BF16, shape, last(shape), 1), 8));
    assert_eq!(plan.constant("initial_states"), "false");
    assert_eq!(plan.grid[0], arguments(&plan).sum_blocks);
}

#[test]
fn boundaries_of_no_sequence_are_not_read() {
    let mut op = call(DType::F32, [1, 8, 0], [0, 1, 8], 4);
    op.cu_seqlens = Some(read(0xb00_0000, DType::I64, &[1], &[1]));
    assert_eq!(planned(&op).constant("cu_seqlens"), "0");
    op = call(DType::F32, [1, 8, 10], [80, 1, 8], 4);
    op.cu_seqlens = Some(read(0xb00_0000, DType::I64, &[3], &[1]));
    assert_eq!(planned(&op).constant("cu_seqlens"), "8");
}

#[test]
fn bias_matters_only_through_the_activation() {
    let shape = [2, 64, 128];
    let mut op = call(DType::F32, shape, last(shape), 4);
    op.activation = Activation::None;
    let plan = planned(&op);
    assert_eq!((plan.constant("bias"), plan.constant("dbias")), ("false", "true"));
    op.dbias = None;
    assert_eq!(planned(&op).constant("dbias"), "false");
}

#[test]
fn bytes_count_each_tensor_once() {
    let shape = [2, 64, 128];
    let plan = planned(&call(DType::BF16, shape, first(shape), 4));
    let x = 2 * 64 * 128 * 2;
    let weight = 64 * 4 * 2;
    assert_eq!(plan.read_bytes, 2 * x + weight + 64 * 2);
    assert_eq!(plan.written_bytes, x + weight + 64 * 2);
}

#[test]
fn extents_include_negative_strides() {
    let x = read(0x1000, DType::F32, &[2, 3, 4], &[-12, 4, 1]);
    assert_eq!(extent(View::of(&x)), [0x1000 - 48, 0x1000 + 48]);
}

#[test]
fn f64_is_refused() {
    let shape = [2, 64, 128];
    let sizes = call(DType::F32, shape, first(shape), 4).validate().unwrap();
    let op = call(DType::F64, shape, first(shape), 4);
    assert!(matches!(plan(&op, &sizes, &DeviceFacts::h200()), Err(Error::Unsupported { .. })));
}

#[test]
fn ragged_short_rows_are_covered() {
    for (dtype, shape) in [
        (DType::BF16, [16, 1907, 710]),
        (DType::BF16, [16, 1907, 714]),
        (DType::F16, [33, 646, 703]),
        (DType::F32, [28, 2370, 113]),
        (DType::F32, [28, 2370, 114]),
        (DType::BF16, [1, 1400, 1571]),
    ] {
        let op = call(dtype, shape, first(shape), 4);
        let plan = planned(&op);
        assert_eq!(plan.entry(), "causal_conv1d_backward_flat_first", "{plan}");
        assert_covers(&op, &plan, &DeviceFacts::h200());
    }
    // Rows without slack: each begins with a packet.
    let (shape, strides) = ([40, 1600, 205], [1600 * 208, 208, 1]);
    let op = call(DType::BF16, shape, strides, 4);
    let plan = planned(&op);
    assert_eq!((plan.entry(), arguments(&plan).pieces), ("causal_conv1d_backward_flat_first", 26), "{plan}");
    assert_covers(&op, &plan, &DeviceFacts::h200());
}

#[test]
fn entries_too_far_apart_for_32_bits_are_not_walked_one_behind_the_other() {
    let entry = |shape: [i64; 3], stride| {
        planned(&call(DType::BF16, shape, [stride, shape[2], 1], 4)).entry()
            == "causal_conv1d_backward_flat_first"
    };
    // Steps of one row, and of two where a row has fewer packets than a tile.
    assert!(entry([2, 1400, 1571], (1 << 30) - (1 << 12)));
    assert!(!entry([2, 1400, 1571], 1 << 30));
    assert!(entry([40, 3000, 205], (1 << 29) - (1 << 12)));
    assert!(!entry([40, 3000, 205], 1 << 29));
    // A single entry has none that it is apart from.
    assert!(entry([1, 1400, 1571], 1 << 31));
    assert!(entry([1, 700_000, 1571], 700_000 * 1571));
}

#[test]
fn the_stride_of_an_axis_of_one_element_changes_nothing() {
    let cases = [
        ([1, 1400, 1571], [0, 1571, 1], 0),
        ([1, 4096, 1024], [0, 1, 4096], 0),
        ([16, 1, 4096], [4096, 0, 1], 1),
        ([16, 1, 4096], [8192, 0, 2], 1),
        ([16, 2048, 1], [2048, 1, 0], 2),
        ([16, 2048, 1], [4096, 2, 0], 2),
    ];
    for (shape, strides, axis) in cases {
        for width in [4, 33] {
            let plan = |single| {
                let mut strides = strides;
                strides[axis] = single;
                planned(&call(DType::BF16, shape, strides, width))
            };
            let expected = plan(0);
            for single in [1, -1, 3, i64::from(i32::MAX), 1 << 33, -(1 << 33), i64::MAX, i64::MIN] {
                assert!(plan(single) == expected, "{shape:?}, width {width}, stride {single} of axis {axis}");
            }
        }
    }
}

#[test]
fn entries_are_joined_where_that_fills_the_device() {
    let length = |shape, strides| arguments(&planned(&call(DType::BF16, shape, strides, 4))).length;
    // 637 entries where 1056 segments fit; eight that 128 segments share out evenly; entries with something between them.
    let (many, even) = ([637, 256, 80], [8, 2048, 1024]);
    assert_eq!((length(many, last(many)), length(even, last(even))), (80, 0));
    assert_eq!(length(many, [256 * 81, 1, 256]), 0);
    // A large call, of which 100 entries leave 18 of 132 multiprocessors idle; in one of 16 they leave two.
    let (idle, full) = ([100, 704, 944], [16, 536, 3808]);
    assert_eq!((length(idle, last(idle)), length(full, last(full))), (944, 0));
    let plan = planned(&call(DType::BF16, many, last(many), 4));
    assert_eq!(plan.constant("cu_seqlens"), "1", "{plan}");
    // A single position has no pitch.
    assert_eq!(length([1 << 20, 256, 1], last([1 << 20, 256, 1])), 0);
    // An output of width 1 is made of its own position alone.
    let plan = planned(&call(DType::BF16, many, last(many), 1));
    assert_eq!((arguments(&plan).length, plan.constant("cu_seqlens")), (80, "0"), "{plan}");
}

#[test]
fn lanes_share_out_a_dim_evenly() {
    // Of a walk: where the speed of memory is not known there are no tiles.
    let facts = DeviceFacts { memory_gigabytes_per_second: 0, ..DeviceFacts::h200() };
    let lanes = |dim: i64| {
        number(
            &planned_for(&call(DType::BF16, [1, dim, 1 << 20], last([1, dim, 1 << 20]), 4), &facts),
            "lanes",
        )
    };
    // Packets of four channels: 32, 22, 30, and two groups of 17, which begin with sectors of 32 bytes.
    assert_eq!([lanes(128), lanes(88), lanes(120), lanes(136)], [32, 22, 32, 20]);
}

#[test]
fn large_calls_with_norms_and_without_have_two_launches() {
    let facts = DeviceFacts::h200();
    let launches = |dtype, [batch, seqlen]: [i64; 2], dims: [i64; 3], norms: [bool; 3]| {
        let pitch = dims.iter().sum::<i64>();
        let part = |(&dim, &norm): (&i64, &bool)| Backward {
            norm: norm.then(|| HeadNorm::new(128)),
            ..call(dtype, [batch, dim, seqlen], [seqlen * pitch, 1, pitch], 4)
        };
        let calls: Vec<_> = dims.iter().zip(&norms).map(part).collect();
        let plans = Backward::plans_together(&calls, &facts).unwrap();
        assert_eq!(plans[0].entry(), "causal_conv1d_together");
        plans.len()
    };
    let (half, qk) = (DType::BF16, [true, true, false]);
    let dims = [2048, 2048, 4096];
    assert_eq!(launches(half, [4, 4096], dims, qk), 2);
    assert_eq!(launches(half, [1, 2048], dims, qk), 2);
    // A small part, or small calls; dtypes with fewer instructions for a byte; members of one kind.
    assert_eq!(launches(half, [1, 1024], dims, qk), 1);
    assert_eq!(launches(half, [4, 2048], [2048, 256, 256], qk), 1);
    assert_eq!(launches(DType::F32, [1, 4096], dims, qk), 1);
    assert_eq!(launches(DType::F32, [4, 4096], dims, qk), 2);
    assert_eq!(launches(half, [4, 4096], dims, [false; 3]), 1);
    assert_eq!(launches(half, [4, 4096], dims, [true; 3]), 1);
}

#[test]
fn a_grid_has_room_for_the_states_of_any_call() {
    // HIP counts the threads of a grid in 32 bits. A block for each group of these states would have more.
    let facts =
        DeviceFacts { vendor: Vendor::Amd, architecture: "gfx942".to_string(), ..DeviceFacts::h200() };
    for (shape @ [batch, dim, _], width) in [([4096, 4097, 1], 130), ([65536, 22000, 1], 4)] {
        let op = with_states(call(DType::BF16, shape, first(shape), width), batch);
        let [strides, states] = [first(shape), first([batch, dim, width - 1])];
        let state_shape = [batch, dim, width - 1];
        let op = Backward {
            x: read(1 << 40, DType::BF16, &shape, &strides),
            dy: read(2 << 40, DType::BF16, &shape, &strides),
            dx: written(3 << 40, DType::BF16, &shape, &strides),
            initial_states: Some(read(4 << 40, DType::BF16, &state_shape, &states)),
            dfinal_states: Some(read(5 << 40, DType::BF16, &state_shape, &states)),
            dinitial_states: Some(written(6 << 40, DType::BF16, &state_shape, &states)),
            ..op
        };
        let plan = planned_for(&op, &facts);
        let arguments = arguments(&plan);
        assert_eq!(plan.entry(), "causal_conv1d_backward_general");
        assert_eq!(
            (i64::from(plan.grid[0] - arguments.sum_blocks), arguments.state_blocks),
            (8 * 132, 8 * 132),
            "{plan}"
        );
        assert!(u64::from(plan.grid[0]) * u64::from(plan.block[0]) < 1 << 32, "{plan}");
    }
}
