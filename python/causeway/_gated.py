"""The gated convolution; see the functions of `causeway`, which are these."""

import causeway
from causeway._activation import with_rounding
from causeway._flag import flag
from causeway._qkv import split


def causal_conv1d_gated(
    B,
    x,
    C,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
    *,
    cu_seqlens=None,
    residual=None,
    round_products=False,
):
    """Gated causal depthwise convolution, ``y = C ⊙ act(bias + weight * (B ⊙ x)) + residual``, in one launch.

    Parameters
    ----------
    B : (batch, dim, seqlen), of x's dtype, or None for no gate
        Multiplies x.
    x : (batch, dim, seqlen); float32, float16, bfloat16, and float64 on a CPU
    C : (batch, dim, seqlen), of x's dtype, or None for no gate
        Multiplies the activation.
    weight, bias, seq_idx, cu_seqlens, residual, activation : as in `causal_conv1d_fn`
    initial_states : (batch, dim, width-1), of x's dtype, optional
        The values of B ⊙ x before the first position; with cu_seqlens ``(n, dim, width-1)``.
    return_final_states, final_states_out : as in `causal_conv1d_fn`, of B ⊙ x
    round_products : bool
        Round B ⊙ x, the activation, and what they become in the backward pass to x's dtype, as separate operations do;
        otherwise they stay in float32. Without gates it changes nothing.

    B, x and C may be views of one tensor, in any strides.

    Returns
    -------
    y, of x's shape, dtype and layout; or ``(y, final_states)``.

    Raises
    ------
    As `causal_conv1d_fn`.

    Notes
    -----
    Differentiable in B, x, C, weight, bias, initial_states and residual; one launch computes all gradients, from the inputs
    alone. For thirds of one projection, `causal_conv1d_gated_packed` gives the gradient as one tensor, without a copy.

    Examples
    --------
    >>> B, x, C = (torch.randn(2, 64, 128) for _ in range(3))
    >>> y = causeway.causal_conv1d_gated(B, x, C, torch.randn(64, 3))
    """
    if type(return_final_states) is not bool:
        return_final_states = flag("return_final_states", return_final_states)
    inputs = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, B, C
    option = with_rounding(activation, round_products)
    return causeway._calls(x).causal_conv1d_fn(inputs, option, return_final_states, final_states_out)


def causal_conv1d_gated_packed(
    packed,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    activation=None,
    *,
    order="BCx",
    cu_seqlens=None,
    round_products=False,
):
    """`causal_conv1d_gated` of the parts of one projection, whose gradient is one tensor too.

    Parameters
    ----------
    packed : (batch, 3 * dim, seqlen)
        The parts, one after the other along the channels, in any strides. For the output of a linear layer, (batch, seqlen, 3 * dim), pass
        its ``transpose(1, 2)``.
    order : str
        Which part is which: each letter of "B", "x" and "C" once. Without a gate its letter is missing, and packed has 2 * dim
        channels. "BCx" is the order of LFM2 and LFM3.
    The other arguments : as in `causal_conv1d_gated`

    Returns
    -------
    y : (batch, dim, seqlen), laid out in memory as packed is; or ``(y, final_states)``

    Examples
    --------
    >>> packed = torch.randn(2, 128, 3 * 64).transpose(1, 2)                # (batch, 3 * dim, seqlen)
    >>> y = causeway.causal_conv1d_gated_packed(packed.requires_grad_(), torch.randn(64, 3))
    >>> y.sum().backward()
    """
    calls = causeway._calls(packed, "packed")
    if type(return_final_states) is not bool:
        return_final_states = flag("return_final_states", return_final_states)
    others = weight, bias, initial_states, seq_idx, cu_seqlens
    option = with_rounding(activation, round_products)
    return calls.causal_conv1d_gated_packed(packed, order, others, option, return_final_states)


def is_order(order):
    """Whether it names x and gates, each once."""
    letters = set(order) if isinstance(order, str) else set()
    return "x" in letters and letters <= set("BCx") and len(order) == len(letters)


def require_parts(packed, order, weight):
    """A packed tensor has the parts that its order names, of the channels that weight has."""
    if not is_order(order):
        raise ValueError(f'order is {order!r}: expected the letters "B", "x" and "C", each once; without a gate, without its letter')
    if packed.ndim != 3 or packed.shape[1] % len(order) != 0:
        found, expected = tuple(packed.shape), f"(batch, {len(order)} * dim, seqlen)"
        raise ValueError(f"packed has shape {found}: expected {expected}, the parts {', '.join(order)} along the channels")
    if getattr(weight, "ndim", None) == 2 and packed.shape[1] != len(order) * weight.shape[0]:
        found, expected = tuple(packed.shape), f"(batch, {len(order)} * {weight.shape[0]}, seqlen)"
        because = f"order {order!r} names {len(order)} parts and weight has shape {tuple(weight.shape)}"
        raise ValueError(f"packed has shape {found}: expected {expected}, since {because}")


def inputs_of_packed(packed, order, others):
    """The inputs of the convolution, in the order of its table; gates stand at the end."""
    weight, bias, initial_states, seq_idx, cu_seqlens = others
    B, x, C = parts(packed, order)
    return x, weight, bias, initial_states, seq_idx, cu_seqlens, None, B, C


def parts(packed, order):
    """B, x and C as views of a packed tensor; None for a gate that is not there."""
    views = dict(zip(order, split(packed, 1, (packed.shape[1] // len(order),) * len(order))))
    return views.get("B"), views["x"], views.get("C")


def causal_conv1d_gated_update(
    B,
    x,
    C,
    conv_state,
    weight,
    bias=None,
    activation=None,
    cache_seqlens=None,
    conv_state_indices=None,
    *,
    round_products=False,
):
    """One or more new positions of every sequence through the gated convolution, with the state changed in place. Not differentiable.

    Parameters
    ----------
    B, C : of x's shape and dtype, or None for no gate
    x : (batch, dim) or (batch, dim, seqlen); float32, float16, bfloat16, and float64 on a CPU
    conv_state : (batch, dim, state_len), of x's dtype, state_len >= width-1
        The last positions of B ⊙ x. Changed as by `causal_conv1d_update`.
    weight, bias, activation, cache_seqlens, conv_state_indices : as in `causal_conv1d_update`
    round_products : bool
        As in `causal_conv1d_gated`.

    Returns
    -------
    y, of x's shape and dtype.

    Raises
    ------
    As `causal_conv1d_fn`.

    Examples
    --------
    >>> B, x, C = torch.randn(3, 2, 64)
    >>> conv_state = torch.zeros(2, 64, 2)
    >>> y = causeway.causal_conv1d_gated_update(B, x, C, conv_state, torch.randn(64, 3))
    """
    inputs = x, weight, bias, cache_seqlens, conv_state_indices, B, C
    option = with_rounding(activation, round_products)
    return causeway._calls(x).causal_conv1d_update(inputs, conv_state, option)
