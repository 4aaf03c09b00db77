//! Inputs and outputs of one shape, as many times as it takes to outgrow the cache.

use causeway::causal_conv1d::{Backward, Forward};
use causeway::suite::Conv1d;
use causeway::{DType, Device, HostTensor, Result};

/// Values to fill memory with. A prime, so that rows and channels, which are powers of two, never repeat each
/// other.
const RANDOM_ELEMENTS: usize = 262_147;

/// A call to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Forward,
    Backward,
}

impl Call {
    pub const fn name(self) -> &'static str {
        match self {
            Call::Forward => "forward",
            Call::Backward => "backward",
        }
    }

    /// Tensors of x's size that the call reads and writes.
    pub const fn passes(self) -> u64 {
        match self {
            Call::Forward => 2,
            Call::Backward => 3,
        }
    }
}

/// Tensors of x's shape: what a call streams.
pub(super) struct Set {
    pub x: HostTensor,
    pub dy: HostTensor,
    /// y or dx.
    pub result: HostTensor,
}

/// All tensors of a case.
pub(super) struct Buffers {
    problem: Conv1d,
    pub sets: Vec<Set>,
    pub weight: HostTensor,
    pub bias: Option<HostTensor>,
    pub dweight: HostTensor,
    pub dbias: Option<HostTensor>,
}

impl Buffers {
    /// Sets of random numbers that hold `bytes` or more of x and y together, two at least.
    pub fn new(problem: &Conv1d, bytes: u64) -> Result<Self> {
        let c = problem;
        let random = random_elements(c.dtype)?;
        let count = bytes.div_ceil(Self::streamed_bytes(c, Call::Forward).max(1)).max(2);
        let set = |index: u64| -> Result<Set> {
            let tensor = || c.layout.zeros(c.dtype, [c.batch, c.dim, c.seqlen]);
            let mut set = Set { x: tensor()?, dy: tensor()?, result: tensor()? };
            fill(&mut set.x, &random, index as usize * 2);
            fill(&mut set.dy, &random, index as usize * 2 + 1);
            // Touches the pages, so that no measured call is the first to do so.
            set.result.fill_bytes(0xff);
            Ok(set)
        };
        let parameters = |shape: &[i64], offset| -> Result<HostTensor> {
            let mut tensor = HostTensor::zeros(c.weight_dtype, shape)?;
            fill(&mut tensor, &random_elements(c.weight_dtype)?, offset);
            Ok(tensor)
        };
        let zeros = |shape: &[i64]| HostTensor::zeros(c.dweight_dtype, shape);
        Ok(Buffers {
            sets: (0..count).map(set).collect::<Result<_>>()?,
            weight: parameters(&[c.dim, c.width], 0)?,
            bias: c.bias.then(|| parameters(&[c.dim], 1)).transpose()?,
            dweight: zeros(&[c.dim, c.width])?,
            dbias: c.bias.then(|| zeros(&[c.dim])).transpose()?,
            problem: problem.clone(),
        })
    }

    /// Bytes of the tensors of x's size that a call reads and writes.
    pub fn streamed_bytes(problem: &Conv1d, call: Call) -> u64 {
        let elements = problem.batch * problem.dim * problem.seqlen;
        elements as u64 * problem.dtype.size() as u64 * call.passes()
    }

    /// Bytes of everything that a call reads and writes, each once.
    pub fn moved_bytes(&self, call: Call) -> u64 {
        let bytes = |tensor: &HostTensor| (tensor.element_count() * tensor.dtype().size()) as u64;
        let optional = |tensor: &Option<HostTensor>| tensor.as_ref().map_or(0, bytes);
        let parameters = bytes(&self.weight) + optional(&self.bias);
        let gradients = match call {
            Call::Forward => 0,
            Call::Backward => bytes(&self.dweight) + optional(&self.dbias),
        };
        Self::streamed_bytes(&self.problem, call) + parameters + gradients
    }

    /// Makes the call on one set.
    pub fn run(&mut self, call: Call, set: usize, device: &Device) -> Result<()> {
        let set = &mut self.sets[set];
        let (x, weight) = (set.x.view(), self.weight.view());
        let bias = self.bias.as_ref().map(HostTensor::view);
        match call {
            Call::Forward => Forward {
                x,
                weight,
                bias,
                initial_states: None,
                seq_idx: None,
                cu_seqlens: None,
                residual: None,
                activation: self.problem.activation,
                y: set.result.view_mut(),
                final_states: None,
            }
            .run(device),
            Call::Backward => Backward {
                x,
                weight,
                bias,
                dy: set.dy.view(),
                initial_states: None,
                seq_idx: None,
                cu_seqlens: None,
                dfinal_states: None,
                activation: self.problem.activation,
                dx: set.result.view_mut(),
                dweight: self.dweight.view_mut(),
                dbias: self.dbias.as_mut().map(HostTensor::view_mut),
                dinitial_states: None,
            }
            .run(device),
        }
    }

    /// The outputs of a call on the first set, poisoned before.
    pub fn outputs(&mut self, call: Call, device: &Device) -> Result<Vec<HostTensor>> {
        self.sets[0].result.fill_bytes(0xff);
        self.dweight.fill_bytes(0xff);
        if let Some(dbias) = &mut self.dbias {
            dbias.fill_bytes(0xff);
        }
        self.run(call, 0, device)?;
        let mut outputs = vec![self.sets[0].result.clone()];
        if call == Call::Backward {
            outputs.push(self.dweight.clone());
            outputs.extend(self.dbias.clone());
        }
        Ok(outputs)
    }
}

/// Uniform in [-1, 1), from a 64-bit linear congruential generator (D. E. Knuth's MMIX).
fn random_elements(dtype: DType) -> Result<HostTensor> {
    let mut state = 1u64;
    HostTensor::from_fn(dtype, &[RANDOM_ELEMENTS as i64], |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    })
}

/// Tiles random elements over a tensor's storage, from an element that depends on `index`.
fn fill(tensor: &mut HostTensor, random: &HostTensor, index: usize) {
    let size = tensor.dtype().size();
    let source = &random.bytes()[..RANDOM_ELEMENTS * size];
    let start = index * 4099 % RANDOM_ELEMENTS * size;
    let (before, after) = source.split_at(start);
    let storage = tensor.bytes_mut();
    let first = after.len().min(storage.len());
    storage[..first].copy_from_slice(&after[..first]);
    for piece in storage[first..].chunks_mut(source.len()) {
        let split = piece.len().min(before.len());
        piece[..split].copy_from_slice(&before[..split]);
        let rest = piece.len() - split;
        piece[split..].copy_from_slice(&after[..rest]);
    }
}
