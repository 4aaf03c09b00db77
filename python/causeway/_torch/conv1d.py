"""The convolution on PyTorch tensors; see `causeway.causal_conv1d_fn` for the arguments."""

import torch

from causeway import _native
from causeway._activation import is_silu
from causeway._torch import kernels, operators, transforms
from causeway._torch.eager import (
    autocast_dtype,
    cast,
    expect_tensors,
    is_compiling,
    is_direct,
    is_distributed,
    is_transformed,
)

_is_grad_enabled = torch.is_grad_enabled
_forward, _backward = kernels.forward, kernels.backward
_eager_forward, _eager_update = _native.eager_forward, _native.eager_update


def _plain(silu):
    """The kernels, for eager calls that need gradients of x, weight and bias alone: PyTorch takes time for each argument."""

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            return _forward(x, weight, bias, None, None, None, None, silu, False, None)

        @staticmethod
        def backward(ctx, dy):
            x, weight, bias = ctx.saved_tensors
            if not _is_grad_enabled():
                return _backward(x, weight, bias, None, None, None, dy, None, silu)[:3]
            # Through the operator, whose gradients are refused in words.
            dx, dweight, dbias, _ = operators.backward(x, weight, bias, dy, None, None, None, None, silu)
            return dx, dweight, None if bias is None else dbias

    return _apply_of(Convolution)


def _apply_of(function):
    """`Function.apply` less its checks for torch.func, which a direct call is not under."""
    return super(torch.autograd.Function, function).apply


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
        ctx.silu, ctx.wants_states = silu, wants_states
        tensors = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual
        result = _forward(*tensors, silu, wants_states, final_states_out)
        if not wants_states:
            return result if final_states_out is None else result[0]
        # One of the two may stay without a gradient.
        ctx.set_materialize_grads(False)
        y, final_states = result
        return y, final_states if final_states_out is None else final_states.clone()

    @staticmethod
    def backward(ctx, dy, dfinal_states=None):
        """Gradients of all inputs; through the operator if they are to be differentiated again."""
        if _is_grad_enabled() or dy is None:
            return *operators.convolution_gradients(ctx, dy, dfinal_states), None
        gradients = _backward(*ctx.saved_tensors, dy, dfinal_states, ctx.silu)
        return *gradients, None, None, dy if ctx.needs_input_grad[6] else None, None, None, None


_apply, _apply_plain, _apply_plain_silu = _apply_of(_Convolution), _plain(False), _plain(True)


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
    states, compiling = initial_states, is_compiling()
    result = None
    if not compiling:
        try:
            result = _eager_forward(
                x, weight, bias, seq_idx, states, return_final_states, final_states_out, activation, cu_seqlens,
                residual, False,
            )  # fmt: skip
        except RuntimeError:
            # A nested tensor of the older kind is a plain one by its class, and has no words for what it lacks.
            expect_tensors((), x=x, weight=weight, bias=bias, initial_states=states, residual=residual)
            raise
    if result is None and (dtype := autocast_dtype(x)) is not None:
        x, states, residual = cast(x, dtype), cast(states, dtype), cast(residual, dtype)
        if _keeps_float32(final_states_out, x, dtype):
            y, final_states = causal_conv1d_fn(
                x, weight, bias, seq_idx, states, True, None, activation, cu_seqlens, residual
            )
            _write_final_states(final_states_out, final_states)
            if not return_final_states:
                return y
            # As without autocast: the caller's tensor, or what keeps the graph.
            return y, final_states.to(torch.float32) if final_states.requires_grad else final_states_out
        if not compiling:
            result = _eager_forward(
                x, weight, bias, seq_idx, states, return_final_states, final_states_out, activation, cu_seqlens,
                residual, True,
            )  # fmt: skip
    if result is True:
        if x.is_nested:
            expect_tensors((), x=x)
        silu = activation is not None
        if not return_final_states and states is seq_idx is cu_seqlens is residual is final_states_out is None:
            return _apply_plain_silu(x, weight, bias) if silu else _apply_plain(x, weight, bias)
        return _apply(
            x, weight, bias, states, seq_idx, cu_seqlens, residual, silu, return_final_states, final_states_out
        )  # fmt: skip
    if result is not None:
        return result

    silu = is_silu(activation)
    expect_tensors(
        ("x", "weight"),
        x=x,
        weight=weight,
        bias=bias,
        initial_states=states,
        seq_idx=seq_idx,
        cu_seqlens=cu_seqlens,
        residual=residual,
        final_states_out=final_states_out,
    )
    if is_distributed(x, weight):
        from causeway._torch import dtensor

        seq_idx, cu_seqlens = dtensor.replicated(seq_idx, x), dtensor.replicated(cu_seqlens, x)
    wants_states = return_final_states or final_states_out is not None
    forward = transforms.Convolution.apply if is_transformed() else operators.forward
    y, final_states = forward(x, weight, bias, states, seq_idx, cu_seqlens, residual, silu, wants_states)
    if final_states_out is not None:
        _write_final_states(final_states_out, final_states)
    return (y, final_states) if return_final_states else y


def _keeps_float32(state, x, dtype):
    """True for a tensor of a caller's that autocast cannot cast, since it is written to, and that loses nothing."""
    return isinstance(state, torch.Tensor) and state.dtype == torch.float32 and x.dtype == dtype


def _write_final_states(final_states_out, final_states):
    """Copies values, without the graph, into the tensor of a caller whose call was an operator."""
    if final_states_out.shape != final_states.shape:
        found, expected = tuple(final_states_out.shape), tuple(final_states.shape)
        raise ValueError(f"final_states_out has shape {found}: expected {expected}")
    with torch.no_grad():
        final_states_out.copy_(final_states)


def causal_conv1d_update(
    x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices, is_cast=False
):
    """See `causeway.causal_conv1d_update`."""
    if not is_compiling():
        try:
            result = _eager_update(
                x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices, is_cast
            )
        except RuntimeError:
            # As in causal_conv1d_fn.
            expect_tensors((), x=x, conv_state=conv_state, weight=weight, bias=bias)
            raise
        if result is True:
            raise RuntimeError(
                "conv_state requires a gradient, and is changed in place: pass conv_state.detach()"
            )
        if result is not None:
            return result
    if not is_cast and (dtype := autocast_dtype(x)) is not None:
        x = cast(x, dtype)
        arguments = weight, bias, activation, cache_seqlens, conv_state_indices, True
        if _keeps_float32(conv_state, x, dtype):
            # x is rounded first, as prefill has it. SiLU is that of float32 then, rounded once.
            return causal_conv1d_update(x.float(), conv_state, *arguments).to(dtype)
        return causal_conv1d_update(x, conv_state, *arguments)
    silu = is_silu(activation)
    expect_tensors(
        ("x", "conv_state", "weight"),
        x=x,
        conv_state=conv_state,
        weight=weight,
        bias=bias,
        cache_seqlens=cache_seqlens,
        conv_state_indices=conv_state_indices,
    )
    if is_distributed(x, conv_state, weight):
        from causeway._torch import dtensor

        return dtensor.update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)
    return operators.update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """See `causeway.causal_conv1d_varlen_states`."""
    expect_tensors(("x", "cu_seqlens"), x=x, cu_seqlens=cu_seqlens)
    if is_distributed(x):
        from causeway._torch import dtensor

        cu_seqlens = dtensor.replicated(cu_seqlens, x)
    if is_compiling() or not is_direct(x, cu_seqlens):
        return operators.varlen_states(x, cu_seqlens, state_len)
    return kernels.varlen_states(x, cu_seqlens, state_len)
