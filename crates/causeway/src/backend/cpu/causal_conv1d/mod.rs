//! Causal conv1d on a CPU.
//!
//! [`tile`] convolves one channel with vectors along the sequence, from any strides. Kernels walk
//! [`partition`]'s tasks, and [`sequences`] tells which positions belong together.

mod backward;
mod forward;
mod partition;
mod sequences;
mod states;
mod sums;
mod tensors;
mod tile;
mod update;
mod varlen_states;

pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use update::update;
pub(crate) use varlen_states::varlen_states;

/// Calls a function that is generic over the element type with the type of a dtype. Views hold floats only:
/// `validate` has refused all else.
macro_rules! with_number {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            $crate::tensor::DType::F16 => $function::<half::f16>($($argument),*),
            $crate::tensor::DType::BF16 => $function::<half::bf16>($($argument),*),
            $crate::tensor::DType::F64 => $function::<f64>($($argument),*),
            _ => $function::<f32>($($argument),*),
        }
    };
}
use with_number;

/// Results of at least this many bytes are stored past the caches: they would push out all else, and no cache
/// would hold them for the next reader anyway.
const STREAM_BYTES: i64 = 32 << 20;
