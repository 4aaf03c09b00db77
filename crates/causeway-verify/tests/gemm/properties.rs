//! Random problems: sizes, layouts, dtypes and threads. `exact` is bit-equal to the oracle, `fast` within its bounds,
//! and neither depends on the number of threads.

use crate::support::{DTYPES, Operands, bits, devices, tensor};
use causeway::gemm::{Algorithm, GradA, GradB};
use causeway::{DType, Device, HostTensor};
use proptest::prelude::*;

/// How a matrix lies in memory.
#[derive(Debug, Clone, Copy)]
enum Layout {
    RowMajor,
    ColumnMajor,
    /// Row-major, with a few elements between rows and one before the first.
    Padded,
    /// Column-major, likewise.
    PaddedColumns,
    /// Every second element of every row.
    Strided,
    /// Row-major with rows and columns backwards.
    Reversed,
    /// One row, seen from every row.
    Expanded,
}

const LAYOUTS: [Layout; 7] = [
    Layout::RowMajor,
    Layout::ColumnMajor,
    Layout::Padded,
    Layout::PaddedColumns,
    Layout::Strided,
    Layout::Reversed,
    Layout::Expanded,
];

fn matrix(dtype: DType, (rows, columns): (i64, i64), layout: Layout, seed: u64) -> HostTensor {
    let (offset, strides) = match layout {
        Layout::RowMajor => (0, [columns, 1]),
        Layout::ColumnMajor => (0, [1, rows]),
        Layout::Padded => (1, [columns + 3, 1]),
        Layout::PaddedColumns => (1, [1, rows + 5]),
        Layout::Strided => (0, [2 * columns + 1, 2]),
        Layout::Reversed => ((rows * columns - 1).max(0), [-columns, -1]),
        Layout::Expanded => (0, [0, 1]),
    };
    let storage = tensor(dtype, &[2 * (rows + 6) * (columns + 6)], seed);
    storage.restrided(offset, &[rows, columns], &strides).unwrap()
}

fn layout() -> impl Strategy<Value = Layout> {
    prop::sample::select(&LAYOUTS[..])
}

/// Mostly small, sometimes beyond a register tile.
fn size() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..=40i64, 1 => 41..=160i64]
}

fn problem() -> impl Strategy<Value = Operands> {
    let sizes = (size(), size(), size());
    let layouts = (layout(), layout(), layout());
    (sizes, layouts, prop::sample::select(&DTYPES[..]), any::<bool>(), any::<u64>()).prop_map(
        |((m, n, k), (of_a, of_b, of_grad_c), dtype, column_major, seed)| Operands {
            a: matrix(dtype, (m, k), of_a, seed),
            b: matrix(dtype, (k, n), of_b, seed ^ 1),
            grad_c: matrix(dtype, (m, n), of_grad_c, seed ^ 2),
            column_major,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn exact_is_the_chain(operands in problem(), level in any::<prop::sample::Index>()) {
        let devices: Vec<_> = devices().collect();
        operands.check(level.get(&devices), Algorithm::Exact);
    }

    #[test]
    fn fast_is_within_its_bounds(operands in problem()) {
        operands.check(&Device::cpu(), Algorithm::Fast);
    }
}

fn in_pool<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

#[test]
fn bits_do_not_depend_on_threads() {
    for dtype in DTYPES {
        let mut operands = Operands::new(dtype, (230, 330, 300), 11);
        // Some of A is so small that products leave the normal numbers: the matrix unit must hand those outputs
        // back, the same ones for every cut into tiles.
        if dtype == DType::BF16 {
            let (even, odd) = (2f64.powi(-60), 2f64.powi(-125));
            operands.a = HostTensor::from_fn(dtype, &[230, 300], |i| {
                let scale = if i / 300 % 64 < 40 {
                    1.0
                } else if i % 2 == 0 {
                    even
                } else {
                    odd
                };
                scale * (1.0 + (i % 37) as f64 / 64.0)
            })
            .unwrap();
        }
        // Few rows, and few columns, have kernels of their own.
        let few = [(20, 700, 1200), (700, 20, 1200)].map(|size| Operands::new(dtype, size, 12));
        for operands in few.iter().chain([&operands]) {
            for algorithm in Algorithm::ALL {
                for device in devices() {
                    let once = in_pool(1, || operands.run(&device, algorithm)).map(|output| bits(&output));
                    for threads in [1, 2, 3] {
                        let again = in_pool(threads, || operands.run(&device, algorithm));
                        assert!(
                            again.map(|output| bits(&output)) == once,
                            "{algorithm}, {threads}, {device}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn exact_bits_do_not_depend_on_the_level() {
    for dtype in DTYPES {
        let operands = Operands::new(dtype, (255, 129, 1000), 12);
        let mut outputs = devices().map(|device| operands.run(&device, Algorithm::Exact).map(|c| bits(&c)));
        let first = outputs.next().unwrap();
        assert!(outputs.all(|output| output == first), "{dtype}");
    }
}

#[test]
fn both_gradients_at_once_are_the_gradients_one_by_one() {
    let device = Device::cpu();
    for algorithm in Algorithm::ALL {
        let operands = Operands::new(DType::BF16, (100, 70, 130), 13);
        let [_, both_a, both_b] = operands.run(&device, algorithm);
        let (mut grad_a, mut grad_b) = (both_a.clone(), both_b.clone());
        grad_a.fill_bytes(0);
        grad_b.fill_bytes(0);
        let (a, b, grad_c) = (operands.a.view(), operands.b.view(), operands.grad_c.view());
        GradA { grad_c, b, algorithm, grad_a: grad_a.view_mut() }.run(&device).unwrap();
        GradB { grad_c, a, algorithm, grad_b: grad_b.view_mut() }.run(&device).unwrap();
        assert_eq!((bits(&grad_a), bits(&grad_b)), (bits(&both_a), bits(&both_b)));
    }
}

#[test]
fn nothing_is_written_around_a_strided_output() {
    for algorithm in Algorithm::ALL {
        for dtype in DTYPES {
            // Any, few rows, and few columns.
            for (m, n, k) in [(37, 45, 20), (5, 45, 300), (37, 5, 300)] {
                let operands = Operands::new(dtype, (m, n, k), 14);
                let mut c = HostTensor::zeros(dtype, &[40 * 100]).unwrap();
                c.fill_bytes(0xff);
                let mut c = c.restrided(51, &[m, n], &[100, 2]).unwrap();
                let mut call = causeway::gemm::Forward {
                    a: operands.a.view(),
                    b: operands.b.view(),
                    algorithm,
                    c: c.view_mut(),
                };
                call.run(&Device::cpu()).unwrap();
                for (i, element) in c.bytes().chunks_exact(2).enumerate() {
                    let (row, column) = ((i as i64 - 51).div_euclid(100), (i as i64 - 51).rem_euclid(100));
                    let inside = (0..m).contains(&row) && column % 2 == 0 && column < 2 * n;
                    assert_eq!(
                        element != [0xff, 0xff],
                        inside,
                        "element {i}, {m} × {n}, {algorithm}, {dtype}"
                    );
                }
            }
        }
    }
}
