//! Every call of the driver and of the compiler fails once, with every status, in everything that is done on a device.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use causeway::backend::gpu::plan::Vendor;
use causeway::backend::gpu::{DeviceBuffer, GpuDevice, Stream};
use causeway::{Error, Result};

use crate::control::{Control, fake, run, vendor};
use crate::gpu::scale;
use crate::operations::{SCRIPTS, Script};

/// Invalid value, out of memory, not initialised, no device, no code for this GPU, illegal address, launch failed, and a
/// number that the driver has no words for. 6 is what the compilers call a text that they refuse.
const STATUSES: [i32; 9] = [1, 2, 3, 6, 100, 209, 700, 719, 9999];

/// Calls after which everything goes on. Answers that nothing depends on, ways that have another one beside them, and
/// ends of objects: an error there repeats an earlier one, and there is nobody to tell it to.
const SILENT: [&str; 17] = [
    "DeviceGetAttribute",
    "MemPoolCreate",
    "MemPoolSetAttribute",
    "RuntimeGetVersion",
    "GetProgramLogSize",
    "GetProgramLog",
    "DestroyProgram",
    "ThreadExchangeStreamCaptureMode",
    "GraphDestroy",
    "GraphExecDestroy",
    "EventDestroy",
    "StreamDestroy",
    "StreamSynchronize",
    "CtxPopCurrent",
    "MemFree",
    "MemFreeAsync",
    "FreeAsync",
];

/// Calls that make a device current. When they fail at the end of an object, it cannot be ended.
const ENTERS: [&str; 4] = ["cuCtxGetCurrent", "cuCtxPushCurrent", "hipGetDevice", "hipSetDevice"];

/// Called only after another failure, so that one failure is not enough to see them fail. The walk calls them.
const AFTER_A_FAILURE: [&str; 5] = [
    "cuDevicePrimaryCtxRelease_v2",
    "cuMemPoolDestroy",
    "hipMemPoolDestroy",
    "cuModuleUnload",
    "hipModuleUnload",
];

/// The name of a call without what tells its versions apart.
fn plain(call: &str) -> &str {
    call.strip_suffix("_v2").or_else(|| call.strip_suffix("R0600")).unwrap_or(call)
}

fn is_silent(call: &str) -> bool {
    let call = plain(call);
    let name = ["cu", "hiprtc", "hip", "nvrtc"].iter().find_map(|prefix| call.strip_prefix(prefix)).unwrap();
    SILENT.contains(&name) || ENTERS.contains(&call) || call == "hipFree" || call == "hipDeviceGetAttribute"
}

/// What is wrong with an error, if anything: its type has to be the right one, and it has to name the call.
fn fault_of(error: &Error, call: &str, status: i32) -> Option<String> {
    let compiler = call.contains("rtc");
    let right = match error {
        Error::DeviceLost { call: named, message } => {
            !compiler
                && [700, 719].contains(&status)
                && plain(named) == plain(call)
                && message.contains(&status.to_string())
        }
        Error::OutOfDeviceMemory { requested, free, .. } => {
            status == 2 && call.to_lowercase().contains("alloc") && *requested > 0 && *free > 0
        }
        Error::InvalidImage { message, .. } => {
            status == 209 && call.ends_with("ModuleLoadData") && message.contains("209")
        }
        Error::NoDevice { .. } => {
            status == 100
                && (call.ends_with("Init") || call.ends_with("GetCount") || call.ends_with("DeviceCount"))
        }
        Error::Compile { log, .. } => {
            status == 6 && call.ends_with("CompileProgram") && log.contains("made up by the test")
        }
        Error::Driver { call: named, code, message } => {
            let special = !compiler && [700, 719].contains(&status)
                || status == 2 && call.to_lowercase().contains("alloc")
                || status == 209 && call.ends_with("ModuleLoadData")
                || status == 6 && call.ends_with("CompileProgram");
            !special
                && *code == status
                && plain(named) == plain(call)
                && message.contains(&status.to_string())
        }
        _ => false,
    };
    (!right).then(|| format!("{error:?}"))
}

/// What was walked: points, and the calls that failed.
#[derive(Default)]
struct Walk {
    points: u64,
    calls: BTreeSet<String>,
}

impl Walk {
    fn point(&mut self, call: String) {
        self.points += 1;
        self.calls.insert(call);
    }

    /// Tells the process that started this one.
    fn print(&self) {
        println!("\nfault points: {}", self.points);
        self.calls.iter().for_each(|call| println!("failed: {call}"));
    }
}

/// Devices that nothing has been done on yet, one after the other.
struct Devices(u32);

impl Devices {
    /// The next one. Never HIP's current device, so that going back to that can be seen.
    fn open(&mut self) -> GpuDevice {
        self.0 += 1;
        GpuDevice::open(vendor(), self.0).unwrap()
    }
}

#[test]
#[ignore = "run by every_call_may_fail"]
fn opening_fails_at_each_call() {
    let (control, mut walk, mut devices) = (Control::new(), Walk::default(), Devices(0));
    // The driver is opened by the first device, and stays open: its calls are the first, and all statuses have to be
    // returned by them before one call succeeds.
    let driver = |call: &str| call.ends_with("Init") || call.ends_with("DriverGetVersion");
    let mut open = |control: &Control, after: u64, status: i32| {
        devices.0 += 1;
        let before = control.accounts();
        control.fail(after, status);
        let result = GpuDevice::open(vendor(), devices.0);
        let call = control.failed();
        let came = control.accounts();
        let what = format!("{call} (call {after}) fails with {status}: {result:?}\n{}", control.log());
        control.fail(0, 0);
        if call.is_empty() {
            assert!(result.is_ok(), "{what}");
            return None;
        }
        let came = came.since(&before);
        match &result {
            Ok(_) => assert!(is_silent(&call), "{what}"),
            Err(error) => {
                assert_eq!(fault_of(error, &call, status), None, "{what}");
                assert!(
                    came.iter().all(|(name, number)| *number == 0 || *name == "pending_error"),
                    "{what}: {came:?}"
                );
            }
        }
        assert_eq!(came["pending_error"], 0, "{what}");
        // A device is open all the same when its pool cannot be made; half a pool is none.
        assert!(came["pool"] == 0 || !call.contains("MemPool"), "{what}");
        if call == "hipSetDevice" {
            control.reset_device();
        } else {
            assert_eq!(came["current"], 0, "{what}");
        }
        Some(call)
    };
    let mut first = 1;
    loop {
        let calls: Vec<_> = STATUSES.iter().filter_map(|status| open(&control, first, *status)).collect();
        let opening = calls.iter().all(|call| driver(call));
        calls.into_iter().for_each(|call| walk.point(call));
        if !opening {
            break;
        }
        first += 1;
    }
    for status in STATUSES {
        for after in 2.. {
            match open(&control, after, status) {
                Some(call) => walk.point(call),
                None => break,
            }
        }
    }

    // So with the compiler, which the first kernel opens.
    let device = devices.open();
    let stream = Stream::new(device).unwrap();
    let buffer = DeviceBuffer::new(&stream, 16).unwrap();
    let plan = scale(&buffer, &buffer, 1.0);
    for status in STATUSES {
        control.fail(1, status);
        let error = device.prepare(&plan).unwrap_err();
        assert_eq!(fault_of(&error, &control.failed(), status), None, "{error:?}");
        walk.point(control.failed());
    }
    if vendor() == Vendor::Amd {
        // HIPRTC does not know its own version; the runtime beside it is asked again.
        control.fail(2, 1);
        device.prepare(&plan).unwrap();
        assert_eq!(
            (control.failed().as_str(), control.accounts().get("pending_error")),
            ("hipRuntimeGetVersion", 0)
        );
        walk.point(control.failed());
    }
    walk.print();
}

/// Runs a script on one fresh device after the other, with a failure in another place each time.
fn walk_script(control: &Control, script: &Script, devices: &mut Devices, walk: &mut Walk) {
    let device = devices.open();
    let before = control.accounts();
    (script.run)(device).unwrap_or_else(|error| panic!("{}: {error}", script.name));
    (script.run)(device).unwrap();
    let clean = control.accounts();
    let clean = clean.since(&before);
    for status in STATUSES {
        for number in 1.. {
            let device = devices.open();
            let before = control.accounts();
            control.fail(number, status);
            let result = catch_unwind(AssertUnwindSafe(|| (script.run)(device)));
            let (call, log, launches) = (control.failed(), control.log(), control.launches_since());
            let after = control.accounts();
            control.fail(0, 0);
            let what =
                format!("{}: {call} (call {number}) fails with {status}: {result:?}\n{log}", script.name);
            let result = result.unwrap_or_else(|_| panic!("a panic: {what}"));
            if call.is_empty() {
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
                break;
            }
            walk.point(call.clone());
            check(&result, &call, status, launches, &what);

            assert_eq!(after.get("pending_error"), 0, "{what}");
            if call == "hipSetDevice" {
                control.reset_device();
            } else {
                assert_eq!(after.get("current"), before.get("current"), "{what}");
            }
            let lost = i64::from(result.is_ok() && ENTERS.contains(&plain(&call)));
            for kind in ["event", "graph", "executable", "program", "recording"] {
                assert!(after.get(kind) - before.get(kind) <= lost, "{kind} is left: {what}");
            }

            // The next call works, and what there is then is what there would be without the failure.
            (script.run)(device).unwrap_or_else(|error| panic!("after {what}: {error}"));
            let end = control.accounts();
            for (kind, number) in end.since(&before) {
                let expected = clean[kind];
                let right = match kind {
                    "launches" => true,
                    "allocation" if script.records => number <= expected + lost,
                    _ => number == expected || lost == 1 && number <= expected + 2,
                };
                assert!(right, "{kind}: {number}, expected {expected}, after {what}");
            }
        }
    }
}

fn check(result: &Result<()>, call: &str, status: i32, launches: u64, what: &str) {
    match result {
        Ok(()) => assert!(is_silent(call), "{what}"),
        Err(error) => {
            assert_eq!(fault_of(error, call, status), None, "{what}");
            assert_eq!(launches, 0, "launched after a failure: {what}");
        }
    }
}

#[test]
#[ignore = "run by every_call_may_fail"]
fn work_fails_at_each_call() {
    let (control, mut walk, mut devices) = (Control::new(), Walk::default(), Devices(0));
    let chosen = std::env::var("CAUSEWAY_TEST_SCRIPTS").unwrap();
    for script in SCRIPTS.iter().filter(|script| chosen.split(' ').any(|name| name == script.name)) {
        walk_script(&control, script, &mut devices, &mut walk);
    }
    walk.print();
}

/// Every function that the fake has under a vendor's names, as its source says.
fn functions(vendor: &str) -> BTreeSet<String> {
    let prefixes: &[&str] = if vendor == "cuda" { &["cu", "nvrtc"] } else { &["hip"] };
    let own = if vendor == "cuda" {
        include_str!("../fake_gpu/cuda.rs")
    } else {
        include_str!("../fake_gpu/hip.rs")
    };
    let words = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_function = |word: &&str| {
        let rest = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix));
        let named = rest.is_some_and(|rest| {
            rest.starts_with(|c: char| c.is_ascii_uppercase()) || rest.starts_with("rtc")
        });
        // Words for errors: they answer, whatever they are asked.
        named && !word.contains("Error")
    };
    words(include_str!("../fake_gpu/api.rs"))
        .chain(words(own))
        .filter(is_function)
        .map(str::to_string)
        .collect()
}

#[test]
fn every_call_may_fail() {
    let all: Vec<_> = SCRIPTS.iter().map(|script| script.name).collect();
    let all = all.join(" ");
    let (mut points, many) = (0, ("FAKE_GPU_DEVICES", "100000"));
    for vendor in ["cuda", "hip"] {
        let without_pools =
            [("FAKE_GPU_NO_POOLS", "1"), many, ("CAUSEWAY_TEST_SCRIPTS", "backward benchmark")];
        let printed = [
            run("faults::opening_fails_at_each_call", vendor, fake(), &[many]),
            run("faults::work_fails_at_each_call", vendor, fake(), &[many, ("CAUSEWAY_TEST_SCRIPTS", &all)]),
            run("faults::work_fails_at_each_call", vendor, fake(), &without_pools),
        ]
        .concat();
        let after = |start: &'static str| printed.lines().filter_map(move |line| line.strip_prefix(start));
        points += after("fault points: ").map(|number| number.parse::<u64>().unwrap()).sum::<u64>();
        let failed: BTreeSet<_> = after("failed: ").map(str::to_string).collect();
        let never: Vec<_> = functions(vendor)
            .into_iter()
            .filter(|function| !failed.contains(function) && !AFTER_A_FAILURE.contains(&function.as_str()))
            .collect();
        assert!(never.is_empty(), "no script has these fail: {never:?}");
    }
    println!("{points} fault points walked");
    assert!(points > 5_000, "{points}");
}
