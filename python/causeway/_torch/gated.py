"""The gated convolution of one packed projection; see `causeway.causal_conv1d_gated_packed`."""

import functools

import torch

from causeway import _native
from causeway._activation import kernel_option
from causeway._gated import inputs_of_packed, is_order, parts, require_parts
from causeway._torch import operators
from causeway._torch.conv1d import backward_needs_dispatcher, causal_conv1d_fn
from causeway._torch.eager import (
    autocast_dtype,
    cast,
    expect_tensors,
    is_compiling,
    is_direct,
    is_distributed,
    is_dynamo_compiling,
    joined,
    naming,
    needs_gradient,
)
from causeway._torch.packed import PackedCalls, cached
from causeway._torch.tables import Table
from causeway._torch.twice import made_by

_NAME = "causal_conv1d_gated_packed"

_TABLE = Table(_native.causal_conv1d_gated_packed)
operators.forward.of_calls[_NAME] = _native.causal_conv1d_gated_packed
_forward = _native.causal_conv1d_gated_packed.run

# The inputs of a packed call; the last ones may be missing.
_INPUTS = "packed", "weight", "bias", "initial_states", "seq_idx", "cu_seqlens"

# Those whose shapes are looked at before the convolution is called.
_SHAPED = _INPUTS[:2]


def _all(others):
    """With None for the last ones, where they are missing."""
    return *others, *(None,) * (len(_INPUTS) - 1 - len(others))


def _gradients(order, option, saved, dy, dfinal_states):
    """The gradients of a packed tensor and of the others that were saved."""
    packed, *others = saved
    weight, bias, initial_states, seq_idx, cu_seqlens = _all(others)
    B, x, C = parts(packed, order)
    if dy is None:
        dy = torch.zeros_like(x)
    inputs = x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, B, C
    if is_compiling():
        # The operator that writes where it is told to.
        dpacked = torch.empty_like(packed)
        dB, dx, dC = parts(dpacked, order)
        gradients = [None if t is None else torch.empty_like(t) for t in (weight, bias, initial_states)]
        operators.write("causal_conv1d_backward", inputs, option, (dx, *gradients, dB, dC))
    elif backward_needs_dispatcher((dy, dfinal_states)):
        with made_by(_NAME):
            dx, *gradients, dB, dC = operators.backward_results(inputs, option)
        found = {"B": dB, "x": dx, "C": dC}
        dpacked = joined([found[letter] for letter in order], 1)
    else:
        dpacked = _native.result_like(packed)
        dB, dx, dC = parts(dpacked, order)
        _, *gradients, _, _ = _native.causal_conv1d_backward.run(inputs, option, (dx, ..., ..., ..., dB, dC))
    return dpacked, *(*gradients, None, None)[: len(others)]


class CausalConv1dGated(torch.autograd.Function):
    """The kernels around a packed projection. Autograd's own gradient of parts joins them again, which costs a copy of all three."""

    @staticmethod
    def forward(ctx, order, option, returns_states, packed, *others):
        ctx.order, ctx.option = order, option
        ctx.save_for_backward(packed, *others)
        ctx.set_materialize_grads(False)
        inputs, outputs = inputs_of_packed(packed, order, others), (..., ... if returns_states else None)
        if is_compiling():
            y, final_states = operators.forward(inputs, option, outputs)
            return (y, final_states) if returns_states else y
        return _forward(inputs, option, outputs)

    @staticmethod
    def backward(ctx, dy, dfinal_states=None):
        return None, None, None, *_gradients(ctx.order, ctx.option, ctx.saved_tensors, dy, dfinal_states)


@functools.lru_cache(256)
def _calls(order, option):
    """Eager calls without views of PyTorch's; None for an order that is none."""
    if not is_order(order):
        return None
    option = kernel_option(option)
    parts_of_packed = {name: (0, 1, at, len(order)) for at, name in enumerate(order)}
    others = {name: at for at, name in enumerate(_INPUTS)}

    def gradients(saved, given):
        return _gradients(order, option, saved, *given, None)

    return PackedCalls("CausalConv1dGated", [(option, {**others, **parts_of_packed, "y": "new"})], gradients)


# Whose compiler has been seen to follow such a function.
_IS_FOLLOWED = torch.torch_version.TorchVersion(torch.__version__) >= (2, 11)


def _is_one_function(packed, others):
    """Whether nothing intercepts the operations in a call."""
    if is_compiling():
        return _IS_FOLLOWED and not is_distributed(packed, *others)
    return is_direct(packed, *others)


def causal_conv1d_gated_packed(packed, order, others, option, return_final_states):
    """See `causeway.causal_conv1d_gated_packed`; the others are weight, bias, initial_states, seq_idx and cu_seqlens."""
    return naming(_SHAPED, (packed, others[0]), _packed, order, others, option, return_final_states)


def _packed(given, order, others, option, return_final_states, is_cast=False):
    packed = given[0]
    if not return_final_states and not is_dynamo_compiling():
        calls = cached(_calls, order, option)
        if calls is not None and (y := calls((packed, *others), is_cast)) is not None:
            return y
    is_plain = not is_compiling() and isinstance(packed, torch.Tensor) and is_direct(packed, *others)
    if not is_plain:
        expect_tensors(_TABLE, packed, *others)
    require_parts(packed, order, others[0])
    if not is_cast and (dtype := autocast_dtype(packed)) is not None:
        weight, bias, initial_states, *indices = others
        others = weight, bias, cast(initial_states, dtype), *indices
        return _packed((cast(packed, dtype), weight), order, others, option, return_final_states, True)
    if is_distributed(packed, *others):
        from causeway._torch import dtensor

        dtensor.require_distributed(_TABLE, (packed, *others))
    is_recorded = needs_gradient(packed, *others)
    if is_recorded and _is_one_function(packed, others):
        return CausalConv1dGated.apply(order, kernel_option(option), return_final_states, packed, *others)
    inputs = inputs_of_packed(packed, order, others)
    if is_plain:
        return _forward(inputs, kernel_option(option), (..., ... if return_final_states else None))
    with made_by(_NAME):
        return causal_conv1d_fn(inputs, option, return_final_states, None, is_cast)
