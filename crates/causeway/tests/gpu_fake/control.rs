//! Processes that see the fake drivers and nothing else, and what they ask of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use causeway::backend::gpu::plan::Vendor;
use libloading::Library;

use crate::fake_gpu;

const VENDOR: &str = "CAUSEWAY_TEST_VENDOR";

/// The directory of the fake, built once.
pub fn fake() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        fake_gpu::build(Path::new(fake_gpu::SOURCE), directory.path());
        directory
    });
    directory.path()
}

/// Runs an ignored test of this program in a process that sees only the libraries of a directory; what it prints.
pub fn run(scenario: &str, vendor: &str, directory: &Path, variables: &[(&str, &str)]) -> String {
    let mut search = directory.as_os_str().to_os_string();
    search.push(":-");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", scenario, "--ignored", "--nocapture"])
        .env("CAUSEWAY_LIBRARY_PATH", search)
        .env("CAUSEWAY_CACHE", "off")
        .env(VENDOR, vendor)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{scenario} on {vendor}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The vendor that this process was started for.
pub fn vendor() -> Vendor {
    match std::env::var(VENDOR).unwrap().as_str() {
        "cuda" => Vendor::Nvidia,
        _ => Vendor::Amd,
    }
}

/// The fake's own functions.
pub struct Control(Library);

/// The fake's accounts: live objects by kind, launches, the depth of this thread's context stack or HIP's current
/// device, the error that HIP would hand to another library.
#[derive(Debug, Clone, PartialEq)]
pub struct Accounts(BTreeMap<String, i64>);

impl Accounts {
    pub fn get(&self, name: &str) -> i64 {
        self.0[name]
    }

    /// What has come since, by name.
    pub fn since(&self, before: &Accounts) -> BTreeMap<&str, i64> {
        self.0.iter().map(|(name, number)| (name.as_str(), number - before.get(name))).collect()
    }
}

impl Control {
    pub fn new() -> Self {
        let directory = std::env::var_os("CAUSEWAY_LIBRARY_PATH").unwrap();
        let directory = std::env::split_paths(&directory).next().unwrap();
        // SAFETY: the fake has no initialisers.
        Control(unsafe { Library::new(directory.join("libcuda.so.1")) }.unwrap())
    }

    /// Makes the call number `after` from now on fail once.
    pub fn fail(&self, after: u64, code: i32) {
        // SAFETY: the fake's function has this signature; so below.
        unsafe { self.0.get::<extern "C" fn(u64, i32)>(b"fake_fail").unwrap()(after, code) }
    }

    pub fn lose(&self) {
        // SAFETY: as above.
        unsafe { self.0.get::<extern "C" fn()>(b"fake_lose").unwrap()() }
    }

    fn text(&self, function: &str) -> String {
        let mut text = vec![0; 1 << 16];
        // SAFETY: as above.
        let length = unsafe {
            let function = self.0.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(function.as_bytes());
            function.unwrap()(text.as_mut_ptr(), text.len())
        };
        text.truncate(length);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The name of the call that was made to fail, or nothing.
    pub fn failed(&self) -> String {
        self.text("fake_failed")
    }

    /// The calls since the last fault was set, with their arguments.
    pub fn log(&self) -> String {
        self.text("fake_log")
    }

    pub fn accounts(&self) -> Accounts {
        let line = |line: &str| {
            let (name, number) = line.split_once(' ').unwrap();
            (name.to_string(), number.parse().unwrap())
        };
        Accounts(self.text("fake_accounts").lines().map(line).collect())
    }

    /// Launches since a call was made to fail.
    pub fn launches_since(&self) -> u64 {
        // SAFETY: as above.
        unsafe { self.0.get::<extern "C" fn() -> u64>(b"fake_launches_since").unwrap()() }
    }

    /// The first bytes of the last launch's argument.
    pub fn last_argument(&self) -> [u8; 24] {
        let mut argument = [0; 24];
        // SAFETY: as above; one launch has been made.
        unsafe {
            let function = self.0.get::<unsafe extern "C" fn(*mut u8)>(b"fake_last_argument");
            function.unwrap()(argument.as_mut_ptr());
        }
        argument
    }

    /// Makes the first device HIP's current one again, after a failure to go back to it.
    pub fn reset_device(&self) {
        // SAFETY: as above.
        unsafe { self.0.get::<unsafe extern "C" fn(i32) -> i32>(b"hipSetDevice").unwrap()(0) };
    }
}
