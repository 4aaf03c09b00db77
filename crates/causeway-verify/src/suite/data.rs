//! The tensors of a case, on the host.

use causeway::causal_conv1d::{self, Activation, Backward, Forward, HeadNorm};
use causeway::error::Result;
use causeway::operation::Operation;
use causeway::{Arrangement, HostTensor};

use super::case::{Conv1d, CuSeqlens, Update, VarlenStates};
use super::random::Random;
use super::tensors::{Tensors, channel_axis, last_part};
use super::values::{Values, fill, insert_non_finite, insert_non_finite_in_one, repeating, uniform, valued};
use crate::oracle::POISON;
use crate::oracle::causal_conv1d::{self as oracle, Inputs, Truth};

/// Magnitudes of uniform values. That of dy keeps the sums over batch and seqlen small enough for 16-bit results
/// to round within the contract's ceilings; docs/verification.md has the calculation.
const WEIGHT_SCALE: f64 = 0.5;
const DY_SCALE: f64 = 1.0 / 16.0;

impl Conv1d {
    /// The inputs, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<Tensors> {
        let mut tensors = self.inputs(|name, arrangement| match name {
            "seq_idx" => self.seq_idx(&arrangement),
            "cu_seqlens" => CuSeqlens::tensor(self.cu_seqlens.as_ref(), &arrangement),
            _ => valued(&arrangement, case, name, self.magnitude(name), self.values),
        })?;
        match self.values {
            Values::NonFinite => tensors.change(&["x"]).for_each(|x| insert_non_finite(x, case)),
            Values::NonFiniteAnywhere => {
                let anywhere: Vec<_> = Self::streams().collect();
                insert_non_finite_in_one(tensors.change(&anywhere), case);
            }
            Values::NanPadding => {
                if let Some(indices) = tensors.get("seq_idx").map(HostTensor::to_f64) {
                    for tensor in tensors.change(&["x", "dy", "B", "C"]) {
                        self.insert_nan_at_padding(tensor, &indices);
                    }
                }
            }
            _ => {}
        }
        Ok(tensors)
    }

    /// As [`Conv1d::tensors`], made faster: storage repeats a short pattern of random numbers, `values` is ignored.
    /// For benchmarks.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn repeating_tensors(&self, case: &str) -> Result<Tensors> {
        self.inputs(|name, arrangement| match name {
            "seq_idx" => self.seq_idx(&arrangement),
            "cu_seqlens" => CuSeqlens::tensor(self.cu_seqlens.as_ref(), &arrangement),
            _ => repeating(&arrangement, case, name, self.magnitude(name)),
        })
    }

    /// Largest magnitude of an input.
    pub(super) fn magnitude(&self, input: &str) -> f64 {
        match input {
            "bias" => WEIGHT_SCALE * self.scale(),
            _ if Self::is_factor(input) => WEIGHT_SCALE,
            _ if Self::gradients().any(|gradient| gradient.name == input) => DY_SCALE * self.scale(),
            _ => self.scale(),
        }
    }

    fn scale(&self) -> f64 {
        self.values.scale(self.dtype)
    }

    fn seq_idx(&self, arrangement: &Arrangement) -> Result<HostTensor> {
        let rows = (0..self.batch)
            .flat_map(|row| self.seq_idx.iter().flat_map(move |runs| runs.row(row, self.seqlen)))
            .collect::<Vec<i32>>();
        let mut tensor = arrangement.zeros()?;
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

impl Tensors {
    /// What forward has to give.
    pub fn forward_truth(&self, conv1d: &Conv1d) -> Truth {
        let truth = |norm| {
            let inputs = self.oracle_inputs::<Forward<'_>>(conv1d.activation);
            oracle::forward(&inputs.rounding_products(conv1d.round_products).normalised(norm))
        };
        of_parts(conv1d.norm, conv1d.plain_last, conv1d.dim, truth)
    }

    /// What backward has to give.
    pub fn backward_truth(&self, conv1d: &Conv1d) -> Truth {
        let truth = |norm| {
            let inputs = self.oracle_inputs::<Backward<'_>>(conv1d.activation);
            let inputs = inputs.rounding_products(conv1d.round_products).normalised(norm);
            oracle::backward(&inputs, conv1d.dweight_dtype)
        };
        of_parts(conv1d.norm, conv1d.plain_last, conv1d.dim, truth)
    }

    /// What an update has to give.
    pub fn update_truth(&self, update: &Update) -> Truth {
        let truth = |norm| {
            let inputs = self.oracle_inputs::<causal_conv1d::Update<'_>>(update.activation);
            oracle::update(&inputs.rounding_products(update.round_products).normalised(norm))
        };
        of_parts(update.norm, update.plain_last, update.dim, truth)
    }

    fn oracle_inputs<O: Operation>(&self, activation: Activation) -> Inputs<'_> {
        Inputs::of::<O>(activation, |name| self.get(name).map(HostTensor::view))
    }
}

/// The truth of calls that are made together: that with the norm, but for the channels of a last call that has none.
fn of_parts(
    norm: Option<HeadNorm>,
    plain_last: bool,
    dim: i64,
    truth: impl Fn(Option<HeadNorm>) -> Truth,
) -> Truth {
    let normalised = truth(norm);
    if !plain_last {
        return normalised;
    }
    let from = last_part(dim, norm.as_ref()) as usize;
    normalised.with_channels_of(&truth(None), from, |name| channel_axis(name).unwrap_or(1))
}

impl Update {
    /// The inputs, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<Tensors> {
        let scale = self.values.scale(self.dtype);
        let mut tensors = self.inputs(|name, arrangement| match name {
            "cache_seqlens" => self.cache_seqlens(&arrangement, case),
            "conv_state_indices" => self.conv_state_indices(&arrangement, case),
            "weight" => valued(&arrangement, case, name, WEIGHT_SCALE, self.values),
            "bias" => valued(&arrangement, case, name, WEIGHT_SCALE * scale, self.values),
            "conv_state" => {
                // What lies around the elements is poison, as it is around every other output.
                let mut tensor = arrangement.zeros()?;
                tensor.fill_bytes(POISON);
                fill(&mut tensor, case, name, scale, self.values);
                Ok(tensor)
            }
            _ => valued(&arrangement, case, name, scale, self.values),
        })?;
        match self.values {
            Values::NonFinite => tensors.change(&["x"]).for_each(|x| insert_non_finite(x, case)),
            Values::NonFiniteAnywhere => {
                insert_non_finite_in_one(tensors.change(&["x", "conv_state", "B", "C"]), case);
            }
            _ => {}
        }
        Ok(tensors)
    }

    /// From a fresh cache to one that has gone around several times.
    fn cache_seqlens(&self, arrangement: &Arrangement, case: &str) -> Result<HostTensor> {
        let longest = 3 * self.state_len as usize + 2;
        let mut random = Random::new(case, "cache_seqlens");
        let mut tensor = arrangement.zeros()?;
        tensor.assign(|i| if i == 0 { 0.0 } else { random.below(longest) as f64 });
        Ok(tensor)
    }

    /// A shuffle of the rows, with every third entry padding.
    fn conv_state_indices(&self, arrangement: &Arrangement, case: &str) -> Result<HostTensor> {
        let mut rows: Vec<usize> = (0..self.rows() as usize).collect();
        let mut random = Random::new(case, "conv_state_indices");
        for i in (1..rows.len()).rev() {
            rows.swap(i, random.below(i + 1));
        }
        let mut tensor = arrangement.zeros()?;
        tensor.assign(|i| if i % 3 == 2 { -1.0 } else { rows[i] as f64 });
        Ok(tensor)
    }
}

impl VarlenStates {
    /// The inputs, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<Tensors> {
        self.inputs(|name, arrangement| match name {
            "cu_seqlens" => CuSeqlens::tensor(Some(&self.cu_seqlens), &arrangement),
            _ => uniform(&arrangement, case, name, 1.0),
        })
    }
}

impl CuSeqlens {
    fn tensor(lengths: Option<&CuSeqlens>, arrangement: &Arrangement) -> Result<HostTensor> {
        let boundaries = lengths.map(CuSeqlens::boundaries).unwrap_or_default();
        let mut tensor = arrangement.zeros()?;
        tensor.assign(|i| boundaries[i] as f64);
        Ok(tensor)
    }
}
