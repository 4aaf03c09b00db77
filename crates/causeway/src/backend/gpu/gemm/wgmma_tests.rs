//! Plans for Hopper's matrix units, checked without a device.

use super::*;
use crate::gemm::Algorithm;

const LEFT: u64 = 0x10_0000;
const RIGHT: u64 = 0x8000_0000;
const RESULT: u64 = 0x20_0000_0000;

/// Row-major matrices whose lines are `padding` elements longer than needed.
fn problem(rows: i64, columns: i64, reduction: i64, padding: i64) -> Problem {
    let matrix = |address, length| Matrix { address, row_stride: length + padding, column_stride: 1 };
    Problem {
        algorithm: Algorithm::Fast,
        dtype: DType::BF16,
        rows,
        columns,
        reduction,
        left: matrix(LEFT, reduction),
        right: matrix(RIGHT, columns),
        result: matrix(RESULT, columns),
    }
}

fn planned(problem: &Problem) -> Plan {
    plan(problem, &DeviceFacts::h200()).expect("the kernel takes the problem")
}

fn constant(plan: &Plan, name: &str) -> u64 {
    plan.constant(name).parse().unwrap()
}

/// Whether rows and columns are swapped.
fn is_transposed(plan: &Plan) -> bool {
    plan.constant("result_transposed") == "true"
}

/// What belongs to rows and to columns, as the kernel has them.
fn oriented<T>(plan: &Plan, [of_rows, of_columns]: [T; 2]) -> [T; 2] {
    if is_transposed(plan) { [of_columns, of_rows] } else { [of_rows, of_columns] }
}

/// The kernel's rows and columns that a cluster computes at a time.
fn at_a_time(plan: &Plan) -> [u64; 2] {
    let (down, blocks) = (constant(plan, "share_rows"), constant(plan, "cluster"));
    let across = if plan.constant("split") == "true" { 1 } else { blocks / down };
    [constant(plan, "tile_rows") * down, constant(plan, "tile_columns") * across]
}

fn number(plan: &Plan, at: usize) -> i32 {
    i32::from_ne_bytes(plan.arguments[at..at + 4].try_into().unwrap())
}

#[test]
fn aligned_matrices_have_a_map_each() {
    let mut transposed = [false; 2];
    for (rows, columns) in [(2048, 4096), (16, 4096), (1536, 2944)] {
        let plan = planned(&problem(rows, columns, 1000, 0));
        let maps: Vec<_> = plan.tensor_maps.iter().map(|(at, map)| (*at, map.address, map.sizes)).collect();
        let [rows, columns] = [rows, columns].map(|size| size as u64);
        let [first, second] = oriented(&plan, [(LEFT, [1000, rows]), (RIGHT, [columns, 1000])]);
        let result = (256, RESULT, [columns, rows]);
        assert_eq!(maps, [(0, first.0, first.1), (128, second.0, second.1), result]);
        assert!(plan.tensor_maps.iter().all(|(_, map)| map.stride_bytes == map.sizes[0] * 2));
        assert!(plan.tensor_maps[..2].iter().all(|(_, map)| map.swizzled), "{plan}");
        let row_major = oriented(&plan, ["false", "true"]);
        assert_eq!(["left_row_major", "right_row_major"].map(|name| plan.constant(name)), row_major);
        // Tiles down and across, in units of a cluster's, and steps.
        let ([down, across], [tile_rows, tile_columns]) =
            (oriented(&plan, [rows, columns]), at_a_time(&plan));
        let tiles = [down.div_ceil(tile_rows) as i32, across.div_ceil(tile_columns) as i32];
        assert_eq!([384, 388, 392].map(|at| number(&plan, at)), [tiles[0], tiles[1], 16]);
        assert!(plan.grid[0] >= 64 && plan.arguments.len().is_multiple_of(64), "{plan}");
        assert!(rows < 2048 || plan.grid[0] >= 112, "{plan}");
        transposed[usize::from(is_transposed(&plan))] = true;
    }
    assert_eq!(transposed, [true; 2], "both orientations");
}

#[test]
fn tiles_in_pieces_have_a_workspace_and_counters() {
    let mut seen = [0; 3];
    let row_major = [
        (8192, 14336, 4096),
        (4592, 560, 8760),
        (64, 64, 4096),
        (24, 56, 25808),
        (96, 1224, 400),
        (2048, 2048, 2048),
    ]
    .map(|(rows, columns, reduction)| problem(rows, columns, reduction, 0));
    // A gradient of b: both operands come in blocks of 64, so narrow tiles have nothing to gain, and a cluster splits one of 64 × 64.
    let gradient = problem(64, 48, 26592, 0);
    let left = Matrix { row_stride: 1, column_stride: 64, ..gradient.left };
    for problem in row_major.into_iter().chain([Problem { left, ..gradient }]) {
        let plan = planned(&problem);
        let numbers = [0, 4, 8, 12, 16, 20, 24, 28].map(|at| number(&plan, 384 + at) as u64);
        let [down, across, steps, _, whole, pieces, head, part] = numbers;
        let [tile_rows, tile_columns] = at_a_time(&plan);
        let (blocks, warps) = (constant(&plan, "cluster"), constant(&plan, "tile_rows") / 16);
        let split = plan.constant("split") == "true";
        let in_pieces = match (plan.constant("shared_rest"), split) {
            ("false", _) => 0,
            (_, true) => down * across,
            (_, false) => down * across - whole,
        };
        let bytes = in_pieces * pieces * tile_rows * tile_columns * 4;
        assert_eq!(
            (plan.workspace_bytes, u64::from(plan.counters)),
            (bytes, in_pieces * blocks * warps),
            "{plan}"
        );
        let places = usize::from(in_pieces > 0);
        assert_eq!((plan.workspace_at.len(), plan.counters_at.len()), (places, places));
        if in_pieces > 0 && !split {
            assert_eq!(head + (pieces - 1) * part, steps, "{plan}");
        }
        seen[if in_pieces == 0 { 0 } else { 1 + usize::from(split) }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "whole tiles, a shared rest, parts: {seen:?}");
}

/// What a warp stores at a time has a map of its own size, and row-major columns come in blocks of 64.
#[test]
fn boxes_are_parts_of_tiles() {
    let sizes = [320, 512, 1000, 1536, 1792, 2176, 2560, 3008].map(|size| [size, size]);
    for [rows, columns] in sizes.into_iter().chain([[16, 4096], [24, 512], [88, 8192], [8192, 40]]) {
        let row_major = problem(rows, columns, 1536, 0);
        let right = Matrix { row_stride: 1, column_stride: 1536, ..row_major.right };
        for (problem, right_row_major) in [(row_major, true), (Problem { right, ..row_major }, false)] {
            let plan = planned(&problem);
            let [(_, left), (_, right), (_, result)] = plan.tensor_maps[..] else {
                panic!("three maps: {plan}")
            };
            let [rows, columns, down, stages] = ["tile_rows", "tile_columns", "share_rows", "stages"]
                .map(|name| constant(&plan, name) as u32);
            let [_, all_columns] = at_a_time(&plan);
            let across = all_columns as u32 / columns;
            let [left_row_major, right_row_major] = oriented(&plan, [false, right_row_major]);
            let lines = if left_row_major { 64 } else { rows };
            assert_eq!((left.box_sizes, left.swizzled), ([64, lines / across], true), "{plan}");
            let lines = if right_row_major { 64 } else { columns };
            assert_eq!((right.box_sizes, right.swizzled), ([64, lines / down], true), "{plan}");
            let stored = [64, 48, 32, 16].into_iter().find(|width| columns.is_multiple_of(*width)).unwrap();
            let box_sizes = match plan.constant("split") {
                _ if is_transposed(&plan) => [16, stored],
                "true" => [stored, 8],
                _ => [stored, 16],
            };
            assert_eq!((result.box_sizes, result.swizzled), (box_sizes, box_sizes[0] == 64), "{plan}");
            let right_lines = if right_row_major { columns.next_multiple_of(64) } else { columns };
            let staging = constant(&plan, "staging") as u32 * rows / 16 * 2048;
            assert_eq!(plan.shared_bytes, stages * ((rows + right_lines) * 128 + 16) + staging, "{plan}");
        }
    }
}

#[test]
fn transposed_operands_are_read_as_they_lie() {
    let straight = problem(512, 512, 512, 0);
    let across = Problem { left: straight.left.transposed(), right: straight.right.transposed(), ..straight };
    let plan = planned(&across);
    let row_major = oriented(&plan, ["true", "false"]);
    assert_eq!(["left_row_major", "right_row_major"].map(|name| plan.constant(name)), row_major);
}

#[test]
fn lines_that_begin_anywhere_are_taken_by_residues() {
    // Rows of 1001 elements: row r begins 2 · 1001 · r bytes after an aligned address.
    let plan = planned(&Problem {
        right: Matrix { row_stride: 4096, ..problem(1, 1, 1, 0).right },
        ..problem(999, 4096, 1001, 0)
    });
    assert_eq!(plan.constant("left_by_rows"), "true");
    assert_eq!(plan.constant("right_by_rows"), "false");
    let left: Vec<_> = plan.tensor_maps[..8].iter().map(|(_, map)| *map).collect();
    let shifts = number(&plan, 1024) as u32;
    for (residue, map) in left.iter().enumerate() {
        let shift = u64::from(shifts >> (4 * residue) & 15);
        assert_eq!(map.address + 2 * shift, LEFT + 2 * 1001 * residue as u64);
        assert!(map.address.is_multiple_of(16) && map.stride_bytes == 16 * 1001 && !map.swizzled);
        assert_eq!(map.sizes, [1001 + shift, if residue < 7 { 125 } else { 124 }]);
    }
}

#[test]
fn residues_without_lines_are_skipped() {
    let plan = planned(&Problem {
        left: Matrix { address: LEFT + 2, row_stride: 0, column_stride: 1 },
        ..problem(1, 64, 640, 0)
    });
    for (residue, (_, map)) in plan.tensor_maps[..8].iter().enumerate().skip(1) {
        assert_eq!((map.sizes, number(&plan, 1024) as u32 >> (4 * residue) & 15), ([1, 1], 1));
    }
}

#[test]
fn results_that_begin_anywhere_are_stored_by_threads() {
    let plan = planned(&Problem {
        result: Matrix { address: RESULT + 2, row_stride: 72, column_stride: 1 },
        ..problem(64, 64, 64, 0)
    });
    assert_eq!((plan.constant("result_by_rows"), plan.tensor_maps.len()), ("true", 2));
    assert_eq!(plan.arguments[256..264], (RESULT + 2).to_ne_bytes());
    assert_eq!(plan.arguments[264..272], 72i64.to_ne_bytes());
    assert_eq!([272, 276].map(|at| number(&plan, at)), [64, 64]);
}

#[test]
fn results_that_end_between_16_bytes_are_stored_by_threads() {
    let result = Matrix { address: RESULT, row_stride: 72, column_stride: 1 };
    for (columns, by_rows) in [(64, "false"), (72, "false"), (65, "true"), (1, "true")] {
        let plan = planned(&Problem { result, ..problem(64, columns, 64, 0) });
        assert_eq!(plan.constant("result_by_rows"), by_rows, "{columns}");
    }
}

#[test]
fn shared_memory_and_arguments_fit_at_every_size() {
    let facts = DeviceFacts::h200();
    let sizes = [1, 7, 64, 100, 257, 1000, 1024, 1536, 4096, 5000];
    for rows in sizes {
        for columns in sizes {
            for reduction in [1, 64, 1000, 4096] {
                for padding in [0, 3] {
                    let plan = planned(&problem(rows, columns, reduction, padding));
                    assert!(
                        plan.shared_bytes <= facts.shared_per_block && plan.arguments.len() <= 4096,
                        "{plan}"
                    );
                    let blocks: u32 = plan.constant("cluster").parse().unwrap();
                    assert!(plan.grid[0] > 0 && plan.grid[0].is_multiple_of(blocks), "{plan}");
                    assert!(plan.tensor_maps.iter().all(|(at, map)| at.is_multiple_of(64)
                        && map.address.is_multiple_of(16)
                        && map.stride_bytes.is_multiple_of(16)
                        && map.stride_bytes >= map.sizes[0] * 2));
                }
            }
        }
    }
}

#[test]
fn what_the_kernel_cannot_read_is_left_to_others() {
    let good = problem(64, 64, 64, 0);
    let facts = DeviceFacts::h200();
    assert!(plan(&good, &facts).is_some());
    assert!(plan(&good, &DeviceFacts { architecture: "sm_80".to_string(), ..facts.clone() }).is_none());
    assert!(plan(&good, &DeviceFacts::mi300x()).is_none());
    let left = |row_stride, column_stride| Problem {
        left: Matrix { row_stride, column_stride, ..good.left },
        ..good
    };
    for (row_stride, column_stride) in [(128, 2), (-64, 1), (0, 1), (32, 1)] {
        assert!(plan(&left(row_stride, column_stride), &facts).is_none(), "{row_stride} {column_stride}");
    }
    assert!(plan(&Problem { reduction: 0, ..good }, &facts).is_none());
}
