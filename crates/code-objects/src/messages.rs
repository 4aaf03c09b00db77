//! Launches of sequence parallelism, which no suite has: messages, and what is computed for a halo.

use anyhow::Result;
use causeway::backend::gpu::causal_conv1d::{backward, forward};
use causeway::backend::gpu::message;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::tensor::Dims;
use causeway::{DType, Location, TensorMut, TensorRef};

/// What they are called in the place of a suite.
pub const NAME: &str = "messages";

/// An address in the place of memory that no planner touches.
const BUFFER: u64 = 4096;

/// The launches of bf16 and f32 calls of width 4, with indices and without.
pub fn plans(facts: &DeviceFacts) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for dtype in [DType::BF16, DType::F32] {
        let (rows, states, taps, indices) = ([1, 64, 32], [1, 64, 3], [64, 4], [1, 3]);
        plans.extend(message::send(&read(dtype, &states)?, BUFFER));
        plans.extend(message::receive(&written(dtype, &states)?, BUFFER));
        for is_indexed in [false, true] {
            let shape = |name: &str| match name {
                "x" | "dy" | "y" | "dx" => Some(&rows[..]),
                "weight" | "dweight" => Some(&taps[..]),
                "bias" | "dbias" => Some(&taps[..1]),
                "initial_states" | "dinitial_states" => Some(&states[..]),
                _ => None,
            };
            let input = |name: &str| match name {
                "seq_idx" => is_indexed.then(|| read(DType::I32, &[1, 32]).unwrap()),
                _ => shape(name).map(|shape| read(dtype, shape).unwrap()),
            };
            let output = |name: &str| shape(name).map(|shape| written(dtype, shape).unwrap());
            let call = Backward::from_named(Activation::Silu, false, None, input, output);
            let (sizes, of_halo) = (call.validate()?, read(DType::I32, &indices)?);
            plans.extend(backward::plan_halo(&call, &sizes, is_indexed.then_some(&of_halo), BUFFER, facts)?);
            if is_indexed {
                plans.extend(backward::plan_after_halo(&call, &sizes, &of_halo, facts)?);
                let call = Forward::from_named(Activation::Silu, false, None, input, output);
                plans.extend(forward::plan_halo(&call, &call.validate()?, &of_halo, facts)?);
            }
        }
    }
    Ok(plans)
}

fn strides(shape: &[i64]) -> Result<Dims> {
    Ok(Dims::new(shape).expect("three axes at most").contiguous_strides())
}

fn read(dtype: DType, shape: &[i64]) -> Result<TensorRef<'static>> {
    // SAFETY: planners never touch the memory.
    let tensor =
        unsafe { TensorRef::from_raw(64 as *const u8, dtype, shape, &strides(shape)?, Location::Cuda(0)) };
    Ok(tensor?)
}

fn written(dtype: DType, shape: &[i64]) -> Result<TensorMut<'static>> {
    // SAFETY: as above.
    let tensor =
        unsafe { TensorMut::from_raw(64 as *mut u8, dtype, shape, &strides(shape)?, Location::Cuda(0)) };
    Ok(tensor?)
}
