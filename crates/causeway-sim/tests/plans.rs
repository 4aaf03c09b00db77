//! What the planners choose stays as it is until somebody means to change it: a digest of every launch of the suites, by
//! device and call. A launch that is another and as right may be slower, and no test of results would say so.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use causeway::DType;
use causeway_sim::Settings;
use causeway_verify::suite::{Suite, identity, plans};

/// One for each family of planners' tables, and the simulator's own.
const DEVICES: [&str; 14] = [
    "sim:32",
    "sim:64",
    "sim:slow",
    "sim:clusters",
    "sim:sm_75",
    "sim:sm_80",
    "sim:sm_89",
    "sim:sm_90a",
    "sim:sm_120",
    "sim:gfx90a",
    "sim:gfx942",
    "sim:gfx950",
    "sim:gfx1030",
    "sim:gfx1100",
];

const SUITES: [&str; 6] = ["sim", "full", "shapes", "gemm-shapes", "conv1d-first", "conv1d-last"];

/// By device and call: how many launches there are, and a digest of them all.
fn table() -> String {
    let cases = SUITES.iter().flat_map(|suite| Suite::open(suite).unwrap().cases);
    let cases: Vec<_> = cases.filter(|case| case.problem.dtype() != DType::F64).collect();
    let mut table = String::from("# device\tcall\tlaunches\tdigest\n");
    for device in DEVICES {
        let facts = Settings::parse(device).unwrap().expect("a simulator").facts;
        let mut calls: BTreeMap<&str, (usize, blake3::Hasher)> = BTreeMap::new();
        for case in &cases {
            // A case that is refused has no launch, which shows in the count.
            for (call, plan) in plans(case, &facts).unwrap_or_default() {
                let (launches, hasher) = calls.entry(call).or_default();
                *launches += 1;
                hasher.update(case.name.as_bytes()).update(&identity(call, &plan));
            }
        }
        for (call, (launches, hasher)) in calls {
            let digest = hasher.finalize().to_hex();
            writeln!(table, "{device}\t{call}\t{launches}\t{}", &digest[..16]).unwrap();
        }
    }
    table
}

#[test]
fn plans_are_those_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans.tsv");
    let now = table();
    if std::env::var_os("CAUSEWAY_UPDATE_PLANS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &now).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap();
    let other: Vec<_> = now.lines().filter(|line| !known.lines().any(|known| known == *line)).collect();
    assert!(
        now == known,
        "planners choose something else than tests/plans.tsv has, for:\n{}\nIf that is meant, and measured, write the table \
         again: CAUSEWAY_UPDATE_PLANS=1 cargo test -p causeway-sim --test plans",
        other.join("\n")
    );
}
