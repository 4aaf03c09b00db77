//! Operations called by name, on named tensors: what a file or a request to the server holds.
//!
//! A [`Call`] is an [`Operation`] and its options. Tensors have the names of the argument structs of
//! [`causal_conv1d`](crate::causal_conv1d) and [`gemm`](crate::gemm) (A, B, C and their gradients for the latter);
//! [`Layout`] says how tensors with a sequence axis are stored.

mod error;
mod operation;
mod run;
mod tensors;

use std::collections::BTreeMap;

pub use error::CallError;
pub use operation::Operation;
pub use tensors::{Inputs, Layout, Results};

use crate::causal_conv1d::{Activation, HeadNorm};
use crate::device::Device;
use crate::error::Result;
use crate::gemm::Algorithm;

/// An operation and its options. An option that is absent has its default.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// What to compute.
    pub operation: Operation,
    /// conv1d: what is applied to the sum; none by default.
    pub activation: Option<Activation>,
    /// conv1d with gates: round products to x's dtype, as separate kernels do.
    pub round_products: bool,
    /// conv1d: divide the activation by its L2 norm over each head.
    pub norm: Option<HeadNorm>,
    /// conv1d: how x, and what has its shape, is stored; channel-first by default.
    pub layout: Option<Layout>,
    /// conv1d-forward: return final_states too.
    pub return_final_states: bool,
    /// gemm: how sums are formed; fast by default.
    pub algorithm: Option<Algorithm>,
}

impl Call {
    /// An operation with its defaults.
    pub fn new(operation: Operation) -> Self {
        Call {
            operation,
            activation: None,
            round_products: false,
            norm: None,
            layout: None,
            return_final_states: false,
            algorithm: None,
        }
    }

    /// Checks that every option that is given has a meaning for the operation.
    ///
    /// # Errors
    /// [`CallError::MisplacedOption`]: an option that would be ignored is a mistake.
    pub fn check_options(&self) -> Result<(), CallError> {
        let operation = self.operation;
        let conv1d = operation.is_conv1d();
        let forward = operation == Operation::Conv1dForward;
        let misplaced = [
            ("activation", self.activation.is_some() && !conv1d, "conv1d operations"),
            ("round_products", self.round_products && !conv1d, "conv1d operations"),
            ("norm", self.norm.is_some() && !conv1d, "conv1d operations"),
            ("layout", self.layout.is_some() && !conv1d, "conv1d operations"),
            ("algorithm", self.algorithm.is_some() && conv1d, "gemm operations"),
            ("return_final_states", self.return_final_states && !forward, "conv1d-forward"),
        ];
        match misplaced.into_iter().find(|(_, misplaced, _)| *misplaced) {
            Some((option, _, owner)) => Err(CallError::MisplacedOption { option, operation, owner }),
            None => Ok(()),
        }
    }

    /// Checks that `names` has every tensor that the operation needs, and none that it does not know.
    ///
    /// # Errors
    /// [`CallError::UnknownTensor`] or [`CallError::MissingTensor`].
    pub fn check_names<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<(), CallError> {
        let operation = self.operation;
        let (required, optional) = operation.inputs();
        if let Some(unknown) = names.clone().find(|name| !required.contains(name) && !optional.contains(name))
        {
            return Err(CallError::UnknownTensor { name: unknown.to_string(), operation });
        }
        match required.iter().find(|name| !names.clone().any(|given| given == **name)) {
            Some(name) => Err(CallError::MissingTensor { name, operation }),
            None => Ok(()),
        }
    }

    /// Computes. Results are laid out as [`Call::layout`] says; they have the dtype of the inputs (dweight and dbias
    /// that of weight).
    ///
    /// # Errors
    /// [`CallError::Operation`] with what the operation or the device says.
    ///
    /// # Panics
    /// If the inputs lack a required tensor: [`Call::check_names`] comes first.
    pub fn run(&self, device: &Device, inputs: &Inputs) -> Result<Results, CallError> {
        let options = run::Options {
            activation: self.activation.unwrap_or_default(),
            round_products: self.round_products,
            norm: self.norm,
            algorithm: self.algorithm.unwrap_or_default(),
            optional_results: self.return_final_states,
        };
        let results = run::run(self.operation, device, inputs, &options);
        let layout = self.layout.unwrap_or_default();
        results.map(|results| results.stored(layout)).map_err(|error| CallError::Operation { layout, error })
    }

    /// The operation and its options as text, as files and requests carry them.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = BTreeMap::from([("operation".to_string(), self.operation.to_string())]);
        let mut option = |name: &str, value: &str| metadata.insert(name.to_string(), value.to_string());
        if self.operation.is_conv1d() {
            option("activation", &self.activation.unwrap_or_default().to_string());
            option("layout", self.layout.unwrap_or_default().name());
            if let Some(norm) = self.norm {
                option("norm", &norm.to_string());
            }
        } else {
            option("algorithm", self.algorithm.unwrap_or_default().name());
        }
        let flags =
            [("return_final_states", self.return_final_states), ("round_products", self.round_products)];
        for (name, _) in flags.into_iter().filter(|(_, given)| *given) {
            option(name, "true");
        }
        metadata
    }

    /// The call that metadata describes. `other` are the keys that belong to someone else.
    ///
    /// # Errors
    /// [`CallError::MissingOperation`], [`CallError::UnknownOperation`], [`CallError::UnknownOption`] or
    /// [`CallError::BadOption`], and those of [`Call::check_options`].
    pub fn from_metadata(metadata: &BTreeMap<String, String>, other: &[&str]) -> Result<Self, CallError> {
        let operation = metadata.get("operation").ok_or(CallError::MissingOperation)?;
        let mut call = Call::new(operation.parse()?);
        for (key, value) in metadata {
            let bad = |expected| CallError::BadOption { option: key.clone(), found: value.clone(), expected };
            match key.as_str() {
                "operation" => {}
                "activation" => {
                    call.activation = Some(value.parse().map_err(|_| bad("none, silu or swish"))?)
                }
                "algorithm" => call.algorithm = Some(value.parse().map_err(|_| bad("fast or exact"))?),
                "norm" => {
                    call.norm = Some(
                        value.parse().map_err(|_| bad("head_dim, or head_dim,eps, or head_dim,eps,scale"))?,
                    );
                }
                "layout" => call.layout = Some(value.parse()?),
                "return_final_states" => {
                    call.return_final_states = value.parse().map_err(|_| bad("true or false"))?;
                }
                "round_products" => {
                    call.round_products = value.parse().map_err(|_| bad("true or false"))?;
                }
                key if other.contains(&key) => {}
                _ => return Err(CallError::UnknownOption { found: key.clone() }),
            }
        }
        call.check_options()?;
        Ok(call)
    }
}
