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

mod compiler;
mod edit;
mod kept;
mod modules;

use std::ffi::{OsString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use causeway::backend::gpu::artifact::Artifact;
use causeway::backend::gpu::compiler::Target;
use causeway::backend::gpu::plan::{DeviceFacts, Plan, Vendor};
use causeway::backend::gpu::{CompilerFacts, Executor};
use causeway::{Error, Result};

pub use edit::{Edit, Patch};

use compiler::Compiler;
use edit::Change;
use modules::Modules;

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
    /// In permutations that the seed gives, with several blocks that take turns at random.
    Shuffled(u32),
}

/// A simulated GPU. Clones share compiled kernels.
#[derive(Clone)]
pub struct Simulator {
    settings: Settings,
    workers: Option<u32>,
    compiler: Arc<Compiler>,
    modules: Arc<Modules>,
}

/// The C++ compiler that the simulator would use: its path, and the first line of what it says of its version.
///
/// # Errors
/// [`Error::SimulatorCompiler`] if there is none, with what to install.
pub fn compiler() -> Result<(PathBuf, String)> {
    let (program, version) = compiler::find_program()?;
    Ok((program, version.lines().next().unwrap_or_default().to_string()))
}

/// Which device is simulated, and in what order its threads run: all that a device's name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What planners are told.
    pub facts: DeviceFacts,
    /// Of threads and blocks.
    pub order: Order,
    /// What stands after `sim:` and before the order.
    model: String,
}

impl Settings {
    /// The settings that a name asks for: `sim:32` or `sim:64`, a small device with waves of that size; `sim:slow`, a few
    /// multiprocessors of an H100 with memory so slow that small calls take the kernels of large ones; `sim:clusters`, the fewest
    /// multiprocessors on which blocks form clusters; or the reference
    /// device of an architecture, such as `sim:sm_90a` or `sim:gfx942`; after it, if wanted, `:ascending`,
    /// `:descending`, `:shuffled` or `:shuffled:SEED`. None for a name that does not begin with `sim`.
    ///
    /// # Errors
    /// [`Error::UnknownSimulator`] if the rest of the name is something else.
    pub fn parse(name: &str) -> Result<Option<Self>> {
        let mut parts = name.split(':');
        if parts.next() != Some("sim") {
            return Ok(None);
        }
        let unknown = || Error::UnknownSimulator { found: name.to_string() };
        let facts = match parts.next() {
            Some("32") => small(32),
            Some("64") => small(64),
            Some("slow") => DeviceFacts {
                architecture: "sm_90".to_string(),
                multiprocessors: 4,
                memory_gigabytes_per_second: 1,
                ..DeviceFacts::h100()
            },
            Some("clusters") => {
                DeviceFacts { architecture: "sm_90".to_string(), multiprocessors: 32, ..DeviceFacts::h100() }
            }
            Some(architecture) => {
                let mut facts = DeviceFacts::of_target(&Target::parse(architecture).map_err(|_| unknown())?);
                // wgmma and TMA are not simulated. They come with the letter: sm_90 plans without them.
                if facts.architecture == "sm_90a" {
                    facts.architecture = "sm_90".to_string();
                }
                facts
            }
            None => return Err(unknown()),
        };
        let order = match (parts.next(), parts.next()) {
            (None | Some("ascending"), None) => Order::Ascending,
            (Some("descending"), None) => Order::Descending,
            (Some("shuffled"), None) => Order::Shuffled(1),
            (Some("shuffled"), Some(seed)) => Order::Shuffled(seed.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        };
        if parts.next().is_some() {
            return Err(unknown());
        }
        Ok(Some(Settings { facts, order, model: name.split(':').nth(1).unwrap_or_default().to_string() }))
    }

    /// The name that has these settings.
    pub fn name(&self) -> String {
        let order = match self.order {
            Order::Ascending => String::new(),
            Order::Descending => ":descending".to_string(),
            Order::Shuffled(seed) => format!(":shuffled:{seed}"),
        };
        format!("sim:{}{order}", self.model)
    }
}

/// A device with few multiprocessors, so that small shapes are split over blocks as large ones are on a real device.
fn small(wave_size: u32) -> DeviceFacts {
    let (vendor, architecture, shared) = match wave_size {
        32 => (Vendor::Nvidia, "sm_80", 164 << 10),
        _ => (Vendor::Amd, "gfx90a", 64 << 10),
    };
    DeviceFacts {
        vendor,
        architecture: architecture.to_string(),
        multiprocessors: 4,
        wave_size,
        threads_per_multiprocessor: 2048,
        registers_per_multiprocessor: 65_536,
        shared_per_multiprocessor: shared,
        shared_per_block: 65_536,
        l2_bytes: 1 << 20,
        memory_gigabytes_per_second: 0,
    }
}

impl Simulator {
    /// A device by its settings.
    ///
    /// # Errors
    /// [`Error::SimulatorCompiler`] if no clang++ of version 16 or later is found.
    pub fn new(settings: Settings) -> Result<Self> {
        Ok(Simulator {
            workers: None,
            compiler: Arc::new(Compiler::find(&settings.facts)?),
            modules: Arc::default(),
            settings,
        })
    }

    /// A device by its name, as [`Settings::parse`] has it.
    ///
    /// # Errors
    /// [`Error::UnknownSimulator`] for another name, and those of [`Simulator::new`].
    pub fn open(name: &str) -> Result<Self> {
        let settings = Settings::parse(name)?;
        Self::new(settings.ok_or_else(|| Error::UnknownSimulator { found: name.to_string() })?)
    }

    /// The same device running other kernels: those that the edit makes of the project's.
    pub fn with_edit(mut self, edit: Edit) -> Self {
        self.modules = Arc::new(Modules::changed(Change::Everywhere(edit)));
        self
    }

    /// The same device running kernels with these places changed; no two of them overlap.
    pub fn with_patches(mut self, patches: Vec<Patch>) -> Self {
        self.modules = Arc::new(Modules::changed(Change::places(patches)));
        self
    }

    /// The same device with another order of threads and blocks, sharing its compiled kernels.
    pub fn with_order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// The same device with this many blocks running at a time, instead of as many as the caller's rayon pool has threads.
    pub fn with_workers(mut self, workers: u32) -> Self {
        self.workers = Some(workers.max(1));
        self
    }

    /// The command that compiles a kernel's C++ to a shared object with the simulator's runtime in it: a program and its
    /// arguments, to which the source, `-o` and the result come. For who launches kernels by other ways than a [`Plan`],
    /// with `causeway_simulator_launch` of runtime/simulator.cpp. It is good as long as this simulator is there.
    pub fn compile_command(&self) -> Vec<OsString> {
        self.compiler.command()
    }

    fn fault(plan: &Plan, message: String) -> Error {
        Error::SimulatedFault { entry: plan.entry().to_string(), header: plan.header().to_string(), message }
    }
}

impl std::fmt::Debug for Simulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulator({})", self.name())
    }
}

/// Where launches find the stacks of those before. Units of all simulators of the process are compiled from one runtime.
static STACKS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Byte that fills a workspace before a launch: its contents need no initialisation, so they are NaNs here.
const POISON: u8 = 0xff;

impl Executor for Simulator {
    fn name(&self) -> String {
        self.settings.name()
    }

    fn facts(&self) -> &DeviceFacts {
        &self.settings.facts
    }

    /// Nothing stands for TMA's tensor maps here.
    fn can_run(&self, plan: &Plan) -> bool {
        plan.tensor_maps.is_empty()
    }

    fn prepare(&self, plans: &[Plan]) -> Result<()> {
        self.modules.prepare(&self.compiler, plans)
    }

    fn compiler(&self) -> Option<CompilerFacts> {
        Some(self.compiler.facts())
    }

    fn check(&self, plan: &Plan) -> Result<Option<Artifact>> {
        self.modules.check(&self.compiler, plan, self.compiler.name()).map(Some)
    }

    unsafe fn execute(&self, plan: &Plan) -> Result<()> {
        let kernel = self.modules.get(&self.compiler, plan)?;
        if kernel.argument_bytes != plan.arguments.len() {
            let message = format!(
                "the plan's argument block has {} bytes and the kernel's {}",
                plan.arguments.len(),
                kernel.argument_bytes
            );
            return Err(Self::fault(plan, message));
        }
        if plan.shared_bytes > self.settings.facts.shared_per_block {
            let message = format!(
                "{} bytes of shared memory are more than the device's {}",
                plan.shared_bytes, self.settings.facts.shared_per_block
            );
            return Err(Self::fault(plan, message));
        }
        // 16-byte units, so that the addresses are as aligned as a device's.
        let mut workspace =
            vec![u128::from_ne_bytes([POISON; 16]); plan.workspace_bytes.div_ceil(16) as usize];
        let mut counters = vec![0u32; plan.counters as usize];
        let mut arguments = plan.arguments.clone();
        let places = [
            (&plan.workspace_at, workspace.as_mut_ptr() as u64),
            (&plan.counters_at, counters.as_mut_ptr() as u64),
        ];
        for (at, address) in
            places.into_iter().flat_map(|(places, address)| places.iter().map(move |at| (*at, address)))
        {
            let place: &mut [u8; 8] = (&mut arguments[at..at + 8]).try_into().expect("eight bytes");
            *place = (address + u64::from_ne_bytes(*place)).to_ne_bytes();
        }
        let (order, seed) = match self.settings.order {
            Order::Ascending => (0, 0),
            Order::Descending => (1, 0),
            Order::Shuffled(seed) => (2, seed),
        };
        let [threads, block_y, block_z] = plan.block;
        if (block_y, block_z) != (1, 1) {
            return Err(Self::fault(plan, "kernels have one-dimensional blocks".to_string()));
        }
        let mut message = [0u8; 512];
        // SAFETY: `launch` and `call` come from one unit, compiled from the plan's own text; the argument
        // block has the size that the kernel's parameter has there. The addresses in it are the plan's views of
        // host memory, by the caller's promise, and the workspace and counters
        // above, of the sizes that the plan asks for.
        let status = unsafe {
            (kernel.launch)(
                kernel.call,
                arguments.as_ptr().cast::<c_void>(),
                plan.grid.as_ptr(),
                threads,
                plan.cluster,
                plan.shared_bytes,
                order,
                seed,
                self.workers.unwrap_or_else(|| rayon::current_num_threads() as u32),
                STACKS.as_ptr(),
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
    cluster: u32,
    shared_bytes: u32,
    order: u32,
    seed: u32,
    workers: u32,
    stacks: *mut *mut c_void,
    message: *mut c_char,
    message_bytes: usize,
) -> c_int;
