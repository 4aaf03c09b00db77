"""Query, key and value of a delta net on PyTorch tensors; see `causeway.causal_conv1d_qkv`."""

import functools

import torch

from causeway import _native
from causeway._activation import kernel_option
from causeway._qkv import AXES, INPUTS, STEP_AXES, STEP_INPUTS, checked, options_of, projections_of, sizes_of, split, step_sizes_of, steps_of
from causeway._torch.conv1d import backward_needs_dispatcher, causal_conv1d_fn, causal_conv1d_update, refuse_gradient
from causeway._torch.eager import (
    autocast_dtype,
    cast,
    dtype_name,
    is_compiling,
    is_direct,
    is_distributed,
    is_dynamo_compiling,
    joined,
    naming,
    needs_gradient,
)
from causeway._torch.operators import backward_results
from causeway._torch.packed import PackedCalls, PackedSteps, cached
from causeway._torch.twice import made_by

_NAME = "causal_conv1d_qkv"


def _places(names, axes, sizes, at):
    """Where one of q, k and v finds its part of each tensor: a part of one, or one of three."""
    if sizes is None:
        return {name: 3 * place + at for place, name in enumerate(names)}
    return {name: (place, axis, at, sizes) for place, (name, axis) in enumerate(zip(names, axes))}


# A model has few kinds of calls.
@functools.lru_cache(256, typed=True)
def _calls(sizes, *named):
    """Eager calls without views of PyTorch's, of x, weight, bias and initial_states, three of each without sizes, and indices."""
    options, first = options_of(*named), len(INPUTS) * (3 if sizes is None else 1)
    indices = {"seq_idx": first, "cu_seqlens": first + 1}

    def gradients(saved, dys):
        return _gradients(sizes, options, (*saved, *(None,) * (first + 2 - len(saved))), dys, ())[: len(saved)]

    return PackedCalls("CausalConv1dQKV", [
        (kernel_option(option), {**_places(INPUTS, AXES, sizes, at), **indices, "y": ("heads", dim)})
        for at, (dim, option) in enumerate(options)
    ], gradients)  # fmt: skip


@functools.lru_cache(256, typed=True)
def _steps(sizes, *named):
    """The same of updates: x, conv_state, weight and bias, each one tensor, and indices."""
    indices = {"cache_seqlens": len(STEP_INPUTS), "conv_state_indices": len(STEP_INPUTS) + 1}
    return PackedSteps([
        (kernel_option(option), {**_places(STEP_INPUTS, STEP_AXES, sizes, at), **indices, "out": ("heads", dim)})
        for at, (dim, option) in enumerate(options_of(*named))
    ])  # fmt: skip


def causal_conv1d_qkv_update(given, sizes, named, others):
    """See `causeway.causal_conv1d_qkv_update`: q, k and v, of the axes of x."""
    if not is_dynamo_compiling() and type(sizes) is tuple:
        steps = cached(_steps, sizes, *named)
        if steps is not None and (found := steps((*given, *others))) is not None:
            return found
    options = checked(STEP_INPUTS, given, named)
    return naming(STEP_INPUTS, given, _update, sizes, options, others)


def _update(given, sizes, options, others):
    sizes = step_sizes_of(given, sizes, others[1])
    x, conv_state, *_ = given
    refuse_gradient(conv_state)
    is_cast = autocast_dtype(x) is not None
    if conv_state.dtype != x.dtype and not is_cast:
        found, expected = dtype_name(conv_state.dtype), dtype_name(x.dtype)
        raise TypeError(f"conv_state has dtype {found}: expected {expected}, as x has")
    steps = steps_of(given, sizes, options)
    is_copied = is_compiling() and _must_be_copied(conv_state, others[1])
    if is_copied:
        steps = [step._replace(conv_state=step.conv_state.clone()) for step in steps]
    # Where one is sharded by channels, its parts are copies.
    may_be_copies = is_distributed(conv_state)
    tensors = [tensor for step in steps for tensor in (step.x, step.conv_state, step.weight, step.bias)]
    if is_compiling() or is_cast or not is_direct(*tensors, *others) or x.is_nested:
        ys = [causal_conv1d_update(step.inputs(others), step.conv_state, step.option) for step in steps]
    else:
        ys = _native.causal_conv1d_update.run_together([
            (step.inputs(others), kernel_option(step.option), (step.conv_state, _empty_channel_last(step.x))) for step in steps
        ])  # fmt: skip
    if is_copied or may_be_copies:
        conv_state.copy_(torch.cat([step.conv_state for step in steps], 1))
    return tuple(_heads(y, step.head_dim) for y, step in zip(ys, steps))


# Earlier compilers do not follow the question where a tensor begins. There every state is copied, pools apart, which are large.
_KNOWS_STARTS = torch.torch_version.TorchVersion(torch.__version__) >= (2, 15)


def _must_be_copied(conv_state, conv_state_indices):
    """Whether a compiled graph cannot change parts of a state: PyTorch's compilers count a part's start from the start of the memory, and not
    of the state, and in an empty state they divide by a stride of 0."""
    begins_elsewhere = conv_state.storage_offset() != 0 if _KNOWS_STARTS else conv_state_indices is None
    return begins_elsewhere or conv_state.numel() == 0


def _empty_channel_last(x):
    """The output of a call, in the order of (batch, seqlen, channels): where x has that order, operations make one."""
    if x.stride(1) == 1:
        return ...
    return x.new_empty((x.shape[0], *x.shape[2:], x.shape[1])).movedim(-1, 1)


# Gives no view: of a function of autograd's with several results, none that is a view may be changed in place.
_reshaped = torch.ops.aten._unsafe_view.default


def _heads(y, head_dim, reshape=torch.Tensor.view):
    """(batch, heads, head_dim), or with seqlen as its second axis, of a result that has channels as the second, and that nobody else has."""
    y = (y if y.ndim == 2 else y.transpose(1, 2)).contiguous()
    return reshape(y, (*y.shape[:-1], y.shape[-1] // head_dim, head_dim))


def _compute(projections, sizes, indices, returns_states, reshape=torch.Tensor.view):
    """q, k and v, and final states, in one tensor where there are sizes."""
    states, outputs = None, (None,) * 3
    if returns_states and sizes is not None:
        # Kernels write to its parts.
        x, cu_seqlens = projections[0].x, indices[1]
        sequences = x.shape[0] if cu_seqlens is None else max(cu_seqlens.shape[0] - 1, 0)
        states = x.new_empty((sequences, sum(sizes), max(projections[0].weight.shape[-1] - 1, 0)))
        outputs = split(states, 1, sizes)
    elif returns_states:
        outputs = (...,) * 3
    found = _native.causal_conv1d_forward.run_together([
        (projection.inputs(*indices), kernel_option(projection.option), (_empty_channel_last(projection.x), output))
        for projection, output in zip(projections, outputs)
    ])  # fmt: skip
    ys, found = zip(*found) if returns_states else (found, (None,) * 3)
    heads = tuple(_heads(y, projection.head_dim, reshape) for y, projection in zip(ys, projections))
    return heads, found if states is None else states


class CausalConv1dQKV(torch.autograd.Function):
    """The three convolutions, and their gradients, in one launch each. The gradient of one x is one tensor, which the parts write to:
    autograd's own would join them, which costs a copy of all three."""

    @staticmethod
    def forward(ctx, sizes, options, returns_states, *tensors):
        ctx.sizes, ctx.options = sizes, options
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        projections = projections_of(_given(tensors[:-2], sizes), sizes, options)
        results, states = _compute(projections, sizes, tensors[-2:], returns_states, _reshaped)
        if not returns_states:
            return results
        return (*results, states) if sizes is not None else (*results, *states)

    @staticmethod
    def backward(ctx, dq, dk, dv, *dstates):
        return None, None, None, *_gradients(ctx.sizes, ctx.options, ctx.saved_tensors, (dq, dk, dv), dstates)


def _gradients(sizes, options, saved, dys, dstates):
    """The gradients of what was saved."""
    *tensors, seq_idx, cu_seqlens = saved
    dispatched = backward_needs_dispatcher((*dys, *dstates))
    projections = projections_of(_given(tensors, sizes), sizes, options)
    gradients = [None if t is None or dispatched else torch.empty_like(t) for t in tensors]
    places = projections if dispatched else projections_of(_given(gradients, sizes), sizes, options)
    if sizes is not None:
        dstates = split(*dstates, 1, sizes) if dstates else dstates
    calls = []
    for (x, weight, bias, initial_states, option, _), place, dy, dstate in zip(projections, places, dys, dstates or (None,) * 3):
        # Batched gradients have no `flatten`.
        dy = torch.zeros_like(x) if dy is None else dy.reshape(*dy.shape[:2], dy.shape[2] * dy.shape[3]).transpose(1, 2)
        inputs = x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dstate
        outputs = place.x, place.weight, place.bias, place.initial_states, None, None
        calls.append((inputs, kernel_option(option), outputs))
    if dispatched:
        with made_by(_NAME):
            found = list(zip(*[backward_results(inputs, option)[:4] for inputs, option, _ in calls]))
        if sizes is None:
            gradients = [one for three in found for one in three]
        else:
            gradients = [None if three[0] is None else joined(three, axis) for three, axis in zip(found, AXES)]
    else:
        _native.causal_conv1d_backward.run_together(calls)
    return *gradients, None, None


def _flat(given, sizes):
    """x, weight, bias and initial_states in one list, three of each without sizes."""
    return given if sizes is not None else [one for three in given for one in ((None,) * 3 if three is None else three)]


def _matches_sizes(given, sizes):
    """Whether x is one tensor, as sizes say, or without sizes each is a tuple of three."""
    if sizes is not None:
        return type(given[0]) is not tuple
    return all(three is None or (type(three) is tuple and len(three) == 3) for three in given)


def _given(tensors, sizes):
    """x, weight, bias and initial_states of one list: three each without sizes."""
    if sizes is not None:
        return tensors
    threes = [tuple(tensors[at : at + 3]) for at in (0, 3, 6, 9)]
    return [None if all(one is None for one in three) else three for three in threes]


def causal_conv1d_qkv(given, sizes, named, indices, returns_states):
    """See `causeway.causal_conv1d_qkv`: q, k and v, and their final states, in one tensor where x is one.

    The tensors given are x, weight, bias and initial_states, each a tuple of three without sizes.
    """
    if not returns_states and not is_dynamo_compiling() and _matches_sizes(given, sizes):
        calls = cached(_calls, sizes, *named)
        if calls is not None and (found := calls((*_flat(given, sizes), *indices))) is not None:
            return found, None
    options = checked(INPUTS, given, named)
    return naming(INPUTS, given, _qkv, sizes, options, indices, returns_states)


def _qkv(given, sizes, options, indices, returns_states):
    sizes = sizes_of(given, sizes)
    projections = projections_of(given, sizes, options)
    if (dtype := autocast_dtype(projections[0].x)) is not None:
        x, weight, bias, initial_states = given
        if sizes is None:
            x, initial_states = (t and tuple(cast(one, dtype) for one in t) for t in (x, initial_states))
        else:
            x, initial_states = cast(x, dtype), cast(initial_states, dtype)
        given = x, weight, bias, initial_states
        projections = projections_of(given, sizes, options)
    tensors = [tensor for projection in projections for tensor in projection.inputs(*indices)]
    direct = not is_compiling() and is_direct(*tensors) and not projections[0].x.is_nested
    states = (None,) * 3
    if direct and needs_gradient(*tensors):
        results = CausalConv1dQKV.apply(sizes, options, returns_states, *_flat(given, sizes), *indices)
        if returns_states:
            results, states = results[:3], results[3] if sizes is not None else results[3:]
    elif direct:
        results, states = _compute(projections, sizes, indices, returns_states)
    else:
        with made_by(_NAME):
            ys = [
                causal_conv1d_fn(projection.inputs(*indices), projection.option, returns_states, None, True)
                for projection in projections
            ]
        if returns_states:
            ys, states = zip(*ys)
            states = states if sizes is None else torch.cat(states, 1)
        results = tuple(_heads(y, projection.head_dim) for y, projection in zip(ys, projections))
    return results, states
