//! The four convolution calls. Shapes and dtypes are those of the library's argument structs of the same names.

use causeway::causal_conv1d::{Activation, Backward, Forward, Update, VarlenStates};
use causeway::{TensorMut, TensorRef};
use pyo3::prelude::*;

use crate::call::{Tensors, run};
use crate::eager::unwatched;
use crate::error::Renamed;
use crate::tensor::Tensor;

/// An argument as Python passes it.
pub type Object<'a, 'py> = &'a Bound<'py, PyAny>;

const FORWARD: Renamed = &[("final_states", "final_states_out")];
const UPDATE: Renamed = &[("y", "out")];

pub fn activation(silu: bool) -> Activation {
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

/// The inputs of [`Forward`], as they were read.
pub struct ForwardInputs {
    pub x: Tensor,
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub initial_states: Option<Tensor>,
    pub seq_idx: Option<Tensor>,
    pub cu_seqlens: Option<Tensor>,
    pub residual: Option<Tensor>,
    pub activation: Activation,
}

/// The inputs of [`Backward`], as they were read.
pub struct BackwardInputs {
    pub x: Tensor,
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub dy: Tensor,
    pub initial_states: Option<Tensor>,
    pub seq_idx: Option<Tensor>,
    pub cu_seqlens: Option<Tensor>,
    pub dfinal_states: Option<Tensor>,
    pub activation: Activation,
}

/// The inputs of [`Update`], as they were read; `conv_state` is an output too.
pub struct UpdateInputs {
    pub x: Tensor,
    pub conv_state: Tensor,
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub cache_seqlens: Option<Tensor>,
    pub conv_state_indices: Option<Tensor>,
    pub activation: Activation,
}

impl ForwardInputs {
    /// Reads the arguments that follow x, which errors name.
    pub fn read(
        x: Tensor,
        weight: Object,
        bias: Option<Object>,
        initial_states: Option<Object>,
        seq_idx: Option<Object>,
        cu_seqlens: Option<Object>,
        residual: Option<Object>,
        activation: Activation,
    ) -> PyResult<Self> {
        Ok(ForwardInputs {
            x,
            weight: Tensor::read("weight", weight)?,
            bias: Tensor::read_optional("bias", bias)?,
            initial_states: Tensor::read_optional("initial_states", initial_states)?,
            seq_idx: Tensor::read_optional("seq_idx", seq_idx)?,
            cu_seqlens: Tensor::read_optional("cu_seqlens", cu_seqlens)?,
            residual: Tensor::read_optional("residual", residual)?,
            activation,
        })
    }

    /// Computes; `x` is the object that was read as such.
    pub fn run(&self, x: Object, y: Tensor, final_states: Option<Tensor>) -> PyResult<()> {
        Tensors {
            inputs: &[
                ("x", Some(self.x)),
                ("weight", Some(self.weight)),
                ("bias", self.bias),
                ("initial_states", self.initial_states),
                ("seq_idx", self.seq_idx),
                ("cu_seqlens", self.cu_seqlens),
                ("residual", self.residual),
            ],
            outputs: &[("y", Some(y)), ("final_states_out", final_states)],
        }
        .check()?;
        // SAFETY: the caller holds the objects during the call, and no output shares memory with another tensor.
        // Threads that write to an input meanwhile would race with NumPy and PyTorch just so.
        let mut call = unsafe {
            Forward {
                x: self.x.view()?,
                weight: self.weight.view()?,
                bias: view(&self.bias)?,
                initial_states: view(&self.initial_states)?,
                seq_idx: view(&self.seq_idx)?,
                cu_seqlens: view(&self.cu_seqlens)?,
                residual: view(&self.residual)?,
                activation: self.activation,
                y: y.view_mut("y")?,
                final_states: view_mut("final_states_out", &final_states)?,
            }
        };
        run(x, &self.x, self.x.element_count(), &mut call, FORWARD)
    }
}

impl BackwardInputs {
    /// As [`ForwardInputs::read`].
    pub fn read(
        x: Tensor,
        weight: Object,
        bias: Option<Object>,
        dy: Object,
        initial_states: Option<Object>,
        seq_idx: Option<Object>,
        cu_seqlens: Option<Object>,
        dfinal_states: Option<Object>,
        activation: Activation,
    ) -> PyResult<Self> {
        Ok(BackwardInputs {
            x,
            weight: Tensor::read("weight", weight)?,
            bias: Tensor::read_optional("bias", bias)?,
            dy: Tensor::read("dy", dy)?,
            initial_states: Tensor::read_optional("initial_states", initial_states)?,
            seq_idx: Tensor::read_optional("seq_idx", seq_idx)?,
            cu_seqlens: Tensor::read_optional("cu_seqlens", cu_seqlens)?,
            dfinal_states: Tensor::read_optional("dfinal_states", dfinal_states)?,
            activation,
        })
    }

    /// As [`ForwardInputs::run`].
    pub fn run(
        &self,
        x: Object,
        dx: Tensor,
        dweight: Tensor,
        dbias: Option<Tensor>,
        dinitial_states: Option<Tensor>,
    ) -> PyResult<()> {
        Tensors {
            inputs: &[
                ("x", Some(self.x)),
                ("weight", Some(self.weight)),
                ("bias", self.bias),
                ("dy", Some(self.dy)),
                ("initial_states", self.initial_states),
                ("seq_idx", self.seq_idx),
                ("cu_seqlens", self.cu_seqlens),
                ("dfinal_states", self.dfinal_states),
            ],
            outputs: &[
                ("dx", Some(dx)),
                ("dweight", Some(dweight)),
                ("dbias", dbias),
                ("dinitial_states", dinitial_states),
            ],
        }
        .check()?;
        // SAFETY: as in `ForwardInputs::run`.
        let mut call = unsafe {
            Backward {
                x: self.x.view()?,
                weight: self.weight.view()?,
                bias: view(&self.bias)?,
                dy: self.dy.view()?,
                initial_states: view(&self.initial_states)?,
                seq_idx: view(&self.seq_idx)?,
                cu_seqlens: view(&self.cu_seqlens)?,
                dfinal_states: view(&self.dfinal_states)?,
                activation: self.activation,
                dx: dx.view_mut("dx")?,
                dweight: dweight.view_mut("dweight")?,
                dbias: view_mut("dbias", &dbias)?,
                dinitial_states: view_mut("dinitial_states", &dinitial_states)?,
            }
        };
        run(x, &self.x, self.x.element_count(), &mut call, &[])
    }
}

impl UpdateInputs {
    /// As [`ForwardInputs::read`].
    pub fn read(
        x: Tensor,
        conv_state: Object,
        weight: Object,
        bias: Option<Object>,
        activation: Activation,
        cache_seqlens: Option<Object>,
        conv_state_indices: Option<Object>,
    ) -> PyResult<Self> {
        Ok(UpdateInputs {
            x,
            conv_state: Tensor::read("conv_state", conv_state)?,
            weight: Tensor::read("weight", weight)?,
            bias: Tensor::read_optional("bias", bias)?,
            cache_seqlens: Tensor::read_optional("cache_seqlens", cache_seqlens)?,
            conv_state_indices: Tensor::read_optional("conv_state_indices", conv_state_indices)?,
            activation,
        })
    }

    /// As [`ForwardInputs::run`].
    pub fn run(&self, x: Object, out: Tensor) -> PyResult<()> {
        Tensors {
            inputs: &[
                ("x", Some(self.x)),
                ("weight", Some(self.weight)),
                ("bias", self.bias),
                ("cache_seqlens", self.cache_seqlens),
                ("conv_state_indices", self.conv_state_indices),
            ],
            outputs: &[("conv_state", Some(self.conv_state)), ("out", Some(out))],
        }
        .check()?;
        // SAFETY: as in `ForwardInputs::run`.
        let mut call = unsafe {
            Update {
                x: self.x.view()?,
                conv_state: self.conv_state.view_mut("conv_state")?,
                weight: self.weight.view()?,
                bias: view(&self.bias)?,
                cache_seqlens: view(&self.cache_seqlens)?,
                conv_state_indices: view(&self.conv_state_indices)?,
                activation: self.activation,
                y: out.view_mut("out")?,
            }
        };
        run(x, &self.x, self.x.element_count(), &mut call, UPDATE)
    }
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
    forward(
        x,
        Tensor::read("x", x)?,
        weight,
        bias,
        initial_states,
        seq_idx,
        cu_seqlens,
        residual,
        silu,
        y,
        final_states,
    )
}

/// As [`causal_conv1d_forward`], if nobody wants to see the call before it runs; False if somebody does, or for arguments that only
/// Python has words for.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states))]
pub fn eager_forward_out(
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
) -> PyResult<bool> {
    let others = [Some(weight), bias, initial_states, seq_idx, cu_seqlens, residual, Some(y), final_states];
    let Some(read) = unwatched(x, &others)? else { return Ok(false) };
    forward(x, read, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states)?;
    Ok(true)
}

#[expect(clippy::too_many_arguments, reason = "the operation's")]
fn forward(
    x: Object,
    read: Tensor,
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
    let inputs = ForwardInputs::read(
        read,
        weight,
        bias,
        initial_states,
        seq_idx,
        cu_seqlens,
        residual,
        activation(silu),
    )?;
    let y = Tensor::read("y", y)?;
    inputs.run(x, y, Tensor::read_optional("final_states_out", final_states)?)
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
    backward(
        x,
        Tensor::read("x", x)?,
        weight,
        bias,
        dy,
        initial_states,
        seq_idx,
        cu_seqlens,
        dfinal_states,
        silu,
        dx,
        dweight,
        dbias,
        dinitial_states,
    )
}

/// As [`causal_conv1d_backward`], if nobody wants to see the call before it runs; False if somebody does, or for arguments that only
/// Python has words for.
#[pyfunction]
#[pyo3(signature = (
    x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu, dx, dweight, dbias, dinitial_states
))]
#[expect(clippy::too_many_arguments, reason = "the operation's")]
pub fn eager_backward_out(
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
) -> PyResult<bool> {
    let others = [
        Some(weight),
        bias,
        Some(dy),
        initial_states,
        seq_idx,
        cu_seqlens,
        dfinal_states,
        Some(dx),
        Some(dweight),
        dbias,
        dinitial_states,
    ];
    let Some(read) = unwatched(x, &others)? else { return Ok(false) };
    backward(
        x,
        read,
        weight,
        bias,
        dy,
        initial_states,
        seq_idx,
        cu_seqlens,
        dfinal_states,
        silu,
        dx,
        dweight,
        dbias,
        dinitial_states,
    )?;
    Ok(true)
}

#[expect(clippy::too_many_arguments, reason = "the operation's")]
fn backward(
    x: Object,
    read: Tensor,
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
    inputs.run(
        x,
        Tensor::read("dx", dx)?,
        Tensor::read("dweight", dweight)?,
        Tensor::read_optional("dbias", dbias)?,
        Tensor::read_optional("dinitial_states", dinitial_states)?,
    )
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
    update(x, Tensor::read("x", x)?, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
}

/// As [`causal_conv1d_update`], if nobody wants to see the call before it runs; False if somebody does, or for arguments that only
/// Python has words for.
#[pyfunction]
#[pyo3(signature = (x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out))]
pub fn eager_update_out(
    x: Object,
    conv_state: Object,
    weight: Object,
    bias: Option<Object>,
    silu: bool,
    cache_seqlens: Option<Object>,
    conv_state_indices: Option<Object>,
    out: Object,
) -> PyResult<bool> {
    let others = [Some(conv_state), Some(weight), bias, cache_seqlens, conv_state_indices, Some(out)];
    let Some(read) = unwatched(x, &others)? else { return Ok(false) };
    update(x, read, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)?;
    Ok(true)
}

fn update(
    x: Object,
    read: Tensor,
    conv_state: Object,
    weight: Object,
    bias: Option<Object>,
    silu: bool,
    cache_seqlens: Option<Object>,
    conv_state_indices: Option<Object>,
    out: Object,
) -> PyResult<()> {
    let silu = activation(silu);
    let inputs = UpdateInputs::read(read, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)?;
    inputs.run(x, Tensor::read("out", out)?)
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
