//! Causal conv1d on a CPU.
//!
//! Two traversals: [`tile`] has its vectors along the sequence, one channel at a time, and takes any strides and
//! widths; [`rows`] has them along the channels, for channel-last tensors and widths up to 8. Kernels walk
//! [`partition`]'s tasks, and [`sequences`] tells which positions belong together.

mod backward;
mod backward_along_channels;
mod backward_along_sequence;
mod forward;
mod forward_along_channels;
mod forward_along_sequence;
mod partition;
mod rows;
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

/// Calls a function with a width that [`rows`] takes as its last constant argument.
macro_rules! with_width {
    ($width:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $width {
            1 => $function::<T, 1>($($argument),*),
            2 => $function::<T, 2>($($argument),*),
            3 => $function::<T, 3>($($argument),*),
            4 => $function::<T, 4>($($argument),*),
            5 => $function::<T, 5>($($argument),*),
            6 => $function::<T, 6>($($argument),*),
            7 => $function::<T, 7>($($argument),*),
            _ => $function::<T, { $crate::backend::cpu::causal_conv1d::rows::MAX_WIDTH }>($($argument),*),
        }
    };
}
use with_width;

/// Results of at least this many bytes are stored past the caches: they would push out all else, and no cache
/// would hold them for the next reader anyway.
const STREAM_BYTES: i64 = 32 << 20;

/// Whether a result with the shape of x is stored past the caches.
fn is_streamed<T>(sizes: &crate::causal_conv1d::Sizes) -> bool {
    sizes.batch * sizes.dim * sizes.seqlen * size_of::<T>() as i64 >= STREAM_BYTES
}
