//! `--device` and `--threads`, for every command that computes.

use std::sync::Arc;

use causeway::{Device, Error};
use causeway_sim::{Settings, Simulator};

use crate::failure::Failure;
use crate::number::within;

/// More would take minutes to start, and no machine has so many cores.
pub const MOST_THREADS: usize = 4096;

/// Chooses the device where `--device` does not.
const VARIABLE: &str = "CAUSEWAY_DEVICE";

/// Where to compute.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// cpu, cuda, cuda:N, hip, hip:N, or best: the first of cuda, hip and cpu that is present. cpu:portable, cpu:neon,
    /// cpu:avx2 and cpu:avx512 choose vector instructions. sim:32 and sim:64 simulate a GPU with waves of so many threads;
    /// sim:64:descending or sim:gfx942:shuffled:7 choose the order of threads, or the architecture too
    /// [default: what the environment variable CAUSEWAY_DEVICE says, else best]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Threads on a CPU, 1 to 4096 [default: one per core]
    #[arg(long, value_name = "N", value_parser = within(1, MOST_THREADS))]
    threads: Option<usize>,
}

impl DeviceArgs {
    /// The same choice, for another process of this command.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--device".to_string(), self.name().0];
        arguments
            .extend(self.threads.into_iter().flat_map(|count| ["--threads".to_string(), count.to_string()]));
        arguments
    }

    /// Opens the device, and makes a pool of the threads that were asked for.
    pub fn open(&self) -> Result<(Device, rayon::ThreadPool), Failure> {
        let (device, threads) = self.device()?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(no_threads)?;
        Ok((device, pool))
    }

    /// Opens the device and calls `body` with it, inside a pool of the threads that were asked for.
    pub fn with<T, F>(&self, body: F) -> Result<T, Failure>
    where
        T: Send,
        F: FnOnce(&Device) -> Result<T, Failure> + Send,
    {
        let (device, threads) = self.device()?;
        with_threads(threads, || body(&device))
    }

    /// The device that commands take without `--device`, or why it cannot be opened, and what has chosen it.
    pub fn unnamed() -> (Result<Device, Failure>, &'static str) {
        let arguments = DeviceArgs { device: None, threads: None };
        let chosen_by = if arguments.name().1 { VARIABLE } else { "best of those present" };
        (arguments.device().map(|(device, _)| device), chosen_by)
    }

    /// The device's name, and whether the environment has chosen it. An empty variable counts as unset.
    fn name(&self) -> (String, bool) {
        if let Some(name) = &self.device {
            return (name.clone(), false);
        }
        match std::env::var_os(VARIABLE) {
            Some(value) if !value.is_empty() => (value.to_string_lossy().into_owned(), true),
            _ => ("best".to_string(), false),
        }
    }

    fn device(&self) -> Result<(Device, usize), Failure> {
        let (name, from_variable) = self.name();
        let device =
            open(&name).map_err(|error| if from_variable { error.within(VARIABLE) } else { error })?;
        Ok((device, self.threads.unwrap_or(0)))
    }
}

/// Calls `body` inside a pool of so many threads, or of one per core for 0. They have ended when this returns: a thread
/// that a compiler has used must be gone before the process takes that compiler down.
pub(crate) fn with_threads<T: Send>(
    threads: usize,
    body: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let result = builder.build_scoped(|thread| thread.run(), |pool| pool.install(body));
    result.unwrap_or_else(|error| Err(no_threads(error)))
}

fn no_threads(error: rayon::ThreadPoolBuildError) -> Failure {
    Failure::input(format!("the threads cannot be started: {error}"))
}

/// The device of this name, or what `--device` has to say.
fn open(name: &str) -> Result<Device, Failure> {
    open_device(name).map_err(|error| match error {
        Error::UnknownDevice { .. } => Failure::from(error).with_help(SIMULATED),
        error => error.into(),
    })
}

/// What the message of an unknown device leaves out.
pub const SIMULATED: &str = "sim:32 and sim:64 are simulated GPUs";

/// A device of the library, or a simulated one, by the name that `--device` has for it.
///
/// # Errors
/// Those of [`Device::open`], and [`Error::UnknownSimulator`] and [`Error::SimulatorCompiler`] of a simulated one.
pub fn open_device(name: &str) -> causeway::Result<Device> {
    match Settings::parse(name)? {
        Some(settings) => Ok(Device::Simulated(Arc::new(Simulator::new(settings)?))),
        None => Device::open(name),
    }
}
