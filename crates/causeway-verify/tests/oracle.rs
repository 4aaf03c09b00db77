//! The oracle against things that know nothing of it: finite differences, hand-set numbers, slicing, plain f32 sums.

use causeway::causal_conv1d::{Activation, Backward, Forward, HeadNorm};
use causeway::operation::Operation;
use causeway::{DType, HostTensor};
use causeway_verify::oracle::causal_conv1d::{Inputs, Truth, backward, forward};
use proptest::prelude::*;

/// Inputs that own their memory.
#[derive(Clone)]
struct Call {
    x: HostTensor,
    weight: HostTensor,
    bias: Option<HostTensor>,
    initial_states: Option<HostTensor>,
    seq_idx: Option<HostTensor>,
    cu_seqlens: Option<HostTensor>,
    activation: Activation,
    norm: Option<HeadNorm>,
    dy: HostTensor,
    dfinal_states: HostTensor,
}

impl Call {
    fn inputs<O: Operation>(&self) -> Inputs<'_> {
        let given = [
            ("x", Some(&self.x)),
            ("weight", Some(&self.weight)),
            ("bias", self.bias.as_ref()),
            ("initial_states", self.initial_states.as_ref()),
            ("seq_idx", self.seq_idx.as_ref()),
            ("cu_seqlens", self.cu_seqlens.as_ref()),
            ("dy", Some(&self.dy)),
            ("dfinal_states", Some(&self.dfinal_states)),
        ];
        let given: Vec<_> = given.into_iter().filter_map(|(name, tensor)| Some((name, tensor?))).collect();
        inputs::<O>(self.activation, &given).normalised(self.norm)
    }

    fn forward(&self) -> Truth {
        forward(&self.inputs::<Forward<'_>>())
    }

    fn backward(&self) -> Truth {
        backward(&self.inputs::<Backward<'_>>(), DType::F64)
    }

    /// Σ dy·y + Σ dfinal_states·final_states, whose gradients backward gives.
    fn loss(&self) -> f64 {
        let truth = self.forward();
        dot(values(&truth, "y"), &self.dy.to_f64())
            + dot(values(&truth, "final_states"), &self.dfinal_states.to_f64())
    }
}

fn inputs<'a, O: Operation>(activation: Activation, given: &[(&str, &'a HostTensor)]) -> Inputs<'a> {
    let find = |name: &str| given.iter().find(|(known, _)| *known == name);
    Inputs::of::<O>(activation, |name| find(name).map(|(_, tensor)| tensor.view()))
}

fn values<'a>(truth: &'a Truth, name: &str) -> &'a [f64] {
    &truth.of(name).values
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A wave with no symmetry, so that exchanged axes or signs show.
fn wave(shape: &[i64], phase: f64) -> HostTensor {
    HostTensor::from_fn(DType::F64, shape, |i| (1.7 * i as f64 + phase).sin() * 1.5).unwrap()
}

fn integers(dtype: DType, shape: &[i64], values: &[i64]) -> HostTensor {
    HostTensor::from_fn(dtype, shape, |i| values[i] as f64).unwrap()
}

fn call(shape: [i64; 3], width: i64, sequences: i64, activation: Activation) -> Call {
    let states = [sequences, shape[1], width - 1];
    Call {
        x: wave(&shape, 0.1),
        weight: wave(&[shape[1], width], 0.2),
        bias: Some(wave(&[shape[1]], 0.3)),
        initial_states: Some(wave(&states, 0.4)),
        seq_idx: None,
        cu_seqlens: None,
        activation,
        norm: None,
        dy: wave(&shape, 0.5),
        dfinal_states: wave(&states, 0.6),
    }
}

/// Every gradient element against (loss(v + h) - loss(v - h)) / 2h.
fn check_gradients(call: &Call) {
    let truth = call.backward();
    type Pick = fn(&mut Call) -> &mut HostTensor;
    let gradients: [(&str, &[f64], Pick); 4] = [
        ("dx", values(&truth, "dx"), |call| &mut call.x),
        ("dweight", values(&truth, "dweight"), |call| &mut call.weight),
        ("dbias", values(&truth, "dbias"), |call| call.bias.as_mut().unwrap()),
        ("dinitial_states", values(&truth, "dinitial_states"), |call| call.initial_states.as_mut().unwrap()),
    ];
    for (name, gradient, pick) in gradients {
        let values = pick(&mut call.clone()).to_f64();
        assert_eq!(values.len(), gradient.len());
        for (i, &expected) in gradient.iter().enumerate() {
            let loss_at = |step: f64| {
                let mut moved = call.clone();
                pick(&mut moved).assign(|j| values[j] + if i == j { step } else { 0.0 });
                moved.loss()
            };
            let h = 1e-5;
            let difference = (loss_at(h) - loss_at(-h)) / (2.0 * h);
            let error = (difference - expected).abs();
            assert!(error < 2e-9 * (1.0 + expected.abs()), "{name}[{i}]: {expected}, but {difference}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for activation in [Activation::None, Activation::Silu] {
        for width in [1, 2, 4, 6] {
            check_gradients(&call([2, 2, 5], width, 2, activation));
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences_with_a_norm() {
    for (activation, head_dim) in [(Activation::None, 2), (Activation::Silu, 3), (Activation::Silu, 6)] {
        let mut call = call([2, 6, 5], 4, 2, activation);
        call.norm = Some(HeadNorm { head_dim, eps: 0.25, scale: -1.5 });
        check_gradients(&call);
        call.seq_idx = Some(integers(DType::I32, &[2, 5], &[0, 0, 1, -1, 1, /* */ -1, 3, 3, 0, 3]));
        check_gradients(&call);
    }
}

#[test]
fn gradients_agree_with_finite_differences_where_states_are_longer_than_the_row() {
    check_gradients(&call([1, 2, 2], 6, 1, Activation::Silu));
    check_gradients(&call([2, 1, 0], 4, 2, Activation::Silu));
}

#[test]
fn gradients_agree_with_finite_differences_with_seq_idx() {
    let mut call = call([2, 2, 7], 4, 2, Activation::Silu);
    let indices = [0, 0, 1, 1, -1, 2, 2, /* */ -1, 3, 3, 0, 3, 3, -2];
    call.seq_idx = Some(integers(DType::I32, &[2, 7], &indices));
    check_gradients(&call);
}

#[test]
fn gradients_agree_with_finite_differences_with_cu_seqlens() {
    let mut call = call([1, 2, 9], 4, 4, Activation::Silu);
    call.cu_seqlens = Some(integers(DType::I64, &[5], &[0, 5, 5, 6, 9]));
    check_gradients(&call);
    call.seq_idx = Some(integers(DType::I32, &[1, 9], &[0, 0, 0, -1, 0, 1, 1, 2, 1]));
    check_gradients(&call);
}

#[test]
fn forward_on_numbers_that_can_be_added_by_hand() {
    let x = HostTensor::from_slice(&[1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0], &[1, 2, 3]).unwrap();
    let weight = HostTensor::from_slice(&[0.5f32, 2.0, 1.0, -1.0], &[2, 2]).unwrap();
    let bias = HostTensor::from_slice(&[0.25f32, 1.0], &[2]).unwrap();
    let states = HostTensor::from_slice(&[4.0f32, -8.0], &[1, 2, 1]).unwrap();
    let mut given = vec![("x", &x), ("weight", &weight)];
    let truth = |activation, given: &[_]| forward(&inputs::<Forward<'_>>(activation, given));
    let plain = truth(Activation::None, &given);
    // 2·1, 0.5·1 + 2·2, 0.5·2 + 2·3; -10, 10 - 20, 20 - 30.
    assert_eq!(values(&plain, "y"), [2.0, 4.5, 7.0, -10.0, -10.0, -10.0]);
    assert_eq!(values(&plain, "final_states"), [3.0, 30.0]);

    given.extend([("bias", &bias), ("initial_states", &states)]);
    let silu = truth(Activation::Silu, &given);
    // silu(4.25) and silu(-17) = -17 / (1 + e^17).
    assert!((values(&silu, "y")[0] - 4.25 / (1.0 + (-4.25f64).exp())).abs() < 1e-15);
    assert!((values(&silu, "y")[3] + 17.0 / (1.0 + 17f64.exp())).abs() < 1e-20);

    given.push(("residual", &x));
    let added = truth(Activation::None, &given);
    assert_eq!(values(&added, "y"), [5.25, 6.75, 10.25, -7.0, 11.0, 21.0]);
}

#[test]
fn padding_gives_and_takes_nothing_even_where_it_holds_nan() {
    let mut call = call([1, 1, 6], 3, 1, Activation::Silu);
    let indices = [0, 0, -1, -1, 0, 0];
    call.seq_idx = Some(integers(DType::I32, &[1, 6], &indices));
    let at_padding = |value: f64| {
        let mut call = call.clone();
        for tensor in [&mut call.x, &mut call.dy] {
            let values = tensor.to_f64();
            tensor.assign(|i| if indices[i] < 0 { value } else { values[i] });
        }
        let gradients = call.backward();
        (call.forward(), gradients)
    };
    let (clean, garbage) = (at_padding(0.0), at_padding(f64::NAN));
    assert_eq!(clean, garbage);
    for values in [values(&clean.0, "y"), values(&clean.1, "dx")] {
        assert!(values.iter().all(|value| value.is_finite()));
        assert_eq!(values[2..4], [0.0, 0.0]);
    }
}

#[test]
fn f64_data_is_computed_in_twice_its_precision() {
    // 1 + 2⁻⁶⁰ - 1: f64 alone gives 0.
    let x = HostTensor::from_slice(&[-1.0, 0.5f64.powi(60), 1.0], &[1, 1, 3]).unwrap();
    let weight = HostTensor::from_slice(&[1.0f64, 1.0, 1.0], &[1, 3]).unwrap();
    let truth = forward(&inputs::<Forward<'_>>(Activation::None, &[("x", &x), ("weight", &weight)]));
    assert_eq!(values(&truth, "y")[2], 0.5f64.powi(60));
}

/// Positions `from..to` of a `(batch, dim, seqlen)` tensor.
fn slice(tensor: &HostTensor, from: i64, to: i64) -> HostTensor {
    let shape = tensor.shape();
    let offset = tensor.offset() + from * tensor.strides()[2];
    let strides = tensor.strides().to_vec();
    tensor.clone().restrided(offset, &[shape[0], shape[1], to - from], &strides).unwrap()
}

#[test]
fn packed_sequences_are_separate_rows() {
    let boundaries = [0i64, 5, 5, 6, 12];
    let mut packed = call([1, 3, 12], 4, 4, Activation::Silu);
    packed.cu_seqlens = Some(integers(DType::I32, &[5], &boundaries));
    let truth = packed.forward();
    let gradients = packed.backward();
    let mut dweight = vec![0.0; values(&gradients, "dweight").len()];
    for (i, pair) in boundaries.windows(2).enumerate() {
        let row = |tensor: &HostTensor| {
            let (offset, strides) = (i as i64 * tensor.strides()[0], tensor.strides().to_vec());
            tensor.clone().restrided(offset, &[1, 3, 3], &strides).unwrap()
        };
        let mut alone = packed.clone();
        alone.cu_seqlens = None;
        alone.x = slice(&packed.x, pair[0], pair[1]);
        alone.dy = slice(&packed.dy, pair[0], pair[1]);
        alone.initial_states = packed.initial_states.as_ref().map(row);
        alone.dfinal_states = row(&packed.dfinal_states);
        let one = alone.forward();
        let one_gradients = alone.backward();
        let (from, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
        for channel in 0..3 {
            let whole = channel * 12 + from..channel * 12 + from + length;
            let part = channel * length..(channel + 1) * length;
            assert_eq!(values(&truth, "y")[whole.clone()], values(&one, "y")[part.clone()]);
            assert_eq!(values(&gradients, "dx")[whole], values(&one_gradients, "dx")[part]);
        }
        let states = i * 9..(i + 1) * 9;
        assert_eq!(values(&truth, "final_states")[states.clone()], *values(&one, "final_states"));
        assert_eq!(values(&gradients, "dinitial_states")[states], *values(&one_gradients, "dinitial_states"));
        for (sum, part) in dweight.iter_mut().zip(values(&one_gradients, "dweight")) {
            *sum += part;
        }
    }
    for (sum, whole) in dweight.iter().zip(values(&gradients, "dweight")) {
        assert!((sum - whole).abs() < 1e-14 * (1.0 + whole.abs()));
    }
}

/// Sums in f32, in one chain, in 16 lanes, and pairwise: the orders that backends use.
fn f32_sums(terms: &[(f32, f32)]) -> [f32; 3] {
    let chain = terms.iter().fold(0.0f32, |sum, &(a, b)| a.mul_add(b, sum));
    let lanes = (0..16)
        .map(|lane| terms.iter().skip(lane).step_by(16).fold(0.0f32, |sum, &(a, b)| sum + a * b))
        .sum();
    fn pairwise(terms: &[(f32, f32)]) -> f32 {
        match terms {
            [] => 0.0,
            [(a, b)] => a * b,
            _ => {
                let (left, right) = terms.split_at(terms.len() / 2);
                pairwise(left) + pairwise(right)
            }
        }
    }
    [chain, lanes, pairwise(terms)]
}

/// dweight of a one-tap convolution is a plain sum, so a plain f32 sum has to lie within its bound, and one with a
/// term left out must not.
fn check_sum_bound(dy: &[f32], x: &[f32]) -> Result<(), TestCaseError> {
    let shape = [1, 1, x.len() as i64];
    let (x_tensor, dy_tensor) =
        (HostTensor::from_slice(x, &shape).unwrap(), HostTensor::from_slice(dy, &shape).unwrap());
    let weight = HostTensor::from_slice(&[1.0f32], &[1, 1]).unwrap();
    let given = [("x", &x_tensor), ("weight", &weight), ("dy", &dy_tensor)];
    let truth = backward(&inputs::<Backward<'_>>(Activation::None, &given), DType::F32);
    let truth = truth.of("dweight");
    let mut terms: Vec<(f32, f32)> = dy.iter().copied().zip(x.iter().copied()).collect();
    for sum in f32_sums(&terms) {
        let result = truth.compare(&HostTensor::from_slice(&[sum], &[1, 1]).unwrap().view(), None);
        prop_assert!(result.passed(), "{} terms: {:?}", x.len(), result.worst);
    }
    // The largest term; small ones may hide in the rounding of the others.
    terms.sort_by(|a, b| (a.0 * a.1).abs().total_cmp(&(b.0 * b.1).abs()));
    terms.pop();
    for sum in f32_sums(&terms) {
        let result = truth.compare(&HostTensor::from_slice(&[sum], &[1, 1]).unwrap().view(), None);
        prop_assert!(!result.passed(), "a missing term among {} went unseen", x.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn plain_f32_sums_lie_within_the_bound_and_a_missing_term_does_not(
        terms in prop::collection::vec((-1.0f32..1.0, 0.5f32..1.0), 1..3000),
    ) {
        let (dy, x): (Vec<f32>, Vec<f32>) = terms.into_iter().unzip();
        check_sum_bound(&dy, &x)?;
    }

    #[test]
    fn f32_activations_lie_within_the_bound(pre in -120.0f32..120.0, dy in -1.0f32..1.0) {
        let one = |value: f32| HostTensor::from_slice(&[value], &[1, 1, 1]).unwrap();
        let (x, dy_tensor) = (one(pre), one(dy));
        let weight = HostTensor::from_slice(&[1.0f32], &[1, 1]).unwrap();
        let given = [("x", &x), ("weight", &weight), ("dy", &dy_tensor)];
        let truth = forward(&inputs::<Forward<'_>>(Activation::Silu, &given));
        // The textbook f32 computations.
        let sigmoid = 1.0 / (1.0 + (-pre).exp());
        let y = truth.of("y").compare(&one(pre * sigmoid).view(), None);
        prop_assert!(y.passed(), "{:?}", y.worst);
        let dx = dy * (sigmoid * (1.0 + pre * (1.0 - sigmoid)));
        let gradients = backward(&inputs::<Backward<'_>>(Activation::Silu, &given), DType::F32);
        let dx = gradients.of("dx").compare(&one(dx).view(), None);
        prop_assert!(dx.passed(), "{:?}", dx.worst);
        // And 40 units in the last place are too many.
        if (0.1..8.0).contains(&pre.abs()) {
            let wrong = one(pre * sigmoid * (1.0 + 40.0 * f32::EPSILON));
            let wrong = truth.of("y").compare(&wrong.view(), None);
            prop_assert!(!wrong.passed());
        }
    }
}
