//! The tensors of a case, as many times as it takes to outgrow the cache, and the calls on them.

use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::causal_conv1d::GATES;
use causeway::operation::{DTypes, Operation, Size};
use causeway::{Arrangement, DType, Device, HostTensor, Result};
use causeway_verify::oracle::POISON;
use causeway_verify::suite::{Case, Conv1d, Problem, Results, Tensors};
use serde::{Deserialize, Serialize};

use super::turns::Turns;

/// A call to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Call {
    Forward,
    Backward,
    Update,
    VarlenStates,
}

impl Call {
    /// The calls of a case; none for products, which have a benchmark of their own kind.
    pub fn of(problem: &Problem) -> &'static [Call] {
        match problem {
            Problem::Conv1d(_) => &[Call::Forward, Call::Backward],
            Problem::Update(_) => &[Call::Update],
            Problem::VarlenStates(_) => &[Call::VarlenStates],
            _ => &[],
        }
    }

    pub const ALL: [Call; 4] = [Call::Forward, Call::Backward, Call::Update, Call::VarlenStates];

    pub const fn name(self) -> &'static str {
        match self {
            Call::Forward => "forward",
            Call::Backward => "backward",
            Call::Update => "update",
            Call::VarlenStates => "states",
        }
    }

    /// The name that verifications give it.
    pub const fn operation(self) -> &'static str {
        match self {
            Call::Forward => "conv1d-forward",
            Call::Backward => "conv1d-backward",
            Call::Update => "conv1d-update",
            Call::VarlenStates => "conv1d-varlen-states",
        }
    }
}

/// True if each call has a tensor of this name to itself; parameters, their gradients and indices are small, and shared as a
/// layer's are.
fn takes_turns(name: &str) -> bool {
    use causeway::causal_conv1d::{Backward, Forward, Update, VarlenStates};
    let tables = [Forward::ARGUMENTS, Backward::ARGUMENTS, Update::ARGUMENTS, VarlenStates::ARGUMENTS];
    let argument = tables.into_iter().flatten().find(|argument| argument.name == name);
    argument.is_some_and(|argument| {
        let axes = argument.shape.axes;
        let is_parameter = axes.iter().all(|axis| matches!(axis.size, Size::Dim | Size::Width));
        !is_parameter && !matches!(argument.dtypes, DTypes::Among(..))
    })
}

/// The inputs of a case that has calls to measure, on the host: what results are checked against.
pub(super) struct Inputs {
    pub problem: Problem,
    pub tensors: Tensors,
}

impl Inputs {
    /// Random numbers; `None` for a case that has no calls to measure.
    pub fn of(case: &Case) -> Result<Option<Self>> {
        let tensors = match &case.problem {
            Problem::Conv1d(c) => c.repeating_tensors(&case.name)?,
            Problem::Update(u) => u.tensors(&case.name)?,
            Problem::VarlenStates(v) => v.tensors(&case.name)?,
            _ => return Ok(None),
        };
        Ok(Some(Inputs { problem: case.problem.clone(), tensors }))
    }
}

/// All tensors of a call, and those of its floor.
pub(super) struct Buffers {
    problem: Problem,
    call: Call,
    inputs: Tensors<Turns>,
    results: Tensors<Turns>,
    /// Where a call has no two tensors to copy from and to, or moves more of them: memory for a copy of half of the bytes that it moves.
    copy: Option<[Turns; 2]>,
    pub count: usize,
    /// Bytes that the call reads and writes, each once.
    pub moved: u64,
    /// Bytes of the tensors that each call has to itself.
    pub streamed: u64,
    floor_bytes: u64,
}

/// Does `$body` with the argument struct of call number `$turn`.
macro_rules! with_call {
    ($self:ident, $turn:ident, |$call:ident| $body:expr) => {{
        let inputs = $self.inputs.views(|tensor| tensor.view($turn));
        let results = &mut $self.results;
        match (&$self.problem, $self.call) {
            (Problem::Conv1d(problem), Call::Backward) => {
                #[allow(unused_mut)]
                let mut $call = problem.backward(&inputs, results, |tensor| tensor.view_mut($turn));
                $body
            }
            (Problem::Conv1d(problem), _) => {
                #[allow(unused_mut)]
                let mut $call = problem.forward(&inputs, results, |tensor| tensor.view_mut($turn));
                $body
            }
            (Problem::Update(problem), _) => {
                #[allow(unused_mut)]
                let mut $call = problem.call(&inputs, results, |tensor| tensor.view_mut($turn));
                $body
            }
            (Problem::VarlenStates(problem), _) => {
                #[allow(unused_mut)]
                let mut $call = problem.call(&inputs, results, |tensor| tensor.view_mut($turn));
                $body
            }
            _ => unreachable!("other cases have no inputs"),
        }
    }};
}

impl Buffers {
    /// Sets of tensors on the device: `count` says how many, from the bytes that a call streams through one.
    pub fn new(
        inputs: &Inputs,
        call: Call,
        device: &Device,
        count: impl FnOnce(u64) -> usize,
    ) -> Result<Self> {
        let moved = inputs.problem.moved_bytes(call.operation())?;
        let streamed = match &inputs.problem {
            Problem::Conv1d(c) => tensor_bytes(c) * passes(c, call),
            _ => moved,
        };
        let count = count(streamed);
        let turns = |name: &str| if takes_turns(name) { count } else { 1 };
        let output = |name: &'static str, arrangement: Arrangement| {
            let mut tensor = arrangement.zeros()?;
            // Touches the pages, so that no measured call is the first to do so.
            tensor.fill_bytes(POISON);
            Turns::new(device, arrangement, &tensor, turns(name))
        };
        // Inputs are made in the order of their arrangements, each from the host's tensor of its name.
        let place = |name: &'static str, arrangement: Arrangement| {
            Turns::new(device, arrangement, inputs.tensors.of(name), turns(name))
        };
        let (placed, results) = match (&inputs.problem, call) {
            (Problem::Conv1d(c), Call::Backward) => (c.inputs(place)?, c.backward_results(output)?),
            (Problem::Conv1d(c), _) => (c.inputs(place)?, c.forward_results(output)?),
            (Problem::Update(u), _) => {
                let placed = u.inputs(place)?;
                let results = u.results(|name, arrangement| match name {
                    "conv_state" => place(name, arrangement),
                    _ => output(name, arrangement),
                })?;
                (placed, results)
            }
            (Problem::VarlenStates(v), _) => (v.inputs(place)?, v.results(output)?),
            _ => unreachable!("other cases have no inputs"),
        };
        let (copy, floor_bytes) = match &inputs.problem {
            Problem::Conv1d(c) if gates(c) == 0 => (None, tensor_bytes(c)),
            _ => {
                let half = Arrangement::dense(DType::F32, &[(moved / 8).max(4) as i64], 0)?;
                (Some([output("y", half)?, output("y", half)?]), half.bytes())
            }
        };
        let problem = inputs.problem.clone();
        Ok(Buffers { problem, call, inputs: placed, results, copy, count, moved, streamed, floor_bytes })
    }

    /// Makes call number `turn` on a CPU.
    pub fn run(&mut self, turn: usize, device: &Device) -> Result<()> {
        with_call!(self, turn, |call| call.run(device))
    }

    /// Makes the first call so many times. Its arguments are put together once: looking tensors up by name is no part of a call.
    pub fn run_repeatedly(&mut self, count: usize, device: &Device) -> Result<()> {
        let turn = 0;
        with_call!(self, turn, |call| (0..count).try_for_each(|_| call.run(device)))
    }

    /// Plans the first call so many times.
    pub fn plan_repeatedly(&mut self, count: usize, facts: &DeviceFacts) -> Result<()> {
        let turn = 0;
        with_call!(self, turn, |call| (0..count).try_for_each(|_| call.plan(facts).map(drop)))
    }

    /// The launch of call number `turn` on a GPU.
    pub fn plan(&mut self, turn: usize, facts: &DeviceFacts) -> Result<Option<Plan>> {
        with_call!(self, turn, |call| call.plan(facts))
    }

    /// What the floor's pass reads, once or twice, and writes; and its bytes.
    pub fn floor(&mut self) -> (&Turns, Option<&Turns>, &mut Turns, u64) {
        if let Some([from, to]) = &mut self.copy {
            return (&*from, None, to, self.floor_bytes);
        }
        let (second, to) = match self.call {
            Call::Forward => ("residual", "y"),
            Call::Backward => ("dy", "dx"),
            Call::Update => ("", "y"),
            Call::VarlenStates => ("", "states"),
        };
        let to = self.results.change(&[to]).next().expect("a call of this kind has this result");
        (self.inputs.of("x"), self.inputs.get(second), to, self.floor_bytes)
    }

    /// Poisons the results of the first call; conv_state gets what the host has.
    pub fn reset(&mut self, host: &Inputs) -> Result<()> {
        for (name, turns) in self.results.tensors() {
            match name {
                "conv_state" => turns.restore(host.tensors.of(name))?,
                _ => {
                    let mut tensor = turns.fetch()?;
                    tensor.fill_bytes(POISON);
                    turns.restore(&tensor)?;
                }
            }
        }
        Ok(())
    }

    /// The results of the first call.
    pub fn fetch(&mut self) -> Result<Vec<(&'static str, HostTensor)>> {
        self.results.tensors().into_iter().map(|(name, turns)| Ok((name, turns.fetch()?))).collect()
    }
}

/// Bytes of x.
fn tensor_bytes(problem: &Conv1d) -> u64 {
    problem.x_shape().iter().product::<i64>() as u64 * problem.dtype.size() as u64
}

/// Tensors of x's size that a convolution reads and writes.
fn passes(problem: &Conv1d, call: Call) -> u64 {
    match call {
        Call::Backward => 3 + 2 * gates(problem),
        _ => 2 + u64::from(problem.has("residual")) + gates(problem),
    }
}

fn gates(problem: &Conv1d) -> u64 {
    GATES.iter().map(|gate| u64::from(problem.has(gate))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_indices_are_shared() {
        for name in ["x", "dy", "residual", "B", "C", "initial_states", "dfinal_states", "conv_state"] {
            assert!(takes_turns(name), "{name}");
        }
        for name in ["y", "final_states", "dx", "dB", "dC", "dinitial_states", "states"] {
            assert!(takes_turns(name), "{name}");
        }
        for name in ["weight", "bias", "dweight", "dbias", "seq_idx", "cu_seqlens", "cache_seqlens"] {
            assert!(!takes_turns(name), "{name}");
        }
    }
}
