//! Messages between GPUs: what was sent is received, whatever the strides on either side, and nothing else is touched.

use std::sync::Arc;

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::causal_conv1d::backward;
use causeway::backend::gpu::message::{self, FLAG_BYTES};
use causeway::causal_conv1d::{Activation, Backward};
use causeway::tensor::Dims;
use causeway::{DType, Device, Location, TensorMut, TensorRef};
use causeway_sim::Simulator;
use half::{bf16, f16};

/// Memory of so many bytes, each of them drawn, at a multiple of 16.
fn drawn(bytes: usize, state: &mut u32) -> Vec<u128> {
    let mut memory = vec![0_u128; bytes.div_ceil(16)];
    for byte in bytemuck::cast_slice_mut::<_, u8>(&mut memory) {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (*state >> 24) as u8;
    }
    memory
}

/// Strides of a shape whose axes lie in an order, the first outermost, with a gap behind each step of the innermost.
fn strides(shape: &[i64], order: &[usize], gap: i64) -> Dims {
    let mut strides = Dims::new(shape).unwrap().contiguous_strides().to_vec();
    let mut step = gap;
    for &axis in order.iter().rev() {
        strides[axis] = step;
        step *= shape[axis].max(1);
    }
    Dims::new(&strides).unwrap()
}

/// The offsets of a tensor's elements, in their order.
fn offsets(shape: &[i64], strides: &[i64]) -> Vec<usize> {
    let count: i64 = shape.iter().product();
    let offset = |mut element: i64| {
        let mut offset = 0;
        for (size, stride) in shape.iter().zip(strides).rev() {
            offset += element % size * stride;
            element /= size;
        }
        offset as usize
    };
    (0..count).map(offset).collect()
}

fn flags(room: &[u128]) -> Vec<u32> {
    bytemuck::cast_slice::<_, u32>(&room[..FLAG_BYTES as usize / 16]).iter().step_by(8).copied().collect()
}

#[test]
fn what_was_sent_is_received() {
    let mut state = 1;
    let shapes: [&[i64]; 6] = [&[1, 5, 3], &[2, 1, 7], &[3, 700, 3], &[2, 9], &[1, 45_000, 3], &[1, 1, 1]];
    for device in ["sim:32", "sim:64"] {
        let simulator = Simulator::open(device).unwrap();
        // One room for all: messages of other sizes and dtypes come after each other.
        let mut room = drawn(FLAG_BYTES as usize + 45_000 * 3 * 8 + 16, &mut state);
        room[..FLAG_BYTES as usize / 16].fill(0);
        let address = room.as_mut_ptr() as u64;
        for (at, shape) in shapes.into_iter().enumerate() {
            for dtype in [DType::BF16, DType::F32, DType::I32, DType::I64] {
                let size = dtype.size();
                let order: &[usize] = if shape.len() == 3 { &[0, 2, 1] } else { &[1, 0] };
                let natural: Vec<usize> = (0..shape.len()).collect();
                let (from, to) = if at % 2 == 0 { (order, &natural[..]) } else { (&natural[..], order) };
                let (from, to) = (strides(shape, from, 2), strides(shape, to, 1 + at as i64 % 2));
                let (sent, taken) = (offsets(shape, &from), offsets(shape, &to));
                let bytes = |offsets: &[usize]| (offsets.iter().max().unwrap() + 1) * size;
                let source = drawn(bytes(&sent), &mut state);
                let before = drawn(bytes(&taken), &mut state);
                let (mut target, place) = (before.clone(), Location::Cuda(0));
                // SAFETY: `offsets` has shown how far the elements reach.
                let (tensor, result) = unsafe {
                    (
                        TensorRef::from_raw(source.as_ptr().cast(), dtype, shape, &from, place).unwrap(),
                        TensorMut::from_raw(target.as_mut_ptr().cast(), dtype, shape, &to, place).unwrap(),
                    )
                };
                let behind = room[(FLAG_BYTES as usize + sent.len() * size).div_ceil(16)..].to_vec();
                let plan = message::send(&tensor, address).unwrap();
                let blocks = plan.grid[0] as usize;
                // SAFETY: the room has the size of the largest message.
                unsafe { simulator.execute(&plan) }.unwrap();
                let expected = |block| u32::from(block < blocks);
                assert_eq!(flags(&room), (0..64).map(expected).collect::<Vec<_>>(), "{dtype} {shape:?}");
                let end = (FLAG_BYTES as usize + sent.len() * size).div_ceil(16);
                assert!(room[end..] == behind, "{dtype} {shape:?}: the room behind the message");
                // SAFETY: as above.
                unsafe { simulator.execute(&message::receive(&result, address).unwrap()) }.unwrap();
                assert_eq!(flags(&room), [0; 64], "{dtype} {shape:?}");
                let mut expected = before;
                let (source, target) =
                    (bytemuck::cast_slice::<_, u8>(&source), bytemuck::cast_slice::<_, u8>(&target));
                let bytes = bytemuck::cast_slice_mut::<_, u8>(&mut expected);
                for (from, to) in sent.iter().zip(&taken) {
                    bytes[to * size..][..size].copy_from_slice(&source[from * size..][..size]);
                }
                assert!(bytes == target, "{dtype} {shape:?}: another tensor was received");
            }
        }
    }
}

/// A backward call of bf16, f16 or f32 tensors with initial_states, and its plan of their gradient as a message.
struct Halo {
    dtype: DType,
    batch: i64,
    dim: i64,
    seqlen: i64,
    width: i64,
    channel_last: bool,
    bias: bool,
    seq_idx: bool,
    activation: Activation,
}

impl Halo {
    /// dinitial_states as the whole call writes them, and as they are received.
    fn computed(&self, simulator: &Arc<Simulator>, room: &mut [u128], state: &mut u32) -> [Vec<u128>; 2] {
        let Halo { dtype, batch, dim, seqlen, width, .. } = *self;
        let mut numbers = |count: i64| {
            let mut next = || {
                *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (*state >> 16) as f32 / 32768.0 - 1.0
            };
            let mut memory = vec![0_u128; (count as usize * dtype.size()).div_ceil(16)];
            for at in 0..count as usize {
                match dtype {
                    DType::BF16 => bytemuck::cast_slice_mut(&mut memory)[at] = bf16::from_f32(next()),
                    DType::F16 => bytemuck::cast_slice_mut(&mut memory)[at] = f16::from_f32(next()),
                    _ => bytemuck::cast_slice_mut(&mut memory)[at] = next(),
                }
            }
            memory
        };
        let (rows, states, taps) = ([batch, dim, seqlen], [batch, dim, width - 1], [dim, width]);
        let (x, dy) = (numbers(batch * dim * seqlen), numbers(batch * dim * seqlen));
        let (weight, bias, initial) =
            (numbers(dim * width), numbers(dim), numbers(batch * dim * (width - 1)));
        let mut results = [x.clone(), weight.clone(), initial.clone(), initial.clone()];
        // Indices that come back, and padding.
        let draws = numbers(batch * seqlen);
        let indices: Vec<i32> = (0..(batch * seqlen) as usize)
            .map(|at| (bytemuck::cast_slice::<_, u16>(&draws)[at] % 4) as i32 - 1)
            .collect();
        let order: &[usize] = if self.channel_last { &[0, 2, 1] } else { &[0, 1, 2] };
        let row_strides = strides(&rows, order, 1);
        let view = |memory: &[u128], shape: &[i64], strides: &[i64]| {
            // SAFETY: the memory was made for as many elements, and outlives the call.
            unsafe { TensorRef::from_raw(memory.as_ptr().cast(), dtype, shape, strides, Location::Host) }
                .unwrap()
        };
        let dense = |shape: &[i64]| strides(shape, &[0, 1, 2][..shape.len()], 1);
        let [dx, dweight, whole, received] = results.each_mut().map(|memory| memory.as_mut_ptr());
        let place = |memory: *mut u128, shape: &[i64], strides: &[i64]| {
            // SAFETY: as above, and nobody else has it.
            unsafe { TensorMut::from_raw(memory.cast(), dtype, shape, strides, Location::Host) }.unwrap()
        };
        let read = |name: &str| match name {
            "x" => Some(view(&x, &rows, &row_strides)),
            "dy" => Some(view(&dy, &rows, &row_strides)),
            "weight" => Some(view(&weight, &taps, &dense(&taps))),
            "bias" => self.bias.then(|| view(&bias, &[dim], &[1])),
            "initial_states" => Some(view(&initial, &states, &dense(&states))),
            "seq_idx" => self.seq_idx.then(|| TensorRef::new(&indices, &[batch, seqlen]).unwrap()),
            _ => None,
        };
        let written = |name: &str| match name {
            "dx" => Some(place(dx, &rows, &row_strides)),
            "dweight" => Some(place(dweight, &taps, &dense(&taps))),
            "dinitial_states" => Some(place(whole, &states, &dense(&states))),
            _ => None,
        };
        let mut call = Backward::from_named(self.activation, false, None, read, written);
        call.run(&Device::Simulated(Arc::clone(simulator) as Arc<dyn Executor>)).unwrap();
        let sizes = call.validate().unwrap();
        let address = room.as_mut_ptr() as u64;
        let plan = backward::plan_halo(&call, &sizes, None, address, simulator.facts()).unwrap().unwrap();
        let taken = message::receive(&place(received, &states, &dense(&states)), address).unwrap();
        // SAFETY: the room has the size of the largest message.
        unsafe { simulator.execute(&plan).and_then(|()| simulator.execute(&taken)) }.unwrap();
        let [_, _, whole, received] = results;
        [whole, received]
    }
}

#[test]
fn the_gradient_of_a_halo_is_that_of_initial_states() {
    let mut state = 5;
    let mut room = drawn(FLAG_BYTES as usize + (1 << 20), &mut state);
    room[..FLAG_BYTES as usize / 16].fill(0);
    for (device, step) in [("sim:32", 1), ("sim:64", 5)] {
        let simulator = Arc::new(Simulator::open(device).unwrap());
        for number in (0..16).step_by(step) {
            let width = 2 + number % 7;
            let halo = Halo {
                dtype: [DType::BF16, DType::F32, DType::F16][number as usize % 3],
                batch: 1 + number % 2,
                dim: [1, 5, 24, 700][number as usize % 4],
                seqlen: width - 1 + [0, 1, 9, 40][number as usize / 2 % 4],
                width,
                channel_last: number % 5 > 2,
                bias: number % 3 > 0,
                seq_idx: number % 4 > 1,
                activation: if number % 6 > 0 { Activation::Silu } else { Activation::None },
            };
            let [whole, received] = halo.computed(&simulator, &mut room, &mut state);
            assert_eq!(whole, received, "{device}, number {number}");
            assert_eq!(flags(&room), [0; 64]);
        }
    }
}
