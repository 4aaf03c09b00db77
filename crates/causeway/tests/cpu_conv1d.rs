//! The CPU backend's forward and backward against plain f64 loops: random shapes, strides, dtypes and options,
//! at every level that this processor has.

#[path = "cpu/random.rs"]
mod random;
#[path = "cpu/reference.rs"]
mod reference;

use causeway::backend::cpu::{Cpu, Level};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, HostTensor};
use random::{Case, Layout, Random, rounding, tensor};
use reference::{Bounded, Reference, Values};

fn devices() -> Vec<Device> {
    Level::ALL.into_iter().filter_map(|level| Cpu::with_level(level).ok()).map(Device::Cpu).collect()
}

/// The tensors of a case.
struct Tensors {
    x: HostTensor,
    weight: HostTensor,
    bias: Option<HostTensor>,
    initial_states: Option<HostTensor>,
    seq_idx: Option<HostTensor>,
    cu_seqlens: Option<HostTensor>,
    residual: Option<HostTensor>,
    dy: HostTensor,
    dfinal_states: Option<HostTensor>,
    y: HostTensor,
    final_states: HostTensor,
    dx: HostTensor,
    dweight: HostTensor,
    dbias: Option<HostTensor>,
    dinitial_states: Option<HostTensor>,
}

impl Tensors {
    fn new(case: &Case, random: &mut Random) -> Self {
        let Case { batch, dim, seqlen, width, dtype, layout, .. } = *case;
        let (shape, states) = ([batch, dim, seqlen], [case.sequences(), dim, width - 1]);
        let mut make = |dtype, shape: &[usize], scale| tensor(random, dtype, shape, layout, scale);
        let (x, dy) = (make(dtype, &shape, 1.0), make(dtype, &shape, 1.0));
        let weight = make(case.weight_dtype, &[dim, width], 1.0 / (width as f64).sqrt());
        Tensors {
            x,
            dy,
            weight,
            bias: case.bias.then(|| make(case.weight_dtype, &[dim], 0.5)),
            initial_states: case.initial_states.then(|| make(dtype, &states, 1.0)),
            seq_idx: case
                .seq_idx
                .as_ref()
                .map(|index| HostTensor::from_slice(index, &[batch as i64, seqlen as i64]).unwrap()),
            cu_seqlens: case.cu_seqlens.as_ref().map(|bounds| {
                let dtype = if bounds.len() % 2 == 0 { DType::I64 } else { DType::I32 };
                HostTensor::from_fn(dtype, &[bounds.len() as i64], |i| bounds[i] as f64).unwrap()
            }),
            residual: case.residual.then(|| make(dtype, &shape, 1.0)),
            dfinal_states: case.dfinal_states.then(|| make(dtype, &states, 1.0)),
            y: make(dtype, &shape, 1.0),
            final_states: make(dtype, &states, 1.0),
            dx: make(dtype, &shape, 1.0),
            dweight: make(case.dweight_dtype, &[dim, width], 1.0),
            dbias: case.bias.then(|| make(case.dweight_dtype, &[dim], 1.0)),
            dinitial_states: case.initial_states.then(|| make(dtype, &states, 1.0)),
        }
    }

    fn values(&self) -> Values {
        let optional =
            |tensor: &Option<HostTensor>| tensor.as_ref().map(HostTensor::to_f64).unwrap_or_default();
        Values {
            x: self.x.to_f64(),
            weight: self.weight.to_f64(),
            bias: optional(&self.bias),
            initial_states: optional(&self.initial_states),
            dfinal_states: optional(&self.dfinal_states),
            residual: optional(&self.residual),
            dy: self.dy.to_f64(),
        }
    }

    /// Makes every result a NaN, so that what is not written shows.
    fn poison(&mut self) {
        let results = [&mut self.y, &mut self.final_states, &mut self.dx, &mut self.dweight];
        for tensor in results.into_iter().chain(self.dbias.as_mut()).chain(self.dinitial_states.as_mut()) {
            tensor.fill_bytes(0xff);
        }
    }

    fn run(&mut self, case: &Case, device: &Device) {
        self.poison();
        Forward {
            x: self.x.view(),
            weight: self.weight.view(),
            bias: self.bias.as_ref().map(HostTensor::view),
            initial_states: self.initial_states.as_ref().map(HostTensor::view),
            seq_idx: self.seq_idx.as_ref().map(HostTensor::view),
            cu_seqlens: self.cu_seqlens.as_ref().map(HostTensor::view),
            residual: self.residual.as_ref().map(HostTensor::view),
            b: None,
            c: None,
            activation: case.activation,
            round_products: false,
            norm: None,
            y: self.y.view_mut(),
            final_states: Some(self.final_states.view_mut()),
        }
        .run(device)
        .unwrap();
        Backward {
            x: self.x.view(),
            weight: self.weight.view(),
            bias: self.bias.as_ref().map(HostTensor::view),
            dy: self.dy.view(),
            initial_states: self.initial_states.as_ref().map(HostTensor::view),
            seq_idx: self.seq_idx.as_ref().map(HostTensor::view),
            cu_seqlens: self.cu_seqlens.as_ref().map(HostTensor::view),
            dfinal_states: self.dfinal_states.as_ref().map(HostTensor::view),
            b: None,
            c: None,
            activation: case.activation,
            round_products: false,
            norm: None,
            dx: self.dx.view_mut(),
            dweight: self.dweight.view_mut(),
            dbias: self.dbias.as_mut().map(HostTensor::view_mut),
            dinitial_states: self.dinitial_states.as_mut().map(HostTensor::view_mut),
            db: None,
            dc: None,
        }
        .run(device)
        .unwrap();
    }

    fn results(&self) -> Vec<&HostTensor> {
        let results = [&self.y, &self.final_states, &self.dx, &self.dweight];
        results.into_iter().chain(&self.dbias).chain(&self.dinitial_states).collect()
    }

    /// All bytes of all results, gaps between strided elements included.
    fn bytes(&self) -> Vec<u8> {
        self.results().into_iter().flat_map(HostTensor::bytes).copied().collect()
    }
}

fn check(name: &str, found: &HostTensor, expected: &Bounded, context: &str) {
    let (relative, smallest) = rounding(found.dtype());
    for (i, value) in found.to_f64().into_iter().enumerate() {
        let (exact, error) = (expected.value[i], expected.error[i]);
        let bound = error + relative * (exact.abs() + error) + smallest;
        // A NaN fails too.
        let good = (value - exact).abs() <= bound;
        assert!(good, "{name}[{i}] is {value}, expected {exact} ± {bound}\n{context}");
    }
}

fn verify(case: &Case, seed: u64) {
    let mut tensors = Tensors::new(case, &mut Random(seed));
    let values = tensors.values();
    let reference = Reference::new(case, &values);
    let (y, final_states, gradients) = (reference.forward(), reference.final_states(), reference.backward());
    for device in devices() {
        let context = format!("on {device}, seed {seed}, {case:?}");
        tensors.run(case, &device);
        check("y", &tensors.y, &y, &context);
        assert_eq!(tensors.final_states.to_f64(), final_states, "final_states {context}");
        check("dx", &tensors.dx, &gradients.dx, &context);
        check("dweight", &tensors.dweight, &gradients.dweight, &context);
        if let Some(dbias) = &tensors.dbias {
            check("dbias", dbias, &gradients.dbias, &context);
        }
        if let Some(states) = &tensors.dinitial_states {
            check("dinitial_states", states, &gradients.dinitial_states, &context);
        }
    }
}

#[test]
fn random_cases_agree_with_plain_loops() {
    for seed in 0..400 {
        let case = Case::random(&mut Random(seed));
        verify(&case, seed);
    }
}

#[test]
fn every_width_up_to_16_and_the_widest() {
    let mut random = Random(1);
    for width in (1..=16).chain([31, 32, 33, 128, 255, 256]) {
        for layout in [Layout::First, Layout::Last] {
            let mut case = Case::plain(2, 37, 70, width);
            case.layout = layout;
            case.initial_states = true;
            case.dfinal_states = true;
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
                verify(&case.clone().with_dtype(dtype, &mut random), random.next());
            }
        }
    }
}

#[test]
fn sizes_around_vectors_and_tiles() {
    let mut random = Random(2);
    for seqlen in [1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1027] {
        for dim in [1, 15, 16, 17, 31, 33, 64, 65] {
            let mut case = Case::plain(1, dim, seqlen, 4);
            case.layout = random.pick(&[Layout::First, Layout::Last]);
            let dtype = random.pick(&[DType::F32, DType::F16, DType::BF16]);
            verify(&case.with_dtype(dtype, &mut random), random.next());
        }
    }
}

/// Of either layout that is taken as it lies in memory, blocks that end with whole vectors and blocks that do not.
#[test]
fn few_channels_and_short_rows() {
    let mut random = Random(7);
    for many in [1, 3, 70, 500] {
        for few in [2, 3, 8, 17, 24, 31, 33, 46, 47, 48] {
            for (layout, dim, seqlen) in [(Layout::First, many, few), (Layout::Last, few, many)] {
                let mut case = Case::plain(3, dim, seqlen, 1 + random.below(8));
                case.layout = layout;
                case.residual = random.chance(2);
                let dtype = random.pick(&[DType::F32, DType::F16, DType::BF16, DType::F64]);
                verify(&case.with_dtype(dtype, &mut random), random.next());
            }
        }
    }
}

#[test]
fn several_segments_of_a_long_row() {
    let mut random = Random(3);
    for layout in [Layout::First, Layout::Last, Layout::Any] {
        for dtype in [DType::F32, DType::BF16] {
            let mut case = Case::plain(1, 3, 9000, 4).with_dtype(dtype, &mut random);
            case.layout = layout;
            verify(&case, random.next());
            case.initial_states = true;
            case.dfinal_states = true;
            verify(&case, random.next());
            case.cu_seqlens = Some(vec![0, 5, 5, 4097, 8999, 9000]);
            verify(&case, random.next());
        }
    }
}

#[test]
fn empty_tensors_give_zero_gradients() {
    for (batch, dim, seqlen) in [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)] {
        let mut case = Case::plain(batch, dim, seqlen, 4);
        case.initial_states = true;
        case.dfinal_states = true;
        verify(&case, 4);
    }
}

#[test]
fn an_input_may_be_expanded() {
    // Stride 0: one row for every channel, one value for every position.
    let x = HostTensor::from_fn(DType::F32, &[40], |i| i as f64 / 8.0).unwrap();
    let x = x.restrided(0, &[2, 6, 20], &[0, 0, 1]).unwrap();
    let weight = HostTensor::from_fn(DType::F32, &[4], |i| 1.0 / (i + 1) as f64).unwrap();
    let weight = weight.restrided(0, &[6, 4], &[0, 1]).unwrap();
    for device in devices() {
        let mut y = HostTensor::zeros(DType::F32, &[2, 6, 20]).unwrap();
        Forward {
            x: x.view(),
            weight: weight.view(),
            bias: None,
            initial_states: None,
            seq_idx: None,
            cu_seqlens: None,
            residual: None,
            b: None,
            c: None,
            activation: Activation::None,
            round_products: false,
            norm: None,
            y: y.view_mut(),
            final_states: None,
        }
        .run(&device)
        .unwrap();
        let y = y.to_f64();
        assert!(y.chunks(20).all(|row| row == &y[..20]));
        assert_eq!(y[0], 0.0);
        assert!((y[1] - 0.125 / 4.0).abs() < 1e-7);
    }
}

/// Runs a case in a pool of its own and returns the bytes of all results.
fn bytes_with_threads(case: &Case, threads: usize) -> Vec<u8> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut tensors = Tensors::new(case, &mut Random(5));
    pool.install(|| tensors.run(case, &Device::cpu()));
    tensors.bytes()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut random = Random(6);
    let shapes = [(3, 40, 1000), (1, 3, 50_000), (40, 16, 200), (2, 1000, 60), (300, 500, 3)];
    for (batch, dim, seqlen) in shapes {
        for layout in [Layout::First, Layout::Last, Layout::Any] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let mut case = Case::plain(batch, dim, seqlen, 4).with_dtype(dtype, &mut random);
                case.layout = layout;
                case.weight_dtype = DType::F32;
                case.dweight_dtype = DType::F32;
                let once = bytes_with_threads(&case, 1);
                for threads in [1, 2, 3] {
                    assert!(once == bytes_with_threads(&case, threads), "{threads} threads, {case:?}");
                }
            }
        }
    }
}

/// An infinite x counts for the taps that see it, whatever is held back or masked at the ends of a row: x of the second of three
/// channels is infinite at a position, dy is 1, and there is no activation, so that dweight is infinite or a count.
#[test]
fn an_infinite_x_at_the_end_of_a_row_counts_where_it_is_seen() {
    const WIDTH: i64 = 4;
    const DIM: i64 = 3;
    // Rows of whole pairs of vectors, from one to several groups, and rows that end within a vector.
    for seqlen in [32, 64, 96, 256, 1, 2, 3, 5, 15, 33, 70, 259] {
        for position in
            [0, 1, seqlen - 3, seqlen - 2, seqlen - 1].into_iter().filter(|at| (0..seqlen).contains(at))
        {
            let layouts = [(DType::F32, [0, 1, 2]), (DType::BF16, [0, 1, 2]), (DType::BF16, [0, 2, 1])];
            for (dtype, order, device) in layouts
                .into_iter()
                .flat_map(|(dtype, order)| devices().into_iter().map(move |device| (dtype, order, device)))
            {
                let shape = order.map(|axis| [1, DIM, seqlen][axis]);
                let dy = HostTensor::from_fn(dtype, &shape, |_| 1.0).unwrap().permuted(&order);
                let mut x = dy.clone();
                x.assign(|i| if i as i64 == seqlen + position { f64::INFINITY } else { 1.0 });
                let weight = HostTensor::zeros(DType::F32, &[DIM, WIDTH]).unwrap();
                let (mut dx, mut dweight) = (dy.clone(), weight.clone());
                Backward {
                    x: x.view(),
                    weight: weight.view(),
                    bias: None,
                    dy: dy.view(),
                    initial_states: None,
                    seq_idx: None,
                    cu_seqlens: None,
                    dfinal_states: None,
                    b: None,
                    c: None,
                    activation: Activation::None,
                    round_products: false,
                    norm: None,
                    dx: dx.view_mut(),
                    dweight: dweight.view_mut(),
                    dbias: None,
                    dinitial_states: None,
                    db: None,
                    dc: None,
                }
                .run(&device)
                .unwrap();
                let expected: Vec<f64> = (0..DIM * WIDTH)
                    .map(|i| {
                        let seen = (seqlen - (WIDTH - 1 - i % WIDTH)).max(0);
                        if i / WIDTH == 1 && position < seen { f64::INFINITY } else { seen as f64 }
                    })
                    .collect();
                let context =
                    format!("{dtype} {order:?}, {seqlen} positions, infinite at {position}, on {device}");
                assert_eq!(dweight.to_f64(), expected, "{context}");
                assert!(dx.to_f64().iter().all(|&dx| dx == 0.0), "{context}");
            }
        }
    }
}
