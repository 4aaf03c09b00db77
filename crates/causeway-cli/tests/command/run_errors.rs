//! `causeway run` on files and flags that are wrong: one clear line, exit status 2, nothing written.

use std::fs;

use causeway::{DType, HostTensor};

use crate::process::{Files, causeway, refusal, run_arguments, text};

fn ones(dtype: DType, shape: &[i64]) -> HostTensor {
    HostTensor::from_fn(dtype, shape, |_| 1.0).unwrap()
}

fn forward_error(tensors: &[(&str, &HostTensor)], more: &[&str]) -> String {
    let files = Files::new();
    let (input, output) = (files.write("in.safetensors", tensors), files.path("out.safetensors"));
    let stderr = refusal(&run_arguments("conv1d-forward", &input, &output, more));
    assert_eq!(files.listing(), ["in.safetensors"], "nothing was written");
    assert!(stderr.starts_with("error: "), "{stderr}");
    let lines: Vec<_> = stderr.lines().collect();
    assert!(lines.len() == 1 || lines.len() == 2 && lines[1].starts_with("help: "), "{stderr}");
    stderr
}

#[test]
fn tensors_that_do_not_belong_have_their_sentence() {
    let x = ones(DType::F32, &[2, 4, 8]);
    let weight = ones(DType::F32, &[4, 3]);
    let tests: Vec<(Vec<(&str, HostTensor)>, &str)> = vec![
        (
            vec![("x", x.clone()), ("weight", weight.clone()), ("biass", x.clone())],
            "tensor \"biass\" is not an input",
        ),
        (vec![("x", x.clone())], "tensor \"weight\" is missing"),
        (vec![("x", ones(DType::F32, &[4, 8])), ("weight", weight.clone())], "expected (batch, dim, seqlen)"),
        (
            vec![("x", x.clone()), ("weight", ones(DType::F32, &[8, 3]))],
            "x has shape (2, 4, 8) and weight has shape (8, 3): expected the same dim",
        ),
        (
            vec![("x", x.clone()), ("weight", ones(DType::F32, &[4, 1, 3]))],
            "weight has shape (4, 1, 3): expected (dim, width); for the (dim, 1, width) of a torch.nn.Conv1d, pass weight[:, 0]",
        ),
        (vec![("x", x.clone()), ("weight", ones(DType::F32, &[4, 0]))], "widths 1 to 256"),
        (vec![("x", x.clone()), ("weight", ones(DType::F32, &[4, 300]))], "widths 1 to 256"),
        (vec![("x", x.clone()), ("weight", ones(DType::I32, &[4, 3]))], "weight has dtype i32"),
        (vec![("x", ones(DType::I64, &[2, 4, 8])), ("weight", weight.clone())], "x has dtype i64"),
        (
            vec![("x", x.clone()), ("weight", weight.clone()), ("bias", ones(DType::F16, &[4]))],
            "bias has dtype f16: expected f32",
        ),
        (
            vec![("x", x.clone()), ("weight", weight.clone()), ("seq_idx", ones(DType::I64, &[2, 8]))],
            "convert it first",
        ),
        (
            vec![("x", x.clone()), ("weight", weight.clone()), ("cu_seqlens", ones(DType::I32, &[2]))],
            "x has batch 2: expected 1",
        ),
        (
            vec![
                ("x", ones(DType::F32, &[1, 4, 8])),
                ("weight", weight.clone()),
                ("cu_seqlens", ones(DType::I32, &[2])),
            ],
            "cu_seqlens[0] is 1",
        ),
        (
            vec![
                ("x", x.clone()),
                ("weight", weight.clone()),
                ("initial_states", ones(DType::F32, &[2, 4, 3])),
            ],
            "initial_states has length 3: expected 2",
        ),
    ];
    for (tensors, part) in &tests {
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let stderr = forward_error(&tensors, &["--return-final-states"]);
        assert!(stderr.contains(part), "{stderr:?} does not contain {part:?}");
    }
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let x = ones(DType::F32, &[1, 1, 1]);
    let stderr = forward_error(&[("X", &x)], &[]);
    assert!(
        stderr.contains("conv1d-forward reads x, weight, and where present bias, initial_states"),
        "{stderr}"
    );
}

#[test]
fn a_name_as_long_as_the_file_is_cut() {
    let x = ones(DType::F32, &[1, 1, 1]);
    let name = "n".repeat(1_000_000);
    let stderr = forward_error(&[(name.as_str(), &x)], &[]);
    assert!(stderr.contains("nnn\"… (1000000 bytes) is not an input of") && stderr.len() < 1000, "{stderr}");
}

#[test]
fn a_transposed_x_is_answered_with_the_flag() {
    let (x, weight) = (ones(DType::F32, &[2, 8, 4]), ones(DType::F32, &[4, 3]));
    let stderr = forward_error(&[("x", &x), ("weight", &weight)], &[]);
    assert!(stderr.contains("layout is channel-last"), "{stderr}");
}

#[test]
fn flags_without_a_meaning_are_refused() {
    for (operation, flags, part) in [
        ("gemm-forward", &["--activation", "silu"][..], "--activation has no meaning for gemm-forward"),
        ("gemm-forward", &["--layout", "channel-last"], "--layout has no meaning"),
        ("conv1d-forward", &["--algorithm", "exact"], "--algorithm has no meaning"),
        ("conv1d-backward", &["--return-final-states"], "it is for conv1d-forward"),
        ("conv1d-forward", &["--activation", "relu"], "none, silu or swish"),
        ("conv1d-forward", &["--layout", "nhwc"], "channel-first"),
        ("gemm-forward", &["--algorithm", "slow"], "slow"),
        (
            "conv1d-forward",
            &["--threads", "two"],
            "'two' for '--threads <N>': expected a whole number from 1 to 4096",
        ),
        (
            "conv1d-forward",
            &["--threads", "0"],
            "'0' for '--threads <N>': expected a whole number from 1 to 4096",
        ),
        (
            "conv1d-forward",
            &["--threads", "4097"],
            "'4097' for '--threads <N>': expected a whole number from 1 to 4096",
        ),
        (
            "conv1d-forward",
            &["--threads", "-1"],
            "'-1' for '--threads <N>': expected a whole number from 1 to 4096",
        ),
        ("conv1d-forward", &["--threads", "18446744073709551616"], "expected a whole number from 1 to 4096"),
    ] {
        let files = Files::new();
        let paths = (files.path("in.npz"), files.path("out.npz"));
        let stderr = refusal(&run_arguments(operation, &paths.0, &paths.1, flags));
        assert!(stderr.contains(part), "{stderr:?} does not contain {part:?}");
    }
}

#[test]
fn devices_that_do_not_exist_are_refused() {
    let (x, weight) = (ones(DType::F32, &[1, 1, 1]), ones(DType::F32, &[1, 1]));
    let tensors = [("x", &x), ("weight", &weight)];
    assert!(
        forward_error(&tensors, &["--device", "abacus"]).contains("device is \"abacus\": expected best, cpu")
    );
}

#[test]
fn the_environment_names_the_default_device() {
    let files = Files::new();
    let (x, weight) = (ones(DType::F32, &[1, 1, 1]), ones(DType::F32, &[1, 1]));
    let input = files.write("in.npz", &[("x", &x), ("weight", &weight)]);
    let arguments = run_arguments("conv1d-forward", &input, &files.path("out.npz"), &[]);
    let output = causeway().args(&arguments).env("CAUSEWAY_DEVICE", "abacus").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("CAUSEWAY_DEVICE: device is \"abacus\""));
    // Empty is as good as unset, not a device without a name.
    let output = causeway().args(&arguments).env("CAUSEWAY_DEVICE", "").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = causeway()
        .args(&arguments)
        .args(["--device", "cpu"])
        .env("CAUSEWAY_DEVICE", "abacus")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "the flag wins: {}", text(&output.stderr));
}

#[test]
fn paths_that_cannot_be_read_or_written_are_refused() {
    let files = Files::new();
    let (x, weight) = (ones(DType::F32, &[1, 1, 1]), ones(DType::F32, &[1, 1]));
    let input = files.write("in.npz", &[("x", &x), ("weight", &weight)]);
    for (input, output, part) in [
        (files.path("absent.npz"), files.path("out.npz"), "absent.npz"),
        (files.path("in.bin"), files.path("out.npz"), "in.bin: has an extension that names no format"),
        (input.clone(), files.path("out.txt"), "out.txt: has an extension that names no format"),
        (input.clone(), files.path("no/such/directory.npz"), "directory.npz"),
        (files.path(""), files.path("out.npz"), "extension"),
    ] {
        let stderr = refusal(&run_arguments("conv1d-forward", &input, &output, &[]));
        assert!(stderr.contains(part), "{stderr:?} does not contain {part:?}");
    }
    assert_eq!(files.listing(), ["in.npz"]);
}

#[test]
fn a_file_cut_anywhere_is_refused_and_the_output_left_alone() {
    let files = Files::new();
    let (x, weight) = (ones(DType::F32, &[1, 1, 2]), ones(DType::F32, &[1, 1]));
    for extension in ["safetensors", "npz"] {
        let whole = files.write(&format!("whole.{extension}"), &[("x", &x), ("weight", &weight)]);
        let (cut, output) = (files.path(&format!("cut.{extension}")), files.path("out.npz"));
        fs::write(&output, "precious").unwrap();
        let image = fs::read(&whole).unwrap();
        for length in 0..image.len() {
            fs::write(&cut, &image[..length]).unwrap();
            let stderr = refusal(&run_arguments("conv1d-forward", &cut, &output, &[]));
            assert!(stderr.starts_with("error: ") && stderr.contains("cut."), "{stderr}");
            assert!(!stderr.contains("panicked"), "{stderr}");
        }
        assert_eq!(fs::read_to_string(&output).unwrap(), "precious");
    }
}
