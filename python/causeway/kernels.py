"""The convolution's kernels with all outputs given: for code that has its own autograd, and for the drop-in.

Every argument is a tensor of one library, NumPy's or PyTorch's, or None where it may be absent; outputs are any views
with a place for each element, and share no memory with an input. Nothing is returned.

    causal_conv1d_forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states)
    causal_conv1d_backward(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu,
                           dx, dweight, dbias, dinitial_states)
    causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
    causal_conv1d_varlen_states(x, cu_seqlens, states)

Shapes, dtypes and errors are those of `causeway.causal_conv1d_fn`; dweight and dbias may also be float32.

They can be compiled with ``torch.compile(fullgraph=True)``, and take fake and meta tensors: a compiler sees the operators
``torch.ops.causeway.causal_conv1d_forward_out`` and so on, which say what they write.

    >>> x, weight = numpy.ones((1, 2, 4), numpy.float32), numpy.ones((2, 3), numpy.float32)
    >>> y = numpy.empty_like(x)
    >>> causeway.kernels.causal_conv1d_forward(x, weight, None, None, None, None, None, True, y, None)
"""

import sys

from causeway import _native

__all__ = [
    "causal_conv1d_backward",
    "causal_conv1d_forward",
    "causal_conv1d_update",
    "causal_conv1d_varlen_states",
]

# PyTorch's operators, and its test for a compiler that traces, once there is a PyTorch: it is not imported before.
_operators = None
_is_compiling = None


def _watching(names, *tensors):
    """The operators for a call that a compiler or somebody else of PyTorch's wants to see; None for a kernel's."""
    global _operators, _is_compiling
    if _operators is None and hasattr(sys.modules.get("torch"), "Tensor"):
        from causeway._torch import out_operators

        _operators, _is_compiling = out_operators, out_operators.is_compiling
    if _operators is None or not _operators.is_watched(*tensors):
        _refuse_masks(names, tensors)
        return None
    required = [name for name in names.split() if not name.endswith("?")]
    _operators.expect_tensors(required, **dict(zip(names.replace("?", "").split(), tensors)))
    return _operators


def _refuse_masks(names, tensors):
    """Masked arrays of NumPy's are there only if their module is."""
    if "numpy.ma" in sys.modules and type(tensors[0]).__module__.split(".")[0] == "numpy":
        from causeway import _numpy

        for name, tensor in zip(names.replace("?", "").split(), tensors):
            _numpy.refuse_mask(name, tensor)


def causal_conv1d_forward(
    x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states
):
    """Writes y, of x's shape and dtype, and final_states where they are given."""
    if _is_compiling is not None and not _is_compiling() and _native.eager_forward_out(
        x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states,
    ):  # fmt: skip
        return
    operators = _watching(
        "x weight bias? initial_states? seq_idx? cu_seqlens? residual? y final_states?",
        x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, y, final_states,
    )  # fmt: skip
    forward = _native.causal_conv1d_forward if operators is None else operators.forward
    forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states)


def causal_conv1d_backward(
    x,
    weight,
    bias,
    dy,
    initial_states,
    seq_idx,
    cu_seqlens,
    dfinal_states,
    silu,
    dx,
    dweight,
    dbias,
    dinitial_states,
):
    """Writes dx, dweight, and dbias and dinitial_states where they are given. The gradient of a residual is dy."""
    if _is_compiling is not None and not _is_compiling() and _native.eager_backward_out(
        x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu, dx, dweight, dbias,
        dinitial_states,
    ):  # fmt: skip
        return
    operators = _watching(
        "x weight bias? dy initial_states? seq_idx? cu_seqlens? dfinal_states? dx dweight dbias? dinitial_states?",
        x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, dx, dweight, dbias, dinitial_states,
    )  # fmt: skip
    backward = _native.causal_conv1d_backward if operators is None else operators.backward
    backward(
        x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu, dx, dweight, dbias,
        dinitial_states,
    )  # fmt: skip


def causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out):
    """Writes out, of x's shape and dtype, and changes conv_state in place."""
    if _is_compiling is not None and not _is_compiling() and _native.eager_update_out(
        x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out,
    ):  # fmt: skip
        return
    operators = _watching(
        "x conv_state weight bias? cache_seqlens? conv_state_indices? out",
        x, conv_state, weight, bias, cache_seqlens, conv_state_indices, out,
    )  # fmt: skip
    update = _native.causal_conv1d_update if operators is None else operators.update
    update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)


def causal_conv1d_varlen_states(x, cu_seqlens, states):
    """Writes states (n, dim, state_len) from the packed x (total, dim)."""
    operators = _watching("x cu_seqlens states", x, cu_seqlens, states)
    varlen_states = _native.causal_conv1d_varlen_states if operators is None else operators.varlen_states
    varlen_states(x, cu_seqlens, states)
