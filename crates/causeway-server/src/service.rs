//! The loop of a server: a frame in, a reply out.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use causeway::backend::gpu::artifact::Artifacts;
use causeway::device::Device;
use causeway_verify::evidence;

use super::frame::{self, Interrupted, Payload};
use super::pipe::Lend;
use super::worker::Worker;
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

/// A server without its connections. Shared by all clients, whose requests it runs one at a time, in the order in which they
/// came.
#[derive(Debug)]
pub struct Service {
    protocol: Protocol,
    worker: Worker,
}

impl Service {
    /// A service on a device; work on a CPU goes to `threads`. Payloads, in and out, have at most `max_frame` bytes.
    pub fn new(device: Device, threads: rayon::ThreadPool, protocol: Protocol, max_frame: u32) -> Self {
        Service { protocol, worker: Worker::new(device, threads, &protocol.to_string(), max_frame) }
    }

    /// The same, which reads the files of its kernels again right before each request, refuses and rebuilds what was
    /// altered, and reports it.
    #[must_use]
    pub fn with_checks(self) -> Self {
        Service { worker: self.worker.with_checks(), ..self }
    }

    /// Answers requests until the input ends between two frames, or [`Service::stop`] is called.
    ///
    /// # Errors
    /// [`Interrupted`] if the input ends inside a frame, or one of the two cannot be read or written.
    pub fn serve(&self, input: &mut impl Read, output: &mut impl Lend) -> Result<(), Interrupted> {
        let worker = &self.worker;
        let mut lent = tensors::Lent::default();
        while let Some(count) = frame::read_count(input)? {
            lent.next_request(&worker.spares);
            let mut payload = Payload::new(input, count);
            match self.protocol {
                Protocol::Tensors => {
                    let request = tensors::Request::read(&mut payload, count, worker);
                    payload.finish()?;
                    let Some(_in_hand) = worker.turns.take_in_hand() else { return Ok(()) };
                    request.answer(worker, &mut lent).write(output, &mut lent, &worker.spares)?;
                }
                Protocol::Text => {
                    let request = text::read(&mut payload, count, worker.max_frame);
                    payload.finish()?;
                    let Some(_in_hand) = worker.turns.take_in_hand() else { return Ok(()) };
                    let reply = request.and_then(|request| {
                        let (reply, seconds) =
                            worker.on_device(|device| request.run_timed(device, worker.max_frame))?;
                        worker.tally().note_answer(request.operation(), seconds);
                        Ok(reply)
                    });
                    let reply = reply.unwrap_or_else(|problem| {
                        worker.tally().note_refusal(&format!("status-{}", problem.status()));
                        problem.reply()
                    });
                    frame::write_frame(output, &reply)?;
                }
            }
        }
        Ok(())
    }

    /// Tells a client that it is not served, where the protocol has words for that. Texts have none: their connection ends.
    #[cfg(unix)]
    pub(super) fn turn_away(&self, message: String, output: &mut impl Lend) -> std::io::Result<()> {
        if self.protocol == Protocol::Text {
            return Ok(());
        }
        let (worker, mut lent) = (&self.worker, tensors::Lent::default());
        tensors::turned_away(message, worker).write(output, &mut lent, &worker.spares)
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
        self.worker.install(|| self.serve(input, output))
    }

    /// Lets no further request in, and waits at most `patience` for those in hand to be answered. True if all were.
    pub fn stop(&self, patience: Duration) -> bool {
        self.worker.turns.stop(patience)
    }

    /// What was answered and refused so far: the content of a report.
    pub fn report(&self) -> evidence::Service {
        self.worker.tally().clone()
    }

    /// The kernels that ran, and what was seen of their files.
    pub fn kernels(&self) -> Artifacts {
        self.worker.kernels()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_turned_away_is_told_and_not_counted() {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let service = Service::new(Device::cpu(), threads, Protocol::Tensors, 1 << 20);
        let mut told: Vec<u8> = Vec::new();
        service.turn_away("no more clients".to_string(), &mut told).unwrap();
        let told = String::from_utf8_lossy(&told);
        assert!(told.contains("too-many-clients") && told.contains("no more clients"), "{told}");
        assert!(service.report().refused.is_empty());
    }
}
