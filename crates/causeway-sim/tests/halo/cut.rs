//! A row that is cut in two, and what of it kernels compute otherwise than for a whole row.

use std::sync::Arc;

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::causal_conv1d::{backward, forward};
use causeway::backend::gpu::message::{self, FLAG_BYTES};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, Error, HostTensor, TensorMut, TensorRef};
use causeway_sim::Simulator;

use crate::random::Random;

/// A whole row is `width - 1` positions of a halo, and `seqlen` more.
#[derive(Debug)]
pub struct Cut {
    dtype: DType,
    weight: DType,
    batch: i64,
    dim: i64,
    seqlen: i64,
    width: i64,
    channel_last: bool,
    /// Positions behind a row that are not its own.
    gap: i64,
    /// From one element of a weight, a bias, indices, and gradients of the first two to the next.
    step: i64,
    values: Values,
    indices: Indices,
    /// Length of the second half where the halo is an initial state, and whether there are indices then.
    plain: (i64, bool),
    bias: bool,
    residual: bool,
    activation: Activation,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Values {
    Finite,
    /// Some of x and dy behind the halo are.
    Infinite,
    /// x and dy are NaN at padding.
    Holes,
}

#[derive(Debug, Clone, Copy)]
enum Indices {
    /// Few different ones, which come back, and padding.
    Few,
    /// Packed sequences, and padding.
    Rising,
    One,
}

/// Outputs of a backward pass.
const RESULTS: [&str; 3] = ["dx", "dweight", "dbias"];

/// Tensors by number.
const X: u32 = 3;
const DY: u32 = 4;

/// A number for a tensor's element: the same for the same place of the whole row. In steps of 1/4, of which sums are not rounded.
fn number(tensor: u32, element: i64) -> f64 {
    f64::from(hash(tensor, element) % 9) / 4.0 - 1.0
}

fn hash(tensor: u32, element: i64) -> u32 {
    let mixed = (element as u32 ^ tensor << 20).wrapping_mul(2_654_435_761);
    mixed ^ mixed >> 15
}

impl Cut {
    /// Tensor number `tensor` of (batch, dim, `count` positions from `first` on of the whole row), with a gap behind each row and an entry of
    /// the batch too many.
    fn rows(&self, tensor: u32, first: i64, count: i64) -> HostTensor {
        let (dim, whole, stored_count) = (self.dim, self.width - 1 + self.seqlen, count + self.gap);
        let entries = self.batch + 1;
        let stored =
            if self.channel_last { [entries, stored_count, dim] } else { [entries, dim, stored_count] };
        let made = HostTensor::from_fn(self.dtype, &stored, |at| {
            let at = at as i64;
            let (outer, inner) = (at / stored[2], at % stored[2]);
            let (entry, middle) = (outer / stored[1], outer % stored[1]);
            let (channel, position) = if self.channel_last { (inner, middle) } else { (middle, inner) };
            let (position, element) = (first + position, (entry * dim + channel) * whole + first + position);
            let is_hole = self.values == Values::Holes && self.index(entry, position) < 0;
            // With SiLU g may be infinite with the halo and without it, of two signs: no difference takes that out of a sum.
            let may_be_infinite = tensor == X || self.activation == Activation::None;
            let is_infinite = self.values == Values::Infinite
                && position >= self.width - 1
                && hash(tensor, -element).is_multiple_of(37);
            match tensor {
                X | DY if is_hole => f64::NAN,
                X | DY if is_infinite && may_be_infinite => f64::INFINITY,
                _ => number(tensor, element),
            }
        });
        let made = made.unwrap();
        if self.channel_last { made.permuted(&[0, 2, 1]) } else { made }
    }

    /// The index of a position of the whole row of an entry.
    fn index(&self, entry: i64, position: i64) -> i32 {
        let drawn = (number(9, entry * (self.width - 1 + self.seqlen) + position) * 4.0) as i32;
        match self.indices {
            // Alike in their low bits.
            Indices::Few => (drawn / 3) << 24,
            Indices::Rising if drawn == 2 => -1,
            Indices::Rising => (position / 3) as i32,
            Indices::One => 7,
        }
    }

    fn indices(&self, first: i64, count: i64) -> HostTensor {
        let stored = |at: i64| {
            let (position, behind) = (at / self.step, at % self.step);
            if behind > 0 { 5 } else { self.index(position / count, first + position % count) }
        };
        let values: Vec<i32> = (0..self.batch * count * self.step).map(stored).collect();
        HostTensor::from_slice(&values, &[self.batch, count, self.step]).unwrap()
    }

    /// The first positions of a tensor of rows, without what lies around them.
    fn read<'a>(&self, rows: &'a HostTensor, count: i64) -> TensorRef<'a> {
        rows.view().narrow(2, 0, count).narrow(0, 0, self.batch)
    }

    /// The same of a result.
    fn written<'a>(&self, rows: TensorMut<'a>, count: i64) -> TensorMut<'a> {
        rows.narrow(2, 0, count).narrow(0, 0, self.batch)
    }

    fn results<'a>(&self, results: &'a mut [HostTensor; 3], count: i64) -> [Option<TensorMut<'a>>; 3] {
        let [dx, dweight, dbias] = results;
        [self.written(dx.view_mut(), count), elements_mut(dweight), elements_mut(dbias)].map(Some)
    }

    /// A weight's elements, or a bias', each in front of what is not their own.
    fn flat(&self, tensor: u32, shape: &[i64]) -> HostTensor {
        let own = |at: i64| if at % self.step == 0 { number(tensor, at / self.step) } else { f64::NAN };
        let shape = [shape, &[self.step]].concat();
        HostTensor::from_fn(self.weight, &shape, |at| own(at as i64)).unwrap()
    }

    /// Of the second half that is corrected for its halo.
    fn compare_corrected(&self, simulator: &Arc<Simulator>) -> Result<(), String> {
        let Cut { batch, dim, seqlen, width, activation, .. } = *self;
        let (states, whole) = (width - 1, width - 1 + seqlen);
        let device = Device::Simulated(Arc::clone(simulator) as Arc<dyn Executor>);
        let (weight, bias) = (self.flat(1, &[dim, width]), self.flat(2, &[dim]));
        // y, dx, dweight and dbias of positions from `first` on; without what comes before, which has no dy.
        let computed = |first: i64, count: i64| {
            let (x, residual) = (self.rows(X, first, count), self.rows(5, first, count));
            let (mut dy, indices) = (self.rows(DY, first, count), self.indices(first, count));
            for row in 0..batch * dim {
                for position in first..states {
                    dy.adjust(&[row / dim, row % dim, position], |_| 0.0);
                }
            }
            let (mut y, mut results) = (x.clone(), [x.clone(), weight.clone(), bias.clone()]);
            let read = |name: &str| match name {
                "x" => Some(self.read(&x, count)),
                "dy" => Some(self.read(&dy, count)),
                "weight" => Some(elements(&weight)),
                "bias" => self.bias.then(|| elements(&bias)),
                "seq_idx" => Some(elements(&indices)),
                "residual" => self.residual.then(|| self.read(&residual, count)),
                _ => None,
            };
            let mut place = Some(self.written(y.view_mut(), count));
            let written = |name: &str| if name == "y" { place.take() } else { None };
            Forward::from_named(activation, false, None, read, written).run(&device).unwrap();
            let mut places = self.results(&mut results, count);
            let written = |name: &str| {
                let at = RESULTS.iter().position(|known| *known == name)?;
                if name == "dbias" && !self.bias { None } else { places[at].take() }
            };
            Backward::from_named(activation, false, None, read, written).run(&device).unwrap();
            (x, dy, indices, residual, y, results)
        };
        let (.., y_whole, [dx_whole, dweight_whole, dbias_whole]) = computed(0, whole);
        let (x, dy, indices, residual, mut y, mut results) = computed(states, seqlen);
        let alone = results.clone();

        let (halo, halo_indices) = (self.rows(X, 0, states), self.indices(0, states));
        let mut dhalo = halo.clone();
        let mut buffer = buffer_of(&dhalo);
        let address = buffer.as_mut_ptr() as u64;
        let facts = simulator.facts();
        let read = |name: &str| match name {
            "x" => Some(self.read(&x, seqlen)),
            "dy" => Some(self.read(&dy, seqlen)),
            "weight" => Some(elements(&weight)),
            "bias" => self.bias.then(|| elements(&bias)),
            "seq_idx" => Some(elements(&indices)),
            "residual" => self.residual.then(|| self.read(&residual, seqlen)),
            "initial_states" => Some(self.read(&halo, states)),
            _ => None,
        };
        let plans = {
            let mut place = Some(self.written(y.view_mut(), seqlen));
            let written = |name: &str| if name == "y" { place.take() } else { None };
            let call = Forward::from_named(activation, false, None, read, written);
            let corrected =
                forward::plan_halo(&call, &call.validate().unwrap(), &elements(&halo_indices), facts)
                    .unwrap();
            let mut places = self.results(&mut results, seqlen);
            let mut state = Some(self.written(dhalo.view_mut(), states));
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
            let (sizes, index) = (call.validate().unwrap(), elements(&halo_indices));
            let sent = backward::plan_halo(&call, &sizes, Some(&index), address, facts).unwrap();
            let behind = backward::plan_after_halo(&call, &sizes, &index, facts).unwrap();
            [corrected, sent, behind].map(Option::unwrap)
        };
        let taken = message::receive(&self.written(dhalo.view_mut(), states), address).unwrap();
        for plan in plans.iter().chain([&taken]) {
            // SAFETY: the tensors are those of the calls above, and the buffer has the size of the message.
            unsafe { simulator.execute(plan) }.map_err(failed)?;
        }

        // Positions of each row, of a tensor whose rows have so many.
        let part = |tensor: &HostTensor, row: i64, from: i64, count: i64| -> Vec<f64> {
            let values = tensor.to_f64();
            let rows = values.chunks_exact((row + self.gap) as usize).take((batch * dim) as usize);
            rows.flat_map(|row| &row[from as usize..][..count as usize]).copied().collect()
        };
        let own = |tensor: &HostTensor| part(tensor, seqlen, 0, seqlen);
        let between = |tensor: &HostTensor| {
            let values = tensor.to_f64().into_iter().enumerate();
            values.filter(|(at, _)| at % self.step as usize > 0).all(|(_, value)| value.is_nan())
        };
        let around = |tensor: &HostTensor| {
            let mut values = part(tensor, seqlen, seqlen, self.gap);
            values.extend(&tensor.to_f64()[(batch * dim * (seqlen + self.gap)) as usize..]);
            values
        };
        require(same(&own(&y), &part(&y_whole, whole, states, seqlen)), "y")?;
        // y and dx began as copies of x.
        let is_left = same(&around(&y), &around(&x)) && same(&around(&results[0]), &around(&x));
        require(is_left && between(&results[1]) && between(&results[2]), "what lies around results")?;
        let unit = |dtype| match dtype {
            DType::F32 => 1e-6,
            DType::F16 => 2e-3,
            _ => 1.5e-2,
        };
        let gradients = [
            ("dx", own(&results[0]), part(&dx_whole, whole, states, seqlen)),
            ("the halo's gradient", part(&dhalo, states, 0, states), part(&dx_whole, whole, 0, states)),
        ];
        for (what, found, expected) in gradients {
            // Channel-last, a row that two threads share has its sum in two parts.
            let tolerance = if self.channel_last { unit(self.dtype) } else { 0.0 };
            for (found, expected) in found.into_iter().zip(expected) {
                let is_right = is_near(found, expected, tolerance * (1.0 + expected.abs()));
                require(is_right, &format!("{what}: {found}, not {expected}"))?;
            }
        }
        // A sum is rounded to the weight's dtype once more, and with SiLU taken in another order.
        let bias = if self.bias { vec![(2, dbias_whole)] } else { vec![] };
        for (at, expected) in [(1, dweight_whole)].into_iter().chain(bias) {
            let pairs = results[at].to_f64().into_iter().zip(expected.to_f64());
            let alone = alone[at].to_f64();
            for ((found, expected), alone) in pairs.zip(alone).step_by(self.step as usize) {
                // Kernels may multiply what is infinite by the zero of a tap that is left out.
                if self.values == Values::Infinite && (expected.is_nan() || alone.is_nan()) {
                    continue;
                }
                let size = 8.0 * (batch * seqlen) as f64;
                let tolerance = unit(self.weight) * 2.0 * (size.sqrt() + expected.abs());
                let is_right = is_near(found, expected, tolerance);
                require(is_right, &format!("{}: {found}, not {expected}", RESULTS[at]))?;
            }
        }
        Ok(())
    }

    /// Of the second half where the halo is an initial state: it has the index of the first position, if there are some.
    fn compare_as_state(&self, simulator: &Arc<Simulator>) -> Result<(), String> {
        let Cut { dim, seqlen, width, activation, plain: (short, has_indices), .. } = *self;
        let states = width - 1;
        let device = Device::Simulated(Arc::clone(simulator) as Arc<dyn Executor>);
        let (weight, bias) = (self.flat(1, &[dim, width]), self.flat(2, &[dim]));
        let (x, dy) = (self.rows(X, states, seqlen), self.rows(DY, states, seqlen));
        let (halo, indices) = (self.rows(X, 0, states), self.indices(states, seqlen));
        let (mut dx, mut dweight, mut given, mut sent) =
            (x.clone(), weight.clone(), halo.clone(), halo.clone());
        let read = |name: &str| match name {
            "x" | "dy" => Some(self.read(if name == "x" { &x } else { &dy }, short)),
            "seq_idx" => has_indices.then(|| elements(&indices).narrow(1, 0, short)),
            "initial_states" => Some(self.read(&halo, states)),
            "weight" => Some(elements(&weight)),
            "bias" => self.bias.then(|| elements(&bias)),
            _ => None,
        };
        let mut places = [
            ("dx", Some(self.written(dx.view_mut(), short))),
            ("dweight", Some(elements_mut(&mut dweight))),
            ("dinitial_states", Some(self.written(given.view_mut(), states))),
        ];
        let written = |name: &str| {
            places.iter_mut().find(|(known, _)| *known == name).and_then(|(_, place)| place.take())
        };
        let mut call = Backward::from_named(activation, false, None, read, written);
        call.run(&device).map_err(failed)?;
        let mut buffer = buffer_of(&sent);
        let address = buffer.as_mut_ptr() as u64;
        let facts = simulator.facts();
        let plan =
            backward::plan_halo(&call, &call.validate().unwrap(), None, address, facts).unwrap().unwrap();
        let taken = message::receive(&self.written(sent.view_mut(), states), address).unwrap();
        for plan in [&plan, &taken] {
            // SAFETY: the tensors are those of the call, and the buffer has the size of the message.
            unsafe { simulator.execute(plan) }.map_err(failed)?;
        }
        require(same(&sent.to_f64(), &given.to_f64()), "the gradient of an initial state")
    }

    /// What differs, in words.
    pub fn compare(&self, simulator: &Arc<Simulator>) -> Result<(), String> {
        self.compare_corrected(simulator)?;
        self.compare_as_state(simulator)
    }

    pub fn drawn(random: &mut Random) -> Cut {
        let dtypes = [DType::BF16, DType::F32, DType::F16];
        let dtype = dtypes[random.below(3)];
        let width = 2 + random.below(7) as i64;
        let seqlen = 2 * (width - 1) + [0, 0, 1, 2, 9, 40][random.below(6)];
        Cut {
            dtype,
            weight: if random.below(3) == 0 { DType::F32 } else { dtype },
            batch: 1 + random.below(3) as i64,
            // The last one has more results than a grid has threads.
            dim: [1, 2, 5, 24, 64, 150, 300, 2500][random.below(8)],
            seqlen,
            width,
            channel_last: random.below(2) == 0,
            gap: [0, 0, 3][random.below(3)],
            step: [1, 1, 2][random.below(3)],
            values: [Values::Infinite, Values::Holes, Values::Finite, Values::Finite][random.below(4)],
            indices: [Indices::Few, Indices::Few, Indices::Rising, Indices::One][random.below(4)],
            plain: (width - 1 + random.below((seqlen - width + 2) as usize) as i64, random.below(2) == 0),
            bias: random.below(2) == 0,
            residual: random.below(2) == 0,
            activation: if random.below(4) > 0 { Activation::Silu } else { Activation::None },
        }
    }
}

fn elements(tensor: &HostTensor) -> TensorRef<'_> {
    tensor.view().select(tensor.shape().len() - 1, 0)
}

fn elements_mut(tensor: &mut HostTensor) -> TensorMut<'_> {
    let axis = tensor.shape().len() - 1;
    tensor.view_mut().select(axis, 0)
}

/// Infinite ones are near to themselves alone, and NaN to NaN.
fn is_near(found: f64, expected: f64, tolerance: f64) -> bool {
    let is_finite = found.is_finite() && expected.is_finite();
    found == expected
        || found.is_nan() && expected.is_nan()
        || is_finite && (found - expected).abs() <= tolerance
}

fn same(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| is_near(*found, *expected, 0.0))
}

/// Memory for a message of a tensor, in which there is none.
fn buffer_of(tensor: &HostTensor) -> Vec<u128> {
    vec![0; (FLAG_BYTES as usize + tensor.element_count() * 4).div_ceil(16) + 1]
}

fn require(is_right: bool, what: &str) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(what.to_string()) }
}

/// A failure of a launch in words; a kernel that does not compile is none.
fn failed(error: Error) -> String {
    match error {
        Error::SimulatorCompiler { message } => panic!("it does not compile: {message}"),
        error => error.to_string(),
    }
}
