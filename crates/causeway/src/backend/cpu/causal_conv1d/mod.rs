//! Causal conv1d on a CPU.
//!
//! With a norm, [`heads`] computes all channels of a head together. Else there are two traversals: [`tile`] has its vectors along the
//! sequence, one channel at a time, and takes any strides and widths; [`rows`] has them along the channels, for channel-last tensors and
//! widths up to 8. Where little of a vector would be used, [`short_rows`] and [`few_channels`] take [`places`] as they lie in memory, of
//! several channels at once. All of them add the taps of a result in the same order, so that it has the same bits. Kernels walk
//! [`partition`]'s tasks, and [`sequences`] tells which positions belong together.

mod backward;
mod blocks;
mod columns;
mod few_channels;
mod forward;
mod gates;
mod heads;
mod partition;
mod places;
mod registers;
mod rows;
mod sequences;
mod short_rows;
mod states;
mod sums;
mod tensors;
mod tile;
mod update;
mod varlen_states;

pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use partition::Work;
pub(crate) use update::update;
pub(crate) use varlen_states::varlen_states;

/// Calls a function that is generic over the element type with the type of a dtype. Views hold floats only:
/// `validate` has refused all else. A second function takes f64, which has no kernels along the channels.
macro_rules! with_number {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        with_number!($dtype, $function | $function($($argument),*))
    };
    ($dtype:expr, $function:ident | $in_f64:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            $crate::tensor::DType::F16 => $function::<half::f16>($($argument),*),
            $crate::tensor::DType::BF16 => $function::<half::bf16>($($argument),*),
            $crate::tensor::DType::F64 => $in_f64::<f64>($($argument),*),
            _ => $function::<f32>($($argument),*),
        }
    };
}
use with_number;

/// Results of at least this many bytes are stored past the caches: they would push out all else, and no cache
/// would hold them for the next reader anyway.
const STREAM_BYTES: i64 = 32 << 20;

/// Whether a result with the shape of x is stored past the caches.
fn is_streamed<T>(sizes: &crate::causal_conv1d::Sizes) -> bool {
    sizes.batch * sizes.dim * sizes.seqlen * size_of::<T>() as i64 >= STREAM_BYTES
}
