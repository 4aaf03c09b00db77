"""`causal_conv1d.cpp_functions`: the kernels without autograd, as `mamba_ssm` calls them from its own autograd functions.

The functions can be compiled with ``fullgraph=True``. Eager calls of plain tensors go to the extension straight; the
original's operators are there under their names, ``torch.ops.DaoAILab._causal_conv1d_fwd_cpp`` and so on.
"""

import torch

from causeway import _native
from causeway._torch.eager import is_compiling
from causeway.drop_in import extension as causal_conv1d_cuda
from causeway.kernels import causal_conv1d_backward

__all__ = [
    "LIBRARY_NAME",
    "_causal_conv1d_bwd_cpp",
    "_causal_conv1d_fwd_cpp",
    "_causal_conv1d_update_cpp",
    "causal_conv1d_bwd_function",
    "causal_conv1d_fwd_function",
    "causal_conv1d_update_function",
]

LIBRARY_NAME = "DaoAILab"

_forward = _native.causal_conv1d_forward.eager
_backward = _native.causal_conv1d_backward.eager
_update = _native.causal_conv1d_update.eager


def _operator(function, *written):
    """A function of the extension as the original's operator, unless the original has been imported and has made that."""
    name = f"_{function.__name__}_cpp"
    if hasattr(getattr(torch.ops, LIBRARY_NAME), name):
        return function
    return torch.library.custom_op(f"{LIBRARY_NAME}::{name}", mutates_args=written)(function)


_causal_conv1d_fwd_cpp = _operator(causal_conv1d_cuda.causal_conv1d_fwd, "out", "final_states_out")
_causal_conv1d_bwd_cpp = _operator(causal_conv1d_cuda.causal_conv1d_bwd, "dx", "dweight", "dbias", "dinitial_states")
_causal_conv1d_update_cpp = _operator(causal_conv1d_cuda.causal_conv1d_update, "out", "conv_state")


def causal_conv1d_fwd_function(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    seq_idx: torch.Tensor | None,
    initial_states: torch.Tensor | None,
    final_states_out: torch.Tensor | None,
    silu_activation: bool,
) -> torch.Tensor:
    """The result; final_states_out is written where it is given."""
    if not is_compiling():
        outputs = None if final_states_out is None else (..., final_states_out)
        result = _forward((x, weight, bias, initial_states, seq_idx), silu_activation, outputs)
        if result is not None:
            return result if outputs is None else result[0]
    out = torch.empty_like(x)
    causal_conv1d_cuda.causal_conv1d_fwd(
        x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation
    )
    return out


def causal_conv1d_bwd_function(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dout: torch.Tensor,
    seq_idx: torch.Tensor | None,
    initial_states: torch.Tensor | None,
    dfinal_states: torch.Tensor | None,
    dx: torch.Tensor | None,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(dx, dweight, dbias, dinitial_states); dx is written in place where it is given, any view."""
    wants_states = return_dinitial_states and initial_states is not None
    if not is_compiling():
        inputs = x, weight, bias, dout, initial_states, seq_idx, None, dfinal_states
        outputs = ... if dx is None else dx, ..., ..., ... if wants_states else None
        gradients = _backward(inputs, silu_activation, outputs)
        if gradients is not None:
            # Those of gates, which the original has not, come last.
            return gradients[:4]
    if dx is None:
        dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    dbias = None if bias is None else torch.empty_like(bias)
    dinitial_states = torch.empty_like(initial_states) if wants_states else None
    causal_conv1d_backward(
        x,
        weight,
        bias,
        dout,
        initial_states,
        seq_idx,
        None,
        dfinal_states,
        silu_activation,
        dx,
        dweight,
        dbias,
        dinitial_states,
    )
    return dx, dweight, dbias, dinitial_states


def causal_conv1d_update_function(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu_activation: bool,
    cache_seqlens: torch.Tensor | None,
    conv_state_indices: torch.Tensor | None,
) -> torch.Tensor:
    """The outputs at the new positions; conv_state is changed in place."""
    if not is_compiling():
        inputs = x, weight, bias, cache_seqlens, conv_state_indices
        result = _update(inputs, silu_activation, (conv_state, ...))
        if result is not None:
            return result
    out = torch.empty_like(x)
    causal_conv1d_cuda.causal_conv1d_update(
        x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices
    )
    return out
