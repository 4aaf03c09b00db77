//! `run` and `plan` of every operation: arguments are validated once, and the device's backend does the rest.
//!
//! Operations know no backend and backends know no device: they meet here and nowhere else.

use super::Device;
use crate::backend::cpu::causal_conv1d::Work;
use crate::backend::gpu::gemm::Problem;
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::backend::gpu::{GpuDevice, Ready, together};
use crate::backend::{cpu, gpu};
use crate::causal_conv1d::{Backward, Forward, Update, VarlenStates};
use crate::checks;
use crate::error::Result;
use crate::gemm;
use crate::operation::Operation as _;

/// An operation of one launch: its first tensor, which says where the call is, what computes it on a CPU, and its planner.
macro_rules! operation {
    ($operation:ty, $first:literal: $argument:ident, cpu infallible: $cpu:expr, threads: $threads:expr, gpu: $plan:expr) => {
        operation!(
            $operation, $first: $argument,
            cpu: |cpu, call, sizes| {
                let compute: fn(cpu::Cpu, &mut Self, &_) = $cpu;
                compute(cpu, call, sizes);
                Ok(())
            },
            threads: $threads,
            gpu: $plan
        );
    };
    ($operation:ty, $first:literal: $argument:ident, cpu: $cpu:expr, threads: $threads:expr, gpu: $plan:expr) => {
        impl $operation {
            /// Whether threads of the current rayon pool take part in it on a CPU. What is too small for that stays on the calling
            /// thread, and needs no pool.
            pub fn uses_threads(&self) -> bool {
                let uses_threads: fn(&Self) -> bool = $threads;
                uses_threads(self)
            }

            /// Validates, then computes on `device`, which has to be where the tensors are. A GPU is given the work, and is not
            /// waited for.
            ///
            /// # Errors
            /// As for `validate`; [`Error::WrongLocation`](crate::Error::WrongLocation) for tensors in another memory than the
            /// device's; the device's own. After an error of arguments nothing has been written.
            pub fn run(&mut self, device: &Device) -> Result<()> {
                let sizes = self.validate()?;
                device.expect($first, self.$argument.location())?;
                if let Device::Cpu(cpu) = device {
                    let _mode = cpu::Ieee754::enter();
                    let compute: fn(cpu::Cpu, &mut Self, &_) -> Result<()> = $cpu;
                    return compute(*cpu, self, &sizes);
                }
                let plan: fn(&Self, &_, &DeviceFacts) -> Result<Option<Plan>> = $plan;
                // SAFETY: the planner gets the validated views, which are where the device is.
                unsafe { device.execute(|facts| plan(self, &sizes, facts)) }
            }

            /// The launch that the call is on a GPU with these facts; `None` if all outputs are empty.
            ///
            /// # Errors
            /// As for `validate`; [`Error::Unsupported`](crate::Error::Unsupported) for f64 tensors of the host: a GPU's are refused before.
            pub fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>> {
                let plan: fn(&Self, &_, &DeviceFacts) -> Result<Option<Plan>> = $plan;
                plan(self, &self.validate()?, facts)
            }

            /// Plans the call for a GPU and loads its kernel; `None` if all outputs are empty.
            ///
            /// # Errors
            /// As for `run`, but for the launch.
            pub fn ready(&self, device: &GpuDevice) -> Result<Option<Ready>> {
                device.ready(self.plan(device.facts())?)
            }
        }
    };
}

/// An operation whose calls can be launched together: its first tensor, the planner of a call beside others, and whether those with a norm and
/// those without are faster in two launches, by an element's bytes and the bytes that each of the two move.
macro_rules! together {
    ($operation:ident, $first:literal: $argument:ident, gpu: $plan:expr, in_two: $in_two:expr) => {
        impl $operation<'_> {
            /// Validates several calls that know nothing of each other, then computes them: on a GPU in one launch where their kernels
            /// have blocks of one size, or in two where that is faster, else one after the other. Each has the bits of a call of its own,
            /// but for the order of sums: over positions, which may be cut in other places, and in backward over the channels of a head.
            ///
            /// # Errors
            /// As for `run`. After an error of arguments nothing has been written; where a CPU has no memory for one call, those before it
            /// have been computed.
            pub fn run_together(calls: &mut [Self], device: &Device) -> Result<()> {
                for call in &mut *calls {
                    call.validate()?;
                    device.expect($first, call.$argument.location())?;
                }
                let Some(facts) = device.facts() else {
                    return calls.iter_mut().try_for_each(|call| call.run(device));
                };
                let plans = Self::plans_together(calls, facts).map_err(|error| device.named(error))?;
                for plan in plans {
                    // SAFETY: the planner gets the validated views, which are where the device is.
                    unsafe { device.execute(|_| Ok(Some(plan))) }?;
                }
                Ok(())
            }

            /// The launches that such calls are on a GPU with these facts.
            ///
            /// # Errors
            /// As for `plan`.
            pub fn plans_together(calls: &[Self], facts: &DeviceFacts) -> Result<Vec<Plan>> {
                let (with_norms, plain): (Vec<_>, Vec<_>) =
                    calls.iter().partition(|call| call.norm.is_some());
                let bytes = |calls: &[&Self]| calls.iter().map(|call| call.bytes_moved()).sum();
                let in_two: fn(usize, [u64; 2]) -> bool = $in_two;
                let element = calls.first().map_or(0, |call| call.$argument.dtype().size());
                if in_two(element, [bytes(&with_norms), bytes(&plain)]) {
                    let mut plans = Self::plans_of_one(&with_norms, facts)?;
                    plans.extend(Self::plans_of_one(&plain, facts)?);
                    return Ok(plans);
                }
                Self::plans_of_one(&calls.iter().collect::<Vec<_>>(), facts)
            }

            fn bytes_moved(&self) -> u64 {
                let (read, written) = self.traffic();
                read + written
            }

            /// As one launch, if calls can be.
            fn plans_of_one(calls: &[&Self], facts: &DeviceFacts) -> Result<Vec<Plan>> {
                let total = calls.iter().map(|call| call.bytes_moved()).sum();
                let beside = |call: &&Self| {
                    let plan: fn(&Self, &_, &DeviceFacts) -> Result<Option<Plan>> = $plan;
                    plan(call, &call.validate()?, &together::fraction(facts, call.bytes_moved(), total))
                };
                if calls.len() > 1 {
                    let plans = calls.iter().map(beside).collect::<Result<Vec<_>>>()?;
                    let plans: Vec<_> =
                        plans.into_iter().flatten().filter(|plan| !plan.grid.contains(&0)).collect();
                    if let Some(plan) = together::join(&plans, facts) {
                        return Ok(vec![plan]);
                    }
                }
                calls.iter().filter_map(|call| call.plan(facts).transpose()).collect()
            }

            /// Plans such calls for a GPU and loads their kernels.
            ///
            /// # Errors
            /// As for `ready`.
            pub fn ready_together(calls: &[Self], device: &GpuDevice) -> Result<Vec<Ready>> {
                // The tensors of one call lie on one device. Which one, each call says for itself.
                for call in calls {
                    checks::device($first, call.$argument.location(), device.location())?;
                }
                let plans = Self::plans_together(calls, device.facts())?.into_iter();
                plans.filter_map(|plan| device.ready(Some(plan)).transpose()).collect()
            }
        }
    };
}
together!(Forward, "x": x, gpu: gpu::causal_conv1d::forward::plan_beside, in_two: |_, _| false);
together!(Backward, "x": x, gpu: gpu::causal_conv1d::backward::plan_beside, in_two: gpu::causal_conv1d::backward::gains_in_two);
together!(Update, "x": x, gpu: gpu::causal_conv1d::update::plan, in_two: |_, _| false);

operation!(
    Forward<'_>, "x": x,
    cpu infallible: cpu::causal_conv1d::forward,
    threads: |call| Work::Forward.of_x_is_worth_threads(&call.x),
    gpu: gpu::causal_conv1d::forward::plan
);
operation!(
    Backward<'_>, "x": x,
    cpu: cpu::causal_conv1d::backward,
    threads: |call| Work::Backward.of_x_is_worth_threads(&call.x),
    gpu: gpu::causal_conv1d::backward::plan
);
operation!(
    Update<'_>, "x": x,
    cpu infallible: cpu::causal_conv1d::update,
    threads: |call| Work::Update.is_worth_threads(call.x.shape().iter().copied()),
    gpu: gpu::causal_conv1d::update::plan
);
operation!(
    VarlenStates<'_>, "x": x,
    cpu infallible: |_, call, sizes| cpu::causal_conv1d::varlen_states(call, sizes),
    threads: |call| Work::Copy.is_worth_threads(call.states.shape().iter().copied()),
    gpu: gpu::causal_conv1d::varlen_states::plan
);
operation!(
    gemm::Forward<'_>, "A": a,
    cpu infallible: |cpu, call, _| cpu::gemm::forward(cpu, call),
    threads: |call| cpu::gemm::is_worth_threads(call.algorithm, call.a.dtype(), call.c.shape(), call.b.shape().first()),
    gpu: |call, sizes, facts| gpu::gemm::plan(&Problem::forward(call, sizes), facts)
);
operation!(
    gemm::GradA<'_>, "grad_C": grad_c,
    cpu infallible: |cpu, call, _| cpu::gemm::grad_a(cpu, call),
    threads: |call| cpu::gemm::is_worth_threads(call.algorithm, call.b.dtype(), call.grad_a.shape(), call.b.shape().get(1)),
    gpu: |call, sizes, facts| gpu::gemm::plan(&Problem::grad_a(call, sizes), facts)
);
operation!(
    gemm::GradB<'_>, "grad_C": grad_c,
    cpu infallible: |cpu, call, _| cpu::gemm::grad_b(cpu, call),
    threads: |call| cpu::gemm::is_worth_threads(call.algorithm, call.a.dtype(), call.grad_b.shape(), call.a.shape().first()),
    gpu: |call, sizes, facts| gpu::gemm::plan(&Problem::grad_b(call, sizes), facts)
);

impl gemm::GradAB<'_> {
    /// As those of [`GradA`](gemm::GradA) and [`GradB`](gemm::GradB).
    pub fn uses_threads(&self) -> bool {
        let is_worth_threads =
            |output, terms| cpu::gemm::is_worth_threads(self.algorithm, self.grad_c.dtype(), output, terms);
        is_worth_threads(self.grad_a.shape(), self.b.shape().get(1))
            || is_worth_threads(self.grad_b.shape(), self.a.shape().first())
    }

    /// Validates, then computes grad_A and grad_B on `device`, which has to be where the tensors are.
    ///
    /// # Errors
    /// As for `validate`, and the device's own. After an error of arguments nothing has been written.
    pub fn run(&mut self, device: &Device) -> Result<()> {
        let sizes = self.validate()?;
        device.expect("grad_C", self.grad_c.location())?;
        if let Device::Cpu(cpu) = device {
            let _mode = cpu::Ieee754::enter();
            cpu::gemm::grad_ab(*cpu, self);
            return Ok(());
        }
        for problem in Problem::gradients(self, &sizes) {
            // SAFETY: the planner gets the validated views, which are where the device is.
            unsafe { device.execute(|facts| gpu::gemm::plan(&problem, facts)) }?;
        }
        Ok(())
    }

    /// The launches that the call is on a GPU with these facts: those of [`GradA`](gemm::GradA) and [`GradB`](gemm::GradB),
    /// `None` for an empty result.
    ///
    /// # Errors
    /// As for `validate`.
    pub fn plans(&self, facts: &DeviceFacts) -> Result<[Option<Plan>; 2]> {
        let [of_a, of_b] = Problem::gradients(self, &self.validate()?);
        Ok([gpu::gemm::plan(&of_a, facts)?, gpu::gemm::plan(&of_b, facts)?])
    }

    /// Plans the call for a GPU and loads its kernels; `None` for an empty result.
    ///
    /// # Errors
    /// As for `run`, but for the launches.
    pub fn ready(&self, device: &GpuDevice) -> Result<[Option<Ready>; 2]> {
        let [of_a, of_b] = self.plans(device.facts())?;
        Ok([device.ready(of_a)?, device.ready(of_b)?])
    }
}
