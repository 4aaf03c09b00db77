//! Faults of the kernels that cuts have to notice.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_sim::{Patch, Simulator};
use rayon::prelude::*;

use crate::cpp_edits;
use crate::cuts;
use crate::random::Random;

const FORWARD: &str = "causal_conv1d_forward_halo.cuh";
const BACKWARD: &str = "causal_conv1d_backward_halo.cuh";
const INDICES: &str = "causal_conv1d.cuh";

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
        "offset_of(a.initial_strides, entry, channel, from + states)",
        "offset_of(a.initial_strides, entry, channel, from + states - 1 + (from + states == 0))",
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
        "write<X>(a.dx, entry, channel, t, input_gradient_after_halo<Problem>(a, halo, entry, channel, t));",
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
    ("y: one too many", FORWARD, "task < a.batch * a.dim * states", "task <= a.batch * a.dim * states"),
    (
        "y: what a grid has no threads for",
        FORWARD,
        "task += (i64)",
        "task += a.batch * a.dim * states + (i64)",
    ),
    ("dx: what a grid has no threads for", BACKWARD, "task += threads", "task += positions + sums"),
    (
        "an initial state's gradient: another index counts",
        BACKWARD,
        "reached ? gradient_at",
        "true ? gradient_at",
    ),
    (
        "an initial state's gradient: of the last position alone",
        BACKWARD,
        "int u = 0;",
        "int u = (int)place.position;",
    ),
    ("y: indices are taken to be dense", FORWARD, "position * a.seq_idx_strides.second", "position"),
    ("y: low bits of an index alone count", FORWARD, ": index_at(from);", ": index_at(from) & 0xff;"),
    (
        "y: weights are taken to be dense",
        FORWARD,
        "channel * a.weight_strides.first + w * a.weight_strides.second",
        "channel * a.width + w",
    ),
    ("y: biases are taken to be dense", FORWARD, "channel * a.bias_stride", "channel"),
    (
        "dweight: it is taken to be dense",
        BACKWARD,
        "channel * a.dweight_strides.first + (a.width - 1 - j) * a.dweight_strides.second",
        "channel * a.width + (a.width - 1 - j)",
    ),
    ("dbias: it is taken to be dense", BACKWARD, ": channel * a.dbias_stride", ": channel"),
    ("dweight: infinite terms are taken out of each other", BACKWARD, "if (with == without) continue;", ""),
    (
        "a halo's indices are taken to be dense",
        INDICES,
        "(width - 1 + position) * halo.strides.second",
        "(width - 1 + position)",
    ),
    (
        "the halo's gradient: one position off",
        BACKWARD,
        "(i64)place.position - (width - 1)",
        "(i64)place.position - (width - 1) - (place.position > 0)",
    ),
];

#[test]
fn faults_are_noticed() {
    let cuts = cuts(1, 48);
    let survives = |&(fault, file, right, wrong): &(&str, &str, &str, &str)| {
        let text = text_of(file);
        let patches = text.match_indices(right);
        let patches: Vec<_> =
            patches.map(|(at, right)| Patch::at(file, &text, at..at + right.len(), wrong)).collect();
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
        patches.extend(edits.map(|edit| Patch::at(file, &text, edit.bytes, &edit.wrong)));
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
    for cut in cuts(1, 48) {
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
            .args(["--exact", "faults::one_mutant_survives", "--ignored", "--nocapture"])
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
