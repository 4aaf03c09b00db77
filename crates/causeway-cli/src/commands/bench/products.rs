//! The products of a suite: their rows, in turns with the vendor's library.

use std::time::Duration;

use causeway::Device;
use causeway::backend::gpu::artifact::Artifacts;
use causeway::backend::gpu::vendor_blas::VendorBlas;
use causeway_verify::evidence::words::seconds;
use causeway_verify::evidence::{Benchmark, Measurement, Row};
use causeway_verify::suite::{Case, Gemm, MatrixLayout, Problem};

use super::gemm::{self, Product};
use super::{begin, results};
use crate::failure::Failure;
use crate::table::Table;
use crate::terminal;

/// The product of a case that can be compared with the library: dense rows, nothing empty.
pub(super) fn comparable(case: &Case) -> Option<&Gemm> {
    match &case.problem {
        Problem::Gemm(problem) => {
            let dense = [problem.layout, problem.output_layout] == [MatrixLayout::RowMajor; 2];
            (dense && ![problem.m, problem.n, problem.k].contains(&0)).then_some(problem)
        }
        _ => None,
    }
}

/// Measures the products `wanted` of `cases`, prints each row as it comes unless `quiet`, and adds it to the run. `rotation` is
/// the bytes that calls go through.
pub(super) fn measure(
    cases: &[Case],
    wanted: &[Product],
    device: &Device,
    budget: Duration,
    rotation: u64,
    quiet: bool,
    (run, kernels): (&mut Benchmark, &mut Artifacts),
) -> Result<(), Failure> {
    let Device::Gpu(stream) = device else {
        return Err(Failure::input(format!("products are not measured on {device}"))
            .with_help("bench compares them with cuBLASLt: use --device cuda"));
    };
    let blas = VendorBlas::open(stream.device())?;
    run.method.push(format!("products: in turns with {}, whose time stands for the floor", blas.name()));
    let table = (!quiet)
        .then(|| begin(run, &device.to_string(), cases, &[("TFLOP/s", 7), ("vendor", 9), ("× vendor", 8)]))
        .transpose()?;
    let progress = terminal::progress(cases.len() as u64 * wanted.len() as u64);
    for (case, problem) in cases.iter().filter_map(|case| Some((case, comparable(case)?))) {
        for &product in wanted {
            progress.set_message(format!("{} {}", case.name, product.name()));
            let (measurement, launches) =
                gemm::measure(&case.name, problem, product, stream, &blas, budget, rotation, kernels)?;
            if let Some(table) = &table {
                progress.suspend(|| print_product(table, case, problem, product, &measurement))?;
            }
            run.rows.push(Row {
                case: case.name.clone(),
                call: product.name().to_string(),
                shape: vec![problem.m, problem.n, problem.k],
                width: None,
                dtype: problem.dtype.to_string(),
                weight_dtype: None,
                layout: problem.layout.to_string(),
                activation: None,
                variant: Vec::new(),
                by_plain: None,
                operations: Some(product.operations(problem)),
                launches,
                measurement,
            });
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// The ratio is of speeds: above 1 is faster than the vendor's library.
fn print_product(
    table: &Table,
    case: &Case,
    problem: &Gemm,
    product: Product,
    found: &Measurement,
) -> Result<(), Failure> {
    table.row(&[
        case.name.as_str().into(),
        product.name().into(),
        seconds(found.time.median).into(),
        seconds(found.time.p20).into(),
        seconds(found.time.p80).into(),
        format!("{:.1}", product.operations(problem) / found.time.median * 1e-12).into(),
        seconds(found.floor.median).into(),
        format!("{:.3}", 1.0 / found.ratio).into(),
        format!("{:.1}%", found.noise * 100.0).into(),
        results(found),
    ])
}
