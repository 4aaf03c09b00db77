//! `causeway run` on sound files.

use causeway::{DType, HostTensor};

use crate::process::{Files, read, refusal, run_arguments, success};

fn tensor(dtype: DType, shape: &[i64], values: &[f64]) -> HostTensor {
    HostTensor::from_fn(dtype, shape, |i| values[i]).unwrap()
}

/// One row, two channels, width 2: small enough to be computed by hand.
struct Small {
    x: HostTensor,
    weight: HostTensor,
    bias: HostTensor,
}

fn small() -> Small {
    Small {
        x: tensor(DType::F32, &[1, 2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]),
        weight: tensor(DType::F32, &[2, 2], &[10.0, 1.0, 2.0, -1.0]),
        bias: tensor(DType::F32, &[2], &[0.5, 0.0]),
    }
}

/// pre[t] = bias + weight[0]·x[t-1] + weight[1]·x[t]
const Y: [f64; 6] = [1.5, 12.5, 23.5, 1.0, -2.5, -3.0];

#[test]
fn forward_is_the_formula_in_both_formats() {
    let (files, small) = (Files::new(), small());
    let tensors = [("x", &small.x), ("weight", &small.weight), ("bias", &small.bias)];
    for (input, output) in [("in.safetensors", "out.npz"), ("in.npz", "out.safetensors")] {
        let (input, output) = (files.write(input, &tensors), files.path(output));
        let printed = success(&run_arguments("conv1d-forward", &input, &output, &[]));
        assert!(printed.contains("conv1d-forward on ") && printed.contains("y f32 (1, 2, 3)"), "{printed}");
        assert_eq!(read(&output, "y").to_f64(), Y);
    }
}

#[test]
fn channel_last_files_hold_the_same_numbers_transposed() {
    let (files, small) = (Files::new(), small());
    let x = small.x.permuted(&[0, 2, 1]).to_contiguous().unwrap();
    let input = files.write("in.safetensors", &[("x", &x), ("weight", &small.weight), ("bias", &small.bias)]);
    let output = files.path("out.safetensors");
    let more = ["--layout", "channel-last", "--return-final-states"];
    let printed = success(&run_arguments("conv1d-forward", &input, &output, &more));
    // Shapes of the files, not those that x and y have for the operation.
    assert!(printed.contains("weight f32 (2, 2), x f32 (1, 3, 2)\n"), "{printed}");
    assert!(printed.contains("wrote  y f32 (1, 3, 2), final_states f32 (1, 2, 1) to "), "{printed}");
    let json = [&more[..], &["--json"]].concat();
    let json: serde_json::Value =
        serde_json::from_str(&success(&run_arguments("conv1d-forward", &input, &output, &json))).unwrap();
    let shape = serde_json::json!([1, 3, 2]);
    assert_eq!((&json["inputs"]["x"]["shape"], &json["outputs"]["y"]["shape"]), (&shape, &shape));
    let y = read(&output, "y");
    assert_eq!(y.shape(), [1, 3, 2]);
    assert_eq!(y.permuted(&[0, 2, 1]).to_f64(), Y);
    let states = read(&output, "final_states");
    assert_eq!((states.shape(), states.to_f64()), (&[1i64, 2, 1][..], vec![3.0, 4.0]));
}

#[test]
fn the_output_may_replace_the_input() {
    let (files, small) = (Files::new(), small());
    let path = files.write("same.npz", &[("x", &small.x), ("weight", &small.weight), ("bias", &small.bias)]);
    success(&run_arguments("conv1d-forward", &path, &path, &[]));
    assert_eq!(read(&path, "y").to_f64(), Y);
    assert_eq!(files.listing(), ["same.npz"]);
}

#[test]
fn backward_writes_a_gradient_for_every_input_that_has_one() {
    let (files, small) = (Files::new(), small());
    let dy = tensor(DType::F32, &[1, 2, 3], &[1.0, 0.0, 2.0, 1.0, 1.0, 1.0]);
    let states = tensor(DType::F32, &[1, 2, 1], &[7.0, 8.0]);
    let input = files.write(
        "in.safetensors",
        &[
            ("x", &small.x),
            ("weight", &small.weight),
            ("bias", &small.bias),
            ("dy", &dy),
            ("initial_states", &states),
        ],
    );
    let output = files.path("out.safetensors");
    success(&run_arguments("conv1d-backward", &input, &output, &[]));
    // dx[t] = weight[1]·dy[t] + weight[0]·dy[t+1]
    assert_eq!(read(&output, "dx").to_f64(), [1.0, 20.0, 2.0, 1.0, 1.0, -1.0]);
    // Σ dy[t]·x[t-1] and Σ dy[t]·x[t], with the initial state before t = 0
    assert_eq!(read(&output, "dweight").to_f64(), [7.0 + 4.0, 1.0 + 6.0, 8.0 - 1.0 + 0.5, -1.0 + 0.5 + 4.0]);
    assert_eq!(read(&output, "dbias").to_f64(), [3.0, 3.0]);
    assert_eq!(read(&output, "dinitial_states").to_f64(), [10.0, 2.0]);
}

#[test]
fn a_residual_is_checked_where_it_takes_no_part() {
    let (files, small) = (Files::new(), small());
    let dy = tensor(DType::F32, &[1, 2, 3], &[1.0; 6]);
    let output = files.path("out.safetensors");
    let backward = |residual: &HostTensor| {
        let tensors = [("x", &small.x), ("weight", &small.weight), ("dy", &dy), ("residual", residual)];
        let input = files.write("in.safetensors", &tensors);
        run_arguments("conv1d-backward", &input, &output, &[])
    };
    for (residual, sentence) in [
        (tensor(DType::F32, &[1, 2, 4], &[0.0; 8]), "residual has seqlen 4: expected 3, "),
        (tensor(DType::F32, &[6], &[0.0; 6]), "residual has shape (6,): expected (batch, dim, seqlen)"),
        (tensor(DType::F16, &[1, 2, 3], &[0.0; 6]), "residual has dtype f16: expected f32"),
    ] {
        let message = refusal(&backward(&residual));
        assert!(message.contains(sentence) && !output.exists(), "{message}");
    }
    success(&backward(&tensor(DType::F32, &[1, 2, 3], &[5.0; 6])));
}

#[test]
fn update_changes_the_state() {
    let (files, small) = (Files::new(), small());
    let x = tensor(DType::F32, &[1, 2], &[5.0, 6.0]);
    let state = tensor(DType::F32, &[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let input = files.write("in.npz", &[("x", &x), ("weight", &small.weight), ("conv_state", &state)]);
    let output = files.path("out.npz");
    success(&run_arguments("conv1d-update", &input, &output, &[]));
    assert_eq!(read(&output, "y").to_f64(), [10.0 * 2.0 + 5.0, 2.0 * 4.0 - 6.0]);
    assert_eq!(read(&output, "conv_state").to_f64(), [2.0, 5.0, 4.0, 6.0]);
}

#[test]
fn silu_and_packed_sequences_reach_the_operation() {
    let (files, small) = (Files::new(), small());
    let boundaries = tensor(DType::I32, &[3], &[0.0, 1.0, 3.0]);
    let input = files
        .write("in.safetensors", &[("x", &small.x), ("weight", &small.weight), ("cu_seqlens", &boundaries)]);
    let output = files.path("out.safetensors");
    success(&run_arguments("conv1d-forward", &input, &output, &["--activation", "silu"]));
    let silu = |pre: f64| pre / (1.0 + (-pre).exp());
    let expected = [1.0, 2.0, 23.0, 1.0, -0.5, -3.0].map(silu);
    for (found, expected) in read(&output, "y").to_f64().into_iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn products_and_their_gradients() {
    let files = Files::new();
    let a = tensor(DType::F16, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = tensor(DType::F16, &[3, 1], &[1.0, 0.0, -1.0]);
    let grad_c = tensor(DType::F16, &[2, 1], &[2.0, -1.0]);
    let expected = |name: &str| match name {
        "C" => vec![-2.0, -2.0],
        "grad_A" => vec![2.0, 0.0, -2.0, -1.0, 0.0, 1.0],
        _ => vec![2.0 - 4.0, 4.0 - 5.0, 6.0 - 6.0],
    };
    for algorithm in ["fast", "exact"] {
        for (operation, inputs, outputs) in [
            ("gemm-forward", vec![("A", &a), ("B", &b)], vec!["C"]),
            ("gemm-grad-a", vec![("grad_C", &grad_c), ("B", &b)], vec!["grad_A"]),
            ("gemm-grad-b", vec![("grad_C", &grad_c), ("A", &a)], vec!["grad_B"]),
            ("gemm-grad-ab", vec![("grad_C", &grad_c), ("A", &a), ("B", &b)], vec!["grad_A", "grad_B"]),
        ] {
            let (input, output) = (files.write("in.safetensors", &inputs), files.path("out.safetensors"));
            success(&run_arguments(operation, &input, &output, &["--algorithm", algorithm]));
            for name in outputs {
                assert_eq!(read(&output, name).to_f64(), expected(name), "{operation} {name}");
                assert_eq!(read(&output, name).dtype(), DType::F16);
            }
        }
    }
}

#[test]
fn json_describes_the_run() {
    let (files, small) = (Files::new(), small());
    let input = files.write("in.npz", &[("x", &small.x), ("weight", &small.weight)]);
    let more = ["--json", "--threads", "2", "--device", "cpu"];
    let printed = success(&run_arguments("conv1d-forward", &input, &files.path("out.npz"), &more));
    let run: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(run["operation"], "conv1d-forward");
    assert_eq!(run["threads"], 2);
    assert_eq!(run["inputs"]["x"], serde_json::json!({ "dtype": "f32", "shape": [1, 2, 3] }));
    assert_eq!(run["outputs"]["y"]["shape"], serde_json::json!([1, 2, 3]));
    assert!(run["seconds"].as_f64().unwrap() > 0.0);
}
