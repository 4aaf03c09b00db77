//! Random tensors in random memory, for the property tests.

use causeway::backend::cpu::{Cpu, Level};
use causeway::oracle::{Expected, POISON};
use causeway::{DType, Device, HostTensor};
use proptest::prelude::*;

/// How a tensor lies in memory.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Ranks of the axes: the one with the smallest is outermost.
    order: Vec<u8>,
    /// Elements between neighbours along each axis, beyond what it spans.
    padding: Vec<i64>,
    /// Axes that run backwards.
    reversed: Vec<bool>,
    /// Axes with stride 0: every position is the same element. Inputs only.
    expanded: Vec<bool>,
    /// Elements in front.
    offset: i64,
}

/// Any placement of a tensor with this many axes.
pub fn placement(axes: usize) -> impl Strategy<Value = Placement> {
    let each = |weight: f64| prop::collection::vec(prop::bool::weighted(weight), axes);
    let padding = prop::collection::vec(prop_oneof![3 => Just(0i64), 1 => 1..4i64], axes);
    (prop::collection::vec(any::<u8>(), axes), padding, each(0.15), each(0.08), 0..9i64).prop_map(
        |(order, padding, reversed, expanded, offset)| Placement {
            order,
            padding,
            reversed,
            expanded,
            offset,
        },
    )
}

impl Placement {
    /// Dense, the first axis outermost.
    pub fn plain(axes: usize) -> Self {
        let order = (0..axes as u8).collect();
        let no = vec![false; axes];
        Placement { order, padding: vec![0; axes], reversed: no.clone(), expanded: no, offset: 0 }
    }

    /// Dense, the axes in this order from the outermost to the innermost.
    pub fn dense(mut self, order: &[usize]) -> Self {
        for (rank, &axis) in order.iter().enumerate() {
            self.order[axis] = rank as u8;
        }
        self.padding.fill(0);
        self.reversed.fill(false);
        self.expanded.fill(false);
        self
    }

    /// With no expanded axis among these.
    pub fn without_expanding(mut self, axes: &[usize]) -> Self {
        for &axis in axes {
            self.expanded[axis] = false;
        }
        self
    }

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

/// Fails unless the output is right and nothing around it was touched.
pub fn check(name: &str, truth: &Expected, found: &HostTensor) -> Result<(), TestCaseError> {
    let result = truth.compare(&found.view(), None);
    prop_assert!(result.passed(), "{name} of {found:?}: {}", result.worst.unwrap());
    let mut surroundings = found.clone();
    surroundings.fill_elements(POISON);
    let untouched = surroundings.bytes().iter().all(|&byte| byte == POISON);
    prop_assert!(untouched, "{name} of {found:?}: bytes between the elements were written");
    Ok(())
}

/// The floating-point dtypes that a weight may have beside x of `dtype`.
pub fn weight_dtype(dtype: DType, choice: usize) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => [DType::F32, DType::F16, DType::BF16][choice],
    }
}

pub fn float_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F16, DType::BF16, DType::F64])
}

/// This processor, with any of the vector instructions that it has.
pub fn cpu() -> impl Strategy<Value = Device> {
    let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| level.is_available()).collect();
    prop::sample::select(levels).prop_map(|level| Device::Cpu(Cpu::with_level(level).unwrap()))
}
