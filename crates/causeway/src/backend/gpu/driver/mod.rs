//! The vendors' drivers: CUDA's driver API and HIP's runtime, opened at run time.
//!
//! [`Driver`] is the only place that calls them. Contexts are borrowed, never owned: a call makes the device's
//! primary context current if it is not, and puts the caller's back before it returns.

/// Calls a function of the table by field name and turns its status into a `Result`.
macro_rules! call {
    ($driver:ident . $name:ident ( $($argument:expr),* $(,)? )) => {{
        let (function, name) = $driver.table.$name;
        $driver.check(name, Status(function($($argument),*)))
    }};
}

/// As [`call!`], for a function that older drivers do not have.
macro_rules! call_optional {
    ($driver:ident . $name:ident ( $($argument:expr),* $(,)? )) => {
        match $driver.table.$name {
            Some((function, name)) => $driver.check(name, Status(function($($argument),*))),
            None => Err($driver.lacks(stringify!($name))),
        }
    };
}

mod cuda;
mod current;
mod hip;
mod status;
mod table;

use std::ffi::{c_char, c_int};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

use self::cuda::Cuda;
use self::hip::Hip;
use self::status::Status;
use self::table::{Column, Raw, Table};
use crate::backend::gpu::facts::Vendor;
use crate::backend::gpu::library::{self, Search};
use crate::error::{Error, Result};

/// Numbers of the device attributes that are read, which differ between vendors.
pub(crate) struct Attributes {
    pub multiprocessors: c_int,
    pub wave_size: c_int,
    pub threads_per_multiprocessor: c_int,
    pub registers_per_multiprocessor: c_int,
    pub shared_per_multiprocessor: c_int,
    pub shared_per_block: c_int,
    pub l2_bytes: c_int,
    pub clock: c_int,
    pub memory_clock: c_int,
    pub memory_bus: c_int,
    pub memory_pools: c_int,
    pub pci_domain: c_int,
    pub pci_bus: c_int,
    pub pci_device: c_int,
}

/// An open driver.
pub(crate) struct Driver {
    vendor: Vendor,
    table: Table,
    native: Native,
    path: String,
    /// 13000 is CUDA 13.0, 60443484 is HIP 6.4.
    version: i32,
    /// Keeps the pointers in `table` and `native` valid. Never closed: drivers do not survive it.
    _library: ManuallyDrop<Library>,
}

enum Native {
    Cuda(Cuda),
    Hip(Hip),
}

/// What a thread has to have current for calls on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    /// The address of a primary context.
    Cuda(usize),
    /// A device number.
    Hip(c_int),
}

/// A device's context, current on this thread until dropped.
pub(crate) struct Current<'a> {
    driver: &'a Driver,
    undo: Undo,
}

enum Undo {
    Nothing,
    Pop,
    Device(c_int),
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        match (&self.undo, &self.driver.native) {
            (Undo::Pop, Native::Cuda(cuda)) => cuda.leave(),
            (Undo::Device(device), Native::Hip(hip)) => hip.leave(*device),
            _ => {}
        }
    }
}

/// One launch, as the driver takes it.
pub(crate) struct Launch {
    pub function: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// A programmatic dependent launch: the kernel waits for the launch before it by itself.
    pub programmatic_launch: bool,
    pub stream: usize,
    /// Address of the kernel's one argument.
    pub argument: *const u8,
}

fn missing_symbol(path: &str, symbol: &'static str, column: Column) -> Error {
    Error::SymbolMissing { path: path.to_string(), symbol, fix: column.fix }
}

fn raw(handle: usize) -> Raw {
    ptr::without_provenance_mut(handle)
}

/// `cuda` or `hip`.
pub(crate) fn vendor_name(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Nvidia => "cuda",
        Vendor::Amd => "hip",
    }
}

impl Driver {
    /// The process's driver of a vendor, opened and initialised by the first call.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`], [`Error::SymbolMissing`], [`Error::NoDevice`] or [`Error::Driver`]. A
    /// failure is not remembered: the next call tries again.
    pub fn get(vendor: Vendor) -> Result<&'static Driver> {
        static DRIVERS: [OnceLock<Driver>; 2] = [const { OnceLock::new() }; 2];
        static OPENING: Mutex<()> = Mutex::new(());
        let slot = &DRIVERS[vendor as usize];
        if let Some(driver) = slot.get() {
            return Ok(driver);
        }
        let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = slot.get() {
            return Ok(driver);
        }
        let driver = Driver::open(vendor, &Search::from_environment())?;
        Ok(slot.get_or_init(|| driver))
    }

    /// Opens and initialises a driver from a chosen search.
    ///
    /// # Errors
    /// As for [`Driver::get`].
    pub fn open(vendor: Vendor, search: &Search) -> Result<Driver> {
        let (wanted, column) = match vendor {
            Vendor::Nvidia => (&library::CUDA_DRIVER, cuda::COLUMN),
            Vendor::Amd => (&library::HIP_RUNTIME, hip::COLUMN),
        };
        let opened = search.open(wanted, None, |_| Ok(()))?;
        let path = opened.path.display().to_string();
        // SAFETY: the library is the vendor's driver, and it moves into the `Driver` beside the tables.
        let table = unsafe { Table::load(&opened.library, &path, column) }?;
        let native = match vendor {
            // SAFETY: as above.
            Vendor::Nvidia => Native::Cuda(unsafe { Cuda::load(&opened.library, &path) }?),
            // SAFETY: as above.
            Vendor::Amd => Native::Hip(unsafe { Hip::load(&opened.library, &path) }?),
        };
        let mut driver =
            Driver { vendor, table, native, path, version: 0, _library: ManuallyDrop::new(opened.library) };
        let (init, _) = driver.table.init;
        // SAFETY: the flags must be zero.
        let status = Status(unsafe { init(0) });
        driver.check_init(status)?;
        let mut version = 0;
        // SAFETY: `version` is a place for the answer.
        unsafe { call!(driver.driver_version(&mut version)) }?;
        driver.version = version;
        Ok(driver)
    }

    fn check_init(&self, status: Status) -> Result<()> {
        match status {
            Status::SUCCESS => Ok(()),
            // HIP says "invalid device" where CUDA says "no device".
            Status::NO_DEVICE | Status::INVALID_DEVICE => {
                self.forget_error();
                Err(Error::NoDevice {
                    vendor: vendor_name(self.vendor),
                    because: format!("{} answered {}", self.table.init.1, self.describe(status)),
                })
            }
            _ => self.check(self.table.init.1, status),
        }
    }

    /// The library's file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whose driver it is.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The version of the interface, as people write it: `13.0`.
    pub fn version_text(&self) -> String {
        let (major, minor) = match self.vendor {
            Vendor::Nvidia => (self.version / 1_000, self.version % 1_000 / 10),
            Vendor::Amd => (self.version / 10_000_000, self.version / 100_000 % 100),
        };
        format!("{major}.{minor}")
    }

    /// The newest compiler whose code this driver surely loads.
    pub fn compiler_major(&self) -> Option<u32> {
        let unit = match self.vendor {
            Vendor::Nvidia => 1_000,
            Vendor::Amd => 10_000_000,
        };
        u32::try_from(self.version / unit).ok().filter(|major| *major > 0)
    }

    fn describe(&self, status: Status) -> String {
        match &self.native {
            Native::Cuda(cuda) => cuda.describe(status),
            Native::Hip(hip) => hip.describe(status),
        }
    }

    fn forget_error(&self) {
        if let Native::Hip(hip) = &self.native {
            hip.forget_error();
        }
    }

    #[inline]
    fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.error(call, status)) }
    }

    #[cold]
    fn error(&self, call: &'static str, status: Status) -> Error {
        self.forget_error();
        let message = self.describe(status);
        if status.is_device_lost() {
            return Error::DeviceLost { call, message };
        }
        Error::Driver { call, code: status.0, message }
    }

    #[cold]
    fn lacks(&self, symbol: &'static str) -> Error {
        let column = if self.vendor == Vendor::Nvidia { cuda::COLUMN } else { hip::COLUMN };
        missing_symbol(&self.path, symbol, column)
    }

    // ---- devices --------------------------------------------------------------------------------

    /// How many devices there are.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        let (function, name) = self.table.device_count;
        // SAFETY: `count` is a place for the answer.
        let status = Status(unsafe { function(&mut count) });
        if status == Status::NO_DEVICE {
            self.forget_error();
            return Ok(0);
        }
        self.check(name, status)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's handle of a device.
    pub fn device(&self, ordinal: u32) -> Result<c_int> {
        let available = self.device_count()?;
        if available == 0 {
            let because = "the driver is there but lists none".to_string();
            return Err(Error::NoDevice { vendor: vendor_name(self.vendor), because });
        }
        if ordinal >= available {
            return Err(Error::DeviceOrdinal { vendor: vendor_name(self.vendor), found: ordinal, available });
        }
        let mut device = 0;
        // SAFETY: `device` is a place for the answer; `ordinal` is below a count that is an `int`.
        unsafe { call!(self.device_get(&mut device, ordinal as c_int)) }?;
        Ok(device)
    }

    /// The device's marketing name.
    pub fn device_name(&self, device: c_int) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: the buffer has the length that is passed.
        unsafe { call!(self.device_name(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device)) }?;
        let text = name.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// The numbers of this vendor's attributes.
    pub fn attributes(&self) -> &'static Attributes {
        match self.vendor {
            Vendor::Nvidia => &cuda::ATTRIBUTES,
            Vendor::Amd => &hip::ATTRIBUTES,
        }
    }

    /// One attribute.
    pub fn attribute(&self, device: c_int, attribute: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: `value` is a place for the answer.
        unsafe { call!(self.device_attribute(&mut value, attribute, device)) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The architecture as the compiler names it.
    pub fn architecture(&self, device: c_int) -> Result<String> {
        match &self.native {
            Native::Cuda(_) => {
                let [major, minor] = cuda::CAPABILITY;
                let (major, minor) = (self.attribute(device, major)?, self.attribute(device, minor)?);
                Ok(cuda::architecture(major, minor))
            }
            Native::Hip(hip) => hip.architecture(device).map_err(|(call, status)| self.error(call, status)),
        }
    }

    /// Bytes of memory that the device has.
    pub fn total_memory(&self, device: c_int) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a place for the answer.
        unsafe { call!(self.device_total_memory(&mut bytes, device)) }?;
        Ok(bytes as u64)
    }

    /// The context that calls on this device need.
    pub fn context(&self, device: c_int) -> Result<Context> {
        match &self.native {
            Native::Cuda(cuda) => {
                let (context, call, status) = cuda.retain_primary(device);
                self.check(call, status)?;
                Ok(Context::Cuda(context as usize))
            }
            Native::Hip(_) => Ok(Context::Hip(device)),
        }
    }

    /// Gives a context back that nothing was made in.
    pub fn give_back(&self, device: c_int) {
        if let Native::Cuda(cuda) = &self.native {
            cuda.release_primary(device);
        }
    }

    /// Makes a context current on this thread until the guard is dropped.
    #[inline]
    pub fn enter(&self, context: Context) -> Result<Current<'_>> {
        let undo = match (&self.native, context) {
            (Native::Cuda(cuda), Context::Cuda(address)) => {
                cuda.enter(raw(address)).map(|pushed| if pushed { Undo::Pop } else { Undo::Nothing })
            }
            (Native::Hip(hip), Context::Hip(device)) => {
                hip.enter(device).map(|previous| previous.map_or(Undo::Nothing, Undo::Device))
            }
            // A context comes from the driver that it is used with.
            _ => unreachable!("a context of the other vendor"),
        };
        match undo {
            Ok(undo) => Ok(Current { driver: self, undo }),
            Err((call, status)) => Err(self.error(call, status)),
        }
    }
}
