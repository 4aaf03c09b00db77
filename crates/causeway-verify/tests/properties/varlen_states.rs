//! States of a packed batch.

use causeway::causal_conv1d::VarlenStates;
use causeway::{DType, Device, HostTensor};
use causeway_verify::oracle::causal_conv1d as oracle;
use proptest::prelude::*;

use crate::config;
use crate::placement::{Random, check, float_dtype, placement};

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn varlen_states_agree_with_the_oracle(
        dim in 0..30i64,
        state_len in 0..12i64,
        lengths in prop::collection::vec(0..15i64, 0..8),
        long in any::<bool>(),
        dtype in float_dtype(),
        x_placement in placement(2),
        states_placement in placement(3),
        seed in any::<u64>(),
    ) {
        let total = lengths.iter().sum::<i64>();
        let boundaries: Vec<i64> = (0..=lengths.len()).map(|end| lengths[..end].iter().sum()).collect();
        let x = x_placement.uniform(dtype, &[total, dim], &mut Random(seed), 1.0);
        let index = if long { DType::I64 } else { DType::I32 };
        let cu_seqlens =
            HostTensor::from_fn(index, &[boundaries.len() as i64], |i| boundaries[i] as f64).unwrap();
        let mut states = states_placement.poisoned(dtype, &[lengths.len() as i64, dim, state_len]);
        let mut call =
            VarlenStates { x: x.view(), cu_seqlens: cu_seqlens.view(), states: states.view_mut() };
        call.run(&Device::cpu()).unwrap();
        check("states", &oracle::varlen_states(&x.view(), &cu_seqlens.view(), state_len), &states)?;
    }
}
