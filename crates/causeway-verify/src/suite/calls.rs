//! The calls of all families alike: their launches beforehand, and the call.

use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::causal_conv1d::{Backward, Forward, Update, VarlenStates};
use causeway::device::Device;
use causeway::error::Result;
use causeway::gemm;

/// An operation with its arguments.
pub(super) trait Call {
    /// The launches that [`Call::run`] makes on a device with these facts: planners are pure.
    fn plans(&self, facts: &DeviceFacts) -> Result<Vec<Plan>>;

    fn run(&mut self, device: &Device) -> Result<()>;
}

macro_rules! with_one_launch {
    ($($operation:ty),*) => {$(
        impl Call for $operation {
            fn plans(&self, facts: &DeviceFacts) -> Result<Vec<Plan>> {
                Ok(self.plan(facts)?.into_iter().collect())
            }

            fn run(&mut self, device: &Device) -> Result<()> {
                self.run(device)
            }
        }
    )*};
}

with_one_launch!(
    Forward<'_>,
    Backward<'_>,
    Update<'_>,
    VarlenStates<'_>,
    gemm::Forward<'_>,
    gemm::GradA<'_>,
    gemm::GradB<'_>
);

/// Calls of one operation that are launched together.
pub(super) struct Together<O>(pub Vec<O>);

macro_rules! together {
    ($($operation:ident),*) => {$(
        impl Call for Together<$operation<'_>> {
            fn plans(&self, facts: &DeviceFacts) -> Result<Vec<Plan>> {
                $operation::plans_together(&self.0, facts)
            }

            fn run(&mut self, device: &Device) -> Result<()> {
                $operation::run_together(&mut self.0, device)
            }
        }
    )*};
}

together!(Forward, Backward, Update);

impl Call for gemm::GradAB<'_> {
    fn plans(&self, facts: &DeviceFacts) -> Result<Vec<Plan>> {
        Ok(gemm::GradAB::plans(self, facts)?.into_iter().flatten().collect())
    }

    fn run(&mut self, device: &Device) -> Result<()> {
        self.run(device)
    }
}
