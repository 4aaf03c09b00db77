"""The operations on NumPy arrays."""

import numpy as np

from causeway import _native
from causeway._activation import is_silu


def refuse_mask(name, value):
    """Raises the error for an array with a mask, which kernels know nothing about."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a numpy.ma.MaskedArray, whose mask would be ignored: pass {name}.filled(0), or "
            f"{name}.data to compute with what lies under the mask"
        )


def _expect_arrays(required, **arguments):
    """Every argument is an array without a mask, or None if it is not among the required ones."""
    for name, value in arguments.items():
        refuse_mask(name, value)
        if isinstance(value, np.ndarray) or (value is None and name not in required):
            continue
        first, kind = required[0], type(value)
        if kind.__module__.split(".")[0] == "torch":
            raise TypeError(
                f"{name} is a torch.Tensor and {first} a numpy.ndarray: all tensors of a call come from one library; "
                f"pass torch.from_numpy({first}), or {name}.numpy()"
            )
        raise TypeError(f"{name} is a {kind.__name__}: expected a numpy.ndarray, as {first} is")


def _shape(argument, array, expected):
    """The shape of an array that results are made from, with as many axes as expected."""
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
    _expect_arrays(
        ("x", "weight"),
        x=x,
        weight=weight,
        bias=bias,
        seq_idx=seq_idx,
        initial_states=initial_states,
        final_states_out=final_states_out,
        cu_seqlens=cu_seqlens,
        residual=residual,
    )
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
    _expect_arrays(
        ("x", "conv_state", "weight"),
        x=x,
        conv_state=conv_state,
        weight=weight,
        bias=bias,
        cache_seqlens=cache_seqlens,
        conv_state_indices=conv_state_indices,
    )
    out = np.empty_like(x, subok=False)
    _native.causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
    return out


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """See `causeway.causal_conv1d_varlen_states`."""
    _expect_arrays(("x", "cu_seqlens"), x=x, cu_seqlens=cu_seqlens)
    _, dim = _shape("x", x, "(total, dim)")
    (count,) = _shape("cu_seqlens", cu_seqlens, "(n + 1)")
    if state_len < 0:
        raise ValueError(f"state_len is {state_len}: expected 0 or more")
    states = np.empty((max(count - 1, 0), state_len, dim), x.dtype).swapaxes(1, 2)
    _native.causal_conv1d_varlen_states(x, cu_seqlens, states)
    return states


def gemm(a, b, algorithm):
    """See `causeway.gemm`."""
    _expect_arrays(("a", "b"), a=a, b=b)
    c = np.empty((_shape("a", a, "(M, K)")[0], _shape("b", b, "(K, N)")[1]), a.dtype)
    _native.gemm_forward(a, b, algorithm, c)
    return c


def gemm_grad_a(grad_c, b, algorithm):
    """See `causeway.gemm_grad_a`."""
    _expect_arrays(("grad_c", "b"), grad_c=grad_c, b=b)
    grad_a = np.empty((_shape("grad_c", grad_c, "(M, N)")[0], _shape("b", b, "(K, N)")[0]), grad_c.dtype)
    _native.gemm_grad_a(grad_c, b, algorithm, grad_a)
    return grad_a


def gemm_grad_b(grad_c, a, algorithm):
    """See `causeway.gemm_grad_b`."""
    _expect_arrays(("grad_c", "a"), grad_c=grad_c, a=a)
    grad_b = np.empty((_shape("a", a, "(M, K)")[1], _shape("grad_c", grad_c, "(M, N)")[1]), grad_c.dtype)
    _native.gemm_grad_b(grad_c, a, algorithm, grad_b)
    return grad_b


def gemm_grad_ab(grad_c, a, b, algorithm):
    """See `causeway.gemm_grad_ab`."""
    _expect_arrays(("grad_c", "a", "b"), grad_c=grad_c, a=a, b=b)
    _shape("grad_c", grad_c, "(M, N)")
    grad_a = np.empty(_shape("a", a, "(M, K)"), grad_c.dtype)
    grad_b = np.empty(_shape("b", b, "(K, N)"), grad_c.dtype)
    _native.gemm_grad_ab(grad_c, a, b, algorithm, grad_a, grad_b)
    return grad_a, grad_b
