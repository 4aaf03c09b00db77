//! Generation: a prompt in one forward call, then one token at a time, with the state carried between calls.
//! The tokens come out as if the whole sequence had been one call.
//!
//! ```text
//! cargo run --release -p causeway --example decode
//! ```

use causeway::causal_conv1d::{Activation, Forward, Update};
use causeway::{DType, Device, HostTensor};

fn main() -> causeway::Result<()> {
    let (batch, dim, width) = (2, 8, 4);
    let (prompt, generated) = (5, 3);
    let device = Device::cpu();

    let total = prompt + generated;
    let x = HostTensor::from_fn(DType::F32, &[batch, dim, total], |i| (i as f64 * 0.37).sin())?;
    let weight = HostTensor::from_fn(DType::F32, &[dim, width], |i| (i as f64 * 0.9).cos())?;

    let forward = |x, y: &mut HostTensor, final_states: Option<&mut HostTensor>| {
        Forward {
            x,
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
            y: y.view_mut(),
            final_states: final_states.map(HostTensor::view_mut),
        }
        .run(&device)
    };

    // The whole sequence at once: what the pieces have to reproduce.
    let mut whole = HostTensor::zeros(DType::F32, &[batch, dim, total])?;
    forward(x.view(), &mut whole, None)?;

    // The prompt. Views narrow x without a copy; the final states are where decoding starts.
    let mut y = HostTensor::zeros(DType::F32, &[batch, dim, prompt])?;
    let mut state = HostTensor::zeros(DType::F32, &[batch, dim, width - 1])?;
    forward(x.view().narrow(2, 0, prompt), &mut y, Some(&mut state))?;

    // One token per call; the state is changed in place.
    for token in prompt..total {
        let mut y = HostTensor::zeros(DType::F32, &[batch, dim, 1])?;
        Update {
            x: x.view().narrow(2, token, 1),
            conv_state: state.view_mut(),
            weight: weight.view(),
            bias: None,
            cache_seqlens: None,
            conv_state_indices: None,
            b: None,
            c: None,
            activation: Activation::Silu,
            round_products: false,
            norm: None,
            y: y.view_mut(),
        }
        .run(&device)?;
        let expected = whole.view().narrow(2, token, 1).to_f64();
        let difference = y.to_f64().iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0f64, f64::max);
        println!("token {token}: {:.4?} …, {difference:.1e} from the whole call", &y.to_f64()[..3]);
        assert!(difference < 1e-6);
    }
    Ok(())
}
