//! Is the suite `sim` able to fail? Each fault of mutants.toml is put into a kernel, and a case has to notice.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use causeway::backend::gpu::Executor;
use causeway::{DType, Device};
use causeway_sim::{Edit, Simulator};
use causeway_verify::suite::{Case, Suite, plans, run_case};
use rayon::prelude::*;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutant: Vec<Mutant>,
}

/// One fault.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// What is wrong, in words.
    fault: String,
    /// The kernel's file.
    file: String,
    /// Text that the file has once.
    right: String,
    /// What stands there in the mutant.
    wrong: String,
    /// A device of tests/simulator.
    device: String,
    /// Beginning of the names of the cases that have to fail.
    case: String,
}

impl Mutant {
    fn all() -> Vec<Mutant> {
        toml::from_str::<Table>(include_str!("mutants.toml")).unwrap().mutant
    }

    /// The device without the fault, and with it.
    fn simulators(&self) -> [Simulator; 2] {
        // One block after the other, so that what happens does not depend on the machine.
        let sound = Simulator::open(&self.device).unwrap().with_workers(1);
        let edit = Edit { right: self.right.clone(), wrong: self.wrong.clone() };
        [sound.clone(), sound.with_edit(edit)]
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Suite::open("sim").unwrap().cases;
        cases.retain(|case| case.name.starts_with(&self.case) && case.problem.dtype() != DType::F64);
        cases
    }

    /// What is wrong with the table's entry, or with the suite.
    fn survives(&self, number: usize) -> Option<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").join(&self.file);
        let text = std::fs::read_to_string(&path).expect("the kernel's file can be read");
        let found = text.matches(&self.right).count();
        if found != 1 {
            return Some(format!(
                "kernels/{} has {:?} {found} times: mend mutants.toml",
                self.file, self.right
            ));
        }
        let [sound, mutant] = self.simulators();
        let cases = self.cases();
        if cases.is_empty() {
            return Some(format!("no case begins with {:?}", self.case));
        }
        let planned = cases.iter().flat_map(|case| plans(case, sound.facts()).unwrap());
        let planned: Vec<_> = planned.map(|(_, plan)| plan).collect();
        // A mutant that does not compile would fail for the wrong reason.
        for simulator in [&sound, &mutant] {
            simulator.prepare(&planned).unwrap();
        }
        if let Some(case) = cases.iter().find(|case| !passes(&sound, case)) {
            return Some(format!("{} fails without the fault", case.name));
        }
        // A process of its own: what writes to wrong places may bring it down, which is noticed too.
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_mutant_survives", "--ignored"])
            .env(NUMBER, number.to_string())
            .output()
            .unwrap();
        child
            .status
            .success()
            .then(|| format!("{} cases pass with the fault on {}", cases.len(), self.device))
    }
}

fn passes(simulator: &Simulator, case: &Case) -> bool {
    run_case(case, &Device::Simulated(Arc::new(simulator.clone()))).passed
}

const NUMBER: &str = "CAUSEWAY_TEST_MUTANT";

#[test]
#[ignore = "run by every_fault_is_noticed"]
fn one_mutant_survives() {
    let mutant = Mutant::all().swap_remove(std::env::var(NUMBER).unwrap().parse().unwrap());
    let [_, simulator] = mutant.simulators();
    assert!(mutant.cases().iter().all(|case| passes(&simulator, case)), "{} is noticed", mutant.fault);
}

#[test]
fn every_fault_is_noticed() {
    let mutants = Mutant::all();
    let survives = |(number, mutant): (usize, &Mutant)| {
        Some(format!("{} ({}): {}", mutant.fault, mutant.file, mutant.survives(number)?))
    };
    let survivors: Vec<_> = mutants.par_iter().enumerate().filter_map(survives).collect();
    println!("{} of {} mutants killed", mutants.len() - survivors.len(), mutants.len());
    assert!(survivors.is_empty(), "survivors: {survivors:#?}");
}

/// Each device that the table names is one that the whole suite runs on, so that the suite as it is run notices.
#[test]
fn faults_are_looked_for_on_devices_that_are_run() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/simulator");
    let script = std::fs::read_to_string(script).unwrap();
    for mutant in Mutant::all() {
        let runs = script.split_whitespace().any(|word| word == mutant.device);
        assert!(runs, "{}: tests/simulator does not run {}", mutant.fault, mutant.device);
    }
}
