//! Query, key and value of a gated delta net in one launch: two with norms, one without, as parts of one tensor. What each has must
//! be what a call of its own gives.

use std::sync::Arc;

use causeway::causal_conv1d::{Activation, Backward, Forward, HeadNorm, Update};
use causeway::{Device, TensorMut, TensorRef};
use causeway_sim::Simulator;
use half::bf16;

/// A layer's sizes, and memory for its tensors in the order (batch, seqlen, channels).
struct Layer {
    batch: i64,
    seqlen: i64,
    parts: [i64; 3],
    head_dim: i64,
    /// Kernels of q, k and v have blocks of one size.
    is_even: bool,
}

/// Numbers between -1 and 1, always the same.
fn numbers(count: i64, seed: u32) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as u16) / 32768.0 - 1.0
    };
    (0..count).map(|_| bf16::from_f32(next())).collect()
}

impl Layer {
    fn dim(&self) -> i64 {
        self.parts.iter().sum()
    }

    fn elements(&self) -> i64 {
        self.batch * self.seqlen * self.dim()
    }

    fn norm(&self, part: usize) -> Option<HeadNorm> {
        (part < 2)
            .then(|| HeadNorm { scale: if part == 0 { 0.25 } else { 1.0 }, ..HeadNorm::new(self.head_dim) })
    }

    /// A tensor's shape and strides.
    fn rows(&self) -> ([i64; 3], [i64; 3]) {
        ([self.batch, self.dim(), self.seqlen], [self.seqlen * self.dim(), 1, self.dim()])
    }

    fn starts(&self) -> [i64; 3] {
        [0, self.parts[0], self.parts[0] + self.parts[1]]
    }

    fn apart<'a>(&self, axis: usize, tensor: TensorRef<'a>) -> [TensorRef<'a>; 3] {
        std::array::from_fn(|part| tensor.narrow(axis, self.starts()[part], self.parts[part]))
    }

    /// y, dx and dweight, computed together or one by one.
    fn computed(&self, device: &Device, is_together: bool) -> [Vec<bf16>; 3] {
        let (shape, strides) = self.rows();
        let (x, dy, weight) =
            (numbers(self.elements(), 1), numbers(self.elements(), 2), numbers(self.dim() * 4, 3));
        let results =
            [self.elements(), self.elements(), self.dim() * 4].map(|count| vec![bf16::NAN; count as usize]);
        let [mut y, mut dx, mut dweight] = results;
        let read = |data| self.apart(1, TensorRef::strided::<bf16>(data, 0, &shape, &strides).unwrap());
        let write =
            |data| TensorMut::strided::<bf16>(data, 0, &shape, &strides).unwrap().split(1, &self.parts);
        let weights = self.apart(0, TensorRef::new(&weight, &[self.dim(), 4]).unwrap());
        let dweights = TensorMut::new(&mut dweight, &[self.dim(), 4]).unwrap().split(0, &self.parts);
        let (xs, dys) = (read(&x), read(&dy));
        let mut forwards = Vec::new();
        for (part, y) in write(&mut y).into_iter().enumerate() {
            let of = |name: &str| match name {
                "x" => Some(xs[part]),
                "weight" => Some(weights[part]),
                _ => None,
            };
            let mut y = Some(y);
            let write = |name: &str| if name == "y" { y.take() } else { None };
            forwards.push(Forward::from_named(Activation::Silu, false, self.norm(part), of, write));
        }
        let mut backwards = Vec::new();
        for (part, (dx, dweight)) in write(&mut dx).into_iter().zip(dweights).enumerate() {
            let of = |name: &str| match name {
                "x" => Some(xs[part]),
                "weight" => Some(weights[part]),
                "dy" => Some(dys[part]),
                _ => None,
            };
            let mut written = [Some(dx), Some(dweight)];
            let write = |name: &str| match name {
                "dx" => written[0].take(),
                "dweight" => written[1].take(),
                _ => None,
            };
            backwards.push(Backward::from_named(Activation::Silu, false, self.norm(part), of, write));
        }
        if is_together {
            let facts = device.facts().unwrap();
            if self.is_even {
                assert_eq!(Forward::plans_together(&forwards, facts).unwrap().len(), 1);
                assert_eq!(Backward::plans_together(&backwards, facts).unwrap().len(), 1);
            }
            Forward::run_together(&mut forwards, device).unwrap();
            Backward::run_together(&mut backwards, device).unwrap();
        } else {
            forwards.iter_mut().for_each(|call| call.run(device).unwrap());
            backwards.iter_mut().for_each(|call| call.run(device).unwrap());
        }
        drop((forwards, backwards));
        [y, dx, dweight]
    }

    /// y and the state of one new position.
    fn updated(&self, device: &Device, is_together: bool) -> [Vec<bf16>; 2] {
        let (batch, dim) = (self.batch, self.dim());
        let (x, weight) = (numbers(batch * dim, 4), numbers(dim * 4, 3));
        let (mut state, mut y) = (numbers(batch * dim * 4, 5), vec![bf16::NAN; (batch * dim) as usize]);
        let xs = self.apart(1, TensorRef::new(&x, &[batch, dim]).unwrap());
        let weights = self.apart(0, TensorRef::new(&weight, &[dim, 4]).unwrap());
        let states = TensorMut::new(&mut state, &[batch, dim, 4]).unwrap().split(1, &self.parts);
        let ys = TensorMut::new(&mut y, &[batch, dim]).unwrap().split(1, &self.parts);
        let mut calls = Vec::new();
        for (part, (state, y)) in states.into_iter().zip(ys).enumerate() {
            let of = |name: &str| match name {
                "x" => Some(xs[part]),
                "weight" => Some(weights[part]),
                _ => None,
            };
            let mut written = [Some(state), Some(y)];
            let write = |name: &str| written[usize::from(name == "y")].take();
            calls.push(Update::from_named(Activation::Silu, false, self.norm(part), of, write));
        }
        if is_together {
            assert_eq!(Update::plans_together(&calls, device.facts().unwrap()).unwrap().len(), 1);
            Update::run_together(&mut calls, device).unwrap();
        } else {
            calls.iter_mut().for_each(|call| call.run(device).unwrap());
        }
        drop(calls);
        [state, y]
    }
}

/// That numbers differ by a rounding or two of sums in other orders.
fn assert_close(one: &[bf16], other: &[bf16], largest: f32) {
    for (i, (a, b)) in one.iter().zip(other).enumerate() {
        let (a, b) = (a.to_f32(), b.to_f32());
        assert!((a - b).abs() <= 0.008 * a.abs() + 1e-3 * largest, "element {i}: {a} and {b}");
    }
}

#[test]
fn one_launch_gives_what_three_give() {
    let layers = [
        Layer { batch: 2, seqlen: 37, parts: [32, 32, 64], head_dim: 16, is_even: true },
        Layer { batch: 1, seqlen: 70, parts: [128, 64, 320], head_dim: 64, is_even: true },
        Layer { batch: 3, seqlen: 9, parts: [16, 16, 17], head_dim: 8, is_even: false },
        Layer { batch: 2, seqlen: 20, parts: [30, 15, 10], head_dim: 5, is_even: false },
    ];
    for name in ["sim:32", "sim:64", "sim:sm_80"] {
        let device = Device::Simulated(Arc::new(Simulator::open(name).unwrap()));
        for layer in &layers {
            let [together, apart] = [true, false].map(|is_together| layer.computed(&device, is_together));
            assert_eq!(together[0], apart[0], "{name} {:?}", layer.parts);
            assert_close(&together[1], &apart[1], 1.0);
            assert_close(&together[2], &apart[2], layer.batch as f32 * layer.seqlen as f32);
            assert_eq!(
                layer.updated(&device, true),
                layer.updated(&device, false),
                "{name} {:?}",
                layer.parts
            );
        }
    }
}
