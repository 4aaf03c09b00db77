//! Runs Causeway's GPU kernels on a CPU, thread by thread.
//!
//! The sources in `kernels/` are compiled unchanged, as host C++, with the program text that the planner wrote
//! for a GPU; a launch takes the same [`Plan`] with the same argument bytes. Every thread of a block is a fiber,
//! so barriers, wave exchanges and the order in which blocks arrive are real. It is slow (about a million
//! elements a second) and exact about what a GPU leaves undefined: threads that meet at different barriers,
//! lanes that are missing from an exchange, shared memory that is read before it is written (it holds NaNs).
//!
//! It shows nothing about speed, about memory ordering between blocks that run at the same time on a real
//! device, or about what a GPU compiler makes of the source.

mod compile;

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::compiler::Target;
use causeway::backend::gpu::plan::{DeviceFacts, Plan, Vendor};
use causeway::{Error, Result};

use compile::{Compiler, Module};

/// The order in which a block's threads and a grid's blocks run.
///
/// A kernel that lacks a barrier is often right in one order and wrong in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// By increasing number.
    #[default]
    Ascending,
    /// By decreasing number.
    Descending,
    /// In a permutation that the seed gives.
    Shuffled(u32),
}

/// A simulated GPU. Clones share compiled kernels.
#[derive(Clone)]
pub struct Simulator {
    facts: DeviceFacts,
    order: Order,
    workers: u32,
    compiler: Arc<Compiler>,
    modules: Arc<Mutex<HashMap<String, Arc<Module>>>>,
}

impl Simulator {
    /// A device whose waves have 32 or 64 threads.
    ///
    /// # Errors
    /// For another wave size, or if no clang++ of version 15 or later is found.
    pub fn new(wave_size: u32) -> Result<Self> {
        // Few multiprocessors, so that small shapes are split over blocks as large ones are on a real device.
        let (vendor, architecture) = match wave_size {
            32 => (Vendor::Nvidia, "sim32"),
            64 => (Vendor::Amd, "sim64"),
            _ => return Err(Error::UnknownDevice { found: format!("sim:{wave_size}") }),
        };
        let facts = DeviceFacts {
            vendor,
            architecture: architecture.to_string(),
            multiprocessors: 4,
            wave_size,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65_536,
            shared_per_multiprocessor: 65_536,
            shared_per_block: 65_536,
            l2_bytes: 1 << 20,
        };
        Ok(Simulator {
            facts,
            order: Order::Ascending,
            workers: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            compiler: Arc::new(Compiler::find(wave_size)?),
            modules: Arc::default(),
        })
    }

    /// The same device with another order of threads and blocks.
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The same device with this many blocks running at a time.
    pub fn with_workers(mut self, workers: u32) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// The same device with an architecture's kernels, for example those of `gfx1100`: planners go by its name. Its
    /// waves have as many threads as the simulator's.
    ///
    /// # Errors
    /// [`Error::UnknownArchitecture`] for a name that kernels cannot be compiled for, or with other waves.
    pub fn with_architecture(mut self, name: &str) -> Result<Self> {
        let target = Target::parse(name)?;
        if target.wave_size() != self.facts.wave_size {
            return Err(Error::UnknownArchitecture { found: name.to_string() });
        }
        self.facts.vendor = target.vendor();
        self.facts.architecture = name.to_string();
        Ok(self)
    }

    fn module(&self, plan: &Plan) -> Result<Arc<Module>> {
        let text = plan.program().text()?;
        let key = blake3::hash(text.as_bytes()).to_hex().to_string();
        let known = self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(&key).cloned();
        if let Some(module) = known {
            return Ok(module);
        }
        let module = Arc::new(self.compiler.module(&key, &text, plan)?);
        let mut modules = self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(modules.entry(key).or_insert(module).clone())
    }

    fn fault(plan: &Plan, message: String) -> Error {
        Error::SimulatedFault { entry: plan.entry.to_string(), header: plan.header.to_string(), message }
    }
}

impl std::fmt::Debug for Simulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulator(wave {}, {:?})", self.facts.wave_size, self.order)
    }
}

/// Byte that fills a workspace before a launch: its contents need no initialisation, so they are NaNs here.
const POISON: u8 = 0xff;

impl Executor for Simulator {
    fn name(&self) -> String {
        format!("sim:{}", self.facts.wave_size)
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    unsafe fn execute(&self, plan: &Plan) -> Result<()> {
        let module = self.module(plan)?;
        if module.argument_bytes != plan.arguments.len() {
            let message = format!(
                "the plan's argument block has {} bytes and the kernel's {}",
                plan.arguments.len(),
                module.argument_bytes
            );
            return Err(Self::fault(plan, message));
        }
        if plan.shared_bytes > self.facts.shared_per_block {
            let message = format!(
                "{} bytes of shared memory are more than the device's {}",
                plan.shared_bytes, self.facts.shared_per_block
            );
            return Err(Self::fault(plan, message));
        }
        // 16-byte units, so that the addresses are as aligned as a device's.
        let mut workspace =
            vec![u128::from_ne_bytes([POISON; 16]); plan.workspace_bytes.div_ceil(16) as usize];
        let mut counters = vec![0u32; plan.counters as usize];
        let mut arguments = plan.arguments.clone();
        let places = [
            (plan.workspace_at, workspace.as_mut_ptr() as u64),
            (plan.counters_at, counters.as_mut_ptr() as u64),
        ];
        for (at, address) in places {
            if let Some(at) = at {
                arguments[at..at + 8].copy_from_slice(&address.to_ne_bytes());
            }
        }
        let (order, seed) = match self.order {
            Order::Ascending => (0, 0),
            Order::Descending => (1, 0),
            Order::Shuffled(seed) => (2, seed),
        };
        let [threads, block_y, block_z] = plan.block;
        if (block_y, block_z) != (1, 1) {
            return Err(Self::fault(plan, "kernels have one-dimensional blocks".to_string()));
        }
        let mut message = [0u8; 512];
        // SAFETY: `launch` and `call` come from one module, compiled from the plan's own text; the argument
        // block has the size that the kernel's parameter has there. The addresses in it are the plan's views of
        // host memory, by the caller's promise, and the workspace and counters
        // above, of the sizes that the plan asks for.
        let status = unsafe {
            (module.launch)(
                module.call,
                arguments.as_ptr().cast::<c_void>(),
                plan.grid.as_ptr(),
                threads,
                plan.shared_bytes,
                order,
                seed,
                self.workers,
                message.as_mut_ptr().cast::<c_char>(),
                message.len(),
            )
        };
        if status != 0 {
            let end = message.iter().position(|&byte| byte == 0).unwrap_or(message.len());
            return Err(Self::fault(plan, String::from_utf8_lossy(&message[..end]).into_owned()));
        }
        if let Some(at) = counters.iter().position(|&counter| counter != 0) {
            let message = format!("counter {at} is {} after the launch instead of 0", counters[at]);
            return Err(Self::fault(plan, message));
        }
        Ok(())
    }
}

/// `causeway_simulator_launch` of runtime/simulator.cpp.
type LaunchFunction = unsafe extern "C" fn(
    call: unsafe extern "C" fn(*const c_void),
    arguments: *const c_void,
    grid: *const u32,
    threads: u32,
    shared_bytes: u32,
    order: u32,
    seed: u32,
    workers: u32,
    message: *mut c_char,
    message_bytes: usize,
) -> c_int;
