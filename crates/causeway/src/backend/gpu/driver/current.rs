//! Calls that need a current context. They are methods of the guard, so that none can be made without it.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr;

use super::cuda::EncodedMap;
use super::status::Status;
use super::table::{PoolProperties, Raw};
use super::{Current, Launch, Native, raw};
use crate::backend::gpu::plan::TensorMap;
use crate::error::{Error, Result};

impl Current<'_> {
    /// Bytes free and bytes in all.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let driver = self.driver;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are places for the answers.
        unsafe { call!(driver.memory_info(&mut free, &mut total)) }?;
        Ok((free as u64, total as u64))
    }

    // ---- memory ---------------------------------------------------------------------------------

    /// Allocates memory; may wait for the device. None when there is not enough.
    pub fn allocate(&self, bytes: u64) -> Result<Option<u64>> {
        let driver = self.driver;
        let mut address = 0;
        // SAFETY: `address` is a place for the answer.
        allocation(unsafe { call!(driver.allocate(&mut address, bytes as usize)) }, address)
    }

    /// Frees memory of [`Current::allocate`], once the device has done all earlier work.
    ///
    /// # Safety
    /// `address` must come from there and be used by nobody any more.
    pub unsafe fn free(&self, address: u64) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.free(address)) }
    }

    /// A pool for stream-ordered allocation that keeps up to `keep` bytes for reuse.
    pub fn create_pool(&self, ordinal: u32, keep: u64) -> Result<usize> {
        const RELEASE_THRESHOLD: c_int = 4;
        let driver = self.driver;
        let properties = PoolProperties {
            allocation_type: 1,
            handle_types: 0,
            location_type: 1,
            location_ordinal: ordinal as c_int,
            reserved: [0; 9],
        };
        let mut pool: Raw = ptr::null_mut();
        let mut keep = keep;
        // SAFETY: `pool` is a place for the answer; the attribute is a 64-bit number; nobody has seen the pool.
        unsafe {
            call_optional!(driver.pool_create(&mut pool, &properties))?;
            call_optional!(driver.pool_set(pool, RELEASE_THRESHOLD, (&raw mut keep).cast()))
                .or_else(|error| call_optional!(driver.pool_destroy(pool)).and(Err(error)))?;
        }
        Ok(pool as usize)
    }

    /// Allocates from a pool, in the order of a stream. None when there is not enough.
    pub fn allocate_from(&self, pool: usize, bytes: u64, stream: usize) -> Result<Option<u64>> {
        let driver = self.driver;
        let mut address = 0;
        // SAFETY: `address` is a place for the answer; pools live as long as the process.
        let result = unsafe {
            call_optional!(driver.pool_allocate(&mut address, bytes as usize, raw(pool), raw(stream)))
        };
        allocation(result, address)
    }

    /// Frees memory of [`Current::allocate_from`] once the stream has come this far.
    ///
    /// # Safety
    /// As for [`Current::free`]; `stream` must be live.
    pub unsafe fn free_in_order(&self, address: u64, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call_optional!(driver.pool_free(address, raw(stream))) }
    }

    /// Copies to the device, in the order of a stream.
    ///
    /// # Safety
    /// `to` must be device memory of at least the slice's length, used by nobody else; the slice must stay
    /// until the stream has come this far.
    pub unsafe fn copy_to_device(&self, to: u64, from: &[u8], stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.copy_to_device(to, from.as_ptr().cast(), from.len(), raw(stream))) }
    }

    /// Copies to the host, in the order of a stream.
    ///
    /// # Safety
    /// As for [`Current::copy_to_device`], the other way round.
    pub unsafe fn copy_to_host(&self, to: &mut [u8], from: u64, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.copy_to_host(to.as_mut_ptr().cast(), from, to.len(), raw(stream))) }
    }

    /// Copies within the device, in the order of a stream.
    ///
    /// # Safety
    /// Both must be device memory of at least `bytes` that do not overlap.
    pub unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: u64, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.copy_on_device(to, from, bytes as usize, raw(stream))) }
    }

    /// Sets every byte, in the order of a stream.
    ///
    /// # Safety
    /// `to` must be device memory of at least `bytes`.
    pub unsafe fn fill(&self, to: u64, value: u8, bytes: u64, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.fill_bytes(to, value, bytes as usize, raw(stream))) }
    }

    // ---- streams and events ---------------------------------------------------------------------

    /// A stream that does not wait for the legacy default stream.
    pub fn create_stream(&self) -> Result<usize> {
        const NON_BLOCKING: c_uint = 1;
        let driver = self.driver;
        let mut stream: Raw = ptr::null_mut();
        // SAFETY: `stream` is a place for the answer.
        unsafe { call!(driver.stream_create(&mut stream, NON_BLOCKING)) }?;
        Ok(stream as usize)
    }

    /// Destroys a stream; work that it holds is still done.
    ///
    /// # Safety
    /// `stream` must come from [`Current::create_stream`] and be used by nobody any more.
    pub unsafe fn destroy_stream(&self, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.stream_destroy(raw(stream))) }
    }

    /// Waits until a stream has done everything.
    ///
    /// # Safety
    /// `stream` must be live; so for every function below that takes one.
    pub unsafe fn synchronize(&self, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.stream_synchronize(raw(stream))) }
    }

    /// True if a stream has done everything.
    ///
    /// # Safety
    /// As for [`Current::synchronize`].
    pub unsafe fn is_idle(&self, stream: usize) -> Result<bool> {
        let driver = self.driver;
        let (function, name) = driver.table.stream_query;
        // SAFETY: the caller's promise.
        match Status(unsafe { function(raw(stream)) }) {
            Status::NOT_READY => {
                driver.forget_error();
                Ok(false)
            }
            status => driver.check(name, status).map(|()| true),
        }
    }

    /// A number for a stream that no other stream of this process ever has, where the driver keeps one; else
    /// its handle, which a later stream may get again.
    ///
    /// A driver that keeps them and does not answer is an error: two numbers for one stream would be two sets of
    /// counters.
    ///
    /// # Safety
    /// As for [`Current::synchronize`]. On a stream that is being recorded, asking breaks the recording.
    #[inline]
    pub unsafe fn stream_id(&self, stream: usize) -> Result<u64> {
        let driver = self.driver;
        let mut id = stream as u64;
        if let Some((function, name)) = driver.table.stream_id {
            // SAFETY: the caller's promise; `id` is a place for the answer.
            driver.check(name, Status(unsafe { function(raw(stream), &mut id) }))?;
        }
        Ok(id)
    }

    /// Makes a stream wait for an event.
    ///
    /// # Safety
    /// As for [`Current::synchronize`]; `event` must be live.
    pub unsafe fn wait_event(&self, stream: usize, event: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.stream_wait_event(raw(stream), raw(event), 0)) }
    }

    /// An event that keeps time.
    pub fn create_event(&self) -> Result<usize> {
        let driver = self.driver;
        let mut event: Raw = ptr::null_mut();
        // SAFETY: `event` is a place for the answer.
        unsafe { call!(driver.event_create(&mut event, 0)) }?;
        Ok(event as usize)
    }

    /// Destroys an event.
    ///
    /// # Safety
    /// `event` must come from [`Current::create_event`] and be used by nobody any more.
    pub unsafe fn destroy_event(&self, event: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.event_destroy(raw(event))) }
    }

    /// Puts an event after what a stream holds.
    ///
    /// # Safety
    /// Both must be live.
    pub unsafe fn record_event(&self, event: usize, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.event_record(raw(event), raw(stream))) }
    }

    /// Waits for an event.
    ///
    /// # Safety
    /// `event` must be live.
    pub unsafe fn synchronize_event(&self, event: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.event_synchronize(raw(event))) }
    }

    /// Milliseconds between two events that have happened.
    ///
    /// # Safety
    /// Both must be live.
    pub unsafe fn elapsed(&self, start: usize, end: usize) -> Result<f32> {
        let driver = self.driver;
        let mut milliseconds = 0.0;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.event_elapsed(&mut milliseconds, raw(start), raw(end))) }?;
        Ok(milliseconds)
    }

    // ---- code -----------------------------------------------------------------------------------

    /// Loads compiled code; None if it is not for this device, with the driver's words.
    pub fn load_module(&self, image: &[u8]) -> Result<Result<usize, String>> {
        let driver = self.driver;
        let (function, name) = driver.table.module_load;
        let mut module: Raw = ptr::null_mut();
        // SAFETY: the image is whole: it was just compiled, or its digest was just checked. The driver reads
        // its length from its own header.
        let status = Status(unsafe { function(&mut module, image.as_ptr().cast::<c_void>()) });
        if status.is_invalid_image() {
            driver.forget_error();
            return Ok(Err(driver.describe(status)));
        }
        driver.check(name, status)?;
        Ok(Ok(module as usize))
    }

    /// Unloads a module.
    ///
    /// # Safety
    /// None of its functions may be running or be launched again.
    pub unsafe fn unload_module(&self, module: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.module_unload(raw(module))) }
    }

    /// A function of a module.
    ///
    /// # Safety
    /// `module` must be loaded.
    pub unsafe fn function(&self, module: usize, name: &str) -> Result<usize> {
        let driver = self.driver;
        // Entry points are identifiers; a name with a zero in it is one that no module has.
        let name = CString::new(name).unwrap_or_default();
        let mut function: Raw = ptr::null_mut();
        // SAFETY: the caller's promise; `function` is a place for the answer.
        unsafe { call!(driver.module_function(&mut function, raw(module), name.as_ptr())) }?;
        Ok(function as usize)
    }

    /// One number about a function; both vendors count alike: 1 static shared bytes, 3 private bytes of a
    /// thread, 4 registers of a thread.
    ///
    /// # Safety
    /// `function` must belong to a loaded module; so for every function below that takes one.
    pub unsafe fn function_attribute(&self, function: usize, attribute: c_int) -> Result<u32> {
        let driver = self.driver;
        let mut value = 0;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.function_attribute(&mut value, attribute, raw(function))) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Lets a function use this much dynamic shared memory, which so many blocks reach.
    ///
    /// # Safety
    /// As for [`Current::function_attribute`].
    pub unsafe fn allow_shared(&self, function: usize, bytes: u32, cluster: u32) -> Result<()> {
        /// Blocks of a cluster that every device with clusters has.
        const PORTABLE: u32 = 8;
        // AMD devices give every function all of a block's shared memory, and have no clusters.
        let Native::Cuda(cuda) = &self.driver.native else { return Ok(()) };
        let (call, status) = cuda.allow_dynamic_shared(raw(function), bytes as c_int);
        self.driver.check(call, status)?;
        if cluster > PORTABLE {
            let (call, status) = cuda.allow_large_cluster(raw(function));
            self.driver.check(call, status)?;
        }
        Ok(())
    }

    /// Blocks of a function that one multiprocessor holds at a time.
    ///
    /// # Safety
    /// As for [`Current::function_attribute`].
    pub unsafe fn blocks_per_multiprocessor(
        &self,
        function: usize,
        threads: u32,
        shared: u32,
    ) -> Result<u32> {
        let driver = self.driver;
        let mut blocks = 0;
        // SAFETY: the caller's promise.
        unsafe {
            call!(driver.blocks_per_multiprocessor(
                &mut blocks,
                raw(function),
                threads as c_int,
                shared as usize
            ))
        }?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Puts a launch on its stream.
    ///
    /// # Safety
    /// The function must take one argument, whose bytes `argument` points to, and everything that it points
    /// to must be device memory that lives until the stream has come this far.
    #[inline]
    pub unsafe fn launch(&self, launch: &Launch) -> Result<()> {
        let driver = self.driver;
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let mut arguments = [launch.argument.cast_mut().cast::<c_void>()];
        if launch.programmatic_launch
            && let Native::Cuda(cuda) = &driver.native
        {
            // SAFETY: the caller's promise. The driver copies the argument before it returns.
            let launched =
                unsafe { cuda.launch_programmatic(driver.version, launch, arguments.as_mut_ptr()) };
            if let Some((call, status)) = launched {
                return driver.check(call, status);
            }
        }
        // SAFETY: the caller's promise. The driver copies the argument before it returns.
        unsafe {
            call!(driver.launch(
                raw(launch.function),
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                launch.shared_bytes,
                raw(launch.stream),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            ))
        }
    }

    /// Encodes a matrix for TMA.
    ///
    /// # Errors
    /// [`Error::SymbolMissing`] if the driver is older than that, or what it says.
    pub fn encode(&self, map: &TensorMap) -> Result<EncodedMap> {
        let Native::Cuda(cuda) = &self.driver.native else {
            return Err(self.driver.lacks("the tensor memory accelerator (TMA)"));
        };
        match cuda.encode(map) {
            Some(encoded) => encoded.map_err(|(call, status)| self.driver.error(call, status)),
            None => Err(self.driver.lacks("cuTensorMapEncodeTiled")),
        }
    }

    // ---- graphs ---------------------------------------------------------------------------------

    /// Begins to record a stream. Other threads are not restricted.
    ///
    /// # Safety
    /// As for [`Current::synchronize`].
    pub unsafe fn begin_capture(&self, stream: usize) -> Result<()> {
        const THREAD_LOCAL: c_int = 1;
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.capture_begin(raw(stream), THREAD_LOCAL)) }
    }

    /// Ends a recording and makes it executable.
    ///
    /// # Safety
    /// As for [`Current::synchronize`].
    pub unsafe fn end_capture(&self, stream: usize) -> Result<usize> {
        let driver = self.driver;
        let mut graph: Raw = ptr::null_mut();
        let mut executable: Raw = ptr::null_mut();
        // SAFETY: the caller's promise; `graph` and `executable` are places for the answers, and the graph is
        // not needed once it has been made executable.
        unsafe {
            call!(driver.capture_end(raw(stream), &mut graph))?;
            let made = call_optional!(driver.graph_instantiate(&mut executable, graph, 0));
            // An error of this repeats an earlier one, and what was made must not be lost by it.
            let _ = call!(driver.graph_destroy(graph));
            made?;
        }
        Ok(executable as usize)
    }

    /// Puts a graph on a stream.
    ///
    /// # Safety
    /// Both must be live, and so must everything that was recorded.
    pub unsafe fn launch_graph(&self, executable: usize, stream: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.graph_launch(raw(executable), raw(stream))) }
    }

    /// Destroys an executable graph.
    ///
    /// # Safety
    /// `executable` must come from [`Current::end_capture`] and be used by nobody any more.
    pub unsafe fn destroy_executable(&self, executable: usize) -> Result<()> {
        let driver = self.driver;
        // SAFETY: the caller's promise.
        unsafe { call!(driver.executable_destroy(raw(executable))) }
    }

    /// The number of the recording that a stream is in, if it is being recorded; unique in the process. A broken
    /// recording counts as none: whatever is launched next fails with the driver's words for it.
    ///
    /// # Safety
    /// As for [`Current::synchronize`].
    #[inline]
    pub unsafe fn recording(&self, stream: usize) -> Result<Option<u64>> {
        let driver = self.driver;
        let (mut status, mut id) = (0, 0);
        // SAFETY: the caller's promise; both are places for the answers.
        unsafe { call!(driver.capture_info(raw(stream), &mut status, &mut id)) }?;
        Ok((status == 1).then_some(id))
    }

    /// Runs `work` with this thread free to allocate and to load code although a stream somewhere is being
    /// recorded; none of `work` may touch a recorded stream.
    pub fn outside_capture<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        const RELAXED: c_int = 2;
        let driver = self.driver;
        let mut mode = RELAXED;
        // The mode is the thread's own: swapping it has no failure but an earlier one, which `work` meets as well. What
        // `work` makes must not be lost by it, nor what it frees be kept.
        // SAFETY: swaps the thread's mode with `mode`.
        let swapped = unsafe { call!(driver.capture_mode_exchange(&mut mode)) };
        let result = work();
        if swapped.is_ok() {
            // SAFETY: as above, back again.
            let _ = unsafe { call!(driver.capture_mode_exchange(&mut mode)) };
        }
        result
    }
}

/// Splits "no memory", which callers have more to say about, from other failures.
fn allocation(result: Result<()>, address: u64) -> Result<Option<u64>> {
    match result {
        Ok(()) => Ok(Some(address)),
        Err(Error::Driver { code, .. }) if code == Status::OUT_OF_MEMORY.0 => Ok(None),
        Err(error) => Err(error),
    }
}
