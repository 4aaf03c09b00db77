//! Holds the machine code of every kernel variant to the tables in snapshots/. docs/code-objects.md says what the columns
//! show; `tests/code-objects` runs this with the compilers that the tables are made with.

mod amd;
mod build;
#[path = "../../causeway/tests/common/clang.rs"]
#[allow(dead_code)] // Skipping is for tests: here a missing compiler is an error.
mod clang;
mod disassembly;
mod facts;
mod gate;
mod messages;
mod nvidia;
mod sample;
mod snapshot;
mod variant;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use causeway::backend::gpu::compiler::Target;
use clap::Parser;
use rayon::prelude::*;

use crate::build::{Build, Workshop, builds};
use crate::snapshot::Snapshot;
use crate::variant::{Variant, planned, suites};

/// Build the kernels for every GPU architecture and compare the code with the committed tables
#[derive(Debug, Parser)]
enum Command {
    /// Build a part of each table, or all of it, and fail if a kernel got worse
    Check {
        /// Every variant, not only those that builds.toml names
        #[arg(long)]
        all: bool,
        /// Tables: sm_90a, gfx90a-hiprtc …; all of them if none is named
        tables: Vec<String>,
    },
    /// Build every variant and write the tables
    Refresh {
        /// Build only what a table lacks, and keep its other rows
        #[arg(long)]
        missing: bool,
        /// Build only what a table lacks and the kernels whose name contains this, and keep the other rows
        #[arg(long, value_name = "TEXT")]
        kernel: Option<String>,
        /// Tables: sm_90a, gfx90a-hiprtc …; all of them if none is named
        tables: Vec<String>,
    },
    /// Print a digest of the machine code of the variants that a check builds: equal lines are equal code
    Digest {
        /// Every variant, not only those that builds.toml names
        #[arg(long)]
        all: bool,
        /// Only the kernels whose name contains this
        #[arg(long, value_name = "TEXT", default_value = "")]
        kernel: String,
        /// Tables: sm_90a, gfx90a-hiprtc …; all of them if none is named
        tables: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Check { all, tables } => check(all, &tables),
        Command::Refresh { missing, kernel, tables } => {
            let rebuilt = |name: &str| match &kernel {
                Some(kernel) => name.contains(kernel.as_str()),
                None => !missing,
            };
            refresh(rebuilt, &tables)
        }
        Command::Digest { all, kernel, tables } => digest(all, &kernel, &tables),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// A table, and what belongs into it.
struct Table {
    build: Build,
    /// What compiles it now.
    compiler: String,
    variants: BTreeMap<String, Variant>,
    /// The committed rows.
    snapshot: Snapshot,
}

impl Table {
    /// Numbers of two compilers are not compared, and do not belong into one table.
    fn is_of_this_compiler(&self) -> bool {
        self.snapshot.compiler == self.compiler
    }
}

/// The named tables, or all of them. One that is not there yet is empty.
fn tables(workshop: &Workshop, names: &[String]) -> Result<Vec<Table>> {
    let mut chosen = builds()?;
    let known: Vec<String> = chosen.iter().map(|build| build.name.clone()).collect();
    for name in names {
        ensure!(known.contains(name), "table is {name:?}: expected one of {}", known.join(", "));
    }
    chosen.retain(|build| names.is_empty() || names.contains(&build.name));
    let suites = suites(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../suites"))?;
    let table = |build: Build| {
        let compiler = workshop.version(&build)?;
        let path = snapshot::path(&build.name);
        let empty = || Snapshot { compiler: compiler.clone(), rows: BTreeMap::new() };
        Ok(Table {
            variants: planned(&suites, &Target::parse(&build.arch)?)?,
            snapshot: if path.exists() { Snapshot::read(&path)? } else { empty() },
            compiler,
            build,
        })
    };
    chosen.into_iter().map(table).collect()
}

/// A variant to build: the table's place among the tables, and the name.
type Job = (usize, String);

/// The tables' jobs in an order in which they advance together: HIPRTC works on one program at a time, and the other cores
/// then have another table's.
fn in_turns(wanted: Vec<Vec<String>>) -> Vec<Job> {
    let places = |(table, names): (usize, Vec<String>)| {
        let count = names.len();
        names.into_iter().enumerate().map(move |(at, name)| (at * 1_000_000 / count, table, name))
    };
    let mut jobs: Vec<_> = wanted.into_iter().enumerate().flat_map(places).collect();
    jobs.sort();
    jobs.into_iter().map(|(_, table, name)| (table, name)).collect()
}

/// Builds on all cores; what `of` makes of each job, and its time.
fn run<'a, T: Send>(
    tables: &[Table],
    jobs: &'a [Job],
    of: impl Fn(&Build, &Variant) -> Result<T> + Sync,
) -> Result<Vec<(&'a Job, T, Duration)>> {
    let one = |job: &'a Job| {
        let (table, start) = (&tables[job.0], Instant::now());
        let made = of(&table.build, &table.variants[&job.1])
            .with_context(|| format!("{} {}", table.build.name, job.1))?;
        Ok((job, made, start.elapsed()))
    };
    jobs.par_iter().with_max_len(1).map(one).collect()
}

/// Prints a line for each variant: its table, the digest of its machine code, its name.
fn digest(all: bool, kernel: &str, names: &[String]) -> Result<bool> {
    let workshop = Workshop::new();
    let tables = tables(&workshop, names)?;
    let wanted = tables.iter().map(|Table { build, variants, snapshot, .. }| {
        let chosen = sample::chosen(build, variants, snapshot);
        let is_wanted = |name: &&String| (all || chosen.contains(*name)) && name.contains(kernel);
        variants.keys().filter(is_wanted).cloned().collect()
    });
    let jobs = in_turns(wanted.collect());
    let mut lines = Vec::new();
    for ((at, name), digest, _) in run(&tables, &jobs, |build, variant| workshop.code_digest(build, variant))?
    {
        lines.push(format!("{}\t{digest}\t{name}", tables[*at].build.name));
    }
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(true)
}

/// Compares with the tables. False if something got worse.
fn check(all: bool, names: &[String]) -> Result<bool> {
    let workshop = Workshop::new();
    let tables = tables(&workshop, names)?;
    let mut failures = Vec::new();
    let mut wanted = Vec::new();
    for table in &tables {
        let Table { build, compiler, variants, snapshot } = table;
        // Both lists are known without building anything.
        let new = variants.keys().filter(|name| !snapshot.rows.contains_key(*name));
        let new = new.map(|name| (name, "is not in the table"));
        let gone = snapshot.rows.keys().filter(|name| !variants.contains_key(*name));
        let gone = gone.map(|name| (name, "is in the table, and no suite plans it any more"));
        failures.extend(new.chain(gone).map(|(name, what)| format!("{} {name}: {what}", build.name)));
        if !table.is_of_this_compiler() {
            let before = &snapshot.compiler;
            println!(
                "note: {} is compiled by {compiler}, its table by {before}: numbers are not compared",
                build.name
            );
        }
        let chosen = sample::chosen(build, variants, snapshot);
        wanted.push(variants.keys().filter(|name| all || chosen.contains(*name)).cloned().collect());
    }
    let jobs = in_turns(wanted);
    let mut sums = vec![(0, Duration::ZERO, 0); tables.len()];
    for ((at, name), now, time) in run(&tables, &jobs, |build, variant| workshop.facts(build, variant))? {
        let table = &tables[*at];
        let before = table.snapshot.rows.get(name).filter(|_| table.is_of_this_compiler());
        let found = gate::violations(name, before, &now);
        failures.extend(found.into_iter().map(|line| format!("{} {name}: {line}", table.build.name)));
        let (count, total, better) = &mut sums[*at];
        *count += 1;
        *total += time;
        *better += usize::from(before.is_some_and(|before| gate::gains(before, &now)));
    }
    for (Table { build, compiler, variants, .. }, (count, time, better)) in tables.iter().zip(sums) {
        let (all, time) = (variants.len(), time.as_secs_f64());
        println!(
            "{:14} {count:4} of {all} variants, {better} better, {time:5.1} s of {compiler}",
            build.name
        );
    }
    failures.iter().for_each(|failure| println!("FAIL {failure}"));
    if !failures.is_empty() {
        println!(
            "{} failures; where a change is meant, `tests/code-objects refresh` writes the tables anew",
            failures.len()
        );
    }
    Ok(failures.is_empty())
}

/// Writes the tables: new rows for what they lack and for what is to be rebuilt. False if they hold what is never allowed.
fn refresh(is_rebuilt: impl Fn(&str) -> bool, names: &[String]) -> Result<bool> {
    /// After as many builds the tables are written: a refresh that was stopped goes on with --missing.
    const BETWEEN_WRITES: usize = 50;
    let workshop = Workshop::new();
    let mut tables = tables(&workshop, names)?;
    let mut wanted = Vec::new();
    for table in &mut tables {
        let is_current = table.is_of_this_compiler();
        let Table { compiler, variants, snapshot, .. } = table;
        snapshot.rows.retain(|name, _| is_current && variants.contains_key(name) && !is_rebuilt(name));
        snapshot.compiler.clone_from(compiler);
        wanted.push(variants.keys().filter(|name| !snapshot.rows.contains_key(*name)).cloned().collect());
    }
    let jobs = in_turns(wanted);
    let mut sums = vec![(0, Duration::ZERO); tables.len()];
    for (number, part) in (1..).zip(jobs.chunks(BETWEEN_WRITES)) {
        for ((at, name), facts, time) in run(&tables, part, |build, variant| workshop.facts(build, variant))?
        {
            tables[*at].snapshot.rows.insert(name.clone(), facts);
            sums[*at].0 += 1;
            sums[*at].1 += time;
        }
        tables.iter().try_for_each(|table| table.snapshot.write(&table.build.name))?;
        eprintln!("{} of {} builds", (number * BETWEEN_WRITES).min(jobs.len()), jobs.len());
    }
    let mut passed = true;
    for (Table { build, compiler, snapshot, .. }, (count, time)) in tables.iter().zip(sums) {
        snapshot.write(&build.name)?;
        for (name, facts) in &snapshot.rows {
            for line in gate::rules(name, facts) {
                println!("FAIL {} {name}: {line}", build.name);
                passed = false;
            }
        }
        let (all, time) = (snapshot.rows.len(), time.as_secs_f64());
        println!("{:14} {count:4} of {all} variants, {time:5.1} s of {compiler}", build.name);
    }
    Ok(passed)
}
