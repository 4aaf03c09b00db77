//! The operations that Python can call, by the names that it has for them and their arguments.

use causeway::causal_conv1d::{Activation, Backward, Forward, HeadNorm, Update, VarlenStates};
use causeway::gemm::{self, Algorithm};
use causeway::operation::{Argument, MOST, Operation as _};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::call::{Place, Together, run};
use crate::error::{Renamed, exception};
use crate::tensor::Tensor;

/// What an operation was told besides its tensors.
#[derive(Clone, Copy, PartialEq)]
pub enum CallOptions {
    /// The activation, whether products with gates are rounded, and the norm of heads.
    Convolution(Activation, bool, Option<HeadNorm>),
    Algorithm(Algorithm),
    None,
}

/// Which options an operation has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    Convolution,
    Algorithm,
    Nothing,
}

/// What was read of the tensors of a call, by the place of their argument.
pub type Tensors = [Option<Tensor>; MOST];

/// What computes a call from its option and its tensors; without a place, the call is only checked.
///
/// # Safety
/// Unless the call is only checked, the tensors have their memory during the call, and nobody else writes to an input or uses an
/// output. Indices on the host, of which checks read all but seq_idx, have theirs in any case.
type Compute = unsafe fn(CallOptions, &Tensors, Option<&Place<'_, '_>>) -> PyResult<()>;

/// What computes several calls together.
///
/// # Safety
/// As for [`Compute`].
type ComputeTogether = unsafe fn(&[(CallOptions, Tensors)], &Place<'_, '_>) -> PyResult<()>;

/// An operation.
pub struct Entry {
    pub name: &'static str,
    pub arguments: &'static [Argument],
    pub option_kind: OptionKind,
    /// Names of arguments that Python has others for.
    pub renamed: Renamed,
    /// What errors call arguments whose name is another one there.
    pub said: Renamed,
    pub compute: Compute,
    /// Where an operation has calls of several.
    pub compute_together: Option<ComputeTogether>,
}

/// x where it is a part of a packed tensor. It is read before the other parts, so that its errors are those of the whole.
const PARTS: Renamed = &[("x", "packed")];

const MATRICES: Renamed =
    &[("A", "a"), ("B", "b"), ("C", "c"), ("grad_C", "grad_c"), ("grad_A", "grad_a"), ("grad_B", "grad_b")];

macro_rules! entries {
    ($($name:ident: $operation:ty, $kind:ident, $renamed:expr, $said:expr;)*) => {
        /// Every operation.
        pub static ENTRIES: &[Entry] = &[$(Entry {
            name: stringify!($name),
            arguments: <$operation>::ARGUMENTS,
            option_kind: OptionKind::$kind,
            renamed: $renamed,
            said: $said,
            compute: |options, tensors, place| {
                let mut call = entries!(@call $operation, $kind, options, tensors);
                run(&mut call, place, $said)
            },
            compute_together: entries!(@together $operation, $kind, $said),
        },)*];
    };
    (@together $operation:ty, Convolution, $said:expr) => {
        Some(|calls, place| {
            let calls = calls.iter().map(|(options, tensors)| entries!(@call $operation, Convolution, *options, tensors));
            run(&mut Together(calls.collect()), Some(place), $said)
        })
    };
    (@together $operation:ty, $kind:ident, $said:expr) => { None };
    (@call $operation:ty, $kind:ident, $options:expr, $tensors:expr) => {{
        let mut views = $tensors.iter();
        let next = std::cell::RefCell::new(|| views.next().and_then(Option::as_ref));
        // SAFETY: the promise of whoever computes.
        let read = |_| next.borrow_mut()().map(|tensor| unsafe { tensor.view() });
        // SAFETY: as above.
        let write = |_| next.borrow_mut()().map(|tensor| unsafe { tensor.view_mut() });
        entries!(@from_named $operation, $kind, $options, read, write)
    }};
    (@from_named $operation:ty, Nothing, $options:expr, $read:expr, $write:expr) => {{
        let CallOptions::None = $options else { unreachable!("read as the operation's") };
        <$operation>::from_named($read, $write)
    }};
    (@from_named $operation:ty, Convolution, $options:expr, $read:expr, $write:expr) => {{
        let CallOptions::Convolution(activation, rounds, norm) = $options else { unreachable!("read as the operation's") };
        <$operation>::from_named(activation, rounds, norm, $read, $write)
    }};
    (@from_named $operation:ty, $kind:ident, $options:expr, $read:expr, $write:expr) => {{
        let CallOptions::$kind(option) = $options else { unreachable!("read as the operation's") };
        <$operation>::from_named(option, $read, $write)
    }};
}
entries! {
    causal_conv1d_forward: Forward<'_>, Convolution, &[], &[("final_states", "final_states_out")];
    causal_conv1d_gated_packed: Forward<'_>, Convolution, PARTS, PARTS;
    causal_conv1d_backward: Backward<'_>, Convolution, &[], &[];
    causal_conv1d_update: Update<'_>, Convolution, &[("y", "out")], &[("y", "out")];
    causal_conv1d_varlen_states: VarlenStates<'_>, Nothing, &[], &[];
    gemm: gemm::Forward<'_>, Algorithm, MATRICES, MATRICES;
    gemm_grad_a: gemm::GradA<'_>, Algorithm, MATRICES, MATRICES;
    gemm_grad_b: gemm::GradB<'_>, Algorithm, MATRICES, MATRICES;
    gemm_grad_ab: gemm::GradAB<'_>, Algorithm, MATRICES, MATRICES;
}

impl Entry {
    /// Python's name for an argument.
    pub fn name_of(&self, name: &'static str) -> &'static str {
        other_name(self.renamed, name)
    }

    /// What errors call an argument.
    pub fn said(&self, name: &'static str) -> &'static str {
        other_name(self.said, name)
    }

    /// The option by the name that it has for people; None for a name that Python has the error for.
    pub fn named_options(&self, option: &Bound<'_, PyAny>) -> PyResult<Option<CallOptions>> {
        if self.option_kind != OptionKind::Convolution {
            return self.options(option).map(Some);
        }
        let (activation, rounds, norm) = self.convolution_options(option)?;
        if activation.is_none() {
            return Ok(Some(CallOptions::Convolution(Activation::None, rounds, norm)));
        }
        let py = option.py();
        // A name that a program spells out is one object with every other of its letters. Arrays compare to strings in ways of their own.
        let is = |known: &Bound<'_, _>| {
            Ok::<_, PyErr>(
                activation.is(known) || (activation.is_instance_of::<PyString>() && activation.eq(known)?),
            )
        };
        let silu = is(intern!(py, "silu"))? || is(intern!(py, "swish"))?;
        Ok(silu.then_some(CallOptions::Convolution(Activation::Silu, rounds, norm)))
    }

    /// An option of calls that are not computed.
    pub fn any_options(&self) -> CallOptions {
        match self.option_kind {
            OptionKind::Convolution => CallOptions::Convolution(Activation::None, false, None),
            OptionKind::Algorithm => CallOptions::Algorithm(Algorithm::Exact),
            OptionKind::Nothing => CallOptions::None,
        }
    }

    /// The option as kernels take it: whether there is SiLU, or the name of an algorithm.
    pub fn options(&self, option: &Bound<'_, PyAny>) -> PyResult<CallOptions> {
        Ok(match self.option_kind {
            OptionKind::Convolution => {
                let (silu, rounds, norm) = self.convolution_options(option)?;
                let silu = silu.extract().map_err(|_| wrong_option("silu", &silu, "True or False"))?;
                let activation = if silu { Activation::Silu } else { Activation::None };
                CallOptions::Convolution(activation, rounds, norm)
            }
            OptionKind::Algorithm => {
                let wrong = |_| wrong_option("algorithm", option, "fast or exact");
                let name: &str = option.extract().map_err(wrong)?;
                CallOptions::Algorithm(name.parse().map_err(|error| exception(error, self.said))?)
            }
            OptionKind::Nothing => CallOptions::None,
        })
    }

    /// The options of a convolution: an activation alone, or a tuple that has after it whether products are rounded, and after
    /// that head_dim, eps and scale of a norm.
    fn convolution_options<'py>(
        &self,
        option: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, bool, Option<HeadNorm>)> {
        let Ok(tuple) = option.cast_exact::<PyTuple>() else { return Ok((option.clone(), false, None)) };
        if tuple.len() == 2 {
            let (activation, rounds) = tuple.extract()?;
            return Ok((activation, rounds, None));
        }
        let (activation, rounds, head_dim, eps, scale) = tuple.extract()?;
        // No heads are no norm, so that operators have a number in any case.
        let norm = (head_dim != 0).then_some(HeadNorm { head_dim, eps, scale });
        Ok((activation, rounds, norm))
    }

    /// Work of a call: elements of a convolution, or at least the multiplications of a product.
    pub fn size(&self, inputs: &Tensors) -> i64 {
        let count = |tensor: &Option<Tensor>| tensor.as_ref().map_or(1, Tensor::element_count);
        let factors = if self.option_kind == OptionKind::Algorithm { 2 } else { 1 };
        inputs.iter().take(factors).map(count).fold(1, i64::saturating_mul)
    }
}

fn wrong_option(name: &str, found: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    match found.repr() {
        Ok(found) => PyTypeError::new_err(format!("{name} is {found}: expected {expected}")),
        Err(error) => error,
    }
}

fn other_name(names: Renamed, name: &'static str) -> &'static str {
    names.iter().find(|(from, _)| *from == name).map_or(name, |(_, to)| *to)
}
