//! Timing on a GPU: recorded launches, replayed between two events.
//!
//! One graph holds a launch for every set of tensors, and goes round them again until it has [`LAUNCHES`]; its time
//! divided by its launches is the time of a call, without the host's part. The floor's graph works on the same
//! memory.

use std::time::Duration;

use causeway::backend::gpu::artifact::{Artifacts, Launch};
use causeway::backend::gpu::floor;
use causeway::backend::gpu::plan::Plan;
use causeway::backend::gpu::{DeviceBuffer, Graph, Stream};
use causeway::{Device, HostTensor, Result};
use causeway_verify::evidence::Measurement;

use super::buffers::{Buffers, Call, Inputs};
use super::check;
use super::replays::{self, Replays};
use super::rows;

/// Fewest launches of a graph: its own start is spread over them.
const LAUNCHES: usize = 64;
/// Most sets of tensors. The smallest shapes would take more to outgrow a cache of 60 MB three times, and graphs of more
/// launches take long to record.
pub(super) const MAX_SETS: u64 = 8192;

/// Bytes that the tensors of a case take in turn before they come back: three times the L2 cache, since
/// a device evicts less predictably than a CPU.
pub(super) fn default_rotation(stream: &Stream) -> u64 {
    3 * stream.device().facts().l2_bytes
}

/// Measures one call, and notes its launches.
pub(super) fn measure(
    inputs: &Inputs,
    call: Call,
    stream: &Stream,
    budget: Duration,
    count: impl FnOnce(u64) -> usize,
    kernels: &mut Artifacts,
) -> Result<(Measurement, Vec<Launch>)> {
    let device = Device::Gpu(stream.clone());
    let mut buffers = Buffers::new(inputs, call, &device, count)?;
    let facts = stream.device().facts();
    let workspace = buffers.plan(0, facts)?.map_or(0, |plan| plan.workspace_bytes);
    let bench = Bench { stream, sets: buffers.count, workspace: DeviceBuffer::new(stream, workspace)? };

    let plans = (0..buffers.count).map(|turn| buffers.plan(turn, facts)).collect::<Result<Vec<_>>>()?;
    let plans: Vec<_> = plans.into_iter().flatten().collect();
    let noted = rows::note(&device, call.operation(), plans.first(), kernels)?;
    let work = bench.record(&plans)?;
    let (unroll, floor) = bench.fastest_floor(&mut buffers)?;
    // SAFETY: the recorded launches use tensors and the workspace of this function, which waits for each replay.
    let rounds =
        unsafe { Replays { stream, call: &work, floor: &floor, calls: bench.launches() }.measure(budget) }?;
    let outputs = [bench.outputs(&mut buffers, inputs)?, bench.outputs(&mut buffers, inputs)?];
    let wrong = check::check(inputs, call, outputs)?;
    let floor_method = format!("{unroll} packets of 16 bytes per thread");
    let sets = (buffers.count, buffers.streamed);
    Ok((rounds.measurement(floor_method, buffers.moved, sets, wrong), noted))
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
        // SAFETY: plans are made from tensors of `measure`, which live until it returns, as does the workspace; all
        // work on them goes on the one stream, and replays and `outputs` wait for it.
        unsafe {
            self.stream.device().launch(plan, self.stream.handle(), Some(self.workspace.as_workspace()))
        }
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
            // SAFETY: the recorded launches use `buffers`, and each replay is waited for.
            let median = unsafe { replays::median(self.stream, &graph) }?;
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
