//! What the driver layer costs on a real GPU: printed, and held to generous limits. Run it alone, in a release
//! build: `cargo test --release --test gpu_cost -- --test-threads=1 --nocapture`.

#[path = "common/gpu.rs"]
mod gpu;
#[path = "common/real_gpu.rs"]
mod real_gpu;

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use causeway::backend::gpu::builder::Builder;
use causeway::backend::gpu::compiler::{Program, Target};
use causeway::backend::gpu::plan::{Plan, Vendor};
use causeway::backend::gpu::{DeviceBuffer, GpuDevice, Stream};

use libloading::Library;

use gpu::{TOTAL_BLOCKS, bytes, scale, total, total_with};
use real_gpu::{device, download};

/// Median and smallest time of one call of `work`, in µs, over many batches of calls, each of which fits the
/// driver's queue.
fn host_cost(stream: &Stream, batch: u32, work: &mut dyn FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..100_000 / batch)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..batch {
                work();
            }
            let time = start.elapsed();
            stream.synchronize().unwrap();
            time.as_secs_f64() * 1e6 / f64::from(batch)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

/// `cuLaunchKernel` of a plan's kernel with nothing around it: what no launch can be cheaper than.
fn bare_launch(device: GpuDevice, stream: &Stream, plan: &Plan) -> impl FnMut() + use<> {
    type Raw = *mut c_void;
    type Launch = unsafe extern "C" fn(
        Raw,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        usize,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> i32;
    let code =
        Builder::global().build(&Program::of(&plan.choice), &Target::of(device.facts()), None).unwrap();
    // SAFETY: the library is CUDA's driver, which this process has open; the signatures are the documented ones;
    // the driver, the context and the module live as long as the process.
    let (function, launch) = unsafe {
        let library = Box::leak(Box::new(Library::new(&device.report().driver_library).unwrap()));
        let (mut context, mut module, mut function) = (null_mut(), null_mut(), null_mut());
        let retain =
            library.get::<unsafe extern "C" fn(*mut Raw, i32) -> i32>(b"cuDevicePrimaryCtxRetain").unwrap();
        assert_eq!(retain(&mut context, device.report().ordinal as i32), 0);
        assert_eq!(library.get::<unsafe extern "C" fn(Raw) -> i32>(b"cuCtxSetCurrent").unwrap()(context), 0);
        let load =
            library.get::<unsafe extern "C" fn(*mut Raw, *const u8) -> i32>(b"cuModuleLoadData").unwrap();
        assert_eq!(load(&mut module, code.image.as_ptr()), 0);
        let find = library
            .get::<unsafe extern "C" fn(*mut Raw, Raw, *const c_char) -> i32>(b"cuModuleGetFunction")
            .unwrap();
        let name = CString::new(plan.entry()).unwrap();
        assert_eq!(find(&mut function, module, name.as_ptr()), 0);
        (function, *library.get::<Launch>(b"cuLaunchKernel").unwrap())
    };
    let (stream, plan) = (stream.handle().address(), plan.clone());
    move || {
        let ([gx, gy, gz], [bx, by, bz]) = (plan.grid, plan.block);
        let mut arguments = [plan.arguments.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: as above; the plan's buffers outlive the measurement.
        let status = unsafe {
            launch(function, gx, gy, gz, bx, by, bz, 0, stream, arguments.as_mut_ptr(), null_mut())
        };
        assert_eq!(status, 0);
    }
}

/// Measures with a short and with a long queue, and prints. The result is the long queue's.
fn report(stream: &Stream, name: &str, work: &mut dyn FnMut()) -> (f64, f64) {
    let short = host_cost(stream, 20, work);
    let long = host_cost(stream, 500, work);
    println!(
        "host cost of a launch, {name}: {:.2} µs median, {:.2} µs least in batches of 20; {:.2} and {:.2} of 500",
        short.0, short.1, long.0, long.1
    );
    long
}

#[test]
fn launches_cost_microseconds() {
    let Some(device) = device() else { return };
    let stream = Stream::new(device).unwrap();
    let input = DeviceBuffer::from_host(&stream, bytes(&[1i32; 1024])).unwrap();
    let output = DeviceBuffer::new(&stream, input.len()).unwrap();
    let space = DeviceBuffer::new(&stream, u64::from(TOTAL_BLOCKS) * 4).unwrap();
    let workspace = Some(space.as_workspace());
    let plain = scale(&input, &output, 1.0);
    let counted = total(&input, &output);
    let launch = |plan, workspace| {
        // SAFETY: the plans' addresses are live buffers, and one stream orders all launches.
        unsafe { device.launch(plan, stream.handle(), workspace) }.unwrap();
    };
    if device.facts().vendor == Vendor::Nvidia {
        report(&stream, "cuLaunchKernel alone", &mut bare_launch(device, &stream, &plain));
    }
    for (name, plan, workspace) in [
        ("plain", &plain, None),
        ("with counters, caller's workspace", &counted, workspace),
        ("with counters and workspace", &counted, None),
    ] {
        launch(plan, workspace);
        stream.synchronize().unwrap();
        let (median, least) = report(&stream, name, &mut || launch(plan, workspace));
        assert!(least < 20.0 && median < 100.0, "{name}: {least} µs at least, {median} µs median");
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
    plan.choice = total_with("// first call\n");
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
