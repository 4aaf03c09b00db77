//! One case of a suite: a problem, fully spelled out. Verify, bench and tests read the same struct.

use std::collections::BTreeSet;

use causeway::Arrangement;
use causeway::causal_conv1d::{Activation, GATES, HeadNorm};
use causeway::device::Device;
use causeway::error::Result;
use causeway::memory;
use causeway::tensor::DType;

use super::gemm::Gemm;
use super::layout::Layout;
use super::memory::{Memory, Role};
use super::values::Values;

/// One row of a suite.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Unique in its suite and built from its row, for example `large-8x2048x1024-f16-silu`.
    pub name: String,
    /// What is computed.
    pub problem: Problem,
    /// Largest absolute error that the contract allows for each output, whatever the derived bound says.
    pub ceilings: Ceilings,
    /// A wrong value put into a result on purpose, to show that the check sees it.
    pub fault: Option<Fault>,
    /// True for a convolution too large to be compared whole: the oracle computes a few of its channels, both ends
    /// included, and every element is checked for having been written.
    pub sample: bool,
}

/// What a case computes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// Forward, then backward, of the causal convolution.
    Conv1d(Conv1d),
    /// The plain forward call of a convolution, and the same tokens in every other way that promises the same bits.
    Parity(Conv1d),
    /// The decode update.
    Update(Update),
    /// The states of a packed batch.
    VarlenStates(VarlenStates),
    /// A matrix product and its gradients.
    Gemm(Gemm),
}

/// A forward and a backward call.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv1d {
    /// Rows of x; 1 when `cu_seqlens` is given.
    pub batch: i64,
    /// Channels.
    pub dim: i64,
    /// Positions in a row; the total when `cu_seqlens` is given.
    pub seqlen: i64,
    /// Taps per channel.
    pub width: i64,
    /// Dtype of x, y, dy, dx, residual and all states.
    pub dtype: DType,
    /// Dtype of weight and bias.
    pub weight_dtype: DType,
    /// Dtype of dweight and dbias: weight's, or f32.
    pub dweight_dtype: DType,
    /// Memory of the inputs.
    pub layout: Layout,
    /// Memory of y, dx and the states that are written.
    pub output_layout: Layout,
    /// After the sum.
    pub activation: Activation,
    /// Products with gates are rounded to the dtype.
    pub round_products: bool,
    /// The activation is divided by its norm over heads.
    pub norm: Option<HeadNorm>,
    /// Three calls, of parts of the channels, that are made together.
    pub together: bool,
    /// Of these, the last has no norm, as v of q, k and v.
    pub plain_last: bool,
    /// Which of [`Conv1d::flags`] the calls have, and with them their gradients.
    pub given: BTreeSet<&'static str>,
    /// With seq_idx.
    pub seq_idx: Option<SeqIdx>,
    /// With cu_seqlens.
    pub cu_seqlens: Option<CuSeqlens>,
    /// What the inputs hold.
    pub values: Values,
    /// Of [`Conv1d::omissible`], what is not asked for although its input is given.
    pub omit: Vec<String>,
    /// Tensors that lie elsewhere than their layout says.
    pub memory: Memory,
}

/// A decode update.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// Batch entries.
    pub batch: i64,
    /// Channels.
    pub dim: i64,
    /// New positions per entry; `None` for a two-dimensional x.
    pub seqlen: Option<i64>,
    /// Taps per channel.
    pub width: i64,
    /// Positions per row of conv_state.
    pub state_len: i64,
    /// Dtype of x, y and conv_state.
    pub dtype: DType,
    /// Dtype of weight and bias.
    pub weight_dtype: DType,
    /// Memory of x, y and conv_state.
    pub layout: Layout,
    /// After the sum.
    pub activation: Activation,
    /// With bias.
    pub bias: bool,
    /// With cache_seqlens: the state is a ring buffer.
    pub cache_seqlens: bool,
    /// With the gate B.
    pub b: bool,
    /// With the gate C.
    pub c: bool,
    /// Products with gates are rounded to the dtype.
    pub round_products: bool,
    /// The activation is divided by its norm over heads.
    pub norm: Option<HeadNorm>,
    /// Three calls, of parts of the channels, that are made together.
    pub together: bool,
    /// Of these, the last has no norm, as v of q, k and v.
    pub plain_last: bool,
    /// With conv_state_indices: twice as many state rows as entries, in mixed order, every third entry padding.
    pub conv_state_indices: bool,
    /// What x and conv_state hold.
    pub values: Values,
    /// Tensors that lie elsewhere than their layout says.
    pub memory: Memory,
}

/// A call of varlen_states.
#[derive(Debug, Clone, PartialEq)]
pub struct VarlenStates {
    /// Channels.
    pub dim: i64,
    /// Positions kept per sequence.
    pub state_len: i64,
    /// Dtype of x and states.
    pub dtype: DType,
    /// Memory of x and states; x is `(total, dim)`, which channel-last keeps dense.
    pub layout: Layout,
    /// Boundaries.
    pub cu_seqlens: CuSeqlens,
    /// Tensors that lie elsewhere than their layout says.
    pub memory: Memory,
}

/// `cu_seqlens` by the lengths of its sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CuSeqlens {
    /// Length of each sequence; 0 is allowed.
    pub lengths: Vec<i64>,
    /// i32 or i64.
    pub dtype: DType,
}

impl CuSeqlens {
    /// Sum of the lengths.
    pub fn total(&self) -> i64 {
        self.lengths.iter().sum()
    }

    /// The n + 1 boundaries, from 0 to the total.
    pub fn boundaries(&self) -> Vec<i64> {
        let ends = self.lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }
}

/// `seq_idx` by runs of equal index. The runs repeat until a row is full; row b starts with run b.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeqIdx {
    /// Length (positive) and index (negative for padding) of each run.
    pub runs: Vec<(i64, i32)>,
}

impl SeqIdx {
    /// The indices of one row.
    pub fn row(&self, row: i64, seqlen: i64) -> Vec<i32> {
        let first = (row % self.runs.len().max(1) as i64) as usize;
        self.runs
            .iter()
            .cycle()
            .skip(first)
            .flat_map(|&(length, index)| std::iter::repeat_n(index, length as usize))
            .take(seqlen as usize)
            .collect()
    }
}

/// Largest absolute errors allowed by contract; `None` where the contract names none.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceilings {
    /// Of dx.
    pub dx: Option<f64>,
    /// Of dweight.
    pub dweight: Option<f64>,
    /// Of dbias.
    pub dbias: Option<f64>,
}

impl Ceilings {
    /// The sentence about what is wrong with those of a dtype of this name.
    pub(super) fn check(&self, dtype: &str) -> Result<(), String> {
        if dtype.parse::<DType>().is_err() {
            return Err(format!("ceilings.{dtype} is for no dtype: expected f32, f16, bf16 or f64"));
        }
        let named = [("dx", self.dx), ("dweight", self.dweight), ("dbias", self.dbias)];
        for (output, ceiling) in named {
            if let Some(ceiling) = ceiling.filter(|ceiling| !(0.0..=f64::MAX).contains(ceiling)) {
                return Err(format!(
                    "ceilings.{dtype}.{output} is {ceiling}: expected a number of at least 0"
                ));
            }
        }
        Ok(())
    }

    /// The ceiling of an output by its name.
    pub fn of(&self, output: &str) -> Option<f64> {
        match output {
            "dx" => self.dx,
            "dweight" => self.dweight,
            "dbias" => self.dbias,
            _ => None,
        }
    }
}

/// A value added to one element of one result after the kernel ran.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Name of the output.
    pub output: String,
    /// Logical coordinate of the element.
    pub coordinate: Vec<i64>,
    /// What is added, in the output's dtype.
    pub add: f64,
}

impl Case {
    /// Why the case does not run on this device; `None` if it does.
    ///
    /// # Errors
    /// What the driver says.
    pub fn not_asked_of(&self, device: &Device) -> Result<Option<String>> {
        if self.problem.dtype() == DType::F64 && !matches!(device, Device::Cpu(_)) {
            return Ok(Some("f64 is computed on a CPU only".to_string()));
        }
        let Problem::Conv1d(conv1d) = &self.problem else { return Ok(None) };
        if !self.sample {
            return Ok(None);
        }
        let (tensors, result) = conv1d.memory()?;
        let (on_device, on_host) = match device {
            Device::Simulated(_) => {
                return Ok(Some("a simulator would take days for so large a tensor".to_string()));
            }
            Device::Gpu(stream) => (Some((tensors, stream.device().memory()?.0)), result),
            Device::Cpu(_) => (None, tensors),
        };
        let on_device = on_device.map(|(needed, free)| (needed, Some(free), device.to_string()));
        let on_host = (on_host, memory::available(), "the host".to_string());
        let short = on_device.into_iter().chain([on_host]).find_map(|(needed, free, place)| {
            let free = free.filter(|&free| free < needed)?;
            Some(format!(
                "{place} has {:.1} GiB of memory free, and {:.1} GiB are needed",
                gibibytes(free),
                gibibytes(needed)
            ))
        });
        Ok(short)
    }
}

fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

impl Conv1d {
    /// Bytes of all tensors that are there at one time, and of the largest result.
    fn memory(&self) -> Result<(u64, u64)> {
        let mut total = 0u64;
        let mut count = |_: &'static str, arrangement: Arrangement| {
            total = total.saturating_add(arrangement.bytes());
            Ok(arrangement.bytes())
        };
        self.inputs(&mut count)?;
        let largest = *self.backward_results(&mut count)?.of("dx");
        Ok((total, largest))
    }
}

impl Problem {
    /// `conv1d`, `parity`, `conv1d-update`, `conv1d-varlen-states` or `gemm`.
    pub fn operation(&self) -> &'static str {
        match self {
            Problem::Conv1d(_) => "conv1d",
            Problem::Parity(_) => "parity",
            Problem::Update(_) => "conv1d-update",
            Problem::VarlenStates(_) => "conv1d-varlen-states",
            Problem::Gemm(_) => "gemm",
        }
    }

    /// Product of the sizes, the width left out: the elements of x, or the products of a matrix product.
    pub fn elements(&self) -> i64 {
        let sizes = self.shape().into_iter().filter(|(name, _)| *name != "width" && *name != "state_len");
        sizes.fold(1, |product, (_, size)| product.saturating_mul(size))
    }

    /// Names and values of the sizes.
    pub fn shape(&self) -> Vec<(&'static str, i64)> {
        match self {
            Problem::Conv1d(c) | Problem::Parity(c) => {
                vec![("batch", c.batch), ("dim", c.dim), ("seqlen", c.seqlen), ("width", c.width)]
            }
            Problem::Update(u) => {
                let mut shape = vec![("batch", u.batch), ("dim", u.dim)];
                shape.extend(u.seqlen.map(|seqlen| ("seqlen", seqlen)));
                shape.extend([("width", u.width), ("state_len", u.state_len)]);
                shape
            }
            Problem::VarlenStates(v) => vec![
                ("total", v.cu_seqlens.total()),
                ("dim", v.dim),
                ("sequences", v.cu_seqlens.lengths.len() as i64),
                ("state_len", v.state_len),
            ],
            Problem::Gemm(g) => vec![("M", g.m), ("N", g.n), ("K", g.k)],
        }
    }

    /// Every tensor of the problem's calls: name, what a call does with it, and where it lies.
    ///
    /// # Errors
    /// If a tensor cannot be arranged in memory.
    pub fn tensors(&self) -> Result<Vec<(&'static str, Role, Arrangement)>> {
        let mut tensors = Vec::new();
        let mut input = |name: &'static str, arrangement: Arrangement| {
            tensors.push((name, Role::of_input(name), arrangement));
            Ok(())
        };
        match self {
            Problem::Conv1d(c) | Problem::Parity(c) => c.inputs(&mut input).map(|_| ())?,
            Problem::Update(u) => u.inputs(&mut input).map(|_| ())?,
            Problem::VarlenStates(v) => v.inputs(&mut input).map(|_| ())?,
            Problem::Gemm(g) => g.inputs(&mut input).map(|_| ())?,
        }
        let mut output = |name: &'static str, arrangement: Arrangement| {
            // What is changed in place is among the inputs.
            if tensors.iter().all(|(known, ..)| *known != name) {
                tensors.push((name, Role::Output, arrangement));
            }
            Ok(())
        };
        match self {
            Problem::Conv1d(c) => {
                c.forward_results(&mut output)?;
                c.backward_results(&mut output)?;
            }
            Problem::Parity(c) => c.forward_results(&mut output).map(|_| ())?,
            Problem::Update(u) => u.results(&mut output).map(|_| ())?,
            Problem::VarlenStates(v) => v.results(&mut output).map(|_| ())?,
            Problem::Gemm(g) => g.results(&mut output).map(|_| ())?,
        }
        Ok(tensors)
    }

    /// The same problem with every tensor where its layout says.
    pub(super) fn in_its_layouts(&self) -> Problem {
        let mut plain = self.clone();
        match &mut plain {
            Problem::Conv1d(c) | Problem::Parity(c) => c.memory = Memory::default(),
            Problem::Update(u) => u.memory = Memory::default(),
            Problem::VarlenStates(v) => v.memory = Memory::default(),
            Problem::Gemm(g) => g.memory = Memory::default(),
        }
        plain
    }

    /// Where single tensors lie.
    pub fn memory(&self) -> &Memory {
        match self {
            Problem::Conv1d(c) | Problem::Parity(c) => &c.memory,
            Problem::Update(u) => &u.memory,
            Problem::VarlenStates(v) => &v.memory,
            Problem::Gemm(g) => &g.memory,
        }
    }

    /// Dtype of x, or of A.
    pub fn dtype(&self) -> DType {
        match self {
            Problem::Conv1d(c) | Problem::Parity(c) => c.dtype,
            Problem::Update(u) => u.dtype,
            Problem::VarlenStates(v) => v.dtype,
            Problem::Gemm(g) => g.dtype,
        }
    }

    /// Memory of x or of A, by its name.
    pub fn layout(&self) -> &'static str {
        match self {
            Problem::Conv1d(c) | Problem::Parity(c) => c.layout.name(),
            Problem::Update(u) => u.layout.name(),
            Problem::VarlenStates(v) => v.layout.name(),
            Problem::Gemm(g) => g.layout.name(),
        }
    }

    /// What is not plain about the case, in words: `silu`, `bias`, `weight f32`, `cu_seqlens i64 (5)`.
    pub fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        match self {
            Problem::Conv1d(c) | Problem::Parity(c) => {
                options.push(c.activation.to_string());
                options.extend(Conv1d::flags().filter(|name| c.has(name)).map(str::to_string));
                options.extend(c.round_products.then(|| "round_products".into()));
                options.extend(c.norm.map(|norm| format!("norm {norm}")));
                options.extend(c.together.then(|| "together".into()));
                options.extend(c.plain_last.then(|| "the last plain".into()));
                options.extend(c.seq_idx.as_ref().map(|_| "seq_idx".into()));
                options.extend(c.cu_seqlens.as_ref().map(CuSeqlens::describe));
                options.extend((c.weight_dtype != c.dtype).then(|| format!("weight {}", c.weight_dtype)));
                options.extend(
                    (c.dweight_dtype != c.weight_dtype).then(|| format!("dweight {}", c.dweight_dtype)),
                );
                options.extend((c.output_layout != c.layout).then(|| format!("outputs {}", c.output_layout)));
                options.extend((c.values != Values::Uniform).then(|| format!("values {}", c.values)));
                options.extend(c.omit.iter().map(|name| format!("without {name}")));
            }
            Problem::Update(u) => {
                options.push(u.activation.to_string());
                options.extend(u.bias.then(|| "bias".into()));
                options.extend(u.cache_seqlens.then(|| "cache_seqlens".into()));
                options.extend(u.conv_state_indices.then(|| "conv_state_indices".into()));
                let gates = GATES.into_iter().zip([u.b, u.c]);
                options.extend(gates.filter(|(_, given)| *given).map(|(name, _)| name.to_string()));
                options.extend(u.round_products.then(|| "round_products".into()));
                options.extend(u.norm.map(|norm| format!("norm {norm}")));
                options.extend(u.together.then(|| "together".into()));
                options.extend(u.plain_last.then(|| "the last plain".into()));
                options.extend((u.weight_dtype != u.dtype).then(|| format!("weight {}", u.weight_dtype)));
                options.extend((u.values != Values::Uniform).then(|| format!("values {}", u.values)));
            }
            Problem::VarlenStates(v) => options.push(v.cu_seqlens.describe()),
            Problem::Gemm(g) => {
                options.push(g.algorithm.to_string());
                options.extend(g.together.then(|| "gradients together".into()));
                options.extend((g.output_layout != g.layout).then(|| format!("outputs {}", g.output_layout)));
                options.extend((g.values != Values::Uniform).then(|| format!("values {}", g.values)));
            }
        }
        options.extend(self.memory().0.keys().map(|name| format!("memory of {name}")));
        options
    }
}

impl CuSeqlens {
    fn describe(&self) -> String {
        format!("cu_seqlens {} ({} sequences)", self.dtype, self.lengths.len())
    }
}
