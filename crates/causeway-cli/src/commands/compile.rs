//! `causeway compile`: fills the kernel cache ahead of time, with no GPU present.

use causeway::backend::gpu::cache::Origin;
use causeway::backend::gpu::compiler::Target;
use serde_json::json;

use super::plan::GpuCases;
use crate::device::with_threads;
use crate::failure::Failure;
use crate::{kernels, terminal};

const EXAMPLES: &str = "\
Examples:
  causeway compile --arch sm_90a
  causeway compile --arch gfx90a --arch gfx942 --suite full
  CAUSEWAY_CACHE_DIR=/srv/kernels causeway compile --arch sm_80 --case bf16

Compiles what the cases of a suite launch on the reference device of each architecture. Kernels that the cache \
has already are left as they are. Another shape may need another kernel: that one is compiled when it is first used.";

/// Compile the kernels of a suite into the cache, with no GPU present
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Architecture: sm_90a, gfx942 …; may be repeated
    #[arg(long = "arch", value_name = "ARCH", required = true)]
    archs: Vec<String>,

    #[command(flatten)]
    cases: GpuCases,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Compiles for every architecture.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    // All names first: a typing error should not cost the time of the others.
    let targets = args.archs.iter().map(|arch| Target::parse(arch)).collect::<Result<Vec<_>, _>>()?;
    let cases = args.cases.open()?;
    let mut results = Vec::new();
    for target in &targets {
        let codes = with_threads(0, || kernels::compile(target, &cases))?;
        let compiled = codes.iter().filter(|code| code.origin == Origin::Compiled).count();
        let bytes: usize = codes.iter().map(|code| code.image.len()).sum();
        let compiler = codes.first().map_or("", |code| code.compiler.as_str());
        let stored = codes.iter().all(|code| code.key.is_some());
        if args.json {
            results.push(json!({
                "arch": target.architecture(), "kernels": codes.len(), "compiled": compiled, "bytes": bytes,
                "compiler": compiler, "cached": stored,
            }));
        } else {
            let place = if stored { "" } else { "; the cache is off, so nothing was kept" };
            terminal::print(&format!(
                "{}: {} kernels, {compiled} compiled by {compiler}, {} already in the cache; {} KiB of code{place}",
                target.architecture(),
                codes.len(),
                codes.len() - compiled,
                bytes / 1024,
            ))?;
        }
    }
    if args.json { terminal::print_json(&results) } else { Ok(()) }
}
