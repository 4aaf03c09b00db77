//! The CPU backend's decode update and varlen_states against plain loops.

#[path = "cpu/random.rs"]
#[allow(dead_code)]
mod random;

use causeway::backend::cpu::{Cpu, Level};
use causeway::causal_conv1d::{Activation, Update, VarlenStates};
use causeway::{DType, Device, HostTensor};
use random::{Layout, Random, rounding, tensor};

fn devices() -> Vec<Device> {
    Level::ALL.into_iter().filter_map(|level| Cpu::with_level(level).ok()).map(Device::Cpu).collect()
}

/// One update, without its tensors.
#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    dim: usize,
    /// `None` for an x of two axes.
    seqlen: Option<usize>,
    width: usize,
    rows: usize,
    state_len: usize,
    dtype: DType,
    weight_dtype: DType,
    activation: Activation,
    bias: bool,
    cache_seqlens: Option<Vec<i32>>,
    indices: Option<Vec<i32>>,
    layout: Layout,
}

impl Case {
    fn random(random: &mut Random) -> Self {
        let batch = random.below(5);
        let width = if random.chance(4) { 1 + random.below(40) } else { 1 + random.below(5) };
        let dtype = random.pick(&[DType::F32, DType::F16, DType::BF16, DType::F64]);
        let indexed = random.chance(2);
        let rows = if indexed { batch + random.below(4) } else { batch };
        // Every row at most once, some entries padded.
        let mut order: Vec<i32> = (0..rows as i32).collect();
        for i in (1..rows).rev() {
            order.swap(i, random.below(i + 1));
        }
        let indices =
            order[..batch].iter().map(|&row| if random.chance(4) { -1 - row } else { row }).collect();
        Case {
            batch,
            dim: if random.chance(2) { random.below(10) } else { random.below(200) },
            seqlen: (!random.chance(3)).then(|| random.below(40)),
            width,
            rows,
            state_len: width - 1 + if random.chance(2) { 0 } else { random.below(9) },
            dtype,
            weight_dtype: match dtype {
                DType::F64 => DType::F64,
                _ => random.pick(&[DType::F32, DType::F16, DType::BF16]),
            },
            activation: random.pick(&[Activation::None, Activation::Silu]),
            bias: random.chance(2),
            cache_seqlens: random.chance(2).then(|| (0..batch).map(|_| random.below(60) as i32).collect()),
            indices: indexed.then_some(indices),
            layout: random.pick(&[Layout::First, Layout::Last, Layout::Any]),
        }
    }
}

fn verify(case: &Case, seed: u64) {
    let mut random = Random(seed);
    let Case { batch, dim, width, rows, state_len, dtype, layout, .. } = *case;
    let seqlen = case.seqlen.unwrap_or(1);
    let mut make = |dtype, shape: &[usize]| tensor(&mut random, dtype, shape, layout, 1.0);
    let shape = [&[batch, dim][..], case.seqlen.as_slice()].concat();
    let x = make(dtype, &shape);
    let weight = make(case.weight_dtype, &[dim, width]);
    let bias = case.bias.then(|| make(case.weight_dtype, &[dim]));
    let conv_state = make(dtype, &[rows, dim, state_len]);
    let mut y = make(dtype, &shape);
    let vector = |values: &Vec<i32>| HostTensor::from_slice(values, &[batch as i64]).unwrap();
    let (cache_seqlens, indices) =
        (case.cache_seqlens.as_ref().map(vector), case.indices.as_ref().map(vector));

    // The same with plain loops.
    let (xs, weights, mut state) = (x.to_f64(), weight.to_f64(), conv_state.to_f64());
    let biases = bias.as_ref().map_or(vec![0.0; dim], HostTensor::to_f64);
    let (mut expected, mut magnitude) = (vec![0.0; xs.len()], vec![0.0; xs.len()]);
    for b in 0..batch {
        let row = case.indices.as_ref().map_or(b as i32, |indices| indices[b]);
        if row < 0 {
            continue;
        }
        for c in 0..dim {
            let state = &mut state[(row as usize * dim + c) * state_len..][..state_len];
            let seen = case.cache_seqlens.as_ref().map(|lengths| lengths[b] as i64);
            let mut line: Vec<f64> = (0..width as i64 - 1)
                .map(|i| match seen {
                    Some(seen) => (seen + i - (width as i64 - 1)).rem_euclid(state_len as i64) as usize,
                    None => state_len - (width - 1) + i as usize,
                })
                .map(|column| state[column])
                .collect();
            let new = &xs[(b * dim + c) * seqlen..][..seqlen];
            line.extend(new);
            for i in 0..seqlen {
                let terms = (0..width).map(|w| weights[c * width + w] * line[i + w]);
                let pre: f64 = terms.clone().sum::<f64>() + biases[c];
                let at = (b * dim + c) * seqlen + i;
                magnitude[at] = terms.map(f64::abs).sum::<f64>() + biases[c].abs();
                expected[at] = match case.activation {
                    Activation::None => pre,
                    Activation::Silu => pre / (1.0 + (-pre).exp()),
                };
            }
            match seen {
                Some(seen) if state_len > 0 => {
                    for (i, &value) in new.iter().enumerate() {
                        state[(seen as usize + i) % state_len] = value;
                    }
                }
                Some(_) => {}
                None => {
                    let all: Vec<f64> = state.iter().chain(new).copied().collect();
                    state.copy_from_slice(&all[seqlen..]);
                }
            }
        }
    }

    for device in devices() {
        let context = format!("on {device}, seed {seed}, {case:?}");
        y.fill_bytes(0xff);
        let mut changed = conv_state.clone();
        Update {
            x: x.view(),
            conv_state: changed.view_mut(),
            weight: weight.view(),
            bias: bias.as_ref().map(HostTensor::view),
            cache_seqlens: cache_seqlens.as_ref().map(HostTensor::view),
            conv_state_indices: indices.as_ref().map(HostTensor::view),
            b: None,
            c: None,
            activation: case.activation,
            round_products: false,
            norm: None,
            y: y.view_mut(),
        }
        .run(&device)
        .unwrap();
        assert_eq!(changed.to_f64(), state, "conv_state {context}");
        let (relative, smallest) = rounding(dtype);
        let epsilon = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        for (i, value) in y.to_f64().into_iter().enumerate() {
            let sums = (width as f64 + 6.0) * epsilon * magnitude[i];
            // Without f32's precision, SiLU may be off by an eighth of half a unit in the last place.
            let bound = sums + relative * 1.25 * expected[i].abs() + smallest;
            let good = (value - expected[i]).abs() <= bound;
            assert!(good, "y[{i}] is {value}, expected {} ± {bound} {context}", expected[i]);
        }
    }
}

#[test]
fn random_updates_agree_with_plain_loops() {
    for seed in 0..600 {
        verify(&Case::random(&mut Random(seed)), seed);
    }
}

#[test]
fn a_decode_step_of_a_model() {
    let mut random = Random(1);
    for dtype in [DType::F32, DType::BF16] {
        let mut case = Case::random(&mut random);
        case = Case { batch: 40, dim: 1030, seqlen: None, width: 4, rows: 40, state_len: 3, ..case };
        case = Case { dtype, weight_dtype: dtype, cache_seqlens: None, indices: None, ..case };
        for layout in [Layout::First, Layout::Last] {
            verify(&Case { layout, ..case.clone() }, 7);
        }
    }
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let mut random = Random(8);
    let x = tensor(&mut random, DType::F32, &[64, 1000], Layout::First, 1.0);
    let weight = tensor(&mut random, DType::F32, &[1000, 4], Layout::First, 1.0);
    let conv_state = tensor(&mut random, DType::F32, &[64, 1000, 3], Layout::First, 1.0);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (mut state, mut y) = (conv_state.clone(), HostTensor::zeros(DType::F32, &[64, 1000]).unwrap());
        let mut update = Update {
            x: x.view(),
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
        };
        pool.install(|| update.run(&Device::cpu())).unwrap();
        (state.to_f64(), y.to_f64())
    };
    let once = run(1);
    assert!(once == run(2) && once == run(3));
}

#[test]
fn states_of_a_packed_batch() {
    let mut random = Random(9);
    for seed in 0..200 {
        let (total, dim, state_len) = (random.below(60), random.below(30), random.below(12));
        let mut bounds: Vec<usize> = (0..random.below(5)).map(|_| random.below(total + 1)).collect();
        bounds.extend([0, total]);
        bounds.sort_unstable();
        let dtype = random.pick(&[DType::F32, DType::F16, DType::BF16, DType::F64]);
        let layout = random.pick(&[Layout::First, Layout::Any]);
        let x = tensor(&mut random, dtype, &[total, dim], layout, 1.0);
        let index = random.pick(&[DType::I32, DType::I64]);
        let cu_seqlens = HostTensor::from_fn(index, &[bounds.len() as i64], |i| bounds[i] as f64).unwrap();
        let mut states = tensor(&mut random, dtype, &[bounds.len() - 1, dim, state_len], layout, 1.0);
        states.fill_bytes(0xff);
        VarlenStates { x: x.view(), cu_seqlens: cu_seqlens.view(), states: states.view_mut() }
            .run(&Device::cpu())
            .unwrap();
        let xs = x.to_f64();
        let mut expected = Vec::new();
        for pair in bounds.windows(2) {
            for c in 0..dim {
                for column in 0..state_len {
                    let back = state_len - column;
                    let held = pair[0] + back <= pair[1];
                    expected.push(if held { xs[(pair[1] - back) * dim + c] } else { 0.0 });
                }
            }
        }
        assert_eq!(states.to_f64(), expected, "seed {seed}, {bounds:?}, dim {dim}, state_len {state_len}");
    }
}
