"""`causal_conv1d_cuda`: outputs are arguments, and gradients of the parameters are added up in float32."""

import torch

from causeway import kernels

__all__ = ["causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update"]


def causal_conv1d_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    seq_idx: torch.Tensor | None,
    initial_states: torch.Tensor | None,
    out: torch.Tensor,
    final_states_out: torch.Tensor | None,
    silu_activation: bool,
) -> None:
    """Writes out, and final_states_out where it is given."""
    kernels.causal_conv1d_forward(
        x, weight, bias, initial_states, seq_idx, None, None, silu_activation, out, final_states_out
    )


def causal_conv1d_bwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dout: torch.Tensor,
    seq_idx: torch.Tensor | None,
    initial_states: torch.Tensor | None,
    dfinal_states: torch.Tensor | None,
    dx: torch.Tensor,
    dweight: torch.Tensor,
    dbias: torch.Tensor | None,
    dinitial_states: torch.Tensor | None,
    silu_activation: bool,
) -> None:
    """Writes dx and dinitial_states, and adds to dweight and dbias, which are float32."""
    dweight_sum = torch.empty_like(dweight)
    dbias_sum = None if dbias is None else torch.empty_like(dbias)
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
        dweight_sum,
        dbias_sum,
        dinitial_states,
    )
    dweight.add_(dweight_sum)
    if dbias is not None:
        dbias.add_(dbias_sum)


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    silu_activation: bool,
    cache_seqlens: torch.Tensor | None,
    conv_state_indices: torch.Tensor | None,
) -> None:
    """Writes out, and changes conv_state in place."""
    kernels.causal_conv1d_update(
        x, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices, out
    )
