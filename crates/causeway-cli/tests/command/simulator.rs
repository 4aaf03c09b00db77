//! `--device sim:…`: the GPU kernels on a machine without a GPU.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use causeway::{DType, HostTensor};

use crate::process::{Files, causeway, read, refusal, run_arguments, success, text};

#[test]
fn run_computes_with_the_gpu_kernels() {
    let files = Files::new();
    let x = HostTensor::from_fn(DType::F32, &[1, 2, 3], |i| [1.0, 2.0, 3.0, -1.0, 0.5, 4.0][i]).unwrap();
    let weight = HostTensor::from_fn(DType::F32, &[2, 2], |i| [10.0, 1.0, 2.0, -1.0][i]).unwrap();
    let input = files.write("in.safetensors", &[("x", &x), ("weight", &weight)]);
    for device in ["sim:32", "sim:64:descending"] {
        let output = files.path("out.safetensors");
        let printed = success(&run_arguments("conv1d-forward", &input, &output, &["--device", device]));
        assert!(printed.contains(&format!("conv1d-forward on {device}")), "{printed}");
        // pre[t] = weight[0]·x[t-1] + weight[1]·x[t]
        assert_eq!(read(&output, "y").to_f64(), [1.0, 12.0, 23.0, 1.0, -2.5, -3.0]);
    }
}

#[test]
fn a_refusal_names_the_device_as_it_was_asked_for() {
    let files = Files::new();
    let ones = |shape: &[i64]| HostTensor::from_fn(DType::F64, shape, |_| 1.0).unwrap();
    let input = files.write("in.npz", &[("x", &ones(&[1, 2, 3])), ("weight", &ones(&[2, 2]))]);
    let arguments =
        run_arguments("conv1d-forward", &input, &files.path("out.npz"), &["--device", "sim:64:descending"]);
    let message = refusal(&arguments);
    assert!(message.contains("dtype f64 is not supported on sim:64:descending: use f32"), "{message}");
}

#[test]
fn verify_reports_that_no_gpu_ran() {
    let arguments = ["verify", "--suite", "sim", "--case", "residual-2x40x129-channel-last-f32", "--json"];
    let printed = success(&[&arguments[..], &["--device", "sim:64:shuffled:3"]].concat());
    let run: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((run["device"].as_str(), run["passed"].as_bool()), (Some("sim:64:shuffled:3"), Some(true)));
    let non_claims = run["non_claims"].as_array().unwrap();
    assert!(non_claims.iter().any(|line| line.as_str().unwrap().starts_with("No GPU ran")), "{non_claims:?}");
}

#[test]
fn plans_are_those_of_the_simulated_device() {
    let plan = |device: &str| {
        let suite = ["plan", "--suite", "conv1d-first", "--case", "large-8x2048x1024-f32", "--json"];
        let printed = success(&[&suite[..], &["--device", device]].concat());
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()
    };
    assert_eq!(plan("sim:32")["arch"], "sm_80");
    assert_eq!(plan("sim:gfx942")["arch"], "gfx942");
    assert_ne!(plan("sim:32")["plans"], plan("sim:gfx942")["plans"]);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let table: [(&[&str], &str); 4] = [
        (
            &["verify", "--device", "sim:33"],
            "device is \"sim:33\": expected sim:32, sim:64, sim:slow, sim:clusters or an architecture",
        ),
        (&["bench", "--device", "sim:32"], "sim:32 has no speed to measure"),
        (
            &["plan", "--device", "cpu"],
            "device is \"cpu\": expected sim:32, sim:64, sim:slow, sim:clusters or an architecture such as sim:gfx942",
        ),
        (&["verify", "--device", "simulator"], "sim:32 and sim:64 are simulated GPUs"),
    ];
    for (arguments, sentence) in table {
        let message = refusal(arguments);
        assert!(message.contains(sentence), "{message:?} does not say {sentence:?}");
    }
}

#[test]
fn a_missing_compiler_is_named_with_what_to_install() {
    let start = |variable: &str, value: &str, arguments: &[&str]| {
        causeway().args(arguments).env_remove("CAUSEWAY_SIM_CXX").env(variable, value).output().unwrap()
    };
    let verify = ["verify", "--device", "sim:32", "--case", "tiny"];
    let output = start("PATH", "/nonexistent", &verify);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("clang++-19") && message.contains("apt-get install clang-19"), "{message}");
    let message = text(&start("CAUSEWAY_SIM_CXX", "/nonexistent/clang++", &verify).stderr);
    assert!(
        message.contains("CAUSEWAY_SIM_CXX is /nonexistent/clang++, which does not say its version"),
        "{message}"
    );
    let doctor = text(&start("PATH", "/nonexistent", &["doctor"]).stdout);
    assert!(doctor.contains("sim:32, sim:64") && doctor.contains("apt-get install clang-19"), "{doctor}");
}

#[test]
fn a_compiler_that_is_no_clang_of_that_age_is_told_from_one() {
    for arguments in [&["verify", "--device", "sim:32", "--case", "tiny"][..], &["doctor"]] {
        let output = causeway().args(arguments).env("CAUSEWAY_SIM_CXX", "/bin/true").output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("CAUSEWAY_SIM_CXX is /bin/true, which "), "{said}");
        assert!(said.contains("expected a clang++ of version 16 or later, for example clang++-19"), "{said}");
    }
}

#[cfg(unix)]
#[test]
fn options_that_are_no_text_are_not_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let verify = ["verify", "--device", "sim:32", "--case", "tiny"];
    let output =
        causeway().args(verify).env("CAUSEWAY_SIM_FLAGS", OsStr::from_bytes(b"-\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("unknown argument"), "{message}");
}

/// Computes with kernels that are kept in a folder, and checks the result.
fn compute_with(folder: &Path) {
    let files = Files::new();
    let x = HostTensor::from_fn(DType::F32, &[1, 1, 3], |i| [1.0, 2.0, 3.0][i]).unwrap();
    let weight = HostTensor::from_fn(DType::F32, &[1, 2], |i| [10.0, 1.0][i]).unwrap();
    let input = files.write("in.safetensors", &[("x", &x), ("weight", &weight)]);
    let result = files.path("out.safetensors");
    let arguments = run_arguments("conv1d-forward", &input, &result, &["--device", "sim:32"]);
    let output = causeway().args(arguments).env("CAUSEWAY_SIM_DIR", folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(read(&result, "y").to_f64(), [1.0, 12.0, 23.0]);
}

/// The only file of a folder with this extension.
fn only(folder: &Path, extension: &str) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = entries.filter(|path| path.extension() == Some(OsStr::new(extension))).collect();
    let [path] = &found[..] else { panic!("{found:?}") };
    path.clone()
}

#[test]
fn what_was_kept_and_is_damaged_is_made_again() {
    let files = Files::new();
    let folder = files.path("kept");
    compute_with(&folder);
    let (runtime, object) = (only(&folder, "o"), only(&folder, "so"));
    let sound = fs::read(&runtime).unwrap();
    // Half of the runtime, and nothing yet that was linked with it.
    fs::write(&runtime, &sound[..sound.len() / 2]).unwrap();
    fs::remove_file(&object).unwrap();
    compute_with(&folder);
    assert!(fs::read(&runtime).unwrap().len() > sound.len() / 2);

    // A kernel's object that is what its digest says, and cannot be loaded.
    fs::copy(&runtime, &object).unwrap();
    fs::copy(runtime.with_extension("b3"), object.with_extension("b3")).unwrap();
    compute_with(&folder);
    assert_ne!(fs::read(&object).unwrap(), fs::read(&runtime).unwrap());

    // A note that does not say which kernels the object has.
    let note = only(&folder, "note");
    let sound = fs::read_to_string(&note).unwrap();
    for kept in 0..sound.lines().count() {
        let lines: String = sound.lines().take(kept).map(|line| format!("{line}\n")).collect();
        fs::write(&note, lines).unwrap();
        compute_with(&folder);
        assert_eq!(fs::read_to_string(&note).unwrap(), sound, "of {kept} lines");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_written_and_holds_nothing_is_not_needed() {
    // Not even root can make a file there.
    compute_with(Path::new("/proc"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_may_have_a_name_that_is_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let files = Files::new();
    compute_with(&files.path("").join(OsStr::from_bytes(b"kept-\xff")));
}
