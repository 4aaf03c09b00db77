//! Where single tensors of a case lie, when it is not where the case's layout would put them.

use std::collections::BTreeMap;

use causeway::Arrangement;
use causeway::error::Result;
use causeway::tensor::{DType, Dims};
use serde::{Deserialize, Serialize};

use super::layout::GUARD_BYTES;

/// Placements by the name of the tensor. In a suite:
///
/// ```toml
/// memory = { x = { order = [0, 2, 1], gaps = [0, 3, 0], offset = 1 }, weight = { broadcast = [0] } }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Memory(pub BTreeMap<String, Placement>);

/// Where one tensor lies. What is left out is as in a dense row-major tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The axes from the outermost in memory to the innermost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<usize>,
    /// For each axis, elements that are left free between neighbours along it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<i64>,
    /// Axes with a negative stride.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reversed: Vec<usize>,
    /// Axes with stride 0: every position is the same element. Inputs only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broadcast: Vec<usize>,
    /// The stride of each axis that has one element, where any number is as good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single: Option<i64>,
    /// Elements by which the tensor's lowest address is off a multiple of 64 bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: i64,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// What a call does with a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is read.
    Input,
    /// As input, and every element needs a place of its own: no broadcasting.
    OwnPlaces,
    /// It is written.
    Output,
}

impl Role {
    /// The role of a tensor among the inputs of a call. The bounds of dweight and dbias are about gradients with random
    /// signs (docs/verification.md), a state that is changed in place needs a place for each element, and neither boundaries
    /// nor the rows of a state can all be the same.
    pub(super) fn of_input(name: &str) -> Self {
        match name {
            "dy" | "dfinal_states" | "conv_state" | "cu_seqlens" | "conv_state_indices" => Role::OwnPlaces,
            _ => Role::Input,
        }
    }
}

/// Largest gap or offset: a suite cannot ask for more memory than its shapes need by much.
const MOST_FREE: i64 = 4096;

impl Placement {
    /// What is wrong with it for a tensor of this rank; `None` if nothing is.
    pub(super) fn complaint(&self, rank: usize, role: Role) -> Option<String> {
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if !(self.order.is_empty() || sorted.iter().copied().eq(0..rank)) {
            return Some(format!("order is {:?}: expected each of the {rank} axes once", self.order));
        }
        if !(self.gaps.is_empty() || self.gaps.len() == rank) {
            return Some(format!("gaps is {:?}: expected one number for each of {rank} axes", self.gaps));
        }
        let free = self.gaps.iter().chain([&self.offset]).find(|&&free| !(0..=MOST_FREE).contains(&free));
        if let Some(free) = free {
            return Some(format!("a gap or the offset is {free}: expected 0 to {MOST_FREE} elements"));
        }
        for (key, axes) in [("reversed", &self.reversed), ("broadcast", &self.broadcast)] {
            if let Some(axis) = axes.iter().find(|&&axis| axis >= rank) {
                return Some(format!("{key} has axis {axis}: the tensor has axes 0 to {}", rank - 1));
            }
        }
        match role {
            Role::Output if !self.broadcast.is_empty() => {
                Some("broadcast is for inputs: an output needs a place for each element".to_string())
            }
            Role::OwnPlaces if !self.broadcast.is_empty() => Some(
                "broadcast is not for gradients that come in, boundaries, and states with their indices"
                    .to_string(),
            ),
            _ => None,
        }
    }

    /// Where a tensor of this shape lies, with 128 bytes or more of spare storage on both sides.
    ///
    /// # Errors
    /// As for [`Dims::new`].
    pub fn arrange(&self, dtype: DType, shape: &[i64]) -> Result<Arrangement> {
        let order: Vec<usize> = match self.order.is_empty() {
            true => (0..shape.len()).collect(),
            false => self.order.clone(),
        };
        let guard = GUARD_BYTES / dtype.size() as i64;
        let mut strides = vec![0i64; shape.len()];
        let (mut stride, mut first) = (1i64, guard.saturating_add(self.offset));
        for &axis in order.iter().rev().filter(|axis| !self.broadcast.contains(axis)) {
            stride = stride.saturating_add(self.gaps.get(axis).copied().unwrap_or(0));
            strides[axis] = stride;
            if self.reversed.contains(&axis) {
                first = first.saturating_add(stride.saturating_mul((shape[axis] - 1).max(0)));
                strides[axis] = -stride;
            }
            stride = stride.saturating_mul(shape[axis].max(1));
        }
        for (axis, stride) in strides.iter_mut().enumerate() {
            if let Some(single) = self.single.filter(|_| shape[axis] == 1) {
                *stride = single;
            }
        }
        Ok(Arrangement {
            dtype,
            storage: stride.saturating_add(self.offset).saturating_add(2 * guard),
            offset: first,
            shape: Dims::new(shape)?,
            strides: Dims::new(&strides)?,
        })
    }
}

impl Memory {
    /// `make` with the arrangements that this memory has in place of those that it is given.
    pub(super) fn applied<T>(
        &self,
        mut make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> impl FnMut(&'static str, Arrangement) -> Result<T> {
        move |name, arrangement| {
            let own = self.0.get(name).map(|own| own.arrange(arrangement.dtype, &arrangement.shape));
            make(name, own.transpose()?.unwrap_or(arrangement))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_place_inside() {
        let shape = [3, 4, 5];
        let placements = [
            "",
            "order = [2, 0, 1]",
            "order = [1, 2, 0]\ngaps = [0, 7, 2]\nreversed = [0, 2]\noffset = 3",
            "reversed = [0, 1, 2]\ngaps = [1, 1, 1]",
        ];
        for text in placements {
            let placement: Placement = toml::from_str(text).unwrap();
            assert_eq!(placement.complaint(3, Role::Output), None);
            let mut tensor = placement.arrange(DType::F32, &shape).unwrap().zeros().unwrap();
            tensor.assign(|i| i as f64);
            let values: Vec<f64> = (0..60).map(f64::from).collect();
            assert_eq!(tensor.to_f64(), values, "{text}");
        }
    }

    #[test]
    fn one_place_serves_a_broadcast_axis() {
        let placement = Placement { broadcast: vec![0], ..Placement::default() };
        let arrangement = placement.arrange(DType::F16, &[4, 6]).unwrap();
        assert_eq!((&*arrangement.strides, arrangement.storage), (&[0, 1][..], 6 + 128));
        assert!(placement.complaint(2, Role::Output).unwrap().contains("a place for each element"));
        assert!(placement.complaint(2, Role::OwnPlaces).is_some());
        assert_eq!(placement.complaint(2, Role::Input), None);
    }

    #[test]
    fn wrong_placements_are_explained() {
        for (text, message) in [
            ("order = [0, 0]", "order is [0, 0]: expected each of the 2 axes once"),
            ("gaps = [1]", "gaps is [1]: expected one number for each of 2 axes"),
            ("offset = -1", "a gap or the offset is -1: expected 0 to 4096 elements"),
            ("reversed = [2]", "reversed has axis 2: the tensor has axes 0 to 1"),
        ] {
            let placement: Placement = toml::from_str(text).unwrap();
            assert_eq!(placement.complaint(2, Role::Input).as_deref(), Some(message));
        }
    }
}
