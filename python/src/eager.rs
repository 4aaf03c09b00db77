//! Whole calls of PyTorch's tensors: outputs are allocated here, by PyTorch, and nothing is left for Python to do.
//!
//! An eager call of tensors that nobody else watches costs one crossing from Python this way. Everything that wants to
//! see an operation before it runs (autograd, autocast, dispatch modes, tensor subclasses, `torch.func`, tracers) is told
//! apart here and left to the package's Python code.

use causeway::causal_conv1d::Activation;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::conv1d::{BackwardInputs, ForwardInputs, Object, UpdateInputs, activation};
use crate::tensor::Tensor;
use crate::torch::{Torch, Watched, requires_grad};

/// What a call gives, or what has to be done about it.
type Outcome<'py> = PyResult<Option<Bound<'py, PyAny>>>;

/// As `causeway.causal_conv1d_fn`: its result; True if a gradient has to be recorded around the call; None if somebody
/// wants to see it, or for arguments that only Python has words for.
#[pyfunction]
#[pyo3(signature = (
    x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation, cu_seqlens, residual,
    is_cast
))]
#[expect(clippy::too_many_arguments, reason = "the operation's")]
pub fn eager_forward<'py>(
    x: Object<'_, 'py>,
    weight: Option<Object<'_, 'py>>,
    bias: Option<Object<'_, 'py>>,
    seq_idx: Option<Object<'_, 'py>>,
    initial_states: Option<Object<'_, 'py>>,
    return_final_states: Object<'_, 'py>,
    final_states_out: Option<Object<'_, 'py>>,
    activation: Option<Object<'_, 'py>>,
    cu_seqlens: Option<Object<'_, 'py>>,
    residual: Option<Object<'_, 'py>>,
    is_cast: bool,
) -> Outcome<'py> {
    let py = x.py();
    let (Some(torch), Some(activation), Some(weight)) = (Torch::imported(py)?, named(activation)?, weight)
    else {
        return Ok(None);
    };
    let others = [Some(weight), bias, seq_idx, initial_states, final_states_out, cu_seqlens, residual];
    let differentiable = [Some(x), Some(weight), bias, initial_states, residual];
    let read = match way(torch, x, &others, &differentiable, is_cast)? {
        Way::Watched => return Ok(None),
        Way::Grad => return Ok(Some(PyBool::new(py, true).to_owned().into_any())),
        Way::Kernel(read) => read,
    };
    let inputs =
        ForwardInputs::read(read, weight, bias, initial_states, seq_idx, cu_seqlens, residual, activation)?;
    let wants_states = return_final_states.is_truthy()?;
    let (y, final_states) = forward(torch, x, &inputs, wants_states, final_states_out)?;
    result(y, if wants_states { final_states } else { None }).map(Some)
}

/// y, and final_states if they are wanted or there is a tensor for them.
#[pyfunction]
#[pyo3(signature = (
    x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states, final_states_out
))]
pub fn torch_forward<'py>(
    x: Object<'_, 'py>,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    initial_states: Option<Object<'_, 'py>>,
    seq_idx: Option<Object<'_, 'py>>,
    cu_seqlens: Option<Object<'_, 'py>>,
    residual: Option<Object<'_, 'py>>,
    silu: bool,
    wants_states: Object<'_, 'py>,
    final_states_out: Option<Object<'_, 'py>>,
) -> PyResult<Bound<'py, PyAny>> {
    let inputs = ForwardInputs::read(
        Tensor::read("x", x)?,
        weight,
        bias,
        initial_states,
        seq_idx,
        cu_seqlens,
        residual,
        activation(silu),
    )?;
    let (y, final_states) =
        forward(Torch::of_tensors(x.py())?, x, &inputs, wants_states.is_truthy()?, final_states_out)?;
    result(y, final_states)
}

/// As [`torch_forward`] without its rarer arguments; None if somebody wants to see the call, or for arguments that only Python
/// has words for.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, seq_idx, initial_states, final_states_out, silu))]
pub fn eager_forward_alone<'py>(
    x: Object<'_, 'py>,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    seq_idx: Option<Object<'_, 'py>>,
    initial_states: Option<Object<'_, 'py>>,
    final_states_out: Option<Object<'_, 'py>>,
    silu: bool,
) -> Outcome<'py> {
    let others = [Some(weight), bias, seq_idx, initial_states, final_states_out];
    let Some(read) = unwatched(x, &others)? else { return Ok(None) };
    let silu = activation(silu);
    let inputs = ForwardInputs::read(read, weight, bias, initial_states, seq_idx, None, None, silu)?;
    let (y, _) = forward(Torch::of_tensors(x.py())?, x, &inputs, false, final_states_out)?;
    Ok(Some(y))
}

fn forward<'py>(
    torch: &Torch,
    x: Object<'_, 'py>,
    inputs: &ForwardInputs,
    wants_states: bool,
    final_states_out: Option<Object<'_, 'py>>,
) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
    let y = torch.empty_like(x)?;
    let y_tensor = Tensor::read_new("y", &y, torch)?;
    let Some(given) = final_states_out else {
        let states = if wants_states { empty_final_states(x, inputs)? } else { None };
        let tensor =
            states.as_ref().map(|states| Tensor::read_new("final_states", states, torch)).transpose()?;
        inputs.run(x, y_tensor, tensor)?;
        return Ok((y, states));
    };
    inputs.run(x, y_tensor, Some(Tensor::read("final_states_out", given)?))?;
    torch.increment_version(given)?;
    Ok((y, Some(given.clone())))
}

/// Room for one row of states per sequence; None for inputs that the library refuses.
fn empty_final_states<'py>(
    x: Object<'_, 'py>,
    inputs: &ForwardInputs,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (&[batch, dim, _], &[_, width]) = (inputs.x.shape(), inputs.weight.shape()) else { return Ok(None) };
    let rows = match &inputs.cu_seqlens {
        None => batch,
        Some(cu_seqlens) => cu_seqlens.shape().first().map_or(-1, |count| count - 1),
    };
    if rows < 0 || width < 1 {
        return Ok(None);
    }
    x.call_method1(intern!(x.py(), "new_empty"), ((rows, dim, width - 1),)).map(Some)
}

/// y alone or with its states.
fn result<'py>(y: Bound<'py, PyAny>, final_states: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let py = y.py();
    match final_states {
        None => Ok(y),
        Some(final_states) => Ok(PyTuple::new(py, [y, final_states])?.into_any()),
    }
}

/// `(dx, dweight, dbias, dinitial_states)`, with None for the gradient of what is not there.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, initial_states, seq_idx, cu_seqlens, dy, dfinal_states, silu))]
pub fn torch_backward<'py>(
    x: Object<'_, 'py>,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    initial_states: Option<Object<'_, 'py>>,
    seq_idx: Option<Object<'_, 'py>>,
    cu_seqlens: Option<Object<'_, 'py>>,
    dy: Object<'_, 'py>,
    dfinal_states: Option<Object<'_, 'py>>,
    silu: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let read = Tensor::read("x", x)?;
    backward(x, read, weight, bias, initial_states, seq_idx, cu_seqlens, dy, dfinal_states, silu)
}

/// As [`torch_backward`]; None if somebody wants to see the call, or for arguments that only Python has words for.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, initial_states, seq_idx, cu_seqlens, dy, dfinal_states, silu))]
pub fn eager_backward<'py>(
    x: Object<'_, 'py>,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    initial_states: Option<Object<'_, 'py>>,
    seq_idx: Option<Object<'_, 'py>>,
    cu_seqlens: Option<Object<'_, 'py>>,
    dy: Object<'_, 'py>,
    dfinal_states: Option<Object<'_, 'py>>,
    silu: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let others = [Some(weight), bias, initial_states, seq_idx, cu_seqlens, Some(dy), dfinal_states];
    let Some(read) = unwatched(x, &others)? else { return Ok(None) };
    backward(x, read, weight, bias, initial_states, seq_idx, cu_seqlens, dy, dfinal_states, silu).map(Some)
}

fn backward<'py>(
    x: Object<'_, 'py>,
    read: Tensor,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    initial_states: Option<Object<'_, 'py>>,
    seq_idx: Option<Object<'_, 'py>>,
    cu_seqlens: Option<Object<'_, 'py>>,
    dy: Object<'_, 'py>,
    dfinal_states: Option<Object<'_, 'py>>,
    silu: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let torch = Torch::of_tensors(x.py())?;
    let inputs = BackwardInputs::read(
        read,
        weight,
        bias,
        dy,
        initial_states,
        seq_idx,
        cu_seqlens,
        dfinal_states,
        activation(silu),
    )?;
    let new = |like: Option<Object<'_, 'py>>| like.map(|like| torch.empty_like(like)).transpose();
    let gradients = [new(Some(x))?, new(Some(weight))?, new(bias)?, new(initial_states)?];
    let read = |name, gradient: &Option<Bound<'py, PyAny>>| {
        gradient.as_ref().map(|gradient| Tensor::read_new(name, gradient, torch)).transpose()
    };
    let [dx, dweight, dbias, dinitial_states] = &gradients;
    let (Some(dx), Some(dweight)) = (read("dx", dx)?, read("dweight", dweight)?) else {
        unreachable!("made from tensors that are there")
    };
    inputs.run(x, dx, dweight, read("dbias", dbias)?, read("dinitial_states", dinitial_states)?)?;
    PyTuple::new(x.py(), gradients)
}

/// As `causeway.causal_conv1d_update`: its result; True if conv_state may not be changed, as autograd follows it; None as
/// for [`eager_forward`].
#[pyfunction]
#[pyo3(signature = (x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices, is_cast))]
pub fn eager_update<'py>(
    x: Object<'_, 'py>,
    conv_state: Option<Object<'_, 'py>>,
    weight: Option<Object<'_, 'py>>,
    bias: Option<Object<'_, 'py>>,
    activation: Option<Object<'_, 'py>>,
    cache_seqlens: Option<Object<'_, 'py>>,
    conv_state_indices: Option<Object<'_, 'py>>,
    is_cast: bool,
) -> Outcome<'py> {
    let py = x.py();
    let (Some(torch), Some(activation), Some(conv_state), Some(weight)) =
        (Torch::imported(py)?, named(activation)?, conv_state, weight)
    else {
        return Ok(None);
    };
    let others = [Some(conv_state), Some(weight), bias, cache_seqlens, conv_state_indices];
    let read = match way(torch, x, &others, &[Some(conv_state)], is_cast)? {
        Way::Watched => return Ok(None),
        Way::Grad => return Ok(Some(PyBool::new(py, true).to_owned().into_any())),
        Way::Kernel(read) => read,
    };
    let inputs =
        UpdateInputs::read(read, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)?;
    update(torch, x, conv_state, &inputs).map(Some)
}

/// The new outputs; conv_state is changed in place, and autograd is told so.
#[pyfunction]
#[pyo3(signature = (x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices))]
pub fn torch_update<'py>(
    x: Object<'_, 'py>,
    conv_state: Object<'_, 'py>,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    silu: bool,
    cache_seqlens: Option<Object<'_, 'py>>,
    conv_state_indices: Option<Object<'_, 'py>>,
) -> PyResult<Bound<'py, PyAny>> {
    let read = Tensor::read("x", x)?;
    let inputs = UpdateInputs::read(
        read,
        conv_state,
        weight,
        bias,
        activation(silu),
        cache_seqlens,
        conv_state_indices,
    )?;
    update(Torch::of_tensors(x.py())?, x, conv_state, &inputs)
}

/// As [`torch_update`]; None if somebody wants to see the call, or for arguments that only Python has words for.
#[pyfunction]
#[pyo3(signature = (x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices))]
pub fn eager_update_alone<'py>(
    x: Object<'_, 'py>,
    conv_state: Object<'_, 'py>,
    weight: Object<'_, 'py>,
    bias: Option<Object<'_, 'py>>,
    silu: bool,
    cache_seqlens: Option<Object<'_, 'py>>,
    conv_state_indices: Option<Object<'_, 'py>>,
) -> Outcome<'py> {
    let others = [Some(conv_state), Some(weight), bias, cache_seqlens, conv_state_indices];
    let Some(read) = unwatched(x, &others)? else { return Ok(None) };
    let silu = activation(silu);
    let inputs = UpdateInputs::read(read, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)?;
    update(Torch::of_tensors(x.py())?, x, conv_state, &inputs).map(Some)
}

fn update<'py>(
    torch: &Torch,
    x: Object<'_, 'py>,
    conv_state: Object<'_, 'py>,
    inputs: &UpdateInputs,
) -> PyResult<Bound<'py, PyAny>> {
    let out = torch.empty_like(x)?;
    inputs.run(x, Tensor::read_new("out", &out, torch)?)?;
    torch.increment_version(conv_state)?;
    Ok(out)
}

/// The activation of a name; None for a name that Python has the error for.
fn named(activation: Option<Object<'_, '_>>) -> PyResult<Option<Activation>> {
    let Some(name) = activation else { return Ok(Some(Activation::None)) };
    let py = name.py();
    // A name that a program spells out is one object with every other of its letters.
    let is = |known: &Bound<'_, _>| Ok::<_, PyErr>(name.is(known) || name.eq(known)?);
    let silu = is(intern!(py, "silu"))? || is(intern!(py, "swish"))?;
    Ok(silu.then_some(Activation::Silu))
}

/// What has to be done about a call.
enum Way {
    /// Somebody wants to see it before it runs, or Python has words for its arguments.
    Watched,
    /// A gradient is to be recorded.
    Grad,
    /// Nothing but its kernel; x has been read.
    Kernel(Tensor),
}

/// The way of a call: autograd wants it only if a differentiable tensor requires a gradient.
fn way(
    torch: &Torch,
    x: Object<'_, '_>,
    others: &[Option<Object<'_, '_>>],
    differentiable: &[Option<Object<'_, '_>>],
    is_cast: bool,
) -> PyResult<Way> {
    let py = x.py();
    let is_plain = |object: &Object<'_, '_>| torch.is_plain(object);
    if !is_plain(&x) || !others.iter().flatten().all(is_plain) {
        return Ok(Way::Watched);
    }
    let watched = torch.watched(py, is_cast, differentiable.is_empty())?;
    if watched == Watched::Yes {
        return Ok(Way::Watched);
    }
    let read = Tensor::of_dlpack(x, torch)?;
    if read.is_none() {
        let is = |name| x.getattr(name)?.is_truthy();
        if !is(intern!(py, "is_cuda"))? && !is(intern!(py, "is_cpu"))? {
            return Ok(Way::Watched);
        }
    }
    if watched == Watched::Grad {
        for tensor in differentiable {
            if requires_grad(*tensor)? {
                return Ok(Way::Grad);
            }
        }
    }
    Ok(Way::Kernel(match read {
        Some(tensor) => tensor,
        None => Tensor::read("x", x)?,
    }))
}

/// As [`way`] where a caller has autograd and autocast of its own: x of a call that is nothing but its kernel.
pub fn unwatched(x: Object<'_, '_>, others: &[Option<Object<'_, '_>>]) -> PyResult<Option<Tensor>> {
    let Some(torch) = Torch::imported(x.py())? else { return Ok(None) };
    Ok(match way(torch, x, others, &[], true)? {
        Way::Kernel(tensor) => Some(tensor),
        Way::Watched | Way::Grad => None,
    })
}
