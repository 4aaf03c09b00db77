//! Norms of heads: what is refused, and what does not change the bits.

use causeway::causal_conv1d::{Activation, Forward, HeadNorm, Update};
use causeway::device::Device;
use causeway::error::Error;
use causeway::{DType, HostTensor};

fn wave(shape: &[i64], phase: f64) -> HostTensor {
    HostTensor::from_fn(DType::F32, shape, |i| (1.7 * i as f64 + phase).sin()).unwrap()
}

/// y of `(batch, dim, seqlen)` inputs, in whatever strides.
fn forward(
    x: &HostTensor,
    norm: HeadNorm,
    with: Option<&str>,
    mut y: HostTensor,
) -> Result<HostTensor, Error> {
    let weight = wave(&[x.shape()[1], 4], 0.2);
    let other = wave(x.shape(), 0.3);
    let given = |name: &str| (with == Some(name)).then(|| other.view());
    Forward {
        x: x.view(),
        weight: weight.view(),
        bias: None,
        initial_states: None,
        seq_idx: None,
        cu_seqlens: None,
        residual: given("residual"),
        b: given("B"),
        c: given("C"),
        activation: Activation::Silu,
        round_products: false,
        norm: Some(norm),
        y: y.view_mut(),
        final_states: None,
    }
    .run(&Device::cpu())?;
    Ok(y)
}

#[test]
fn what_has_no_meaning_is_refused_in_words() {
    let x = wave(&[2, 12, 5], 0.1);
    let refused = |norm, with| {
        let y = HostTensor::zeros(DType::F32, x.shape()).unwrap();
        forward(&x, norm, with, y).unwrap_err().to_string()
    };
    let norm = HeadNorm::new(4);
    assert_eq!(
        refused(HeadNorm::new(5), None),
        "norm has head_dim 5: expected a divisor of dim, which is 12"
    );
    assert_eq!(
        refused(HeadNorm::new(0), None),
        "norm has head_dim 0: expected a divisor of dim, which is 12"
    );
    for eps in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-40] {
        let error = refused(HeadNorm { eps, ..norm }, None);
        assert!(error.starts_with("norm has eps ") && error.ends_with("from 1.2e-38 to 3.4e38"), "{error}");
    }
    for scale in [f64::NAN, f64::INFINITY, -1e39] {
        let error = refused(HeadNorm { scale, ..norm }, None);
        assert!(error.starts_with("norm has scale "), "{error}");
    }
    for name in ["B", "C", "residual"] {
        let expected = format!("{name} is given, but a norm comes last: multiply, or add, afterwards");
        assert_eq!(refused(norm, Some(name)), expected);
    }
}

#[test]
fn every_head_has_the_length_of_the_scale() {
    let x = wave(&[2, 12, 70], 0.1);
    let y = HostTensor::zeros(DType::F32, x.shape()).unwrap();
    let y = forward(&x, HeadNorm { head_dim: 4, eps: 1e-12, scale: -3.0 }, None, y).unwrap().to_f64();
    for (row, head, t) in (0..2 * 3 * 70).map(|i| (i / 210, i / 70 % 3, i % 70)) {
        let squares: f64 = (0..4).map(|c| y[(row * 12 + head * 4 + c) * 70 + t].powi(2)).sum();
        assert!((squares.sqrt() - 3.0).abs() < 1e-4, "{row} {head} {t}: {squares}");
    }
}

#[test]
fn layouts_and_threads_give_the_same_bits() {
    let (dim, seqlen) = (192, 700);
    let x = wave(&[2, dim, seqlen], 0.1);
    // The same values with neighbouring channels side by side.
    let last = |of: &HostTensor| {
        let mut memory = HostTensor::zeros(DType::F32, &[2, seqlen, dim]).unwrap();
        let values = of.to_f64();
        let (d, s) = (dim as usize, seqlen as usize);
        memory.assign(|i| values[(i / (d * s) * d + i % d) * s + i / d % s]);
        memory.restrided(0, &[2, dim, seqlen], &[dim * seqlen, 1, dim]).unwrap()
    };
    for head_dim in [1, 3, 64, 192] {
        let norm = HeadNorm::new(head_dim);
        let zeros = || HostTensor::zeros(DType::F32, x.shape()).unwrap();
        let first = forward(&x, norm, None, zeros()).unwrap();
        let transposed = forward(&last(&x), norm, None, last(&zeros())).unwrap();
        assert_eq!(first.to_f64(), transposed.to_f64(), "heads of {head_dim}");
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let alone = one.install(|| forward(&x, norm, None, zeros())).unwrap();
        assert_eq!(first.to_f64(), alone.to_f64(), "heads of {head_dim}");
    }
}

/// y of new positions `(batch, dim, seqlen)`, and the state that they leave.
fn update(
    device: &Device,
    x: &HostTensor,
    norm: HeadNorm,
    gate: Option<&HostTensor>,
    state: &mut HostTensor,
) -> Result<HostTensor, Error> {
    let weight = wave(&[x.shape()[1], 4], 0.2);
    let mut y = HostTensor::zeros(DType::F32, x.shape())?;
    let read = |name: &str| match name {
        "x" => Some(x.view()),
        "weight" => Some(weight.view()),
        "B" => gate.map(HostTensor::view),
        _ => None,
    };
    let mut written = [Some(state.view_mut()), Some(y.view_mut())];
    let write = |name: &str| written[usize::from(name == "y")].take();
    Update::from_named(Activation::Silu, false, Some(norm), read, write).run(device)?;
    Ok(y)
}

#[test]
fn decoding_has_the_bits_of_the_whole_sequence() {
    let (batch, seqlen) = (3i64, 9);
    for (dim, head_dim) in [(192, 64), (150, 75), (12, 1)] {
        let (x, norm) =
            (wave(&[batch, dim, seqlen], 0.1), HeadNorm { scale: 0.5, ..HeadNorm::new(head_dim) });
        let whole =
            forward(&x, norm, None, HostTensor::zeros(DType::F32, x.shape()).unwrap()).unwrap().to_f64();
        let values = x.to_f64();
        let mut state = HostTensor::zeros(DType::F32, &[batch, dim, 3]).unwrap();
        for from in [0usize, 1, 2, 6] {
            let count = if from == 2 {
                4
            } else if from == 6 {
                3
            } else {
                1
            };
            let at = |i: usize| i / count * seqlen as usize + from + i % count;
            let mut part = HostTensor::zeros(DType::F32, &[batch, dim, count as i64]).unwrap();
            part.assign(|i| values[at(i)]);
            let y = update(&Device::cpu(), &part, norm, None, &mut state).unwrap().to_f64();
            assert!(y.iter().enumerate().all(|(i, &y)| y == whole[at(i)]), "{dim} {head_dim} {from}");
        }
    }
}

#[test]
fn an_update_with_a_norm_has_no_gates() {
    let x = wave(&[2, 12, 5], 0.1);
    let mut state = HostTensor::zeros(DType::F32, &[2, 12, 3]).unwrap();
    let error = update(&Device::cpu(), &x, HeadNorm::new(4), Some(&x), &mut state).unwrap_err().to_string();
    assert_eq!(error, "B is given, but a norm comes last: multiply, or add, afterwards");
    let error = update(&Device::cpu(), &x, HeadNorm::new(5), None, &mut state).unwrap_err().to_string();
    assert_eq!(error, "norm has head_dim 5: expected a divisor of dim, which is 12");
}
