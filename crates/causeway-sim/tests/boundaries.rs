//! Boundaries that are wrong. Those in host memory are checked; those in a GPU's memory are not, since that would wait for
//! the GPU. Results are then wrong as well, but a kernel must end, and touch nothing outside of its tensors.
//!
//! Each tensor ends, or begins, at a page that nobody may touch, so that a wrong access ends the process. `--nocapture` shows
//! in which case.
#![cfg(unix)]

#[path = "common/guarded.rs"]
mod guarded;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{Device, Error, TensorMut, TensorRef};
use causeway_sim::{Edit, Simulator};
use guarded::{Guard, Guarded};
use half::bf16;

const DIM: i64 = 24;
const SEQUENCES: i64 = 5;

/// A simulated device on which kernels find other boundaries than the ones that were checked.
#[derive(Debug)]
struct Exchanged {
    simulator: Arc<Simulator>,
    checked: u64,
    found: u64,
}

impl Executor for Exchanged {
    fn name(&self) -> String {
        self.simulator.name()
    }

    fn facts(&self) -> &DeviceFacts {
        self.simulator.facts()
    }

    unsafe fn execute(&self, plan: &Plan) -> Result<(), Error> {
        let mut arguments = plan.arguments.clone();
        let words = arguments.as_chunks_mut::<8>().0.iter_mut();
        let mut exchanged = 0;
        for word in words.filter(|word| u64::from_ne_bytes(**word) == self.checked) {
            *word = self.found.to_ne_bytes();
            exchanged += 1;
        }
        assert_eq!(exchanged, 1, "the address of the boundaries: {plan}");
        // SAFETY: the caller's, and the other boundaries are as many and outlive the call.
        unsafe { self.simulator.execute(&Plan { arguments, ..plan.clone() }) }
    }
}

/// What varies besides the boundaries.
#[derive(Debug, Clone, Copy)]
struct Case {
    device: &'static str,
    seqlen: i64,
    /// Of x, y and their gradients.
    strides: fn(i64) -> [i64; 3],
    width: i64,
    seq_idx: bool,
    states: bool,
}

fn channel_first(seqlen: i64) -> [i64; 3] {
    [DIM * seqlen, seqlen, 1]
}

fn channel_last(seqlen: i64) -> [i64; 3] {
    [DIM * seqlen, 1, DIM]
}

fn every_third(seqlen: i64) -> [i64; 3] {
    [3 * DIM * seqlen, 3 * seqlen, 3]
}

/// Boundaries of five sequences in a row of `seqlen` positions, as no check would let them pass.
fn wrong(seqlen: i32) -> [[i32; 6]; 7] {
    [
        [seqlen; 6],
        [5, 60, 100, 100, 150, seqlen],
        [0, 150, 20, 100, 90, seqlen],
        [-7, i32::MIN, i32::MAX, 3 * seqlen, -1, 10 * seqlen],
        [seqlen, 100, 50, 49, 2, 0],
        [0, 10, 10, 11, 12, 20],
        [0; 6],
    ]
}

/// Results of forward and backward, in the bits of their elements, with other boundaries than the ones that were checked.
fn run(case: &Case, simulator: &Arc<Simulator>, guard: Guard, found: [i32; 6]) -> Vec<u16> {
    let Case { seqlen, width, .. } = *case;
    let (shape, strides) = ([1, DIM, seqlen], (case.strides)(seqlen));
    let elements = strides[1].max(strides[2]) * if strides[1] > strides[2] { DIM - 1 } else { seqlen - 1 }
        + strides[1].min(strides[2]) * if strides[1] > strides[2] { seqlen - 1 } else { DIM - 1 }
        + 1;
    let numbers = |count: i64| {
        Guarded::new(guard, (0..count as usize).map(|i| bf16::from_f32((i % 17) as f32 * 0.125 - 1.0)))
    };
    let x = numbers(elements);
    let dy = numbers(elements);
    let (mut y, mut dx) = (numbers(elements), numbers(elements));
    let weight = numbers(DIM * width);
    let mut dweight = numbers(DIM * width);
    let (bias, mut dbias) = (numbers(DIM), numbers(DIM));
    let states_shape = [SEQUENCES, DIM, width - 1];
    let states = || numbers(states_shape.iter().product());
    let (initial, dfinal, mut last, mut dinitial) = (states(), states(), states(), states());
    let indices =
        Guarded::new(guard, (0..seqlen as usize).map(|t| if t % 50 == 3 { -1 } else { t as i32 / 37 }));
    let checked = Guarded::new(guard, [0, 40, 41, 41, 180, seqlen as i32].into_iter());
    let found = Guarded::new(guard, found.into_iter());

    let read = |data| TensorRef::strided(data, 0, &shape, &strides).unwrap();
    let dense = |data, shape: &[i64]| TensorRef::new::<bf16>(data, shape).unwrap();
    let boundaries = TensorRef::new(checked.slice(), &[SEQUENCES + 1]).unwrap();
    let seq_idx = case.seq_idx.then(|| TensorRef::new(indices.slice(), &[1, seqlen]).unwrap());
    let initial_states = case.states.then(|| dense(initial.slice(), &states_shape));
    let device = Device::Simulated(Arc::new(Exchanged {
        simulator: Arc::clone(simulator),
        checked: checked.first as u64,
        found: found.first as u64,
    }));
    let mut forward = Forward {
        x: read(x.slice()),
        weight: dense(weight.slice(), &[DIM, width]),
        bias: Some(dense(bias.slice(), &[DIM])),
        initial_states,
        seq_idx,
        cu_seqlens: Some(boundaries),
        residual: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        y: TensorMut::strided(y.slice_mut(), 0, &shape, &strides).unwrap(),
        final_states: case.states.then(|| TensorMut::new(last.slice_mut(), &states_shape).unwrap()),
    };
    forward.run(&device).unwrap();
    let mut backward = Backward {
        x: read(x.slice()),
        weight: dense(weight.slice(), &[DIM, width]),
        bias: Some(dense(bias.slice(), &[DIM])),
        dy: read(dy.slice()),
        initial_states,
        seq_idx,
        cu_seqlens: Some(boundaries),
        dfinal_states: case.states.then(|| dense(dfinal.slice(), &states_shape)),
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        dx: TensorMut::strided(dx.slice_mut(), 0, &shape, &strides).unwrap(),
        dweight: TensorMut::new(dweight.slice_mut(), &[DIM, width]).unwrap(),
        dbias: Some(TensorMut::new(dbias.slice_mut(), &[DIM]).unwrap()),
        dinitial_states: case.states.then(|| TensorMut::new(dinitial.slice_mut(), &states_shape).unwrap()),
        db: None,
        dc: None,
    };
    backward.run(&device).unwrap();
    let results = [&y, &dx, &dweight, &dbias, &last, &dinitial];
    results.into_iter().flat_map(|result| result.slice().iter().map(|element| element.to_bits())).collect()
}

const BASE: Case =
    Case { device: "sim:32", seqlen: 304, strides: channel_first, width: 4, seq_idx: true, states: true };

#[test]
fn kernels_stay_in_their_tensors_whatever_boundaries_say() {
    for case in cases() {
        let simulator = Arc::new(Simulator::open(case.device).unwrap());
        for boundaries in wrong(case.seqlen as i32) {
            for guard in [Guard::Before, Guard::Behind] {
                println!("{case:?} {boundaries:?} {guard:?}");
                run(&case, &simulator, guard, boundaries);
            }
        }
    }
}

/// A slice of a packed batch is given the boundaries of all of it, from where it begins: sequence parallelism counts on that.
#[test]
fn boundaries_before_a_row_and_behind_it_are_its_ends() {
    for case in cases() {
        let simulator = Arc::new(Simulator::open(case.device).unwrap());
        let seqlen = case.seqlen as i32;
        for boundaries in [
            [-90, -20, 1, 150, seqlen + 1, seqlen + 70],
            [-3, 100, 100, 200, seqlen, 3 * seqlen],
            [i32::MIN, -1, 0, seqlen - 1, seqlen + 5, i32::MAX],
        ] {
            let own = boundaries.map(|boundary| boundary.clamp(0, seqlen));
            let [found, expected] =
                [boundaries, own].map(|boundaries| run(&case, &simulator, Guard::Behind, boundaries));
            assert!(found == expected, "{case:?} {boundaries:?}");
        }
    }
}

fn cases() -> Vec<Case> {
    vec![
        BASE,
        Case { device: "sim:64", ..BASE },
        Case { device: "sim:sm_80", seqlen: 2048, ..BASE },
        Case { seqlen: 301, ..BASE },
        Case { width: 8, ..BASE },
        Case { seq_idx: false, ..BASE },
        Case { states: false, ..BASE },
        Case { strides: channel_last, ..BASE },
        Case { strides: channel_last, device: "sim:64", ..BASE },
        Case { strides: channel_last, seq_idx: false, ..BASE },
        Case { strides: channel_last, states: false, ..BASE },
        Case { strides: every_third, ..BASE },
        // The last group of channels has more than there are.
        Case { strides: channel_last, width: 16, ..BASE },
        Case { strides: channel_last, width: 16, seq_idx: false, ..BASE },
    ]
}

/// Kernels that leave their tensors: an edit of one, and a case and boundaries with which it does.
fn astray() -> [(Edit, Case, [i32; 6]); 2] {
    let edit = |right: &str, wrong: &str| Edit { right: right.to_string(), wrong: wrong.to_string() };
    let last = Case { strides: channel_last, ..BASE };
    [
        // Boundaries are believed.
        (
            edit("maximum(t - back, minimum(start, t))", "maximum(t - back, start)"),
            last,
            [BASE.seqlen as i32; 6],
        ),
        // Channels that a group has too many are given states.
        (edit("if (first_channel + c >= a.dim) continue;", ""), Case { width: 16, ..last }, [0; 6]),
    ]
}

const NUMBER: &str = "CAUSEWAY_TEST_ASTRAY";

/// The child of the test below.
#[test]
#[ignore = "ends the process"]
fn a_kernel_that_leaves_its_tensors() {
    let number: usize = std::env::var(NUMBER).unwrap().parse().unwrap();
    let (edit, case, boundaries) = astray()[number].clone();
    let simulator = Arc::new(Simulator::open(case.device).unwrap().with_edit(edit));
    run(&case, &simulator, Guard::Behind, boundaries);
}

#[test]
fn a_kernel_that_leaves_its_tensors_ends_the_process() {
    let test = ["--exact", "a_kernel_that_leaves_its_tensors", "--ignored"];
    for number in 0..astray().len() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(test).env(NUMBER, number.to_string()).output().unwrap();
        let signal = output.status.signal();
        assert!(matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)), "{number}: {output:?}");
    }
}
