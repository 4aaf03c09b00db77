//! Arrival counters for kernels whose last block finishes the work.
//!
//! Such a kernel finds its counters at zero and leaves them at zero, so they are zeroed once, when they are
//! allocated. Two launches may then share counters only if one is over before the other begins:
//!
//! - *Eager launches* of one stream run one after the other, so each stream has its own counters. A stream's lock
//!   is held from taking them to putting the launch on the stream, so that a thread that needs more of them cannot
//!   replace them in between.
//! - *Recorded launches* run when their graph is replayed, on any stream, beside eager launches of the stream that
//!   they were recorded on. So a recording has counters of its own, per stream that it records: launches recorded
//!   from one stream are ordered within the graph, those of forked streams are not. A graph is itself not replayed
//!   twice at a time, because its launches write the same outputs.
//! - *Growing* leaves the old counters alone: launches that are queued or recorded may still use them. Sizes
//!   double, so all old ones together are smaller than the newest.
//!
//! Streams are told apart by the number that the driver gives each. Drivers before CUDA 12.0 and ROCm 7.1 have only
//! the handle, which a new stream may get again after an old one was destroyed with work still queued; two such
//! streams would share counters. PyTorch, whose streams come from a pool, never destroys one.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use super::driver::Current;
use crate::error::Result;

/// Counters that a stream gets at first: enough for most launches, in 16 KiB.
const FIRST_EAGER: u32 = 4096;

/// Counters that a recording gets at first.
const FIRST_RECORDED: u32 = 1024;

const COUNTER_BYTES: u64 = 4;

/// The counters of one device.
#[derive(Default)]
pub(super) struct Scratch {
    owners: RwLock<FxHashMap<Owner, Arc<Mutex<Counters>>>>,
    /// Zeroes counters while other streams are being recorded.
    zeroing: OnceLock<usize>,
}

/// Whose launches some counters serve.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    /// Eager launches of the stream with this number.
    Eager(u64),
    /// Recorded launches of the stream with this handle. Asking a stream for its number while it is recorded
    /// breaks the recording, and the handle will do: the recording's own number tells a later one apart.
    Recorded(usize),
}

#[derive(Default)]
struct Counters {
    /// The recording that they belong to; 0 for eager launches.
    recording: u64,
    address: u64,
    count: u32,
}

impl Scratch {
    /// Runs `launch` with the address of `count` counters that are zero when the launch begins.
    ///
    /// None if the device has no memory for them; nothing was launched then.
    ///
    /// # Safety
    /// `stream` must be live, and `launch` may put work that uses the counters only on it.
    pub unsafe fn with_counters(
        &self,
        current: &Current<'_>,
        stream: usize,
        count: u32,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Option<()>> {
        // SAFETY: the caller's promise.
        let (owner, recording) = match unsafe { current.recording(stream) }? {
            Some(recording) => (Owner::Recorded(stream), recording),
            // SAFETY: as above.
            None => (Owner::Eager(unsafe { current.stream_id(stream) }?), 0),
        };
        let counters = self.of(owner);
        let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
        if counters.recording != recording {
            *counters = Counters { recording, ..Counters::default() };
        }
        if counters.count < count {
            let first = if recording == 0 { FIRST_EAGER } else { FIRST_RECORDED };
            let count = count.max(first).checked_next_power_of_two().unwrap_or(count);
            // A recorded stream would only record the zeroing; an eager one orders it before the launch.
            let zeroing = if recording == 0 { stream } else { self.zeroing_stream(current)? };
            let bytes = u64::from(count) * COUNTER_BYTES;
            let Some(address) = current.outside_capture(|| current.allocate(bytes))? else { return Ok(None) };
            let zeroed = || {
                // SAFETY: the memory was just allocated with this size.
                unsafe { current.fill(address, 0, bytes, zeroing) }?;
                if recording == 0 {
                    return Ok(());
                }
                // SAFETY: the stream is never destroyed.
                current.outside_capture(|| unsafe { current.synchronize(zeroing) })
            };
            if let Err(error) = zeroed() {
                // SAFETY: no launch has been given the memory; freeing waits for the filling.
                let _ = current.outside_capture(|| unsafe { current.free(address) });
                return Err(error);
            }
            *counters = Counters { recording, address, count };
        }
        launch(counters.address).map(Some)
    }

    fn of(&self, owner: Owner) -> Arc<Mutex<Counters>> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = owners.get(&owner) {
            return Arc::clone(counters);
        }
        drop(owners);
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(owners.entry(owner).or_default())
    }

    fn zeroing_stream(&self, current: &Current<'_>) -> Result<usize> {
        if let Some(stream) = self.zeroing.get() {
            return Ok(*stream);
        }
        let stream = current.outside_capture(|| current.create_stream())?;
        // Where two threads meet here, one stream is left unused.
        Ok(*self.zeroing.get_or_init(|| stream))
    }

    /// Forgets a stream that is about to be destroyed, and frees the counters of its eager launches. `id` is the
    /// stream's number.
    ///
    /// # Safety
    /// The stream must be launched on no more.
    pub unsafe fn forget(&self, current: &Current<'_>, stream: usize, id: u64) -> Result<()> {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.remove(&Owner::Recorded(stream));
        let Some(counters) = owners.remove(&Owner::Eager(id)) else { return Ok(()) };
        drop(owners);
        let counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
        if counters.count == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise: nobody will use them any more, and freeing waits for those that do.
        current.outside_capture(|| unsafe { current.free(counters.address) })
    }
}
