"""Query, key and value of a delta net; see the functions of `causeway`, which are these."""

from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple

import causeway
from causeway._activation import is_silu, with_norm
from causeway._flag import flag
from causeway._integer import integer
from causeway._kind import kind_of

NAMES = "q", "k", "v"

# What errors call the channels of each.
_SIZES = "sizes[0]", "sizes[1]", "sizes[2]"

# What is divided by channels, and the axis that these are.
INPUTS, AXES = ("x", "weight", "bias", "initial_states"), (1, 0, 0, 1)

# The same of an update.
STEP_INPUTS, STEP_AXES = ("x", "conv_state", "weight", "bias"), (1, 1, 0, 0)


class Projection(NamedTuple):
    """What one of q, k and v is made of."""

    x: Any
    weight: Any
    bias: Any
    initial_states: Any
    option: Any
    head_dim: int

    def inputs(self, seq_idx, cu_seqlens):
        """In the order of the convolution's table."""
        return self.x, self.weight, self.bias, self.initial_states, seq_idx, cu_seqlens


class Step(NamedTuple):
    """What new positions of one of q, k and v are made of."""

    x: Any
    conv_state: Any
    weight: Any
    bias: Any
    option: Any
    head_dim: int

    def inputs(self, others):
        """In the order of the update's table."""
        return self.x, self.weight, self.bias, *others


def causal_conv1d_qkv(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    *,
    sizes=None,
    head_dim,
    l2norm=("q", "k"),
    scale=1.0,
    eps=1e-6,
    activation="silu",
    cu_seqlens=None,
):
    """Query, key and value of a gated delta net: a short convolution, SiLU, and an L2 norm over each head of q and k.

    ``u = act(bias + weight * x)``; where there is a norm, ``u / sqrt(sum(u ** 2) + eps)`` over the channels of each head (q times
    ``scale``), in float32 up to the one rounding of the result. Call a delta rule with ``use_qk_l2norm_in_kernel=False`` then.

    Parameters
    ----------
    x : (batch, q + k + v channels, seqlen), or a tuple of three such tensors
        In any strides. For the output of a linear layer, (batch, seqlen, channels), pass its ``transpose(1, 2)``.
    weight : (channels, width), and bias : (channels,); tuples of three for three tensors
    seq_idx, cu_seqlens : as in `causal_conv1d_fn`
    initial_states : (batch, channels, width-1), of x's dtype, optional; a tuple of three for three tensors
    return_final_states : bool
    sizes : (int, int, int)
        Channels of q, k and v, where x is one tensor.
    head_dim : int, or one each for q, k and v
        Channels of a head. q, k and v may have different numbers of heads.
    l2norm : tuple of any of "q", "k" and "v"
        What is divided by its norm; an empty tuple for none.
    scale : float, from -3.4e38 to 3.4e38
        Multiplies q, which has a norm then. Leave it at 1 for a delta rule that scales q itself, as FLA's and transformers' do.
    eps : float, from 1.2e-38 to 3.4e38
    activation : None, "silu" or "swish"

    Returns
    -------
    (q, k, v), each contiguous (batch, seqlen, heads, head_dim); or ``((q, k, v), final_states)``, with states as x is given.

    Raises
    ------
    As `causal_conv1d_fn`.

    Notes
    -----
    Differentiable in x, weight, bias and initial_states. The gradient of one x is one tensor, which the parts write to. On a GPU, q, k
    and v of a channel-last x are one launch where their blocks have one size, and so are all their gradients, which are two where that is
    faster.

    Examples
    --------
    >>> x = torch.randn(2, 128, 3 * 64).transpose(1, 2)                     # (batch, channels, seqlen)
    >>> weight, sizes = torch.randn(192, 4), (64, 64, 64)
    >>> q, k, v = causeway.causal_conv1d_qkv(x, weight, sizes=sizes, head_dim=32)
    >>> q.shape
    torch.Size([2, 128, 2, 32])
    """
    calls = _calls_of(x)
    if type(return_final_states) is not bool:
        return_final_states = flag("return_final_states", return_final_states)
    given, named = (x, weight, bias, initial_states), (head_dim, l2norm, scale, eps, activation)
    results, states = calls.causal_conv1d_qkv(given, sizes, named, (seq_idx, cu_seqlens), return_final_states)
    return (results, states) if return_final_states else results


def causal_conv1d_qkv_update(
    x,
    conv_state,
    weight,
    bias=None,
    *,
    sizes,
    head_dim,
    l2norm=("q", "k"),
    scale=1.0,
    eps=1e-6,
    activation="silu",
    cache_seqlens=None,
    conv_state_indices=None,
):
    """One or more new positions of every sequence through `causal_conv1d_qkv`, with the state changed in place. Not differentiable.

    Parameters
    ----------
    x : (batch, channels) or (batch, channels, seqlen)
    conv_state : (batch, channels, state_len), of x's dtype, state_len >= width-1
        The last positions of x. New ones are shifted in. It may not require a gradient.
    cache_seqlens, conv_state_indices : as in `causal_conv1d_update`
        conv_state is a ring buffer; or it has a row for each index.
    The other arguments : as in `causal_conv1d_qkv`

    Returns
    -------
    (q, k, v), each (batch, heads, head_dim), or (batch, seqlen, heads, head_dim) where x has three axes; the bits of the whole
    sequence.

    Examples
    --------
    >>> conv_state = torch.zeros(2, 192, 3)
    >>> weight, sizes = torch.randn(192, 4), (64, 64, 64)
    >>> q, k, v = causeway.causal_conv1d_qkv_update(torch.randn(2, 192), conv_state, weight, sizes=sizes, head_dim=32)
    """
    calls = _calls_of(x)
    if type(x) is tuple:
        raise TypeError("x is a tuple: expected one tensor of q, k and v, since conv_state is one")
    given, named = (x, conv_state, weight, bias), (head_dim, l2norm, scale, eps, activation)
    return calls.causal_conv1d_qkv_update(given, sizes, named, (cache_seqlens, conv_state_indices))


def _calls_of(x):
    """The calls for x's library."""
    if isinstance(x, list) or (type(x) is tuple and len(x) != 3):
        raise TypeError(f"x is {_counted(x)}: expected one tensor, or a tuple of three, for q, k and v")
    return causeway._calls(x[0] if type(x) is tuple else x)


def checked(names, given, named):
    """The options of q, k and v, of what options are called, where tensors are one or three as x is."""
    options = options_of(*named)
    _expect_as_x(names, given)
    return options


def options_of(head_dim, l2norm, scale, eps, activation):
    """head_dim and the option of each of q, k and v."""
    dims = tuple(head_dim) if isinstance(head_dim, (tuple, list)) else (head_dim,) * 3
    if len(dims) != 3:
        raise ValueError(f"head_dim is {head_dim!r}: expected an int, or three of them")
    dims = [integer("head_dim", dim, 1) for dim in dims]
    if not isinstance(l2norm, (tuple, list, set, frozenset)) or any(name not in NAMES for name in l2norm):
        expected = 'expected a tuple of any of "q", "k" and "v", or () for no norm'
        fix = f"; pass {tuple(l2norm)}" if isinstance(l2norm, str) and set(l2norm) <= set(NAMES) else ""
        raise ValueError(f"l2norm is {l2norm!r}: {expected}{fix}")
    for name, value in (("scale", scale), ("eps", eps)):
        if not isinstance(value, Real):
            raise TypeError(f"{name} is {value!r}: expected a float")
    if l2norm and not 1.2e-38 <= eps <= 3.4e38:
        raise ValueError(f"eps is {eps!r}: expected a number from 1.2e-38 to 3.4e38")
    if scale != 1.0 and "q" not in l2norm:
        raise ValueError(f"scale is {scale!r}: it is part of the norm of q, which l2norm {l2norm!r} lacks")
    # Not a number, too, which is within no bounds.
    if "q" in l2norm and not -3.4e38 <= scale <= 3.4e38:
        raise ValueError(f"scale is {scale!r}: expected a number from -3.4e38 to 3.4e38")
    is_silu(activation)
    numbers = zip(NAMES, dims, (float(scale), 1.0, 1.0))
    return [
        (dim, with_norm(activation, False, dim if name in l2norm else 0, float(eps), factor)) for name, dim, factor in numbers
    ]


def _counted(value):
    """What errors call it; of a tuple or a list, with how many it has."""
    return f"{kind_of(value)} of {len(value)}" if isinstance(value, (tuple, list)) else kind_of(value)


def _expect_as_x(names, given):
    """If x is a tuple, all are tuples of three; else none is."""
    for name, value in zip(names, given):
        if type(given[0]) is tuple and value is not None and (type(value) is not tuple or len(value) != 3):
            raise TypeError(f"{name} is {_counted(value)}: expected a tuple of three, for q, k and v")
        if type(given[0]) is not tuple and isinstance(value, (tuple, list)):
            raise TypeError(f"{name} is {kind_of(value)}: expected one tensor, as x is, with q, k and v along its channels")


def each(names, given):
    """Every tensor with its name, three of a tuple; of optional ones, those that are there."""
    for name, value in zip(names, given):
        for one in value if type(value) is tuple else (value,):
            if one is not None or name not in ("bias", "initial_states"):
                yield name, one


def sizes_of(given, sizes):
    """The channels of q, k and v in one tensor; None for three tensors."""
    if type(given[0]) is tuple:
        if sizes is not None:
            raise ValueError(f"sizes is {sizes!r}, but x is three tensors, which have their own")
        return None
    return _one_of_sizes(INPUTS, AXES, given, sizes)


def step_sizes_of(given, sizes, conv_state_indices):
    """The channels of q, k and v in the one tensor of an update."""
    x, conv_state, weight, _ = given
    if x.ndim not in (2, 3):
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (batch, channels) or (batch, channels, seqlen)")
    if weight.ndim != 2:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected (channels, width)")
    before = weight.shape[1] - 1
    if conv_state.ndim != 3 or conv_state.shape[-1] < before:
        found = tuple(conv_state.shape)
        raise ValueError(f"conv_state has shape {found}: expected (batch, channels, state_len), state_len {before} or more")
    if conv_state_indices is None and conv_state.shape[:2] != x.shape[:2]:
        found, expected = tuple(conv_state.shape), tuple(x.shape[:2])
        raise ValueError(f"conv_state has shape {found}: expected {expected[0]} entries of {expected[1]} channels, as x has")
    return _one_of_sizes(STEP_INPUTS, STEP_AXES, given, sizes)


def _one_of_sizes(names, axes, given, sizes):
    """The channels of q, k and v, which each tensor has one after the other."""
    sizes = three_sizes(sizes, given[0])
    for name, tensor, axis in zip(names, given, axes):
        if tensor is not None and hasattr(tensor, "shape") and (tensor.ndim <= axis or tensor.shape[axis] != sum(sizes)):
            found, at = tuple(tensor.shape), "first" if axis == 0 else "second"
            raise ValueError(f"{name} has shape {found}: expected {sum(sizes)} channels along its {at} axis, the sum of sizes {sizes}")
    return sizes


def three_sizes(sizes, x=None):
    """The channels of q, k and v, checked; those of x, if it is known."""
    if not isinstance(sizes, (tuple, list)) or len(sizes) != 3:
        known = "the channels of each" if x is None or x.ndim < 2 else f"whose sum is the channels of x, {x.shape[1]}"
        raise ValueError(f"sizes is {sizes!r}: expected three ints (q, k, v), {known}")
    return tuple(integer(name, size, 0) for name, size in zip(_SIZES, sizes))


def expected_heads(at, channels, head_dim, has_sizes):
    """What to say of channels of q, k or v that are no whole number of heads."""
    source = f" ({_SIZES[at]})" if has_sizes else ""
    return f"{NAMES[at]} has {channels} channels{source}: expected a multiple of head_dim, {head_dim}"


def projections_of(given, sizes, options):
    """q, k and v, of x, weight, bias and initial_states."""
    if sizes is None:
        views = [value or (None,) * 3 for value in given]
    else:
        views = [split(value, axis, sizes) for value, axis in zip(given, AXES)]
    projections = [Projection(*row, option, dim) for *row, (dim, option) in zip(*views, options)]
    _expect_heads(projections, given[0], (3,), "(batch, channels, seqlen)")
    if sizes is None:
        _expect_one_size(projections)
    return projections


def steps_of(given, sizes, options):
    """New positions of q, k and v, of x, conv_state, weight and bias."""
    views = [split(value, axis, sizes) for value, axis in zip(given, STEP_AXES)]
    steps = [Step(*row, option, dim) for *row, (dim, option) in zip(*views, options)]
    _expect_heads(steps, given[0], (2, 3), "(batch, channels) or (batch, channels, seqlen)")
    return steps


def _expect_heads(three, x, axes, expected):
    """Projections or steps of x, which is one tensor or three, have so many axes, and channels in whole heads."""
    has_sizes = type(x) is not tuple
    for at, one in enumerate(three):
        if one.x.ndim not in axes:
            name, found = ("x", x) if has_sizes else (NAMES[at], one.x)
            raise ValueError(f"{name} has shape {tuple(found.shape)}: expected {expected}")
        if one.x.shape[1] % one.head_dim:
            raise ValueError(expected_heads(at, one.x.shape[1], one.head_dim, has_sizes))


def _expect_one_size(projections):
    batch, _, seqlen = projections[0].x.shape
    for name, projection in zip(NAMES, projections):
        if projection.x.shape[0] != batch or projection.x.shape[2] != seqlen:
            found = tuple(projection.x.shape)
            raise ValueError(f"{name} has shape {found}: expected batch {batch} and seqlen {seqlen}, as q has")


def split(tensor, axis, sizes):
    """Views of so many channels each, one after the other."""
    if tensor is None:
        return (None,) * len(sizes)
    if hasattr(tensor, "split_with_sizes") and not hasattr(tensor, "device_mesh"):
        # Of PyTorch's: a third of the time of three slices. A DTensor's has no gradient where a part is not used.
        return tensor.split_with_sizes(sizes, axis)
    ranges = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes)]
    return tuple(tensor[:, part] if axis == 1 else tensor[part] for part in ranges)
