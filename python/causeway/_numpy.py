"""The operations on NumPy arrays."""

import numpy as np

from causeway import _native
from causeway._activation import is_silu


def _shape(argument, array, expected):
    """The shape of an array that results are made from, with as many axes as expected."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{argument} is a {type(array).__name__}: expected a torch.Tensor or a numpy.ndarray")
    if array.ndim != len(expected.split(",")):
        raise ValueError(f"{argument} has shape {array.shape}: expected {expected}")
    return array.shape


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
    batch, dim, _ = _shape("x", x, "(batch, dim, seqlen)")
    _, width = _shape("weight", weight, "(dim, width)")
    final_states = final_states_out
    if return_final_states and final_states is None:
        rows = batch if cu_seqlens is None else _shape("cu_seqlens", cu_seqlens, "(n + 1)")[0] - 1
        final_states = np.empty((max(rows, 0), dim, max(width - 1, 0)), x.dtype)
    # In the order of x's strides.
    y = np.empty_like(x, subok=False)
    _native.causal_conv1d_forward(
        x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states
    )
    return (y, final_states) if return_final_states else y


def causal_conv1d_update(x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices):
    """See `causeway.causal_conv1d_update`."""
    silu = is_silu(activation)
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is a {type(x).__name__}: expected a torch.Tensor or a numpy.ndarray")
    out = np.empty_like(x, subok=False)
    _native.causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
    return out


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """See `causeway.causal_conv1d_varlen_states`."""
    _, dim = _shape("x", x, "(total, dim)")
    (count,) = _shape("cu_seqlens", cu_seqlens, "(n + 1)")
    if state_len < 0:
        raise ValueError(f"state_len is {state_len}: expected 0 or more")
    states = np.empty((max(count - 1, 0), state_len, dim), x.dtype).swapaxes(1, 2)
    _native.causal_conv1d_varlen_states(x, cu_seqlens, states)
    return states


def gemm(a, b, algorithm):
    """See `causeway.gemm`."""
    c = np.empty((_shape("a", a, "(M, K)")[0], _shape("b", b, "(K, N)")[1]), a.dtype)
    _native.gemm_forward(a, b, algorithm, c)
    return c


def gemm_grad_a(grad_c, b, algorithm):
    """See `causeway.gemm_grad_a`."""
    grad_a = np.empty((_shape("grad_c", grad_c, "(M, N)")[0], _shape("b", b, "(K, N)")[0]), grad_c.dtype)
    _native.gemm_grad_a(grad_c, b, algorithm, grad_a)
    return grad_a


def gemm_grad_b(grad_c, a, algorithm):
    """See `causeway.gemm_grad_b`."""
    grad_b = np.empty((_shape("a", a, "(M, K)")[1], _shape("grad_c", grad_c, "(M, N)")[1]), grad_c.dtype)
    _native.gemm_grad_b(grad_c, a, algorithm, grad_b)
    return grad_b


def gemm_grad_ab(grad_c, a, b, algorithm):
    """See `causeway.gemm_grad_ab`."""
    _shape("grad_c", grad_c, "(M, N)")
    grad_a = np.empty(_shape("a", a, "(M, K)"), grad_c.dtype)
    grad_b = np.empty(_shape("b", b, "(K, N)"), grad_c.dtype)
    _native.gemm_grad_ab(grad_c, a, b, algorithm, grad_a, grad_b)
    return grad_a, grad_b
