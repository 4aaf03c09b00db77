//! Rows with indices that are cut in two: the second half, computed without its halo and then corrected for it, is what the whole row has there.
//!
//! Cuts are drawn by a seed. Faults in the kernels have to be noticed, those of a list by every run, and edits that a seed draws by
//! `cargo test --profile checked -p causeway-sim --test halo -- --ignored --nocapture`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::causal_conv1d::{backward, forward};
use causeway::backend::gpu::message::{self, FLAG_BYTES};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, Error, HostTensor, TensorMut};
use causeway_sim::{Patch, Simulator};
use rayon::prelude::*;

#[path = "../examples/mutate/cpp_edits.rs"]
mod cpp_edits;
#[path = "../examples/mutate/random.rs"]
mod random;
#[path = "../examples/mutate/tokens.rs"]
mod tokens;

use random::Random;

/// A whole row is `width - 1` positions of a halo, and `seqlen` more.
#[derive(Debug)]
struct Cut {
    dtype: DType,
    weight: DType,
    batch: i64,
    dim: i64,
    seqlen: i64,
    width: i64,
    channel_last: bool,
    /// Positions behind a row that are not its own.
    gap: i64,
    indices: Indices,
    bias: bool,
    residual: bool,
    activation: Activation,
}

#[derive(Debug, Clone, Copy)]
enum Indices {
    /// Few different ones, which come back, and padding.
    Few,
    /// Packed sequences, and padding.
    Rising,
    One,
}

/// Outputs of a backward pass.
const RESULTS: [&str; 3] = ["dx", "dweight", "dbias"];

/// A number for a tensor's element: the same for the same place of the whole row. In steps of 1/4, of which sums are not rounded.
fn number(tensor: u32, element: i64) -> f64 {
    let mixed = (element as u32 ^ tensor << 20).wrapping_mul(2_654_435_761);
    f64::from((mixed ^ mixed >> 15) % 9) / 4.0 - 1.0
}

impl Cut {
    /// Tensor number `tensor` of (batch, dim, `count` positions from `first` on of the whole row).
    fn rows(&self, tensor: u32, first: i64, count: i64) -> HostTensor {
        let (dim, whole, stored_count) = (self.dim, self.width - 1 + self.seqlen, count + self.gap);
        let stored =
            if self.channel_last { [self.batch, stored_count, dim] } else { [self.batch, dim, stored_count] };
        let made = HostTensor::from_fn(self.dtype, &stored, |at| {
            let at = at as i64;
            let (outer, inner) = (at / stored[2], at % stored[2]);
            let (entry, middle) = (outer / stored[1], outer % stored[1]);
            let (channel, position) = if self.channel_last { (inner, middle) } else { (middle, inner) };
            number(tensor, (entry * dim + channel) * whole + first + position)
        });
        let made = made.unwrap();
        if self.channel_last { made.permuted(&[0, 2, 1]) } else { made }
    }

    fn indices(&self, first: i64, count: i64) -> HostTensor {
        let index = |at: i64| {
            let (row, position) = (at / count, first + at % count);
            let drawn = (number(9, row * (self.width - 1 + self.seqlen) + position) * 4.0) as i32;
            match self.indices {
                Indices::Few => drawn / 3,
                Indices::Rising if drawn == 2 => -1,
                Indices::Rising => (position / 3) as i32,
                Indices::One => 7,
            }
        };
        let values: Vec<i32> = (0..self.batch * count).map(index).collect();
        HostTensor::from_slice(&values, &[self.batch, count]).unwrap()
    }

    fn flat(&self, tensor: u32, dtype: DType, shape: &[i64]) -> HostTensor {
        HostTensor::from_fn(dtype, shape, |at| number(tensor, at as i64)).unwrap()
    }

    /// What differs, in words.
    fn compare(&self, simulator: &Arc<Simulator>) -> Result<(), String> {
        let Cut { batch, dim, seqlen, width, activation, .. } = *self;
        let (states, whole) = (width - 1, width - 1 + seqlen);
        let device = Device::Simulated(Arc::clone(simulator) as Arc<dyn Executor>);
        let (weight, bias) = (self.flat(1, self.weight, &[dim, width]), self.flat(2, self.weight, &[dim]));
        let zeros = |shape: &[i64]| HostTensor::zeros(self.weight, shape).unwrap();
        let failed = |error: Error| match error {
            Error::SimulatorCompiler { message } => panic!("it does not compile: {message}"),
            error => error.to_string(),
        };

        // y, dx, dweight and dbias of positions from `first` on; without what comes before, which has no dy.
        let computed = |first: i64, count: i64| {
            let (x, residual) = (self.rows(3, first, count), self.rows(5, first, count));
            let (mut dy, indices) = (self.rows(4, first, count), self.indices(first, count));
            for row in 0..batch * dim {
                for position in first..states {
                    dy.adjust(&[row / dim, row % dim, position], |_| 0.0);
                }
            }
            let (mut y, mut results) = (x.clone(), [x.clone(), zeros(&[dim, width]), zeros(&[dim])]);
            let read = |name: &str| match name {
                "x" => Some(x.view().narrow(2, 0, count)),
                "dy" => Some(dy.view().narrow(2, 0, count)),
                "weight" => Some(weight.view()),
                "bias" => self.bias.then(|| bias.view()),
                "seq_idx" => Some(indices.view()),
                "residual" => self.residual.then(|| residual.view().narrow(2, 0, count)),
                _ => None,
            };
            let mut place = Some(y.view_mut().narrow(2, 0, count));
            let written = |name: &str| if name == "y" { place.take() } else { None };
            Forward::from_named(activation, false, None, read, written).run(&device).unwrap();
            let mut places = results.each_mut().map(|result| Some(row_of(result.view_mut(), count)));
            let written = |name: &str| {
                let at = RESULTS.iter().position(|known| *known == name)?;
                if name == "dbias" && !self.bias { None } else { places[at].take() }
            };
            Backward::from_named(activation, false, None, read, written).run(&device).unwrap();
            (x, dy, indices, residual, y, results)
        };
        let (.., y_whole, [dx_whole, dweight_whole, dbias_whole]) = computed(0, whole);
        let (x, dy, indices, residual, mut y, mut results) = computed(states, seqlen);

        let (halo, halo_indices) = (self.rows(3, 0, states), self.indices(0, states));
        let mut dhalo = halo.clone();
        let mut room = vec![0_u128; (FLAG_BYTES as usize + dhalo.element_count() * 4).div_ceil(16) + 1];
        let address = room.as_mut_ptr() as u64;
        let facts = simulator.facts();
        let read = |name: &str| match name {
            "x" => Some(x.view().narrow(2, 0, seqlen)),
            "dy" => Some(dy.view().narrow(2, 0, seqlen)),
            "weight" => Some(weight.view()),
            "bias" => self.bias.then(|| bias.view()),
            "seq_idx" => Some(indices.view()),
            "residual" => self.residual.then(|| residual.view().narrow(2, 0, seqlen)),
            "initial_states" => Some(halo.view().narrow(2, 0, states)),
            _ => None,
        };
        let plans = {
            let mut place = Some(y.view_mut().narrow(2, 0, seqlen));
            let written = |name: &str| if name == "y" { place.take() } else { None };
            let call = Forward::from_named(activation, false, None, read, written);
            let corrected =
                forward::plan_halo(&call, &call.validate().unwrap(), &halo_indices.view(), facts).unwrap();
            let mut places = results.each_mut().map(|result| Some(row_of(result.view_mut(), seqlen)));
            let mut state = Some(dhalo.view_mut().narrow(2, 0, states));
            let written = |name: &str| match RESULTS.iter().position(|known| *known == name) {
                Some(2) if !self.bias => None,
                Some(at) => places[at].take(),
                None => {
                    if name == "dinitial_states" {
                        state.take()
                    } else {
                        None
                    }
                }
            };
            let call = Backward::from_named(activation, false, None, read, written);
            let (sizes, index) = (call.validate().unwrap(), halo_indices.view());
            let sent = backward::plan_halo(&call, &sizes, Some(&index), address, facts).unwrap();
            let behind = backward::plan_behind_halo(&call, &sizes, &index, facts).unwrap();
            [corrected, sent, behind].map(Option::unwrap)
        };
        let taken = message::receive(&dhalo.view_mut().narrow(2, 0, states), address).unwrap();
        for plan in plans.iter().chain([&taken]) {
            // SAFETY: the tensors are those of the calls above, and the room has the size of the message.
            unsafe { simulator.execute(plan) }.map_err(failed)?;
        }

        // Positions of each row, of a tensor whose rows have so many.
        let part = |tensor: &HostTensor, row: i64, from: i64, count: i64| -> Vec<f64> {
            let values = tensor.to_f64();
            let rows = values.chunks_exact((row + self.gap) as usize);
            rows.flat_map(|row| &row[from as usize..][..count as usize]).copied().collect()
        };
        let own = |tensor: &HostTensor| part(tensor, seqlen, 0, seqlen);
        let require = |is_right: bool, what: &str| if is_right { Ok(()) } else { Err(what.to_string()) };
        require(own(&y) == part(&y_whole, whole, states, seqlen), "y")?;
        // The memory of x, which y and dx began with.
        let between = |tensor: &HostTensor| part(tensor, seqlen, seqlen, self.gap);
        require(between(&y) == between(&x) && between(&results[0]) == between(&x), "between rows")?;
        let unit = |dtype| match dtype {
            DType::F32 => 1e-6,
            DType::F16 => 2e-3,
            _ => 1.5e-2,
        };
        let gradients = [
            ("dx", own(&results[0]), part(&dx_whole, whole, states, seqlen)),
            ("the halo's gradient", part(&dhalo, states, 0, states), part(&dx_whole, whole, 0, states)),
        ];
        for (what, found, expected) in gradients {
            // Channel-last, a row that two threads share has its sum in two parts.
            let tolerance = if self.channel_last { unit(self.dtype) } else { 0.0 };
            for (found, expected) in found.into_iter().zip(expected) {
                let is_right = (found - expected).abs() <= tolerance * (1.0 + expected.abs());
                require(is_right, &format!("{what}: {found}, not {expected}"))?;
            }
        }
        // A sum is rounded to the weight's dtype once more, and with SiLU taken in another order.
        let bias = if self.bias { vec![(2, dbias_whole)] } else { vec![] };
        for (at, expected) in [(1, dweight_whole)].into_iter().chain(bias) {
            for (found, expected) in results[at].to_f64().into_iter().zip(expected.to_f64()) {
                let size = 8.0 * (batch * seqlen) as f64;
                let is_right =
                    (found - expected).abs() <= unit(self.weight) * 2.0 * (size.sqrt() + expected.abs());
                require(is_right, &format!("{}: {found}, not {expected}", RESULTS[at]))?;
            }
        }
        Ok(())
    }

    fn drawn(random: &mut Random) -> Cut {
        let dtypes = [DType::BF16, DType::F32, DType::F16];
        let dtype = dtypes[random.below(3)];
        let width = 2 + random.below(7) as i64;
        Cut {
            dtype,
            weight: if random.below(3) == 0 { DType::F32 } else { dtype },
            batch: 1 + random.below(3) as i64,
            dim: [1, 2, 5, 24, 64, 150, 300][random.below(7)],
            seqlen: 2 * (width - 1) + [0, 0, 1, 2, 9, 40][random.below(6)],
            width,
            channel_last: random.below(2) == 0,
            gap: [0, 0, 3][random.below(3)],
            indices: [Indices::Few, Indices::Few, Indices::Rising, Indices::One][random.below(4)],
            bias: random.below(2) == 0,
            residual: random.below(2) == 0,
            activation: if random.below(4) > 0 { Activation::Silu } else { Activation::None },
        }
    }
}

/// The rows of dx, without what lies between them; another result as it is.
fn row_of(result: TensorMut<'_>, count: i64) -> TensorMut<'_> {
    if result.shape().len() == 3 { result.narrow(2, 0, count) } else { result }
}

/// Cuts of the seed `CAUSEWAY_TEST_SEED`.
fn cuts(count: usize) -> Vec<Cut> {
    let seed = std::env::var("CAUSEWAY_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut random = Random::new(seed);
    (0..count).map(|_| Cut::drawn(&mut random)).collect()
}

#[test]
fn the_second_half_of_a_row_is_that_of_the_whole_one() {
    for (device, count) in [("sim:32", 24), ("sim:64", 8)] {
        let simulator = Arc::new(Simulator::open(device).unwrap());
        let differs =
            |cut: &Cut| cut.compare(&simulator).err().map(|what| format!("{device}: {what}: {cut:?}"));
        let different: Vec<_> = cuts(count).par_iter().filter_map(differs).collect();
        assert!(different.is_empty(), "{}", different.join("\n"));
    }
}

const FORWARD: &str = "causal_conv1d_forward_halo.cuh";
const BACKWARD: &str = "causal_conv1d_backward_halo.cuh";

/// What is wrong, in which file, a text that it has, and what stands there with the fault.
const FAULTS: &[(&str, &str, &str, &str)] = &[
    (
        "y: indices of the halo do not count",
        FORWARD,
        "halo_index(arguments.halo, entry, from, a.width)",
        "index",
    ),
    ("y: padding is computed", FORWARD, "index < 0 ? 0.0f", "false ? 0.0f"),
    ("y: without the bias", FORWARD, "float pre = Problem::bias ?", "float pre = false ?"),
    ("y: without the residual", FORWARD, "result = add_rn(result, ", "result = add_rn(0.0f * result, "),
    (
        "y: the halo lies one position off",
        FORWARD,
        "(from + states) * a.initial_strides.seqlen",
        "(from + states - 1 + (from + states == 0)) * a.initial_strides.seqlen",
    ),
    (
        "y: taps run the other way",
        FORWARD,
        "w * a.weight_strides.second;",
        "(states - w) * a.weight_strides.second;",
    ),
    (
        "dx: the halo lies one position off",
        BACKWARD,
        "a.width - 1 + from) : read<X>(a.x",
        "a.width - 1 + from - (from > 1 - a.width)) : read<X>(a.x",
    ),
    ("dx: another index counts", BACKWARD, "if (own != index) return false;", ""),
    ("dx: padding has a gradient", BACKWARD, "if (index < 0) return", "if (false) return"),
    (
        "dx: outputs of another index count",
        BACKWARD,
        "if (position_index<Problem>(a, entry, position + j) != index) continue;",
        "",
    ),
    (
        "dx: it is not written",
        BACKWARD,
        "write<X>(a.dx, entry, channel, t, input_gradient_behind_halo<Problem>(a, halo, entry, channel, t));",
        "",
    ),
    (
        "dx: the bias is left out of what is activated",
        BACKWARD,
        "float pre = read_bias<Problem>(a, channel);",
        "float pre = 0.0f;",
    ),
    ("dweight: what was there is not taken out", BACKWARD, "(with - without)", "with"),
    (
        "dweight: taps run the other way",
        BACKWARD,
        "(a.width - 1 - j) * a.dweight_strides.second",
        "j * a.dweight_strides.second",
    ),
    ("dweight: of the first row alone", BACKWARD, "entry < a.batch; ++entry", "entry < 1; ++entry"),
    (
        "the halo's gradient: one position off",
        BACKWARD,
        "(i64)place.position - (width - 1)",
        "(i64)place.position - (width - 1) - (place.position > 0)",
    ),
];

#[test]
fn faults_are_noticed() {
    let cuts = cuts(24);
    let survives = |&(fault, file, right, wrong): &(&str, &str, &str, &str)| {
        let text = text_of(file);
        let patches = text.match_indices(right);
        let patches: Vec<_> = patches.map(|(at, right)| patch(file, &text, at, right, wrong)).collect();
        if patches.is_empty() {
            return Some(format!("kernels/{file} does not have {right:?}: mend FAULTS"));
        }
        let simulator = Arc::new(Simulator::open("sim:32").unwrap().with_patches(patches));
        // The first that notices spares the others.
        cuts.iter().all(|cut| cut.compare(&simulator).is_ok()).then(|| format!("not noticed: {fault}"))
    };
    let survivors: Vec<_> = FAULTS.par_iter().filter_map(survives).collect();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

/// Another text at a byte of a file.
fn patch(file: &str, text: &str, at: usize, right: &str, wrong: &str) -> Patch {
    let before = &text[..at];
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    let [file, right, wrong] = [file, right, wrong].map(str::to_string);
    Patch { file, line, column: at - begin, right, wrong }
}

fn text_of(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").join(file);
    std::fs::read_to_string(path).expect("the kernel's file can be read")
}

/// Every edit of the two files that may be drawn, in the order of the seed.
fn mutants() -> Vec<Patch> {
    let mut patches = Vec::new();
    for file in [FORWARD, BACKWARD] {
        let text = text_of(file);
        let edits = cpp_edits::edits(&text).into_iter();
        patches
            .extend(edits.map(|edit| patch(file, &text, edit.bytes.start, &text[edit.bytes], &edit.wrong)));
    }
    Random::new(1).shuffle(&mut patches);
    patches
}

const NUMBER: &str = "CAUSEWAY_TEST_MUTANT";

#[test]
#[ignore = "run by mutants_are_noticed"]
fn one_mutant_survives() {
    let Ok(number) = std::env::var(NUMBER) else { return };
    let patch = mutants().swap_remove(number.parse().unwrap());
    let simulator = Arc::new(Simulator::open("sim:32").unwrap().with_workers(1).with_patches(vec![patch]));
    for cut in cuts(48) {
        cut.compare(&simulator).unwrap();
    }
}

/// Survivors are printed: a person has to say whether one of them changes anything.
#[test]
#[ignore = "takes minutes"]
fn mutants_are_noticed() {
    // What goes astray may bring its process down, or not end.
    let judge = |number: usize| {
        let mut child: Child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_mutant_survives", "--ignored", "--nocapture"])
            .env(NUMBER, number.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(300);
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let is_program = !String::from_utf8_lossy(&output.stderr).contains("it does not compile");
        (is_program, output.status.success())
    };
    let all = mutants();
    let judged: Vec<_> = (0..all.len()).into_par_iter().map(|number| (number, judge(number))).collect();
    let compiled: Vec<_> = judged.into_iter().filter(|(_, (is_program, _))| *is_program).collect();
    let survivors: Vec<_> = compiled.iter().filter(|(_, (_, survives))| *survives).collect();
    for (number, _) in &survivors {
        println!("{:?}", all[*number]);
    }
    println!(
        "{} of {} mutants noticed, {} do not compile",
        compiled.len() - survivors.len(),
        compiled.len(),
        all.len() - compiled.len()
    );
}
