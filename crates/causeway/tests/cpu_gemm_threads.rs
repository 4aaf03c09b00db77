//! Products ask for threads where they said that they would, and nowhere else: a caller that was told of none gives none.

use std::sync::atomic::{AtomicUsize, Ordering};

use causeway::backend::cpu::{Cpu, Level, Threads, on_threads};
use causeway::gemm::{Algorithm, Forward};
use causeway::{DType, Device, HostTensor};

/// Three threads that are never there; counts how often somebody asks for them.
struct Asked(AtomicUsize);

impl Threads for Asked {
    fn count(&self) -> usize {
        3
    }

    fn run(&self, _: &(dyn Fn() + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

static ASKED: Asked = Asked(AtomicUsize::new(0));

#[test]
fn products_ask_for_threads_where_they_say_so() {
    // From below the work of one thread to above that of four, with few rows or columns and with many.
    let shapes = [
        [1, 1024, 512],
        [4, 512, 512],
        [512, 4, 768],
        [64, 64, 64],
        [96, 160, 128],
        [160, 160, 200],
        [1, 4000, 800],
    ];
    for level in Level::ALL {
        let Ok(cpu) = Cpu::with_level(level) else { continue };
        for (dtype, algorithm) in [
            (DType::BF16, Algorithm::Fast),
            (DType::BF16, Algorithm::Exact),
            (DType::F16, Algorithm::Fast),
            (DType::F16, Algorithm::Exact),
        ] {
            for [m, n, k] in shapes {
                let matrix = |rows, columns| HostTensor::zeros(dtype, &[rows, columns]).unwrap();
                let (a, b, mut c) = (matrix(m, k), matrix(k, n), matrix(m, n));
                let mut call = Forward { a: a.view(), b: b.view(), algorithm, c: c.view_mut() };
                let said = call.uses_threads();
                let before = ASKED.0.load(Ordering::Relaxed);
                on_threads(&ASKED, || call.run(&Device::Cpu(cpu))).unwrap();
                let asked = ASKED.0.load(Ordering::Relaxed) > before;
                assert_eq!(asked, said, "{dtype} {algorithm:?} {m}x{n}x{k}, {level}");
            }
        }
    }
}
