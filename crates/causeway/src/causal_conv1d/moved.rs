//! The calls of this module as the memo of plans sees them, and as callers with streams of their own launch them.

use super::{Activation, Backward, Forward, Update, VarlenStates};
use crate::backend::gpu::GpuDevice;
use crate::backend::gpu::causal_conv1d as planners;
use crate::backend::gpu::memo::{Operation, Ready};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::error::Result;
use crate::tensor::{Meta, TensorMut, TensorRef};

/// Tags differ in their lowest bits; the activation comes above them.
fn tag(operation: u64, activation: Activation) -> u64 {
    operation | u64::from(activation == Activation::Silu) << 8
}

fn read<'a>(tensor: &'a TensorRef<'_>) -> Option<(u64, &'a Meta)> {
    Some((tensor.pointer().addr() as u64, tensor.meta()))
}

fn written<'a>(tensor: &'a TensorMut<'_>) -> Option<(u64, &'a Meta)> {
    Some((tensor.pointer().addr() as u64, tensor.meta()))
}

impl Operation for Forward<'_> {
    fn tag(&self) -> u64 {
        tag(0, self.activation)
    }

    #[inline]
    fn visit(&self, visit: &mut impl FnMut(Option<(u64, &Meta)>)) {
        visit(read(&self.x));
        visit(read(&self.weight));
        for tensor in [&self.bias, &self.initial_states, &self.seq_idx, &self.cu_seqlens, &self.residual] {
            visit(tensor.as_ref().and_then(read));
        }
        visit(written(&self.y));
        visit(self.final_states.as_ref().and_then(written));
    }

    fn plan_moved(&self, facts: &DeviceFacts, distance: impl Fn(usize) -> u64) -> Result<Option<Plan>> {
        let at = |tensor: &Option<TensorRef<'_>>, i| tensor.as_ref().map(|t| t.moved(distance(i)));
        let moved = Forward {
            x: self.x.moved(distance(0)),
            weight: self.weight.moved(distance(1)),
            bias: at(&self.bias, 2),
            initial_states: at(&self.initial_states, 3),
            seq_idx: at(&self.seq_idx, 4),
            cu_seqlens: at(&self.cu_seqlens, 5),
            residual: at(&self.residual, 6),
            activation: self.activation,
            y: self.y.moved(distance(7)),
            final_states: self.final_states.as_ref().map(|t| t.moved(distance(8))),
        };
        planners::forward::plan(&moved, &moved.validate()?, facts)
    }
}

impl Operation for Backward<'_> {
    fn tag(&self) -> u64 {
        tag(1, self.activation)
    }

    #[inline]
    fn visit(&self, visit: &mut impl FnMut(Option<(u64, &Meta)>)) {
        visit(read(&self.x));
        visit(read(&self.weight));
        visit(self.bias.as_ref().and_then(read));
        visit(read(&self.dy));
        for tensor in [&self.initial_states, &self.seq_idx, &self.cu_seqlens, &self.dfinal_states] {
            visit(tensor.as_ref().and_then(read));
        }
        visit(written(&self.dx));
        visit(written(&self.dweight));
        visit(self.dbias.as_ref().and_then(written));
        visit(self.dinitial_states.as_ref().and_then(written));
    }

    fn plan_moved(&self, facts: &DeviceFacts, distance: impl Fn(usize) -> u64) -> Result<Option<Plan>> {
        let at = |tensor: &Option<TensorRef<'_>>, i| tensor.as_ref().map(|t| t.moved(distance(i)));
        let to = |tensor: &Option<TensorMut<'_>>, i| tensor.as_ref().map(|t| t.moved(distance(i)));
        let moved = Backward {
            x: self.x.moved(distance(0)),
            weight: self.weight.moved(distance(1)),
            bias: at(&self.bias, 2),
            dy: self.dy.moved(distance(3)),
            initial_states: at(&self.initial_states, 4),
            seq_idx: at(&self.seq_idx, 5),
            cu_seqlens: at(&self.cu_seqlens, 6),
            dfinal_states: at(&self.dfinal_states, 7),
            activation: self.activation,
            dx: self.dx.moved(distance(8)),
            dweight: self.dweight.moved(distance(9)),
            dbias: to(&self.dbias, 10),
            dinitial_states: to(&self.dinitial_states, 11),
        };
        planners::backward::plan(&moved, &moved.validate()?, facts)
    }
}

impl Operation for Update<'_> {
    fn tag(&self) -> u64 {
        tag(2, self.activation)
    }

    #[inline]
    fn visit(&self, visit: &mut impl FnMut(Option<(u64, &Meta)>)) {
        visit(read(&self.x));
        visit(written(&self.conv_state));
        visit(read(&self.weight));
        for tensor in [&self.bias, &self.cache_seqlens, &self.conv_state_indices] {
            visit(tensor.as_ref().and_then(read));
        }
        visit(written(&self.y));
    }

    fn plan_moved(&self, facts: &DeviceFacts, distance: impl Fn(usize) -> u64) -> Result<Option<Plan>> {
        let at = |tensor: &Option<TensorRef<'_>>, i| tensor.as_ref().map(|t| t.moved(distance(i)));
        let moved = Update {
            x: self.x.moved(distance(0)),
            conv_state: self.conv_state.moved(distance(1)),
            weight: self.weight.moved(distance(2)),
            bias: at(&self.bias, 3),
            cache_seqlens: at(&self.cache_seqlens, 4),
            conv_state_indices: at(&self.conv_state_indices, 5),
            activation: self.activation,
            y: self.y.moved(distance(6)),
        };
        planners::update::plan(&moved, &moved.validate()?, facts)
    }
}

impl Operation for VarlenStates<'_> {
    fn tag(&self) -> u64 {
        3
    }

    #[inline]
    fn visit(&self, visit: &mut impl FnMut(Option<(u64, &Meta)>)) {
        visit(read(&self.x));
        visit(read(&self.cu_seqlens));
        visit(written(&self.states));
    }

    fn plan_moved(&self, facts: &DeviceFacts, distance: impl Fn(usize) -> u64) -> Result<Option<Plan>> {
        let moved = VarlenStates {
            x: self.x.moved(distance(0)),
            cu_seqlens: self.cu_seqlens.moved(distance(1)),
            states: self.states.moved(distance(2)),
        };
        planners::varlen_states::plan(&moved, &moved.validate()?, facts)
    }
}

macro_rules! ready {
    ($($operation:ident)*) => {$(
        impl $operation<'_> {
            /// Plans the call for a GPU and loads its kernel, or finds both from a call with the same shapes; `None` if
            /// all outputs are empty.
            ///
            /// # Errors
            /// As for `run`, but for the launch.
            pub fn ready(&self, device: &GpuDevice) -> Result<Option<Ready>> {
                self.validate()?;
                device.ready(self)
            }
        }
    )*};
}
ready!(Forward Backward Update VarlenStates);
