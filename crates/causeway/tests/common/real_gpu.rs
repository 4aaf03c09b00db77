//! What the tests on a real GPU share.

use causeway::Error;
use causeway::backend::gpu::plan::Vendor;
use causeway::backend::gpu::{DeviceBuffer, GpuDevice};

#[path = "required.rs"]
mod required;

/// The first device of any vendor, or None with a line on stderr. `CAUSEWAY_TEST_REQUIRE=cuda` (or `hip`) makes
/// its absence a failure.
pub fn device() -> Option<GpuDevice> {
    for (vendor, name) in [(Vendor::Nvidia, "cuda"), (Vendor::Amd, "hip")] {
        match GpuDevice::open(vendor, 0) {
            Ok(device) => return Some(device),
            Err(error @ (Error::LibraryMissing { .. } | Error::NoDevice { .. })) => {
                assert!(!required::is_required(name), "{name} is required here: {error}");
                eprintln!("skipped on {name}: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    None
}

/// Downloads a buffer as numbers.
pub fn download<T: causeway::Element>(buffer: &DeviceBuffer) -> Vec<T> {
    let mut values = vec![T::zeroed(); buffer.len() as usize / size_of::<T>()];
    buffer.download(bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}
