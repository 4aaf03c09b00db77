"""The convolution on PyTorch tensors; see `causeway.causal_conv1d_fn` for the arguments. Inputs come in the order of the table."""

import functools

import torch
import torch.autograd.forward_ad as forward_ad

from causeway import _native
from causeway._activation import kernel_option
from causeway._integer import state_length
from causeway._torch import operators, transforms
from causeway._torch.eager import (
    PLAIN,
    autocast_dtype,
    cast,
    dispatch_modes,
    dtype_name,
    expect_tensor,
    expect_tensors,
    functorch_level,
    is_batched_gradient,
    is_compiling,
    is_direct,
    is_distributed,
    is_dynamo_compiling,
    needs_gradient,
    refuse_forward_mode,
)
from causeway._torch.gradients import Gradients
from causeway._torch.tables import Table

_FORWARD = Table(_native.causal_conv1d_forward)
_UPDATE = Table(_native.causal_conv1d_update)
_VARLEN_STATES = Table(_native.causal_conv1d_varlen_states)

_is_grad_enabled = torch.is_grad_enabled
_forward, _backward = _native.causal_conv1d_forward.run, _native.causal_conv1d_backward.run
_record_forward, _record_update = _native.causal_conv1d_forward.record, _native.causal_conv1d_update.record


def backward_needs_dispatcher(given):
    """True for a backward pass that goes through the operator: its gradients are refused in words, a compiler or a mode intercepts it,
    batched gradients are taken apart, those of other classes than PyTorch's have no memory that could be read, and negated ones, of
    imaginary parts, get memory with their values."""
    if is_compiling():
        return True
    # From PyTorch 2.10 on it tells nearly always; what follows takes twice as long.
    if _native.bypasses_dispatcher(given):
        return False
    if _is_grad_enabled() or dispatch_modes() or not PLAIN.issuperset(map(type, given)):
        return True
    return any(dy is not None and (is_batched_gradient(dy) or dy.is_neg()) for dy in given)


@functools.cache
def _recorded(count, named_option, returns_states, has_states):
    """The kernels around so many inputs, for eager calls that need a gradient: PyTorch takes time for each argument.

    After the inputs comes the tensor of a caller that final states are written to, if it has one.
    """
    names = (*_FORWARD.inputs[:count], "final_states_out") if has_states else _FORWARD.inputs[:count]
    gradients = Gradients(names, 2 if returns_states else 1)
    option = kernel_option(named_option)
    kernels = gradients.recorded(option)

    def with_states(ctx, *inputs):
        gradients.save(ctx, inputs)
        y, final_states = _forward(inputs[:count], option, (..., inputs[count] if has_states else ...))
        if not returns_states:
            return y
        # One of the two may stay without a gradient.
        ctx.set_materialize_grads(False)
        # The caller's tensor gets the values, and never keeps the graph.
        return y, final_states.clone() if has_states else final_states

    # Errors and graphs of PyTorch's show its name, as of the others.
    class CausalConv1d(torch.autograd.Function):
        forward = staticmethod(with_states if returns_states or has_states else kernels.forward)

        @staticmethod
        def backward(ctx, *given):
            # Read once: checkpointing without reentrance refuses a second read.
            saved = ctx.saved_tensors
            # What intercepts a gradient gets the operator, and so do compilers.
            if not is_dynamo_compiling() and (found := kernels.backward(ctx, saved, given)) is not None:
                return found
            results = operators.backward_results if backward_needs_dispatcher(given) else _backward
            return gradients.of(ctx, saved, given, results, option)

    # `Function.apply` less its checks for torch.func, which a direct call is not under.
    return super(torch.autograd.Function, CausalConv1d).apply


def causal_conv1d_fn(inputs, option, return_final_states, final_states_out, is_cast=False):
    """See `causeway.causal_conv1d_fn`; the option is an activation, or a pair of it and whether products are rounded."""
    outputs = None
    if final_states_out is not None and needs_gradient(final_states_out):
        raise RuntimeError("final_states_out requires a gradient, and is written to: pass final_states_out.detach()")
    if return_final_states or final_states_out is not None:
        outputs = ..., ... if final_states_out is None else final_states_out
    if not is_dynamo_compiling():
        try:
            # Computes; if a gradient has to be recorded and nothing is kept for it, gives a number of inputs instead.
            result = _record_forward(inputs, option, outputs, is_cast)
        except RuntimeError:
            # A nested tensor of the older kind is a plain one by its class, and has no words for what it lacks.
            expect_tensors(_FORWARD, *inputs)
            raise
        if type(result) is int:
            given = inputs[:result]
            if outputs is None:
                function = _recorded(result, option, False, False)
                # From now on it is called without coming here.
                _native.causal_conv1d_forward.keep(result, option, function)
                return function(*given)
            if final_states_out is None:
                return _recorded(result, option, True, False)(*given)
            return _recorded(result, option, return_final_states, True)(*given, final_states_out)
        if result is not None:
            return result if outputs is None or return_final_states else result[0]
    x = inputs[0]
    if not is_cast and (dtype := autocast_dtype(x)) is not None:
        inputs = tuple(cast(t, dtype) if follows else t for t, follows in zip(inputs, _FORWARD.follows_x))
        if not _keeps_float32(final_states_out, inputs[0], dtype):
            return causal_conv1d_fn(inputs, option, return_final_states, final_states_out, True)
        y, final_states = causal_conv1d_fn(inputs, option, True, None, True)
        _write_final_states(final_states_out, final_states)
        if not return_final_states:
            return y
        # As without autocast: the caller's tensor, or what keeps the graph.
        return y, final_states.to(torch.float32) if final_states.requires_grad else final_states_out

    if is_compiling():
        refuse_forward_mode("the causal convolution", "causeway.causal_conv1d_ref")
    option = kernel_option(option)
    expect_tensors(_FORWARD, *inputs)
    if final_states_out is not None:
        expect_tensor("final_states_out", final_states_out)
    if is_distributed(*inputs, final_states_out):
        from causeway._torch import dtensor

        dtensor.require_distributed(_FORWARD, inputs, final_states_out)
        of_table = zip(inputs, _FORWARD.is_index)
        inputs = tuple(dtensor.replicated(t, x) if is_index else t for t, is_index in of_table)
    wanted = (..., None if outputs is None else ...)
    # Not in a helper: Dynamo may skip this frame and still compile the helper, where `is_compiling()` is True.
    if not is_compiling() and (functorch_level() is not None or forward_ad._current_level >= 0):
        y, final_states = transforms.CausalConv1d.apply(*operators.forward.flat(inputs, option, wanted))
    else:
        y, final_states = operators.forward(inputs, option, wanted)
    if final_states_out is not None:
        if final_states_out.dtype != final_states.dtype:
            found, expected = dtype_name(final_states_out.dtype), dtype_name(final_states.dtype)
            raise TypeError(f"final_states_out has dtype {found}: expected {expected}, the dtype of x")
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
    if is_distributed(final_states_out):
        final_states = final_states.redistribute(final_states_out.device_mesh, final_states_out.placements)
    with torch.no_grad():
        final_states_out.copy_(final_states)


def causal_conv1d_update(inputs, conv_state, option, is_cast=False):
    """See `causeway.causal_conv1d_update`."""
    if not is_dynamo_compiling():
        try:
            result = _record_update(inputs, option, (conv_state, ...), is_cast)
        except RuntimeError:
            # As in causal_conv1d_fn.
            _expect_update(inputs, conv_state)
            raise
        if type(result) is int:
            refuse_gradient(conv_state)
        if result is not None:
            return result
    x = inputs[0]
    if not is_cast and (dtype := autocast_dtype(x)) is not None:
        of_table = tuple(zip(inputs, _UPDATE.follows_x))
        inputs = tuple(cast(t, dtype) if follows else t for t, follows in of_table)
        if _keeps_float32(conv_state, inputs[0], dtype):
            # x is rounded first, as prefill has it. SiLU is that of float32 then, rounded once.
            inputs = tuple(t.float() if follows and t is not None else t for t, (_, follows) in zip(inputs, of_table))
            return causal_conv1d_update(inputs, conv_state, option, True).to(dtype)
        return causal_conv1d_update(inputs, conv_state, option, True)
    option = kernel_option(option)
    _expect_update(inputs, conv_state)
    refuse_gradient(conv_state)
    if is_distributed(*inputs[:2], conv_state):
        from causeway._torch import dtensor

        return dtensor.update(inputs, option, conv_state)
    # Not differentiable, as without a compiler.
    with torch.no_grad():
        return operators.update(inputs, option, (conv_state,))


def _expect_update(inputs, conv_state):
    """All of them are tensors. The last inputs may be missing, so the state has no place after them."""
    expect_tensors(_UPDATE, *inputs)
    expect_tensor("conv_state", conv_state)


def refuse_gradient(conv_state):
    """Raises the error for a state that autograd follows."""
    if needs_gradient(conv_state):
        raise RuntimeError("conv_state requires a gradient, and is changed in place: pass conv_state.detach()")


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """See `causeway.causal_conv1d_varlen_states`."""
    expect_tensors(_VARLEN_STATES, x, cu_seqlens)
    if is_distributed(x):
        from causeway._torch import dtensor

        cu_seqlens = dtensor.replicated(cu_seqlens, x)
    if is_compiling() or not is_direct(x, cu_seqlens):
        if not is_compiling() and not isinstance(state_len, torch.SymInt):
            # The dispatcher takes no larger number.
            state_len = state_length(state_len)
        with torch.no_grad():
            return operators.varlen_states(x, cu_seqlens, state_len)
    return operators.make_varlen_states(x, cu_seqlens, state_len)
