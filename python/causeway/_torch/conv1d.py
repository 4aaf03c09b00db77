"""The convolution on PyTorch tensors; see `causeway.causal_conv1d_fn` for the arguments."""

import torch

from causeway._activation import is_silu
from causeway._torch import kernels, operators, transforms
from causeway._torch.eager import (
    autocast_dtype,
    cast,
    expect_tensors,
    is_compiling,
    is_direct,
    is_transformed,
)

_is_grad_enabled = torch.is_grad_enabled


class _Convolution(torch.autograd.Function):
    """The kernels, for eager calls that need a gradient."""

    @staticmethod
    def forward(
        ctx,
        x,
        weight,
        bias,
        initial_states,
        seq_idx,
        cu_seqlens,
        residual,
        silu,
        wants_states,
        final_states_out,
    ):
        """y, or (y, final_states). The caller's tensor gets the values, and never keeps the graph."""
        ctx.save_for_backward(x, weight, bias, initial_states, seq_idx, cu_seqlens)
        ctx.silu, ctx.wants_states, ctx.has_residual = silu, wants_states, residual is not None
        ctx.set_materialize_grads(False)
        final_states = final_states_out
        if wants_states and final_states is None:
            final_states = kernels.empty_final_states(x, weight, cu_seqlens)
        y = kernels.forward(
            x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, final_states
        )
        _bump(final_states_out)
        if not wants_states:
            return y
        return y, final_states if final_states_out is None else final_states.clone()

    @staticmethod
    def backward(ctx, dy, dfinal_states=None):
        """Gradients of all inputs; through the operator if they are to be differentiated again."""
        if _is_grad_enabled() or dy is None:
            return *operators.convolution_gradients(ctx, dy, dfinal_states), None
        x, weight, bias, initial_states, seq_idx, cu_seqlens = ctx.saved_tensors
        gradients = kernels.backward(
            x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, ctx.silu
        )
        return *gradients, None, None, dy if ctx.has_residual else None, None, None, None


# `Function.apply` less its checks for torch.func, which a direct call is not under.
_apply = super(torch.autograd.Function, _Convolution).apply


def causal_conv1d_fn(
    x,
    weight,
    bias,
    seq_idx,
    initial_states,
    return_final_states,
    final_states_out,
    activation,
    cu_seqlens,
    residual,
):
    """See `causeway.causal_conv1d_fn`."""
    silu = is_silu(activation)
    dtype = autocast_dtype(x)
    if dtype is not None:
        x, initial_states, residual = cast(x, dtype), cast(initial_states, dtype), cast(residual, dtype)
    if is_compiling() or not is_direct(
        x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, final_states_out
    ):
        expect_tensors(
            weight=weight,
            bias=bias,
            initial_states=initial_states,
            seq_idx=seq_idx,
            cu_seqlens=cu_seqlens,
            residual=residual,
            final_states_out=final_states_out,
        )
        wants_states = return_final_states or final_states_out is not None
        forward = transforms.Convolution.apply if is_transformed() else operators.forward
        y, final_states = forward(
            x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states
        )
        if final_states_out is not None:
            _write_final_states(final_states_out, final_states)
        return (y, final_states) if return_final_states else y

    needs_gradient = _is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (initial_states is not None and initial_states.requires_grad)
        or (residual is not None and residual.requires_grad)
    )
    if not needs_gradient:
        final_states = final_states_out
        if return_final_states and final_states is None:
            final_states = kernels.empty_final_states(x, weight, cu_seqlens)
        y = kernels.forward(
            x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, final_states
        )
        _bump(final_states_out)
        return (y, final_states) if return_final_states else y

    return _apply(
        x,
        weight,
        bias,
        initial_states,
        seq_idx,
        cu_seqlens,
        residual,
        silu,
        return_final_states,
        final_states_out,
    )


def _write_final_states(final_states_out, final_states):
    """Copies values, without the graph, into the tensor of a caller whose call was an operator."""
    if final_states_out.shape != final_states.shape:
        found, expected = tuple(final_states_out.shape), tuple(final_states.shape)
        raise ValueError(f"final_states_out has shape {found}: expected {expected}")
    with torch.no_grad():
        final_states_out.copy_(final_states)


def _bump(written):
    """Tells autograd that a tensor of the caller's has changed."""
    if written is not None and not written.is_inference():
        torch.autograd.graph.increment_version(written)


def causal_conv1d_update(x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices):
    """See `causeway.causal_conv1d_update`."""
    silu = is_silu(activation)
    if is_compiling() or not is_direct(x, conv_state, weight, bias, cache_seqlens, conv_state_indices):
        expect_tensors(
            conv_state=conv_state,
            weight=weight,
            bias=bias,
            cache_seqlens=cache_seqlens,
            conv_state_indices=conv_state_indices,
        )
        return operators.update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)
    if conv_state is not None and conv_state.requires_grad and _is_grad_enabled():
        raise RuntimeError("conv_state requires a gradient, and is changed in place: pass conv_state.detach()")
    return kernels.update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """See `causeway.causal_conv1d_varlen_states`."""
    if is_compiling() or not is_direct(x, cu_seqlens):
        expect_tensors(cu_seqlens=cu_seqlens)
        return operators.varlen_states(x, cu_seqlens, state_len)
    return kernels.varlen_states(x, cu_seqlens, state_len)
