//! The launches that a case is on a GPU, on a machine that need not have one.

use std::collections::HashMap;

use causeway::backend::gpu::choice::Choice;
use causeway::backend::gpu::plan::{DeviceFacts, Plan, Vendor};
use causeway::error::Result;
use causeway::gemm::{Forward, GradAB};
use causeway::tensor::{DType, Location, TensorMut, TensorRef};
use causeway::{Arrangement, Device};
use rayon::prelude::*;

use super::calls::Call;
use super::case::{Case, Problem};
use super::gemm::{GemmResults, GemmTensors};

/// The plans of every call of a case on a device with these facts, with the names of the calls.
///
/// Planners read no elements, so no memory is taken, however large the tensors are. Calls that need no launch are
/// left out.
///
/// # Errors
/// If the operation refuses the case.
pub fn plans(case: &Case, facts: &DeviceFacts) -> Result<Vec<(&'static str, Plan)>> {
    let mut space = AddressSpace::of(facts.vendor);
    let mut plans = Vec::new();
    let mut add = |name: &'static str, call: &dyn Call| -> Result<()> {
        plans.extend(call.plans(facts)?.into_iter().map(|plan| (name, plan)));
        Ok(())
    };
    match &case.problem {
        Problem::Conv1d(conv1d) => {
            let inputs = conv1d.inputs(|_, arrangement| space.input(&arrangement))?;
            let mut forward = conv1d.forward_results(|_, arrangement| space.output(&arrangement))?;
            let mut backward = conv1d.backward_results(|_, arrangement| space.output(&arrangement))?;
            add("conv1d-forward", &*conv1d.forward_or_parts(&inputs, &mut forward, TensorMut::reborrow))?;
            add("conv1d-backward", &*conv1d.backward_or_parts(&inputs, &mut backward, TensorMut::reborrow))?;
        }
        // Of the other ways there are many calls of few variants, compiled when they are first made.
        Problem::Parity(plain) => {
            let inputs = plain.inputs(|_, arrangement| space.input(&arrangement))?;
            let mut results = plain.forward_results(|_, arrangement| space.output(&arrangement))?;
            add("conv1d-forward", &plain.forward(&inputs, &mut results, TensorMut::reborrow))?;
        }
        Problem::Update(update) => {
            let inputs = update.inputs(|_, arrangement| space.input(&arrangement))?;
            let mut results = update.results(|_, arrangement| space.output(&arrangement))?;
            add("conv1d-update", &*update.call_or_parts(&inputs, &mut results, TensorMut::reborrow))?;
        }
        Problem::VarlenStates(states) => {
            let inputs = states.inputs(|_, arrangement| space.input(&arrangement))?;
            let mut results = states.results(|_, arrangement| space.output(&arrangement))?;
            add("conv1d-varlen-states", &states.call(&inputs, &mut results, TensorMut::reborrow))?;
        }
        Problem::Gemm(gemm) => {
            let GemmTensors { a, b, grad_c } = gemm.inputs(|_, arrangement| space.input(&arrangement))?;
            let GemmResults { c, grad_a, grad_b } =
                gemm.results(|_, arrangement| space.output(&arrangement))?;
            let algorithm = gemm.algorithm;
            add("gemm-forward", &Forward { a, b, algorithm, c })?;
            let [of_a, of_b] = GradAB { grad_c, a, b, algorithm, grad_a, grad_b }.plans(facts)?;
            plans.extend(of_a.map(|plan| ("gemm-grad-a", plan)));
            plans.extend(of_b.map(|plan| ("gemm-grad-b", plan)));
        }
    }
    Ok(plans)
}

/// All that a launch is made of, to tell it from others.
pub fn identity(call: &str, plan: &Plan) -> Vec<u8> {
    let places =
        (plan.workspace_at.first(), plan.counters_at.first(), plan.programmatic_launch, plan.cluster);
    let mut identity = format!("{call}\n{plan}\n{places:?}\n").into_bytes();
    identity.extend(&plan.arguments);
    identity
}

/// Compiles and loads what cases launch on a device, on all threads of the pool. A kernel of a GPU that cannot be made is named
/// by the calls that need it.
///
/// # Errors
/// Those of a simulator's compiler.
pub fn prepare(cases: &[Case], device: &Device) -> Result<()> {
    match device {
        Device::Gpu(stream) => {
            let device = stream.device();
            // One at a time per thread: some kernels take ten times as long as others.
            distinct_plans(cases, device.facts()).par_iter().with_max_len(1).for_each(|plan| {
                let _ = device.prepare(plan);
            });
            Ok(())
        }
        Device::Simulated(executor) => executor.prepare(&distinct_plans(cases, executor.facts())),
        // A processor's code is there.
        Device::Cpu(_) => Ok(()),
    }
}

/// The kernels that the calls of a case launch, in the order of the launches.
///
/// # Errors
/// As for [`plans`].
pub(super) fn kernels(case: &Case, facts: &DeviceFacts) -> Result<Vec<Choice>> {
    Ok(plans(case, facts)?.into_iter().map(|(_, plan)| plan.choice).collect())
}

/// The plans of many cases, each kernel once: what has to be compiled before they run. Cases that an operation
/// refuses have none; running them says why.
pub fn distinct_plans<'a>(cases: impl IntoIterator<Item = &'a Case>, facts: &DeviceFacts) -> Vec<Plan> {
    let mut kernels = HashMap::new();
    let gpu = |case: &&Case| case.problem.dtype() != DType::F64;
    for (_, plan) in cases.into_iter().filter(gpu).flat_map(|case| plans(case, facts).unwrap_or_default()) {
        kernels.entry(plan.choice.clone()).or_insert(plan);
    }
    let mut plans: Vec<Plan> = kernels.into_values().collect();
    plans.sort_by_cached_key(|plan| (plan.header(), plan.choice.source()));
    plans
}

/// Device addresses for tensors that need not exist, no two of them overlapping.
struct AddressSpace {
    next: u64,
    location: Location,
}

impl AddressSpace {
    /// What allocations of a device begin at multiples of.
    const ALIGNMENT: u64 = 256;

    fn of(vendor: Vendor) -> Self {
        let location = match vendor {
            Vendor::Nvidia => Location::Cuda(0),
            Vendor::Amd => Location::Hip(0),
        };
        AddressSpace { next: 1 << 40, location }
    }

    /// The address of a tensor's first element.
    fn reserve(&mut self, arrangement: &Arrangement) -> usize {
        let begin = self.next;
        self.next = begin.saturating_add(arrangement.bytes()).saturating_add(Self::ALIGNMENT)
            & !(Self::ALIGNMENT - 1);
        let offset = arrangement.offset.wrapping_mul(arrangement.dtype.size() as i64);
        begin.wrapping_add_signed(offset) as usize
    }

    fn input(&mut self, arrangement: &Arrangement) -> Result<TensorRef<'static>> {
        let first = std::ptr::without_provenance(self.reserve(arrangement));
        let Arrangement { dtype, shape, strides, .. } = arrangement;
        // SAFETY: the view is handed to planners only, which never follow its address: its location says that the
        // host could not.
        unsafe { TensorRef::from_raw(first, *dtype, shape, strides, self.location) }
    }

    fn output(&mut self, arrangement: &Arrangement) -> Result<TensorMut<'static>> {
        let first = std::ptr::without_provenance_mut(self.reserve(arrangement));
        let Arrangement { dtype, shape, strides, .. } = arrangement;
        // SAFETY: as above.
        unsafe { TensorMut::from_raw(first, *dtype, shape, strides, self.location) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn every_case_that_a_gpu_is_asked_for_has_its_plans() {
        let suite = Suite::open("full").unwrap();
        for facts in [DeviceFacts::h200(), DeviceFacts::mi300x()] {
            let mut launches = 0;
            for case in suite.cases.iter().filter(|case| case.problem.dtype() != DType::F64) {
                let plans = plans(case, &facts).unwrap_or_else(|error| panic!("{}: {error}", case.name));
                for (call, plan) in &plans {
                    assert!(!plan.grid.contains(&0), "{} {call} launches nothing", case.name);
                    assert!(plan.shared_bytes <= facts.shared_per_block, "{} {call}", case.name);
                }
                launches += plans.len();
            }
            assert!(launches > suite.cases.len(), "only {launches} launches");
        }
    }

    #[test]
    fn each_kernel_is_named_once() {
        let suite = Suite::open("full").unwrap();
        let facts = DeviceFacts::h200();
        let distinct = distinct_plans(&suite.cases, &facts);
        let all = suite.cases.iter().filter(|case| case.problem.dtype() != DType::F64);
        let mut kernels: Vec<_> = all.flat_map(|case| plans(case, &facts).unwrap()).collect();
        assert!(distinct.len() < kernels.len());
        kernels.retain(|(_, plan)| !distinct.iter().any(|d| d.choice == plan.choice));
        assert!(kernels.is_empty(), "{kernels:?}");
    }
}
