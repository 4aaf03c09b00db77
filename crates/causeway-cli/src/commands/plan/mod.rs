//! `causeway plan`: the launches of a suite's cases, chosen without a GPU; and which choices verified calls have reached.

mod coverage;

use causeway::backend::gpu::compiler::Target;
use causeway::backend::gpu::plan::DeviceFacts;
use causeway::{DType, Error};
use causeway_verify::suite::{Case, Suite, plans};
use serde_json::json;

use crate::failure::Failure;
use crate::suite_name::suite_name;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  causeway plan --suite shapes --case large-8x2048x1024-bf16-silu
  causeway plan --arch gfx942 --suite conv1d-last --case tiny --json
  causeway plan --coverage out/run.json

A plan is a function of the call and of the device's facts: which kernel, with which template arguments, in \
which grid. Facts of an architecture are those of its reference device.

Exit status:
  0  the plans are printed; with --coverage, every choice that calls can reach was reached
  1  with --coverage: choices are missing
  2  wrong usage or bad input

Environment:
  CAUSEWAY_PLAN_RANK  n: where a model of time ranks choices, the n-th after the best";

/// Which kernels a suite's cases launch on an architecture, and how
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Architecture: sm_90a, gfx942 … [default: sm_90a; with --coverage, the report's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,

    #[command(flatten)]
    coverage: coverage::CoverageArgs,

    /// Plan for a simulated device instead: sim:32, sim:64, sim:slow, sim:clusters or an architecture such as
    /// sim:gfx942, with or without an order such as :descending, which changes no plan
    #[arg(long, value_name = "DEVICE", conflicts_with = "arch")]
    device: Option<String>,

    #[command(flatten)]
    cases: GpuCases,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the plans.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let given = args.facts()?;
    if !args.coverage.coverage.is_empty() {
        return coverage::execute(&args.coverage, given, args.json);
    }
    let facts = or_default(given)?;
    let mut list = Vec::new();
    for case in args.cases.open()? {
        for (call, plan) in plans(&case, &facts)? {
            if args.json {
                list.push(json!({
                    "case": case.name, "call": call, "kernel": plan.entry(), "header": plan.header(),
                    "instantiation": plan.choice.source(), "grid": plan.grid, "block": plan.block,
                    "shared_bytes": plan.shared_bytes, "workspace_bytes": plan.workspace_bytes,
                    "counters": plan.counters, "read_bytes": plan.read_bytes,
                    "written_bytes": plan.written_bytes,
                }));
            } else {
                terminal::print(&format!("{} {call}", case.name))?;
                plan.to_string().lines().try_for_each(|line| terminal::print(&format!("  {line}")))?;
            }
        }
    }
    if args.json {
        terminal::print_json(&json!({ "arch": facts.architecture, "plans": list }))
    } else {
        Ok(())
    }
}

impl Args {
    /// Those of the device that was asked for.
    fn facts(&self) -> Result<Option<DeviceFacts>, Failure> {
        if let Some(name) = &self.device {
            return simulated(name)?.map(Some).ok_or_else(|| {
                Failure::from(Error::UnknownSimulator { found: name.clone() })
                    .with_help("--arch plans for the reference device of a GPU architecture")
            });
        }
        self.arch.as_deref().map(of_architecture).transpose()
    }
}

/// The facts of a simulated device; `None` if this is none.
fn simulated(name: &str) -> Result<Option<DeviceFacts>, Failure> {
    Ok(causeway_sim::Settings::parse(name)?.map(|settings| settings.facts))
}

/// Those that were asked for, or else an H200's.
fn or_default(facts: Option<DeviceFacts>) -> Result<DeviceFacts, Failure> {
    facts.map_or_else(|| of_architecture("sm_90a"), Ok)
}

/// The facts of an architecture's reference device.
fn of_architecture(name: &str) -> Result<DeviceFacts, Failure> {
    Ok(DeviceFacts::of_target(&Target::parse(name)?))
}

/// Which cases of a suite.
#[derive(Debug, clap::Args)]
pub(super) struct GpuCases {
    /// Suite: a name, or the path of a .toml file
    #[arg(long, value_name = "NAME|PATH", default_value = "shapes", value_parser = suite_name())]
    suite: String,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
}

impl GpuCases {
    /// Those that GPUs are asked for.
    pub(super) fn open(&self) -> Result<Vec<Case>, Failure> {
        let (suite, text) = (&self.suite, self.case.as_deref());
        let mut cases = Suite::open(suite)?.cases;
        cases.retain(|case| {
            case.problem.dtype() != DType::F64 && text.is_none_or(|text| case.name.contains(text))
        });
        if cases.is_empty() {
            let named = text.map(|text| format!(" has {text:?} in its name and")).unwrap_or_default();
            return Err(Failure::input(format!("no case of suite {suite}{named} is for a GPU")));
        }
        Ok(cases)
    }
}
