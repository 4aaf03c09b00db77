//! Kernels read rows by packets, and packets reach beyond rows. Here each tensor ends, or begins, at a page that nobody may touch, so
//! that an access beyond its memory ends the process. Plain calls in bf16 with SiLU. `--nocapture` shows in which call.
#![cfg(unix)]

#[path = "common/guarded.rs"]
mod guarded;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{Device, TensorMut, TensorRef};
use causeway_sim::{Edit, Simulator};
use guarded::{Guard, Guarded};
use half::bf16;

/// Forward and backward of a call whose tensors are dense.
fn run(simulator: &Arc<Simulator>, guard: Guard, shape: [i64; 3], width: i64, channel_last: bool) {
    println!("{simulator:?} {guard:?} {shape:?} width {width}, channel-last: {channel_last}");
    let [batch, dim, seqlen] = shape;
    let strides = if channel_last { [dim * seqlen, 1, dim] } else { [dim * seqlen, seqlen, 1] };
    let numbers = |count: i64| {
        Guarded::new(guard, (0..count as usize).map(|i| bf16::from_f32((i % 17) as f32 * 0.125 - 1.0)))
    };
    let elements = batch * dim * seqlen;
    let (x, dy, mut y, mut dx) = (numbers(elements), numbers(elements), numbers(elements), numbers(elements));
    let (weight, bias) = (numbers(dim * width), numbers(dim));
    let (mut dweight, mut dbias) = (numbers(dim * width), numbers(dim));
    let device = Device::Simulated(Arc::<Simulator>::clone(simulator));
    let read = |data| TensorRef::strided(data, 0, &shape, &strides).unwrap();
    let weight = TensorRef::new::<bf16>(weight.slice(), &[dim, width]).unwrap();
    let bias = Some(TensorRef::new::<bf16>(bias.slice(), &[dim]).unwrap());
    let mut forward = Forward {
        x: read(x.slice()),
        weight,
        bias,
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        residual: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        y: TensorMut::strided(y.slice_mut(), 0, &shape, &strides).unwrap(),
        final_states: None,
    };
    forward.run(&device).unwrap();
    let mut backward = Backward {
        x: read(x.slice()),
        weight,
        bias,
        dy: read(dy.slice()),
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        dfinal_states: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        dx: TensorMut::strided(dx.slice_mut(), 0, &shape, &strides).unwrap(),
        dweight: TensorMut::new(dweight.slice_mut(), &[dim, width]).unwrap(),
        dbias: Some(TensorMut::new(dbias.slice_mut(), &[dim]).unwrap()),
        dinitial_states: None,
        db: None,
        dc: None,
    };
    backward.run(&device).unwrap();
}

/// Batch and dim: few rows, many rows, many channels of one entry, a few of each.
const SHAPES: [[i64; 2]; 4] = [[1, 3], [40, 60], [1, 150], [2, 12]];

#[test]
fn kernels_stay_in_their_tensors_wherever_rows_end() {
    for device in ["sim:32", "sim:64"] {
        let simulator = Arc::new(Simulator::open(device).unwrap());
        for guard in [Guard::Before, Guard::Behind] {
            for [batch, dim] in SHAPES {
                for seqlen in (1..=40).chain([63, 101, 257, 1023]) {
                    run(&simulator, guard, [batch, dim, seqlen], 4, false);
                }
            }
            for dim in (1..=20).chain([66, 97, 131, 250]) {
                run(&simulator, guard, [2, dim, 37], 3, true);
            }
        }
    }
}

fn stay_in_their_tensors(device: &str, shapes: &[[i64; 3]], channel_last: bool) {
    let simulator = Arc::new(Simulator::open(device).unwrap());
    for guard in [Guard::Before, Guard::Behind] {
        for &shape in shapes {
            run(&simulator, guard, shape, 4, channel_last);
        }
    }
}

#[test]
fn walks_of_tiles_stay_in_their_tensors() {
    let whole = [[1, 40, 2576], [3, 40, 5000], [40, 16, 208]];
    stay_in_their_tensors("sim:32", &whole, false);
    // Tensors of a whole number of packets, and others: where they end at a page they do not begin with a packet.
    let ragged = [[1, 40, 2577], [3, 40, 5001], [8, 5, 12_503], [40, 16, 205], [40, 13, 251], [1, 5, 39_422]];
    stay_in_their_tensors("sim:32", &ragged, false);
}

#[test]
fn tiles_side_by_side_stay_in_their_tensors() {
    stay_in_their_tensors("sim:slow", &[[2, 264, 517], [4, 72, 181], [4, 136, 290]], true);
}

const ASTRAY: &str = "a_kernel_that_leaves_its_tensors";

/// The child of the test below: rows at the end of a tensor are taken to be safe.
#[test]
#[ignore = "ends the process"]
fn a_kernel_that_leaves_its_tensors() {
    let edit = Edit {
        right: "(i64)sizeof(X) + 48 <= end".to_string(),
        wrong: "(i64)sizeof(X) - 64 <= end".to_string(),
    };
    let simulator = Arc::new(Simulator::open("sim:32").unwrap().with_edit(edit));
    for seqlen in 1..=40 {
        run(&simulator, Guard::Behind, [40, 60, seqlen], 4, false);
    }
}

#[test]
fn a_kernel_that_leaves_its_tensors_ends_the_process() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", ASTRAY, "--ignored"]).output().unwrap();
    assert!(matches!(output.status.signal(), Some(libc::SIGSEGV | libc::SIGBUS)), "{output:?}");
}
