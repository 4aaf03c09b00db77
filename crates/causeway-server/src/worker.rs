//! The device of a server, and what its requests share: whose turn it is, memory, and the tally.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use causeway::backend::gpu::artifact::Artifacts;
use causeway::device::Device;
use causeway::error::Error;
use causeway::files::Spares;
use causeway_verify::evidence;

use super::turn::Turns;

/// A device that runs the requests of all clients.
#[derive(Debug)]
pub(super) struct Worker {
    pub device: Device,
    /// Most bytes of a payload.
    pub max_frame: u32,
    threads: rayon::ThreadPool,
    pub turns: Turns,
    /// What was answered and refused so far.
    tally: Mutex<evidence::Service>,
    /// What was seen of the kernels' files, if they are read again before each request.
    kernels: Option<Mutex<Artifacts>>,
    /// Memory of requests that were answered, and of their answers.
    pub spares: Arc<Spares>,
}

impl Worker {
    pub fn new(device: Device, threads: rayon::ThreadPool, protocol: &str, max_frame: u32) -> Self {
        let tally =
            evidence::Service { protocol: protocol.to_string(), max_frame, ..evidence::Service::default() };
        Worker {
            device,
            max_frame,
            threads,
            turns: Turns::default(),
            tally: Mutex::new(tally),
            kernels: None,
            spares: Arc::default(),
        }
    }

    /// See [`Service::with_checks`](crate::Service::with_checks).
    pub fn with_checks(self) -> Self {
        Worker { kernels: Some(Mutex::default()), ..self }
    }

    /// Runs `work` on one of the threads that compute.
    pub fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.threads.install(work)
    }

    /// The kernels that ran, and what was seen of their files.
    pub fn kernels(&self) -> Artifacts {
        let mut all = self.kernels.as_ref().map(|seen| lock(seen).clone()).unwrap_or_default();
        if let Device::Gpu(stream) = &self.device {
            stream.device().artifacts().0.into_iter().for_each(|artifact| all.add(artifact));
        }
        all
    }

    pub fn tally(&self) -> MutexGuard<'_, evidence::Service> {
        lock(&self.tally)
    }

    /// Threads of the CPU that work here.
    pub fn thread_count(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work` when it is its turn. Its own errors, or those of a kernel that was altered and cannot be made anew.
    pub fn on_device<T: Send, E: From<Error> + Send>(
        &self,
        work: impl FnOnce(&Device) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        let _turn = self.turns.wait();
        let Device::Gpu(stream) = &self.device else {
            return self.install(|| work(&self.device));
        };
        if let Some(seen) = &self.kernels {
            // Kernels that come with this request are compiled for it, or read from a file by its digest.
            let now = stream.device().check_all()?;
            let mut seen = lock(seen);
            now.0.into_iter().for_each(|artifact| seen.add(artifact));
        }
        work(&self.device)
    }
}

/// What is counted and noted here cannot panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
