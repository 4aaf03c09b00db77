//! Which kernel a product gets, and how its operands are read.

use super::problem::{Matrix, Problem};
use super::{DeviceFacts, plan};
use crate::backend::gpu::compiler::Target;
use crate::backend::gpu::plan::Plan;
use crate::error::Error;
use crate::gemm::Algorithm;
use crate::tensor::DType;

fn dense(address: u64, columns: i64) -> Matrix {
    Matrix { address, row_stride: columns, column_stride: 1 }
}

/// Dense operands and result.
fn product(rows: i64, columns: i64, reduction: i64) -> Problem {
    Problem {
        algorithm: Algorithm::Fast,
        dtype: DType::F16,
        rows,
        columns,
        reduction,
        left: dense(1 << 32, reduction),
        right: dense(2 << 32, columns),
        result: dense(3 << 32, columns),
    }
}

fn facts(architecture: &str) -> DeviceFacts {
    DeviceFacts::of_target(&Target::parse(architecture).unwrap())
}

fn planned(problem: &Problem, architecture: &str) -> Plan {
    plan(problem, &facts(architecture)).unwrap().unwrap()
}

#[test]
fn every_device_has_its_unit() {
    for (architecture, header, unit) in [
        ("sm_75", "gemm_mma.cuh", "Mma<Problem::T>"),
        ("sm_80", "gemm_mma.cuh", "Mma<Problem::T>"),
        ("sm_120", "gemm_mma.cuh", "Mma<Problem::T>"),
        ("gfx90a", "gemm_mfma_gfx90a.cuh", "::MfmaF32<Problem::T>"),
        ("gfx90a:sramecc+:xnack-", "gemm_mfma_gfx90a.cuh", "::MfmaF32<Problem::T>"),
        ("gfx942", "gemm_mfma.cuh", "::Mfma<Problem::T>"),
        ("gfx950", "gemm_mfma.cuh", "::Mfma<Problem::T>"),
        ("gfx1100", "gemm_wmma.cuh", "Wmma<Problem::T, 11>"),
        ("gfx1201", "gemm_wmma.cuh", "Wmma<Problem::T, 12>"),
        ("gfx1030", "gemm_exact.cuh", "exact<Problem, Tile>"),
    ] {
        let plan = planned(&product(4096, 4096, 4096), architecture);
        assert_eq!(plan.header(), header, "{architecture}");
        assert!(plan.choice.source().contains(unit), "{architecture}: {plan}");
        assert!(plan.shared_bytes <= facts(architecture).shared_per_block, "{architecture}");
        let exact = Problem { algorithm: Algorithm::Exact, ..product(4096, 4096, 4096) };
        assert_eq!(planned(&exact, architecture).header(), "gemm_exact.cuh", "{architecture}");
    }
    let bf16 = Problem { dtype: DType::BF16, ..product(4096, 4096, 4096) };
    assert_eq!(planned(&bf16, "sm_75").header(), "gemm_exact.cuh", "Turing multiplies no bf16");
    // The units of gfx90a flush subnormal numbers: those of the devices after it do not.
    assert!(planned(&bf16, "gfx90a").choice.source().contains("::MfmaBf16>"));
    for architecture in ["gfx942", "gfx950"] {
        assert!(
            planned(&bf16, architecture).choice.source().contains("::Mfma<Problem::T>"),
            "{architecture}"
        );
    }
}

#[test]
fn operands_are_read_along_their_dense_axis() {
    let has = |problem: &Problem, texts: [&str; 3]| {
        let plan = planned(problem, "sm_80");
        for text in texts {
            assert!(plan.choice.source().contains(text), "no {text:?} in {plan}");
        }
    };
    // C: left in rows of terms, right in rows of columns. Then grad_A's right and grad_B's left, transposed.
    let forward = product(512, 256, 1024);
    has(&forward, ["left_along_reduction = true", "right_along_reduction = false", "left_bytes = 16"]);
    let right = Matrix { address: 2 << 32, row_stride: 1, column_stride: 1024 };
    has(
        &Problem { right, ..forward },
        ["right_along_reduction = true", "right_bytes = 16", "left_bytes = 16"],
    );
    let left = Matrix { address: 1 << 32, row_stride: 1, column_stride: 512 };
    has(
        &Problem { left, ..forward },
        ["left_along_reduction = false", "left_bytes = 16", "result_bytes = 16"],
    );
    // Rows and addresses that are not multiples of 16 bytes; no dense axis.
    has(&product(512, 254, 1002), ["left_bytes = 4", "right_bytes = 4", "result_bytes = 4"]);
    let shifted = Matrix { address: (1 << 32) + 8, ..forward.left };
    has(&Problem { left: shifted, ..forward }, ["left_bytes = 8", "right_bytes = 16", "result_bytes = 16"]);
    let apart = Matrix { address: 1 << 32, row_stride: 3072, column_stride: 3 };
    has(
        &Problem { left: apart, ..forward },
        ["left_along_reduction = true", "left_bytes = 2", "right_bytes = 16"],
    );
}

#[test]
fn a_result_in_columns_is_computed_as_its_transpose() {
    let result = Matrix { address: 3 << 32, row_stride: 1, column_stride: 512 };
    let problem = Problem { result, ..product(512, 256, 1024) };
    let transposed = problem.with_row_major_result();
    assert_eq!((transposed.rows, transposed.columns, transposed.result.column_stride), (256, 512, 1));
    assert_eq!(transposed.left, problem.right.transposed());
    assert_eq!(transposed.transposed(), problem);
    let rows = product(512, 256, 1024);
    assert_eq!(rows.with_row_major_result(), rows);
}

#[test]
fn small_results_share_out_their_reduction() {
    let large = planned(&product(4096, 4096, 4096), "sm_80");
    assert_eq!((large.grid, large.workspace_bytes, large.counters), ([1024, 1, 1], 0, 0));
    let small = planned(&product(64, 64, 4096), "sm_80");
    let [1, 1, parts] = small.grid else { panic!("{small}") };
    assert!((16..=32).contains(&parts), "{small}");
    assert_eq!((small.workspace_bytes, small.counters), (u64::from(parts) * 64 * 64 * 4, 1));
    let short = planned(&product(64, 64, 64), "sm_80");
    assert_eq!((short.grid, short.workspace_bytes), ([1, 1, 1], 0));
    let exact = Problem { algorithm: Algorithm::Exact, ..product(64, 64, 4096) };
    assert_eq!(planned(&exact, "sm_80").grid, [4, 1, 1], "a chain is one");
}

#[test]
fn grids_hold_every_tile() {
    // More tiles than HIP has blocks of 256 threads along an axis.
    let thin = Problem { algorithm: Algorithm::Exact, ..product(1, 1 << 32, 1) };
    let plan = planned(&thin, "gfx942");
    let [width, height, _] = plan.grid;
    assert!(height > 1 && u64::from(width) * 256 < 1 << 32, "{plan}");
    assert!(u64::from(width) * u64::from(height) >= (1 << 32) / 128, "{plan}");
    let absurd = product(1 << 40, 1 << 40, 1);
    let error = super::plan(&absurd, &facts("gfx942")).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn an_empty_result_is_no_launch_and_an_empty_reduction_is_one() {
    let facts = facts("sm_80");
    assert_eq!(plan(&product(0, 5, 7), &facts).unwrap(), None);
    assert_eq!(plan(&product(5, 0, 7), &facts).unwrap(), None);
    assert!(plan(&product(5, 7, 0), &facts).unwrap().is_some());
}
