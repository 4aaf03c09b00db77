//! Kernels, compiled before they are needed and on all cores.
//!
//! NVRTC compiles on as many threads as call it. HIPRTC takes its turns, so there a pool of threads costs nothing and
//! gains what the cache and the host's part of the work allow.

use std::time::Instant;

use causeway::backend::gpu::GpuDevice;
use causeway::backend::gpu::builder::{Builder, Code};
use causeway::backend::gpu::cache::Origin;
use causeway::backend::gpu::compiler::Target;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway_verify::evidence::Preparation;
use causeway_verify::suite::{Case, distinct_plans};
use rayon::prelude::*;

use crate::failure::Failure;
use crate::terminal;

/// Compiles and loads every kernel that the cases launch on a device.
pub(crate) fn prepare<'a>(device: GpuDevice, cases: impl IntoIterator<Item = &'a Case>) -> Preparation {
    let start = Instant::now();
    let plans = distinct_plans(cases, device.facts());
    let reports = each(&plans, "compiling kernels", |plan| device.prepare(plan).map(|report| report.origin));
    let count = |wanted: fn(&causeway::Result<Origin>) -> bool| reports.iter().filter(|r| wanted(r)).count();
    Preparation {
        kernels: plans.len(),
        compiled: count(|report| matches!(report, Ok(Origin::Compiled))),
        failed: count(Result::is_err),
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Compiles every kernel that the cases launch on an architecture's reference device, into the cache.
pub(crate) fn compile(target: &Target, cases: &[Case]) -> Result<Vec<Code>, Failure> {
    let plans = distinct_plans(cases, &DeviceFacts::of_target(target));
    let codes = each(&plans, target.architecture(), |plan| Builder::global().compile_only(plan, target));
    Ok(codes.into_iter().collect::<causeway::Result<_>>()?)
}

/// Does the work for every plan, on all cores, with a progress bar.
fn each<T: Send>(plans: &[Plan], message: &str, work: impl Fn(&Plan) -> T + Sync) -> Vec<T> {
    let progress = terminal::progress(plans.len() as u64);
    progress.set_message(message.to_string());
    // One at a time per thread: some kernels take ten times as long as others.
    let results = plans
        .par_iter()
        .with_max_len(1)
        .map(|plan| {
            let result = work(plan);
            progress.inc(1);
            result
        })
        .collect();
    progress.finish_and_clear();
    results
}
