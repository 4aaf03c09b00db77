//! TOML rows to cases: defaults, lists that multiply, and names.

use std::collections::BTreeSet;

use causeway::causal_conv1d::{Activation, Forward, GATES, HeadNorm, MAX_WIDTH};
use causeway::gemm::Algorithm;
use causeway::tensor::DType;
use causeway::{Error, HostTensor};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};

use super::case::{Case, Ceilings, Conv1d, CuSeqlens, Fault, Problem, SeqIdx, Update, VarlenStates};
use super::gemm::{Gemm, MatrixLayout};
use super::layout::Layout;
use super::memory::Memory;
use super::values::Values;

/// Keys that may hold a list instead of a value: there is then one case for each entry. The first changes slowest.
const MULTIPLYING: [&str; 12] = [
    "shape",
    "width",
    "state_len",
    "layout",
    "output_layout",
    "cache_seqlens",
    "together",
    "values",
    "dtype",
    "weight_dtype",
    "activation",
    "algorithm",
];

/// The dtypes of products.
const HALF: [DType; 2] = [DType::F16, DType::BF16];

/// Most cases of one row: a few lists of a small file would fill the memory.
const MOST_CASES: usize = 10_000;

/// The cases of one row of an operation's list, which `base` completes.
pub(super) fn cases(
    operation: &str,
    base: Option<&toml::Table>,
    row: &toml::Table,
    ceilings: &dyn Fn(DType) -> Ceilings,
) -> Result<Vec<Case>, String> {
    match operation {
        "conv1d" => cases_of::<Conv1dRow>(base, row, ceilings),
        "parity" => cases_of::<ParityRow>(base, row, ceilings),
        "conv1d-update" => cases_of::<UpdateRow>(base, row, ceilings),
        "conv1d-varlen-states" => cases_of::<VarlenStatesRow>(base, row, ceilings),
        "gemm" => cases_of::<GemmRow>(base, row, ceilings),
        other => Err(format!("operation is {other:?}")),
    }
}

fn cases_of<R: Row>(
    base: Option<&toml::Table>,
    row: &toml::Table,
    ceilings: &dyn Fn(DType) -> Ceilings,
) -> Result<Vec<Case>, String> {
    let mut whole = base.cloned().unwrap_or_default();
    whole.extend(row.clone());
    let listed: Vec<&str> = MULTIPLYING.into_iter().filter(|key| list(&whole, key).is_some()).collect();
    let combinations = listed
        .iter()
        .filter_map(|key| list(&whole, key))
        .fold(1usize, |product, values| product.saturating_mul(values.len()));
    if combinations > MOST_CASES {
        return Err(format!(
            "its lists ({}) multiply to {combinations} cases: at most {MOST_CASES} are allowed; split the row",
            listed.join(", ")
        ));
    }
    expand(whole)
        .into_iter()
        .map(|mut row| {
            if R::HAS_FLAGS {
                gather_flags(&mut row)?;
            }
            let row: R = row.try_into().map_err(|error: toml::de::Error| with_flags(error.message()))?;
            let problem = row.problem()?;
            check_memory(&problem)?;
            Ok(Case {
                name: name(row.name(), &problem, &listed),
                ceilings: if is_plain(&problem) { ceilings(problem.dtype()) } else { Ceilings::default() },
                sample: row.sample(),
                problem,
                fault: row.fault(),
            })
        })
        .collect()
}

/// A sentence about keys, with those that [`gather_flags`] has put together.
fn with_flags(message: &str) -> String {
    let flags = Conv1d::flags().map(|flag| format!("`{flag}`")).collect::<Vec<_>>();
    message.replace("`given`", &flags.join(", "))
}

/// Puts the keys that stand for optional tensors together, as `given`.
fn gather_flags(row: &mut toml::Table) -> Result<(), String> {
    let mut given = Vec::new();
    for name in Conv1d::flags() {
        match row.remove(name) {
            Some(toml::Value::Boolean(true)) => given.push(toml::Value::from(name)),
            Some(toml::Value::Boolean(false)) | None => {}
            Some(other) => return Err(format!("{name} is {other}: expected true or false")),
        }
    }
    row.insert("given".to_string(), given.into());
    Ok(())
}

/// The optional tensors of a row.
#[derive(Debug, Default)]
struct Given(BTreeSet<&'static str>);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        Ok(Given(Conv1d::flags().filter(|flag| names.iter().any(|name| name == flag)).collect()))
    }
}

/// Each placement is that of a tensor of the problem, and one that it can have.
fn check_memory(problem: &Problem) -> Result<(), String> {
    let memory = &problem.memory().0;
    if memory.is_empty() {
        return Ok(());
    }
    // With an axis that the tensor does not have it could not be arranged.
    let plain = problem.in_its_layouts().tensors().map_err(|error| error.to_string())?;
    for (name, placement) in memory {
        let Some((_, role, arrangement)) = plain.iter().find(|(known, ..)| known == name) else {
            let known: Vec<_> = plain.iter().map(|(known, ..)| *known).collect();
            return Err(format!("memory has {name:?}: the tensors of this row are {}", known.join(", ")));
        };
        if let Some(complaint) = placement.complaint(arrangement.shape.len(), *role) {
            return Err(format!("memory.{name}: {complaint}"));
        }
    }
    Ok(())
}

/// True for the cases that the contract's ceilings speak of: numbers of ordinary size, in one dtype.
fn is_plain(problem: &Problem) -> bool {
    match problem {
        Problem::Conv1d(c) => c.values == Values::Uniform && c.weight_dtype == c.dtype,
        _ => true,
    }
}

/// The entries of a key that holds a list of values. (One shape is a list of sizes, and still one value.)
fn list<'a>(row: &'a toml::Table, key: &str) -> Option<&'a Vec<toml::Value>> {
    let items = row.get(key)?.as_array()?;
    let is_one_shape = key == "shape" && items.iter().all(|item| !item.is_array());
    (!is_one_shape).then_some(items)
}

/// One row for each combination of listed values.
fn expand(row: toml::Table) -> Vec<toml::Table> {
    let mut rows = vec![row];
    for key in MULTIPLYING {
        rows = rows
            .into_iter()
            .flat_map(|row| match list(&row, key) {
                None => vec![row],
                Some(values) => values
                    .iter()
                    .map(|value| {
                        let mut one = row.clone();
                        one.insert(key.to_string(), value.clone());
                        one
                    })
                    .collect(),
            })
            .collect();
    }
    rows
}

/// The row's name, the sizes, what the row lists, the dtypes and the activation: `large-8x2048x1024-f16-silu`.
fn name(row: &str, problem: &Problem, listed: &[&str]) -> String {
    let (sizes, width, weight_dtype, activation) = match problem {
        Problem::Conv1d(c) | Problem::Parity(c) => {
            (vec![c.batch, c.dim, c.seqlen], c.width, c.weight_dtype, c.activation)
        }
        Problem::Update(u) => {
            let sizes = [u.batch, u.dim].into_iter().chain(u.seqlen).collect();
            (sizes, u.width, u.weight_dtype, u.activation)
        }
        Problem::VarlenStates(v) => (vec![v.cu_seqlens.total(), v.dim], 0, v.dtype, Activation::None),
        Problem::Gemm(g) => (vec![g.m, g.n, g.k], 0, g.dtype, Activation::None),
    };
    let sizes: Vec<_> = sizes.iter().map(i64::to_string).collect();
    let mut parts = vec![row.to_string(), sizes.join("x")];
    for &key in listed {
        parts.extend(match (key, problem) {
            ("width", _) => Some(format!("w{width}")),
            ("layout", problem) => Some(problem.layout().to_string()),
            ("output_layout", Problem::Conv1d(c)) => Some(format!("to-{}", c.output_layout)),
            ("output_layout", Problem::Gemm(g)) => Some(format!("to-{}", g.output_layout)),
            ("values", Problem::Conv1d(c) | Problem::Parity(c)) => Some(c.values.to_string()),
            ("values", Problem::Gemm(g)) => Some(g.values.to_string()),
            ("values", Problem::Update(u)) => Some(u.values.to_string()),
            ("together", Problem::Gemm(g)) => Some(if g.together { "together" } else { "apart" }.to_string()),
            ("state_len", Problem::Update(u)) => Some(format!("s{}", u.state_len)),
            ("state_len", Problem::VarlenStates(v)) => Some(format!("s{}", v.state_len)),
            ("cache_seqlens", Problem::Update(u)) => {
                Some(if u.cache_seqlens { "ring" } else { "shift" }.to_string())
            }
            _ => None,
        });
    }
    parts.push(problem.dtype().to_string());
    if weight_dtype != problem.dtype() {
        parts.push(format!("weight-{weight_dtype}"));
    }
    if activation != Activation::None {
        parts.push(activation.to_string());
    }
    if let Problem::Gemm(gemm) = problem {
        parts.push(gemm.algorithm.to_string());
    }
    parts.join("-")
}

/// A row of TOML whose lists have been expanded.
trait Row: DeserializeOwned {
    /// Whether keys are optional tensors of the convolution.
    const HAS_FLAGS: bool = false;
    /// What its cases are called.
    fn name(&self) -> &str;
    /// The problem, or what is wrong with it.
    fn problem(&self) -> Result<Problem, String>;
    /// A wrong value to put in.
    fn fault(&self) -> Option<Fault>;
    /// Whether a sample of the channels is checked instead of all.
    fn sample(&self) -> bool {
        false
    }
}

/// The methods of [`Row`] for keys that every row has.
macro_rules! common_keys {
    () => {
        fn name(&self) -> &str {
            &self.name
        }

        fn fault(&self) -> Option<Fault> {
            self.fault.clone()
        }
    };
}

/// A value that TOML spells as text, such as a dtype.
#[derive(Debug, Clone, Copy, Default)]
struct Named<T>(T);

impl<'de, T: std::str::FromStr<Err: std::fmt::Display>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Named).map_err(D::Error::custom)
    }
}

/// Whether the last of calls that are made together has no norm.
fn plain_last(asked: bool, together: bool, has_norm: bool) -> Result<bool, String> {
    require(!asked || together && has_norm, "plain_last is true: such a row needs together and a norm")?;
    Ok(asked)
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CuSeqlensRow {
    lengths: Vec<i64>,
    dtype: Named<DType>,
}

impl CuSeqlensRow {
    fn build(&self) -> Result<CuSeqlens, String> {
        require(self.lengths.iter().all(|&length| length >= 0), "cu_seqlens has a negative length")?;
        Ok(CuSeqlens { lengths: self.lengths.clone(), dtype: self.dtype.0 })
    }
}

/// A row of `[[conv1d]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conv1dRow {
    name: String,
    /// `[batch, dim, seqlen]`.
    shape: [i64; 3],
    width: i64,
    dtype: Named<DType>,
    weight_dtype: Option<Named<DType>>,
    dweight_dtype: Option<Named<DType>>,
    #[serde(default)]
    layout: Named<Layout>,
    output_layout: Option<Named<Layout>>,
    #[serde(default)]
    activation: Named<Activation>,
    #[serde(default)]
    round_products: bool,
    norm: Option<Named<HeadNorm>>,
    #[serde(default)]
    together: bool,
    #[serde(default)]
    plain_last: bool,
    #[serde(default)]
    given: Given,
    seq_idx: Option<Vec<(i64, i32)>>,
    cu_seqlens: Option<CuSeqlensRow>,
    values: Option<Named<Values>>,
    #[serde(default)]
    omit: Vec<String>,
    #[serde(default)]
    memory: Memory,
    #[serde(default)]
    sample: bool,
    fault: Option<Fault>,
}

impl Row for Conv1dRow {
    const HAS_FLAGS: bool = true;

    common_keys!();

    fn problem(&self) -> Result<Problem, String> {
        let [batch, dim, seqlen] = self.shape;
        let (Named(dtype), Named(layout)) = (self.dtype, self.layout);
        let weight_dtype = self.weight_dtype.map_or(dtype, |dtype| dtype.0);
        check_sizes(&self.shape, self.width)?;
        check_dtypes(dtype, weight_dtype)?;
        let cu_seqlens = self.cu_seqlens.as_ref().map(CuSeqlensRow::build).transpose()?;
        if let Some(boundaries) = &cu_seqlens {
            let total = boundaries.total();
            require(
                batch == 1 && seqlen == total,
                format!("shape has batch {batch} and seqlen {seqlen}: cu_seqlens needs 1 and {total}"),
            )?;
        }
        if let Some(runs) = &self.seq_idx {
            let positive = !runs.is_empty() && runs.iter().all(|&(length, _)| length > 0);
            require(positive, "seq_idx needs runs of positive length")?;
        }
        let omissible = Conv1d::omissible();
        if let Some(name) = self.omit.iter().find(|name| !omissible.contains(&name.as_str())) {
            return Err(format!("omit has {name:?}: expected any of {}", omissible.join(", ")));
        }
        let others = GATES.into_iter().chain(["residual"]);
        let norm = norm(self.norm, dim, others.into_iter().any(|other| self.given.0.contains(other)))?;
        let output_layout = self.output_layout.map_or(layout, |layout| layout.0);
        if self.sample {
            require(norm.is_none(), "sample is true: such a row can have no norm, whose heads it would cut")?;
            let plain = self.given.0.iter().all(|name| *name == "bias") && self.values.is_none();
            let plain = plain && self.memory.0.is_empty();
            let dense = [Layout::ChannelFirst, Layout::ChannelLast];
            require(
                plain && self.seq_idx.is_none() && cu_seqlens.is_none(),
                "sample is true: such a row can have no states, sequences, residual, values or memory",
            )?;
            require(
                dense.contains(&layout) && dense.contains(&output_layout),
                "sample is true: the layouts of such a row are channel-first or channel-last",
            )?;
        }
        Ok(Problem::Conv1d(Conv1d {
            batch,
            dim,
            seqlen,
            width: self.width,
            dtype,
            weight_dtype,
            dweight_dtype: self.dweight_dtype.map_or(weight_dtype, |dtype| dtype.0),
            layout,
            output_layout,
            activation: self.activation.0,
            round_products: self.round_products,
            norm,
            together: self.together,
            plain_last: plain_last(self.plain_last, self.together, norm.is_some())?,
            given: self.given.0.clone(),
            seq_idx: self.seq_idx.clone().map(|runs| SeqIdx { runs }),
            cu_seqlens,
            values: self.values.map_or(Values::Uniform, |values| values.0),
            omit: self.omit.clone(),
            memory: self.memory.clone(),
        }))
    }

    fn sample(&self) -> bool {
        self.sample
    }
}

/// A row of `[[parity]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParityRow {
    name: String,
    /// `[batch, dim, seqlen]`.
    shape: [i64; 3],
    width: i64,
    dtype: Named<DType>,
    weight_dtype: Option<Named<DType>>,
    #[serde(default)]
    activation: Named<Activation>,
    #[serde(default)]
    given: Given,
    values: Option<Named<Values>>,
    fault: Option<Fault>,
}

impl Row for ParityRow {
    const HAS_FLAGS: bool = true;

    common_keys!();

    fn problem(&self) -> Result<Problem, String> {
        let [batch, dim, seqlen] = self.shape;
        check_sizes(&self.shape, self.width)?;
        require(
            self.shape.iter().all(|&size| size > 0),
            "shape has a size of 0: there is nothing to compare",
        )?;
        // What lies before a piece is a state, which is rounded where x times its gate is not.
        let gated = GATES.iter().find(|gate| self.given.0.contains(*gate));
        require(gated.is_none(), "such a row can have no gates: states hold them rounded")?;
        let values = self.values.map_or(Values::Uniform, |values| values.0);
        require(values != Values::NanPadding, "values is nan-padding: such a row has no padded positions")?;
        let Named(dtype) = self.dtype;
        let weight_dtype = self.weight_dtype.map_or(dtype, |dtype| dtype.0);
        check_dtypes(dtype, weight_dtype)?;
        Ok(Problem::Parity(Conv1d {
            batch,
            dim,
            seqlen,
            width: self.width,
            dtype,
            weight_dtype,
            dweight_dtype: weight_dtype,
            layout: Layout::ChannelFirst,
            output_layout: Layout::ChannelFirst,
            activation: self.activation.0,
            round_products: false,
            norm: None,
            together: false,
            plain_last: false,
            given: self.given.0.clone(),
            seq_idx: None,
            cu_seqlens: None,
            values,
            omit: Vec::new(),
            memory: Memory::default(),
        }))
    }
}

/// A row of `[[conv1d-update]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateRow {
    name: String,
    /// `[batch, dim]` or `[batch, dim, seqlen]`.
    shape: Vec<i64>,
    width: i64,
    /// `width - 1` unless given.
    state_len: Option<i64>,
    dtype: Named<DType>,
    weight_dtype: Option<Named<DType>>,
    #[serde(default)]
    layout: Named<Layout>,
    #[serde(default)]
    activation: Named<Activation>,
    #[serde(default)]
    bias: bool,
    #[serde(default)]
    cache_seqlens: bool,
    #[serde(default)]
    conv_state_indices: bool,
    #[serde(default, rename = "B")]
    b: bool,
    #[serde(default, rename = "C")]
    c: bool,
    #[serde(default)]
    round_products: bool,
    norm: Option<Named<HeadNorm>>,
    #[serde(default)]
    together: bool,
    #[serde(default)]
    plain_last: bool,
    values: Option<Named<Values>>,
    #[serde(default)]
    memory: Memory,
    fault: Option<Fault>,
}

impl Row for UpdateRow {
    common_keys!();

    fn problem(&self) -> Result<Problem, String> {
        let (batch, dim, seqlen) = match *self.shape.as_slice() {
            [batch, dim] => (batch, dim, None),
            [batch, dim, seqlen] => (batch, dim, Some(seqlen)),
            _ => return Err("shape needs [batch, dim] or [batch, dim, seqlen]".into()),
        };
        check_sizes(&self.shape, self.width)?;
        let shortest = self.width - 1;
        let state_len = self.state_len.unwrap_or(shortest);
        require(
            state_len >= shortest,
            format!("state_len is {state_len}: width {} needs at least {shortest}", self.width),
        )?;
        let values = self.values.map_or(Values::Uniform, |values| values.0);
        require(values != Values::NanPadding, "values is nan-padding: an update has no seq_idx")?;
        let norm = norm(self.norm, dim, self.b || self.c)?;
        check_dtypes(self.dtype.0, self.weight_dtype.unwrap_or(self.dtype).0)?;
        Ok(Problem::Update(Update {
            batch,
            dim,
            seqlen,
            width: self.width,
            state_len,
            dtype: self.dtype.0,
            weight_dtype: self.weight_dtype.unwrap_or(self.dtype).0,
            layout: self.layout.0,
            activation: self.activation.0,
            bias: self.bias,
            cache_seqlens: self.cache_seqlens,
            conv_state_indices: self.conv_state_indices,
            b: self.b,
            c: self.c,
            round_products: self.round_products,
            norm,
            together: self.together,
            plain_last: plain_last(self.plain_last, self.together, norm.is_some())?,
            values,
            memory: self.memory.clone(),
        }))
    }
}

/// A row of `[[conv1d-varlen-states]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VarlenStatesRow {
    name: String,
    dim: i64,
    state_len: i64,
    dtype: Named<DType>,
    #[serde(default)]
    layout: Named<Layout>,
    cu_seqlens: CuSeqlensRow,
    #[serde(default)]
    memory: Memory,
    fault: Option<Fault>,
}

impl Row for VarlenStatesRow {
    common_keys!();

    fn problem(&self) -> Result<Problem, String> {
        check_sizes(&[self.dim, self.state_len], 1)?;
        check_dtypes(self.dtype.0, self.dtype.0)?;
        Ok(Problem::VarlenStates(VarlenStates {
            dim: self.dim,
            state_len: self.state_len,
            dtype: self.dtype.0,
            layout: self.layout.0,
            cu_seqlens: self.cu_seqlens.build()?,
            memory: self.memory.clone(),
        }))
    }
}

/// A row of `[[gemm]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GemmRow {
    name: String,
    /// `[M, N, K]`.
    shape: [i64; 3],
    dtype: Named<DType>,
    #[serde(default)]
    algorithm: Named<Algorithm>,
    #[serde(default)]
    layout: Named<MatrixLayout>,
    output_layout: Option<Named<MatrixLayout>>,
    #[serde(default)]
    together: bool,
    values: Option<Named<Values>>,
    #[serde(default)]
    memory: Memory,
    fault: Option<Fault>,
}

impl Row for GemmRow {
    common_keys!();

    fn problem(&self) -> Result<Problem, String> {
        let [m, n, k] = self.shape;
        check_sizes(&self.shape, 1)?;
        let values = self.values.map_or(Values::Uniform, |values| values.0);
        require(values != Values::NanPadding, "values is nan-padding: matrices have no padded positions")?;
        let Named(dtype) = self.dtype;
        require(HALF.contains(&dtype), format!("dtype is {dtype}: products are of f16 or bf16"))?;
        Ok(Problem::Gemm(Gemm {
            m,
            n,
            k,
            dtype: self.dtype.0,
            algorithm: self.algorithm.0,
            layout: self.layout.0,
            output_layout: self.output_layout.unwrap_or(self.layout).0,
            together: self.together,
            values,
            memory: self.memory.clone(),
        }))
    }
}

/// The norm of a row, whose channels have to be whole heads. `others` are what a norm does not go with.
fn norm(norm: Option<Named<HeadNorm>>, dim: i64, others: bool) -> Result<Option<HeadNorm>, String> {
    let Some(Named(norm)) = norm else { return Ok(None) };
    let head_dim = norm.head_dim;
    require(
        head_dim > 0 && dim % head_dim == 0,
        format!("norm has head_dim {head_dim}: expected a divisor of dim, which is {dim}"),
    )?;
    require(!others, "such a row can have no gates and no residual: a norm comes last")?;
    Ok(Some(norm))
}

fn check_sizes(shape: &[i64], width: i64) -> Result<(), String> {
    require(shape.iter().all(|&size| size >= 0), format!("shape {shape:?} has a negative size"))?;
    require((1..=MAX_WIDTH).contains(&width), format!("width is {width}: expected 1 to {MAX_WIDTH}"))
}

/// The dtypes of x and weight: what the operation says of a call without elements.
fn check_dtypes(dtype: DType, weight_dtype: DType) -> Result<(), String> {
    let check = || {
        let (x, mut y) = (HostTensor::zeros(dtype, &[1, 0, 0])?, HostTensor::zeros(dtype, &[1, 0, 0])?);
        let (weight, mut y) = (HostTensor::zeros(weight_dtype, &[0, 1])?, Some(y.view_mut()));
        let read = |name| match name {
            "x" => Some(x.view()),
            "weight" => Some(weight.view()),
            _ => None,
        };
        Forward::from_named(Activation::None, false, None, read, |name| y.take_if(|_| name == "y")).validate()
    };
    check().map(drop).map_err(|error: Error| error.to_string())
}

fn require(condition: bool, otherwise: impl Into<String>) -> Result<(), String> {
    if condition { Ok(()) } else { Err(otherwise.into()) }
}
