"""The convolution's kernels with all outputs given: for code that has its own autograd, and for the drop-in.

Every argument is a tensor of one library, NumPy's or PyTorch's, or None where it may be absent; outputs are any views
with a place for each element, and share no memory with an input. Nothing is returned.

    causal_conv1d_forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, y, final_states,
                          B=None, C=None, round_products=False, head_dim=0, eps=1e-6, scale=1.0)
    causal_conv1d_backward(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu,
                           dx, dweight, dbias, dinitial_states,
                           B=None, C=None, dB=None, dC=None, round_products=False,
                           head_dim=0, eps=1e-6, scale=1.0)
    causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out,
                         B=None, C=None, round_products=False, head_dim=0, eps=1e-6, scale=1.0)
    causal_conv1d_varlen_states(x, cu_seqlens, states)

Shapes, dtypes and errors are those of `causeway.causal_conv1d_fn` and, with the gates B and C, of `causeway.causal_conv1d_gated`;
dweight and dbias may also be float32. With a head_dim, what the activation gives is divided by its L2 norm over the channels of each
head: ``y = scale * u / sqrt(sum(u ** 2) + eps)``.

They can be compiled with ``torch.compile(fullgraph=True)``, and take fake and meta tensors: a compiler sees the operators
``torch.ops.causeway.causal_conv1d_forward_out`` and so on, which say what they write.

    >>> x, weight = numpy.ones((1, 2, 4), numpy.float32), numpy.ones((2, 3), numpy.float32)
    >>> y = numpy.empty_like(x)
    >>> causeway.kernels.causal_conv1d_forward(x, weight, None, None, None, None, None, True, y, None)
"""

import importlib
import sys

from causeway import _native
from causeway._activation import with_norm

__all__ = [
    "causal_conv1d_backward",
    "causal_conv1d_forward",
    "causal_conv1d_update",
    "causal_conv1d_varlen_states",
]


def __dir__():
    """The public names."""
    return __all__


_forward = _native.causal_conv1d_forward.eager
_backward = _native.causal_conv1d_backward.eager
_update = _native.causal_conv1d_update.eager
_varlen_states = _native.causal_conv1d_varlen_states.eager

# What PyTorch's half of the package has for these kernels, once there is a PyTorch: it is not imported before.
_write = _needs_dispatcher = _is_compiling = None


def _use(write, needs_dispatcher, is_compiling):
    """Called by PyTorch's half, once it is there."""
    global _write, _needs_dispatcher, _is_compiling
    _write, _needs_dispatcher, _is_compiling = write, needs_dispatcher, is_compiling


def _look_for_pytorch():
    if _write is None and hasattr(sys.modules.get("torch"), "Tensor"):
        importlib.import_module(f"{__package__}._torch")


def _dispatch(name, inputs, option, outputs):
    """A call that needs PyTorch's dispatcher, or that the kernel has to have the errors for."""
    _look_for_pytorch()
    if _write is not None and _needs_dispatcher(*inputs, *outputs):
        _write(name, inputs, option, outputs)
    else:
        getattr(_native, name).run(inputs, option, outputs)


def causal_conv1d_forward(
    x,
    weight,
    bias,
    initial_states,
    seq_idx,
    cu_seqlens,
    residual,
    silu,
    y,
    final_states,
    B=None,
    C=None,
    round_products=False,
    head_dim=0,
    eps=1e-6,
    scale=1.0,
):
    """Writes y, of x's shape and dtype, and final_states where they are given."""
    inputs = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, B, C
    option, outputs = with_norm(silu, round_products, head_dim, eps, scale), (y, final_states)
    if _is_compiling is None or _is_compiling() or _forward(inputs, option, outputs) is None:
        _dispatch("causal_conv1d_forward", inputs, option, outputs)


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
    B=None,
    C=None,
    dB=None,
    dC=None,
    round_products=False,
    head_dim=0,
    eps=1e-6,
    scale=1.0,
):
    """Writes dx, dweight, and the other gradients where they are given. The gradient of a residual is dy."""
    inputs = x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, B, C
    option, outputs = with_norm(silu, round_products, head_dim, eps, scale), (dx, dweight, dbias, dinitial_states, dB, dC)
    if _is_compiling is None or _is_compiling() or _backward(inputs, option, outputs) is None:
        _dispatch("causal_conv1d_backward", inputs, option, outputs)


def causal_conv1d_update(
    x,
    conv_state,
    weight,
    bias,
    silu,
    cache_seqlens,
    conv_state_indices,
    out,
    B=None,
    C=None,
    round_products=False,
    head_dim=0,
    eps=1e-6,
    scale=1.0,
):
    """Writes out, of x's shape and dtype, and changes conv_state in place."""
    inputs = x, weight, bias, cache_seqlens, conv_state_indices, B, C
    option, outputs = with_norm(silu, round_products, head_dim, eps, scale), (conv_state, out)
    if _is_compiling is None or _is_compiling() or _update(inputs, option, outputs) is None:
        _dispatch("causal_conv1d_update", inputs, option, outputs)


def causal_conv1d_varlen_states(x, cu_seqlens, states):
    """Writes states (n, dim, state_len) from the packed x (total, dim)."""
    if _is_compiling is None or _is_compiling() or _varlen_states((x, cu_seqlens), None, (states,)) is None:
        _dispatch("causal_conv1d_varlen_states", (x, cu_seqlens), None, (states,))


# Before a compiler traces a call, if it can be.
_look_for_pytorch()
