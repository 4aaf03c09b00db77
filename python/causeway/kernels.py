"""The convolution's kernels with all outputs given: for code that has its own autograd, and for the drop-in.

Every argument is a tensor of one library, NumPy's or PyTorch's, or None where it may be absent; outputs are any views
with a place for each element, and share no memory with an input. Nothing is returned.

    causal_conv1d_forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states)
    causal_conv1d_backward(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu,
                           dx, dweight, dbias, dinitial_states)
    causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
    causal_conv1d_varlen_states(x, cu_seqlens, states)

Shapes, dtypes and errors are those of `causeway.causal_conv1d_fn`; dweight and dbias may also be float32.

    >>> x, weight = numpy.ones((1, 2, 4), numpy.float32), numpy.ones((2, 3), numpy.float32)
    >>> y = numpy.empty_like(x)
    >>> causeway.kernels.causal_conv1d_forward(x, weight, None, None, None, None, None, True, y, None)
"""

from causeway._native import (
    causal_conv1d_backward,
    causal_conv1d_forward,
    causal_conv1d_update,
    causal_conv1d_varlen_states,
)

__all__ = [
    "causal_conv1d_backward",
    "causal_conv1d_forward",
    "causal_conv1d_update",
    "causal_conv1d_varlen_states",
]
