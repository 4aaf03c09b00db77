//! Convolution calls that own their tensors: as the library runs them, and as the oracle sees them.

use causeway::causal_conv1d::{Activation, Backward, Forward, Update};
use causeway::{DType, Device, HostTensor, Result, TensorRef};
use causeway_verify::oracle::{Expected, causal_conv1d as oracle};

/// What forward reads, and backward too.
#[derive(Clone)]
pub struct Inputs {
    pub x: HostTensor,
    pub weight: HostTensor,
    pub bias: Option<HostTensor>,
    pub initial_states: Option<HostTensor>,
    pub seq_idx: Option<HostTensor>,
    pub cu_seqlens: Option<HostTensor>,
    /// Of no interest to backward.
    pub residual: Option<HostTensor>,
    pub gates: Gates,
    pub activation: Activation,
}

/// B and C of a call that rounds its products.
#[derive(Clone, Default)]
pub struct Gates {
    pub b: Option<HostTensor>,
    pub c: Option<HostTensor>,
}

/// What forward writes.
pub struct Outputs {
    pub y: HostTensor,
    pub final_states: Option<HostTensor>,
}

/// What backward starts from.
#[derive(Clone)]
pub struct Incoming {
    pub dy: HostTensor,
    pub dfinal_states: Option<HostTensor>,
}

/// What backward writes.
pub struct Gradients {
    pub dx: HostTensor,
    pub dweight: HostTensor,
    pub dbias: Option<HostTensor>,
    pub dinitial_states: Option<HostTensor>,
    /// For gates that are there.
    pub dgates: Gates,
}

/// What update reads, but for conv_state, which it writes too.
pub struct UpdateInputs {
    pub x: HostTensor,
    pub weight: HostTensor,
    pub bias: Option<HostTensor>,
    pub cache_seqlens: Option<HostTensor>,
    pub conv_state_indices: Option<HostTensor>,
    pub activation: Activation,
}

fn view(tensor: &Option<HostTensor>) -> Option<TensorRef<'_>> {
    tensor.as_ref().map(HostTensor::view)
}

impl Inputs {
    pub fn forward(&self, outputs: &mut Outputs, device: &Device) -> Result<()> {
        Forward {
            x: self.x.view(),
            weight: self.weight.view(),
            bias: view(&self.bias),
            initial_states: view(&self.initial_states),
            seq_idx: view(&self.seq_idx),
            cu_seqlens: view(&self.cu_seqlens),
            residual: view(&self.residual),
            b: view(&self.gates.b),
            c: view(&self.gates.c),
            activation: self.activation,
            round_products: true,
            norm: None,
            y: outputs.y.view_mut(),
            final_states: outputs.final_states.as_mut().map(HostTensor::view_mut),
        }
        .run(device)
    }

    pub fn backward(&self, incoming: &Incoming, gradients: &mut Gradients, device: &Device) -> Result<()> {
        Backward {
            x: self.x.view(),
            weight: self.weight.view(),
            bias: view(&self.bias),
            dy: incoming.dy.view(),
            initial_states: view(&self.initial_states),
            seq_idx: view(&self.seq_idx),
            cu_seqlens: view(&self.cu_seqlens),
            dfinal_states: view(&incoming.dfinal_states),
            b: view(&self.gates.b),
            c: view(&self.gates.c),
            activation: self.activation,
            round_products: true,
            norm: None,
            dx: gradients.dx.view_mut(),
            dweight: gradients.dweight.view_mut(),
            dbias: gradients.dbias.as_mut().map(HostTensor::view_mut),
            dinitial_states: gradients.dinitial_states.as_mut().map(HostTensor::view_mut),
            db: gradients.dgates.b.as_mut().map(HostTensor::view_mut),
            dc: gradients.dgates.c.as_mut().map(HostTensor::view_mut),
        }
        .run(device)
    }

    pub fn true_outputs(&self) -> oracle::Truth {
        let inputs = oracle::Inputs::of::<Forward<'_>>(self.activation, |name| self.named(name));
        oracle::forward(&inputs.rounding_products(true))
    }

    pub fn true_gradients(&self, incoming: &Incoming, dweight_dtype: DType) -> oracle::Truth {
        let read = |name: &str| match name {
            "dy" => Some(incoming.dy.view()),
            "dfinal_states" => view(&incoming.dfinal_states),
            _ => self.named(name),
        };
        let inputs = oracle::Inputs::of::<Backward<'_>>(self.activation, read);
        oracle::backward(&inputs.rounding_products(true), dweight_dtype)
    }

    fn named(&self, name: &str) -> Option<TensorRef<'_>> {
        match name {
            "x" => Some(self.x.view()),
            "weight" => Some(self.weight.view()),
            "bias" => view(&self.bias),
            "initial_states" => view(&self.initial_states),
            "seq_idx" => view(&self.seq_idx),
            "cu_seqlens" => view(&self.cu_seqlens),
            "residual" => view(&self.residual),
            "B" => view(&self.gates.b),
            "C" => view(&self.gates.c),
            // Of an option that these calls are without.
            _ => None,
        }
    }
}

impl Outputs {
    fn all(&self) -> [(&'static str, Option<&HostTensor>); 2] {
        [("y", Some(&self.y)), ("final_states", self.final_states.as_ref())]
    }

    /// Those that are there, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &HostTensor)> {
        self.all().into_iter().filter_map(|(name, found)| Some((name, found?)))
    }

    /// Those that are there, by name, beside the truth.
    pub fn judged<'a>(
        &'a self,
        truth: &'a oracle::Truth,
    ) -> impl Iterator<Item = (&'static str, &'a Expected, &'a HostTensor)> {
        self.named().map(|(name, found)| (name, truth.of(name), found))
    }
}

impl Gradients {
    fn all(&self) -> [(&'static str, Option<&HostTensor>); 6] {
        [
            ("dx", Some(&self.dx)),
            ("dweight", Some(&self.dweight)),
            ("dbias", self.dbias.as_ref()),
            ("dinitial_states", self.dinitial_states.as_ref()),
            ("dB", self.dgates.b.as_ref()),
            ("dC", self.dgates.c.as_ref()),
        ]
    }

    /// As [`Outputs::named`].
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &HostTensor)> {
        self.all().into_iter().filter_map(|(name, found)| Some((name, found?)))
    }

    /// As [`Outputs::judged`].
    pub fn judged<'a>(
        &'a self,
        truth: &'a oracle::Truth,
    ) -> impl Iterator<Item = (&'static str, &'a Expected, &'a HostTensor)> {
        self.named().map(|(name, found)| (name, truth.of(name), found))
    }
}

impl UpdateInputs {
    pub fn update(&self, conv_state: &mut HostTensor, y: &mut HostTensor, device: &Device) -> Result<()> {
        Update {
            x: self.x.view(),
            conv_state: conv_state.view_mut(),
            weight: self.weight.view(),
            bias: view(&self.bias),
            cache_seqlens: view(&self.cache_seqlens),
            conv_state_indices: view(&self.conv_state_indices),
            b: None,
            c: None,
            activation: self.activation,
            round_products: false,
            norm: None,
            y: y.view_mut(),
        }
        .run(device)
    }

    /// For a conv_state as it is before the call.
    pub fn truth(&self, conv_state: &HostTensor) -> oracle::Truth {
        let read = |name: &str| match name {
            "x" => Some(self.x.view()),
            "conv_state" => Some(conv_state.view()),
            "weight" => Some(self.weight.view()),
            "bias" => view(&self.bias),
            "cache_seqlens" => view(&self.cache_seqlens),
            "conv_state_indices" => view(&self.conv_state_indices),
            _ => None,
        };
        oracle::update(&oracle::Inputs::of::<Update<'_>>(self.activation, read))
    }
}
