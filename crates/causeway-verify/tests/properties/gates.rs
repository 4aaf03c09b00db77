//! Gated calls that round their products give the bits of separate kernels.

use causeway::backend::cpu::{Cpu, Level};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, HostTensor};

const SHAPE: [i64; 3] = [2, 5, 71];

fn tensor(dtype: DType, seed: usize, channel_last: bool) -> HostTensor {
    let [batch, dim, seqlen] = SHAPE;
    let value = |i: usize| (((i + 1) * (seed + 7)) as f64 * 0.713).sin() * 1.7;
    if channel_last {
        HostTensor::from_fn(dtype, &[batch, seqlen, dim], value).unwrap().permuted(&[0, 2, 1])
    } else {
        HostTensor::from_fn(dtype, &SHAPE, value).unwrap()
    }
}

/// The product as a kernel of its own writes it: 16-bit products are exact in f64, and rounded once.
fn product(a: &HostTensor, b: &HostTensor) -> HostTensor {
    let (a_values, b_values) = (a.to_f64(), b.to_f64());
    let mut product = a.clone();
    product.assign(|i| a_values[i] * b_values[i]);
    product
}

fn zeros_like(tensor: &HostTensor) -> HostTensor {
    let mut zeros = tensor.clone();
    zeros.assign(|_| 0.0);
    zeros
}

struct Gated {
    x: HostTensor,
    b: HostTensor,
    c: HostTensor,
    weight: HostTensor,
    bias: HostTensor,
    activation: Activation,
    device: Device,
}

impl Gated {
    fn forward(&self, x: &HostTensor, gated: bool) -> HostTensor {
        let mut y = zeros_like(x);
        Forward {
            x: x.view(),
            weight: self.weight.view(),
            bias: Some(self.bias.view()),
            initial_states: None,
            seq_idx: None,
            cu_seqlens: None,
            residual: None,
            b: gated.then(|| self.b.view()),
            c: gated.then(|| self.c.view()),
            activation: self.activation,
            round_products: gated,
            norm: None,
            y: y.view_mut(),
            final_states: None,
        }
        .run(&self.device)
        .unwrap();
        y
    }

    /// dx, dB and dC; without gates dx alone.
    fn backward(&self, x: &HostTensor, dy: &HostTensor, gated: bool) -> [HostTensor; 3] {
        let [mut dx, mut db, mut dc] = [(); 3].map(|()| zeros_like(x));
        let (mut dweight, mut dbias) = (self.weight.clone(), self.bias.clone());
        Backward {
            x: x.view(),
            weight: self.weight.view(),
            bias: Some(self.bias.view()),
            dy: dy.view(),
            initial_states: None,
            seq_idx: None,
            cu_seqlens: None,
            dfinal_states: None,
            b: gated.then(|| self.b.view()),
            c: gated.then(|| self.c.view()),
            activation: self.activation,
            round_products: gated,
            norm: None,
            dx: dx.view_mut(),
            dweight: dweight.view_mut(),
            dbias: Some(dbias.view_mut()),
            dinitial_states: None,
            db: gated.then(|| db.view_mut()),
            dc: gated.then(|| dc.view_mut()),
        }
        .run(&self.device)
        .unwrap();
        [dx, db, dc]
    }
}

#[test]
fn rounded_products_have_the_bits_of_separate_kernels() {
    for (device, dtype, channel_last, width, activation) in calls() {
        let seeded = |seed| tensor(dtype, seed, channel_last);
        let weight = HostTensor::from_fn(DType::F32, &[SHAPE[1], width], |i| (i as f64 * 0.9).cos()).unwrap();
        let bias = HostTensor::from_fn(DType::F32, &[SHAPE[1]], |i| i as f64 * 0.1 - 0.2).unwrap();
        let (x, b, c, dy) = (seeded(1), seeded(2), seeded(3), seeded(4));
        let gated = Gated { x, b, c, weight, bias, activation, device };
        let what =
            format!("{dtype}, width {width}, {activation}, channel-last {channel_last}, {}", gated.device);
        let same = |name: &str, found: &HostTensor, expected: &HostTensor| {
            assert_eq!(found.to_f64(), expected.to_f64(), "{name}: {what}");
        };

        let bx = product(&gated.b, &gated.x);
        let activated = gated.forward(&bx, false);
        same("y", &gated.forward(&gated.x, true), &product(&gated.c, &activated));

        let [dx, db, dc] = gated.backward(&gated.x, &dy, true);
        same("dC", &dc, &product(&dy, &activated));
        if width <= 8 {
            continue;
        }
        let [dbx, ..] = gated.backward(&bx, &product(&gated.c, &dy), false);
        same("dx", &dx, &product(&gated.b, &dbx));
        same("dB", &db, &product(&gated.x, &dbx));
    }
}

/// Every level of this processor, both layouts, and widths of which the largest takes the same way with gates and without.
fn calls() -> Vec<(Device, DType, bool, i64, Activation)> {
    let mut calls = Vec::new();
    for cpu in Level::ALL.into_iter().filter_map(|level| Cpu::with_level(level).ok()) {
        for dtype in [DType::F16, DType::BF16] {
            for (channel_last, width) in [(false, 3), (true, 4), (false, 9), (true, 9)] {
                for activation in [Activation::None, Activation::Silu] {
                    calls.push((Device::Cpu(cpu), dtype, channel_last, width, activation));
                }
            }
        }
    }
    calls
}
