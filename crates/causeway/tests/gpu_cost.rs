//! What the driver layer costs on a real GPU: printed, and held to generous limits. Run it alone, in a release
//! build: `cargo test --release --test gpu_cost -- --test-threads=1 --nocapture`.

#[path = "common/gpu.rs"]
mod gpu;
#[path = "common/real_gpu.rs"]
mod real_gpu;

use std::time::{Duration, Instant};

use causeway::backend::gpu::{DeviceBuffer, GpuDevice, Stream, Workspace};

use gpu::{TOTAL_BLOCKS, bytes, scale, total};
use real_gpu::{device, download};

/// Median and smallest time of one call of `work`, over batches that each fit the driver's queue.
fn host_cost(stream: &Stream, mut work: impl FnMut()) -> (f64, f64) {
    const BATCH: u32 = 500;
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                work();
            }
            let time = start.elapsed();
            stream.synchronize().unwrap();
            time.as_secs_f64() * 1e6 / f64::from(BATCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

#[test]
fn launches_cost_microseconds() {
    let Some(device) = device() else { return };
    let stream = Stream::new(device).unwrap();
    let input = DeviceBuffer::from_host(&stream, bytes(&[1i32; 1024])).unwrap();
    let output = DeviceBuffer::new(&stream, input.len()).unwrap();
    let space = DeviceBuffer::new(&stream, u64::from(TOTAL_BLOCKS) * 4).unwrap();
    let workspace = Some(Workspace { address: space.address(), bytes: space.len() });
    let plain = scale(&input, &output, 1.0);
    let counted = total(&input, &output);
    let launch = |plan, workspace| {
        // SAFETY: the plans' addresses are live buffers, and one stream orders all launches.
        unsafe { device.launch(plan, stream.handle(), workspace) }.unwrap();
    };
    for (name, plan, workspace) in [
        ("plain", &plain, None),
        ("with counters, caller's workspace", &counted, workspace),
        ("with counters and workspace", &counted, None),
    ] {
        launch(plan, workspace);
        stream.synchronize().unwrap();
        let (median, least) = host_cost(&stream, || launch(plan, workspace));
        println!("host cost of a launch, {name}: {median:.2} µs median, {least:.2} µs least");
        assert!(least < 20.0, "{name}: {least} µs");
        stream.synchronize().unwrap();
        let expected = if plan.counters == 0 { 1 } else { 1024 };
        assert_eq!(download::<i32>(&output)[0], expected, "{name}");
    }
}

#[test]
fn the_first_call_is_quick() {
    let start = Instant::now();
    let Some(device): Option<GpuDevice> = device() else { return };
    let stream = Stream::new(device).unwrap();
    let input = DeviceBuffer::from_host(&stream, bytes(&[1i32; 1024])).unwrap();
    let output = DeviceBuffer::new(&stream, input.len()).unwrap();
    let opened = start.elapsed();
    let mut plan = total(&input, &output);
    // Not the program of the other test, which may have been loaded already.
    plan.instantiation.push_str("// first call\n");
    let start = Instant::now();
    // SAFETY: the plan's addresses are live buffers.
    unsafe { device.launch(&plan, stream.handle(), None) }.unwrap();
    let launched = start.elapsed();
    assert_eq!(download::<i32>(&output)[0], 1024);
    let report = device.prepare(&plan).unwrap();
    println!(
        "opening the device: {opened:.2?}; first call, {:?} by {}: {launched:.2?}",
        report.origin, report.compiler
    );
    assert!(launched < Duration::from_secs(10));
}
