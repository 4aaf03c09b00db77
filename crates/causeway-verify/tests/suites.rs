//! The suites on the CPU, and the engine on a device that is wrong.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use causeway::Device;
use causeway::backend::gpu::Executor;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway_verify::suite::{CaseReport, Suite, run_case, run_case_repeatedly};

fn describe(report: &CaseReport) -> String {
    let worst = report.worst_output().map(|output| {
        let element = output.comparison.worst.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("{} {element}, {} stray bytes", output.name, output.stray_bytes)
    });
    format!("{}: {:?} {}", report.name, report.error, worst.unwrap_or_default())
}

/// Runs the cases that `wanted` picks; all have to pass.
fn verify(name: &str, wanted: impl Fn(&CaseSize) -> bool) -> Vec<CaseReport> {
    let device = Device::cpu();
    let suite = Suite::open(name).unwrap();
    let cases = suite.cases.iter().filter(|case| wanted(&CaseSize::of(case)));
    let reports: Vec<_> = cases.map(|case| run_case(case, &device)).collect();
    let failures: Vec<_> = reports.iter().filter(|report| !report.passed).map(describe).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), reports.len(), failures.join("\n"));
    reports
}

struct CaseSize(i64);

impl CaseSize {
    fn of(case: &causeway_verify::suite::Case) -> Self {
        CaseSize(case.problem.shape().iter().take(3).map(|(_, size)| size).product())
    }

    /// Large ones are for `causeway verify`: in a test profile they take minutes.
    fn is_quick(&self) -> bool {
        self.0 < 1 << 20
    }
}

/// Bounds derived from the data are tighter than the contract's ceilings.
fn assert_below_ceilings(reports: &[CaseReport]) {
    let outputs = reports.iter().flat_map(|report| report.outputs.iter().map(move |output| (report, output)));
    let mut with_ceiling = 0;
    for (report, output) in outputs {
        if let Some(ceiling) = output.ceiling {
            with_ceiling += 1;
            let bound = output.comparison.max_derived_bound;
            assert!(bound < ceiling, "{} {}: {bound:e} is over {ceiling:e}", report.name, output.name);
        }
    }
    assert!(with_ceiling > 0);
}

#[test]
fn the_channel_first_suite_passes_below_its_ceilings() {
    assert_below_ceilings(&verify("conv1d-first", CaseSize::is_quick));
}

#[test]
fn the_longest_sums_stay_below_the_ceilings() {
    // 16,384 terms in dweight and dbias: more than any other case of the contract.
    let suite = Suite::open("conv1d-first").unwrap();
    let reports: Vec<_> = suite
        .cases
        .iter()
        .filter(|case| case.name.starts_with("long-"))
        .map(|case| run_case(case, &Device::cpu()))
        .collect();
    assert_eq!(reports.len(), 6);
    assert!(reports.iter().all(|report| report.passed));
    assert_below_ceilings(&reports);
}

#[test]
fn the_channel_last_suite_passes_below_its_ceilings() {
    assert_below_ceilings(&verify("conv1d-last", CaseSize::is_quick));
}

#[test]
fn the_same_token_has_the_same_bits_in_every_way() {
    for report in verify("parity", |_| true) {
        let residual = report.options.iter().any(|option| option == "residual");
        assert_eq!(report.outputs.len(), if residual { 31 } else { 35 }, "{}", report.name);
    }
}

#[test]
fn one_bit_of_difference_is_found_in_each_way() {
    let row =
        "[[parity]]\nname = \"one\"\nshape = [2, 5, 33]\nwidth = 4\ndtype = \"f32\"\nactivation = \"none\"\n";
    let run = |fault: &str| {
        let text = format!("name = \"one\"\nabout = \"a way that differs\"\n{row}{fault}");
        run_case(&Suite::parse("one", &text).unwrap().cases[0], &Device::cpu())
    };
    let plain = run("");
    assert!(plain.passed && plain.outputs.len() == 35, "{}", describe(&plain));
    for way in plain.outputs[1..].iter().map(|output| &output.name) {
        // Less than the bound of the oracle, and enough to leave a number of magnitude 1 for a neighbour.
        let report = run(&format!("fault = {{ output = \"{way}\", coordinate = [0, 1, 0], add = 2e-7 }}"));
        let failed: Vec<_> = report.outputs.iter().filter(|output| !output.passed()).collect();
        assert!(failed.len() == 1 && failed[0].name == *way && failed[0].comparison.failures == 1, "{way}");
    }
}

#[test]
fn the_full_suite_passes() {
    verify("full", CaseSize::is_quick);
}

/// A suite of one small case with a fault put into an output.
fn faulty(output: &str, coordinate: &str, add: &str) -> CaseReport {
    let text = format!(
        "name = \"faulty\"\nabout = \"a wrong value in {output}\"\n[[conv1d]]\nname = \"one\"\nshape = [2, 5, 33]\n\
         width = 4\nlayout = \"channel-first\"\ndtype = \"f32\"\nactivation = \"silu\"\nbias = true\n\
         initial_states = true\nfinal_states = true\n\
         fault = {{ output = \"{output}\", coordinate = {coordinate}, add = {add} }}\n"
    );
    let suite = Suite::parse("faulty", &text).unwrap();
    run_case(&suite.cases[0], &Device::cpu())
}

#[test]
fn a_wrong_value_is_found_and_named() {
    for (output, coordinate, add) in [
        ("y", "[1, 4, 32]", "1e-4"),
        ("final_states", "[0, 2, 1]", "1e-6"),
        ("dx", "[1, 0, 7]", "-1e-5"),
        ("dweight", "[3, 2]", "1e-4"),
        ("dbias", "[4]", "1e-4"),
        ("dinitial_states", "[1, 1, 0]", "1e-5"),
        ("dx", "[0, 3, 11]", "nan"),
        ("y", "[0, 0, 0]", "inf"),
    ] {
        let report = faulty(output, coordinate, add);
        assert!(!report.passed, "{output} plus {add} passed");
        let worst = report.worst_output().unwrap();
        assert_eq!(worst.name, output);
        assert_eq!(worst.comparison.failures, 1);
        let element = worst.comparison.worst.as_ref().unwrap();
        assert_eq!(format!("{:?}", element.coordinate), coordinate);
        assert!(element.to_string().starts_with(&format!("{coordinate} is ")), "{element}");
        assert!(report.options.iter().any(|option| option.starts_with("fault: ")));
    }
}

#[test]
fn a_fault_that_hits_nothing_is_an_error() {
    for (output, coordinate) in [("z", "[0]"), ("y", "[0, 0, 33]"), ("y", "[0, 0]")] {
        let report = faulty(output, coordinate, "1.0");
        assert!(!report.passed);
        let error = report.error.unwrap();
        assert!(error.contains("fault"), "{error}");
    }
}

/// A device whose kernels write nothing but the first byte of varlen_states' result: the same one each time, or one
/// more than the last time.
#[derive(Debug)]
struct OneByte {
    facts: DeviceFacts,
    next: AtomicU8,
    step: u8,
}

impl Executor for OneByte {
    fn name(&self) -> String {
        "one byte".to_string()
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    unsafe fn execute(&self, plan: &Plan) -> causeway::Result<()> {
        // The third address of its argument block.
        let address = u64::from_ne_bytes(plan.arguments[16..24].try_into().unwrap());
        let value = self.next.fetch_add(self.step, Ordering::Relaxed);
        // SAFETY: by the caller's promise it is host memory that this call may write.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).write(value) };
        Ok(())
    }
}

#[test]
fn repeats_that_differ_are_found() {
    let text = "name = \"r\"\nabout = \"repeats\"\n[[conv1d-varlen-states]]\nname = \"one\"\ndim = 5\nstate_len = 3\n\
                layout = \"channel-last\"\ndtype = \"f32\"\ncu_seqlens = { lengths = [4, 2], dtype = \"i32\" }\n";
    let suite = Suite::parse("r", text).unwrap();
    for (step, differed) in [(0, false), (1, true)] {
        let device = OneByte { facts: DeviceFacts::h200(), next: AtomicU8::new(0), step };
        let device = Device::Simulated(Arc::new(device));
        let report = run_case_repeatedly(&suite.cases[0], &device, NonZero::new(3).unwrap());
        assert_eq!((report.repeats, report.error.as_deref()), (3, None));
        assert_eq!(report.outputs[0].differed, differed, "{report:?}");
        // Outputs are poisoned before each repeat: what the last one did not write is missed.
        assert_eq!(report.outputs[0].comparison.unwritten, 2 * 5 * 3 - 1);
    }
}

#[test]
fn calls_are_repeated_on_a_cpu_too() {
    let suite = Suite::open("small").unwrap();
    let wanted = ["plain-2x19x150-channel-first-f32", "update-3x21x4-s7", "varlen-states"];
    let cases = suite.cases.iter().filter(|case| wanted.iter().any(|name| case.name.starts_with(name)));
    let reports: Vec<_> =
        cases.map(|case| run_case_repeatedly(case, &Device::cpu(), NonZero::new(4).unwrap())).collect();
    assert!(reports.len() >= 6);
    for report in &reports {
        assert!(report.passed && report.repeats == 4, "{}", describe(report));
    }
}

/// A row of which a sample is checked, with a line of its own.
fn sampled(layout: &str, line: &str) -> CaseReport {
    let text = format!(
        "name = \"sampled\"\nabout = \"a sample\"\n[[conv1d]]\nname = \"one\"\nshape = [3, 11, 40]\nwidth = 4\n\
         layout = \"{layout}\"\ndtype = \"f16\"\nactivation = \"silu\"\nbias = true\nsample = true\n{line}\n"
    );
    run_case(&Suite::parse("sampled", &text).unwrap().cases[0], &Device::cpu())
}

#[test]
fn a_sample_of_channels_is_compared_and_says_so() {
    for layout in ["channel-first", "channel-last"] {
        let report = sampled(layout, "output_layout = \"channel-last\"");
        assert!(report.passed && report.sampled, "{}", describe(&report));
        let elements: Vec<_> =
            report.outputs.iter().map(|o| (o.name.as_str(), o.comparison.elements)).collect();
        assert_eq!(elements, [("y", 360), ("dx", 360), ("dweight", 12), ("dbias", 3)]);
        assert!(report.options.contains(&"checked: channels 0, 5, 10".to_string()), "{:?}", report.options);
    }
}

#[test]
fn a_wrong_value_in_a_sampled_channel_is_named_by_its_place_in_the_tensor() {
    for (output, coordinate) in
        [("y", "[2, 10, 39]"), ("dx", "[0, 5, 7]"), ("dweight", "[10, 3]"), ("dbias", "[5]")]
    {
        let fault = format!("fault = {{ output = \"{output}\", coordinate = {coordinate}, add = 0.25 }}");
        let report = sampled("channel-last", &fault);
        let worst = report.worst_output().unwrap();
        assert!(!report.passed && worst.name == output);
        assert_eq!(format!("{:?}", worst.comparison.worst.as_ref().unwrap().coordinate), coordinate);
    }
}

#[test]
fn reports_survive_json() {
    for report in
        [faulty("y", "[0, 0, 0]", "1.0"), faulty("dx", "[0, 3, 11]", "nan"), faulty("y", "[1, 1, 1]", "inf")]
    {
        let text = serde_json::to_string(&report).unwrap();
        let again: CaseReport = serde_json::from_str(&text).unwrap();
        // NaN is not equal to itself: the text is.
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        assert!(!text.contains("\"found\":null"));
    }
}
