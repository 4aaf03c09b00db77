//! Kernels of every kind, run thread by thread against the oracle: one small case per group of rows of the
//! `full` suite and layout, in both wave sizes and in three orders of threads and blocks.

use std::sync::Arc;

use causeway::Device;
use causeway::suite::{Case, Suite, run_case};
use causeway_sim::{Order, Simulator};

/// Elements of x that a case may have here; larger ones take long and show nothing more.
const LARGEST: i64 = 30_000;

/// Groups whose rows make the kernels do something of their own.
const GROUPS: &[&str] = &[
    "dtypes",
    "weight",
    "dweight-f32",
    "no-bias",
    "wide-on-short",
    "seqlen",
    "empty",
    "layouts",
    "outputs",
    "residual",
    "states-on-short",
    "seq-idx-padding",
    "seq-idx-states",
    "seq-idx-garbage",
    "cu-seqlens-i64",
    "cu-seqlens-states",
    "cu-seqlens-and-seq-idx",
    "everything",
    "special",
    "update-tokens",
    "update-indices",
    "varlen-states",
];

fn chosen<'a>(suite: &'a Suite, device: &Device) -> Vec<&'a Case> {
    let small = |case: &&Case| {
        let sizes = case.problem.shape();
        let elements: i64 =
            sizes.iter().filter(|(name, _)| *name != "width").map(|(_, size)| (*size).max(1)).product();
        elements <= LARGEST && case.not_asked_of(device).unwrap().is_none()
    };
    let mut chosen = Vec::new();
    for group in GROUPS {
        for layout in ["channel-first", "channel-last"] {
            let prefix = format!("{group}-");
            let of_group = |case: &&Case| {
                case.name
                    .strip_prefix(&prefix)
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                    && case.problem.layout() == layout
            };
            chosen.extend(suite.cases.iter().filter(of_group).rfind(small));
        }
    }
    chosen
}

fn check(wave_size: u32) {
    let simulator = Simulator::new(wave_size).unwrap();
    let suite = Suite::open("full").unwrap();
    let mut ran = 0;
    for order in [Order::Ascending, Order::Descending, Order::Shuffled(1)] {
        let device = Device::Simulated(Arc::new(simulator.clone().with_order(order)));
        for case in chosen(&suite, &device) {
            let report = run_case(case, &device);
            let worst = report.worst_output();
            assert!(report.passed, "{} {order:?}: {:?}\n{worst:#?}", case.name, report.error);
            ran += 1;
        }
    }
    assert!(ran >= 3 * 30, "the suite's rows have other names now: only {ran} cases ran");
}

#[test]
fn waves_of_32_threads_match_the_oracle() {
    check(32);
}

#[test]
fn waves_of_64_threads_match_the_oracle() {
    check(64);
}
