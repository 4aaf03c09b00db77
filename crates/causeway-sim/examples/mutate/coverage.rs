//! Which cases of suite `sim` execute which blocks: what a mutant is shown to.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use causeway::Device;
use causeway::backend::gpu::Executor;
use causeway_sim::Simulator;
use causeway_verify::suite::{Case, distinct_plans, run_case};

use super::blocks::{self, Block, Hits};
use super::cases::{DEVICES, cases};
use super::check::{self, Check};
use super::kernels::Kernel;
use super::options::Options;
use super::random::Random;

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
    /// Whether a kernel that some case launches has code of the block.
    compiled: Vec<bool>,
    records: Vec<Record>,
}

/// Cases on every device where blocks are counted, in both of its orders.
pub fn everywhere(cases: &[Case]) -> Vec<Check> {
    let devices = DEVICES.iter().flat_map(|(_, orders)| orders);
    let on = |device: &&str, case: &Case| Check { device: device.to_string(), case: case.name.clone() };
    devices.flat_map(|device| cases.iter().map(move |case| on(device, case))).collect()
}

impl Coverage {
    /// Reads what an earlier run counted with the same kernels and cases, else counts.
    pub fn open(options: &Options) -> Result<Self, String> {
        let mut coverage = Coverage::uncounted()?;
        let file = options.folder.join(format!("coverage-{}.txt", coverage.digest()?));
        if !file.exists() {
            // Of its own, so that its objects are those of the kernels that count.
            let units = options.folder.join("counting");
            let new = file.with_extension("new");
            let program = std::env::current_exe().map_err(|error| error.to_string())?;
            let status = Command::new(program)
                .arg("--coverage")
                .arg(&new)
                .env("RAYON_NUM_THREADS", options.jobs.to_string())
                .env("CAUSEWAY_SIM_DIR", &units)
                .status()
                .map_err(|error| error.to_string())?;
            if !status.success() {
                return Err(format!("counting ended with {status}"));
            }
            std::fs::rename(&new, &file).map_err(|error| error.to_string())?;
            std::fs::remove_dir_all(&units).map_err(|error| error.to_string())?;
        }
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let mut lines = text.lines();
        coverage.compiled = lines.next().map(read_bits).unwrap_or_default();
        coverage.records = lines.filter_map(read_record).collect();
        match coverage.compiled.len() == coverage.blocks.len() {
            true => Ok(coverage),
            false => Err(format!("{} is not complete: remove it", file.display())),
        }
    }

    fn uncounted() -> Result<Self, String> {
        let kernels = Kernel::all()?;
        let blocks = blocks::blocks(&kernels);
        Ok(Coverage { kernels, blocks, compiled: Vec::new(), records: Vec::new() })
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

    /// Runs every case with kernels that count, and writes what they executed.
    pub fn count(file: &Path) -> Result<(), String> {
        let mut coverage = Coverage::uncounted()?;
        let mut hits = Hits::open(coverage.blocks.len())?;
        let cases = cases()?;
        for (number, (device, _)) in DEVICES.iter().enumerate() {
            let patches = blocks::counters(&coverage.kernels, &coverage.blocks);
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
                let case = case.name.clone();
                coverage.records.push(Record { device: number, case, milliseconds, hits: hits.take() });
            }
        }
        coverage.compiled = vec![false; coverage.blocks.len()];
        let units = std::env::var_os("CAUSEWAY_SIM_DIR").ok_or("CAUSEWAY_SIM_DIR is not set")?;
        for entry in std::fs::read_dir(units).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.extension().is_some_and(|extension| extension == "so") {
                let object = std::fs::read(&path).map_err(|error| error.to_string())?;
                blocks::marked(&object).for_each(|block| coverage.compiled[block] = true);
            }
        }
        std::fs::write(file, coverage.write()).map_err(|error| error.to_string())
    }

    fn write(&self) -> String {
        let line = |record: &Record| {
            let Record { device, case, milliseconds, hits } = record;
            format!("{device}\t{case}\t{milliseconds}\t{}\n", write_bits(hits))
        };
        let records: String = self.records.iter().map(line).collect();
        format!("{}\n{records}", write_bits(&self.compiled))
    }

    /// Whether an edit at a byte may be drawn: not where no kernel has code of it. Of files
    /// that serve other kernels too, only what cases of the convolution execute.
    pub fn can_be_drawn(&self, kernel: usize, byte: usize) -> bool {
        let shared = self.kernels[kernel].shared;
        match blocks::around(&self.blocks, kernel, byte) {
            Some(block) if shared => self.records.iter().any(|record| record.hits[block]),
            Some(block) => self.compiled[block],
            None => !shared,
        }
    }

    /// Blocks, those of them that kernels have, and those that some case executes.
    pub fn sizes(&self) -> [usize; 3] {
        let executed = |block: &usize| self.records.iter().any(|record| record.hits[*block]);
        let compiled = self.compiled.iter().filter(|compiled| **compiled).count();
        [self.blocks.len(), compiled, (0..self.blocks.len()).filter(executed).count()]
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
        // Those that cost a second are for later, and so are those that take the same ways as another through all files,
        // or through this one.
        let mut seen: HashMap<(usize, Vec<bool>), usize> = HashMap::new();
        let mut repetition = |record: &Record, hits: Vec<bool>| {
            let count = seen.entry((record.device, hits)).or_default();
            *count += 1;
            *count
        };
        reaching.sort_by_cached_key(|record| {
            let in_file = of_file.iter().map(|&block| record.hits[block]).collect();
            let slow = record.milliseconds > 1000;
            (slow, repetition(record, record.hits.clone()), repetition(record, in_file))
        });
        reaching.truncate(most);
        let of_record = |record: &&Record| DEVICES[record.device].1.map(|device| record.check(device));
        let mut batches = check::batches(&reaching, |record| of_record(record).to_vec());
        for device in LARGE_DEVICES {
            let of_wave = |record: &&&Record| (record.device == 0) == device.contains("sm_");
            let cases = reaching.iter().filter(of_wave).take(most / 4);
            batches.push(cases.map(|record| record.check(device)).collect());
        }
        batches
    }
}

impl Record {
    fn check(&self, device: &str) -> Check {
        Check { device: device.to_string(), case: self.case.clone() }
    }
}

fn write_bits(bits: &[bool]) -> String {
    bits.iter().map(|bit| if *bit { '1' } else { '0' }).collect()
}

fn read_bits(text: &str) -> Vec<bool> {
    text.bytes().map(|byte| byte == b'1').collect()
}

fn read_record(line: &str) -> Option<Record> {
    let mut parts = line.split('\t');
    Some(Record {
        device: parts.next()?.parse().ok()?,
        case: parts.next()?.to_string(),
        milliseconds: parts.next()?.parse().ok()?,
        hits: read_bits(parts.next()?),
    })
}
