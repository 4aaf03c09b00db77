"""The kernels with their outputs allocated: from PyTorch's allocator, on the device and stream of their inputs."""

import torch

from causeway import _native
from causeway._torch.eager import require_axes


# (x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states, final_states_out)
# -> y in the order of x's strides, or (y, final_states)
forward = _native.torch_forward

# (x, weight, bias, initial_states, seq_idx, cu_seqlens, dy, dfinal_states, silu)
# -> (dx, dweight, dbias, dinitial_states), None for the gradient of what is not there
backward = _native.torch_backward

# (x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)
# -> the new outputs; conv_state is changed in place, and autograd is told so
update = _native.torch_update


def varlen_states(x, cu_seqlens, state_len):
    """States of all sequences."""
    states = empty_varlen_states(x, cu_seqlens, state_len)
    _native.causal_conv1d_varlen_states(x, cu_seqlens, states)
    return states


def empty_varlen_states(x, cu_seqlens, state_len):
    """Room for the states of all sequences: (n, state_len, dim) in memory."""
    _, dim = require_axes("x", x, "(total, dim)")
    (count,) = require_axes("cu_seqlens", cu_seqlens, "(n + 1)")
    if state_len < 0:
        raise ValueError(f"state_len is {state_len}: expected 0 or more")
    return x.new_empty((count - 1, state_len, dim)).transpose(1, 2)


def empty_gemm(a, b):
    """Room for a @ b."""
    return a.new_empty((require_axes("a", a, "(M, K)")[0], require_axes("b", b, "(K, N)")[1]))


def empty_grad_a(grad_c, b):
    """Room for grad_c @ b.T."""
    rows, _ = require_axes("grad_c", grad_c, "(M, N)")
    return grad_c.new_empty((rows, require_axes("b", b, "(K, N)")[0]))


def empty_grad_b(grad_c, a):
    """Room for a.T @ grad_c."""
    _, columns = require_axes("grad_c", grad_c, "(M, N)")
    return grad_c.new_empty((require_axes("a", a, "(M, K)")[1], columns))


def gemm(a, b, algorithm):
    """a @ b."""
    c = empty_gemm(a, b)
    _native.gemm_forward(a, b, algorithm, c)
    return c


def gemm_grad_a(grad_c, b, algorithm):
    """grad_c @ b.T."""
    grad_a = empty_grad_a(grad_c, b)
    _native.gemm_grad_a(grad_c, b, algorithm, grad_a)
    return grad_a


def gemm_grad_b(grad_c, a, algorithm):
    """a.T @ grad_c."""
    grad_b = empty_grad_b(grad_c, a)
    _native.gemm_grad_b(grad_c, a, algorithm, grad_b)
    return grad_b


def gemm_grad_ab(grad_c, a, b, algorithm):
    """Both gradients."""
    grad_a, grad_b = empty_grad_a(grad_c, b), empty_grad_b(grad_c, a)
    _native.gemm_grad_ab(grad_c, a, b, algorithm, grad_a, grad_b)
    return grad_a, grad_b
