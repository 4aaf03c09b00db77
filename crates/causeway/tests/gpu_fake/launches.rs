//! What the driver is told, and what is said of a device that is lost.

use causeway::Error;
use causeway::backend::gpu::choice::Choice;
use causeway::backend::gpu::plan::{Plan, Vendor};
use causeway::backend::gpu::{DeviceBuffer, Event, GpuDevice, Stream, Workspace};

use crate::control::{Control, fake, run, vendor};
use crate::gpu::{scale, total, total_with};
use crate::operations::SCRIPTS;

pub fn open() -> GpuDevice {
    GpuDevice::open(vendor(), 1).unwrap()
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
            (SCRIPTS[0].run)(device),
        ]
    };
    for result in results {
        assert!(matches!(result, Err(Error::DeviceLost { .. })), "{result:?}");
    }
}

#[test]
fn a_lost_device_is_said_to_be_lost() {
    run("launches::everything_is_lost", "cuda", fake(), &[]);
    run("launches::everything_is_lost", "hip", fake(), &[]);
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
        unsafe { device.launch(plan, stream.handle(), workspace) }.map(|()| control.last_argument())
    };
    let plan = scale(&input, &output, 2.0);
    assert_eq!(launch(&plan, None).unwrap(), plan.arguments[..]);

    let plan = total(&input, &output);
    let workspace = Workspace { address: 0x7000, bytes: plan.workspace_bytes };
    let argument = launch(&plan, Some(workspace)).unwrap();
    assert_eq!(argument[..16], plan.arguments[..16]);
    assert_eq!(argument[16..], 0x7000u64.to_ne_bytes());
    assert_eq!(plan.arguments[16..32], [0; 16], "the plan itself stays as it was");

    let mut clustered = plan.clone();
    clustered.choice = total_with("// in clusters");
    for (cluster, times) in [(8, 0), (16, u64::from(vendor() == Vendor::Nvidia))] {
        clustered.shared_bytes += 1024;
        clustered.cluster = cluster;
        launch(&clustered, Some(workspace)).unwrap();
        let asked = control.log().matches("attribute 14, value 1").count() as u64;
        assert_eq!(asked, times, "leave for clusters of more than 8 blocks is asked for");
    }

    let launches = control.accounts().get("launches");
    let crooked = Workspace { address: 0x7001, ..workspace };
    assert!(matches!(launch(&plan, Some(crooked)), Err(Error::WorkspaceTooSmall { .. })));
    let mut none = plan.clone();
    none.grid = [1, 0, 1];
    launch(&none, None).unwrap();
    let mut huge = plan.clone();
    huge.arguments = vec![0; 5000];
    assert!(matches!(launch(&huge, None), Err(Error::InvalidPlan { .. })));
    let mut other = plan.clone();
    other.choice = Choice::of_text("", "total", "// for another architecture");
    let error = launch(&other, None).unwrap_err();
    assert!(matches!(error, Error::InvalidImage { .. }) && error.to_string().contains("RTC"), "{error}");
    let mut nameless = plan.clone();
    nameless.choice = Choice::of_text("", "absent", plan.choice.source() + "// with another name");
    assert!(matches!(launch(&nameless, None), Err(Error::Driver { code: 500, .. })));
    assert_eq!(control.accounts().get("launches"), launches, "none of these was launched");

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
        run("launches::arguments_arrive", vendor, fake(), &[]);
        run("launches::arguments_arrive", vendor, fake(), &[("FAKE_GPU_NO_POOLS", "1")]);
    }
}
