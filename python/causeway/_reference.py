"""The convolution in plain operations, for PyTorch and NumPy: what `causal_conv1d_fn` computes, easy to read."""

from causeway import _no_tensor
from causeway._activation import is_silu

# The axes of each tensor, as `causal_conv1d_fn` and `causal_conv1d_update` have them.
_ROWS = "(batch, dim, seqlen)"
_AXES = {
    "weight": "(dim, width)",
    "bias": "(dim,)",
    "initial_states": "(batch, dim, width - 1)",
    "final_states_out": "(batch, dim, width - 1)",
    "seq_idx": "(batch, seqlen)",
    "conv_state": "(batch, dim, state_len)",
    "cache_seqlens": "(batch,)",
}


def _expect_shapes(x_axes, **tensors):
    """Tensors, x and weight first, whose shapes fit together, in the words of `causal_conv1d_fn`."""
    sizes = {}
    for name, tensor in tensors.items():
        if tensor is None and name not in ("x", "weight", "conv_state"):
            continue
        if not hasattr(tensor, "shape"):
            raise TypeError(_no_tensor(name, tensor))
        shape, expected = tuple(tensor.shape), _AXES.get(name, x_axes)
        axes = expected.split(" or ")[-1].strip("(,)").split(", ")
        if len(shape) != len(axes):
            is_conv1d = name == "weight" and len(shape) == 3 and shape[1] == 1
            fix = "; for the (dim, 1, width) of a torch.nn.Conv1d, pass weight[:, 0]" if is_conv1d else ""
            raise ValueError(f"{name} has shape {shape}: expected {expected}{fix}")
        if name == "weight":
            if shape[0] != sizes["dim"]:
                both = "expected the same dim in both, the second axis of x and the first of weight"
                raise ValueError(f"x has shape {tuple(tensors['x'].shape)} and weight has shape {shape}: {both}")
            if shape[1] == 0:
                raise ValueError("weight has width 0: widths 1 to 256 are supported")
            sizes["width - 1"] = shape[1] - 1
        for axis, size in zip(axes, shape):
            if size != sizes.setdefault(axis, size):
                found, because = (axis, f"the {axis} of x") if axis != "width - 1" else ("length", "the width of weight less one")
                raise ValueError(f"{name} has {found} {size}: expected {sizes[axis]}, {because}")


def _is_torch(x):
    return hasattr(x, "new_zeros")


def _concatenate(parts, axis=-1):
    if _is_torch(parts[0]):
        import torch

        return torch.cat(parts, dim=axis)
    import numpy

    return numpy.concatenate(parts, axis=axis)


def _zeros(x, *shape):
    if _is_torch(x):
        return x.new_zeros(shape)
    import numpy

    return numpy.zeros(shape, x.dtype)


def _cast(x, dtype):
    return x.to(dtype) if _is_torch(x) else x.astype(dtype)


def _silu(x):
    if _is_torch(x):
        return x * x.sigmoid()
    import numpy

    return x / (1 + numpy.exp(-x))


def _where(condition, x):
    """x, and 0 where the condition does not hold: a NaN there is left behind, in gradients too."""
    if _is_torch(x):
        return x.where(condition, x.new_zeros(()))
    import numpy

    return numpy.where(condition, x, x.dtype.type(0))


def _indices_of_history(seq_idx, width):
    """(batch, width - 1 + seqlen): what lies before the first position carries its index."""
    return _concatenate([seq_idx[:, :1]] * (width - 1) + [seq_idx])


def _convolve(history, weight, bias, silu, dtype, seq_idx=None):
    """Of `history (..., dim, width - 1 + seqlen)`: the sum over the taps, in the order of time."""
    width = weight.shape[1]
    seqlen = history.shape[-1] - (width - 1)
    history = _cast(history, weight.dtype)
    taps = [history[..., tap : tap + seqlen] for tap in range(width)]
    if seq_idx is not None:
        indices = _indices_of_history(seq_idx, width)
        inside = seq_idx >= 0
        counts = [inside & (indices[:, tap : tap + seqlen] == seq_idx) for tap in range(width)]
        taps = [_where(c[:, None], tap) for c, tap in zip(counts, taps)]
    total = sum(weight[:, tap, None] * taps[tap] for tap in range(width))
    if bias is not None:
        total = total + bias[:, None]
    y = _cast(_silu(total) if silu else total, dtype)
    return y if seq_idx is None else _where(inside[:, None], y)


def causal_conv1d_ref(
    x, weight, bias, initial_states, return_final_states, final_states_out, activation, seq_idx
):
    """See `causeway.causal_conv1d_ref`."""
    silu = is_silu(activation)
    _expect_shapes(
        _ROWS,
        x=x,
        weight=weight,
        bias=bias,
        initial_states=initial_states,
        final_states_out=final_states_out,
        seq_idx=seq_idx,
    )
    batch, dim, seqlen = x.shape
    if initial_states is None:
        initial_states = _zeros(x, batch, dim, weight.shape[1] - 1)
    history = _concatenate([initial_states, x])
    y = _convolve(history, weight, bias, silu, x.dtype, seq_idx)
    final_states = history[..., seqlen:]
    if seq_idx is not None:
        # Padding is no part of a state.
        inside = _indices_of_history(seq_idx, weight.shape[1])[:, seqlen:] >= 0
        final_states = _where(inside[:, None], final_states)
    if final_states_out is not None:
        final_states_out[...] = final_states
        final_states = final_states_out
    return (y, final_states) if return_final_states else y


def causal_conv1d_update_ref(x, conv_state, weight, bias, activation, cache_seqlens):
    """See `causeway.causal_conv1d_update_ref`."""
    silu = is_silu(activation)
    is_step = getattr(x, "ndim", None) == 2
    _expect_shapes(
        "(batch, dim)" if is_step else f"(batch, dim) or {_ROWS}",
        x=x,
        weight=weight,
        bias=bias,
        conv_state=conv_state,
        cache_seqlens=cache_seqlens,
    )
    if is_step:
        out = causal_conv1d_update_ref(x[..., None], conv_state, weight, bias, activation, cache_seqlens)
        return out[..., 0]
    seqlen, before, state_len = x.shape[-1], weight.shape[1] - 1, conv_state.shape[-1]
    if state_len < before:
        found, needed = f"conv_state holds {state_len} positions", f"a convolution of width {before + 1} needs at least {before}"
        raise ValueError(f"{found}: {needed}; allocate (·, dim, {before}) or longer")
    if cache_seqlens is None:
        joined = _concatenate([conv_state, x])
        history = joined[..., joined.shape[-1] - seqlen - before :]
        conv_state[...] = joined[..., seqlen:]
        return _convolve(history, weight, bias, silu, x.dtype)
    rows = []
    for row, seen in enumerate(cache_seqlens.tolist()):
        past = [(seen - before + i) % state_len for i in range(before)]
        rows.append(_concatenate([conv_state[row][:, past], x[row]])[None])
        # Where x is longer than the ring, its last positions stay.
        for i in range(seqlen):
            conv_state[row, :, (seen + i) % state_len] = x[row, :, i]
    return _concatenate([_convolve(row, weight, bias, silu, x.dtype) for row in rows], axis=0)
