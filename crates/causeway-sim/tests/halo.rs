//! Rows with indices that are cut in two: the second half, computed without its halo and then corrected for it, is what the whole row has there.

use std::sync::Arc;

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::causal_conv1d::{backward, forward};
use causeway::backend::gpu::message::{self, FLAG_BYTES};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, HostTensor};
use causeway_sim::Simulator;

/// A whole row is `width - 1` positions of a halo, and `seqlen` more.
struct Cut {
    dtype: DType,
    weight: DType,
    batch: i64,
    dim: i64,
    seqlen: i64,
    width: i64,
    channel_last: bool,
    bias: bool,
    residual: bool,
    activation: Activation,
}

/// Outputs of a backward pass.
const RESULTS: [&str; 3] = ["dx", "dweight", "dbias"];

/// A number for a tensor's element: the same for the same place of the whole row. In steps of 1/4, of which sums are not rounded.
fn number(tensor: u32, element: i64) -> f64 {
    let mixed = (element as u32 ^ tensor << 20).wrapping_mul(2_654_435_761);
    f64::from((mixed ^ mixed >> 15) % 9) / 4.0 - 1.0
}

impl Cut {
    /// Tensor number `tensor` of (batch, dim, `count` positions from `first` on of the whole row).
    fn rows(&self, tensor: u32, first: i64, count: i64) -> HostTensor {
        let (dim, whole) = (self.dim, self.width - 1 + self.seqlen);
        let stored = if self.channel_last { [self.batch, count, dim] } else { [self.batch, dim, count] };
        let made = HostTensor::from_fn(self.dtype, &stored, |at| {
            let at = at as i64;
            let (outer, inner) = (at / stored[2], at % stored[2]);
            let (entry, middle) = (outer / stored[1], outer % stored[1]);
            let (channel, position) = if self.channel_last { (inner, middle) } else { (middle, inner) };
            number(tensor, (entry * dim + channel) * whole + first + position)
        });
        let made = made.unwrap();
        if self.channel_last { made.permuted(&[0, 2, 1]) } else { made }
    }

    /// Few different ones, which come back, and padding.
    fn indices(&self, first: i64, count: i64) -> HostTensor {
        let whole = self.width - 1 + self.seqlen;
        let index = |at: i64| (number(9, at / count * whole + first + at % count) * 4.0) as i32 / 3;
        let values: Vec<i32> = (0..self.batch * count).map(index).collect();
        HostTensor::from_slice(&values, &[self.batch, count]).unwrap()
    }

    fn flat(&self, tensor: u32, dtype: DType, shape: &[i64]) -> HostTensor {
        HostTensor::from_fn(dtype, shape, |at| number(tensor, at as i64)).unwrap()
    }

    fn check(&self, simulator: &Arc<Simulator>, name: &str) {
        let Cut { batch, dim, seqlen, width, activation, .. } = *self;
        let (states, whole) = (width - 1, width - 1 + seqlen);
        let device = Device::Simulated(Arc::clone(simulator) as Arc<dyn Executor>);
        let (weight, bias) = (self.flat(1, self.weight, &[dim, width]), self.flat(2, self.weight, &[dim]));
        let zeros = |shape: &[i64]| HostTensor::zeros(self.weight, shape).unwrap();

        // y, dx, dweight and dbias of positions from `first` on; without what comes before, which has no dy.
        let computed = |first: i64, count: i64| {
            let (x, residual) = (self.rows(3, first, count), self.rows(5, first, count));
            let (mut dy, indices) = (self.rows(4, first, count), self.indices(first, count));
            for row in 0..batch * dim {
                for position in first..states {
                    dy.adjust(&[row / dim, row % dim, position], |_| 0.0);
                }
            }
            let (mut y, mut results) = (x.clone(), [x.clone(), zeros(&[dim, width]), zeros(&[dim])]);
            let read = |name: &str| match name {
                "x" => Some(x.view()),
                "dy" => Some(dy.view()),
                "weight" => Some(weight.view()),
                "bias" => self.bias.then(|| bias.view()),
                "seq_idx" => Some(indices.view()),
                "residual" => self.residual.then(|| residual.view()),
                _ => None,
            };
            let mut place = Some(y.view_mut());
            let written = |name: &str| if name == "y" { place.take() } else { None };
            Forward::from_named(activation, false, None, read, written).run(&device).unwrap();
            let mut places = results.each_mut().map(|result| Some(result.view_mut()));
            let written = |name: &str| {
                let at = RESULTS.iter().position(|known| *known == name)?;
                if name == "dbias" && !self.bias { None } else { places[at].take() }
            };
            Backward::from_named(activation, false, None, read, written).run(&device).unwrap();
            (x, dy, indices, residual, y, results)
        };
        let (.., y_whole, [dx_whole, dweight_whole, dbias_whole]) = computed(0, whole);
        let (x, dy, indices, residual, mut y, mut results) = computed(states, seqlen);

        let (halo, halo_indices) = (self.rows(3, 0, states), self.indices(0, states));
        let mut dhalo = halo.clone();
        let mut room = vec![0_u128; (FLAG_BYTES as usize + dhalo.element_count() * 4).div_ceil(16) + 1];
        let address = room.as_mut_ptr() as u64;
        let facts = simulator.facts();
        let read = |name: &str| match name {
            "x" => Some(x.view()),
            "dy" => Some(dy.view()),
            "weight" => Some(weight.view()),
            "bias" => self.bias.then(|| bias.view()),
            "seq_idx" => Some(indices.view()),
            "residual" => self.residual.then(|| residual.view()),
            "initial_states" => Some(halo.view()),
            _ => None,
        };
        let plans = {
            let mut place = Some(y.view_mut());
            let written = |name: &str| if name == "y" { place.take() } else { None };
            let call = Forward::from_named(activation, false, None, read, written);
            let corrected =
                forward::plan_halo(&call, &call.validate().unwrap(), &halo_indices.view(), facts).unwrap();
            let mut places = results.each_mut().map(|result| Some(result.view_mut()));
            let mut state = Some(dhalo.view_mut());
            let written = |name: &str| match RESULTS.iter().position(|known| *known == name) {
                Some(2) if !self.bias => None,
                Some(at) => places[at].take(),
                None => {
                    if name == "dinitial_states" {
                        state.take()
                    } else {
                        None
                    }
                }
            };
            let call = Backward::from_named(activation, false, None, read, written);
            let (sizes, index) = (call.validate().unwrap(), halo_indices.view());
            let sent = backward::plan_halo(&call, &sizes, Some(&index), address, facts).unwrap();
            let behind = backward::plan_behind_halo(&call, &sizes, &index, facts).unwrap();
            [corrected, sent, behind].map(Option::unwrap)
        };
        let taken = message::receive(&dhalo.view_mut(), address).unwrap();
        for plan in plans.iter().chain([&taken]) {
            // SAFETY: the tensors are those of the calls above, and the room has the size of the message.
            unsafe { simulator.execute(plan) }.unwrap();
        }

        // The last positions of a whole row.
        let last = |tensor: &HostTensor, from: i64, count: i64| -> Vec<f64> {
            let values = tensor.to_f64();
            values
                .chunks_exact(whole as usize)
                .flat_map(|row| &row[from as usize..][..count as usize])
                .copied()
                .collect()
        };
        assert_eq!(y.to_f64(), last(&y_whole, states, seqlen), "{name}: y");
        let unit = |dtype| match dtype {
            DType::F32 => 1e-6,
            DType::F16 => 2e-3,
            _ => 1.5e-2,
        };
        let gradients = [
            ("dx", results[0].to_f64(), last(&dx_whole, states, seqlen)),
            ("the halo's gradient", dhalo.to_f64(), last(&dx_whole, 0, states)),
        ];
        for (what, found, expected) in gradients {
            // Channel-last, a row that two threads share has its sum in two parts.
            let tolerance = if self.channel_last { unit(self.dtype) } else { 0.0 };
            for (found, expected) in found.into_iter().zip(expected) {
                let is_right = (found - expected).abs() <= tolerance * (1.0 + expected.abs());
                assert!(is_right, "{name}: {what} {found} {expected}");
            }
        }
        // A sum is rounded to the weight's dtype once more, and with SiLU taken in another order.
        let bias = if self.bias { vec![(2, dbias_whole)] } else { vec![] };
        for (at, expected) in [(1, dweight_whole)].into_iter().chain(bias) {
            for (found, expected) in results[at].to_f64().into_iter().zip(expected.to_f64()) {
                let size = 8.0 * (batch * seqlen) as f64;
                assert!(
                    (found - expected).abs() <= unit(self.weight) * 2.0 * (size.sqrt() + expected.abs()),
                    "{name}: {} {found} {expected}",
                    RESULTS[at]
                );
            }
        }
    }
}

#[test]
fn the_second_half_of_a_row_is_that_of_the_whole_one() {
    for (device, step) in [("sim:32", 1), ("sim:64", 3)] {
        let simulator = Arc::new(Simulator::open(device).unwrap());
        for number in (0..24).step_by(step) {
            let width = 2 + number % 7;
            let cut = Cut {
                dtype: [DType::BF16, DType::F32, DType::F16][number as usize % 3],
                weight: if number % 4 == 1 {
                    DType::F32
                } else {
                    [DType::BF16, DType::F32, DType::F16][number as usize % 3]
                },
                batch: 1 + number % 2,
                dim: [1, 5, 24, 150][number as usize % 4],
                seqlen: 2 * (width - 1) + [0, 1, 9, 40][number as usize / 2 % 4],
                width,
                channel_last: number % 5 > 2,
                bias: number % 3 > 0,
                residual: number % 4 > 1,
                activation: if number % 6 > 0 { Activation::Silu } else { Activation::None },
            };
            cut.check(&simulator, &format!("{device}, number {number}"));
        }
    }
}
