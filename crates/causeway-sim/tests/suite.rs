//! The suite `sim`: what it holds of the suite `full`, and a few of its cases, in both wave sizes and in three orders
//! of threads and blocks. tests/simulator runs all of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::{DType, Device};
use causeway_sim::{Order, Settings, Simulator};
use causeway_verify::suite::{Case, Suite, plans, run_case};

fn cases(suite: &str) -> Vec<Case> {
    let mut cases = Suite::open(suite).unwrap().cases;
    // f64 has no kernels.
    cases.retain(|case| case.problem.dtype() != DType::F64);
    cases
}

/// Cases of `full` whose kernels small shapes do not get: only millions of elements fill a real device so. Smaller cases
/// run the same source with other tile sizes.
const TOO_LARGE: [&str; 4] = ["long-4x256x4096", "large-8x2048x1024", "filled-", "square-"];

/// Every kernel that a suite launches on a device, with a case that does.
fn variants(suite: &str, facts: &DeviceFacts) -> BTreeMap<(&'static str, String), String> {
    let mut variants = BTreeMap::new();
    for case in cases(suite) {
        for (call, plan) in plans(&case, facts).unwrap() {
            variants
                .entry((plan.header(), plan.choice.source()))
                .or_insert_with(|| format!("{} {call}", case.name));
        }
    }
    variants
}

#[test]
fn every_variant_that_full_launches_is_launched() {
    for devices in [["sim:32", "sim:sm_80"], ["sim:64", "sim:gfx942"]] {
        let facts = devices.map(|name| Settings::parse(name).unwrap().unwrap().facts);
        let mut launched = BTreeMap::new();
        facts.iter().for_each(|facts| launched.extend(variants("sim", facts)));
        for (device, facts) in devices.iter().zip(&facts) {
            let full = variants("full", facts);
            let missing: Vec<_> = full
                .iter()
                .filter(|(variant, case)| {
                    !launched.contains_key(*variant) && !TOO_LARGE.iter().any(|large| case.starts_with(large))
                })
                .collect();
            let executed = full.keys().filter(|variant| launched.contains_key(*variant)).count();
            println!("{device}: {executed} of {} variants", full.len());
            assert!(
                missing.is_empty(),
                "suites/sim.toml lacks a small shape with the kernels that these cases launch on {device}: {missing:#?}"
            );
        }
    }
}

/// One case per kind of kernel and of what is not plain about a call.
const CHOSEN: &[&str] = &[
    "layouts-2x40x129-channel-first-bf16-silu",
    "layouts-2x40x129-channel-last-f16-silu",
    "layouts-2x40x129-every-third-f32-silu",
    "seq-idx-garbage-2x40x129-channel-first-f32-silu",
    "seq-idx-garbage-2x40x129-channel-last-bf16-silu",
    "everything-1x40x300-w4-channel-first-bf16-silu",
    "everything-1x40x300-w4-channel-last-f32-silu",
    "update-indices-7x40x2-channel-last-ring-bf16-silu",
    "varlen-states-300x40-channel-last-f16",
];

fn check(wave_size: u32) {
    let suite = Suite::open("sim").unwrap();
    let simulator = Simulator::open(&format!("sim:{wave_size}")).unwrap();
    let of_name = |name: &&str| {
        suite.cases.iter().find(|case| case.name == *name).unwrap_or_else(|| panic!("no {name}"))
    };
    let chosen: Vec<_> = CHOSEN.iter().map(of_name).collect();
    for order in [Order::Ascending, Order::Descending, Order::Shuffled(1)] {
        let device = Device::Simulated(Arc::new(simulator.clone().with_order(order)));
        for case in &chosen {
            let report = run_case(case, &device);
            let worst = report.worst_output();
            assert!(report.passed, "{} {order:?}: {:?}\n{worst:#?}", case.name, report.error);
        }
    }
}

#[test]
fn waves_of_32_threads_match_the_oracle() {
    check(32);
}

#[test]
fn waves_of_64_threads_match_the_oracle() {
    check(64);
}

/// Long rows that begin and end inside packets, where the memory before the first of them is another's: shape, dtype, width and
/// activation. Waves walk them two tiles at a time where code takes no more registers than on sm_90, with an empty tile where a row has
/// an odd number: so this is that architecture, with few multiprocessors.
const RAGGED: [([i64; 3], &str, i64, &str); 4] = [
    ([2, 6, 12039], "bf16", 4, "silu"),
    ([5, 7, 4091], "f16", 3, "silu"),
    ([3, 9, 5123], "f32", 2, "none"),
    ([1, 80, 4100], "bf16", 4, "silu"),
];

#[test]
fn ragged_rows_are_walked_two_tiles_at_a_time() {
    let mut settings = Settings::parse("sim:sm_90a").unwrap().unwrap();
    settings.facts.multiprocessors = 4;
    let facts = settings.facts.clone();
    let device = Device::Simulated(Arc::new(Simulator::new(settings).unwrap()));
    let row = |(shape, dtype, width, activation)| {
        format!(
            "[[conv1d]]\nname = \"ragged\"\nlayout = \"channel-first\"\nbias = true\nshape = {shape:?}\n\
             dtype = \"{dtype}\"\nwidth = {width}\nactivation = \"{activation}\"\n\
             memory = {{ x = {{ offset = 1 }}, dy = {{ offset = 1 }}, dx = {{ offset = 1 }} }}\n"
        )
    };
    let text = format!("name = \"ragged\"\nabout = \"Ragged rows\"\n{}", RAGGED.map(row).concat());
    let mut padded = 0;
    for (case, (shape, dtype, ..)) in Suite::parse("ragged", &text).unwrap().cases.iter().zip(RAGGED) {
        let walks = |text: &str| text.contains("ragged = true") && text.contains("unroll = 2");
        let plans = plans(case, &facts).unwrap();
        let walk = plans.iter().map(|(_, plan)| plan.choice.source()).find(|text| walks(text));
        let walk = walk.unwrap_or_else(|| panic!("{} is walked in another way", case.name));
        // A row that begins at any element touches up to a packet more.
        let (packet, tile) = if dtype == "f32" { (4, 128) } else { (8, 256) };
        let is_odd = (shape[2] + packet - 1).div_euclid(tile) % 2 == 0;
        padded += usize::from(walk.contains("whole_rows = true") && is_odd);
        let report = run_case(case, &device);
        assert!(report.passed, "{}: {:?}\n{:#?}", case.name, report.error, report.worst_output());
    }
    assert!(padded > 0, "no row has an empty tile at its end");
}

#[test]
fn blocks_take_tiles_side_by_side() {
    let settings = Settings::parse("sim:slow").unwrap().unwrap();
    let mut cases = Suite::open("sim").unwrap().cases;
    cases.retain(|case| case.name.starts_with("tiles-last-"));
    take_tiles(&settings, &cases);
    // So many blocks share channels that teams of them add their sums first.
    let mut large = settings;
    large.facts.multiprocessors = 132;
    let text = "name = \"tiles\"\nabout = \"Tiles\"\n[[conv1d]]\nname = \"tiles\"\nlayout = \"channel-last\"\nbias = true\n\
                shape = [1, 120, 16100]\ndtype = \"bf16\"\nwidth = 4\nactivation = \"silu\"\n";
    take_tiles(&large, &Suite::parse("tiles", text).unwrap().cases);
}

#[test]
fn blocks_of_a_cluster_add_their_sums() {
    let mut cases = Suite::open("sim").unwrap().cases;
    cases.retain(|case| case.name.starts_with("clusters-"));
    for order in ["", ":descending", ":shuffled"] {
        let settings = Settings::parse(&format!("sim:clusters{order}")).unwrap().unwrap();
        take(&settings, &cases, "causal_conv1d_backward_channel_last", |plan| plan.cluster > 1);
    }
}

fn take_tiles(settings: &Settings, cases: &[Case]) {
    take(settings, cases, "causal_conv1d_backward_tiles_last", |_| true);
}

/// Every case is right, with such a launch of the kernel.
fn take(settings: &Settings, cases: &[Case], entry: &str, is_such: impl Fn(&Plan) -> bool) {
    assert!(!cases.is_empty());
    let device = Device::Simulated(Arc::new(Simulator::new(settings.clone()).unwrap()));
    for case in cases {
        let plans = plans(case, &settings.facts).unwrap();
        let found = plans.iter().any(|(_, plan)| plan.entry() == entry && is_such(plan));
        assert!(found, "{} has no such launch of {entry}: {plans:?}", case.name);
        let report = run_case(case, &device);
        assert!(report.passed, "{}: {:?}\n{:#?}", case.name, report.error, report.worst_output());
    }
}

#[test]
fn names_of_devices_are_read() {
    let settings = |name: &str| Settings::parse(name).unwrap().unwrap();
    assert!(Settings::parse("cpu").unwrap().is_none());
    assert_eq!((settings("sim:32").facts.wave_size, settings("sim:32").order), (32, Order::Ascending));
    assert_eq!(settings("sim:64:descending").order, Order::Descending);
    assert_eq!(settings("sim:gfx942:shuffled:9").order, Order::Shuffled(9));
    assert_eq!(
        (settings("sim:gfx942").facts.wave_size, settings("sim:sm_80").facts.multiprocessors),
        (64, 108)
    );
    // Products take the matrix unit that is emulated: not wgmma.
    assert_eq!(settings("sim:sm_90a").facts.architecture, "sm_90");
    for name in
        ["sim:32", "sim:slow", "sim:clusters", "sim:sm_90a", "sim:gfx90a:descending", "sim:64:shuffled:7"]
    {
        assert_eq!(settings(name).name(), name);
    }
    for wrong in
        ["sim", "sim:", "sim:33", "sim:32:sideways", "sim:32:shuffled:x", "sim:32:shuffled:1:2", "sim:sm_1"]
    {
        let error = Settings::parse(wrong).unwrap_err().to_string();
        assert!(
            error.contains(wrong)
                && error.contains("expected sim:32, sim:64, sim:slow, sim:clusters or an architecture"),
            "{error}"
        );
    }
}
