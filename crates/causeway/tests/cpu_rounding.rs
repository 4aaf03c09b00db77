//! Rounding to 16 bits on the CPU, bit by bit. A convolution of width 1 is a product, rounded to f32 and then to x's
//! dtype; its dweight is one product, too.

use causeway::backend::cpu::{Cpu, Level};
use causeway::causal_conv1d::{Activation, Backward, Forward};
use causeway::{DType, Device, HostTensor};
use half::{bf16, f16};

/// Ties, subnormal results, overflow, and NaNs with bits that rounding cuts off.
const WEIGHTS: [u32; 8] = [
    0x3f80_0000, // 1
    0x3f80_8000, // 1 + 2⁻⁸
    0x3e99_999a, // 0.3
    0x0070_0000, // 2⁻¹²⁷ and less
    0x7f00_0000, // 2¹²⁷
    0xbf7f_ffff, // -(1 - 2⁻²⁴)
    0x7fff_ffff, // NaN
    0x7f80_0001, // NaN
];

/// Every bit pattern of a 16-bit dtype times a weight, along the sequence and along the channels.
fn check(dtype: DType, widen: impl Fn(u16) -> f32, narrow: impl Fn(f32) -> u16) {
    const COUNT: i64 = 1 << 16;
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    for (shape, dim) in [([1, 1, COUNT], 1), ([1, COUNT, 1], COUNT)] {
        let mut x = HostTensor::zeros(dtype, &shape).unwrap();
        x.bytes_mut().copy_from_slice(bytemuck::cast_slice(&patterns));
        for weight in WEIGHTS.map(f32::from_bits) {
            let weights = HostTensor::from_slice(&vec![weight; dim as usize], &[dim, 1]).unwrap();
            for level in Level::ALL {
                let Ok(cpu) = Cpu::with_level(level) else { continue };
                let mut y = HostTensor::zeros(dtype, &shape).unwrap();
                Forward {
                    x: x.view(),
                    weight: weights.view(),
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
                .run(&Device::Cpu(cpu))
                .unwrap();
                let found: &[u16] = bytemuck::cast_slice(y.bytes());
                for (&pattern, &found) in patterns.iter().zip(found) {
                    let expected = narrow(widen(pattern) * weight);
                    let (value, expected_value) = (widen(found), widen(expected));
                    // Zero may lose its sign: it is added to a positive one, in the same step or in another.
                    let is_right = match expected_value {
                        _ if expected_value.is_nan() => value.is_nan(),
                        0.0 => value == 0.0,
                        _ => found == expected,
                    };
                    assert!(
                        is_right,
                        "{pattern:#x} · {weight:e} on {level}, {shape:?}: {found:#x}, not {expected:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_bf16_product_is_rounded_correctly() {
    check(DType::BF16, |bits| bf16::from_bits(bits).to_f32(), |value| bf16::from_f32(value).to_bits());
}

#[test]
fn every_f16_product_is_rounded_correctly() {
    check(DType::F16, |bits| f16::from_bits(bits).to_f32(), |value| f16::from_f32(value).to_bits());
}

/// dweight is kept in f64 and rounded to the dtype once: a sum just above the middle between two numbers of 16 bits
/// goes up, though the middle itself goes down to the even one.
#[test]
fn gradients_of_parameters_are_rounded_once() {
    for (dtype, fraction) in [(DType::BF16, 8), (DType::F16, 11)] {
        let middle = 1.0 + 0.5f32.powi(fraction);
        for (term, expected) in [(middle, 1.0), (middle + 0.5f32.powi(22), 1.0 + 0.5f64.powi(fraction - 1))] {
            for level in Level::ALL {
                let Ok(cpu) = Cpu::with_level(level) else { continue };
                let one = HostTensor::from_slice(&[1.0f32], &[1, 1, 1]).unwrap();
                let x = HostTensor::from_slice(&[term], &[1, 1, 1]).unwrap();
                let weight = HostTensor::zeros(dtype, &[1, 1]).unwrap();
                let (mut dx, mut dweight) = (x.clone(), weight.clone());
                Backward {
                    x: x.view(),
                    weight: weight.view(),
                    bias: None,
                    dy: one.view(),
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
                .run(&Device::Cpu(cpu))
                .unwrap();
                assert_eq!(dweight.view().to_f64(), [expected], "{dtype} of {term} on {level}");
            }
        }
    }
}
