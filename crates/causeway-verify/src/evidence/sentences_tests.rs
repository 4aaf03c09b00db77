//! Each fact, flipped: the sentence that it makes has to come or go.

use std::collections::BTreeMap;

use causeway::backend::gpu::artifact::{Artifact, Artifacts, Launch};

use super::*;
use crate::evidence::{DeviceEvidence, Host, HostCost, Measurement, OperationCount, Program, Row, Summary};
use crate::oracle::Comparison;
use crate::suite::{OutputReport, Timing};

/// A benchmark's row with so many seconds of the call and of its floor.
pub(crate) fn row(case: &str, call: &str, seconds: f64, floor: f64) -> Row {
    let summary = |median| Summary { calls: 9, median, p20: median, p80: median };
    Row {
        case: case.to_string(),
        call: call.to_string(),
        shape: vec![8, 2048, 1024],
        width: Some(4),
        dtype: "f32".to_string(),
        weight_dtype: Some("f32".to_string()),
        layout: "channel-first".to_string(),
        activation: Some("silu".to_string()),
        variant: Vec::new(),
        by_plain: None,
        operations: None,
        launches: Vec::new(),
        measurement: Measurement {
            time: summary(seconds),
            floor: summary(floor),
            floor_method: "one thread, ordinary stores".to_string(),
            ratio: seconds / floor,
            noise: 0.01,
            bytes: 1 << 20,
            sets: 2,
            rotation_bytes: 2 << 20,
            wrong: None,
        },
    }
}

/// A kernel that was read from the cache and found as it was.
pub(crate) fn kernel(id: &str) -> Artifact {
    let source_digest = id.repeat(64 / id.len());
    Artifact {
        id: Artifact::id_of(&source_digest),
        entry: format!("entry_{id}"),
        header: "causal_conv1d_forward.cuh".to_string(),
        instantiation: "struct C {};".to_string(),
        source_digest,
        compiler: "NVRTC 13.0".to_string(),
        cache_key: Some("00".repeat(32)),
        file: Some("/cache/v1/0.kernel".to_string()),
        digest: "1".repeat(64),
        bytes: 2048,
        compiled: false,
        checks: 3,
        refused: Vec::new(),
    }
}

pub(crate) fn output(name: &str) -> OutputReport {
    OutputReport {
        name: name.to_string(),
        dtype: "f32".to_string(),
        shape: vec![2, 3],
        comparison: Comparison {
            elements: 6,
            max_error: 1e-7,
            mean_error: 1e-8,
            max_ulps: 1.5,
            max_derived_bound: 4e-7,
            fraction: 0.25,
            worst: None,
            failures: 0,
            unwritten: 0,
        },
        ceiling: None,
        differed: false,
        stray_bytes: 0,
    }
}

pub(crate) fn case(name: &str) -> CaseReport {
    CaseReport {
        name: name.to_string(),
        suite: "conv1d-last".to_string(),
        backend: "cuda:0 (Some GPU)".to_string(),
        operation: "conv1d".to_string(),
        shape: vec![("batch".to_string(), 2)],
        dtype: "f32".to_string(),
        layout: "channel-last".to_string(),
        options: Vec::new(),
        outputs: vec![output("y"), output("dx")],
        sampled: false,
        repeats: 1,
        launches: vec![Launch {
            call: "conv1d-forward".to_string(),
            kernel: Some(kernel("ab").id),
            entry: "entry_ab".to_string(),
            grid: [1, 1, 1],
            block: [64, 1, 1],
            shared_bytes: 0,
            workspace_bytes: 0,
        }],
        timings: vec![Timing { operation: "conv1d-forward".to_string(), seconds: 1e-3, bytes: 1 << 20 }],
        error: None,
        passed: true,
    }
}

/// A report of two passed cases on a GPU.
pub(crate) fn verification() -> Report {
    let mut report = of(Content::Verification(Verification {
        suites: vec!["conv1d-last".to_string()],
        asked: 2,
        repeats: 1,
        cases: vec![case("tiny-f32"), case("small-f32")],
        ..Verification::default()
    }));
    report.kernels = Artifacts(vec![kernel("ab")]);
    report.conclude(2.5);
    report
}

/// A report of two rows on a GPU.
pub(crate) fn benchmark() -> Report {
    let mut report = of(Content::Benchmark(Benchmark {
        suite: "shapes".to_string(),
        method: vec!["by hand".to_string()],
        rows: vec![row("large", "forward", 1.5, 1.0), row("large", "backward", 3.0, 2.5)],
        host_cost: None,
    }));
    report.conclude(60.0);
    report
}

/// A report with made-up facts.
pub(crate) fn of(content: Content) -> Report {
    Report {
        format: crate::evidence::FORMAT,
        causeway: "1.0.0 (0123456789ab)".to_string(),
        command: vec!["causeway".to_string(), "verify".to_string()],
        device: "cuda:0 (Some GPU)".to_string(),
        backend: Some(Backend::Gpu),
        threads: 4,
        host: Host {
            processor: Some("Some Processor".to_string()),
            architecture: "x86_64".to_string(),
            system: "linux".to_string(),
            features: vec!["avx2".to_string()],
            cores: 4,
            last_level_cache: Some(1 << 20),
            memory: Some(1 << 30),
            available_memory: Some(1 << 29),
        },
        device_evidence: Some(DeviceEvidence {
            name: "Some GPU".to_string(),
            architecture: "sm_90a".to_string(),
            pci: "0000:01:00".to_string(),
            multiprocessors: 132,
            wave_size: 32,
            l2_bytes: 50 << 20,
            memory_bytes: 80 << 30,
            free_memory_bytes: None,
            highest_clock_khz: Some(1_980_000),
            highest_memory_clock_khz: None,
            memory_bus_bits: None,
            driver_version: "13.0".to_string(),
            driver_library: "libcuda.so.1".to_string(),
            compiler: Some("NVRTC 13.0".to_string()),
            compiler_library: Some("libnvrtc.so.13".to_string()),
            compiler_digest: Some("2".repeat(64)),
            compiler_options: vec!["-std=c++17".to_string()],
            kernel_sources: "3".repeat(64),
        }),
        program: None,
        kernels: Artifacts::default(),
        unix_time: 1_795_221_274,
        seconds: 0.0,
        evidence: Vec::new(),
        non_claims: Vec::new(),
        content,
    }
}

/// A fact, and the words that come (or go, after `!`) when it is flipped.
type Flip = (&'static str, fn(&mut Report), &'static str);

fn run(report: &mut Report) -> &mut Verification {
    let Content::Verification(run) = &mut report.content else { panic!("it is a verification") };
    run
}

fn bench(report: &mut Report) -> &mut Benchmark {
    let Content::Benchmark(run) = &mut report.content else { panic!("it is a benchmark") };
    run
}

/// Flips each fact of a report, one at a time.
fn flip_each(base: &Report, flips: &[Flip]) {
    let sentences = |report: &Report| [evidence(report), non_claims(report)].concat().join("\n");
    let before = sentences(base);
    for (fact, flip, words) in flips {
        let mut report = base.clone();
        flip(&mut report);
        report.conclude(report.seconds);
        let after = sentences(&report);
        match words.strip_prefix('!') {
            Some(gone) => assert!(before.contains(gone) && !after.contains(gone), "{fact}: {after}"),
            None => assert!(!before.contains(words) && after.contains(words), "{fact}: {after}"),
        }
    }
}

#[test]
fn every_fact_of_a_verification_has_its_sentence() {
    let flips: &[Flip] = &[
        ("a case fails", |r| run(r).cases[0].passed = false, "1 passed, 1 failed"),
        ("a case fails", |r| run(r).cases[0].passed = false, "Correctness is not shown"),
        (
            "more elements",
            |r| run(r).cases[0].outputs[0].comparison.elements = 100,
            "118 elements of 4 outputs",
        ),
        ("one outside", |r| run(r).cases[1].outputs[1].comparison.failures = 7, "7 were outside their bound"),
        ("a stray write", |r| run(r).cases[0].outputs[0].stray_bytes = 16, "16 bytes had changed"),
        ("repeats", |r| run(r).repeats = 9, "Every call was made 9 times"),
        ("repeats", |r| run(r).repeats = 9, "!Every call was made once"),
        (
            "a result differs",
            |r| {
                run(r).repeats = 9;
                run(r).cases[0].outputs[1].differed = true;
            },
            "1 outputs differed",
        ),
        ("a sample", |r| run(r).cases[0].sampled = true, "Of 1 large cases a sample of channels"),
        (
            "a closer one",
            |r| run(r).cases[1].outputs[0].comparison.fraction = 0.875,
            "is 87.5% (y of small-f32)",
        ),
        ("another dtype", |r| run(r).cases[0].dtype = "bf16".to_string(), "dtypes bf16, f32"),
        (
            "another layout",
            |r| run(r).cases[0].layout = "strided".to_string(),
            "layouts channel-last, strided",
        ),
        ("another operation", |r| run(r).cases[0].operation = "gemm".to_string(), "operations conv1d, gemm"),
        (
            "a filter",
            |r| run(r).case_filter = Some("tiny".to_string()),
            "Cases without \"tiny\" in their name",
        ),
        (
            "a skipped case",
            |r| {
                let names = vec!["vast-f32".to_string()];
                run(r).skipped = BTreeMap::from([("the host has no memory for it".to_string(), names)]);
            },
            "vast-f32 did not run: the host has no memory for it.",
        ),
        ("another suite", |r| run(r).suites.push("gemm".to_string()), "cases of conv1d-last, gemm ran"),
        ("another device", |r| r.device = "hip:0 (Other)".to_string(), "for any device but hip:0 (Other)"),
        ("more threads", |r| r.threads = 64, "with 64 threads of Some Processor"),
        ("no processor", |r| r.host.processor = None, "threads of an unnamed processor"),
        ("a simulator", |r| r.backend = Some(Backend::Simulated), "No GPU ran"),
        (
            "a processor",
            |r| {
                r.backend = Some(Backend::Cpu { level: "avx2".to_string(), others: vec!["neon".to_string()] })
            },
            "other vector levels (neon) did not run",
        ),
        (
            "changes in no commit",
            |r| r.causeway = "1.0.0 (0123-dirty)".to_string(),
            "with changes that no commit holds",
        ),
        ("no commit", |r| r.causeway = "1.0.0 (unknown)".to_string(), "does not know the commit"),
    ];
    flip_each(&verification(), flips);
}

#[test]
fn every_fact_of_the_code_that_ran_has_its_sentence() {
    let flips: &[Flip] = &[
        ("no kernels", |r| r.kernels.0.clear(), "!1 kernel ran, 2.0 KiB of code"),
        ("another kernel", |r| r.kernels.0.push(kernel("cd")), "2 kernels ran, 2.0 KiB of code"),
        (
            "other code",
            |r| {
                r.kernels.0.push(kernel("cd"));
                r.kernels.0[1].digest = "5".repeat(64);
            },
            "2 kernels ran, 4.0 KiB of code",
        ),
        ("compiled", |r| r.kernels.0[0].compiled = true, "1 compiled by this process, 0 read from the cache"),
        ("no check", |r| r.kernels.0[0].checks = 0, "!read again, 3 times in all"),
        ("more checks", |r| r.kernels.0[0].checks = 5, "read again, 5 times in all"),
        (
            "an altered file",
            |r| r.kernels.0[0].refused.push("/cache/0.kernel: its digest does not match".to_string()),
            "1 file had been altered, was refused, and its kernel made anew before the launch: /cache/0.kernel: its \
             digest does not match.",
        ),
        (
            "an altered file",
            |r| r.kernels.0[0].refused.push(String::new()),
            "!No file of a kernel had been altered.",
        ),
        ("no file", |r| r.kernels.0[0].file = None, "The code of 1 kernel is in no file"),
        (
            "no digest of the compiler",
            |r| r.device_evidence.as_mut().unwrap().compiler_digest = None,
            "Which compiler made the kernels is not known",
        ),
        (
            "a program",
            |r| {
                let file = "/bin/causeway".to_string();
                r.program = Some(Program { file, digest: "4".repeat(64), changed_to: None });
            },
            "The program was /bin/causeway, BLAKE3 4444",
        ),
    ];
    flip_each(&verification(), flips);

    // Concluding reads the program's file again: this digest is another one than it had.
    let mut report = verification();
    let file = "/bin/causeway".to_string();
    report.program = Some(Program { file, digest: "4".repeat(64), changed_to: None });
    report.conclude(1.0);
    assert!(report.evidence.iter().any(|line| line.contains("the file has CHANGED meanwhile")));
    assert!(report.non_claims.iter().any(|line| line.contains("Which program ran is not certain")));
}

#[test]
fn every_fact_of_a_benchmark_has_its_sentence() {
    let flips: &[Flip] = &[
        (
            "another row",
            |r| bench(r).rows.push(row("x", "update", 1.0, 1.0)),
            "Timed: 3 calls of suite shapes",
        ),
        (
            "wrong results",
            |r| bench(r).rows[0].measurement.wrong = Some("y".into()),
            "1 gave right results, 1 wrong",
        ),
        (
            "wrong results",
            |r| bench(r).rows[0].measurement.wrong = Some("y".into()),
            "shows no speed of anything",
        ),
        (
            "a closer call",
            |r| bench(r).rows[1].measurement.ratio = 1.1,
            "takes 1.10 × the floor's time (backward of large)",
        ),
        (
            "a farther call",
            |r| bench(r).rows[0].measurement.ratio = 2.0,
            "at worst 2.00 × (forward of large)",
        ),
        (
            "a product",
            |r| {
                bench(r).rows[0].operations = Some(1e9);
                bench(r).rows[0].measurement.floor_method = "cuBLASLt 13.1".to_string();
            },
            "Every product was timed in turns with cuBLASLt 13.1. At best a call takes 1.50 × that library's time (forward",
        ),
        ("fewer samples", |r| bench(r).rows[0].measurement.time.calls = 7, "the median of 7 measurements"),
        ("noise", |r| bench(r).rows[1].measurement.noise = 0.05, "1 row had a noise of more than 3.0%"),
        (
            "cost of the host",
            |r| bench(r).host_cost = Some(HostCost { each: Vec::new(), first: Vec::new() }),
            "What a call costs the host",
        ),
        ("no device", |r| r.device_evidence = None, "!clocks were neither fixed nor recorded"),
        ("another suite", |r| bench(r).suite = "variants".to_string(), "calls of suite variants"),
    ];
    flip_each(&benchmark(), flips);
}

#[test]
fn every_fact_of_a_service_has_its_sentence() {
    let mut base = of(Content::Service(Service { protocol: "tensors".to_string(), ..Service::default() }));
    base.conclude(1.0);
    fn service(report: &mut Report) -> &mut Service {
        let Content::Service(service) = &mut report.content else { panic!("it is a service") };
        service
    }
    let flips: &[Flip] = &[
        (
            "an answer",
            |r| {
                let count = OperationCount { answered: 2, seconds: 0.5, longest: 0.375 };
                service(r).operations.insert("gemm-forward".to_string(), count);
            },
            "gemm-forward: 2 answers, 500.00 ms of the device in all, 375.00 ms at most.",
        ),
        ("an answer", |r| service(r).note_answer("gemm-forward", 1.0), "answered 1 request on"),
        ("a refusal", |r| service(r).note_refusal("size"), "Refused: size 1 ×."),
        ("another protocol", |r| service(r).protocol = "text".to_string(), "with the protocol text"),
    ];
    flip_each(&base, flips);
    assert!(base.non_claims.iter().any(|line| line.contains("No result was compared with an oracle")));
}
