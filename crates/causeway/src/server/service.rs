//! The loop of a server: a frame in, a reply out.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::frame::{self, Interrupted, Payload};
use super::pipe::Lend;
use super::turn::Turns;
use super::{tensors, text};
use crate::device::Device;
use crate::evidence;
use crate::files::Spares;

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
    /// Memory of requests that were answered.
    pub(super) spares: Spares,
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
            spares: Spares::default(),
        }
    }

    /// Answers requests until the input ends between two frames, or [`Service::stop`] is called.
    ///
    /// # Errors
    /// [`Interrupted`] if the input ends inside a frame, or one of the two cannot be read or written.
    pub fn serve(&self, input: &mut impl Read, output: &mut impl Lend) -> Result<(), Interrupted> {
        while let Some(count) = frame::read_count(input)? {
            let mut payload = Payload::new(input, count);
            match self.protocol {
                Protocol::Tensors => {
                    let request = tensors::Request::read(&mut payload, count, self);
                    payload.finish()?;
                    let Some(_in_hand) = self.turns.take_in_hand() else { return Ok(()) };
                    request.answer(self).write(output)?;
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

    /// Lets no further request in, and waits at most `patience` for those in hand to be answered. True if all were.
    pub fn stop(&self, patience: Duration) -> bool {
        self.turns.stop(patience)
    }

    /// What was answered and refused so far: the content of a report.
    pub fn report(&self) -> evidence::Service {
        self.tally().clone()
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, evidence::Service> {
        // Counting cannot panic half-way.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads of the CPU that work here.
    pub(super) fn thread_count(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work` when it is its turn.
    pub(super) fn on_device<T: Send>(&self, work: impl FnOnce(&Device) -> T + Send) -> T {
        let _turn = self.turns.wait();
        self.threads.install(|| work(&self.device))
    }
}
