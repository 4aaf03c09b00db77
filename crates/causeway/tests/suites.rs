//! The suites on the CPU, and the engine on a device that is wrong.

use causeway::Device;
use causeway::suite::{CaseReport, Suite, run_case};

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
    fn of(case: &causeway::suite::Case) -> Self {
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
