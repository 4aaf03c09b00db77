//! The launches that a case is on a GPU, on a machine that need not have one.

use super::case::{Case, Conv1d, Problem, Update, VarlenStates};
use super::layout::dense;
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::causal_conv1d;
use crate::error::Result;
use crate::host_tensor::HostTensor;
use crate::tensor::DType;

/// The plans of every call of a case on a device with these facts, with the names of the calls.
///
/// Planners read no elements, so tensors are not filled. Calls that need no launch are left out, and so are cases of
/// operations that have no GPU kernels.
///
/// # Errors
/// If the operation refuses the case.
pub fn plans(case: &Case, facts: &DeviceFacts) -> Result<Vec<(&'static str, Plan)>> {
    let plans = match &case.problem {
        Problem::Conv1d(conv1d) => conv1d.plans(facts)?,
        Problem::Update(update) => vec![("conv1d-update", update.plan(facts)?)],
        Problem::VarlenStates(states) => vec![("conv1d-varlen-states", states.plan(facts)?)],
        Problem::Gemm(_) => Vec::new(),
    };
    Ok(plans.into_iter().filter_map(|(call, plan)| Some((call, plan?))).collect())
}

fn view(tensor: &Option<HostTensor>) -> Option<crate::TensorRef<'_>> {
    tensor.as_ref().map(HostTensor::view)
}

fn optional(wanted: bool, make: impl FnOnce() -> Result<HostTensor>) -> Result<Option<HostTensor>> {
    wanted.then(make).transpose()
}

impl Conv1d {
    fn plans(&self, facts: &DeviceFacts) -> Result<Vec<(&'static str, Option<Plan>)>> {
        let input = |shape| self.layout.zeros(self.dtype, shape);
        let output = |shape| self.output_layout.zeros(self.dtype, shape);
        let parameter = |dtype, shape: &[i64]| dense(dtype, shape);
        let (x_shape, states_shape) = (self.x_shape(), self.states_shape());

        let x = input(x_shape)?;
        let dy = input(x_shape)?;
        let weight = parameter(self.weight_dtype, &[self.dim, self.width])?;
        let bias = optional(self.bias, || parameter(self.weight_dtype, &[self.dim]))?;
        let residual = optional(self.residual, || input(x_shape))?;
        let initial_states = optional(self.initial_states, || input(states_shape))?;
        let dfinal_states = optional(self.final_states, || input(states_shape))?;
        let seq_idx = optional(self.seq_idx.is_some(), || dense(DType::I32, &[self.batch, self.seqlen]))?;
        let cu_seqlens = self.cu_seqlens.as_ref().map(|lengths| lengths.tensor()).transpose()?;

        let mut y = output(x_shape)?;
        let mut final_states = optional(self.final_states, || output(states_shape))?;
        let forward = causal_conv1d::Forward {
            x: x.view(),
            weight: weight.view(),
            bias: view(&bias),
            initial_states: view(&initial_states),
            seq_idx: view(&seq_idx),
            cu_seqlens: view(&cu_seqlens),
            residual: view(&residual),
            activation: self.activation,
            y: y.view_mut(),
            final_states: final_states.as_mut().map(HostTensor::view_mut),
        };
        let forward = forward.plan(facts)?;

        let mut dx = output(x_shape)?;
        let mut dweight = parameter(self.dweight_dtype, &[self.dim, self.width])?;
        let mut dbias = optional(self.bias, || parameter(self.dweight_dtype, &[self.dim]))?;
        let mut dinitial_states = optional(self.initial_states, || output(states_shape))?;
        let backward = causal_conv1d::Backward {
            x: x.view(),
            weight: weight.view(),
            bias: view(&bias),
            dy: dy.view(),
            initial_states: view(&initial_states),
            seq_idx: view(&seq_idx),
            cu_seqlens: view(&cu_seqlens),
            dfinal_states: view(&dfinal_states),
            activation: self.activation,
            dx: dx.view_mut(),
            dweight: dweight.view_mut(),
            dbias: dbias.as_mut().map(HostTensor::view_mut),
            dinitial_states: dinitial_states.as_mut().map(HostTensor::view_mut),
        };
        Ok(vec![("conv1d-forward", forward), ("conv1d-backward", backward.plan(facts)?)])
    }
}

impl Update {
    fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>> {
        // Index values are checked on the host, so these tensors are the case's own.
        let tensors = self.tensors("plan")?;
        let mut conv_state = tensors.conv_state.clone();
        let mut y = self.like_x()?;
        let update = causal_conv1d::Update {
            x: tensors.x.view(),
            conv_state: conv_state.view_mut(),
            weight: tensors.weight.view(),
            bias: view(&tensors.bias),
            cache_seqlens: view(&tensors.cache_seqlens),
            conv_state_indices: view(&tensors.conv_state_indices),
            activation: self.activation,
            y: y.view_mut(),
        };
        update.plan(facts)
    }
}

impl VarlenStates {
    fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>> {
        let tensors = self.tensors("plan")?;
        let shape = [self.cu_seqlens.lengths.len() as i64, self.dim, self.state_len];
        let mut states = self.layout.zeros(self.dtype, shape)?;
        let call = causal_conv1d::VarlenStates {
            x: tensors.x.view(),
            cu_seqlens: tensors.cu_seqlens.view(),
            states: states.view_mut(),
        };
        call.plan(facts)
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
}
