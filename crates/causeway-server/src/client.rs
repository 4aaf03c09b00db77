//! A client of the tensors protocol that owns its server: starts it, times out, starts it again after a crash.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use causeway::HostTensor;
use causeway::files::{FileError, Metadata, Spares, TensorImage, TensorStream};
use causeway::named::Call;

use super::PROTOCOL_VERSION;
use super::frame::{self, Interrupted, Payload};
use super::pipe::{self, Lend, PipeWriter};
use super::tensors::{HELLO, ID, TAKES_COPIES};

/// How a server is started and how long it may take.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The `causeway` command, or another that speaks the tensors protocol on its stdin and stdout.
    pub program: PathBuf,
    /// Its arguments: `serve`, and for example `--device cuda:1`.
    pub arguments: Vec<OsString>,
    /// The most that one request may take, restart included; then the server is killed.
    pub deadline: Duration,
    /// The wait before the second start in a row that failed; it doubles with each further one, up to five seconds.
    pub backoff: Duration,
}

impl Launch {
    /// `program serve`, 60 seconds for a request, 50 milliseconds of back-off.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Launch {
            program: program.into(),
            arguments: vec!["serve".into()],
            deadline: Duration::from_secs(60),
            backoff: Duration::from_millis(50),
        }
    }
}

const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// How a request went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server's process cannot be started.
    #[error("{program} cannot be started: {error}")]
    Start {
        /// The program.
        program: String,
        /// What the operating system says.
        error: io::Error,
    },
    /// The process is not a server that this client can talk to.
    #[error(
        "{program} speaks protocol {found}: this client speaks {PROTOCOL_VERSION}; use one version of both"
    )]
    Handshake {
        /// The program.
        program: String,
        /// What it said.
        found: String,
    },
    /// The server died, or was killed, before the reply was there. The next request starts it again.
    #[error("request {request} was lost: the server {because}; it is started again for the next request")]
    Lost {
        /// Number of the request, as [`KernelServer::call`] counts them, from 1.
        request: u64,
        /// What is known about the end of the server.
        because: String,
    },
    /// The reply was not there in time. The server was killed; the next request starts it again.
    #[error(
        "request {request} was given up after {after:?}; the server was killed and is started again for the next"
    )]
    Deadline {
        /// Number of the request.
        request: u64,
        /// The deadline.
        after: Duration,
    },
    /// The server answered with an error; it lives on.
    #[error("request {request} was refused: {message}")]
    Refused {
        /// Number of the request.
        request: u64,
        /// The stable code.
        code: String,
        /// The sentence.
        message: String,
        /// What to do about it, where there is something.
        help: Option<String>,
    },
    /// The request does not fit a frame.
    #[error("the request has {bytes} bytes: the server takes {limit} at most")]
    TooLarge {
        /// Bytes of the request.
        bytes: u64,
        /// What the server takes.
        limit: u64,
    },
    /// The reply is not what the protocol says. The server was killed.
    #[error("request {request} was answered with something else than a reply: {error}")]
    Reply {
        /// Number of the request.
        request: u64,
        /// What is wrong with it.
        error: FileError,
    },
}

/// What a request was answered with.
#[derive(Debug)]
pub struct Reply {
    /// The results by name.
    pub tensors: BTreeMap<String, HostTensor>,
    /// Facts: `device`, `seconds` and the others of the [module](super).
    pub metadata: Metadata,
}

/// What a client has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Requests that were sent.
    pub requests: u64,
    /// Those that were answered with results.
    pub answered: u64,
    /// Those that the server refused.
    pub refused: u64,
    /// Those that were lost or given up.
    pub lost: u64,
    /// Times that the server was started after the first.
    pub restarts: u64,
    /// Median, 90th and 99th percentile of the time from request to results, over the last 1024 of them.
    pub latency: Option<[Duration; 3]>,
}

/// A server that belongs to this client. Dropping it ends the server.
#[derive(Debug)]
pub struct KernelServer {
    launch: Launch,
    running: Option<Running>,
    started: bool,
    failed_starts: u32,
    metrics: Metrics,
    latencies: VecDeque<Duration>,
    /// Memory of replies that were handed back.
    spares: Spares,
}

impl KernelServer {
    /// Starts a server and checks that both speak the same protocol.
    ///
    /// # Errors
    /// [`ServerError::Start`], [`ServerError::Handshake`], [`ServerError::Lost`] or [`ServerError::Deadline`].
    pub fn start(launch: Launch) -> Result<Self, ServerError> {
        let mut server = KernelServer {
            launch,
            running: None,
            started: false,
            failed_starts: 0,
            metrics: Metrics::default(),
            latencies: VecDeque::new(),
            spares: Spares::default(),
        };
        server.ensure_running(Instant::now() + server.launch.deadline)?;
        Ok(server)
    }

    /// Computes `call` on these tensors.
    ///
    /// # Errors
    /// [`ServerError::Refused`] if the server says no, [`ServerError::Lost`] or [`ServerError::Deadline`] if it died or
    /// took too long: then this request was lost, and no other. Requests are not repeated by themselves.
    pub fn call(&mut self, call: &Call, tensors: &[(&str, &HostTensor)]) -> Result<Reply, ServerError> {
        self.metrics.requests += 1;
        let (request, start) = (self.metrics.requests, Instant::now());
        let mut metadata = call.metadata();
        metadata.insert(ID.to_string(), request.to_string());
        let outcome = self.exchange(request, start + self.launch.deadline, tensors, &metadata);
        match &outcome {
            Ok(_) => {
                self.metrics.answered += 1;
                if self.latencies.len() == 1024 {
                    self.latencies.pop_front();
                }
                self.latencies.push_back(start.elapsed());
            }
            Err(ServerError::Refused { .. } | ServerError::TooLarge { .. }) => self.metrics.refused += 1,
            Err(_) => self.metrics.lost += 1,
        }
        outcome
    }

    /// Hands back a reply that is done with: later ones are read into its memory, which saves the time that the system
    /// takes to bring as much again. At most 256 MiB are kept.
    pub fn recycle(&mut self, reply: Reply) {
        reply.tensors.into_values().for_each(|tensor| self.spares.keep(tensor));
    }

    /// Counts and latencies so far.
    pub fn metrics(&self) -> Metrics {
        let mut sorted: Vec<_> = self.latencies.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        let percentile = |percent: usize| sorted[last * percent / 100];
        let latency = (!sorted.is_empty()).then(|| [50, 90, 99].map(percentile));
        Metrics { latency, ..self.metrics }
    }

    /// The server's process, while there is one.
    pub fn process_id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child().id())
    }

    fn exchange(
        &mut self,
        request: u64,
        deadline: Instant,
        tensors: &[(&str, &HostTensor)],
        metadata: &Metadata,
    ) -> Result<Reply, ServerError> {
        let limit = self.ensure_running(deadline)?.max_frame;
        let image = TensorImage::new(tensors, metadata);
        if image.length() > limit {
            return Err(ServerError::TooLarge { bytes: image.length(), limit });
        }
        self.converse(request, deadline, &image)
    }

    /// One frame there, one back. A server that cannot be trusted after that is ended.
    fn converse(
        &mut self,
        request: u64,
        deadline: Instant,
        image: &TensorImage<'_>,
    ) -> Result<Reply, ServerError> {
        let Some(running) = &mut self.running else {
            return Err(ServerError::Lost { request, because: "is not running".to_string() });
        };
        let outcome = running.converse(deadline, image, &self.spares);
        let failure = match outcome {
            Ok(mut reply) => match reply.metadata.remove("error") {
                None => return Ok(reply),
                Some(code) => {
                    let message = reply.metadata.remove("message").unwrap_or_default();
                    let help = reply.metadata.remove("help");
                    return Err(ServerError::Refused { request, code, message, help });
                }
            },
            Err(failure) => failure,
        };
        let timed_out = running.watchdog.has_fired();
        let end = self.running.take().map(Running::end).unwrap_or_default();
        Err(match failure {
            _ if timed_out => ServerError::Deadline { request, after: self.launch.deadline },
            Broken::Lost(error) => ServerError::Lost { request, because: format!("{end} ({error})") },
            Broken::Reply(error) => ServerError::Reply { request, error },
        })
    }

    /// Starts the server if it is not running, after a wait if the last start failed.
    fn ensure_running(&mut self, deadline: Instant) -> Result<&Running, ServerError> {
        if self.running.as_mut().is_some_and(Running::has_ended) {
            self.running = None;
        }
        if self.running.is_none() {
            if self.failed_starts > 0 {
                let wait = self
                    .launch
                    .backoff
                    .saturating_mul(1 << (self.failed_starts - 1).min(16))
                    .min(MAX_BACKOFF);
                std::thread::sleep(wait.min(deadline.saturating_duration_since(Instant::now())));
            }
            self.failed_starts += 1;
            self.metrics.restarts += u64::from(self.started);
            self.running = Some(Running::spawn(&self.launch)?);
            self.started = true;
            self.shake_hands(deadline)?;
            self.failed_starts = 0;
        }
        Ok(self.running.as_ref().expect("it was started above"))
    }

    fn shake_hands(&mut self, deadline: Instant) -> Result<(), ServerError> {
        // A call reads all of its reply, which copies it, and nothing is sent before.
        let hello = Metadata::from([
            ("operation".to_string(), HELLO.to_string()),
            (TAKES_COPIES.to_string(), "true".to_string()),
        ]);
        let reply = self.converse(0, deadline, &TensorImage::new(&[], &hello))?;
        let found = reply.metadata.get("protocol").cloned().unwrap_or_default();
        let limit = reply.metadata.get("max_frame").and_then(|text| text.parse().ok());
        match (&mut self.running, limit) {
            (Some(running), Some(limit)) if found == PROTOCOL_VERSION => {
                running.max_frame = limit;
                Ok(())
            }
            _ => {
                self.running = None;
                let program = self.launch.program.display().to_string();
                Err(ServerError::Handshake { program, found: format!("{found:?}") })
            }
        }
    }
}

/// Why a conversation broke off.
enum Broken {
    Lost(String),
    Reply(FileError),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Lost(error.to_string())
    }
}

impl From<Interrupted> for Broken {
    fn from(error: Interrupted) -> Self {
        match error {
            // The server's output is what this side reads.
            Interrupted::Input(error) => error.into(),
            other => Broken::Lost(other.to_string()),
        }
    }
}

/// A server's process and the pipes to it.
#[derive(Debug)]
struct Running {
    child: Arc<Mutex<Child>>,
    input: PipeWriter,
    output: BufReader<File>,
    watchdog: Watchdog,
    max_frame: u64,
}

impl Running {
    fn spawn(launch: &Launch) -> Result<Self, ServerError> {
        let start_error = |error| ServerError::Start { program: launch.program.display().to_string(), error };
        let mut child = Command::new(&launch.program)
            .args(&launch.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(start_error)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let child = Arc::new(Mutex::new(child));
        let (Some(input), Some(output)) = (input, output) else {
            return Err(start_error(io::ErrorKind::BrokenPipe.into()));
        };
        let (input, output) = pipe::pipes_of(input, output);
        let watchdog = Watchdog::start(Arc::clone(&child)).map_err(start_error)?;
        Ok(Running { watchdog, child, input, output, max_frame: u64::from(super::DEFAULT_MAX_FRAME) })
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        lock(&self.child)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child().try_wait(), Ok(None))
    }

    /// Sends an image and reads one. The watchdog kills the server at the deadline, which ends both.
    fn converse(
        &mut self,
        deadline: Instant,
        image: &TensorImage<'_>,
        spares: &Spares,
    ) -> Result<Reply, Broken> {
        let _watch = self.watchdog.until(deadline);
        frame::write_count(&mut self.input, image.length())?;
        // The tensors are borrowed until the reply is there, and so nobody changes them until the server has them.
        image.write_lending(&mut self.input, |input, _, bytes| input.lend(bytes).map(|_| ()))?;
        self.input.flush()?;
        let Some(count) = frame::read_count(&mut self.output)? else {
            return Err(Broken::Lost("its output ended".to_string()));
        };
        let mut payload = Payload::new(&mut self.output, count);
        let read = TensorStream::open(&mut payload, count.into(), "the reply").and_then(|stream| {
            let metadata = stream.metadata().clone();
            Ok(Reply { tensors: stream.read_all_again(spares)?, metadata })
        });
        // A reply that was cut short is a lost one, whatever else is wrong with it.
        payload.finish()?;
        if !self.input.is_drained() {
            return Err(Broken::Lost("it answered before it had read the request".to_string()));
        }
        read.map_err(Broken::Reply)
    }

    /// Ends the process, if it has not ended, and says how it did.
    fn end(self) -> String {
        let mut child = self.child();
        // A process that crashed may need a moment to be gone.
        for _ in 0..20 {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(status)) => return format!("ended with {status}"),
                Err(error) => return format!("cannot be asked how it is: {error}"),
            }
        }
        "broke off the conversation and was killed".to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        // It may have ended by itself; either way it is waited for, so that no zombie stays.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills a process at a deadline: reading from a pipe cannot be told to give up.
#[derive(Debug)]
struct Watchdog {
    shared: Arc<(Mutex<Watch>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Watch {
    deadline: Option<Instant>,
    fired: bool,
    over: bool,
}

impl Watchdog {
    fn start(child: Arc<Mutex<Child>>) -> io::Result<Self> {
        let shared = Arc::new((Mutex::new(Watch::default()), Condvar::new()));
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("watchdog".to_string()).spawn(move || {
            let (watch, changed) = &*seen;
            let mut state = lock(watch);
            while !state.over {
                let now = Instant::now();
                state = match state.deadline {
                    Some(deadline) if deadline <= now => {
                        (state.fired, state.deadline) = (true, None);
                        // It may have ended by itself in this moment.
                        let _ = lock(&child).kill();
                        state
                    }
                    Some(deadline) => {
                        changed.wait_timeout(state, deadline - now).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
            }
        })?;
        Ok(Watchdog { shared, thread: Some(thread) })
    }

    /// Watches until the guard is dropped.
    fn until(&self, deadline: Instant) -> impl Drop + use<> {
        struct Guard(Arc<(Mutex<Watch>, Condvar)>);
        impl Drop for Guard {
            fn drop(&mut self) {
                lock(&self.0.0).deadline = None;
            }
        }
        lock(&self.shared.0).deadline = Some(deadline);
        self.shared.1.notify_one();
        Guard(Arc::clone(&self.shared))
    }

    fn has_fired(&self) -> bool {
        lock(&self.shared.0).fired
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        lock(&self.shared.0).over = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // It only waits and kills: a panic in it has nothing to tell.
            let _ = thread.join();
        }
    }
}
