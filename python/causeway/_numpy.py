"""The operations on NumPy arrays; inputs come in the order of their tables."""

import numpy as np

from causeway import _native
from causeway._activation import kernel_option
from causeway._gated import inputs_of_packed, require_parts
from causeway._integer import state_length
from causeway._kind import kind_of
from causeway._qkv import INPUTS, STEP_INPUTS, checked, each, projections_of, sizes_of, step_sizes_of, steps_of


def causal_conv1d_fn(inputs, option, return_final_states, final_states_out, operation=_native.causal_conv1d_forward):
    """See `causeway.causal_conv1d_fn`."""
    states = ... if return_final_states and final_states_out is None else final_states_out
    result = operation.run(inputs, kernel_option(option), (..., states))
    return result if return_final_states or states is None else result[0]


def causal_conv1d_update(inputs, conv_state, option):
    """See `causeway.causal_conv1d_update`."""
    return _native.causal_conv1d_update.run(inputs, kernel_option(option), (conv_state, ...))


def causal_conv1d_gated_packed(packed, order, others, option, return_final_states):
    """See `causeway.causal_conv1d_gated_packed`."""
    require_parts(packed, order, others[0])
    _expect_arrays(("packed", "weight", "bias", "initial_states"), (packed, *others[:3]))
    inputs = inputs_of_packed(packed, order, others)
    return causal_conv1d_fn(inputs, option, return_final_states, None, _native.causal_conv1d_gated_packed)


def causal_conv1d_qkv(given, sizes, named, indices, returns_states):
    """See `causeway.causal_conv1d_qkv`: q, k and v, and their final states, in one array where x is one."""
    options = checked(INPUTS, given, named)
    _expect_arrays(INPUTS, given)
    sizes = sizes_of(given, sizes)
    projections = projections_of(given, sizes, options)
    states = ... if returns_states else None
    ys = [np.empty((x.shape[0], x.shape[2], x.shape[1]), x.dtype) for x, *_ in projections]
    found = _native.causal_conv1d_forward.run_together([
        (projection.inputs(*indices), kernel_option(projection.option), (y.swapaxes(1, 2), states))
        for projection, y in zip(projections, ys)
    ])  # fmt: skip
    states = tuple(one[1] for one in found) if returns_states else (None,) * 3
    results = tuple(_heads(y, projection.head_dim) for y, projection in zip(ys, projections))
    return results, np.concatenate(states, 1) if returns_states and sizes is not None else states


def _heads(y, head_dim):
    return y.reshape(*y.shape[:-1], y.shape[-1] // head_dim, head_dim)


def _expect_arrays(names, given):
    """Every argument is an array, or three of them."""
    for name, value in each(names, given):
        if not isinstance(value, np.ndarray):
            # Of the first argument, another part of it is an array, or none is.
            model = "" if name == names[0] else f", as {names[0]} is"
            # Its module need not be imported to tell.
            fix = f"; pass {name}.numpy()" if type(value).__module__.partition(".")[0] == "torch" else ""
            raise TypeError(f"{name} is {kind_of(value)}: expected a numpy.ndarray{model}{fix}")


def causal_conv1d_qkv_update(given, sizes, named, others):
    """See `causeway.causal_conv1d_qkv_update`: q, k and v, of the axes of x."""
    options = checked(STEP_INPUTS, given, named)
    _expect_arrays(STEP_INPUTS, given)
    sizes = step_sizes_of(given, sizes, others[1])
    x, conv_state, *_ = given
    if conv_state.dtype != x.dtype:
        raise TypeError(f"conv_state has dtype {conv_state.dtype}: expected {x.dtype}, as x has")
    steps = steps_of(given, sizes, options)
    ys = [np.empty((step.x.shape[0], *step.x.shape[2:], step.x.shape[1]), x.dtype) for step in steps]
    _native.causal_conv1d_update.run_together([
        (step.inputs(others), kernel_option(step.option), (step.conv_state, np.moveaxis(y, -1, 1))) for step, y in zip(steps, ys)
    ])  # fmt: skip
    return tuple(_heads(y, step.head_dim) for step, y in zip(steps, ys))


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """See `causeway.causal_conv1d_varlen_states`."""
    # Arguments of other shapes are for the operation to refuse.
    (boundaries,), (dim,) = np.shape(cu_seqlens)[:1] or (0,), np.shape(x)[1:2] or (0,)
    count = max(boundaries - 1, 0)
    states = np.empty((count, state_length(state_len, count, dim, x.itemsize), dim), x.dtype).swapaxes(1, 2)
    return _native.causal_conv1d_varlen_states.run((x, cu_seqlens), None, (states,))


def gemm(a, b, algorithm):
    """See `causeway.gemm`."""
    return _native.gemm.run((a, b), algorithm)


def gemm_grad_a(grad_c, b, algorithm):
    """See `causeway.gemm_grad_a`."""
    return _native.gemm_grad_a.run((grad_c, b), algorithm)


def gemm_grad_b(grad_c, a, algorithm):
    """See `causeway.gemm_grad_b`."""
    return _native.gemm_grad_b.run((grad_c, a), algorithm)


def gemm_grad_ab(grad_c, a, b, algorithm):
    """See `causeway.gemm_grad_ab`."""
    return _native.gemm_grad_ab.run((grad_c, a, b), algorithm)
