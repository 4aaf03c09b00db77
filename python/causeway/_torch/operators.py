"""The operations as operators of PyTorch's dispatcher, `torch.ops.causeway.*`, with fake kernels and gradients.

What an operator takes, changes and gives is what the operation's table says. Its arguments have the order of the function of its name
in `causeway.kernels`. An operator returns no None: an output that was not asked for is a tensor with no element.
"""

import inspect

import torch

from causeway import _native
from causeway import kernels as _kernels
from causeway._integer import state_length
from causeway._torch.eager import expect_tensors, is_compiling, needs_dispatcher, require_axes, require_one_device
from causeway._torch.gradients import Gradients
from causeway._torch.operator import Operator, define, library
from causeway._torch.tables import Table
from causeway._torch.twice import call_of, made_by, refuse


def _order(function):
    """The names of a function's parameters, each with its default as a schema has it."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: "" if p.default is p.empty else f"={p.default}" for p in parameters}


_NAMES = "causal_conv1d_forward", "causal_conv1d_backward", "causal_conv1d_update"
forward, backward, update = (
    Operator(getattr(_native, name), _order(getattr(_kernels, name))) for name in _NAMES
)
gemm = Operator(_native.gemm, dict.fromkeys(("a", "b", "algorithm"), ""))
_out = {
    name: Operator(getattr(_native, name), _order(getattr(_kernels, name)), is_out=True)
    for name in (*_NAMES, "causal_conv1d_varlen_states")
}
_tables = {name: Table(getattr(_native, name)) for name in _out}


def write(name, inputs, option, outputs):
    """A function of `causeway.kernels` through the dispatcher."""
    expect_tensors(_tables[name], *inputs, *outputs)
    _out[name](inputs, option, outputs)


_kernels._use(write, needs_dispatcher, is_compiling)


def make_varlen_states(x, cu_seqlens, state_len):
    """States of all sequences."""
    states = _native.prefer_large_pages(_empty_varlen_states(x, cu_seqlens, state_len))
    _native.causal_conv1d_varlen_states.run((x, cu_seqlens), None, (states,))
    return states


def _empty_varlen_states(x, cu_seqlens, state_len):
    """Memory for the states of all sequences: (n, state_len, dim)."""
    _, dim = require_axes("x", x, "(total, dim)")
    (boundaries,) = require_axes("cu_seqlens", cu_seqlens, "(n + 1)")
    # Without a boundary, the kernel has the words for it.
    count = max(boundaries - 1, 0)
    if not isinstance(state_len, torch.SymInt):
        # A comparison with a size that is a symbol would be a guard of the compiled code.
        known = [1 if isinstance(size, torch.SymInt) else size for size in (count, dim)]
        state_len = state_length(state_len, *known, x.element_size())
    return x.new_empty((count, state_len, dim)).transpose(1, 2)


def _fake_varlen_states(x, cu_seqlens, state_len):
    """The same of tensors without memory."""
    require_one_device({"x": x, "cu_seqlens": cu_seqlens})
    return _empty_varlen_states(x, cu_seqlens, state_len)


varlen_states = define(
    "causal_conv1d_varlen_states(Tensor x, Tensor cu_seqlens, SymInt state_len) -> Tensor",
    make_varlen_states,
    _fake_varlen_states,
)


def backward_results(inputs, option, apply=backward.overload):
    """The results of the operator `backward`, None for those that are not there."""
    arguments = backward.flat(inputs, option)
    there = backward.there(arguments)
    return tuple(result if is_there else None for result, is_there in zip(apply(*arguments), there))


def save_call(ctx, inputs, output=None):
    """Keeps the name of the call whose backward pass the operator `backward` is."""
    ctx.call = call_of(backward, inputs)


def refuse_second_derivative(ctx, *gradients):
    """Raises the error for a gradient of a gradient."""
    refuse(ctx.call)


class ConvolutionGradients(Gradients):
    """The gradients of the arguments of `forward`, through another function."""

    def __init__(self):
        super().__init__([argument.name for argument in forward.arguments], len(forward.results))

    def save(self, ctx, arguments):
        """As `Gradients.save`."""
        super().save(ctx, arguments)
        ctx.option, ctx.there = forward.option(arguments), forward.there(arguments)
        ctx.call = call_of(forward, arguments)

    def of(self, ctx, given, backward=backward_results):
        """As `Gradients.of`; an output without elements has no gradient."""
        given = tuple(gradient if is_there else None for gradient, is_there in zip(given, ctx.there))
        with made_by(ctx.call):
            return super().of(ctx, ctx.saved_tensors, given, backward, ctx.option)


_gradients = ConvolutionGradients()


def _save_convolution(ctx, inputs, output):
    _gradients.save(ctx, inputs)
    ctx.set_materialize_grads(False)


def _convolution_gradients(ctx, *given):
    return _gradients.of(ctx, given)


def save_gemm(ctx, inputs, output=None):
    """Keeps the matrices that the wanted gradients are made of. A frozen weight wants none, so its activation is not kept."""
    a, b, ctx.algorithm = inputs
    wants_a, wants_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if wants_b else None, b if wants_a else None)


def _gemm_gradients(ctx, grad_c):
    a, b = ctx.saved_tensors
    wants_a, wants_b, _ = ctx.needs_input_grad
    grad_a = gemm((grad_c, b.transpose(0, 1)), ctx.algorithm) if wants_a else None
    grad_b = gemm((a.transpose(0, 1), grad_c), ctx.algorithm) if wants_b else None
    return grad_a, grad_b, None


def _differentiable(name, gradients, save=None):
    torch.library.register_autograd(f"causeway::{name}", gradients, setup_context=save, lib=library)


def _refuse_vmap_of_update(info, in_dims, *arguments):
    """Raises the error for a state that is changed in place inside of vmap."""
    raise NotImplementedError(
        "causal_conv1d_update cannot be called inside of torch.func.vmap, since it changes conv_state in place: put "
        "the added batch into the batch of x and conv_state, or use causal_conv1d_fn with initial_states"
    )


# PyTorch 2.4 has no such rules, and its own words for it.
if hasattr(torch.library, "register_vmap"):
    torch.library.register_vmap("causeway::causal_conv1d_update", _refuse_vmap_of_update, lib=library)

_differentiable("causal_conv1d_forward", _convolution_gradients, _save_convolution)
_differentiable("causal_conv1d_backward", refuse_second_derivative, save_call)
_differentiable("gemm", _gemm_gradients, save_gemm)
