//! The four convolution calls. Shapes and dtypes are those of the library's argument structs of the same names.

use causeway::causal_conv1d::{Activation, Backward, Forward, Update, VarlenStates};
use causeway::{TensorMut, TensorRef};
use pyo3::prelude::*;

use crate::call::{Tensors, run};
use crate::error::Renamed;
use crate::tensor::Tensor;

/// An argument as Python passes it.
type Object<'a, 'py> = &'a Bound<'py, PyAny>;

const FORWARD: Renamed = &[("final_states", "final_states_out")];
const UPDATE: Renamed = &[("y", "out")];

fn activation(silu: bool) -> Activation {
    if silu { Activation::Silu } else { Activation::None }
}

/// The view of an optional input.
///
/// # Safety
/// As for [`Tensor::view`].
unsafe fn view<'a>(tensor: &Option<Tensor>) -> PyResult<Option<TensorRef<'a>>> {
    // SAFETY: the caller's promise.
    tensor.as_ref().map(|tensor| unsafe { tensor.view() }).transpose()
}

/// The view of an optional output.
///
/// # Safety
/// As for [`Tensor::view_mut`].
unsafe fn view_mut<'a>(argument: &str, tensor: &Option<Tensor>) -> PyResult<Option<TensorMut<'a>>> {
    // SAFETY: the caller's promise.
    tensor.as_ref().map(|tensor| unsafe { tensor.view_mut(argument) }).transpose()
}

/// Writes `y`, of x's shape and dtype, and `final_states`, if it is given.
///
/// `y = act(bias + weight ∗ x) + residual`. Any strides. No autograd: see `causeway.causal_conv1d_fn`.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states))]
pub fn causal_conv1d_forward(
    x: Object,
    weight: Object,
    bias: Option<Object>,
    initial_states: Option<Object>,
    seq_idx: Option<Object>,
    cu_seqlens: Option<Object>,
    residual: Option<Object>,
    silu: bool,
    y: Object,
    final_states: Option<Object>,
) -> PyResult<()> {
    let tensor = Tensor::read("x", x)?;
    let weight = Tensor::read("weight", weight)?;
    let bias = Tensor::read_optional("bias", bias)?;
    let initial_states = Tensor::read_optional("initial_states", initial_states)?;
    let seq_idx = Tensor::read_optional("seq_idx", seq_idx)?;
    let cu_seqlens = Tensor::read_optional("cu_seqlens", cu_seqlens)?;
    let residual = Tensor::read_optional("residual", residual)?;
    let y = Tensor::read("y", y)?;
    let final_states = Tensor::read_optional("final_states_out", final_states)?;
    Tensors {
        inputs: &[
            ("x", Some(tensor)),
            ("weight", Some(weight)),
            ("bias", bias),
            ("initial_states", initial_states),
            ("seq_idx", seq_idx),
            ("cu_seqlens", cu_seqlens),
            ("residual", residual),
        ],
        outputs: &[("y", Some(y)), ("final_states_out", final_states)],
    }
    .check()?;
    // SAFETY: the caller holds the objects during the call, and no output shares memory with another tensor.
    // Threads that write to an input meanwhile would race with NumPy and PyTorch just so.
    let mut call = unsafe {
        Forward {
            x: tensor.view()?,
            weight: weight.view()?,
            bias: view(&bias)?,
            initial_states: view(&initial_states)?,
            seq_idx: view(&seq_idx)?,
            cu_seqlens: view(&cu_seqlens)?,
            residual: view(&residual)?,
            activation: activation(silu),
            y: y.view_mut("y")?,
            final_states: view_mut("final_states_out", &final_states)?,
        }
    };
    run(x, &tensor, tensor.element_count(), &mut call, FORWARD)
}

/// Writes the gradients `dx`, `dweight` (of weight's dtype or float32), and `dbias` (of dweight's dtype) and
/// `dinitial_states` where they are given. The gradient of a residual is dy.
#[pyfunction]
#[pyo3(signature = (
    x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu, dx, dweight, dbias, dinitial_states
))]
#[expect(clippy::too_many_arguments, reason = "the operation's")]
pub fn causal_conv1d_backward(
    x: Object,
    weight: Object,
    bias: Option<Object>,
    dy: Object,
    initial_states: Option<Object>,
    seq_idx: Option<Object>,
    cu_seqlens: Option<Object>,
    dfinal_states: Option<Object>,
    silu: bool,
    dx: Object,
    dweight: Object,
    dbias: Option<Object>,
    dinitial_states: Option<Object>,
) -> PyResult<()> {
    let tensor = Tensor::read("x", x)?;
    let weight = Tensor::read("weight", weight)?;
    let bias = Tensor::read_optional("bias", bias)?;
    let dy = Tensor::read("dy", dy)?;
    let initial_states = Tensor::read_optional("initial_states", initial_states)?;
    let seq_idx = Tensor::read_optional("seq_idx", seq_idx)?;
    let cu_seqlens = Tensor::read_optional("cu_seqlens", cu_seqlens)?;
    let dfinal_states = Tensor::read_optional("dfinal_states", dfinal_states)?;
    let dx = Tensor::read("dx", dx)?;
    let dweight = Tensor::read("dweight", dweight)?;
    let dbias = Tensor::read_optional("dbias", dbias)?;
    let dinitial_states = Tensor::read_optional("dinitial_states", dinitial_states)?;
    Tensors {
        inputs: &[
            ("x", Some(tensor)),
            ("weight", Some(weight)),
            ("bias", bias),
            ("dy", Some(dy)),
            ("initial_states", initial_states),
            ("seq_idx", seq_idx),
            ("cu_seqlens", cu_seqlens),
            ("dfinal_states", dfinal_states),
        ],
        outputs: &[
            ("dx", Some(dx)),
            ("dweight", Some(dweight)),
            ("dbias", dbias),
            ("dinitial_states", dinitial_states),
        ],
    }
    .check()?;
    // SAFETY: as in `causal_conv1d_forward`.
    let mut call = unsafe {
        Backward {
            x: tensor.view()?,
            weight: weight.view()?,
            bias: view(&bias)?,
            dy: dy.view()?,
            initial_states: view(&initial_states)?,
            seq_idx: view(&seq_idx)?,
            cu_seqlens: view(&cu_seqlens)?,
            dfinal_states: view(&dfinal_states)?,
            activation: activation(silu),
            dx: dx.view_mut("dx")?,
            dweight: dweight.view_mut("dweight")?,
            dbias: view_mut("dbias", &dbias)?,
            dinitial_states: view_mut("dinitial_states", &dinitial_states)?,
        }
    };
    run(x, &tensor, tensor.element_count(), &mut call, &[])
}

/// Writes `out`, of x's shape and dtype, and changes `conv_state` in place.
#[pyfunction]
#[pyo3(signature = (x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out))]
pub fn causal_conv1d_update(
    x: Object,
    conv_state: Object,
    weight: Object,
    bias: Option<Object>,
    silu: bool,
    cache_seqlens: Option<Object>,
    conv_state_indices: Option<Object>,
    out: Object,
) -> PyResult<()> {
    let tensor = Tensor::read("x", x)?;
    let conv_state = Tensor::read("conv_state", conv_state)?;
    let weight = Tensor::read("weight", weight)?;
    let bias = Tensor::read_optional("bias", bias)?;
    let cache_seqlens = Tensor::read_optional("cache_seqlens", cache_seqlens)?;
    let conv_state_indices = Tensor::read_optional("conv_state_indices", conv_state_indices)?;
    let out = Tensor::read("out", out)?;
    Tensors {
        inputs: &[
            ("x", Some(tensor)),
            ("weight", Some(weight)),
            ("bias", bias),
            ("cache_seqlens", cache_seqlens),
            ("conv_state_indices", conv_state_indices),
        ],
        outputs: &[("conv_state", Some(conv_state)), ("out", Some(out))],
    }
    .check()?;
    // SAFETY: as in `causal_conv1d_forward`.
    let mut call = unsafe {
        Update {
            x: tensor.view()?,
            conv_state: conv_state.view_mut("conv_state")?,
            weight: weight.view()?,
            bias: view(&bias)?,
            cache_seqlens: view(&cache_seqlens)?,
            conv_state_indices: view(&conv_state_indices)?,
            activation: activation(silu),
            y: out.view_mut("out")?,
        }
    };
    run(x, &tensor, tensor.element_count(), &mut call, UPDATE)
}

/// Writes `states (n, dim, state_len)` from the packed `x (total, dim)`.
#[pyfunction]
pub fn causal_conv1d_varlen_states(x: Object, cu_seqlens: Object, states: Object) -> PyResult<()> {
    let tensor = Tensor::read("x", x)?;
    let cu_seqlens = Tensor::read("cu_seqlens", cu_seqlens)?;
    let states = Tensor::read("states", states)?;
    Tensors {
        inputs: &[("x", Some(tensor)), ("cu_seqlens", Some(cu_seqlens))],
        outputs: &[("states", Some(states))],
    }
    .check()?;
    // SAFETY: as in `causal_conv1d_forward`.
    let mut call = unsafe {
        VarlenStates { x: tensor.view()?, cu_seqlens: cu_seqlens.view()?, states: states.view_mut("states")? }
    };
    run(x, &tensor, tensor.element_count(), &mut call, &[])
}
