"""`causal_conv1d.causal_conv1d_interface`: the differentiable functions with exactly the original's parameters.

Callers forward every keyword argument that a signature has. A parameter of Causeway's own, `residual` or `cu_seqlens`,
would so take what a model means for another of its parts.
"""

import torch

import causeway
from causeway import causal_conv1d_ref, causal_conv1d_update_ref
from causeway._activation import is_silu
from causeway._torch.conv1d import backward_needs_dispatcher
from causeway._torch.operators import backward_results
from causeway._torch.twice import made_by
from causeway.drop_in.cpp_functions import (
    causal_conv1d_bwd_function,
    causal_conv1d_fwd_function,
    causal_conv1d_update_function,
)

__all__ = [
    "CausalConv1dFn",
    "causal_conv1d_bwd_function",
    "causal_conv1d_fn",
    "causal_conv1d_fwd_function",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_function",
    "causal_conv1d_update_ref",
]


class CausalConv1dFn(torch.autograd.Function):
    """The original's autograd function, for code that calls ``CausalConv1dFn.apply`` itself."""

    @staticmethod
    def forward(
        ctx,
        x,
        weight,
        bias=None,
        seq_idx=None,
        initial_states=None,
        return_final_states=False,
        final_states_out=None,
        activation=None,
    ):
        """The convolution, or ``(out, final_states)``."""
        silu = is_silu(activation)
        states = None
        if return_final_states:
            states = x.new_empty(x.shape[0], x.shape[1], weight.shape[1] - 1)
        out = causal_conv1d_fwd_function(x, weight, bias, seq_idx, initial_states, states, silu)
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.silu = silu
        if states is None:
            return out
        if final_states_out is not None:
            # The caller's tensor gets the values, and never keeps the graph.
            final_states_out.copy_(states)
        return out, states

    @staticmethod
    def backward(ctx, dout, dfinal_states=None):
        """Gradients of x, weight, bias and initial_states."""
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        has_states = initial_states is not None
        if not torch.compiler.is_compiling() and backward_needs_dispatcher((dout, dfinal_states)):
            # Who differentiates this again is told that it cannot be, and batched gradients are taken apart.
            inputs = x, weight, bias, dout, initial_states, seq_idx, None, dfinal_states
            with made_by("causal_conv1d_fn"):
                dx, dweight, dbias, dinitial_states, *_ = backward_results(inputs, ctx.silu)
            return dx, dweight, dbias, None, dinitial_states, None, None, None
        dx, dweight, dbias, dinitial_states = causal_conv1d_bwd_function(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states, None, has_states, ctx.silu
        )
        return dx, dweight, dbias, None, dinitial_states, None, None, None


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    """`causeway.causal_conv1d_fn`, whose arguments these are."""
    return causeway.causal_conv1d_fn(
        x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation
    )


def causal_conv1d_update(
    x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None
):
    """`causeway.causal_conv1d_update`, whose arguments these are."""
    return causeway.causal_conv1d_update(
        x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices
    )
