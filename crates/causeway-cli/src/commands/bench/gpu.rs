//! Timing on a GPU: recorded launches, replayed between two events.
//!
//! One graph holds a launch for every set of tensors, and goes round them again until it has [`LAUNCHES`]; its time
//! divided by its launches is the time of a call, without the host's part. The floor's graph works on the same
//! memory.

use std::time::{Duration, Instant};

use causeway::backend::gpu::floor;
use causeway::backend::gpu::plan::Plan;
use causeway::backend::gpu::{DeviceBuffer, Event, Graph, Stream, Workspace};
use causeway::causal_conv1d::{Backward, Forward};
use causeway::suite::Conv1d;
use causeway::{DeviceTensor, HostTensor, Result};

use super::buffers::{Buffers, Call};
use super::check;
use super::measure::Measurement;
use super::samples::{Summary, noise};

/// Fewest launches of a graph: its own start is spread over them.
const LAUNCHES: usize = 64;
/// Most sets of tensors: enough of the smallest shapes to fill a second of work.
const MAX_SETS: u64 = 1024;
/// Replays before times count.
const WARM_UP: usize = 2;
/// Rounds that are measured even if they take longer than the budget.
const MIN_ROUNDS: usize = 7;
/// More rounds would not tell more.
const MAX_ROUNDS: usize = 500;

struct Set {
    x: DeviceTensor,
    dy: DeviceTensor,
    result: DeviceTensor,
}

struct GpuBuffers<'a> {
    stream: &'a Stream,
    problem: &'a Conv1d,
    sets: Vec<Set>,
    weight: DeviceTensor,
    bias: Option<DeviceTensor>,
    dweight: DeviceTensor,
    dbias: Option<DeviceTensor>,
    workspace: DeviceBuffer,
}

/// Bytes that the tensors of a case take in turn before they come back: three times the last cache level, since
/// a device evicts less predictably than a CPU.
pub(super) fn default_rotation(stream: &Stream) -> u64 {
    3 * stream.device().facts().l2_bytes
}

/// Measures one call on tensors that go through `rotation` bytes.
pub(super) fn measure(
    host: &Buffers,
    problem: &Conv1d,
    call: Call,
    stream: &Stream,
    budget: Duration,
    rotation: u64,
) -> Result<Measurement> {
    let mut buffers = GpuBuffers::new(host, problem, call, stream, rotation)?;
    buffers.make_workspace(call)?;
    let work = buffers.record(|buffers, set| buffers.plan(call, set))?;
    let (unroll, floor) = buffers.fastest_floor(call)?;
    let launches = buffers.launches() as f64;
    let timed = |graph: &Graph| -> Result<f64> { Ok(buffers.time(graph)? / launches) };
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
    let sets = buffers.sets.len();
    let outputs = [buffers.outputs(call)?, buffers.outputs(call)?];
    Ok(Measurement {
        ratio: time.median / floor.median,
        time,
        floor,
        floor_method: format!("{unroll} packets of 16 bytes per thread"),
        noise,
        bytes: host.moved_bytes(call),
        sets,
        rotation_bytes: sets as u64 * Buffers::streamed_bytes(problem, call),
        wrong: check::check(host, problem, call, outputs),
    })
}

impl<'a> GpuBuffers<'a> {
    /// Copies of the host's sets, in turn.
    fn new(
        host: &Buffers,
        problem: &'a Conv1d,
        call: Call,
        stream: &'a Stream,
        rotation: u64,
    ) -> Result<Self> {
        let upload = |tensor: &HostTensor| DeviceTensor::upload(stream, tensor);
        let optional = |tensor: &Option<HostTensor>| tensor.as_ref().map(upload).transpose();
        let count = rotation.div_ceil(Buffers::streamed_bytes(problem, call).max(1)).clamp(2, MAX_SETS);
        let set = |index: u64| -> Result<Set> {
            let from = &host.sets[index as usize % host.sets.len()];
            Ok(Set { x: upload(&from.x)?, dy: upload(&from.dy)?, result: upload(&from.result)? })
        };
        Ok(GpuBuffers {
            stream,
            problem,
            sets: (0..count).map(set).collect::<Result<_>>()?,
            weight: upload(&host.weight)?,
            bias: optional(&host.bias)?,
            dweight: upload(&host.dweight)?,
            dbias: optional(&host.dbias)?,
            workspace: DeviceBuffer::new(stream, 0)?,
        })
    }

    /// Launches of a graph: whole rounds of the sets.
    fn launches(&self) -> usize {
        LAUNCHES.div_ceil(self.sets.len()) * self.sets.len()
    }

    /// The plan of a call on one set.
    fn plan(&mut self, call: Call, set: usize) -> Result<Option<Plan>> {
        let facts = self.stream.device().facts();
        let set = &mut self.sets[set];
        let (x, weight) = (set.x.view(), self.weight.view());
        let bias = self.bias.as_ref().map(DeviceTensor::view);
        let activation = self.problem.activation;
        match call {
            Call::Forward => Forward {
                x,
                weight,
                bias,
                initial_states: None,
                seq_idx: None,
                cu_seqlens: None,
                residual: None,
                activation,
                y: set.result.view_mut(),
                final_states: None,
            }
            .plan(facts),
            Call::Backward => Backward {
                x,
                weight,
                bias,
                dy: set.dy.view(),
                initial_states: None,
                seq_idx: None,
                cu_seqlens: None,
                dfinal_states: None,
                activation,
                dx: set.result.view_mut(),
                dweight: self.dweight.view_mut(),
                dbias: self.dbias.as_mut().map(DeviceTensor::view_mut),
                dinitial_states: None,
            }
            .plan(facts),
        }
    }

    /// The launches share one workspace: a graph runs them one after the other.
    fn make_workspace(&mut self, call: Call) -> Result<()> {
        let bytes = self.plan(call, 0)?.map_or(0, |plan| plan.workspace_bytes);
        self.workspace = DeviceBuffer::new(self.stream, bytes)?;
        Ok(())
    }

    fn launch(&self, plan: &Plan) -> Result<()> {
        let workspace = Workspace { address: self.workspace.address(), bytes: self.workspace.len() };
        // SAFETY: plans are made from `self.sets`, which live as long as `self`, as does the workspace; all work
        // on them goes on the one stream, and `time` and `outputs` wait for it.
        unsafe { self.stream.device().launch(plan, self.stream.handle(), Some(workspace)) }
    }

    /// A graph with a launch for every set, in turn.
    fn record(&mut self, plan: impl Fn(&mut Self, usize) -> Result<Option<Plan>>) -> Result<Graph> {
        let plans: Vec<_> = (0..self.sets.len()).map(|set| plan(self, set)).collect::<Result<_>>()?;
        let plans: Vec<_> = plans.into_iter().flatten().collect();
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
        // SAFETY: the recorded launches use the tensors and the workspace of `self`, and the replay is over when
        // this function returns.
        unsafe { graph.launch(self.stream) }?;
        end.record(self.stream)?;
        end.synchronize()?;
        Ok(f64::from(end.milliseconds_since(&start)?) * 1e-3)
    }

    /// The floor's pass, with as many packets per thread as is fastest here.
    fn fastest_floor(&mut self, call: Call) -> Result<(u32, Graph)> {
        let bytes = Buffers::streamed_bytes(self.problem, call) / call.passes();
        let mut fastest: Option<(f64, u32, Graph)> = None;
        for unroll in floor::UNROLLS {
            let graph = self.record(|buffers, set| {
                let set = &mut buffers.sets[set];
                let address = |pointer: *const u8| pointer.addr() as u64;
                let second = (call == Call::Backward).then(|| address(set.dy.view().pointer()));
                let to = address(set.result.view_mut().pointer());
                Ok(Some(floor::plan(address(set.x.view().pointer()), second, to, bytes, unroll)))
            })?;
            let times = (0..WARM_UP + 3).map(|_| self.time(&graph)).collect::<Result<Vec<_>>>()?;
            let median = Summary::of(&times[WARM_UP..]).median;
            if fastest.as_ref().is_none_or(|(least, ..)| median < *least) {
                fastest = Some((median, unroll, graph));
            }
        }
        let (_, unroll, graph) = fastest.expect("there is at least one way to make the pass");
        Ok((unroll, graph))
    }

    /// The outputs of a call on the first set, poisoned before.
    fn outputs(&mut self, call: Call) -> Result<Vec<HostTensor>> {
        let poison = |tensor: &mut DeviceTensor| tensor.fill_bytes(0xff);
        poison(&mut self.sets[0].result)?;
        poison(&mut self.dweight)?;
        self.dbias.as_mut().map(poison).transpose()?;
        if let Some(plan) = self.plan(call, 0)? {
            self.launch(&plan)?;
        }
        let mut outputs = vec![self.sets[0].result.download()?];
        if call == Call::Backward {
            outputs.push(self.dweight.download()?);
            outputs.extend(self.dbias.as_ref().map(DeviceTensor::download).transpose()?);
        }
        Ok(outputs)
    }
}
