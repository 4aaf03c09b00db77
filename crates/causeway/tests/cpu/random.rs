//! Random shapes, options, values and strides, from a seed.

use causeway::causal_conv1d::Activation;
use causeway::{DType, HostTensor};

/// SplitMix64: small, and the same everywhere.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `0 .. bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// About normal: mean 0, variance 1.
    pub fn value(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 2.0) * 3f64.sqrt()
    }
}

/// One call, without its tensors.
#[derive(Debug, Clone)]
pub struct Case {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    pub width: usize,
    pub dtype: DType,
    pub weight_dtype: DType,
    pub dweight_dtype: DType,
    pub activation: Activation,
    pub bias: bool,
    pub initial_states: bool,
    pub dfinal_states: bool,
    pub residual: bool,
    pub seq_idx: Option<Vec<i32>>,
    pub cu_seqlens: Option<Vec<usize>>,
    pub layout: Layout,
}

/// How the tensors of the shape of x lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Dense, stride 1 along seqlen.
    First,
    /// Dense, stride 1 along dim.
    Last,
    /// Anything: axes permuted, gaps, reversed axes.
    Any,
}

impl Case {
    /// A small dense f32 case with nothing optional; tests change what they are about.
    pub fn plain(batch: usize, dim: usize, seqlen: usize, width: usize) -> Self {
        Case {
            batch,
            dim,
            seqlen,
            width,
            dtype: DType::F32,
            weight_dtype: DType::F32,
            dweight_dtype: DType::F32,
            activation: Activation::Silu,
            bias: true,
            initial_states: false,
            dfinal_states: false,
            residual: false,
            seq_idx: None,
            cu_seqlens: None,
            layout: Layout::First,
        }
    }

    pub fn with_dtype(mut self, dtype: DType, random: &mut Random) -> Self {
        self.dtype = dtype;
        self.weight_dtype = match dtype {
            DType::F64 => DType::F64,
            _ => random.pick(&[DType::F32, DType::F16, DType::BF16]),
        };
        self.dweight_dtype = match self.weight_dtype {
            DType::F64 => DType::F64,
            half if random.chance(2) => half,
            _ => DType::F32,
        };
        self
    }

    pub fn random(random: &mut Random) -> Self {
        let seqlen = match random.below(4) {
            0 => random.below(9),
            1 => random.below(70),
            2 => random.below(300),
            _ => 500 + random.below(700),
        };
        let width = match random.below(4) {
            0 => 4,
            1 => 1 + random.below(8),
            2 => 1 + random.below(20),
            _ => 1 + random.below(256),
        };
        let dim = if random.chance(3) { random.below(150) } else { random.below(20) };
        // Keeps the plain loops short.
        let budget = 4_000_000 / (seqlen * width * 4 + 1);
        let dim = dim.min(budget.max(1));
        let batch = random.below(4).min((budget / dim.max(1)).max(1));
        let mut case = Case::plain(batch, dim, seqlen, width);
        let dtype = random.pick(&[DType::F32, DType::F32, DType::F16, DType::BF16, DType::F64]);
        case = case.with_dtype(dtype, random);
        case.activation = random.pick(&[Activation::None, Activation::Silu]);
        case.bias = random.chance(2);
        case.initial_states = random.chance(2);
        case.dfinal_states = random.chance(2);
        case.residual = random.chance(3);
        case.layout = random.pick(&[Layout::First, Layout::Last, Layout::Last, Layout::Any]);
        if random.chance(3) {
            case.batch = 1;
            case.cu_seqlens = Some(boundaries(random, seqlen));
        }
        if random.chance(3) {
            case.seq_idx = Some(indices(random, case.batch, seqlen));
        }
        case
    }

    pub fn sequences(&self) -> usize {
        self.cu_seqlens.as_ref().map_or(self.batch, |bounds| bounds.len() - 1)
    }

    /// Half the distance from 1 to the next number of the accumulator.
    pub fn epsilon(&self) -> f64 {
        if self.dtype == DType::F64 { f64::EPSILON / 2.0 } else { f64::from(f32::EPSILON) / 2.0 }
    }

    /// Relative error that SiLU and its derivative may have.
    pub fn silu_error(&self) -> f64 {
        match self.dtype {
            DType::F64 => 8.0 * f64::EPSILON,
            DType::F32 => 4.0 * f64::from(f32::EPSILON),
            // An eighth of half a unit in the last place.
            DType::F16 => (-15f64).exp2(),
            _ => (-12f64).exp2(),
        }
    }
}

/// Half the distance between 1 and the next number of a dtype, and half its smallest subnormal.
pub fn rounding(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (f64::EPSILON / 2.0, 0.0),
        DType::F32 => (f64::from(f32::EPSILON) / 2.0, (-150f64).exp2()),
        DType::F16 => ((-11f64).exp2(), (-25f64).exp2()),
        _ => ((-8f64).exp2(), (-134f64).exp2()),
    }
}

/// Boundaries of a packed row, with empty sequences.
fn boundaries(random: &mut Random, total: usize) -> Vec<usize> {
    let mut bounds: Vec<usize> = (0..random.below(7)).map(|_| random.below(total + 1)).collect();
    bounds.extend([0, total]);
    if random.chance(3) {
        bounds.push(0);
        bounds.push(total);
    }
    bounds.sort_unstable();
    bounds
}

/// Runs of indices, some negative, that come back to earlier values.
fn indices(random: &mut Random, batch: usize, seqlen: usize) -> Vec<i32> {
    let longest = random.pick(&[2, 5, 40, 400]);
    let mut values = Vec::with_capacity(batch * seqlen);
    while values.len() < batch * seqlen {
        let index = random.below(4) as i32 - 1;
        for _ in 0..=random.below(longest) {
            values.push(index);
        }
    }
    values.truncate(batch * seqlen);
    values
}

/// A tensor of random values in a random place: `None` for a dense one.
pub fn tensor(random: &mut Random, dtype: DType, shape: &[usize], layout: Layout, scale: f64) -> HostTensor {
    let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    let rank = shape.len();
    if layout != Layout::Any {
        let order: Vec<usize> = match (layout, rank) {
            (Layout::Last, 3) => vec![0, 2, 1],
            _ => (0..rank).collect(),
        };
        let stored: Vec<i64> = order.iter().map(|&axis| shape[axis]).collect();
        return HostTensor::from_fn(dtype, &stored, |_| scale * random.value()).unwrap().permuted(&order);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    for i in (1..rank).rev() {
        order.swap(i, random.below(i + 1));
    }
    let mut strides = vec![0i64; rank];
    let (mut step, mut offset) = (1 + random.below(3) as i64, random.below(3) as i64);
    for &axis in &order {
        strides[axis] = step;
        step = step * shape[axis].max(1) + random.below(3) as i64;
        if random.chance(3) {
            offset += strides[axis] * (shape[axis] - 1).max(0);
            strides[axis] = -strides[axis];
        }
    }
    let storage = HostTensor::from_fn(dtype, &[step + offset + 4], |_| scale * random.value()).unwrap();
    storage.restrided(offset, &shape, &strides).unwrap()
}
