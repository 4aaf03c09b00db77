//! The real run-time compilers, with no GPU: NVRTC and HIPRTC where this machine has them.
//!
//! `CAUSEWAY_LIBRARY_PATH` says where they are; `CAUSEWAY_TEST_REQUIRE=nvrtc,hiprtc` makes their absence a failure.

#[path = "common/required.rs"]
mod required;

use causeway::Error;
use causeway::backend::gpu::GpuDevice;
use causeway::backend::gpu::builder::Builder;
use causeway::backend::gpu::cache::{Cache, Origin};
use causeway::backend::gpu::compiler::{Program, Target};
use causeway::backend::gpu::library::Search;
use causeway::backend::gpu::plan::Vendor;

const SCALE: &str = r#"
struct Arguments { const float* in; float* out; float factor; unsigned count; };
extern "C" __global__ void scale(Arguments a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.out[i] = a.in[i] * a.factor;
}
static_assert(CAUSEWAY_WAVE_SIZE == 32 || CAUSEWAY_WAVE_SIZE == 64, "the host says");
"#;

fn program(text: &str) -> Program {
    Program {
        header: "",
        others: Vec::new(),
        arguments: String::new(),
        instantiation: text.to_string(),
        entry: "scale",
    }
}

fn builder(cache: Cache) -> Builder {
    Builder::new(Search::from_environment(), cache)
}

/// A builder if this machine has the compiler for `target`; says so if it has not.
fn compiler_for(target: &Target, cache: Cache) -> Option<Builder> {
    let builder = builder(cache);
    match builder.compiler(target.vendor(), None) {
        Ok(_) => Some(builder),
        Err(error @ Error::LibraryMissing { .. }) => {
            let name = if target.architecture().starts_with("sm_") { "nvrtc" } else { "hiprtc" };
            assert!(!required::is_required(name), "{name} is required here: {error}");
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
#[should_panic(expected = "CAUSEWAY_TEST_REQUIRE has \"nvtrc\": expected some of clang, nvrtc")]
fn a_requirement_that_no_test_knows_is_told() {
    assert!(required::names("hiprtc,nvrtc", "nvrtc") && !required::names("", "nvrtc"));
    required::names("hiprtc,nvtrc", "nvrtc");
}

#[test]
fn nvrtc_gives_machine_code_for_every_generation() {
    for name in ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120"] {
        let target = Target::parse(name).unwrap();
        let Some(builder) = compiler_for(&target, Cache::off()) else { return };
        let code = builder.build(&program(SCALE), &target, None).unwrap();
        assert!(code.image.starts_with(b"\x7fELF"), "{name}: machine code, not PTX");
        assert!(code.image.windows(5).any(|w| w == b"scale"), "{name}: the entry has its plain name");
        assert_eq!((code.origin, code.key), (Origin::Compiled, None));
        assert!(code.compiler.starts_with("NVRTC "), "{}", code.compiler);
    }
}

#[test]
fn hiprtc_gives_a_code_object() {
    let target = Target::parse("gfx90a:sramecc+:xnack-").unwrap();
    let Some(builder) = compiler_for(&target, Cache::off()) else { return };
    let code = builder.build(&program(SCALE), &target, None).unwrap();
    let is_code = code.image.starts_with(b"\x7fELF") || code.image.starts_with(b"__CLANG_OFFLOAD_BUNDLE__");
    assert!(is_code && code.image.windows(5).any(|w| w == b"scale"));
    assert!(code.compiler.starts_with("HIPRTC "), "{}", code.compiler);
}

#[test]
fn compile_errors_name_the_place_the_options_and_the_reason() {
    for name in ["sm_80", "gfx90a"] {
        let target = Target::parse(name).unwrap();
        let Some(builder) = compiler_for(&target, Cache::off()) else { continue };
        let error = builder.build(&program("\n\nflaot x;\n"), &target, None).unwrap_err();
        let Error::Compile { entry, architecture, position, options, log } = &error else {
            panic!("{error}")
        };
        assert_eq!((entry.as_str(), architecture.as_str()), ("scale", name));
        assert_eq!(position.as_deref(), Some("instantiation:3"), "{log}");
        assert!(log.contains("flaot") && options.iter().any(|option| option.contains(name)), "{error}");
        // The compiler is as good as new.
        builder.build(&program(SCALE), &target, None).unwrap();
    }
}

#[test]
fn architectures_that_the_compiler_does_not_know_are_errors() {
    // ROCm 5.2's HIPRTC would end the process on this one.
    let target = Target::parse("gfx942").unwrap();
    let Some(builder) = compiler_for(&target, Cache::off()) else { return };
    let name = builder.compiler(target.vendor(), None).unwrap().name().unwrap();
    match builder.build(&program(SCALE), &target, None) {
        Ok(code) => assert!(!code.image.is_empty()),
        Err(Error::CompilerTooOld { compiler, architecture, fix }) => {
            assert_eq!((compiler, architecture.as_str()), (name, "gfx942"));
            assert!(fix.contains("ROCm 6.0"), "{fix}");
        }
        Err(other) => panic!("{other}"),
    }
    let target = Target::parse("sm_999").unwrap();
    if let Some(builder) = compiler_for(&target, Cache::off()) {
        let error = builder.build(&program(SCALE), &target, None).unwrap_err();
        assert!(matches!(error, Error::CompilerTooOld { .. }), "{error}");
    }
}

#[test]
fn the_second_process_reads_what_the_first_compiled() {
    let directory = tempfile::tempdir().unwrap();
    let target = Target::parse("sm_90a").unwrap();
    let Some(first) = compiler_for(&target, Cache::at(directory.path())) else { return };
    let compiled = first.build(&program(SCALE), &target, None).unwrap();
    // A new builder knows nothing but the directory, like a new process.
    let second = builder(Cache::at(directory.path()));
    let read = second.build(&program(SCALE), &target, None).unwrap();
    assert_eq!((compiled.origin, read.origin), (Origin::Compiled, Origin::Disk));
    assert_eq!((&compiled.image, compiled.key, &compiled.compiler), (&read.image, read.key, &read.compiler));

    let key = read.key.unwrap().to_string();
    let explained = second.cache().explain(&key[..12]).unwrap();
    for part in [&key, "sm_90a", "NVRTC", "-std=c++17", "entry         scale", "a.in[i] * a.factor"] {
        assert!(explained.contains(part), "{part} is missing in\n{explained}");
    }

    // Every ingredient changes the key.
    let other_text = SCALE.replace("factor;", "factor; int pad;");
    let other_target = Target::parse("sm_80").unwrap();
    for (text, entry, target) in
        [(other_text.as_str(), "scale", &target), (SCALE, "other", &target), (SCALE, "scale", &other_target)]
    {
        let program = Program {
            header: "",
            others: Vec::new(),
            arguments: String::new(),
            instantiation: text.to_string(),
            entry,
        };
        let code = second.build(&program, target, None).unwrap();
        assert_eq!(code.origin, Origin::Compiled);
        assert_ne!(code.key.unwrap().to_string(), key);
    }
}

#[test]
fn nothing_installed_is_an_error_that_says_what_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let builder = Builder::new(Search::only([empty.path().to_path_buf()]), Cache::off());
    for (name, install) in [("sm_90a", "pip install nvidia-cuda-nvrtc"), ("gfx942", "hip-runtime-amd")] {
        let error = builder.build(&program(SCALE), &Target::parse(name).unwrap(), None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::LibraryMissing { .. }), "{text}");
        assert!(text.contains(install) && text.contains(&empty.path().display().to_string()), "{text}");
    }
}

#[test]
fn a_driver_without_a_device_says_so() {
    for (vendor, name) in [(Vendor::Nvidia, "cuda"), (Vendor::Amd, "hip")] {
        match GpuDevice::open(vendor, 0) {
            // Debian's HIP runtime on a machine without a GPU answers like this.
            Err(Error::NoDevice { vendor, because }) => {
                assert_eq!(vendor, name);
                assert!(because.contains("nit") && because.contains("(10"), "{because}");
                let again = GpuDevice::open(Vendor::Amd, 0);
                assert!(again.is_err(), "the next call gives an error too, not a crash");
            }
            Err(Error::LibraryMissing { library, .. }) => assert!(library.contains(".so")),
            Err(Error::DeviceUnsupported { architecture, .. }) => assert!(!architecture.is_empty()),
            Ok(device) => assert!(device.report().is_supported()),
            Err(other) => panic!("{name}: {other}"),
        }
    }
}
