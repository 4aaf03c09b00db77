"""The kernels as functions without autograd, as `mamba_ssm` calls them from autograd functions of its own."""

import causal_conv1d_cuda
import torch

from causeway import kernels


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
    if dx is None:
        dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    dbias = None if bias is None else torch.empty_like(bias)
    wants_states = return_dinitial_states and initial_states is not None
    dinitial_states = torch.empty_like(initial_states) if wants_states else None
    kernels.causal_conv1d_backward(
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
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """The outputs at the new positions; conv_state is changed in place."""
    out = torch.empty_like(x)
    causal_conv1d_cuda.causal_conv1d_update(
        x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices
    )
    return out
