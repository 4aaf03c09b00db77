//! Runs a case on a device and checks every output.

use std::time::Instant;

use super::case::{Case, Conv1d, Problem, Update, VarlenStates};
use super::check;
use super::gemm::Gemm;
use super::report::{CaseReport, Timing};
use crate::causal_conv1d;
use crate::device::Device;
use crate::error::Result;
use crate::gemm::{self, Algorithm};
use crate::host_tensor::HostTensor;
use crate::oracle::causal_conv1d as oracle;
use crate::oracle::gemm::Product;
use crate::oracle::{Expected, POISON};
use crate::placement::{Input, Output};
use crate::tensor::TensorRef;

/// Runs every call of a case on a device and compares every output with the oracle.
///
/// Inputs are generated from the case's name, outputs are poisoned first, and the memory around and between their
/// elements is checked to be untouched. An operation that refuses its arguments makes the case fail, with the
/// reason in [`CaseReport::error`].
pub fn run_case(case: &Case, device: &Device) -> CaseReport {
    let problem = &case.problem;
    let shape = problem.shape().into_iter().map(|(name, size)| (name.to_string(), size));
    let mut options = problem.options();
    if let Some(fault) = &case.fault {
        options.push(format!("fault: {} at {:?} plus {}", fault.output, fault.coordinate, fault.add));
    }
    let mut run = Run {
        case,
        device,
        report: CaseReport {
            name: case.name.clone(),
            backend: device.to_string(),
            operation: problem.operation().to_string(),
            shape: shape.collect(),
            dtype: problem.dtype().to_string(),
            layout: problem.layout().to_string(),
            options,
            outputs: Vec::new(),
            timings: Vec::new(),
            error: None,
            passed: false,
        },
    };
    let done = match problem {
        Problem::Conv1d(conv1d) => run.conv1d(conv1d),
        Problem::Update(update) => run.update(update),
        Problem::VarlenStates(varlen_states) => run.varlen_states(varlen_states),
        Problem::Gemm(gemm) => run.gemm(gemm),
    };
    let mut report = run.report;
    let misplaced = || case.fault.as_ref().and_then(|fault| check::misplaced(fault, &report.outputs));
    report.error = done.err().map(|error| error.to_string()).or_else(misplaced);
    report.passed = report.error.is_none() && report.outputs.iter().all(|output| output.passed());
    report
}

/// An output with every byte, gaps and guards included, set so that it cannot pass for a result.
fn poisoned(device: &Device, mut tensor: HostTensor) -> Result<Output> {
    tensor.fill_bytes(POISON);
    Output::place(device, tensor)
}

struct Run<'a> {
    case: &'a Case,
    device: &'a Device,
    report: CaseReport,
}

impl Run<'_> {
    fn conv1d(&mut self, conv1d: &Conv1d) -> Result<()> {
        let tensors = conv1d.tensors(&self.case.name)?;
        let device = self.device;
        let x = Input::place(device, &tensors.x)?;
        let weight = Input::place(device, &tensors.weight)?;
        let bias = Input::place_optional(device, &tensors.bias)?;
        let residual = Input::place_optional(device, &tensors.residual)?;
        let initial_states = Input::place_optional(device, &tensors.initial_states)?;
        let seq_idx = Input::place_optional(device, &tensors.seq_idx)?;
        let cu_seqlens = Input::place_optional(device, &tensors.cu_seqlens)?;
        let dy = Input::place(device, &tensors.dy)?;
        let dfinal_states = Input::place_optional(device, &tensors.dfinal_states)?;
        let like_x = || poisoned(device, conv1d.output_layout.zeros(conv1d.dtype, conv1d.x_shape())?);
        let states = |wanted: bool| {
            let make = || conv1d.output_layout.zeros(conv1d.dtype, conv1d.states_shape());
            wanted.then(|| poisoned(device, make()?)).transpose()
        };
        let parameter = |shape: &[i64]| poisoned(device, super::layout::dense(conv1d.dweight_dtype, shape)?);
        let truth_inputs = tensors.oracle_inputs(conv1d);

        let mut y = like_x()?;
        let mut final_states = states(conv1d.final_states)?;
        let mut forward = causal_conv1d::Forward {
            x: x.view(),
            weight: weight.view(),
            bias: view(&bias),
            initial_states: view(&initial_states),
            seq_idx: view(&seq_idx),
            cu_seqlens: view(&cu_seqlens),
            residual: view(&residual),
            activation: conv1d.activation,
            y: y.view(),
            final_states: final_states.as_mut().map(Output::view),
        };
        self.time("conv1d-forward", || forward.run(device))?;
        let truth = oracle::forward(&truth_inputs);
        self.check("y", &truth.y, y)?;
        self.check_optional("final_states", &truth.final_states, final_states)?;
        drop(truth);

        let mut dx = like_x()?;
        let mut dweight = parameter(&[conv1d.dim, conv1d.width])?;
        let mut dbias = conv1d.bias.then(|| parameter(&[conv1d.dim])).transpose()?;
        let mut dinitial_states = states(conv1d.initial_states)?;
        let mut backward = causal_conv1d::Backward {
            x: x.view(),
            weight: weight.view(),
            bias: view(&bias),
            dy: dy.view(),
            initial_states: view(&initial_states),
            seq_idx: view(&seq_idx),
            cu_seqlens: view(&cu_seqlens),
            dfinal_states: view(&dfinal_states),
            activation: conv1d.activation,
            dx: dx.view(),
            dweight: dweight.view(),
            dbias: dbias.as_mut().map(Output::view),
            dinitial_states: dinitial_states.as_mut().map(Output::view),
        };
        self.time("conv1d-backward", || backward.run(device))?;
        let dfinal_states = tensors.dfinal_states.as_ref().map(HostTensor::view);
        let truth =
            oracle::backward(&truth_inputs, &tensors.dy.view(), dfinal_states.as_ref(), conv1d.dweight_dtype);
        self.check("dx", &truth.dx, dx)?;
        self.check("dweight", &truth.dweight, dweight)?;
        self.check_optional("dbias", &truth.dbias, dbias)?;
        self.check_optional("dinitial_states", &truth.dinitial_states, dinitial_states)
    }

    fn update(&mut self, update: &Update) -> Result<()> {
        let tensors = update.tensors(&self.case.name)?;
        let device = self.device;
        let truth = oracle::update(&tensors.oracle_inputs(update));
        let x = Input::place(device, &tensors.x)?;
        let weight = Input::place(device, &tensors.weight)?;
        let bias = Input::place_optional(device, &tensors.bias)?;
        let cache_seqlens = Input::place_optional(device, &tensors.cache_seqlens)?;
        let conv_state_indices = Input::place_optional(device, &tensors.conv_state_indices)?;
        let mut conv_state = Output::place(device, tensors.conv_state.clone())?;
        let mut y = poisoned(device, update.like_x()?)?;
        let mut call = causal_conv1d::Update {
            x: x.view(),
            conv_state: conv_state.view(),
            weight: weight.view(),
            bias: view(&bias),
            cache_seqlens: view(&cache_seqlens),
            conv_state_indices: view(&conv_state_indices),
            activation: update.activation,
            y: y.view(),
        };
        self.time("conv1d-update", || call.run(device))?;
        self.check("y", &truth.y, y)?;
        self.check("conv_state", &truth.conv_state, conv_state)
    }

    fn varlen_states(&mut self, problem: &VarlenStates) -> Result<()> {
        let tensors = problem.tensors(&self.case.name)?;
        let device = self.device;
        let x = Input::place(device, &tensors.x)?;
        let cu_seqlens = Input::place(device, &tensors.cu_seqlens)?;
        let shape = [problem.cu_seqlens.lengths.len() as i64, problem.dim, problem.state_len];
        let mut states = poisoned(device, problem.layout.zeros(problem.dtype, shape)?)?;
        let mut call =
            causal_conv1d::VarlenStates { x: x.view(), cu_seqlens: cu_seqlens.view(), states: states.view() };
        self.time("conv1d-varlen-states", || call.run(device))?;
        let truth = oracle::varlen_states(&tensors.x.view(), &tensors.cu_seqlens.view(), problem.state_len);
        self.check("states", &truth, states)
    }

    fn gemm(&mut self, problem: &Gemm) -> Result<()> {
        let tensors = problem.tensors(&self.case.name)?;
        let (device, algorithm, layout) = (self.device, problem.algorithm, problem.output_layout);
        let a = Input::place(device, &tensors.a)?;
        let b = Input::place(device, &tensors.b)?;
        let grad_c = Input::place(device, &tensors.grad_c)?;
        let output = |rows, columns| poisoned(device, layout.zeros(problem.dtype, [rows, columns])?);
        let mut c = output(problem.m, problem.n)?;
        let mut grad_a = output(problem.m, problem.k)?;
        let mut grad_b = output(problem.k, problem.n)?;

        let (a_view, b_view, grad_c_view) = (a.view(), b.view(), grad_c.view());
        let mut forward = gemm::Forward { a: a_view, b: b_view, algorithm, c: c.view() };
        self.time("gemm-forward", || forward.run(device))?;
        if problem.together {
            let mut both = gemm::GradAB {
                grad_c: grad_c_view,
                a: a_view,
                b: b_view,
                algorithm,
                grad_a: grad_a.view(),
                grad_b: grad_b.view(),
            };
            self.time("gemm-grad-ab", || both.run(device))?;
        } else {
            let mut of_a = gemm::GradA { grad_c: grad_c_view, b: b_view, algorithm, grad_a: grad_a.view() };
            self.time("gemm-grad-a", || of_a.run(device))?;
            let mut of_b = gemm::GradB { grad_c: grad_c_view, a: a_view, algorithm, grad_b: grad_b.view() };
            self.time("gemm-grad-b", || of_b.run(device))?;
        }

        let (a, b, grad_c) = (tensors.a.view(), tensors.b.view(), tensors.grad_c.view());
        self.check_product("C", &Product::forward(a, b), algorithm, c)?;
        self.check_product("grad_A", &Product::grad_a(grad_c, b), algorithm, grad_a)?;
        self.check_product("grad_B", &Product::grad_b(grad_c, a), algorithm, grad_b)
    }

    fn check_product(
        &mut self,
        name: &str,
        product: &Product<'_>,
        algorithm: Algorithm,
        found: Output,
    ) -> Result<()> {
        match algorithm {
            Algorithm::Fast => self.check(name, &product.expected(), found),
            Algorithm::Exact => {
                self.report.outputs.push(check::bits(self.case, name, &product.chain(), found.fetch()?));
                Ok(())
            }
        }
    }

    fn time(&mut self, operation: &str, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        call()?;
        self.device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        self.report.timings.push(Timing { operation: operation.to_string(), seconds });
        Ok(())
    }

    fn check(&mut self, name: &str, truth: &Expected, found: Output) -> Result<()> {
        self.report.outputs.push(check::output(self.case, name, truth, found.fetch()?));
        Ok(())
    }

    fn check_optional(&mut self, name: &str, truth: &Expected, found: Option<Output>) -> Result<()> {
        found.map_or(Ok(()), |found| self.check(name, truth, found))
    }
}

fn view<'a>(input: &'a Option<Input<'_>>) -> Option<TensorRef<'a>> {
    input.as_ref().map(Input::view)
}
