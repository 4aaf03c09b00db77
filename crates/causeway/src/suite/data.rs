//! The tensors of a case, on the host.

use super::case::{Conv1d, CuSeqlens, Update, Values, VarlenStates};
use super::layout::{Layout, dense};
use super::random::Random;
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::oracle::causal_conv1d::{Inputs, UpdateInputs};
use crate::oracle::ulp::Format;
use crate::tensor::DType;

/// Magnitudes of uniform values. That of dy keeps the sums over batch and seqlen small enough for 16-bit results
/// to round within the contract's ceilings; docs/verification.md has the calculation.
const WEIGHT_SCALE: f64 = 0.5;
const DY_SCALE: f64 = 1.0 / 16.0;

/// Inputs of a forward and a backward call.
#[derive(Debug, Clone)]
pub struct Conv1dTensors {
    /// `(batch, dim, seqlen)`.
    pub x: HostTensor,
    /// `(dim, width)`.
    pub weight: HostTensor,
    /// `(dim,)`.
    pub bias: Option<HostTensor>,
    /// `(batch, dim, seqlen)`.
    pub residual: Option<HostTensor>,
    /// `(sequences, dim, width - 1)`.
    pub initial_states: Option<HostTensor>,
    /// `(batch, seqlen)`.
    pub seq_idx: Option<HostTensor>,
    /// `(sequences + 1,)`.
    pub cu_seqlens: Option<HostTensor>,
    /// `(batch, dim, seqlen)`: gradient of y.
    pub dy: HostTensor,
    /// `(sequences, dim, width - 1)`: gradient of final_states.
    pub dfinal_states: Option<HostTensor>,
}

impl Conv1d {
    /// Rows of the states.
    pub fn sequences(&self) -> i64 {
        self.cu_seqlens.as_ref().map_or(self.batch, |boundaries| boundaries.lengths.len() as i64)
    }

    /// Shape of x, y, dy, dx and residual.
    pub fn x_shape(&self) -> [i64; 3] {
        [self.batch, self.dim, self.seqlen]
    }

    /// Shape of all states.
    pub fn states_shape(&self) -> [i64; 3] {
        [self.sequences(), self.dim, self.width - 1]
    }

    /// The inputs, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<Conv1dTensors> {
        let scale = self.scale();
        let like_x =
            |name: &str, scale: f64| uniform(self.layout, self.dtype, self.x_shape(), case, name, scale);
        let states =
            |name: &str, scale: f64| uniform(self.layout, self.dtype, self.states_shape(), case, name, scale);
        let mut tensors = Conv1dTensors {
            x: like_x("x", scale)?,
            weight: parameter(self.weight_dtype, &[self.dim, self.width], case, "weight", 1.0)?,
            bias: optional(self.bias, || parameter(self.weight_dtype, &[self.dim], case, "bias", scale))?,
            residual: optional(self.residual, || like_x("residual", scale))?,
            initial_states: optional(self.initial_states, || states("initial_states", scale))?,
            seq_idx: optional(self.seq_idx.is_some(), || self.seq_idx())?,
            cu_seqlens: self.cu_seqlens.as_ref().map(CuSeqlens::tensor).transpose()?,
            dy: like_x("dy", DY_SCALE * scale)?,
            dfinal_states: optional(self.final_states, || states("dfinal_states", DY_SCALE * scale))?,
        };
        match self.values {
            Values::NonFinite => insert_non_finite(&mut tensors.x, case),
            Values::NanPadding => {
                if let Some(indices) = &tensors.seq_idx {
                    let indices = indices.to_f64();
                    for tensor in [&mut tensors.x, &mut tensors.dy] {
                        self.insert_nan_at_padding(tensor, &indices);
                    }
                }
            }
            Values::Uniform | Values::Subnormal | Values::Overflow => {}
        }
        Ok(tensors)
    }

    fn scale(&self) -> f64 {
        let format = Format::of(self.dtype);
        match (self.values, format) {
            // The smallest normal number.
            (Values::Subnormal, Some(format)) => format.smallest() / (2.0 * format.unit_roundoff()),
            (Values::Overflow, Some(format)) => format.max(),
            _ => 1.0,
        }
    }

    fn seq_idx(&self) -> Result<HostTensor> {
        let rows = (0..self.batch)
            .flat_map(|row| self.seq_idx.iter().flat_map(move |runs| runs.row(row, self.seqlen)))
            .collect::<Vec<i32>>();
        let mut tensor = dense(DType::I32, &[self.batch, self.seqlen])?;
        tensor.assign(|i| f64::from(rows[i]));
        Ok(tensor)
    }

    fn insert_nan_at_padding(&self, tensor: &mut HostTensor, indices: &[f64]) {
        let values = tensor.to_f64();
        let (dim, seqlen) = (self.dim as usize, self.seqlen as usize);
        tensor.assign(|i| {
            let (row, position) = (i / seqlen / dim, i % seqlen);
            if indices[row * seqlen + position] < 0.0 { f64::NAN } else { values[i] }
        });
    }
}

impl Conv1dTensors {
    /// What the oracle reads.
    pub fn oracle_inputs(&self, conv1d: &Conv1d) -> Inputs<'_> {
        Inputs {
            x: self.x.view(),
            weight: self.weight.view(),
            bias: self.bias.as_ref().map(HostTensor::view),
            initial_states: self.initial_states.as_ref().map(HostTensor::view),
            seq_idx: self.seq_idx.as_ref().map(HostTensor::view),
            cu_seqlens: self.cu_seqlens.as_ref().map(HostTensor::view),
            residual: self.residual.as_ref().map(HostTensor::view),
            activation: conv1d.activation,
        }
    }
}

/// Inputs of an update.
#[derive(Debug, Clone)]
pub struct UpdateTensors {
    /// `(batch, dim)` or `(batch, dim, seqlen)`.
    pub x: HostTensor,
    /// `(rows, dim, state_len)`; changed in place by the call.
    pub conv_state: HostTensor,
    /// `(dim, width)`.
    pub weight: HostTensor,
    /// `(dim,)`.
    pub bias: Option<HostTensor>,
    /// `(batch,)`.
    pub cache_seqlens: Option<HostTensor>,
    /// `(batch,)`.
    pub conv_state_indices: Option<HostTensor>,
}

impl Update {
    /// A tensor of zeros with the shape of x.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub fn like_x(&self) -> Result<HostTensor> {
        match self.seqlen {
            Some(seqlen) => self.layout.zeros(self.dtype, [self.batch, self.dim, seqlen]),
            None => self.layout.zeros_2d(self.dtype, [self.batch, self.dim]),
        }
    }

    /// Rows of conv_state: twice the batch when indices select them.
    pub fn rows(&self) -> i64 {
        self.batch * if self.conv_state_indices { 2 } else { 1 }
    }

    /// The inputs, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<UpdateTensors> {
        let mut x = self.like_x()?;
        fill(&mut x, case, "x", 1.0);
        let mut conv_state = self.layout.zeros(self.dtype, [self.rows(), self.dim, self.state_len])?;
        conv_state.fill_bytes(0xff);
        fill(&mut conv_state, case, "conv_state", 1.0);
        Ok(UpdateTensors {
            x,
            conv_state,
            weight: parameter(self.weight_dtype, &[self.dim, self.width], case, "weight", 1.0)?,
            bias: optional(self.bias, || parameter(self.weight_dtype, &[self.dim], case, "bias", 1.0))?,
            cache_seqlens: optional(self.cache_seqlens, || {
                // From a fresh cache to one that has gone around several times.
                let longest = 3 * self.state_len as usize + 2;
                let mut random = Random::new(case, "cache_seqlens");
                HostTensor::from_fn(DType::I32, &[self.batch], |i| {
                    if i == 0 { 0.0 } else { random.below(longest) as f64 }
                })
            })?,
            conv_state_indices: optional(self.conv_state_indices, || {
                // A shuffle of the rows, with every third entry padding.
                let mut rows: Vec<usize> = (0..self.rows() as usize).collect();
                let mut random = Random::new(case, "conv_state_indices");
                for i in (1..rows.len()).rev() {
                    rows.swap(i, random.below(i + 1));
                }
                HostTensor::from_fn(
                    DType::I32,
                    &[self.batch],
                    |i| {
                        if i % 3 == 2 { -1.0 } else { rows[i] as f64 }
                    },
                )
            })?,
        })
    }
}

impl UpdateTensors {
    /// What the oracle reads.
    pub fn oracle_inputs(&self, update: &Update) -> UpdateInputs<'_> {
        UpdateInputs {
            x: self.x.view(),
            conv_state: self.conv_state.view(),
            weight: self.weight.view(),
            bias: self.bias.as_ref().map(HostTensor::view),
            cache_seqlens: self.cache_seqlens.as_ref().map(HostTensor::view),
            conv_state_indices: self.conv_state_indices.as_ref().map(HostTensor::view),
            activation: update.activation,
        }
    }
}

/// Inputs of varlen_states.
#[derive(Debug, Clone)]
pub struct VarlenStatesTensors {
    /// `(total, dim)`.
    pub x: HostTensor,
    /// `(n + 1,)`.
    pub cu_seqlens: HostTensor,
}

impl VarlenStates {
    /// The inputs, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<VarlenStatesTensors> {
        let mut x = self.layout.zeros_2d(self.dtype, [self.cu_seqlens.total(), self.dim])?;
        fill(&mut x, case, "x", 1.0);
        Ok(VarlenStatesTensors { x, cu_seqlens: self.cu_seqlens.tensor()? })
    }
}

impl CuSeqlens {
    pub(super) fn tensor(&self) -> Result<HostTensor> {
        let boundaries = self.boundaries();
        let mut tensor = dense(self.dtype, &[boundaries.len() as i64])?;
        tensor.assign(|i| boundaries[i] as f64);
        Ok(tensor)
    }
}

fn optional(wanted: bool, make: impl FnOnce() -> Result<HostTensor>) -> Result<Option<HostTensor>> {
    wanted.then(make).transpose()
}

fn fill(tensor: &mut HostTensor, case: &str, name: &str, scale: f64) {
    let mut random = Random::new(case, name);
    tensor.assign(|_| random.uniform() * scale);
}

fn uniform(
    layout: Layout,
    dtype: DType,
    shape: [i64; 3],
    case: &str,
    name: &str,
    scale: f64,
) -> Result<HostTensor> {
    let mut tensor = layout.zeros(dtype, shape)?;
    fill(&mut tensor, case, name, scale);
    Ok(tensor)
}

fn parameter(dtype: DType, shape: &[i64], case: &str, name: &str, scale: f64) -> Result<HostTensor> {
    let mut tensor = dense(dtype, shape)?;
    fill(&mut tensor, case, name, WEIGHT_SCALE * scale);
    Ok(tensor)
}

/// A NaN and both infinities, at places that depend on the case.
pub(super) fn insert_non_finite(x: &mut HostTensor, case: &str) {
    let mut values = x.to_f64();
    let mut random = Random::new(case, "non-finite");
    if values.is_empty() {
        return;
    }
    for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let at = random.below(values.len());
        values[at] = special;
    }
    x.assign(|i| values[i]);
}
