//! `causeway serve`: the kernel server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_server::{Interrupted, Protocol, Service, standard_pipes};
use causeway_verify::evidence::{Content, Report};

use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::{VERSION, terminal};

const NOTES: &str = "\
Frames on stdin and stdout, or on the socket: a little-endian u32 byte count, then that many bytes.

  tensors  a safetensors image; metadata names the operation and its options, as flags of `causeway run` do
  text     KERNEL_ID M N K, grad_C and B (1: grad_A) or A (2: grad_B), each on a line of its own, as decimal
           bit patterns of f16

Requests of several clients are answered in the order in which they came. SIGTERM and SIGINT end the server \
once the requests in hand are answered.

Exit status:
  0   the input ended between two frames, or the server was told to stop
  1   the server was told to stop, and a request in hand was not answered within 30 seconds
  2   the device or the socket cannot be opened, or the input cannot be read
  20  the input ended inside a frame's byte count
  21  the input ended inside a frame's payload";

/// Tensors' replies without results have room in so many bytes: the facts of the server, and short errors. Those of texts are
/// a line.
const LEAST_FRAME: u32 = 512;

/// Requests answered at the moment of a stop may take so long before the server ends without them.
const PATIENCE: Duration = Duration::from_secs(30);

/// A long-lived process that keeps the device open and kernels loaded
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// What frames hold
    #[arg(long, value_name = "tensors|text", default_value_t)]
    protocol: Protocol,

    /// Largest frame, in bytes, for tensors 512 or more; suffixes K, M and G mean KiB, MiB and GiB
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    max_frame: u32,

    /// Serve clients of a Unix socket, which only this user can open, instead of stdin and stdout
    #[cfg(unix)]
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,

    /// At its end, write what was answered to this directory: run.json, report.md and report.html
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,
}

/// A report to write when the server ends.
struct Ending {
    service: Arc<Service>,
    report: Option<(PathBuf, Report)>,
    start: Instant,
}

impl Ending {
    /// Writes the report, if one was asked for.
    fn write(&mut self) -> Result<(), Failure> {
        let Some((directory, mut report)) = self.report.take() else { return Ok(()) };
        report.content = Content::Service(self.service.report());
        report.kernels = self.service.kernels();
        report.conclude(self.start.elapsed().as_secs_f64());
        super::report::write(&directory, &report)
    }
}

/// `64M`
pub(super) fn parse_bytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|count| count.checked_mul(unit));
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "expected 1 to 4294967295 bytes, or a number of K, M or G (KiB, MiB, GiB)".to_string())
}

/// Refuses frames that cannot hold a reply.
fn check_max_frame(protocol: Protocol, bytes: u32) -> Result<(), Failure> {
    if protocol == Protocol::Tensors && bytes < LEAST_FRAME {
        return Err(Failure::input(format!(
            "--max-frame is {bytes}: expected {LEAST_FRAME} bytes or more, since a smaller frame does not hold what \
             an error says"
        )));
    }
    Ok(())
}

/// Serves until the input ends or a signal comes.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    check_max_frame(args.protocol, args.max_frame)?;
    let (device, threads) = args.device.open()?;
    if let Some(directory) = &args.report {
        super::report::make_directory(directory)?;
    }
    let report = args.report.clone().map(|directory| {
        let content = Content::Service(causeway_verify::evidence::Service::default());
        let mut report = threads.install(|| Report::begin(&device, VERSION, content));
        report.command = terminal::command_line();
        (directory, report)
    });
    let service = Service::new(device, threads, args.protocol, args.max_frame);
    let service = Arc::new(if report.is_some() { service.with_checks() } else { service });
    let ending = Ending { service: Arc::clone(&service), report, start: Instant::now() };
    let ending = Arc::new(Mutex::new(ending));
    #[cfg(unix)]
    if let Some(path) = &args.listen {
        return listen(&service, &ending, path);
    }
    #[cfg(unix)]
    stop_on_signals(&service, &ending, None)?;
    let (mut input, mut output) = standard_pipes()?;
    let served = service.serve_alone(&mut input, &mut output);
    lock(&ending).write()?;
    match served {
        Ok(()) => Ok(()),
        Err(error @ Interrupted::Count { .. }) => Err(Failure::status(20, error.to_string())),
        Err(error @ Interrupted::Payload { .. }) => Err(Failure::status(21, error.to_string())),
        Err(error @ Interrupted::Input(_)) => Err(Failure::input(error.to_string())),
        Err(Interrupted::Io(error)) => Err(error.into()),
    }
}

#[cfg(unix)]
fn listen(
    service: &Arc<Service>,
    ending: &Arc<Mutex<Ending>>,
    path: &std::path::Path,
) -> Result<(), Failure> {
    let unusable = |error| Failure::input(format!("cannot listen on {}: {error}", path.display()));
    let listener = Arc::new(causeway_server::Listener::bind(path).map_err(unusable)?);
    stop_on_signals(service, ending, Some(path.to_path_buf()))?;
    listener.serve(service).map_err(unusable)
}

/// Ends the process with status 0 on SIGTERM and SIGINT, when the requests in hand are answered.
#[cfg(unix)]
fn stop_on_signals(
    service: &Arc<Service>,
    ending: &Arc<Mutex<Ending>>,
    socket: Option<PathBuf>,
) -> Result<(), Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let unusable = |error| Failure::input(format!("signals cannot be received: {error}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).map_err(unusable)?;
    let (service, ending) = (Arc::clone(service), Arc::clone(ending));
    let wait = move || {
        if signals.forever().next().is_some() {
            let answered = service.stop(PATIENCE);
            if let Some(path) = socket {
                // Somebody may have removed it before.
                let _ = std::fs::remove_file(path);
            }
            let written = lock(&ending).write().map_or_else(Failure::report, |()| 0);
            std::process::exit(if answered { i32::from(written) } else { 1 });
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(wait).map_err(unusable)?;
    Ok(())
}

/// Writing a report cannot leave it half-way: it is taken out first.
fn lock(ending: &Mutex<Ending>) -> MutexGuard<'_, Ending> {
    ending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64K"), Ok(64 << 10));
        assert_eq!(parse_bytes("3m"), Ok(3 << 20));
        assert_eq!(parse_bytes("1G"), Ok(causeway_server::DEFAULT_MAX_FRAME));
        for wrong in ["", "0", "K", "4G", "-1", "1T", "1.5M", "4294967296"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn frames_of_tensors_have_room_for_an_error() {
        assert!(check_max_frame(Protocol::Tensors, 512).is_ok());
        assert!(check_max_frame(Protocol::Tensors, 511).is_err());
        assert!(check_max_frame(Protocol::Text, 1).is_ok());
    }
}
