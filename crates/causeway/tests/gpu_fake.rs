//! The driver layer on a driver made of host memory, where every call can be made to fail: `fake_gpu/driver.rs`,
//! built here and put in the place of the vendors' libraries. Each scenario runs in a process of its own.

#[path = "common/gpu.rs"]
mod gpu;

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use causeway::backend::gpu::plan::{Plan, Vendor};
use causeway::backend::gpu::{DeviceBuffer, Event, GpuDevice, Stream, Workspace};
use causeway::{Error, Result};
use libloading::Library;

use gpu::{bytes, scale, total};

const VENDOR: &str = "CAUSEWAY_TEST_VENDOR";

/// Builds a library from Rust source and gives it the names of all that the real ones are called.
fn build(source: &str, directory: &Path) {
    let file = directory.join("driver.rs");
    std::fs::write(&file, source).unwrap();
    let library = directory.join("libcuda.so.1");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(compiler);
    command.args([
        "--edition",
        "2024",
        "--crate-type",
        "cdylib",
        "-C",
        "panic=abort",
        "-A",
        "nonstandard-style",
    ]);
    let built = command.arg("-o").arg(&library).arg(&file).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // One file under all names: the loader opens it once.
    for name in ["libamdhip64.so.6", "libnvrtc.so.13", "libhiprtc.so.6"] {
        std::fs::hard_link(&library, directory.join(name)).unwrap();
    }
}

/// The directory of the fake, built once.
fn fake() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        build(include_str!("fake_gpu/driver.rs"), directory.path());
        directory
    });
    directory.path()
}

/// Runs an ignored test of this file in a process that sees only the libraries of a directory.
fn run(scenario: &str, vendor: &str, directory: &Path, variables: &[(&str, &str)]) {
    let mut search = directory.as_os_str().to_os_string();
    search.push(":-");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", scenario, "--ignored", "--nocapture"])
        .env("CAUSEWAY_LIBRARY_PATH", search)
        .env("CAUSEWAY_CACHE", "off")
        .env(VENDOR, vendor)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{scenario} on {vendor}: {text}{}", String::from_utf8_lossy(&output.stderr));
}

fn vendor() -> Vendor {
    match std::env::var(VENDOR).unwrap().as_str() {
        "cuda" => Vendor::Nvidia,
        _ => Vendor::Amd,
    }
}

/// The fake's own functions.
struct Control(Library);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Accounts {
    calls: u64,
    live: u64,
    allocations: u64,
    recordings: u64,
    launches: u64,
    /// CUDA contexts on this thread's stack, or HIP's current device: 0 unless the caller chose otherwise.
    current: u64,
    pending_error: u64,
}

impl Control {
    fn new() -> Self {
        let directory = std::env::var_os("CAUSEWAY_LIBRARY_PATH").unwrap();
        let directory = std::env::split_paths(&directory).next().unwrap();
        // SAFETY: the fake has no initialisers.
        Control(unsafe { Library::new(directory.join("libcuda.so.1")) }.unwrap())
    }

    fn fail(&self, after: u64, code: i32) {
        // SAFETY: the fake's function has this signature; so below.
        unsafe { self.0.get::<extern "C" fn(u64, i32)>(b"fake_fail").unwrap()(after, code) }
    }

    fn lose(&self) {
        // SAFETY: as above.
        unsafe { self.0.get::<extern "C" fn()>(b"fake_lose").unwrap()() }
    }

    fn failed(&self) -> String {
        let mut name = [0; 64];
        // SAFETY: as above.
        let length = unsafe {
            self.0.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(b"fake_failed").unwrap()(
                name.as_mut_ptr(),
                64,
            )
        };
        String::from_utf8(name[..length].to_vec()).unwrap()
    }

    fn accounts(&self) -> Accounts {
        let mut a = [0; 7];
        // SAFETY: as above.
        unsafe { self.0.get::<unsafe extern "C" fn(*mut u64)>(b"fake_accounts").unwrap()(a.as_mut_ptr()) };
        let [calls, live, allocations, recordings, launches, current, pending_error] = a;
        Accounts { calls, live, allocations, recordings, launches, current, pending_error }
    }

    fn last_launch(&self) -> [u8; 24] {
        let mut argument = [0; 24];
        // SAFETY: as above; one launch has been made.
        unsafe {
            self.0.get::<unsafe extern "C" fn(*mut u8)>(b"fake_last_launch").unwrap()(argument.as_mut_ptr())
        };
        argument
    }

    /// Makes the first device HIP's current one again, after a failure to go back to it.
    fn reset_device(&self) {
        // SAFETY: as above.
        unsafe { self.0.get::<unsafe extern "C" fn(i32) -> i32>(b"hipSetDevice").unwrap()(0) };
    }
}

/// A plan that no earlier one's kernel serves.
fn fresh(mut plan: Plan) -> Plan {
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    let number = NUMBER.replace(NUMBER.get() + 1);
    plan.instantiation.push_str(&format!("// {number}\n"));
    plan
}

/// A bit of everything.
fn script(device: GpuDevice, record_workspace: bool) -> Result<()> {
    let stream = Stream::new(device)?;
    let input = DeviceBuffer::from_host(&stream, bytes(&[1i32, 2, 3, 4]))?;
    let mut output = DeviceBuffer::new(&stream, input.len())?;
    output.fill(0)?;
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    start.record(&stream)?;
    let plain = fresh(scale(&input, &output, 2.0));
    device.prepare(&plain)?;
    let counted = fresh(total(&input, &output));
    let space = DeviceBuffer::new(&stream, counted.workspace_bytes)?;
    // The fake's addresses are the host allocator's, aligned less than a device's.
    let workspace = Workspace { address: space.address() & !255, bytes: space.len() };
    // SAFETY: the plans' addresses are live buffers; the fake runs no kernels.
    unsafe {
        device.launch(&plain, stream.handle(), None)?;
        device.launch(&counted, stream.handle(), None)?;
        device.launch(&counted, stream.handle(), Some(workspace))?;
    }
    let recorded = fresh(total(&input, &output));
    let given = (!record_workspace).then_some(workspace);
    // SAFETY: as above.
    let graph = stream.record(|| unsafe { device.launch(&recorded, stream.handle(), given) })?;
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }?;
    end.record(&stream)?;
    stream.wait(&end)?;
    end.synchronize()?;
    end.milliseconds_since(&start)?;
    stream.is_idle()?;
    output.copy_from(&input)?;
    let mut host = [0; 16];
    output.download(&mut host)?;
    assert_eq!(host, bytes(&[1i32, 2, 3, 4]));
    device.memory()?;
    stream.synchronize()
}

/// Calls made while something is dropped or that have another way out: a failure may go unnoticed.
fn may_be_ignored(call: &str) -> bool {
    const WAYS_OUT: [&str; 13] = [
        "Free",
        "Destroy",
        "Synchronize",
        "CtxGetCurrent",
        "CtxPushCurrent",
        "CtxPopCurrent",
        "hipGetDevice",
        "hipSetDevice",
        "StreamGetId",
        "Exchange",
        "ProgramLog",
        "ModuleUnload",
        "EndCapture",
    ];
    WAYS_OUT.iter().any(|part| call.contains(part)) || call == "cuMemFree_v2"
}

fn open() -> GpuDevice {
    // Another device than HIP's current one, so that going back to that can be seen.
    let ordinal = if vendor() == Vendor::Amd { 1 } else { 0 };
    GpuDevice::open(vendor(), ordinal).unwrap()
}

#[test]
#[ignore = "run by every_call_may_fail"]
fn opening_fails_at_each_call() {
    let control = Control::new();
    let ordinal = if vendor() == Vendor::Amd { 1 } else { 0 };
    let mut failures = 0;
    for after in 1.. {
        control.fail(after, 999);
        match GpuDevice::open(vendor(), ordinal) {
            Err(error) => {
                assert!(matches!(error, Error::Driver { code: 999, .. }), "{}: {error}", control.failed())
            }
            Ok(_) if control.failed().is_empty() => break,
            // The one attribute that nothing depends on, or a pool that the driver refuses after all.
            Ok(_) => {}
        }
        failures += 1;
        assert!(failures < 100);
        assert_eq!(control.accounts().pending_error, 0, "{}", control.failed());
        control.reset_device();
    }
    assert!(failures > 5, "{failures}");
}

#[test]
#[ignore = "run by every_call_may_fail"]
fn work_fails_at_each_call() {
    let control = Control::new();
    let device = open();
    let pools = device.report().memory_pools;
    script(device, pools).unwrap();
    let before = control.accounts();
    script(device, pools).unwrap();
    let after = control.accounts();
    assert_eq!((after.live, after.recordings, after.current), (before.live, 0, 0));
    // A recording keeps its counters.
    assert_eq!(after.allocations, before.allocations + 1);

    for code in [2, 999, 700, 12345] {
        for number in 1..=after.calls - before.calls {
            let before = control.accounts();
            control.fail(number, code);
            let result = script(device, pools);
            let call = control.failed();
            let after = control.accounts();
            let what = format!("{call} (call {number}) fails with {code}: {result:?}");
            match &result {
                Ok(()) => assert!(may_be_ignored(&call), "{what}"),
                Err(Error::DeviceLost { call: named, message }) => {
                    assert!(code == 700 && call.starts_with(named) && message.contains("700"), "{what}");
                }
                Err(Error::OutOfDeviceMemory { requested, free, .. }) => {
                    assert!(code == 2 && call.contains("lloc") && *requested > 0 && *free > 0, "{what}");
                }
                Err(Error::Driver { call: named, code: found, message }) => {
                    assert!(*found == code && message.contains(&code.to_string()), "{what}");
                    assert!(call.starts_with(named) || call.contains("rtc"), "{what}");
                }
                Err(other) => panic!("{what}: {other}"),
            }
            assert_eq!(after.pending_error, 0, "{what}");
            assert!(after.recordings == before.recordings || call.contains("EndCapture"), "{what}");
            if call.contains("SetDevice") {
                control.reset_device();
            } else {
                assert_eq!(after.current, 0, "{what}");
            }
            if !may_be_ignored(&call) {
                assert_eq!(after.live, before.live, "{what}");
                assert!(after.allocations <= before.allocations + 1, "{what}");
            }
            control.fail(0, 0);
            script(device, pools).unwrap_or_else(|error| panic!("after {what}: {error}"));
        }
    }
}

#[test]
fn every_call_may_fail() {
    for vendor in ["cuda", "hip"] {
        run("opening_fails_at_each_call", vendor, fake(), &[]);
        run("work_fails_at_each_call", vendor, fake(), &[]);
        run("work_fails_at_each_call", vendor, fake(), &[("FAKE_GPU_NO_POOLS", "1")]);
    }
}

#[test]
#[ignore = "run by a_lost_device_is_said_to_be_lost"]
fn everything_is_lost() {
    let control = Control::new();
    let device = open();
    let stream = Stream::new(device).unwrap();
    let mut buffer = DeviceBuffer::from_host(&stream, &[1; 16]).unwrap();
    let event = Event::new(device).unwrap();
    let plan = scale(&buffer, &buffer, 1.0);
    let graph = stream.record(|| Ok(())).unwrap();
    control.lose();
    // SAFETY: the fake runs no kernels.
    let results = unsafe {
        [
            device.launch(&plan, stream.handle(), None),
            graph.launch(&stream),
            buffer.fill(1),
            buffer.upload(&[2; 16]),
            buffer.download(&mut [0; 16]),
            event.record(&stream),
            stream.synchronize(),
            script(device, false),
        ]
    };
    for result in results {
        assert!(matches!(result, Err(Error::DeviceLost { .. })), "{result:?}");
    }
}

#[test]
fn a_lost_device_is_said_to_be_lost() {
    run("everything_is_lost", "cuda", fake(), &[]);
    run("everything_is_lost", "hip", fake(), &[]);
}

#[test]
#[ignore = "run by launches_carry_what_the_plan_says"]
fn arguments_arrive() {
    let control = Control::new();
    let device = open();
    let expected = if vendor() == Vendor::Amd { ("gfx942:sramecc+:xnack-", 64) } else { ("sm_90a", 32) };
    assert_eq!((device.facts().architecture.as_str(), device.facts().wave_size), expected);
    let stream = Stream::new(device).unwrap();
    let input = DeviceBuffer::from_host(&stream, &[0; 4096]).unwrap();
    let output = DeviceBuffer::new(&stream, 4096).unwrap();
    let launch = |plan: &Plan, workspace| {
        // SAFETY: the fake runs no kernels.
        unsafe { device.launch(plan, stream.handle(), workspace) }.map(|()| control.last_launch())
    };
    let plan = scale(&input, &output, 2.0);
    assert_eq!(launch(&plan, None).unwrap(), plan.arguments[..]);

    let plan = total(&input, &output);
    let workspace = Workspace { address: 0x7000, bytes: plan.workspace_bytes };
    let argument = launch(&plan, Some(workspace)).unwrap();
    assert_eq!(argument[..16], plan.arguments[..16]);
    assert_eq!(argument[16..], 0x7000u64.to_ne_bytes());
    assert_eq!(plan.arguments[16..32], [0; 16], "the plan itself stays as it was");

    let launches = control.accounts().launches;
    let crooked = Workspace { address: 0x7001, ..workspace };
    assert!(matches!(launch(&plan, Some(crooked)), Err(Error::WorkspaceTooSmall { .. })));
    let mut none = plan.clone();
    none.grid = [1, 0, 1];
    launch(&none, None).unwrap();
    let mut huge = plan.clone();
    huge.arguments = vec![0; 5000];
    assert!(matches!(launch(&huge, None), Err(Error::InvalidPlan { .. })));
    let mut other = plan.clone();
    other.instantiation = "// for another architecture".to_string();
    let error = launch(&other, None).unwrap_err();
    assert!(matches!(error, Error::InvalidImage { .. }) && error.to_string().contains("RTC"), "{error}");
    let mut nameless = fresh(plan.clone());
    nameless.entry = "absent";
    assert!(matches!(launch(&nameless, None), Err(Error::Driver { code: 500, .. })));
    assert_eq!(control.accounts().launches, launches, "none of these was launched");

    if !device.report().memory_pools {
        // SAFETY: as above.
        let error = stream.record(|| unsafe { device.launch(&plan, stream.handle(), None) }).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        launch(&plan, None).unwrap();
    }
}

#[test]
fn launches_carry_what_the_plan_says() {
    for vendor in ["cuda", "hip"] {
        run("arguments_arrive", vendor, fake(), &[]);
        run("arguments_arrive", vendor, fake(), &[("FAKE_GPU_NO_POOLS", "1")]);
    }
}

#[test]
#[ignore = "run by libraries_that_are_absent_or_too_old_are_named"]
fn opening_says_what_is_missing() {
    let error = GpuDevice::open(vendor(), 0).unwrap_err();
    let text = error.to_string();
    match std::env::var("CAUSEWAY_TEST_EXPECT").unwrap().as_str() {
        "absent" => {
            assert!(matches!(error, Error::LibraryMissing { .. }), "{text}");
            let directory = std::env::var("CAUSEWAY_LIBRARY_PATH").unwrap();
            assert!(
                text.contains(directory.trim_end_matches(":-")) && text.contains("to install it"),
                "{text}"
            );
        }
        "old" => {
            let first = if vendor() == Vendor::Nvidia { "cuInit" } else { "hipDriverGetVersion" };
            assert!(matches!(&error, Error::SymbolMissing { symbol, .. } if *symbol == first), "{text}");
            assert!(text.contains("update"), "{text}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn libraries_that_are_absent_or_too_old_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let old = tempfile::tempdir().unwrap();
    build("#[unsafe(no_mangle)] extern \"C\" fn hipInit(_: u32) -> i32 { 0 }", old.path());
    for vendor in ["cuda", "hip"] {
        run("opening_says_what_is_missing", vendor, empty.path(), &[("CAUSEWAY_TEST_EXPECT", "absent")]);
        run("opening_says_what_is_missing", vendor, old.path(), &[("CAUSEWAY_TEST_EXPECT", "old")]);
    }
}

/// Flips a bit of the last byte of a file: of a cache entry that is code.
fn alter(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
#[ignore = "run by altered_code_does_not_run"]
fn altered_code_is_refused() {
    let device = open();
    let stream = Stream::new(device).unwrap();
    let input = DeviceBuffer::from_host(&stream, &[0; 4096]).unwrap();
    let output = DeviceBuffer::new(&stream, 4096).unwrap();
    let plan = scale(&input, &output, 2.0);
    let first = device.check(&plan).unwrap();
    if std::env::var("CAUSEWAY_CACHE").unwrap() == "readonly" {
        // The entry was altered before this process came, and stays so: the code is compiled, and in no file.
        assert!(first.compiled && first.file.is_none() && first.checks == 0, "{first:?}");
        assert_eq!(first.refused, ["its digest does not match"]);
        assert_eq!(device.check(&plan).unwrap().refused, [""; 0], "it is not compiled again and again");
        return;
    }
    assert!(first.compiled && first.checks == 1 && first.refused.is_empty(), "{first:?}");
    let file = first.file.clone().unwrap();
    assert!(file.contains(first.cache_key.as_ref().unwrap()));
    assert_eq!(device.check(&plan).unwrap(), first);

    alter(Path::new(&file));
    let mended = device.check(&plan).unwrap();
    assert_eq!(mended.refused, [format!("{file}: its digest does not match")]);
    assert_eq!(
        (mended.digest.as_str(), mended.file.as_deref()),
        (first.digest.as_str(), Some(file.as_str()))
    );
    assert_eq!(device.check(&plan).unwrap().refused, [""; 0], "the file is whole again");
    // SAFETY: the fake runs no kernels.
    unsafe { device.launch(&plan, stream.handle(), None) }.unwrap();

    // The entry of other code under the same name is whole, and not what is loaded.
    let other = device.check(&fresh(plan.clone())).unwrap();
    assert_ne!((&other.id, &other.digest), (&first.id, &first.digest));
    std::fs::remove_file(&file).unwrap();
    let gone = device.check(&plan).unwrap();
    assert!(gone.file.is_none() && gone.checks == 0 && gone.refused.is_empty(), "{gone:?}");
    std::fs::copy(other.file.unwrap(), &file).unwrap();
    let mended = device.check(&plan).unwrap();
    assert_eq!(mended.refused, [format!("{file}: it holds another key")]);
    alter(Path::new(&file));
}

#[test]
fn altered_code_does_not_run() {
    for vendor in ["cuda", "hip"] {
        let cache = tempfile::tempdir().unwrap();
        for mode in ["on", "readonly"] {
            let variables =
                [("CAUSEWAY_CACHE", mode), ("CAUSEWAY_CACHE_DIR", cache.path().to_str().unwrap())];
            run("altered_code_is_refused", vendor, fake(), &variables);
        }
    }
}
