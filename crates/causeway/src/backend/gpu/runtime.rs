//! An open GPU: gets a plan's kernel and launches it.

mod check;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use super::argument::{Argument, Workspace, invalid};
use super::builder::Builder;
use super::cache::{CacheKey, Origin};
use super::choice::Choice;
use super::compiler::{Compiler, Program, Target};
use super::device::{self, DeviceReport};
use super::driver::{Context, Current, Driver, Launch};
use super::handle::StreamHandle;
use super::plan::{DeviceFacts, Plan, Vendor};
use super::scratch::Scratch;
use crate::error::{Error, Result};
use crate::tensor::Location;

/// Freed workspace that a device keeps for the next launch.
const POOL_KEEPS: u64 = 256 << 20;

/// An open device. A handle: copies are the same device, and it stays open until the process ends, as do the
/// kernels that it has loaded.
#[derive(Clone, Copy)]
pub struct GpuDevice(&'static Inner);

struct Inner {
    driver: &'static Driver,
    context: Context,
    report: DeviceReport,
    target: Target,
    kernels: RwLock<FxHashMap<Choice, &'static Kernel>>,
    scratch: Scratch,
    /// For stream-ordered allocation, where the device has it.
    pool: Option<usize>,
}

/// A kernel in the device's memory, where it stays until the process ends.
pub(super) struct Kernel {
    function: usize,
    /// Bytes of dynamic shared memory that the driver has been asked to allow.
    shared_allowed: AtomicU32,
    /// Held while it is asked: of two threads the one that asks for less must not be the last.
    allowing: Mutex<()>,
    origin: Origin,
    key: Option<CacheKey>,
    compiler: String,
    /// Of the program's whole text.
    source: blake3::Hash,
    /// Of the machine code.
    digest: blake3::Hash,
    bytes: u64,
    /// Set when the cache holds something else under the key and cannot be changed.
    in_no_file: AtomicBool,
}

/// What a loaded kernel takes of a multiprocessor, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// Compiled or read from disk.
    pub origin: Origin,
    /// Name of its cache entry.
    pub key: Option<CacheKey>,
    /// The compiler that made it.
    pub compiler: String,
    /// 32-bit registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's private memory; more than 0 usually means spilled registers.
    pub private_bytes: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks of the plan's size that one multiprocessor holds at a time.
    pub blocks_per_multiprocessor: u32,
}

impl GpuDevice {
    /// Opens device number `ordinal` of a vendor; a second call gives the same device.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`], [`Error::SymbolMissing`], [`Error::NoDevice`], [`Error::DeviceOrdinal`],
    /// [`Error::DeviceUnsupported`], or what the driver says.
    pub fn open(vendor: Vendor, ordinal: u32) -> Result<Self> {
        static OPEN: Mutex<Vec<GpuDevice>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |device: &&GpuDevice| device.facts().vendor == vendor && device.report().ordinal == ordinal;
        if let Some(device) = open.iter().find(same) {
            return Ok(*device);
        }
        let driver = Driver::get(vendor)?;
        let (handle, report) = device::describe(driver, ordinal)?;
        report.expect_supported()?;
        let context = driver.context(handle)?;
        let pool = match report.memory_pools {
            true => match driver.enter(context) {
                // A driver that has pools but refuses this one still has plain allocation.
                Ok(current) => current.create_pool(ordinal, POOL_KEEPS).ok(),
                Err(error) => {
                    driver.give_back(handle);
                    return Err(error);
                }
            },
            false => None,
        };
        let device = GpuDevice(Box::leak(Box::new(Inner {
            driver,
            context,
            target: Target::of(&report.facts),
            report,
            kernels: RwLock::default(),
            scratch: Scratch::default(),
            pool,
        })));
        open.push(device);
        Ok(device)
    }

    /// What planners use.
    pub fn facts(&self) -> &'static DeviceFacts {
        &self.0.report.facts
    }

    /// Everything that is known about the device.
    pub fn report(&self) -> &'static DeviceReport {
        &self.0.report
    }

    /// Where tensors have to be for this device.
    pub fn location(&self) -> Location {
        self.0.report.location()
    }

    /// The compiler of this device's kernels.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] or [`Error::SymbolMissing`].
    pub fn compiler(&self) -> Result<&'static Compiler> {
        Builder::global().compiler(self.facts().vendor, self.0.driver.compiler_major())
    }

    /// Bytes free and bytes in all.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?.memory()
    }

    /// Waits until a stream of anybody's has done everything.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel failed.
    ///
    /// # Safety
    /// `stream` must be live and of this device.
    pub unsafe fn synchronize(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enter()?.synchronize(stream.0) }
    }

    /// Puts a plan's kernel on a stream and returns without waiting for it.
    ///
    /// The kernel is compiled and loaded by the first call. Without a workspace of the caller's, one is allocated
    /// and freed in the order of the stream.
    ///
    /// # Errors
    /// Those of [`GpuDevice::prepare`]; [`Error::WorkspaceTooSmall`], [`Error::OutOfDeviceMemory`], or what the
    /// driver says. Nothing has been launched then. A kernel that fails later makes a later call return
    /// [`Error::DeviceLost`].
    ///
    /// # Safety
    /// The addresses in the plan's arguments, and the workspace, must be memory of this device of the sizes that
    /// the plan was made for, and stay so until the stream has come this far; `stream` must be live and of this
    /// device. No other work may use the workspace at the same time.
    pub unsafe fn launch(
        &self,
        plan: &Plan,
        stream: StreamHandle,
        workspace: Option<Workspace>,
    ) -> Result<()> {
        if plan.grid.contains(&0) {
            return Ok(());
        }
        let kernel = self.kernel(&plan.choice)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_kernel(plan, kernel, stream, workspace) }
    }

    /// As [`GpuDevice::launch`], with the plan's kernel.
    ///
    /// # Safety
    /// As for [`GpuDevice::launch`].
    pub(super) unsafe fn launch_kernel(
        &self,
        plan: &Plan,
        kernel: &Kernel,
        stream: StreamHandle,
        workspace: Option<Workspace>,
    ) -> Result<()> {
        let current = self.enter()?;
        if plan.shared_bytes > kernel.shared_allowed.load(Ordering::Relaxed) {
            self.allow_shared(&current, kernel, plan)?;
        }
        let launch = |argument: *const u8| Launch {
            function: kernel.function,
            grid: plan.grid,
            block: plan.block,
            shared_bytes: plan.shared_bytes,
            programmatic_launch: plan.programmatic_launch,
            stream: stream.0,
            argument,
        };
        if plan.workspace_bytes == 0 && plan.counters == 0 && plan.tensor_maps.is_empty() {
            // SAFETY: the caller's promise.
            return unsafe { current.launch(&launch(plan.arguments.as_ptr())) };
        }

        let mut argument = Argument::copy(plan)?;
        for (at, map) in &plan.tensor_maps {
            argument.write(plan, *at, &current.encode(map)?.0)?;
        }
        let workspace = match workspace {
            _ if plan.workspace_bytes == 0 => None,
            Some(given) => {
                given.check(plan)?;
                argument.patch(plan, &plan.workspace_at, given.address)?;
                None
            }
            None => {
                let address = self.allocate_workspace(&current, plan, stream)?;
                argument.patch(plan, &plan.workspace_at, address)?;
                Some(address)
            }
        };
        let launched = if plan.counters == 0 {
            // SAFETY: the caller's promise.
            unsafe { current.launch(&launch(argument.as_ptr())) }
        } else {
            let with_counters = |address| {
                argument.patch(plan, &plan.counters_at, address)?;
                // SAFETY: the caller's promise.
                unsafe { current.launch(&launch(argument.as_ptr())) }
            };
            // SAFETY: the stream is live by the caller's promise, and the launch goes on it.
            let done =
                unsafe { self.0.scratch.with_counters(&current, stream.0, plan.counters, with_counters) };
            done.and_then(|launched| {
                launched.ok_or_else(|| self.out_of_memory(&current, u64::from(plan.counters) * 4))
            })
        };
        if let Some(address) = workspace {
            // SAFETY: the launch was the workspace's only user, and the stream orders its end.
            let freed = unsafe { self.free(&current, address, stream) };
            return launched.and(freed);
        }
        launched
    }

    /// Compiles and loads a plan's kernel without launching it, and tells what it takes.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] without a compiler, [`Error::Compile`], [`Error::CompilerTooOld`],
    /// [`Error::InvalidImage`], or what the driver says.
    pub fn prepare(&self, plan: &Plan) -> Result<KernelReport> {
        let kernel = self.kernel(&plan.choice)?;
        let current = self.enter()?;
        if plan.shared_bytes > kernel.shared_allowed.load(Ordering::Relaxed) {
            self.allow_shared(&current, kernel, plan)?;
        }
        let threads = plan.block.iter().product();
        // SAFETY: the kernel's module stays loaded.
        unsafe {
            Ok(KernelReport {
                origin: kernel.origin,
                key: kernel.key,
                compiler: kernel.compiler.clone(),
                registers: current.function_attribute(kernel.function, 4)?,
                private_bytes: current.function_attribute(kernel.function, 3)?,
                shared_bytes: current.function_attribute(kernel.function, 1)?,
                blocks_per_multiprocessor: current.blocks_per_multiprocessor(
                    kernel.function,
                    threads,
                    plan.shared_bytes,
                )?,
            })
        }
    }

    /// The kernel of a choice, from memory if it is there. Allocates nothing then.
    pub(super) fn kernel(&self, choice: &Choice) -> Result<&'static Kernel> {
        let kernels = self.0.kernels.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(choice) {
            return Ok(kernel);
        }
        drop(kernels);
        self.load(choice)
    }

    #[cold]
    fn load(&self, choice: &Choice) -> Result<&'static Kernel> {
        let code =
            Builder::global().build(&Program::of(choice), &self.0.target, self.0.driver.compiler_major())?;
        let current = self.enter()?;
        // Kernels may be needed first while a stream is being recorded.
        let (module, function) = current.outside_capture(|| {
            let module = current.load_module(&code.image)?.map_err(|message| Error::InvalidImage {
                device: self.to_string(),
                architecture: self.facts().architecture.clone(),
                message,
                compiler: code.compiler.clone(),
            })?;
            // SAFETY: the module was just loaded; without the entry nobody will use it.
            let function = unsafe {
                current
                    .function(module, choice.entry())
                    .or_else(|error| current.unload_module(module).and(Err(error)))
            };
            Ok((module, function?))
        })?;

        let mut kernels = self.0.kernels.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been quicker; its kernel may be running, so it is the one to keep.
        if let Some(kernel) = kernels.get(choice) {
            // SAFETY: nobody has seen this module.
            current.outside_capture(|| unsafe { current.unload_module(module) })?;
            return Ok(kernel);
        }
        let kernel: &Kernel = Box::leak(Box::new(Kernel {
            function,
            shared_allowed: AtomicU32::new(0),
            allowing: Mutex::default(),
            origin: code.origin,
            key: code.key,
            compiler: code.compiler,
            source: code.source,
            digest: blake3::hash(&code.image),
            bytes: code.image.len() as u64,
            in_no_file: AtomicBool::new(false),
        }));
        kernels.insert(choice.clone(), kernel);
        Ok(kernel)
    }

    #[cold]
    fn allow_shared(&self, current: &Current<'_>, kernel: &Kernel, plan: &Plan) -> Result<()> {
        let most = self.facts().shared_per_block;
        if plan.shared_bytes > most {
            let because =
                format!("it asks for {} bytes of shared memory; a block can have {most}", plan.shared_bytes);
            return Err(invalid(plan, because));
        }
        let _asking = kernel.allowing.lock().unwrap_or_else(PoisonError::into_inner);
        if plan.shared_bytes > kernel.shared_allowed.load(Ordering::Relaxed) {
            // SAFETY: the kernel's module stays loaded.
            unsafe { current.allow_shared(kernel.function, plan.shared_bytes, plan.cluster) }?;
            kernel.shared_allowed.store(plan.shared_bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn allocate_workspace(&self, current: &Current<'_>, plan: &Plan, stream: StreamHandle) -> Result<u64> {
        // SAFETY: the stream is live by the promise of `launch`.
        if self.0.pool.is_none() && unsafe { current.recording(stream.0) }?.is_some() {
            return Err(Error::Unsupported {
                what: "recording a launch that needs a workspace".to_string(),
                device: self.to_string(),
                instead: "pass a workspace that lives as long as the graph",
            });
        }
        self.allocate(current, plan.workspace_bytes, stream)
    }

    /// Allocates memory in the order of a stream, or at once where the device cannot.
    pub(super) fn allocate(&self, current: &Current<'_>, bytes: u64, stream: StreamHandle) -> Result<u64> {
        let address = match self.0.pool {
            Some(pool) => current.allocate_from(pool, bytes, stream.0)?,
            None => current.allocate(bytes)?,
        };
        address.ok_or_else(|| self.out_of_memory(current, bytes))
    }

    /// Frees memory of [`GpuDevice::allocate`], after all that the stream holds.
    ///
    /// # Safety
    /// `address` must come from there, and nothing that is put on any stream later may use it.
    pub(super) unsafe fn free(
        &self,
        current: &Current<'_>,
        address: u64,
        stream: StreamHandle,
    ) -> Result<()> {
        match self.0.pool {
            // SAFETY: the caller's promise.
            Some(_) => unsafe { current.free_in_order(address, stream.0) },
            // SAFETY: the caller's promise; waits for the device.
            None => unsafe { current.free(address) },
        }
    }

    #[cold]
    fn out_of_memory(&self, current: &Current<'_>, requested: u64) -> Error {
        let free = current.memory().map(|(free, _)| free).unwrap_or(0);
        Error::OutOfDeviceMemory { device: self.to_string(), requested, free }
    }

    /// Makes the device current on this thread until the guard is dropped.
    #[inline]
    pub(super) fn enter(&self) -> Result<Current<'static>> {
        self.0.driver.enter(self.0.context)
    }

    pub(super) fn scratch(&self) -> &'static Scratch {
        &self.0.scratch
    }
}

impl fmt::Display for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.report, f)
    }
}

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuDevice({self})")
    }
}

impl PartialEq for GpuDevice {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for GpuDevice {}
