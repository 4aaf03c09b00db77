//! Which cases of suite `sim` execute which blocks: what a mutant is shown to.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use causeway::backend::gpu::Executor;
use causeway::suite::{Case, Problem, Suite, distinct_plans, run_case};
use causeway::{DType, Device};
use causeway_sim::Simulator;

use super::blocks::{self, Block, Hits};
use super::check::Check;
use super::kernels::Kernel;
use super::random::Random;

/// Where blocks are counted, with the devices of tests/simulator that run the same kernels.
const DEVICES: [(&str, [&str; 2]); 2] =
    [("sim:32", ["sim:32", "sim:32:descending"]), ("sim:64", ["sim:64", "sim:64:shuffled:1"])];

/// The devices of tests/simulator that plan as a real one does.
const LARGE_DEVICES: [&str; 2] = ["sim:sm_80:shuffled:1", "sim:gfx942:descending"];

/// What a case did on a device.
struct Record {
    device: usize,
    case: String,
    milliseconds: u64,
    hits: Vec<bool>,
}

/// The files, their blocks, and what cases do with them.
pub struct Coverage {
    /// Files of device code.
    pub kernels: Vec<Kernel>,
    blocks: Vec<Block>,
    records: Vec<Record>,
}

/// The cases of suite `sim` that run convolution kernels.
pub fn cases() -> Result<Vec<Case>, String> {
    let mut cases = Suite::open("sim").map_err(|error| error.to_string())?.cases;
    cases.retain(|case| case.problem.dtype() != DType::F64 && !matches!(case.problem, Problem::Gemm(_)));
    Ok(cases)
}

impl Coverage {
    /// Reads what an earlier run counted with the same kernels and cases, else counts.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let kernels = Kernel::all()?;
        let blocks = blocks::blocks(&kernels);
        let mut coverage = Coverage { kernels, blocks, records: Vec::new() };
        let file = folder.join(format!("coverage-{}.txt", coverage.digest()?));
        if !file.exists() {
            coverage.count()?;
            std::fs::write(&file, coverage.write()).map_err(|error| error.to_string())?;
        }
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        coverage.records = text.lines().filter_map(read_record).collect();
        Ok(coverage)
    }

    /// Stands for the kernels and the cases.
    pub fn digest(&self) -> Result<String, String> {
        let mut hasher = blake3::Hasher::new();
        self.kernels.iter().for_each(|kernel| {
            hasher.update(kernel.text.as_bytes());
        });
        hasher.update(format!("{:?} {:?}", self.blocks, cases()?).as_bytes());
        Ok(hasher.finalize().to_hex()[..16].to_string())
    }

    fn count(&mut self) -> Result<(), String> {
        let mut hits = Hits::open(self.blocks.len())?;
        let cases = cases()?;
        for (number, (device, _)) in DEVICES.iter().enumerate() {
            let patches = blocks::counters(&self.kernels, &self.blocks);
            // One block of a grid at a time: counters are plain memory.
            let simulator = Simulator::open(device).map_err(|error| error.to_string())?;
            let simulator = simulator.with_workers(1).with_patches(patches);
            eprintln!("{device}: compiling kernels that count");
            simulator
                .prepare(&distinct_plans(&cases, simulator.facts()))
                .map_err(|error| error.to_string())?;
            let device = Device::Simulated(Arc::new(simulator));
            for case in &cases {
                hits.take();
                let start = Instant::now();
                if !run_case(case, &device).passed {
                    eprintln!("{} fails on {device} without a mutant: left out", case.name);
                    continue;
                }
                let milliseconds = start.elapsed().as_millis() as u64;
                let record =
                    Record { device: number, case: case.name.clone(), milliseconds, hits: hits.take() };
                self.records.push(record);
            }
        }
        Ok(())
    }

    fn write(&self) -> String {
        let line = |record: &Record| {
            let hits: String = record.hits.iter().map(|hit| if *hit { '1' } else { '0' }).collect();
            format!("{}\t{}\t{}\t{hits}\n", record.device, record.case, record.milliseconds)
        };
        self.records.iter().map(line).collect()
    }

    /// Whether any case executes the block around a byte; None where there is no block that could be counted.
    pub fn is_executed(&self, kernel: usize, byte: usize) -> Option<bool> {
        let block = blocks::around(&self.blocks, kernel, byte)?;
        Some(self.records.iter().any(|record| record.hits[block]))
    }

    /// Blocks, and those of them that some case executes.
    pub fn executed_blocks(&self) -> (usize, usize) {
        let executed = |block: &usize| self.records.iter().any(|record| record.hits[*block]);
        (self.blocks.len(), (0..self.blocks.len()).filter(executed).count())
    }

    /// The cases to show a mutant to, in batches: at first few that differ much, each on two devices of
    /// tests/simulator; at the end on its devices that plan as real ones do.
    pub fn checks(&self, kernel: usize, byte: usize, most: usize, seed: u64) -> Vec<Vec<Check>> {
        let block = blocks::around(&self.blocks, kernel, byte);
        let of_file: Vec<_> = (0..self.blocks.len()).filter(|&b| self.blocks[b].kernel == kernel).collect();
        let reaches = |record: &&Record| match block {
            Some(block) => record.hits[block],
            None => of_file.iter().any(|&block| record.hits[block]),
        };
        let mut reaching: Vec<_> = self.records.iter().filter(reaches).collect();
        Random::new(seed).shuffle(&mut reaching);
        // Those that cost a second are for later, and so are those that take the same ways through the file as another.
        let mut seen: HashMap<Vec<bool>, usize> = HashMap::new();
        reaching.sort_by_cached_key(|record| {
            let ways = of_file.iter().map(|&block| record.hits[block]).chain([record.device == 0]).collect();
            let repetition = seen.entry(ways).or_default();
            *repetition += 1;
            (record.milliseconds > 1000, *repetition)
        });
        reaching.truncate(most);
        let mut batches = Vec::new();
        let (mut rest, mut size) = (&reaching[..], 4);
        while !rest.is_empty() {
            let (batch, others) = rest.split_at(size.min(rest.len()));
            batches.push(batch.iter().flat_map(|record| record.checks()).collect());
            (rest, size) = (others, size * 2);
        }
        for device in LARGE_DEVICES {
            let of_wave = |record: &&&Record| (record.device == 0) == device.contains("sm_");
            let cases = reaching.iter().filter(of_wave).take(most / 4);
            let large: Vec<_> = cases.map(|record| record.check(device)).collect();
            batches.push(large);
        }
        batches
    }
}

impl Record {
    fn check(&self, device: &str) -> Check {
        Check { device: device.to_string(), case: self.case.clone() }
    }

    fn checks(&self) -> [Check; 2] {
        DEVICES[self.device].1.map(|device| self.check(device))
    }
}

fn read_record(line: &str) -> Option<Record> {
    let mut parts = line.split('\t');
    Some(Record {
        device: parts.next()?.parse().ok()?,
        case: parts.next()?.to_string(),
        milliseconds: parts.next()?.parse().ok()?,
        hits: parts.next()?.bytes().map(|byte| byte == b'1').collect(),
    })
}
