//! SiLU on the CPU, value by value: a convolution of width 1 and weight 1 is the activation alone.

use causeway::backend::cpu::{Cpu, Level};
use causeway::causal_conv1d::{Activation, Forward};
use causeway::{DType, Device, HostTensor};

/// `silu(x)` of every value, on one level.
fn silu(x: &HostTensor, level: Level) -> Option<Vec<f64>> {
    let device = Device::Cpu(Cpu::with_level(level).ok()?);
    let weight = HostTensor::from_slice(&[1.0f32], &[1, 1]).unwrap();
    let mut y = HostTensor::zeros(x.dtype(), x.shape()).unwrap();
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
        activation: Activation::Silu,
        round_products: false,
        norm: None,
        y: y.view_mut(),
        final_states: None,
    }
    .run(&device)
    .unwrap();
    Some(y.to_f64())
}

fn exact(x: f64) -> f64 {
    if x < 0.0 { x * x.exp() / (1.0 + x.exp()) } else { x / (1.0 + (-x).exp()) }
}

/// Distance to the next number at `value`, for `bits` of significand and a smallest exponent.
fn unit(value: f64, bits: i32, lowest: i32) -> f64 {
    let exponent = if value == 0.0 { lowest } else { value.abs().log2().floor() as i32 };
    f64::from(exponent.max(lowest) - (bits - 1)).exp2()
}

#[test]
fn an_f32_is_within_2_units_of_the_correctly_rounded_one() {
    // Every 2¹¹-th finite number, which includes all exponents, both signs and the subnormals.
    let values: Vec<f32> = (0..=u32::MAX)
        .step_by(1 << 11)
        .map(|bits| f32::from_bits(bits | 0x155))
        .filter(|x| x.is_finite())
        .collect();
    let x = HostTensor::from_slice(&values, &[1, 1, values.len() as i64]).unwrap();
    for level in Level::ALL {
        let Some(found) = silu(&x, level) else { continue };
        let mut worst = (0.0, 0.0);
        for (&x, found) in values.iter().zip(found) {
            let expected = f64::from(exact(f64::from(x)) as f32);
            let units = (found - expected).abs() / unit(expected, 24, -126);
            assert!(units <= 2.0, "silu({x:e}) is {found:e} on {level}, {units} units from {expected:e}");
            if units > worst.1 {
                worst = (f64::from(x), units);
            }
        }
        println!("{level}: at most {} units, at {:e}", worst.1, worst.0);
    }
}

/// Every finite number of a 16-bit dtype: the error before rounding is at most an eighth of half a unit. A sigmoid below
/// the smallest normal f32 may count as zero.
fn check_16_bits(dtype: DType, bits: i32, lowest: i32) {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    let mut x = HostTensor::zeros(dtype, &[1, 1, patterns.len() as i64]).unwrap();
    x.bytes_mut().copy_from_slice(bytemuck::cast_slice(&patterns));
    let values = x.to_f64();
    for level in Level::ALL {
        let Some(found) = silu(&x, level) else { continue };
        for (&x, found) in values.iter().zip(found).filter(|(x, _)| x.is_finite()) {
            let expected = exact(x);
            let units = (found - expected).abs() / unit(expected, bits, lowest);
            let is_flushed = found == 0.0 && expected / x < f64::from(f32::MIN_POSITIVE);
            assert!(
                units <= 0.5 * 1.125 || is_flushed,
                "silu({x:e}) is {found:e} on {level}, {units} units from {expected:e}"
            );
        }
    }
}

#[test]
fn every_f16_is_rounded_almost_correctly() {
    check_16_bits(DType::F16, 11, -14);
}

#[test]
fn every_bf16_is_rounded_almost_correctly() {
    check_16_bits(DType::BF16, 8, -126);
}
