//! `causeway doctor`: what is here, what is missing, and what would bring it.

use causeway::Device;
use causeway::backend::cpu::{Cpu, Level};
use serde::Serialize;

use crate::VERSION;
use crate::failure::Failure;
use crate::host::{Host, format_bytes};
use crate::table::{Cell, Column, PASS, Table, WARN};
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  causeway doctor
  causeway doctor --json | jq .devices";

/// What is here: processor, devices, and what is missing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
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
    devices: Vec<DeviceFinding>,
}

#[derive(Serialize)]
struct DeviceFinding {
    name: &'static str,
    ready: bool,
    /// The device's description, or why there is none.
    detail: String,
}

/// Looks and prints.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let findings = Findings::gather();
    if args.json { terminal::print_json(&findings) } else { findings.print() }
}

impl Findings {
    fn gather() -> Self {
        let available = Level::ALL.into_iter().filter(|level| level.is_available());
        let device = |name| match Device::open(name) {
            Ok(device) => DeviceFinding { name, ready: true, detail: device.to_string() },
            Err(error) => DeviceFinding { name, ready: false, detail: error.to_string() },
        };
        Findings {
            causeway: VERSION,
            host: Host::detect(),
            cpu_levels: available.map(Level::name).collect(),
            cpu_level: Cpu::new().level().name(),
            devices: ["cuda", "hip", "cpu"].map(device).into(),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let unknown = || "unknown".to_string();
        let bytes = |value: Option<u64>| value.map_or_else(unknown, format_bytes);
        let host = &self.host;
        let memory = format!("{}, {} available", bytes(host.memory), bytes(host.available_memory));
        let level = format!("{} (has {})", self.cpu_level, self.cpu_levels.join(", "));
        terminal::print(&format!("causeway {}\n", self.causeway))?;
        let table = Table::begin(vec![Column::left("Host", 18), Column::left("", 0)])?;
        for (name, value) in [
            ("processor", host.processor.clone().unwrap_or_else(unknown)),
            ("system", format!("{} {}", host.architecture, host.system)),
            ("cores", host.cores.to_string()),
            ("vector features", host.features.join(" ")),
            ("kernels use", level),
            ("last-level cache", bytes(host.last_level_cache)),
            ("memory", memory),
        ] {
            table.row(&[format!("  {name}").into(), value.into()])?;
        }
        terminal::print("")?;
        let table = Table::begin(vec![Column::left("Devices", 18), Column::left("", 0)])?;
        for device in &self.devices {
            let style = if device.ready { PASS } else { WARN };
            table.row(&[format!("  {}", device.name).into(), Cell::styled(&device.detail, style)])?;
        }
        Ok(())
    }
}
