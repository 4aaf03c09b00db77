//! A training step of one layer: forward, then the gradients of x, weight and bias.
//!
//! ```text
//! cargo run --release -p causeway --example forward_backward
//! ```

use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, HostTensor};

fn main() -> causeway::Result<()> {
    let (batch, dim, seqlen, width) = (2, 64, 128, 4);
    // Any numbers would do; these make every run print the same.
    let wave = |step: f64| move |i: usize| (i as f64 * step).sin();

    let x = HostTensor::from_fn(DType::F32, &[batch, dim, seqlen], wave(0.1))?;
    let weight = HostTensor::from_fn(DType::F32, &[dim, width], wave(0.7))?;
    let bias = HostTensor::from_fn(DType::F32, &[dim], wave(0.3))?;
    let mut y = HostTensor::zeros(DType::F32, &[batch, dim, seqlen])?;

    let device = Device::cpu();
    Forward {
        x: x.view(),
        weight: weight.view(),
        bias: Some(bias.view()),
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
        final_states: None,
    }
    .run(&device)?;

    // The loss is Σ y, so the gradient of y is 1 everywhere.
    let dy = HostTensor::from_fn(DType::F32, &[batch, dim, seqlen], |_| 1.0)?;
    let mut dx = HostTensor::zeros(DType::F32, &[batch, dim, seqlen])?;
    let mut dweight = HostTensor::zeros(DType::F32, &[dim, width])?;
    let mut dbias = HostTensor::zeros(DType::F32, &[dim])?;
    Backward {
        x: x.view(),
        weight: weight.view(),
        bias: Some(bias.view()),
        dy: dy.view(),
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        dfinal_states: None,
        b: None,
        c: None,
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        dx: dx.view_mut(),
        dweight: dweight.view_mut(),
        dbias: Some(dbias.view_mut()),
        dinitial_states: None,
        db: None,
        dc: None,
    }
    .run(&device)?;

    let loss: f64 = y.to_f64().iter().sum();
    println!("on {device}");
    println!("loss     {loss:.4}");
    println!("y        {:.4?} …", &y.to_f64()[..4]);
    println!("dx       {:.4?} …", &dx.to_f64()[..4]);
    println!("dweight  {:.4?} …", &dweight.to_f64()[..4]);

    // The gradient predicts what a small step of one bias does to the loss.
    let step = 1e-2;
    let mut moved = bias.to_f64();
    moved[0] += step;
    let moved = HostTensor::from_fn(DType::F32, &[dim], |i| moved[i])?;
    Forward {
        x: x.view(),
        weight: weight.view(),
        bias: Some(moved.view()),
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
        final_states: None,
    }
    .run(&device)?;
    let change = y.to_f64().iter().sum::<f64>() - loss;
    let predicted = dbias.to_f64()[0] * step;
    println!("a step of {step} on bias[0] changes the loss by {change:.4}; dbias predicts {predicted:.4}");
    assert!((change - predicted).abs() < 0.02 * predicted.abs().max(0.1));
    Ok(())
}
