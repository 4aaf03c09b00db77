//! Tensors that lie anyhow in memory, and what outputs have to look like in it.

use causeway::{DType, HostTensor};
use causeway_verify::oracle::{Comparison, POISON};

/// How a tensor lies in memory.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Ranks of the axes: the one with the smallest is outermost.
    pub order: Vec<u8>,
    /// Elements between neighbours along each axis, beyond what it spans.
    pub padding: Vec<i64>,
    /// Axes that run backwards.
    pub reversed: Vec<bool>,
    /// Axes with stride 0: every position is the same element. Inputs only.
    pub expanded: Vec<bool>,
    /// Elements in front.
    pub offset: i64,
}

impl Placement {
    /// A tensor of zeros, its first and last elements at least 9 elements inside the storage.
    pub fn zeros(&self, dtype: DType, shape: &[i64]) -> HostTensor {
        let mut axes: Vec<usize> = (0..shape.len()).collect();
        axes.sort_by_key(|&axis| self.order[axis]);
        let mut strides = vec![0i64; shape.len()];
        let (mut stride, mut first) = (1, 9 + self.offset);
        for &axis in axes.iter().rev() {
            if self.expanded[axis] {
                continue;
            }
            stride += self.padding[axis];
            strides[axis] = stride;
            stride *= shape[axis].max(1);
            if self.reversed[axis] {
                first += strides[axis] * (shape[axis] - 1).max(0);
                strides[axis] = -strides[axis];
            }
        }
        let whole = HostTensor::zeros(dtype, &[first.max(9 + self.offset) + stride + 9]).unwrap();
        whole.restrided(first, shape, &strides).unwrap()
    }

    /// Uniform numbers in (-scale, scale).
    pub fn uniform(&self, dtype: DType, shape: &[i64], random: &mut Random, scale: f64) -> HostTensor {
        let mut tensor = self.zeros(dtype, shape);
        tensor.assign(|_| random.uniform() * scale);
        tensor
    }

    /// An output before a call.
    pub fn poisoned(mut self, dtype: DType, shape: &[i64]) -> HostTensor {
        self.expanded.fill(false);
        let mut tensor = self.zeros(dtype, shape);
        tensor.fill_bytes(POISON);
        tensor
    }
}

/// A linear congruential generator with D. E. Knuth's MMIX constants: enough for signs and magnitudes.
pub struct Random(pub u64);

impl Random {
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) * 0.5f64.powi(52) - 1.0
    }

    pub fn below(&mut self, bound: i64) -> i64 {
        ((self.uniform() + 1.0) / 2.0 * bound as f64) as i64
    }
}

/// Whether no byte of a tensor's storage differs from what outputs are poisoned with.
///
/// # Errors
/// A sentence with the output's name.
pub fn untouched(name: &str, tensor: &HostTensor) -> Result<(), String> {
    if tensor.bytes().iter().all(|&byte| byte == POISON) {
        return Ok(());
    }
    Err(format!("{name} of {tensor:?} was written where it must not be"))
}

/// Whether an output is right, and nothing around its elements was written.
///
/// # Errors
/// As for [`untouched`].
pub fn right(name: &str, result: &Comparison, found: &HostTensor) -> Result<(), String> {
    if !result.passed() {
        return Err(format!("{name} of {found:?}: {}", result.worst.as_ref().unwrap()));
    }
    let mut surroundings = found.clone();
    surroundings.fill_elements(POISON);
    untouched(name, &surroundings)
}
