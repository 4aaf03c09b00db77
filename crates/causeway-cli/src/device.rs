//! `--device` and `--threads`, for every command that computes.

use causeway::Device;

use crate::failure::Failure;

/// Where to compute.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// cpu, cuda, cuda:N, hip, hip:N, or best: the first of cuda, hip and cpu that is present
    #[arg(long, value_name = "DEVICE", env = "CAUSEWAY_DEVICE", default_value = "best")]
    device: String,

    /// Threads on a CPU [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl DeviceArgs {
    /// Opens the device, and makes a pool of the threads that were asked for.
    pub fn open(&self) -> Result<(Device, rayon::ThreadPool), Failure> {
        let device = Device::open(&self.device)?;
        if self.threads == Some(0) {
            return Err(Failure::input("--threads is 0: expected 1 or more"));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads.unwrap_or(0))
            .build()
            .map_err(|error| Failure::input(format!("the threads cannot be started: {error}")))?;
        Ok((device, pool))
    }

    /// Opens the device and calls `body` with it, inside a pool of the threads that were asked for.
    pub fn with<T, F>(&self, body: F) -> Result<T, Failure>
    where
        T: Send,
        F: FnOnce(&Device) -> Result<T, Failure> + Send,
    {
        let (device, pool) = self.open()?;
        pool.install(|| body(&device))
    }
}
