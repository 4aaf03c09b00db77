//! Plans of the forward operation, checked without a device.

use super::super::test_tensors::{read, written};
use super::*;
use crate::Error;
use crate::causal_conv1d::Activation;
use crate::tensor::{DType, TensorMut, TensorRef};

const X: u64 = 0x10_0000;
const Y: u64 = 0x20_0000;

#[derive(Clone, Copy, PartialEq)]
enum Layout {
    First,
    Last,
}

/// A call with dense tensors, without options.
fn call<'a>(dtype: DType, layout: Layout, shape: [i64; 3], width: i64) -> Forward<'a> {
    let [_, dim, seqlen] = shape;
    let strides = match layout {
        Layout::First => [dim * seqlen, seqlen, 1],
        Layout::Last => [dim * seqlen, 1, dim],
    };
    Forward {
        x: read(X, dtype, &shape, &strides),
        weight: read(0x30_0000, dtype, &[dim, width], &[width, 1]),
        bias: None,
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        residual: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        y: written(Y, dtype, &shape, &strides),
        final_states: None,
    }
}

fn planned(op: &Forward<'_>) -> Option<Plan> {
    let sizes = op.validate().unwrap();
    plan(op, &sizes, &DeviceFacts::h200()).unwrap()
}

#[test]
fn positions_without_a_sequence_are_refused() {
    let packed = |seqlen| {
        let boundaries = Some(read(0x40_0000, DType::I32, &[1], &[1]));
        let op = Forward { cu_seqlens: boundaries, ..call(DType::BF16, Layout::Last, [1, 64, seqlen], 4) };
        plan(&op, &op.validate().unwrap(), &DeviceFacts::h200())
    };
    assert!(matches!(packed(128), Err(Error::CuSeqlensEnd { found: 0, total: 128 })));
    assert!(packed(0).unwrap().is_none());
}

#[test]
fn channel_last_takes_the_widest_packet_that_divides_a_row() {
    let plan = planned(&call(DType::BF16, Layout::Last, [8, 2048, 1024], 4)).unwrap();
    assert_eq!(plan.header(), "causal_conv1d_forward_channel_last.cuh");
    assert_eq!(plan.constant("bytes"), "8");
    assert_eq!(plan.constant("weight_bytes"), "16");
    assert_eq!(plan.block[0], 64);
    let rows: u32 = plan.constant("rows").parse().unwrap();
    let segments: u32 = plan.constant("segments").parse().unwrap();
    let lanes: u32 = plan.constant("lanes").parse().unwrap();
    assert_eq!(plan.grid, [2048 / (lanes * 4) * 1024 / (rows * segments), 8, 1]);
    assert_eq!(plan.read_bytes, 8 * 2048 * 1024 * 2 + 2048 * 4 * 2);
    assert_eq!(plan.written_bytes, 8 * 2048 * 1024 * 2);

    // As many bytes of a row in narrower packets; fewer where many of them would lie past the row.
    for (dim, expected) in
        [(2047, ("2", "3")), (2046, ("4", "1")), (2048, ("8", "0")), (190, ("4", "0")), (283, ("2", "2"))]
    {
        let plan = planned(&call(DType::BF16, Layout::Last, [8, dim, 1024], 4)).unwrap();
        assert_eq!((plan.constant("bytes"), plan.constant("more_packets")), expected, "dim {dim}");
    }
}

#[test]
fn channel_first_shifts_rows_that_start_between_packets() {
    let aligned = planned(&call(DType::F16, Layout::First, [2, 64, 1024], 4)).unwrap();
    assert_eq!(aligned.header(), "causal_conv1d_forward_channel_first.cuh");
    assert_eq!(aligned.constant("whole"), "true");
    assert_eq!(aligned.constant("weight_bytes"), "8");

    let odd = planned(&call(DType::F16, Layout::First, [2, 64, 1023], 4)).unwrap();
    assert_eq!((odd.constant("shifted"), odd.constant("access")), ("true", "16"));
    assert_eq!(odd.constant("whole"), "false");

    // x and y start at different places within 16 bytes: no shift serves both.
    let mut apart = call(DType::F16, Layout::First, [2, 64, 1024], 4);
    apart.y = written(Y + 4, DType::F16, &[2, 64, 1024], &[64 * 1024, 1024, 1]);
    let apart = planned(&apart).unwrap();
    assert_eq!((apart.constant("shifted"), apart.constant("access")), ("false", "4"));
}

#[test]
fn large_channel_first_calls_with_nothing_to_compute_take_a_packet_per_thread() {
    for (dtype, activation, width, tile) in [
        (DType::F32, Activation::None, 4, ("128", "1")),
        (DType::F32, Activation::Silu, 4, ("64", "2")),
        (DType::F32, Activation::None, 5, ("64", "2")),
        (DType::BF16, Activation::None, 4, ("64", "2")),
    ] {
        let plan =
            planned(&Forward { activation, ..call(dtype, Layout::First, [8, 2048, 1024], width) }).unwrap();
        let threads = plan.block[0].to_string();
        assert_eq!((threads.as_str(), plan.constant("tiles")), tile, "{dtype:?} {activation:?} {width}");
    }
}

#[test]
fn small_channel_last_calls_take_few_rows_per_thread() {
    for (shape, rows) in [([4, 64, 512], "1"), ([4, 64, 1024], "2"), ([8, 256, 1024], "4")] {
        let plan = planned(&call(DType::BF16, Layout::Last, shape, 4)).unwrap();
        assert_eq!(plan.constant("rows"), rows, "{shape:?}");
    }
}

#[test]
fn short_rows_share_a_wave() {
    let plan = planned(&call(DType::F32, Layout::First, [2, 64, 32], 4)).unwrap();
    assert_eq!((plan.constant("lanes"), plan.constant("groups")), ("8", "16"));
    assert_eq!(plan.grid, [64 / 16, 2, 1]);
}

#[test]
fn other_strides_and_widths_take_the_general_kernel() {
    let wide = planned(&call(DType::F32, Layout::First, [2, 64, 300], 16)).unwrap();
    assert_eq!(wide.entry(), "causal_conv1d_forward_general");
    assert_eq!(wide.constant("width"), "0");

    let mut strided = call(DType::F32, Layout::First, [2, 64, 300], 4);
    strided.x = read(X, DType::F32, &[2, 64, 300], &[64 * 600, 600, 2]);
    assert_eq!(planned(&strided).unwrap().entry(), "causal_conv1d_forward_general");

    let mut mixed = call(DType::F32, Layout::First, [2, 64, 300], 4);
    mixed.y = written(Y, DType::F32, &[2, 64, 300], &[64 * 300, 1, 64]);
    assert_eq!(planned(&mixed).unwrap().entry(), "causal_conv1d_forward_general");
}

#[test]
fn empty_outputs_need_no_launch() {
    for shape in [[0, 64, 128], [2, 0, 128], [2, 64, 0]] {
        assert_eq!(planned(&call(DType::F32, Layout::First, shape, 4)), None);
    }
    // No positions, but states that pass through.
    let mut states = call(DType::F32, Layout::First, [2, 64, 0], 4);
    states.final_states = Some(written(0x40_0000, DType::F32, &[2, 64, 3], &[192, 3, 1]));
    assert_eq!(planned(&states).unwrap().entry(), "causal_conv1d_forward_general");
    // One tap keeps no state.
    let mut stateless = call(DType::F32, Layout::First, [2, 64, 0], 1);
    stateless.final_states = Some(written(0x40_0000, DType::F32, &[2, 64, 0], &[0, 0, 1]));
    assert_eq!(planned(&stateless), None);
}

#[test]
fn states_have_blocks_of_their_own() {
    let mut op = call(DType::BF16, Layout::Last, [1, 256, 4096], 4);
    let without = planned(&op).unwrap();
    op.cu_seqlens = Some(read(0x50_0000, DType::I64, &[11], &[1]));
    op.final_states = Some(written(0x40_0000, DType::BF16, &[10, 256, 3], &[768, 3, 1]));
    let with = planned(&op).unwrap();
    assert_eq!(with.constant("cu_seqlens"), "8");
    assert_eq!(with.grid[0] - without.grid[0], 10 * 3, "256 channels take 128 threads, one block to spare");
    let arguments: ForwardArguments = *bytemuck::from_bytes(&with.arguments);
    assert_eq!((arguments.state_blocks, arguments.state_divisor.value), (30, 3));
}

#[test]
fn large_dimensions_fit_the_grid() {
    let batch = planned(&call(DType::F16, Layout::First, [100_000, 8, 16], 4)).unwrap();
    assert_eq!(batch.grid[1..], [32_768, 4]);
    let dim = planned(&call(DType::F16, Layout::First, [2, 100_000, 16], 4)).unwrap();
    assert_eq!(dim.grid[0], 200_000u32.div_ceil(dim.block[0]), "a thread for each packet");
    // 2^33 elements: more than 32 bits, in both layouts.
    for layout in [Layout::First, Layout::Last] {
        let huge = planned(&call(DType::F16, layout, [4, 2048, 1 << 20], 4)).unwrap();
        assert_ne!(huge.entry(), "causal_conv1d_forward_general");
    }
}

#[test]
fn amd_grids_count_threads() {
    let op = call(DType::F16, Layout::First, [1, 1 << 28, 16], 4);
    let sizes = op.validate().unwrap();
    let plan = plan(&op, &sizes, &DeviceFacts::mi300x()).unwrap().unwrap();
    assert!(u64::from(plan.grid[0]) * u64::from(plan.block[0]) < 1 << 32, "{plan}");
}

#[test]
fn f64_is_refused() {
    let memory = [0f64; 128];
    let mut result = [0f64; 128];
    let mut op = call(DType::F32, Layout::First, [1, 8, 16], 4);
    op.x = TensorRef::new(&memory, &[1, 8, 16]).unwrap();
    op.weight = TensorRef::new(&memory[..32], &[8, 4]).unwrap();
    op.y = TensorMut::new(&mut result, &[1, 8, 16]).unwrap();
    let sizes = op.validate().unwrap();
    assert!(matches!(plan(&op, &sizes, &DeviceFacts::h200()), Err(Error::Unsupported { .. })));
}

#[test]
fn the_argument_block_holds_addresses_strides_and_sizes() {
    let plan = planned(&call(DType::BF16, Layout::Last, [3, 96, 50], 3)).unwrap();
    let arguments: ForwardArguments = *bytemuck::from_bytes(&plan.arguments);
    assert_eq!((arguments.x, arguments.y), (X, Y));
    assert_eq!(arguments.x_strides, Strides3 { batch: 96 * 50, dim: 1, seqlen: 96 });
    assert_eq!((arguments.batch, arguments.dim, arguments.seqlen, arguments.width), (3, 96, 50, 3));
    assert_eq!((plan.workspace_bytes, plan.counters, plan.shared_bytes), (0, 0, 0));
}

#[test]
fn blocks_of_narrow_dims_have_no_idle_lanes() {
    let block = |packets, segments| Lanes { packets, bytes: 8, segments, wave: 32 }.full_block((32, 2));
    // 42 packets leave a third of two groups of 32 lanes idle. Three of 16, in blocks of as many threads, need three quarters of the waves.
    assert_eq!(block(42, 336), (16, 4));
    // 20 of 32; eight of them are five waves.
    assert_eq!(block(20, 1000), (20, 8));
    // What saves less than a fifth of the waves is left as it is: 28 of 32, and whole groups. So are rows of few packets.
    for packets in [28, 32, 64, 142, 1000, 4, 8] {
        assert_eq!(block(packets, 1000), (32, 2), "{packets}");
    }
}
