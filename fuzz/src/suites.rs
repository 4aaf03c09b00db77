//! Suites out of text.

use std::sync::LazyLock;

use causeway::backend::gpu::compiler::Target;
use causeway::backend::gpu::plan::DeviceFacts;
use causeway_verify::suite::{Suite, plans};

/// Cases of one suite that are planned.
const PLANNED: usize = 32;

static DEVICES: LazyLock<Vec<DeviceFacts>> = LazyLock::new(|| {
    let facts = |name| DeviceFacts::of_target(&Target::parse(name).expect("an architecture"));
    ["sm_80", "sm_90a", "gfx942", "gfx1100"].into_iter().map(facts).collect()
});

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Suite::parse("input", text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(suite) => {
            for case in suite.cases.iter().take(PLANNED) {
                let problem = &case.problem;
                let _ = (problem.elements(), problem.shape(), problem.layout(), problem.options());
                for facts in &*DEVICES {
                    let _ = plans(case, facts);
                }
            }
        }
    }
}
