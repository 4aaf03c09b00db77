"""The operations as operators of PyTorch's dispatcher, `torch.ops.causeway.*`, with fake kernels and gradients.

An operator returns no None: an output that was not asked for is a tensor with no element.
"""

import torch

from causeway._torch import kernels
from causeway._torch.eager import require_axes, require_one_device

_library = torch.library.Library("causeway", "DEF")

# Compilers keep the order of strides that they have traced: outputs are laid out like x.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def define(schema, kernel, fake):
    """Makes one operator; its kernel takes tensors of any device that the extension module takes."""
    name = schema.split("(", 1)[0]
    _library.define(schema, tags=_TAGS)
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"causeway::{name}", fake, lib=_library)
    return getattr(torch.ops.causeway, name).default


def refuse_second_derivative(ctx, *gradients):
    """Raises the error for a gradient of a gradient."""
    raise NotImplementedError(
        "causal_conv1d_fn cannot be differentiated twice: its backward kernel has no gradient; use "
        "causeway.causal_conv1d_ref or plain PyTorch where second derivatives are needed"
    )


def _absent(like):
    return like.new_empty((0,))


def _forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states):
    tensors = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual
    result = kernels.forward(*tensors, silu, wants_states, None)
    return result if wants_states else (result, _absent(x))


def _forward_fake(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states):
    require_one_device(
        x,
        weight=weight,
        bias=bias,
        initial_states=initial_states,
        seq_idx=seq_idx,
        cu_seqlens=cu_seqlens,
        residual=residual,
    )
    states = _empty_final_states(x, weight, cu_seqlens) if wants_states else _absent(x)
    return torch.empty_like(x), states


def _empty_final_states(x, weight, cu_seqlens):
    batch, dim, _ = require_axes("x", x, "(batch, dim, seqlen)")
    _, width = require_axes("weight", weight, "(dim, width)")
    rows = batch if cu_seqlens is None else require_axes("cu_seqlens", cu_seqlens, "(n + 1)")[0] - 1
    return x.new_empty((rows, dim, width - 1))


def _backward(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu):
    dx, dweight, dbias, dstates = kernels.backward(
        x, weight, bias, initial_states, seq_idx, cu_seqlens, dy, dfinal_states, silu
    )
    return (
        dx,
        dweight,
        _absent(weight) if dbias is None else dbias,
        _absent(x) if dstates is None else dstates,
    )


def _backward_fake(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu):
    return (
        torch.empty_like(x),
        torch.empty_like(weight),
        _absent(weight) if bias is None else torch.empty_like(bias),
        _absent(x) if initial_states is None else torch.empty_like(initial_states),
    )


def _update_fake(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices):
    require_one_device(
        x,
        conv_state=conv_state,
        weight=weight,
        bias=bias,
        cache_seqlens=cache_seqlens,
        conv_state_indices=conv_state_indices,
    )
    return torch.empty_like(x)


_FORWARD_INPUTS = "Tensor? initial_states, Tensor? seq_idx, Tensor? cu_seqlens"
forward = define(
    f"causal_conv1d_forward(Tensor x, Tensor weight, Tensor? bias, {_FORWARD_INPUTS}, Tensor? residual, "
    "bool silu, bool wants_states) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
)
backward = define(
    f"causal_conv1d_backward(Tensor x, Tensor weight, Tensor? bias, Tensor dy, {_FORWARD_INPUTS}, "
    "Tensor? dfinal_states, bool silu) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)
update = define(
    "causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias, bool silu, "
    "Tensor? cache_seqlens, Tensor? conv_state_indices) -> Tensor",
    kernels.update,
    _update_fake,
)
varlen_states = define(
    "causal_conv1d_varlen_states(Tensor x, Tensor cu_seqlens, SymInt state_len) -> Tensor",
    kernels.varlen_states,
    kernels.empty_varlen_states,
)
gemm = define(
    "gemm(Tensor a, Tensor b, str algorithm) -> Tensor",
    kernels.gemm,
    lambda a, b, algorithm: kernels.empty_gemm(a, b),
)


def _save_convolution(ctx, inputs, output):
    x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states = inputs
    ctx.save_for_backward(x, weight, bias, initial_states, seq_idx, cu_seqlens)
    ctx.silu, ctx.wants_states = silu, wants_states
    ctx.set_materialize_grads(False)


def convolution_gradients(ctx, dy, dfinal_states):
    """Gradients of the inputs of `forward`, through the operator `backward`."""
    x, weight, bias, initial_states, seq_idx, cu_seqlens = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(x)
    dx, dweight, dbias, dinitial_states = backward(
        x,
        weight,
        bias,
        dy,
        initial_states,
        seq_idx,
        cu_seqlens,
        dfinal_states if ctx.wants_states else None,
        ctx.silu,
    )
    return (
        dx,
        dweight,
        None if bias is None else dbias,
        None if initial_states is None else dinitial_states,
        None,
        None,
        dy if ctx.needs_input_grad[6] else None,
        None,
        None,
    )


def _save_gemm(ctx, inputs, output):
    a, b, ctx.algorithm = inputs
    ctx.save_for_backward(a, b)


def _gemm_gradients(ctx, grad_c):
    a, b = ctx.saved_tensors
    wants_a, wants_b, _ = ctx.needs_input_grad
    grad_a = gemm(grad_c, b.transpose(0, 1), ctx.algorithm) if wants_a else None
    grad_b = gemm(a.transpose(0, 1), grad_c, ctx.algorithm) if wants_b else None
    return grad_a, grad_b, None


def _differentiable(name, gradients, save=None):
    torch.library.register_autograd(f"causeway::{name}", gradients, setup_context=save, lib=_library)


def _refuse_vmap_of_update(info, in_dims, *arguments):
    """Raises the error for a state that is changed in place inside of vmap."""
    raise NotImplementedError(
        "causal_conv1d_update cannot be called inside of torch.func.vmap, since it changes conv_state in place: put "
        "the added batch into the batch of x and conv_state, or use causal_conv1d_fn with initial_states"
    )


# PyTorch 2.4 has no such rules, and its own words for it.
if hasattr(torch.library, "register_vmap"):
    torch.library.register_vmap("causeway::causal_conv1d_update", _refuse_vmap_of_update, lib=_library)

_differentiable("causal_conv1d_forward", convolution_gradients, _save_convolution)
_differentiable("causal_conv1d_backward", refuse_second_derivative)
_differentiable("gemm", _gemm_gradients, _save_gemm)
