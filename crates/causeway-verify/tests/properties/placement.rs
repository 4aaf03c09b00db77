//! Random tensors in random memory, for the property tests.

use causeway::backend::cpu::{Cpu, Level};
use causeway::{DType, Device, HostTensor};
use causeway_verify::oracle::Expected;
use proptest::prelude::*;

use crate::memory::right;
pub use crate::memory::{Placement, Random};

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

/// Orders that chosen cases are in.
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
}

/// Fails unless the output is right and nothing around it was touched.
pub fn check(name: &str, truth: &Expected, found: &HostTensor) -> Result<(), TestCaseError> {
    right(name, &truth.compare(&found.view(), None), found).map_err(TestCaseError::fail)
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
