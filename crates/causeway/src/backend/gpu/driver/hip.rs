//! What is HIP's alone: its names for attributes, its current device, its words for errors.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

use super::status::Status;
use super::table::Column;
use super::{Attributes, missing_symbol};
use crate::error::Result;

pub(super) const COLUMN: Column = Column { index: 1, fix: "update ROCm to 5.2 or later" };

/// `hipDeviceAttribute_t`. ROCm 5, 6 and 7 number these alike.
pub(super) const ATTRIBUTES: Attributes = Attributes {
    multiprocessors: 63,
    wave_size: 87,
    threads_per_multiprocessor: 57,
    registers_per_multiprocessor: 72,
    shared_per_multiprocessor: 10_002,
    shared_per_block: 74,
    l2_bytes: 19,
    clock: 5,
    memory_clock: 60,
    memory_bus: 59,
    memory_pools: 88,
    pci_domain: 69,
    pci_bus: 67,
    pci_device: 68,
};

/// Enough for any version of `hipDeviceProp_t`: 792 bytes in ROCm 5, 1,472 in ROCm 6 and 7.
const PROPERTIES_BYTES: usize = 16 * 1024;

/// Bytes of the device's name, which comes first in every version of `hipDeviceProp_t`.
const NAME_BYTES: usize = 256;

/// Functions without a counterpart of the same form in CUDA.
pub(super) struct Hip {
    device_get: unsafe extern "C" fn(*mut c_int) -> c_int,
    device_set: unsafe extern "C" fn(c_int) -> c_int,
    properties: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    last_error: unsafe extern "C" fn() -> c_int,
    error_name: unsafe extern "C" fn(c_int) -> *const c_char,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Hip {
    /// # Safety
    /// As for [`super::table::Table::load`].
    pub unsafe fn load(library: &Library, path: &str) -> Result<Self> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the fields of `Hip` have the signatures that HIP documents for these names.
                *unsafe { library.get($name.as_bytes()) }.map_err(|_| missing_symbol(path, $name, COLUMN))?
            };
        }
        // SAFETY: both names take a pointer to their version of the structure, and a device.
        let renamed = unsafe { library.get(b"hipGetDevicePropertiesR0600") };
        Ok(Hip {
            device_get: symbol!("hipGetDevice"),
            device_set: symbol!("hipSetDevice"),
            properties: match renamed {
                Ok(symbol) => *symbol,
                Err(_) => symbol!("hipGetDeviceProperties"),
            },
            last_error: symbol!("hipGetLastError"),
            error_name: symbol!("hipGetErrorName"),
            error_string: symbol!("hipGetErrorString"),
        })
    }

    /// `hipErrorInvalidValue (1): invalid argument`.
    pub fn describe(&self, status: Status) -> String {
        let text = |function: unsafe extern "C" fn(c_int) -> *const c_char| {
            // SAFETY: HIP returns the address of a constant string.
            unsafe {
                let text = function(status.0);
                if text.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            }
        };
        let (name, words) = (text(self.error_name), text(self.error_string));
        // ROCm 5 gives the name for both.
        if words == name {
            format!("{name} ({})", status.0)
        } else {
            format!("{name} ({}): {words}", status.0)
        }
    }

    /// Forgets the thread's last error, which HIP keeps: another library of this process that asks for its own
    /// must not find ours.
    pub fn forget_error(&self) {
        // SAFETY: takes nothing; the answer is the error that is being reported already.
        unsafe { (self.last_error)() };
    }

    /// The architecture with its features, `gfx90a:sramecc+:xnack-`.
    ///
    /// Only `hipDeviceProp_t` has it, whose layout changes between major versions. It is the only text in
    /// there, after the device's name, that begins with `gfx`; everything else is a number.
    pub fn architecture(&self, device: c_int) -> Result<String, (&'static str, Status)> {
        const CALL: &str = "hipGetDeviceProperties";
        let mut properties = vec![0u64; PROPERTIES_BYTES / 8];
        // SAFETY: the buffer is larger and at least as aligned as any version of the structure.
        let status = Status(unsafe { (self.properties)(properties.as_mut_ptr().cast(), device) });
        if status != Status::SUCCESS {
            return Err((CALL, status));
        }
        let bytes: &[u8] = bytemuck::cast_slice(&properties);
        find_architecture(&bytes[NAME_BYTES..]).ok_or((CALL, Status(1)))
    }

    /// Makes a device current if it is not. The device to go back to, if any.
    #[inline]
    pub fn enter(&self, device: c_int) -> Result<Option<c_int>, (&'static str, Status)> {
        let mut current = 0;
        // SAFETY: `current` is a place for the answer.
        let status = Status(unsafe { (self.device_get)(&mut current) });
        if status != Status::SUCCESS {
            return Err(("hipGetDevice", status));
        }
        if current == device {
            return Ok(None);
        }
        self.set(device)?;
        Ok(Some(current))
    }

    /// Goes back to the caller's device.
    pub fn leave(&self, device: c_int) {
        // The device was current a moment ago; an error here repeats an earlier one.
        if self.set(device).is_err() {
            self.forget_error();
        }
    }

    fn set(&self, device: c_int) -> Result<(), (&'static str, Status)> {
        // SAFETY: takes a number, which HIP checks.
        let status = Status(unsafe { (self.device_set)(device) });
        if status == Status::SUCCESS { Ok(()) } else { Err(("hipSetDevice", status)) }
    }
}

/// The zero-terminated text that begins with `gfx` and a digit.
fn find_architecture(bytes: &[u8]) -> Option<String> {
    let start = bytes.windows(4).position(|w| w.starts_with(b"gfx") && w[3].is_ascii_digit())?;
    let text = bytes[start..].split(|&byte| byte == 0).next()?;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b":+-_".contains(byte);
    if !text.iter().all(plain) {
        return None;
    }
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::find_architecture;

    #[test]
    fn the_architecture_is_found_wherever_the_structure_has_it() {
        let mut bytes = vec![0u8; 1200];
        bytes[901..923].copy_from_slice(b"gfx942:sramecc+:xnack-");
        assert_eq!(find_architecture(&bytes).as_deref(), Some("gfx942:sramecc+:xnack-"));
        assert_eq!(find_architecture(&bytes[902..]), None);
        bytes[904] = 0xff;
        assert_eq!(find_architecture(&bytes), None, "not a digit");
    }
}
