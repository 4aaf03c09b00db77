//! The loop of a server: a frame in, a reply out.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use causeway::backend::gpu::artifact::Artifacts;
use causeway::device::Device;
use causeway::error::Error;
use causeway::files::Spares;
use causeway_verify::evidence;

use super::frame::{self, Interrupted, Payload};
use super::pipe::Lend;
use super::turn::Turns;
use super::{tensors, text};

/// What payloads hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Safetensors images.
    #[default]
    Tensors,
    /// Half-precision GEMM gradients as decimal text.
    Text,
}

impl Protocol {
    /// `tensors` or `text`.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tensors => "tensors",
            Protocol::Text => "text",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Protocol {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Protocol::Tensors, Protocol::Text].into_iter().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| format!("protocol is {text:?}: expected tensors or text"))
    }
}

/// A device that answers requests. Shared by all clients of a server, whose requests it runs one at a time, in the
/// order in which they came.
#[derive(Debug)]
pub struct Service {
    pub(super) device: Device,
    pub(super) protocol: Protocol,
    pub(super) max_frame: u32,
    threads: rayon::ThreadPool,
    pub(super) turns: Turns,
    /// What was answered and refused so far.
    tally: Mutex<evidence::Service>,
    /// What was seen of the kernels' files, if they are read again before each request.
    kernels: Option<Mutex<Artifacts>>,
    /// Memory of requests that were answered, and of their answers.
    pub(super) spares: Arc<Spares>,
}

impl Service {
    /// A service on a device; work on a CPU goes to `threads`. Payloads, in and out, have at most `max_frame` bytes.
    pub fn new(device: Device, threads: rayon::ThreadPool, protocol: Protocol, max_frame: u32) -> Self {
        let tally =
            evidence::Service { protocol: protocol.to_string(), max_frame, ..evidence::Service::default() };
        Service {
            device,
            protocol,
            max_frame,
            threads,
            turns: Turns::default(),
            tally: Mutex::new(tally),
            kernels: None,
            spares: Arc::default(),
        }
    }

    /// The same, which reads the files of its kernels again right before each request, refuses and rebuilds what was
    /// altered, and reports it.
    #[must_use]
    pub fn with_checks(self) -> Self {
        Service { kernels: Some(Mutex::default()), ..self }
    }

    /// Answers requests until the input ends between two frames, or [`Service::stop`] is called.
    ///
    /// # Errors
    /// [`Interrupted`] if the input ends inside a frame, or one of the two cannot be read or written.
    pub fn serve(&self, input: &mut impl Read, output: &mut impl Lend) -> Result<(), Interrupted> {
        let mut lent = tensors::Lent::default();
        while let Some(count) = frame::read_count(input)? {
            lent.next_request(&self.spares);
            let mut payload = Payload::new(input, count);
            match self.protocol {
                Protocol::Tensors => {
                    let request = tensors::Request::read(&mut payload, count, self);
                    payload.finish()?;
                    let Some(_in_hand) = self.turns.take_in_hand() else { return Ok(()) };
                    request.answer(self, &mut lent).write(output, &mut lent, &self.spares)?;
                }
                Protocol::Text => {
                    let request = text::read(&mut payload, count, self.max_frame);
                    payload.finish()?;
                    let Some(_in_hand) = self.turns.take_in_hand() else { return Ok(()) };
                    let reply = request.and_then(|request| {
                        let (reply, seconds) =
                            self.on_device(|device| request.run_timed(device, self.max_frame))?;
                        self.tally().note_answer(request.operation(), seconds);
                        Ok(reply)
                    });
                    let reply = reply.unwrap_or_else(|problem| {
                        self.tally().note_refusal(&format!("status-{}", problem.status()));
                        problem.reply()
                    });
                    frame::write_frame(output, &reply)?;
                }
            }
        }
        Ok(())
    }

    /// As [`Service::serve`], on one of the threads that compute. For a service with one client: two changes of threads
    /// are most of what a small request costs.
    ///
    /// # Errors
    /// As for [`Service::serve`].
    pub fn serve_alone(
        &self,
        input: &mut (impl Read + Send),
        output: &mut (impl Lend + Send),
    ) -> Result<(), Interrupted> {
        self.threads.install(|| self.serve(input, output))
    }

    /// Lets no further request in, and waits at most `patience` for those in hand to be answered. True if all were.
    pub fn stop(&self, patience: Duration) -> bool {
        self.turns.stop(patience)
    }

    /// What was answered and refused so far: the content of a report.
    pub fn report(&self) -> evidence::Service {
        self.tally().clone()
    }

    /// The kernels that ran, and what was seen of their files.
    pub fn kernels(&self) -> Artifacts {
        let mut all = self.kernels.as_ref().map(|seen| lock(seen).clone()).unwrap_or_default();
        if let Device::Gpu(stream) = &self.device {
            stream.device().artifacts().0.into_iter().for_each(|artifact| all.add(artifact));
        }
        all
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, evidence::Service> {
        lock(&self.tally)
    }

    /// Threads of the CPU that work here.
    pub(super) fn thread_count(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work` when it is its turn. Its own errors, or those of a kernel that was altered and cannot be made anew.
    pub(super) fn on_device<T: Send, E: From<Error> + Send>(
        &self,
        work: impl FnOnce(&Device) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        let _turn = self.turns.wait();
        let Device::Gpu(stream) = &self.device else {
            return self.threads.install(|| work(&self.device));
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
