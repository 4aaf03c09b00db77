//! Sequences of different lengths in one packed row, channel-last, with a state of each carried on.
//! No sequence sees another, and no padding is computed.
//!
//! ```text
//! cargo run --release -p causeway --example varlen
//! ```

use causeway::causal_conv1d::{Activation, Forward};
use causeway::{DType, Device, HostTensor};

fn main() -> causeway::Result<()> {
    let (dim, width) = (16, 4);
    let lengths = [7i64, 2, 12];
    let sequences = lengths.len() as i64;
    let total: i64 = lengths.iter().sum();
    let ends = lengths.iter().scan(0i32, |end, length| {
        *end += *length as i32;
        Some(*end)
    });
    let boundaries: Vec<i32> = std::iter::once(0).chain(ends).collect();

    // Memory is (1, total, dim), as most models keep it; the logical shape is (1, dim, total).
    let channel_last = |shape: [i64; 3]| [shape[0], shape[2], shape[1]];
    let x = HostTensor::from_fn(DType::BF16, &channel_last([1, dim, total]), |i| (i as f64 * 0.11).sin())?
        .permuted(&[0, 2, 1]);
    let mut y = HostTensor::zeros(DType::BF16, &channel_last([1, dim, total]))?.permuted(&[0, 2, 1]);
    let weight = HostTensor::from_fn(DType::F32, &[dim, width], |i| (i as f64 * 0.5).cos())?;
    let cu_seqlens = HostTensor::from_slice(&boundaries, &[sequences + 1])?;
    let mut final_states = HostTensor::zeros(DType::BF16, &[sequences, dim, width - 1])?;

    let device = Device::cpu();
    Forward {
        x: x.view(),
        weight: weight.view(),
        bias: None,
        initial_states: None,
        seq_idx: None,
        cu_seqlens: Some(cu_seqlens.view()),
        residual: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        y: y.view_mut(),
        final_states: Some(final_states.view_mut()),
    }
    .run(&device)?;

    // Each sequence alone gives the same numbers.
    for (index, length) in lengths.iter().enumerate() {
        let start = i64::from(boundaries[index]);
        let mut alone = HostTensor::zeros(DType::BF16, &[1, dim, *length])?;
        Forward {
            x: x.view().narrow(2, start, *length),
            weight: weight.view(),
            bias: None,
            initial_states: None,
            seq_idx: None,
            cu_seqlens: None,
            residual: None,
            b: None,
            c: None,
            activation: Activation::Silu,
            round_products: false,
            norm: None,
            y: alone.view_mut(),
            final_states: None,
        }
        .run(&device)?;
        let packed = y.view().narrow(2, start, *length).to_f64();
        let largest = packed.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        let difference = packed.iter().zip(alone.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0f64, f64::max);
        println!("sequence {index}: length {length:2}, largest {largest:.3}, {difference:.1e} from alone");
        assert!(difference <= largest * 0.01);
    }
    println!("final states: {:?}", final_states.shape());
    Ok(())
}
