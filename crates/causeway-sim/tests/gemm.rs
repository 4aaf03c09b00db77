//! The kernels of matrix products, run thread by thread in both wave sizes and in three orders of threads and blocks.

// The operands of the library's own tests; its devices are processors.
#[allow(dead_code)]
#[path = "../../causeway-verify/tests/gemm/support.rs"]
mod support;

use std::sync::Arc;

use causeway::backend::gpu::plan::Vendor;
use causeway::gemm::Algorithm;
use causeway::{DType, Device};
use causeway_sim::{Order, Settings, Simulator};
use causeway_verify::suite::{Problem, Suite, run_case};

use support::{DTYPES, Operands, special_operands};

const ORDERS: [Order; 3] = [Order::Ascending, Order::Descending, Order::Shuffled(3)];

/// Every wave size and order.
fn devices() -> Vec<Device> {
    let simulators = ["sim:32", "sim:64"].map(|name| Simulator::open(name).unwrap());
    let ordered = |simulator: &Simulator| {
        let simulator = simulator.clone();
        ORDERS.map(move |order| Device::Simulated(Arc::new(simulator.clone().with_order(order))))
    };
    simulators.iter().flat_map(ordered).collect()
}

#[test]
fn exact_gives_the_oracles_bits_for_special_values() {
    for device in devices() {
        for dtype in DTYPES {
            for operands in special_operands(dtype) {
                operands.check(&device, Algorithm::Exact);
            }
        }
    }
}

/// Tiles of every size, whole and cut, in both orders of the result: several of 128 × 128, of 64 × 64, of 32 × 32, one
/// output, and no terms at all.
#[test]
fn exact_gives_the_oracles_bits_for_any_size() {
    let sizes = [(257, 255, 33), (130, 129, 66), (33, 31, 127), (1, 1, 1), (5, 7, 0), (3, 200, 1)];
    for (i, device) in devices().into_iter().enumerate() {
        for (j, size) in sizes.into_iter().enumerate() {
            let mut operands = Operands::new(DTYPES[(i + j) % 2], size, 11 + j as u64);
            operands.column_major = (i + j) % 3 == 0;
            operands.check(&device, Algorithm::Exact);
        }
    }
}

/// One device per matrix unit: by default those of NVIDIA from sm_80 on and of gfx90a.
fn units() -> Vec<Device> {
    let named = |(vendor, name): (Vendor, &str)| {
        let waves = if name.starts_with("gfx9") { "sim:64" } else { "sim:32" };
        let mut settings = Settings::parse(waves).unwrap().unwrap();
        (settings.facts.vendor, settings.facts.architecture) = (vendor, name.to_string());
        Simulator::new(settings).unwrap()
    };
    let by_default = ["sim:32", "sim:64"].map(|name| Simulator::open(name).unwrap());
    let others = [
        (Vendor::Nvidia, "sm_75"),
        (Vendor::Amd, "gfx942"),
        (Vendor::Amd, "gfx1100"),
        (Vendor::Amd, "gfx1201"),
        (Vendor::Amd, "gfx1030"),
    ];
    let units = by_default.into_iter().chain(others.map(named));
    let ordered = |(i, unit): (usize, Simulator)| unit.with_order(ORDERS[i % ORDERS.len()]);
    units.enumerate().map(|unit| Device::Simulated(Arc::new(ordered(unit)))).collect()
}

/// Tiles of both sizes, whole and cut; a reduction in parts; one output; no terms.
#[test]
fn every_matrix_unit_is_within_the_bounds() {
    let sizes = [(257, 255, 70), (64, 128, 96), (20, 40, 520), (1, 1, 1), (5, 7, 0)];
    for (i, device) in units().into_iter().enumerate() {
        for (j, size) in sizes.into_iter().enumerate() {
            let mut operands = Operands::new(DTYPES[(i + j) % 2], size, 31 + j as u64);
            operands.column_major = (i + j) % 3 == 0;
            operands.check(&device, Algorithm::Fast);
        }
    }
}

/// Zeros, subnormal numbers, infinities, NaNs and numbers whose products are subnormal, f32 or not: alone, in any mixture,
/// and beside the zeros that fill up a step, which must not make NaNs of infinities.
#[test]
fn every_matrix_unit_takes_special_values() {
    for device in units() {
        for dtype in DTYPES {
            let [pairs, anything, subnormal] = special_operands(dtype);
            pairs.check(&device, Algorithm::Fast);
            subnormal.check(&device, Algorithm::Fast);
            // Products of any two bf16 may overflow f32. Beside an infinity of the other sign that gives NaN, where the
            // truth, in f64, is the infinity.
            if dtype == DType::F16 {
                anything.check(&device, Algorithm::Fast);
            }
        }
    }
}

/// Every access has its way into shared memory, along either axis: by 16, 8, 4 and 2 bytes.
#[test]
fn every_access_reaches_the_matrix_units() {
    for device in units().into_iter().take(2) {
        for (i, (n, k)) in [(72, 68), (68, 66), (66, 67), (67, 72)].into_iter().enumerate() {
            Operands::new(DTYPES[i % 2], (40, n, k), 51).check(&device, Algorithm::Fast);
        }
    }
}

/// The suite's rows that change the kernel: layouts of operands and results, values, empty and thin matrices. The
/// suite `sim`, which tests/simulator runs, has the smaller ones too.
#[test]
fn rows_of_the_suite_pass() {
    const LARGEST: i64 = 1 << 20;
    let suite = Suite::open("gemm").unwrap();
    let devices: Vec<Device> = devices().into_iter().step_by(4).collect();
    assert_eq!(devices.len(), 2, "one of each wave size");
    let mut ran = 0;
    for (i, case) in suite.cases.iter().enumerate() {
        let terms: i64 = case.problem.shape().iter().map(|(_, size)| (*size).max(1)).product();
        let Problem::Gemm(problem) = &case.problem else { continue };
        if problem.algorithm != Algorithm::Fast
            || terms > LARGEST
            || case.name.starts_with("square") && problem.dtype != DType::F16
        {
            continue;
        }
        let device = &devices[i % 2];
        let report = run_case(case, device);
        assert!(report.passed, "{} on {device}: {:?}\n{:#?}", case.name, report.error, report.worst_output());
        ran += 1;
    }
    assert!(ran > 30, "the suite's rows have other names now: only {ran} cases ran");
}
