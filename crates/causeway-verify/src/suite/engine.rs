//! Runs a case on a device and checks every output.

mod parity;

use std::num::NonZero;
use std::time::Instant;

use causeway::backend::gpu::artifact::{Artifacts, Launch};
use causeway::device::Device;
use causeway::error::Result;
use causeway::gemm::{self, Algorithm};
use causeway::placement::{Input, Output};
use causeway::{Arrangement, HostTensor};

use super::calls::Call;
use super::case::{Case, Conv1d, Problem, Update, VarlenStates};
use super::check;
use super::coverage::Coverage;
use super::gemm::{Gemm, GemmResults};
use super::guards::Guards;
use super::repeats::Reference;
use super::report::{CaseReport, OutputReport, Timing};
use super::results::Results;
use super::sample::{Tiles, gather};
use super::tensors::{Tensors, channel_axis};
use crate::oracle::causal_conv1d as oracle;
use crate::oracle::gemm::Product;
use crate::oracle::{Expected, POISON};

/// Runs every call of a case on a device and compares every output with the oracle.
///
/// Inputs are generated from the case's name, outputs are poisoned first, and the memory around and between their
/// elements is checked to be untouched. An operation that refuses its arguments makes the case fail, with the
/// reason in [`CaseReport::error`].
pub fn run_case(case: &Case, device: &Device) -> CaseReport {
    run_case_repeatedly(case, device, NonZero::<u32>::MIN)
}

/// As [`run_case`], with every call made `repeats` times: outputs are poisoned before each, and each has to give the bits
/// of the first, around the elements too. The results of the last one are compared with the oracle.
pub fn run_case_repeatedly(case: &Case, device: &Device, repeats: NonZero<u32>) -> CaseReport {
    run_case_noting(case, device, repeats, None, &mut Coverage::default())
}

/// As [`run_case_repeatedly`]. Right before the first launch of each call, the file of its kernel is read again and compared
/// with what the device has loaded; what was seen goes to `artifacts`. If the case passes, what the planners chose for its
/// launches goes to `coverage`.
pub fn run_case_noting(
    case: &Case,
    device: &Device,
    repeats: NonZero<u32>,
    artifacts: Option<&mut Artifacts>,
    coverage: &mut Coverage,
) -> CaseReport {
    let problem = &case.problem;
    let shape = problem.shape().into_iter().map(|(name, size)| (name.to_string(), size));
    let mut options = problem.options();
    if let Some(fault) = &case.fault {
        options.push(format!("fault: {} at {:?} plus {}", fault.output, fault.coordinate, fault.add));
    }
    let mut run = Run {
        case,
        device,
        artifacts,
        coverage: Coverage::default(),
        different: Vec::new(),
        report: CaseReport {
            name: case.name.clone(),
            suite: String::new(),
            backend: device.to_string(),
            operation: problem.operation().to_string(),
            shape: shape.collect(),
            dtype: problem.dtype().to_string(),
            layout: problem.layout().to_string(),
            options,
            outputs: Vec::new(),
            sampled: case.sample,
            repeats: repeats.get(),
            launches: Vec::new(),
            timings: Vec::new(),
            error: None,
            passed: false,
        },
    };
    let done = match problem {
        Problem::Conv1d(conv1d) if case.sample => run.sampled_conv1d(conv1d),
        Problem::Conv1d(conv1d) => run.conv1d(conv1d),
        Problem::Parity(plain) => parity::run(&mut run, plain),
        Problem::Update(update) => run.update(update),
        Problem::VarlenStates(varlen_states) => run.varlen_states(varlen_states),
        Problem::Gemm(gemm) => run.gemm(gemm),
    };
    let (mut report, launched) = (run.report, run.coverage);
    let misplaced = || case.fault.as_ref().and_then(|fault| check::misplaced(fault, &report.outputs));
    report.error = done.err().map(|error| error.to_string()).or_else(misplaced);
    report.passed = report.error.is_none() && report.outputs.iter().all(|output| output.passed());
    if report.passed {
        coverage.add(&launched);
    }
    report
}

/// A case while it runs.
pub(super) struct Run<'a> {
    pub case: &'a Case,
    pub device: &'a Device,
    artifacts: Option<&'a mut Artifacts>,
    /// What the planners chose for its launches.
    coverage: Coverage,
    /// Results that were not the same each time.
    different: Vec<&'static str>,
    report: CaseReport,
}

impl Run<'_> {
    fn conv1d(&mut self, conv1d: &Conv1d) -> Result<()> {
        let tensors = conv1d.tensors(&self.case.name)?;
        let placed = tensors.try_map(|_, tensor| Input::place(self.device, tensor))?;
        let _guards = Guards::around(self.device, tensors.all());
        let inputs = placed.views(Input::view);

        let results = conv1d.forward_results(|_, arrangement| self.poisoned(&arrangement))?;
        let results = self.call("conv1d-forward", results, |results, with| {
            with(&mut *conv1d.forward_or_parts(&inputs, results, Output::view))
        })?;
        self.check_each(tensors.forward_truth(conv1d), results)?;

        let results = conv1d.backward_results(|_, arrangement| self.poisoned(&arrangement))?;
        let results = self.call("conv1d-backward", results, |results, with| {
            with(&mut *conv1d.backward_or_parts(&inputs, results, Output::view))
        })?;
        self.check_each(tensors.backward_truth(conv1d), results)
    }

    /// As [`Run::conv1d`], for tensors that may not fit into the host's memory: it never holds an input, and one result
    /// at a time.
    fn sampled_conv1d(&mut self, conv1d: &Conv1d) -> Result<()> {
        let (case, device) = (&self.case.name, self.device);
        let channels = conv1d.sample_channels();
        let list: Vec<_> = channels.iter().map(i64::to_string).collect();
        self.report.options.push(format!("checked: channels {}", list.join(", ")));
        let pairs: Tensors<(Input<'_>, HostTensor)> = conv1d.inputs(|name, arrangement| {
            let scale = conv1d.magnitude(name);
            if matches!(name, "x" | "dy") {
                let tiles = Tiles::new(arrangement.dtype, case, name, scale)?;
                let part = tiles.gather(&arrangement, &channels)?;
                return Ok((Input::tiled(device, &arrangement, tiles.bytes())?, part));
            }
            let tensor = super::values::uniform(&arrangement, case, name, scale)?;
            let part = gather(&tensor.view(), 0, &channels)?;
            Ok((Input::place_owned(device, tensor)?, part))
        })?;
        let inputs = pairs.views(|(placed, _)| placed.view());
        let parts = pairs.try_map(|_, (_, part)| Ok(part.clone()))?;
        let part = conv1d.of_channels(&channels);

        let results = conv1d.forward_results(|_, arrangement| self.poisoned(&arrangement))?;
        let results = self.call("conv1d-forward", results, |results, with| {
            with(&mut conv1d.forward(&inputs, results, Output::view))
        })?;
        self.check_sample(parts.forward_truth(&part), results, &channels)?;

        let results = conv1d.backward_results(|_, arrangement| self.poisoned(&arrangement))?;
        let results = self.call("conv1d-backward", results, |results, with| {
            with(&mut conv1d.backward(&inputs, results, Output::view))
        })?;
        self.check_sample(parts.backward_truth(&part), results, &channels)
    }

    fn update(&mut self, update: &Update) -> Result<()> {
        let tensors = update.tensors(&self.case.name)?;
        let truth = tensors.update_truth(update);
        let placed = tensors.try_map(|_, tensor| Input::place(self.device, tensor))?;
        let inputs = placed.views(Input::view);
        let results = update.results(|name, arrangement| match name {
            "conv_state" => Output::place(self.device, tensors.of(name).clone()),
            _ => self.poisoned(&arrangement),
        })?;
        let _guards = Guards::around(self.device, tensors.all());
        let results = self.call("conv1d-update", results, |results, with| {
            with(&mut *update.call_or_parts(&inputs, results, Output::view))
        })?;
        self.check_each(truth, results)
    }

    fn varlen_states(&mut self, problem: &VarlenStates) -> Result<()> {
        let tensors = problem.tensors(&self.case.name)?;
        let placed = tensors.try_map(|_, tensor| Input::place(self.device, tensor))?;
        let inputs = placed.views(Input::view);
        let results = problem.results(|_, arrangement| self.poisoned(&arrangement))?;
        let _guards = Guards::around(self.device, tensors.all());
        let results = self.call("conv1d-varlen-states", results, |results, with| {
            with(&mut problem.call(&inputs, results, Output::view))
        })?;
        let (x, boundaries) = (tensors.of("x").view(), tensors.of("cu_seqlens").view());
        let truth = oracle::varlen_states(&x, &boundaries, problem.state_len);
        self.check_each([("states", truth)], results)
    }

    fn gemm(&mut self, problem: &Gemm) -> Result<()> {
        let tensors = problem.tensors(&self.case.name)?;
        let algorithm = problem.algorithm;
        let [a, b, grad_c] =
            [&tensors.a, &tensors.b, &tensors.grad_c].map(|tensor| Input::place(self.device, tensor));
        let (a, b, grad_c) = (a?, b?, grad_c?);
        let _guards = Guards::around(self.device, [&tensors.a, &tensors.b, &tensors.grad_c]);
        let (a, b, grad_c) = (a.view(), b.view(), grad_c.view());
        let results = problem.results(|name, arrangement| Ok((name, self.poisoned(&arrangement)?)))?;
        let GemmResults { c, grad_a, grad_b } = results;

        let [c] = self.call("gemm-forward", [c], |[(_, c)], with| {
            with(&mut gemm::Forward { a, b, algorithm, c: c.view() })
        })?;
        let [grad_a, grad_b] = if problem.together {
            self.call("gemm-grad-ab", [grad_a, grad_b], |[(_, grad_a), (_, grad_b)], with| {
                let (grad_a, grad_b) = (grad_a.view(), grad_b.view());
                with(&mut gemm::GradAB { grad_c, a, b, algorithm, grad_a, grad_b })
            })?
        } else {
            let [grad_a] = self.call("gemm-grad-a", [grad_a], |[(_, grad_a)], with| {
                with(&mut gemm::GradA { grad_c, b, algorithm, grad_a: grad_a.view() })
            })?;
            let [grad_b] = self.call("gemm-grad-b", [grad_b], |[(_, grad_b)], with| {
                with(&mut gemm::GradB { grad_c, a, algorithm, grad_b: grad_b.view() })
            })?;
            [grad_a, grad_b]
        };

        let (a, b, grad_c) = (tensors.a.view(), tensors.b.view(), tensors.grad_c.view());
        self.check_product(c, &Product::forward(a, b), algorithm)?;
        self.check_product(grad_a, &Product::grad_a(grad_c, b), algorithm)?;
        self.check_product(grad_b, &Product::grad_b(grad_c, a), algorithm)
    }

    /// An output with every byte, gaps and guards included, set so that it cannot pass for a result.
    pub fn poisoned(&self, arrangement: &Arrangement) -> Result<Output> {
        Output::filled(self.device, arrangement, POISON)
    }

    /// Makes a call as often as was asked for.
    pub fn call<R: Results<Output>>(
        &mut self,
        operation: &str,
        mut results: R,
        with_call: impl Fn(&mut R, &mut dyn FnMut(&mut dyn Call) -> Result<()>) -> Result<()>,
    ) -> Result<R> {
        let (repeats, device) = (self.report.repeats, self.device);
        if !self.case.sample {
            for (_, result) in results.tensors() {
                check::reserve_for_oracle(result.view().shape())?;
            }
        }
        let mut run = |call: &mut dyn Call| call.run(device);
        with_call(&mut results, &mut |call| self.note_launches(operation, call))?;
        let bytes = self.case.problem.moved_bytes(operation)?;
        let mut reference = (repeats > 1).then(|| Reference::before(device, &mut results)).transpose()?;
        let start = Instant::now();
        with_call(&mut results, &mut run)?;
        self.device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        self.report.timings.push(Timing { operation: operation.to_string(), seconds, bytes });
        if let Some(mut reference) = reference.take() {
            reference.keep(&mut results)?;
            for _ in 1..repeats {
                reference.reset(&mut results)?;
                with_call(&mut results, &mut run)?;
                reference.compare(&mut results)?;
            }
            let names = results.tensors().into_iter().map(|(name, _)| name);
            let differed = names.zip(reference.differed()?);
            self.different.extend(differed.filter_map(|(name, differed)| differed.then_some(name)));
        }
        Ok(results)
    }

    /// What a call is about to launch, and what the files of its kernels hold.
    pub fn note_launches(&mut self, operation: &str, call: &mut dyn Call) -> Result<()> {
        let Some(facts) = self.device.facts() else { return Ok(()) };
        for plan in call.plans(facts)? {
            self.coverage.note(&plan);
            let launch = match &mut self.artifacts {
                Some(artifacts) => artifacts.note(operation, &plan, self.device.check(&plan)?),
                None => Launch::of(operation, &plan, None),
            };
            self.report.launches.push(launch);
        }
        Ok(())
    }

    pub fn note(&mut self, mut output: OutputReport) {
        output.differed = self.different.contains(&output.name.as_str());
        self.report.outputs.push(output);
    }

    fn check_product(
        &mut self,
        (name, found): (&'static str, Output),
        product: &Product<'_>,
        algorithm: Algorithm,
    ) -> Result<()> {
        match algorithm {
            Algorithm::Fast => self.check(name, &product.expected(), found),
            Algorithm::Exact => {
                self.note(check::bits(self.case, name, &product.chain(), found.fetch()?));
                Ok(())
            }
        }
    }

    pub fn check(&mut self, name: &str, truth: &Expected, found: Output) -> Result<()> {
        self.note(check::output(self.case, name, truth, found.fetch()?));
        Ok(())
    }

    /// Checks what was asked for of all that a call can give.
    fn check_each(
        &mut self,
        truths: impl IntoIterator<Item = (&'static str, Expected)>,
        mut results: Tensors<Output>,
    ) -> Result<()> {
        for (name, truth) in truths {
            if let Some(found) = results.take(name) {
                self.check(name, &truth, found)?;
            }
        }
        every_result_was_checked(&results);
        Ok(())
    }

    /// As [`Run::check_each`], for the truth of some channels.
    fn check_sample(
        &mut self,
        truths: impl IntoIterator<Item = (&'static str, Expected)>,
        mut results: Tensors<Output>,
        channels: &[i64],
    ) -> Result<()> {
        for (name, truth) in truths {
            if let (Some(found), Some(axis)) = (results.take(name), channel_axis(name)) {
                self.note(check::sample(self.case, name, &truth, found.fetch()?, (axis, channels))?);
            }
        }
        every_result_was_checked(&results);
        Ok(())
    }
}

/// A result that a table has and the oracle has not would pass for right.
fn every_result_was_checked(left: &Tensors<Output>) {
    let names: Vec<_> = left.iter().map(|(name, _)| name).collect();
    assert!(names.is_empty(), "the oracle does not know {}", names.join(", "));
}
