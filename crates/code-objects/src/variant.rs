//! The kernel variants that suites plan, each with a name that a person can read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use causeway::DType;
use causeway::backend::gpu::compiler::{Program, Target};
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway_verify::suite::{Case, Suite, plans};

use crate::messages;

/// A suite for processors, whose shapes no GPU is asked for.
const NOT_FOR_GPUS: &str = "cpu-large";

/// Every suite of a folder.
pub fn suites(folder: &Path) -> Result<Vec<Suite>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let suites = paths.iter().map(|path| Ok(Suite::open(&path.to_string_lossy())?));
    let mut suites = suites.collect::<Result<Vec<_>>>()?;
    suites.retain(|suite| suite.name != NOT_FOR_GPUS);
    Ok(suites)
}

/// A kernel and its template arguments.
pub struct Variant {
    /// As [`name_of`] says.
    pub name: String,
    /// What is compiled: the first that was planned of [`Variant::programs`].
    plan: Plan,
    /// Header and text, by whether the launch is programmatic: a statement in the entry that takes no register, so that both
    /// are one variant.
    programs: BTreeMap<bool, (&'static str, String)>,
    /// The suites that plan it.
    pub suites: BTreeSet<String>,
}

impl Variant {
    pub fn program(&self) -> Program {
        Program::of(&self.plan.choice)
    }

    /// The kernel's entry point.
    pub fn entry(&self) -> &'static str {
        self.plan.entry()
    }

    /// Most bytes of shared memory that a launch of it asks for.
    pub fn shared_bytes(&self) -> u32 {
        self.plan.shared_bytes
    }
}

/// The width of the convolution that a variant is compiled for; None for the general kernels and for products.
pub fn width(name: &str) -> Option<u32> {
    name.split(' ').find_map(|word| word.strip_prefix("width=")?.parse().ok())
}

/// Whether a variant is a matrix product through matrix units.
pub fn uses_matrix_units(name: &str) -> bool {
    name.starts_with("gemm_") && !name.starts_with("gemm_exact ")
}

/// What the suites and [`messages`] launch on a target's reference device, and of sm_90a on an H100 too, by name.
pub fn planned(suites: &[Suite], target: &Target) -> Result<BTreeMap<String, Variant>> {
    let mut variants = BTreeMap::new();
    add_planned(&mut variants, suites, &DeviceFacts::of_target(target))?;
    if target.architecture() == DeviceFacts::h100().architecture {
        add_planned(&mut variants, suites, &DeviceFacts::h100())?;
    }
    Ok(variants)
}

fn add_planned(
    variants: &mut BTreeMap<String, Variant>,
    suites: &[Suite],
    facts: &DeviceFacts,
) -> Result<()> {
    for suite in suites {
        let on_gpu = |case: &&Case| case.problem.dtype() != DType::F64;
        for case in suite.cases.iter().filter(on_gpu) {
            // Some cases are there to be refused.
            for (_, plan) in plans(case, facts).unwrap_or_default() {
                add(variants, &plan, &suite.name)?;
            }
        }
    }
    messages::plans(facts)?.iter().try_for_each(|plan| add(variants, plan, messages::NAME))
}

fn add(variants: &mut BTreeMap<String, Variant>, plan: &Plan, suite: &str) -> Result<()> {
    let name = name_of(plan)?;
    let variant = variants.entry(name.clone()).or_insert_with(|| Variant {
        name: name.clone(),
        plan: plan.clone(),
        programs: BTreeMap::new(),
        suites: BTreeSet::new(),
    });
    let program = (plan.header(), plan.choice.source());
    if *variant.programs.entry(plan.programmatic_launch).or_insert_with(|| program.clone()) != program {
        bail!("two programs have the name {name:?}");
    }
    variant.plan.shared_bytes = variant.plan.shared_bytes.max(plan.shared_bytes);
    variant.suites.insert(suite.to_string());
    Ok(())
}

/// `gemm_tile gemm_mma T=f16 left_bytes=16 … | rows=64 … | (128, 4)`: entry, file, then each struct of constants without
/// those that are zero or false, and the launch bounds.
fn name_of(plan: &Plan) -> Result<String> {
    let file = plan.header().trim_end_matches(".cuh");
    let mut words = vec![plan.entry().to_string()];
    if file != plan.entry() {
        words.push(file.to_string());
    }
    for line in plan.choice.source().lines().map(str::trim) {
        let constant = |prefix: &str| line.strip_prefix(prefix)?.strip_suffix(';')?.split_once(" = ");
        let plain = |value: &str| value.rsplit("::").next().unwrap_or_default().to_string();
        if let Some((name, value)) = constant("using ") {
            words.push(format!("{name}={}", plain(value)));
        } else if let Some((name, value)) = constant("static constexpr bool ") {
            words.extend((value == "true").then(|| name.to_string()));
        } else if let Some((name, value)) = constant("static constexpr int ") {
            words.extend((value != "0").then(|| format!("{name}={value}")));
        } else if let Some((name, value)) = constant("static constexpr auto ") {
            words.push(format!("{name}={}", plain(value)));
        } else if line.starts_with("struct Tile") {
            words.push("|".to_string());
        } else if let Some((_, bounds)) = line.split_once("_KERNEL(") {
            let bounds = bounds.split(')').next().unwrap_or_default();
            words.push(format!("| ({bounds})"));
        } else if line.starts_with("namespace ") {
            // Of a launch of several calls, each of which has a body.
            words.push("&".to_string());
        } else if let Some(body) = line.strip_suffix("<Problem, Tile>(arguments, block);") {
            words.push(plain(body));
        } else if line.starts_with("if (causeway::block_index<1>()") {
            words.push("uneven".to_string());
        } else if !["struct ", "causeway::", "CAUSEWAY_DEVICE ", "const causeway::", "member_"]
            .iter()
            .chain(&["if (block < ", "} else if (block < "])
            .any(|known| line.starts_with(known))
            && !matches!(line, "};" | "}")
        {
            bail!("a line of {} that no name says: {line:?}", plan.entry());
        }
    }
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_variant_is_compiled_for() {
        let suites = ["small", "gemm"].map(|name| Suite::open(name).unwrap());
        let variants = planned(&suites, &Target::parse("sm_90a").unwrap()).unwrap();
        let names: Vec<&str> = variants.keys().map(String::as_str).collect();
        let forward = names.iter().find(|name| {
            name.starts_with("causal_conv1d_forward_channel_first X=float Weight=float width=4 silu bias |")
        });
        let forward = forward.unwrap_or_else(|| panic!("{names:#?}"));
        assert_eq!(width(forward), Some(4));
        assert!(forward.contains(" access=16 lanes=") && forward.ends_with(" | (256, 1)"), "{forward}");
        let product = names.iter().find(|name| name.starts_with("gemm_")).unwrap();
        assert_eq!(width(product), None);
    }

    #[test]
    fn products_name_their_matrix_unit() {
        let suites = [Suite::open("gemm").unwrap()];
        let variants = planned(&suites, &Target::parse("gfx942").unwrap()).unwrap();
        let fast: Vec<_> = variants.keys().filter(|name| uses_matrix_units(name)).collect();
        assert!(!fast.is_empty() && fast.len() < variants.len());
        assert!(fast.iter().all(|name| name.starts_with("gemm_tile gemm_mfma T=")));
    }
}
