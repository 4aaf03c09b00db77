//! Timing on a GPU: recorded launches, replayed between two events.
//!
//! One graph holds a launch for every set of tensors, and goes round them again until it has [`LAUNCHES`]; its time
//! divided by its launches is the time of a call, without the host's part. The floor's graph works on the same
//! memory.

use std::time::{Duration, Instant};

use causeway::backend::gpu::floor;
use causeway::backend::gpu::plan::Plan;
use causeway::backend::gpu::{DeviceBuffer, Event, Graph, Stream, Workspace};
use causeway::{Device, HostTensor, Result};

use super::buffers::{Buffers, Call, Inputs};
use super::check;
use super::measure::Measurement;
use super::samples::{Summary, noise};

/// Fewest launches of a graph: its own start is spread over them.
const LAUNCHES: usize = 64;
/// Most sets of tensors. The smallest shapes would take more to outgrow a cache of 60 MB three times, and graphs of more
/// launches take long to record.
pub(super) const MAX_SETS: u64 = 8192;
/// Replays before times count.
const WARM_UP: usize = 2;
/// Rounds that are measured even if they take longer than the budget.
const MIN_ROUNDS: usize = 7;
/// More rounds would not tell more.
const MAX_ROUNDS: usize = 500;

/// Bytes that the tensors of a case take in turn before they come back: three times the last cache level, since
/// a device evicts less predictably than a CPU.
pub(super) fn default_rotation(stream: &Stream) -> u64 {
    3 * stream.device().facts().l2_bytes
}

/// Measures one call.
pub(super) fn measure(
    inputs: &Inputs,
    call: Call,
    stream: &Stream,
    budget: Duration,
    count: impl FnOnce(u64) -> usize,
) -> Result<Measurement> {
    let mut buffers = Buffers::new(inputs, call, &Device::Gpu(stream.clone()), count)?;
    let facts = stream.device().facts();
    let workspace = buffers.plan(0, facts)?.map_or(0, |plan| plan.workspace_bytes);
    let bench = Bench { stream, sets: buffers.count, workspace: DeviceBuffer::new(stream, workspace)? };

    let plans = (0..buffers.count).map(|turn| buffers.plan(turn, facts)).collect::<Result<Vec<_>>>()?;
    let work = bench.record(&plans.into_iter().flatten().collect::<Vec<_>>())?;
    let (unroll, floor) = bench.fastest_floor(&mut buffers)?;
    let launches = bench.launches() as f64;
    let timed = |graph: &Graph| -> Result<f64> { Ok(bench.time(graph)? / launches) };
    for _ in 0..WARM_UP {
        timed(&work)?;
        timed(&floor)?;
    }
    let (mut passes, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while passes.len() < MIN_ROUNDS || start.elapsed() < budget && passes.len() < MAX_ROUNDS {
        passes.push(timed(&floor)?);
        first.push(timed(&work)?);
        second.push(timed(&work)?);
    }
    let noise = noise(&first, &second);
    first.append(&mut second);
    let (time, floor) = (Summary::of(&first), Summary::of(&passes));
    let outputs = [bench.outputs(&mut buffers, inputs)?, bench.outputs(&mut buffers, inputs)?];
    Ok(Measurement {
        ratio: time.median / floor.median,
        time,
        floor,
        floor_method: format!("{unroll} packets of 16 bytes per thread"),
        noise,
        bytes: buffers.moved,
        sets: buffers.count,
        rotation_bytes: buffers.count as u64 * buffers.streamed,
        wrong: check::check(inputs, call, outputs)?,
    })
}

/// Where launches go. Dropped before the tensors that they use.
struct Bench<'a> {
    stream: &'a Stream,
    sets: usize,
    /// Shared by all launches: a graph runs them one after the other.
    workspace: DeviceBuffer,
}

impl Bench<'_> {
    /// Launches of a graph: whole rounds of the sets.
    fn launches(&self) -> usize {
        LAUNCHES.div_ceil(self.sets) * self.sets
    }

    fn launch(&self, plan: &Plan) -> Result<()> {
        let workspace = Workspace { address: self.workspace.address(), bytes: self.workspace.len() };
        // SAFETY: plans are made from tensors of `measure`, which live until it returns, as does the workspace; all
        // work on them goes on the one stream, and `time` and `outputs` wait for it.
        unsafe { self.stream.device().launch(plan, self.stream.handle(), Some(workspace)) }
    }

    /// A graph with the launches, again and again.
    fn record(&self, plans: &[Plan]) -> Result<Graph> {
        // Compiled and loaded before the recording.
        if let Some(plan) = plans.first() {
            self.launch(plan)?;
            self.stream.synchronize()?;
        }
        let launches = self.launches();
        self.stream.record(|| plans.iter().cycle().take(launches).try_for_each(|plan| self.launch(plan)))
    }

    /// Seconds of one replay.
    fn time(&self, graph: &Graph) -> Result<f64> {
        let device = self.stream.device();
        let (start, end) = (Event::new(device)?, Event::new(device)?);
        start.record(self.stream)?;
        // SAFETY: the recorded launches use tensors of `measure` and the workspace, and the replay is over when this
        // function returns.
        unsafe { graph.launch(self.stream) }?;
        end.record(self.stream)?;
        end.synchronize()?;
        Ok(f64::from(end.milliseconds_since(&start)?) * 1e-3)
    }

    /// The floor's pass, with as many packets per thread as is fastest here.
    fn fastest_floor(&self, buffers: &mut Buffers) -> Result<(u32, Graph)> {
        let (first, second, to, bytes) = buffers.floor();
        let mut fastest: Option<(f64, u32, Graph)> = None;
        for unroll in floor::UNROLLS {
            let plan = |turn| {
                let second = second.map(|second| second.address(turn));
                floor::plan(first.address(turn), second, to.address(turn), bytes, unroll)
            };
            let graph = self.record(&(0..self.sets).map(plan).collect::<Vec<_>>())?;
            let times = (0..WARM_UP + 3).map(|_| self.time(&graph)).collect::<Result<Vec<_>>>()?;
            let median = Summary::of(&times[WARM_UP..]).median;
            if fastest.as_ref().is_none_or(|(least, ..)| median < *least) {
                fastest = Some((median, unroll, graph));
            }
        }
        let (_, unroll, graph) = fastest.expect("there is at least one way to make the pass");
        Ok((unroll, graph))
    }

    /// The results of the first call, poisoned before.
    fn outputs(&self, buffers: &mut Buffers, inputs: &Inputs) -> Result<Vec<(&'static str, HostTensor)>> {
        buffers.reset(inputs)?;
        if let Some(plan) = buffers.plan(0, self.stream.device().facts())? {
            self.launch(&plan)?;
        }
        buffers.fetch()
    }
}
