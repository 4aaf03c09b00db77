"""Query, key and value of a delta net on PyTorch tensors; see `causeway.causal_conv1d_qkv`."""

import torch

from causeway import _native
from causeway._activation import kernel_option
from causeway._qkv import AXES, parts_of, split
from causeway._torch.conv1d import causal_conv1d_fn, is_watched_gradient
from causeway._torch.eager import autocast_dtype, cast, is_compiling, is_direct
from causeway._torch.operators import backward_results


def update_qkv(convolved, x, conv_state, before):
    """q, k and v of new positions, by a function of those and the states in front of them. Shifts them into conv_state."""
    if conv_state.requires_grad:
        raise RuntimeError("conv_state requires a gradient, and is changed in place: pass conv_state.detach()")
    if conv_state.dtype != x.dtype and autocast_dtype(x) is None:
        raise TypeError(f"conv_state has dtype {conv_state.dtype}: expected {x.dtype}, as x has")
    state_len = conv_state.shape[-1]
    with torch.no_grad():
        results = convolved(x, conv_state[..., state_len - before :] if before else None)
        if state_len:
            conv_state.copy_(torch.cat((conv_state, x), -1)[..., -state_len:])
    return results


def _compute(given, sizes, options, indices, returns_states):
    """q, k and v as (batch, seqlen, channels), which kernels write in this order, and their final states."""
    results, states = [], []
    for part in parts_of(given, sizes, options):
        batch, dim, seqlen = part.x.shape
        y = part.x.new_empty((batch, seqlen, dim))
        outputs = y.transpose(1, 2), ... if returns_states else None
        result = _native.causal_conv1d_forward.run(part.inputs(*indices), kernel_option(part.option), outputs)
        results.append(y)
        states.append(result[1] if returns_states else None)
    return tuple(results), _joined(states, sizes)


def _joined(states, sizes):
    return torch.cat(states, 1) if sizes is not None and states[0] is not None else tuple(states)


class _Packed(torch.autograd.Function):
    """The three convolutions of one tensor. Autograd's own gradient of parts joins them again, which costs a copy of all three."""

    @staticmethod
    def forward(ctx, sizes, options, returns_states, *tensors):
        ctx.sizes, ctx.options = sizes, options
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        results, states = _compute(tensors[:4], sizes, options, tensors[4:], returns_states)
        return (*results, states) if returns_states else results

    @staticmethod
    def backward(ctx, dq, dk, dv, dfinal_states=None):
        *given, seq_idx, cu_seqlens = ctx.saved_tensors
        watched = is_watched_gradient(dq, dk, dv, dfinal_states)
        gradients = [None if t is None or watched else torch.empty_like(t) for t in given]
        places = zip(*(split(t, axis, ctx.sizes) for t, axis in zip(gradients, AXES)))
        parts = parts_of(given, ctx.sizes, ctx.options)
        found = []
        for part, dy, dstate, outputs in zip(parts, (dq, dk, dv), split(dfinal_states, 1, ctx.sizes), places):
            dy = torch.zeros_like(part.x) if dy is None else dy.transpose(1, 2)
            inputs = part.x, part.weight, part.bias, dy, part.initial_states, seq_idx, cu_seqlens, dstate
            option = kernel_option(part.option)
            if watched:
                found.append(backward_results(inputs, option)[:4])
            else:
                _native.causal_conv1d_backward.run(inputs, option, (*outputs, None, None))
        if watched:
            gradients = [None if one[0] is None else torch.cat(one, axis) for one, axis in zip(zip(*found), AXES)]
        return None, None, None, *gradients, None, None


def causal_conv1d_qkv(given, sizes, options, indices, returns_states):
    """See `causeway.causal_conv1d_qkv`: q, k and v, and their final states, in one tensor where x is one.

    The tensors given are x, weight, bias and initial_states, each a tuple of three without sizes.
    """
    parts = parts_of(given, sizes, options)
    if (dtype := autocast_dtype(parts[0].x)) is not None:
        x, weight, bias, initial_states = given
        if sizes is None:
            x, initial_states = (t and tuple(cast(one, dtype) for one in t) for t in (x, initial_states))
        else:
            x, initial_states = cast(x, dtype), cast(initial_states, dtype)
        given = x, weight, bias, initial_states
        parts = parts_of(given, sizes, options)
    tensors = [tensor for part in parts for tensor in part.inputs(*indices)]
    direct = not is_compiling() and is_direct(*tensors) and not parts[0].x.is_nested
    needs_gradient = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)
    if direct and needs_gradient and sizes is not None:
        results, states = _Packed.apply(sizes, options, returns_states, *given, *indices), None
        if returns_states:
            *results, states = results
    elif direct and not needs_gradient:
        results, states = _compute(given, sizes, options, indices, returns_states)
    else:
        found = [causal_conv1d_fn(part.inputs(*indices), part.option, returns_states, None, True) for part in parts]
        ys, states = zip(*found) if returns_states else (found, (None,) * 3)
        results, states = [y.transpose(1, 2).contiguous() for y in ys], _joined(states, sizes)
    heads = [y.unflatten(-1, (y.shape[-1] // part.head_dim, part.head_dim)) for y, part in zip(results, parts)]
    return tuple(heads), states
