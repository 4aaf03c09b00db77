//! The decode update.

use causeway::causal_conv1d::Activation;
use causeway::{DType, Device, HostTensor};
use proptest::prelude::*;

use crate::calls::UpdateInputs;
use crate::placement::{Placement, Random, check, cpu, float_dtype, placement, weight_dtype};
use crate::{activation, config, width};

/// A decode update.
#[derive(Debug, Clone)]
struct Decode {
    /// batch, dim, seqlen; the last axis is left out of x when `flat`.
    shape: [i64; 3],
    flat: bool,
    width: i64,
    extra_state: i64,
    dtype: DType,
    weight_dtype: DType,
    activation: Activation,
    bias: bool,
    ring: bool,
    indices: bool,
    /// Of x, conv_state and y.
    placements: Vec<Placement>,
    device: Device,
    seed: u64,
}

fn decode() -> impl Strategy<Value = Decode> {
    let sizes = (0..=5i64, 0..=20i64, 0..=6i64, any::<bool>(), width(), 0..=4i64);
    let types = (float_dtype(), 0..3usize, activation());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (sizes, types, flags, prop::collection::vec(placement(3), 3), (cpu(), any::<u64>())).prop_map(
        |(
            (batch, dim, seqlen, flat, width, extra_state),
            (dtype, weight, activation),
            (bias, ring, indices),
            placements,
            (device, seed),
        )| Decode {
            shape: [batch, dim, if flat { 1 } else { seqlen }],
            flat,
            width,
            extra_state,
            dtype,
            weight_dtype: weight_dtype(dtype, weight),
            activation,
            bias,
            ring,
            indices,
            placements,
            device,
            seed,
        },
    )
}

impl Decode {
    /// (batch, dim) instead of (batch, dim, 1).
    fn flattened(&self, tensor: HostTensor) -> HostTensor {
        if !self.flat {
            return tensor;
        }
        let (offset, strides) = (tensor.offset(), [tensor.strides()[0], tensor.strides()[1]]);
        tensor.restrided(offset, &self.shape[..2], &strides).unwrap()
    }
}

fn check_decode(problem: &Decode) -> Result<(), TestCaseError> {
    let random = &mut Random(problem.seed);
    let [batch, dim, _] = problem.shape;
    let state_len = problem.width - 1 + problem.extra_state;
    let rows = if problem.indices { batch + 2 } else { batch };
    let x = problem.flattened(problem.placements[0].uniform(problem.dtype, &problem.shape, random, 1.0));
    let mut conv_state = problem.placements[1].clone().poisoned(problem.dtype, &[rows, dim, state_len]);
    conv_state.assign(|_| random.uniform());
    let weight_shape = [dim, problem.width];
    let weight = HostTensor::from_fn(problem.weight_dtype, &weight_shape, |_| random.uniform()).unwrap();
    let bias = problem
        .bias
        .then(|| HostTensor::from_fn(problem.weight_dtype, &[dim], |_| random.uniform()).unwrap());
    let cache_seqlens = problem.ring.then(|| {
        HostTensor::from_fn(DType::I32, &[batch], |_| random.below(3 * state_len + 3) as f64).unwrap()
    });
    let conv_state_indices = problem.indices.then(|| {
        // Distinct rows from a random one on, some of them left out.
        let first = random.below(rows);
        HostTensor::from_fn(DType::I32, &[batch], |i| {
            if random.below(4) == 0 { -1.0 - i as f64 } else { ((first + i as i64) % rows) as f64 }
        })
        .unwrap()
    });
    let activation = problem.activation;
    let inputs = UpdateInputs { x, weight, bias, cache_seqlens, conv_state_indices, activation };
    let truth = inputs.truth(&conv_state);
    let mut y = problem.flattened(problem.placements[2].clone().poisoned(problem.dtype, &problem.shape));
    inputs.update(&mut conv_state, &mut y, &problem.device).unwrap();
    check("y", truth.of("y"), &y)?;
    check("conv_state", truth.of("conv_state"), &conv_state)
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn update_agrees_with_the_oracle(problem in decode()) {
        check_decode(&problem)?;
    }
}
