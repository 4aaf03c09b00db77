//! The fast algorithm against the oracle's bounds.

use crate::support::{DTYPES, Numbers, Operands, bits, devices, of_bits, tensor};
use causeway::gemm::Algorithm;
use causeway::{DType, Device, HostTensor};

#[test]
fn ragged_sizes() {
    let sizes = [0, 1, 3, 5, 15, 17, 127, 129, 255];
    for device in devices() {
        for (i, &m) in sizes.iter().enumerate() {
            for (j, &n) in sizes.iter().enumerate() {
                let k = sizes[(2 * i + j) % sizes.len()];
                let mut operands = Operands::new(DTYPES[(i + j) % 2], (m, n, k), (m * 1000 + n) as u64);
                operands.column_major = i % 3 == 0;
                operands.check(&device, Algorithm::Fast);
            }
        }
    }
}

#[test]
fn sizes_beyond_one_tile_and_one_block() {
    let device = Device::cpu();
    for dtype in DTYPES {
        for size in [(1000, 999, 1001), (17, 2000, 600), (2000, 17, 600), (64, 64, 5000)] {
            Operands::new(dtype, size, 7).check(&device, Algorithm::Fast);
        }
    }
}

#[test]
fn few_rows_of_either_layout() {
    // Columns and terms beyond blocks, and ragged.
    let sizes = [(33, 1100), (300, 65), (530, 31), (17, 2100), (8, 1025)];
    check_few(sizes, |rows, columns, terms, is_transposed| {
        let mut operands = Operands::new(DType::BF16, (rows, columns, terms), 11 + rows as u64);
        if is_transposed {
            operands.b = tensor(DType::BF16, &[columns, terms], 12).permuted(&[1, 0]);
        }
        operands
    });
}

#[test]
fn few_columns_of_either_layout() {
    // As rows above, of which they are the transpose.
    let sizes = [(33, 1300), (300, 65), (530, 31), (70, 2100), (1025, 8)];
    check_few(sizes, |columns, rows, terms, is_transposed| {
        let mut operands = Operands::new(DType::BF16, (rows, columns, terms), 31 + columns as u64);
        if is_transposed {
            operands.a = tensor(DType::BF16, &[terms, rows], 32).permuted(&[1, 0]);
        }
        operands
    });
}

/// Around every number of rows, or columns, whose sums fit into registers, with sizes of the other and of terms; terms enough for sums of
/// lanes, and not enough.
fn check_few(sizes: [(i64, i64); 5], make: impl Fn(i64, i64, i64, bool) -> Operands) {
    for few in 1..=26 {
        for (many, terms) in [sizes[few as usize % sizes.len()], (37, 1201)] {
            for is_transposed in [false, true] {
                make(few, many, terms, is_transposed).check(&Device::cpu(), Algorithm::Fast);
            }
        }
    }
}

#[test]
fn small_and_subnormal_numbers_are_kept() {
    // Row i of A has the magnitude 2^-i, column j of B 2^-j, over the whole range of the type: somewhere products
    // leave the normal numbers of f32, and operands those of the type.
    for dtype in DTYPES {
        let exponents = if dtype == DType::F16 { 31 } else { 255 };
        let fraction_bits = if dtype == DType::F16 { 10 } else { 7 };
        let mut numbers = Numbers(8);
        let mut index = 0u32;
        let mut rows_of = |columns: i64| {
            index = 0;
            of_bits(dtype, &[256, columns], || {
                let exponent = (255 - index / columns as u32) * exponents / 256;
                index += 1;
                let random = numbers.bits();
                let fraction = random & ((1 << fraction_bits) - 1);
                (random >> 16 & 0x8000) as u16 | (exponent << fraction_bits | fraction) as u16
            })
        };
        // Enough for sums of lanes of up to 12 rows.
        let terms = 600;
        let operands = Operands {
            a: rows_of(terms),
            b: rows_of(terms).permuted(&[1, 0]),
            grad_c: rows_of(256),
            column_major: false,
        };
        for device in devices() {
            operands.check(&device, Algorithm::Fast);
        }
        // Few rows, of large numbers, in the middle, and of small ones, by columns of all magnitudes in either layout.
        for (first, rows) in [(0, 5), (90, 12), (120, 16), (150, 24), (200, 8), (250, 1)] {
            for b in [operands.b.clone(), operands.b.to_contiguous().unwrap()] {
                let few = |all: &HostTensor| {
                    let columns = all.shape()[1];
                    all.clone().restrided(first * columns, &[rows, columns], &[columns, 1]).unwrap()
                };
                let (a, grad_c) = (few(&operands.a), few(&operands.grad_c));
                let operands = Operands { a, b, grad_c, column_major: false };
                operands.check(&Device::cpu(), Algorithm::Fast);
            }
        }
        // Few columns likewise.
        for (first, columns) in [(0, 5), (90, 12), (150, 24), (250, 1), (120, 1)] {
            for a in [
                operands.a.clone(),
                operands.a.clone().permuted(&[1, 0]).to_contiguous().unwrap().permuted(&[1, 0]),
            ] {
                let b = operands.b.clone().restrided(first * terms, &[terms, columns], &[1, terms]).unwrap();
                let grad_c = operands.grad_c.clone().restrided(first, &[256, columns], &[256, 1]).unwrap();
                let operands = Operands { a, b, grad_c, column_major: false };
                operands.check(&Device::cpu(), Algorithm::Fast);
            }
        }
    }
}

#[test]
fn sizes_of_one_have_any_stride() {
    // It is never multiplied by an index, whatever reads lines ahead.
    let far = i64::MAX / 2;
    let operands = Operands::new(DType::BF16, (40, 40, 1200), 41);
    for (rows, columns) in [(1, 40), (40, 1), (1, 1)] {
        let strides = |rows: i64, strides: [i64; 2]| if rows == 1 { [far, strides[1]] } else { strides };
        let a = operands.a.clone().restrided(0, &[rows, 1200], &strides(rows, [1200, 1])).unwrap();
        let grad_c = operands.grad_c.clone().restrided(0, &[rows, columns], &strides(rows, [40, 1])).unwrap();
        let across = if columns == 1 { far } else { 1 };
        let b = operands.b.clone().restrided(0, &[1200, columns], &[40, across]).unwrap();
        Operands { a, b, grad_c, column_major: false }.check(&Device::cpu(), Algorithm::Fast);
    }
}

#[test]
fn infinities_and_nan_go_where_they_belong() {
    for dtype in DTYPES {
        let (infinity, nan) = if dtype == DType::F16 { (0x7c00, 0x7e00) } else { (0x7f80, 0x7fc0) };
        let mut operands = Operands::new(dtype, (70, 65, 90), 9);
        let mut put = |row: usize, column: usize, value: u16| {
            let at = (row * 90 + column) * 2;
            operands.a.bytes_mut()[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        put(3, 5, infinity);
        put(40, 0, nan);
        put(69, 88, infinity);
        put(69, 89, infinity | 0x8000);
        for device in devices() {
            operands.check(&device, Algorithm::Fast);
            let [c, ..] = operands.run(&device, Algorithm::Fast);
            let row = &bits(&c)[40 * 65..41 * 65];
            assert!(row.iter().all(|&bits| bits == nan), "a NaN is the canonical one");
        }
    }
}

#[test]
fn sums_that_overflow_the_output() {
    // 300 terms of 1e4 are too many for f16, and not for bf16.
    let operands = |dtype| {
        let alternating = |i: usize| if i.is_multiple_of(2) { 100.0 } else { -100.0 };
        Operands {
            a: HostTensor::from_fn(dtype, &[40, 300], |_| 100.0).unwrap(),
            b: HostTensor::from_fn(dtype, &[300, 40], alternating).unwrap(),
            ..Operands::new(dtype, (40, 40, 300), 10)
        }
    };
    for device in devices() {
        operands(DType::F16).check(&device, Algorithm::Fast);
        let [c, ..] = operands(DType::F16).run(&device, Algorithm::Fast);
        assert_eq!(c.to_f64()[..2], [f64::INFINITY, f64::NEG_INFINITY]);
        let [c, ..] = operands(DType::BF16).run(&device, Algorithm::Fast);
        assert!(c.to_f64().iter().all(|value| value.is_finite()));
    }
}
