//! `causeway doctor`: what is here, what is missing, and what would bring it.

use std::path::Path;

use causeway::backend::cpu::{Cpu, Level};
use causeway::backend::gpu::cache::Cache;
use causeway::backend::gpu::library::Search;
use causeway::backend::gpu::plan::Vendor;
use causeway::backend::gpu::{DeviceReport, devices};
use causeway::{Device, Error};
use serde::Serialize;

use crate::VERSION;
use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::table::{Cell, Column, PASS, Table, WARN};
use crate::terminal;
use causeway_verify::evidence::{Host, words};

const EXAMPLES: &str = "\
Examples:
  causeway doctor
  causeway doctor --json | jq .devices
  causeway doctor --explain-cache 3f9a";

/// What is here: processor, devices, compilers, and what is missing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Say what the kernel of this cache key was made from; the beginning of a key will do
    #[arg(long, value_name = "KEY", conflicts_with = "json")]
    explain_cache: Option<String>,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Findings {
    causeway: &'static str,
    host: Host,
    /// Sets of vector instructions that the kernels are compiled for and this processor has.
    cpu_levels: Vec<&'static str>,
    /// The one that is used.
    cpu_level: &'static str,
    devices: Vec<Finding>,
    /// The one that commands take without `--device`.
    default_device: Finding,
    compilers: Vec<Finding>,
    cache: Option<CacheFinding>,
}

/// A device or library: there, or not.
#[derive(Serialize)]
struct Finding {
    name: String,
    ready: bool,
    /// What it is and where it was found, or why it cannot be used.
    detail: String,
    /// What would bring it.
    help: Option<String>,
}

/// Compiled kernels on disk.
#[derive(Serialize)]
struct CacheFinding {
    directory: String,
    entries: usize,
    bytes: u64,
    /// `on`, `readonly`: what CAUSEWAY_CACHE asks for.
    mode: String,
    /// What keeps the cache from being what the environment asks for.
    problems: Vec<String>,
}

/// Looks and prints.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    if let Some(key) = &args.explain_cache {
        return terminal::print(Cache::from_environment().explain(key)?.trim_end());
    }
    let findings = Findings::gather();
    if args.json { terminal::print_json(&findings) } else { findings.print() }
}

impl Findings {
    fn gather() -> Self {
        let levels = Level::ALL.into_iter().filter(|level| level.is_available());
        let mut found = gpus("cuda", Vendor::Nvidia);
        found.extend(gpus("hip", Vendor::Amd));
        found.push(Finding::ready("cpu", Device::cpu().to_string()));
        found.push(simulator());
        let cache = Cache::from_environment();
        Findings {
            causeway: VERSION,
            host: Host::detect(),
            cpu_levels: levels.map(Level::name).collect(),
            cpu_level: Cpu::new().level().name(),
            devices: found,
            default_device: default_device(),
            compilers: vec![compiler("NVRTC (cuda)", Vendor::Nvidia), compiler("HIPRTC (hip)", Vendor::Amd)],
            cache: cache.directory().map(|directory| CacheFinding {
                directory: directory.display().to_string(),
                entries: cache.entries().len(),
                bytes: cache.entries().iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum(),
                mode: if cache.is_read_only() { "readonly" } else { "on" }.to_string(),
                problems: Cache::unknown_mode().into_iter().chain(unusable(&cache, directory)).collect(),
            }),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let unknown = || "unknown".to_string();
        let bytes = |value: Option<u64>| value.map_or_else(unknown, words::bytes);
        let host = &self.host;
        terminal::print(&format!("causeway {}\n", self.causeway))?;
        let table = begin("Host")?;
        for (name, value) in [
            ("processor", host.processor.clone().unwrap_or_else(unknown)),
            ("system", format!("{} {}", host.architecture, host.system)),
            ("cores", host.cores.to_string()),
            ("vector features", host.features.join(" ")),
            ("kernels use", format!("{} (has {})", self.cpu_level, self.cpu_levels.join(", "))),
            ("last-level cache", bytes(host.last_level_cache)),
            ("memory", format!("{}, {} available", bytes(host.memory), bytes(host.available_memory))),
        ] {
            table.row(&[format!("  {name}").into(), value.into()])?;
        }
        let devices = self.devices.iter().chain([&self.default_device]).collect::<Vec<_>>();
        for (title, findings) in [("Devices", devices), ("Compilers", self.compilers.iter().collect())] {
            terminal::print("")?;
            let table = begin(title)?;
            for finding in findings {
                let style = if finding.ready { PASS } else { WARN };
                let detail = Cell::styled(&finding.detail, style);
                table.row(&[format!("  {}", finding.name).into(), detail])?;
                if let Some(line) = &finding.help {
                    table.row(&["".into(), format!("to have it: {line}").into()])?;
                }
            }
        }
        terminal::print("")?;
        let table = begin("Kernel cache")?;
        match &self.cache {
            Some(cache) => {
                table.row(&["  directory".into(), cache.directory.as_str().into()])?;
                table.row(&["  mode".into(), cache.mode.as_str().into()])?;
                for problem in &cache.problems {
                    table.row(&["".into(), Cell::styled(problem, WARN)])?;
                }
                table.row(&[
                    "  entries".into(),
                    format!("{}, {}", cache.entries, words::bytes(cache.bytes)).into(),
                ])
            }
            None => table.row(&["  off".into(), "CAUSEWAY_CACHE or the environment says so".into()]),
        }
    }
}

impl Finding {
    fn ready(name: impl Into<String>, detail: String) -> Self {
        Finding { name: name.into(), ready: true, detail, help: None }
    }

    fn missing(name: impl Into<String>, error: &Error) -> Self {
        // The whole text lists every place that was searched.
        let (detail, help) = match error {
            Error::LibraryMissing { library, install, refused, .. } => {
                let refused = refused.first().map_or(String::new(), |line| format!("; {line}"));
                (format!("not found: {library}{refused}"), Some((*install).to_string()))
            }
            other => (other.to_string(), None),
        };
        Finding { name: name.into(), ready: false, detail, help }
    }
}

/// Every GPU of a vendor, or why there is none.
fn gpus(name: &str, vendor: Vendor) -> Vec<Finding> {
    let describe = |report: &DeviceReport| match report.expect_supported() {
        Ok(()) => {
            let (architecture, memory) = (&report.facts.architecture, words::bytes(report.memory_bytes));
            let (version, library) = (&report.driver_version, &report.driver_library);
            let units = report.facts.multiprocessors;
            let clock = match report.clock_khz {
                0 => String::new(),
                khz => format!(" at up to {} MHz", khz / 1000),
            };
            let text = format!(
                "{}, {architecture}, {units} multiprocessors{clock}, {memory}, driver {version} from {library}",
                report.name
            );
            Finding::ready(report.location().to_string(), text)
        }
        Err(error) => Finding::missing(report.location().to_string(), &error),
    };
    match devices(vendor) {
        Ok(reports) => reports.iter().map(describe).collect(),
        Err(error) => vec![Finding::missing(name, &error)],
    }
}

/// What commands compute on without `--device`.
fn default_device() -> Finding {
    let (name, (device, chosen_by)) = ("default", DeviceArgs::unnamed());
    match device {
        Ok(device) => Finding::ready(name, format!("{device}: {chosen_by}")),
        Err(failure) => {
            Finding { name: name.to_string(), ready: false, detail: failure.in_one_line(), help: None }
        }
    }
}

/// The simulator of GPUs, which needs a C++ compiler.
fn simulator() -> Finding {
    let name = "sim:32, sim:64";
    match causeway_sim::compiler() {
        Ok((program, version)) => Finding::ready(
            name,
            format!("GPU kernels, thread by thread, through {} ({version})", program.display()),
        ),
        Err(error) => Finding {
            name: name.to_string(),
            ready: false,
            detail: error.to_string(),
            help: Some("apt-get install clang-19".to_string()),
        },
    }
}

/// The compiler of a vendor, as everything that compiles finds it.
fn compiler(name: &str, vendor: Vendor) -> Finding {
    match Search::from_environment().open_compiler(vendor, None) {
        Ok(opened) => Finding::ready(name, opened.path.display().to_string()),
        Err(error) => Finding::missing(name, &error),
    }
}

/// Why nothing can be kept in the cache's directory, which may have yet to be made.
fn unusable(cache: &Cache, directory: &Path) -> Option<String> {
    let there = directory.ancestors().find(|folder| folder.exists()).filter(|_| !cache.is_read_only())?;
    // The kind alone: the file that was tried has a name that nobody asked for.
    let error = tempfile::tempfile_in(there).err()?.kind();
    Some(format!("no kernel can be kept in it: {}: {error}", there.display()))
}

fn begin(title: &'static str) -> Result<Table, Failure> {
    Table::begin(vec![Column::left(title, 18), Column::left("", 0)])
}
