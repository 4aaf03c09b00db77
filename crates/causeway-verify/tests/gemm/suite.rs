//! Products in suites: cases by name, and faults that the check has to find.

use causeway::Device;
use causeway_verify::suite::{CaseReport, Problem, Suite, run_case};

#[test]
fn the_suite_covers_the_contract() {
    let suite = Suite::open("gemm").unwrap();
    let has = |name: &str| suite.cases.iter().any(|case| case.name == name);
    for size in [16, 32, 64, 128, 256, 512, 1024] {
        for rest in ["f16-fast", "f16-exact", "bf16-fast", "bf16-exact"] {
            assert!(has(&format!("square-{size}x{size}x{size}-{rest}")), "{size} {rest}");
        }
    }
    assert!(has("ragged-127x129x255-bf16-exact") && has("layout-65x67x130-column-major-f16-fast"));
    let together = |problem: &Problem| matches!(problem, Problem::Gemm(gemm) if gemm.together);
    assert_eq!(suite.cases.iter().filter(|case| together(&case.problem)).count(), 2 * 4);
}

fn faulty(algorithm: &str, output: &str, coordinate: &str, add: &str) -> CaseReport {
    let text = format!(
        "name = \"faulty\"\nabout = \"a wrong value in {output}\"\n[[gemm]]\nname = \"one\"\nshape = [20, 30, 40]\n\
         layout = \"row-major\"\ndtype = \"f16\"\nalgorithm = \"{algorithm}\"\n\
         fault = {{ output = \"{output}\", coordinate = {coordinate}, add = {add} }}\n"
    );
    run_case(&Suite::parse("faulty", &text).unwrap().cases[0], &Device::cpu())
}

#[test]
fn a_wrong_value_is_found_and_named() {
    for (algorithm, output, coordinate, add) in [
        ("fast", "C", "[19, 29]", "0.05"),
        ("fast", "grad_A", "[0, 39]", "-0.05"),
        ("fast", "grad_B", "[39, 0]", "nan"),
        ("exact", "C", "[3, 4]", "0.01"),
        ("exact", "grad_A", "[5, 6]", "0.01"),
        ("exact", "grad_B", "[7, 8]", "-0.01"),
    ] {
        let report = faulty(algorithm, output, coordinate, add);
        assert!(!report.passed, "{output} plus {add} passed");
        let worst = report.worst_output().unwrap();
        assert_eq!((worst.name.as_str(), worst.comparison.failures), (output, 1));
        let element = worst.comparison.worst.as_ref().unwrap();
        assert_eq!(format!("{:?}", element.coordinate), coordinate);
    }
}

#[test]
fn a_row_that_makes_no_sense_is_explained() {
    let row = |extra: &str| {
        let text = format!(
            "name = \"t\"\nabout = \"t\"\n[[gemm]]\nname = \"a\"\nlayout = \"row-major\"\ndtype = \"f16\"\n{extra}"
        );
        Suite::parse("t", &text).unwrap_err().to_string()
    };
    let fine = "shape = [1, 2, 3]\nalgorithm = \"fast\"\n";
    for (extra, sentence) in [
        ("shape = [1, 2, 3]\nalgorithm = \"quick\"", "algorithm is \"quick\": expected fast or exact"),
        ("shape = [1, 2, -3]\nalgorithm = \"fast\"", "shape [1, 2, -3] has a negative size"),
        (
            &format!("{fine}output_layout = \"diagonal\""),
            "layout is \"diagonal\": expected one of row-major,",
        ),
        (
            &format!("{fine}values = \"nan-padding\""),
            "values is nan-padding: matrices have no padded positions",
        ),
    ] {
        let message = row(extra);
        assert!(message.contains(sentence), "{message:?} does not say {sentence:?}");
    }
}
