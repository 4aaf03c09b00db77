//! Device memory of this crate's own.

use std::fmt;

use super::argument::Workspace;
use super::runtime::GpuDevice;
use super::stream::{Event, Stream};
use crate::error::{Error, Result};

/// Device memory, freed in the order of its stream when dropped.
pub struct DeviceBuffer {
    stream: Stream,
    address: u64,
    bytes: u64,
}

impl DeviceBuffer {
    /// Allocates memory, which holds whatever it held before.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`].
    pub fn new(stream: &Stream, bytes: u64) -> Result<Self> {
        let device = stream.device();
        let address = match bytes {
            0 => 0,
            _ => device.allocate(&device.enter()?, bytes, stream.handle())?,
        };
        Ok(DeviceBuffer { stream: stream.clone(), address, bytes })
    }

    /// Allocates memory and copies a slice to it.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`].
    pub fn from_host(stream: &Stream, data: &[u8]) -> Result<Self> {
        let mut buffer = Self::new(stream, data.len() as u64)?;
        buffer.upload(data)?;
        Ok(buffer)
    }

    /// The first byte's address on the device; 0 if the buffer is empty.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The buffer as a launch's workspace.
    pub fn as_workspace(&self) -> Workspace {
        Workspace { address: self.address, bytes: self.bytes }
    }

    /// The stream that orders the memory's life.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The device.
    pub fn device(&self) -> GpuDevice {
        self.stream.device()
    }

    /// Copies a slice of the same length to the device, after all that the stream holds, and waits for it.
    ///
    /// # Errors
    /// [`Error::CopyLength`], or what the driver says.
    pub fn upload(&mut self, data: &[u8]) -> Result<()> {
        self.expect_length(data.len())?;
        self.upload_at(0, data)
    }

    /// As [`DeviceBuffer::upload`], to a part of the buffer that begins at byte `at`.
    ///
    /// # Errors
    /// [`Error::CopyLength`] if the slice is longer than the buffer from there on, or what the driver says.
    pub fn upload_at(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.expect_inside(at, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let current = self.device().enter()?;
        let stream = self.stream.handle().0;
        // SAFETY: the part lies inside this buffer; the slice is borrowed until the wait is over.
        unsafe {
            current.copy_to_device(self.address + at, data, stream)?;
            current.synchronize(stream)
        }
    }

    /// Copies to a slice of the same length, after all that the stream holds, and waits for it.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::upload`].
    pub fn download(&self, data: &mut [u8]) -> Result<()> {
        self.expect_length(data.len())?;
        self.download_at(0, data)
    }

    /// As [`DeviceBuffer::download`], of a part of the buffer that begins at byte `at`.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::upload_at`].
    pub fn download_at(&self, at: u64, data: &mut [u8]) -> Result<()> {
        self.expect_inside(at, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let current = self.device().enter()?;
        let stream = self.stream.handle().0;
        // SAFETY: as above.
        unsafe {
            current.copy_to_host(data, self.address + at, stream)?;
            current.synchronize(stream)
        }
    }

    /// Sets every byte, in the order of the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&mut self, value: u8) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let current = self.device().enter()?;
        // SAFETY: the memory is this buffer's.
        unsafe { current.fill(self.address, value, self.bytes, self.stream.handle().0) }
    }

    /// Copies another buffer of the same length, in the order of both streams.
    ///
    /// # Errors
    /// [`Error::CopyLength`], or what the driver says.
    pub fn copy_from(&mut self, other: &DeviceBuffer) -> Result<()> {
        self.expect_length(other.bytes as usize)?;
        if self.is_empty() {
            return Ok(());
        }
        let current = self.device().enter()?;
        let others = (self.stream.handle() != other.stream.handle()).then_some(&other.stream);
        if let Some(others) = others {
            self.stream.wait(&Event::of(others)?)?;
        }
        // SAFETY: both are live until the copy is done, of this length, and distinct, since one is borrowed mutably.
        unsafe { current.copy_on_device(self.address, other.address, self.bytes, self.stream.handle().0) }?;
        match others {
            // Which may free the other one next.
            Some(others) => others.wait(&Event::of(&self.stream)?),
            None => Ok(()),
        }
    }

    /// Fills the buffer with whole copies of a pattern, and a part of one at its end, in the order of the stream.
    /// Waits until the pattern has been read.
    ///
    /// # Errors
    /// What the driver says.
    pub fn tile(&mut self, pattern: &[u8]) -> Result<()> {
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let first = &pattern[..pattern.len().min(bytes)];
        if first.is_empty() {
            return Ok(());
        }
        let current = self.device().enter()?;
        let stream = self.stream.handle().0;
        // SAFETY: `first` is not longer than the buffer, and borrowed until the wait is over.
        unsafe {
            current.copy_to_device(self.address, first, stream)?;
            current.synchronize(stream)?;
        }
        let mut filled = first.len() as u64;
        while filled < self.bytes {
            let next = filled.min(self.bytes - filled);
            // SAFETY: reads what has been filled and writes what comes after it, inside the buffer.
            unsafe { current.copy_on_device(self.address + filled, self.address, next, stream) }?;
            filled += next;
        }
        Ok(())
    }

    fn expect_inside(&self, at: u64, host: usize) -> Result<()> {
        let rest = self.bytes.saturating_sub(at);
        if host as u64 <= rest {
            return Ok(());
        }
        Err(Error::CopyLength { device: rest, host: host as u64 })
    }

    fn expect_length(&self, host: usize) -> Result<()> {
        if host as u64 == self.bytes {
            return Ok(());
        }
        Err(Error::CopyLength { device: self.bytes, host: host as u64 })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // An error here means that the device is lost, and the memory with it.
        if let Ok(current) = self.device().enter() {
            // SAFETY: nobody has the memory any more, and the stream orders its end.
            let _ = unsafe { self.device().free(&current, self.address, self.stream.handle()) };
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes at {:#x} on {})", self.bytes, self.address, self.device())
    }
}
