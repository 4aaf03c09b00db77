//! Streams, events and graphs of this crate's own, for callers that have none.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use super::handle::StreamHandle;
use super::runtime::GpuDevice;
use crate::error::Result;

/// A stream that this crate made. Cheap to clone; destroyed with the last clone, once its work is done.
#[derive(Clone)]
pub struct Stream(Arc<OwnStream>);

struct OwnStream {
    device: GpuDevice,
    handle: usize,
    /// The driver's number for it.
    id: u64,
}

impl GpuDevice {
    /// A stream for callers that have none: one per device, made by the first call.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Result<&'static Stream> {
        static STREAMS: Mutex<Vec<&'static Stream>> = Mutex::new(Vec::new());
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.iter().find(|stream| stream.device() == *self) {
            return Ok(stream);
        }
        let stream: &'static Stream = Box::leak(Box::new(Stream::new(*self)?));
        streams.push(stream);
        Ok(stream)
    }
}

impl Stream {
    /// Makes a stream that does not wait for the default one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: GpuDevice) -> Result<Self> {
        let current = device.enter()?;
        let handle = current.create_stream()?;
        // SAFETY: the stream is live; nobody else has it.
        let id = unsafe {
            current.stream_id(handle).or_else(|error| current.destroy_stream(handle).and(Err(error)))?
        };
        Ok(Stream(Arc::new(OwnStream { device, handle, id })))
    }

    /// The device.
    pub fn device(&self) -> GpuDevice {
        self.0.device
    }

    /// What launches take.
    pub fn handle(&self) -> StreamHandle {
        StreamHandle(self.0.handle)
    }

    /// Waits until everything on the stream is done.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.0.device.enter()?.synchronize(self.0.handle) }
    }

    /// True if everything on the stream is done.
    ///
    /// # Errors
    /// As for [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: as above.
        unsafe { self.0.device.enter()?.is_idle(self.0.handle) }
    }

    /// Makes what is put on the stream from now on wait for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both live as long as their owners.
        unsafe { self.0.device.enter()?.wait_event(self.0.handle, event.handle) }
    }

    /// Records what `work` puts on this stream into a graph, without running it.
    ///
    /// # Errors
    /// What `work` returns, or the driver if the recording failed.
    pub fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let current = self.0.device.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { current.begin_capture(self.0.handle) }?;
        // Ends the recording whatever `work` does, a panic among it, so that the stream can be used again.
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        // SAFETY: as above.
        let executable = unsafe { current.end_capture(self.0.handle) };
        let graph = executable.map(|executable| Graph { device: self.0.device, executable });
        done.unwrap_or_else(|panic| panic::resume_unwind(panic))?;
        graph
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // An error here means that the device is lost, and the stream with it.
        let Ok(current) = self.device.enter() else { return };
        // SAFETY: nobody has the stream any more.
        unsafe {
            let _ = current.synchronize(self.handle);
            let _ = self.device.scratch().forget(&current, self.handle, self.id);
            let _ = current.destroy_stream(self.handle);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x} of {})", self.0.handle, self.0.device)
    }
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub struct Event {
    device: GpuDevice,
    handle: usize,
}

impl Event {
    /// Makes an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: GpuDevice) -> Result<Self> {
        Ok(Event { device, handle: device.enter()?.create_event()? })
    }

    /// One after everything that is on the stream now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn of(stream: &Stream) -> Result<Self> {
        let event = Event::new(stream.device())?;
        event.record(stream)?;
        Ok(event)
    }

    /// Puts the event after everything that is on the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live as long as their owners.
        unsafe { self.device.enter()?.record_event(self.handle, stream.handle().0) }
    }

    /// Waits until the stream has come to the event.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        unsafe { self.device.enter()?.synchronize_event(self.handle) }
    }

    /// Milliseconds from an earlier event to this one; both must have been waited for.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] if one has not happened yet.
    pub fn milliseconds_since(&self, start: &Event) -> Result<f32> {
        // SAFETY: both live as long as their owners.
        unsafe { self.device.enter()?.elapsed(start.handle, self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(current) = self.device.enter() {
            // SAFETY: nobody has the event any more.
            let _ = unsafe { current.destroy_event(self.handle) };
        }
    }
}

/// Recorded work that can be launched again and again.
#[derive(Debug)]
pub struct Graph {
    device: GpuDevice,
    executable: usize,
}

impl Graph {
    /// Puts the recorded work on a stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// All memory that the recorded launches use must live until the stream has come this far, and no other
    /// launch of the same graph may be running.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise; both live as long as their owners.
        unsafe { self.device.enter()?.launch_graph(self.executable, stream.handle().0) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(current) = self.device.enter() {
            // SAFETY: nobody has the graph any more; the driver lets a running launch end.
            let _ = unsafe { current.destroy_executable(self.executable) };
        }
    }
}
