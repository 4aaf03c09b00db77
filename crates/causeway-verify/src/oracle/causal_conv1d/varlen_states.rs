//! The last positions of every sequence of a packed batch.

use causeway::tensor::TensorRef;

use crate::oracle::Expected;

/// The truth of [`VarlenStates`](causeway::causal_conv1d::VarlenStates): `(n, dim, state_len)`, all copies.
pub fn varlen_states(x: &TensorRef<'_>, cu_seqlens: &TensorRef<'_>, state_len: i64) -> Expected {
    let (dim, length) = (x.shape()[1] as usize, state_len as usize);
    let (values, boundaries) = (x.to_f64(), cu_seqlens.to_f64());
    let sequences = boundaries.len() - 1;
    let mut states = vec![0.0; sequences * dim * length];
    for (i, pair) in boundaries.windows(2).enumerate() {
        let (start, end) = (pair[0] as usize, pair[1] as usize);
        for c in 0..dim {
            for k in 1..=length.min(end - start) {
                states[(i * dim + c) * length + length - k] = values[(end - k) * dim + c];
            }
        }
    }
    Expected::exact(x.dtype(), &[sequences as i64, dim as i64, state_len], states)
}
