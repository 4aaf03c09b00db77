"""Modules of PyTorch's."""

import re

import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from causeway import (
    _no_tensor,
    causal_conv1d_fn,
    causal_conv1d_gated_packed,
    causal_conv1d_gated_update,
    causal_conv1d_qkv,
    causal_conv1d_qkv_update,
    causal_conv1d_update,
)
from causeway._activation import is_silu
from causeway._flag import flag
from causeway._gated import parts
from causeway._integer import integer
from causeway._qkv import expected_heads, options_of, three_sizes
from causeway._torch.eager import expect_tensor, is_compiling, is_dynamo_compiling

__all__ = ["CausalConv1d", "GatedShortConv", "QKVShortConv"]


def __dir__():
    """The public names."""
    return __all__


# PyTorch's forward pre-hooks that make a module's weight of other parameters, whatever the module is called with.
_MAKE_WEIGHT = BasePruningMethod, SpectralNorm, WeightNorm


# The axes before channels, in a forward pass and in a step, and how many axes there are.
_ROWS, _STEPS = ("batch, seqlen",), ("batch", "batch, n")
_COUNTS = {_ROWS: (3,), _STEPS: (2, 3)}


def _expect_positions(argument, value, axes, channels):
    """What a block is called with is a tensor with positions, or one position, of so many channels, if that is known."""
    if not isinstance(value, torch.Tensor):
        # The parameters are PyTorch's.
        raise TypeError(_no_tensor(argument, value).replace(" or a numpy.ndarray", ""))
    expected = " or ".join([f"({name}, {channels or 'channels'})" for name in axes])
    if not is_compiling() and value.is_nested:
        jagged = f"{argument}.values()[None] with cu_seqlens={argument}.offsets()"
        raise TypeError(f"{argument} is a nested tensor: expected {expected}; for a jagged one, pass {jagged}")
    expect_tensor(argument, value)
    if value.ndim not in _COUNTS[axes] or (channels and value.shape[-1] != channels):
        fix = f"; pass {argument}[None] for one sequence" if axes is _ROWS and value.ndim == 2 else ""
        raise ValueError(f"{argument} has shape {tuple(value.shape)}: expected {expected}{fix}")


def _third(channels, argument):
    """What to say of a third argument of CausalConv1d without a name."""
    if isinstance(argument, (int, tuple, list)) and not isinstance(argument, bool):
        return (
            f"CausalConv1d has {argument!r} as its third argument: it is not Conv1d(in_channels, out_channels, kernel_size), "
            f"and takes channels once; write CausalConv1d({channels!r}, {argument!r})"
        )
    name = "bias" if isinstance(argument, bool) else "activation"
    return (
        f"CausalConv1d has {argument!r} as its third argument: expected channels and kernel_size alone, and the others by name; "
        f"pass {name}={argument!r}"
    )


def _with_state(name, function, *arguments, **options):
    """What a function gives that a module calls with its state. Errors call that state as the module does, and not `name`, as the function."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        if not is_dynamo_compiling() and error.args and isinstance(error.args[0], str):
            error.args = re.sub(rf"\b{name}\b", "state", error.args[0]), *error.args[1:]
        raise


class CausalConv1d(torch.nn.Conv1d):
    """A causal depthwise convolution with the parameters of ``torch.nn.Conv1d``, and a step for decoding.

    Output position t reads the input positions t-(kernel_size-1) to t. The parameters have the names and shapes of
    ``Conv1d(channels, channels, kernel_size, groups=channels)``, weight ``(channels, 1, kernel_size)`` and bias
    ``(channels,)``, so checkpoints of either load into the other.

    Parameters
    ----------
    channels : int
    kernel_size : int, 1 to 256, or a tuple or list of one
    bias : bool
        This and what follows is given by name: a third positional argument could be meant for either of two.
    activation : None, "silu" or "swish"
        Applied to the output.
    device, dtype : as for ``torch.nn.Conv1d``

    Examples
    --------
    >>> conv = causeway.nn.CausalConv1d(64, 4, activation="silu")
    >>> y = conv(torch.randn(2, 64, 128))                     # (batch, channels, seqlen)

    Decoding goes on where a prompt has ended:

    >>> with torch.no_grad():
    ...     y, state = conv(torch.randn(2, 64, 128), return_state=True)
    ...     for _ in range(10):
    ...         y = conv.step(torch.randn(2, 64), state)      # changes state
    """

    def __init__(
        self, channels, kernel_size, *others, bias=True, activation=None, device=None, dtype=None
    ):
        if others:
            raise TypeError(_third(channels, others[0]))
        channels = integer("channels", channels, 1)
        # As torch.nn.Conv1d keeps it and takes it.
        if isinstance(kernel_size, (tuple, list)):
            if len(kernel_size) != 1:
                raise TypeError(f"kernel_size is {kernel_size!r}: expected an int, 1 to 256, or a tuple of one")
            (kernel_size,) = kernel_size
        kernel_size = integer("kernel_size", kernel_size, 1, 256)
        is_silu(activation)
        bias = flag("bias", bias)
        super().__init__(
            channels, channels, kernel_size, groups=channels, bias=bias, device=device, dtype=dtype
        )
        self.activation = activation

    def forward(self, x, state=None, *, seq_idx=None, cu_seqlens=None, residual=None, return_state=False):
        """The convolution of x (batch, channels, seqlen), from a state on if one is given.

        Returns y, or ``(y, state)`` with ``return_state``: the last kernel_size-1 positions, for `step` or a further
        call. The other arguments are those of `causeway.causal_conv1d_fn`.
        """
        if type(return_state) is not bool:
            return_state = flag("return_state", return_state)
        return _with_state(
            "initial_states",
            causal_conv1d_fn,
            x,
            self.weight.squeeze(1),
            self.bias,
            seq_idx,
            state,
            return_state,
            None,
            self.activation,
            cu_seqlens=cu_seqlens,
            residual=residual,
        )

    def step(self, x, state, *, cache_seqlens=None, conv_state_indices=None):
        """One new position x (batch, channels), or several (batch, channels, n); changes state. No gradients.

        The other arguments are those of `causeway.causal_conv1d_update`.
        """
        return _with_state(
            "conv_state",
            causal_conv1d_update,
            x,
            state,
            self._filters(),
            self.bias,
            self.activation,
            cache_seqlens,
            conv_state_indices,
        )

    def _filters(self):
        """The weight as (channels, kernel_size), for a call that is not the module's forward pass, and so runs no hooks."""
        if self._forward_pre_hooks:
            for hook in self._forward_pre_hooks.values():
                if isinstance(hook, _MAKE_WEIGHT):
                    hook(self, ())
        return self.weight.squeeze(1)

    def new_state(self, batch, *, device=None, dtype=None):
        """The state before any position: zeros (batch, channels, kernel_size-1), of the weight's device and dtype."""
        # A compiler's sizes stay symbols.
        batch = batch if is_compiling() else integer("batch", batch, 0)
        shape = (batch, self.in_channels, self.kernel_size[0] - 1)
        return self.weight.new_zeros(shape, device=device, dtype=dtype).detach()

    @staticmethod
    def reset_state(state, rows=None):
        """Puts a state, or some of its rows, back to before any position, in place."""
        if rows is None:
            state.zero_()
            return state
        try:
            state[rows] = 0
        except (IndexError, TypeError) as error:
            count = state.shape[0]
            expected = f"expected rows of state, ints from {-count} to {count - 1}, a slice, or {count} bools"
            raise type(error)(f"rows is {rows!r}: {expected}") from None
        return state

    def extra_repr(self):
        """For ``print``."""
        parts = [f"{self.in_channels}, kernel_size={self.kernel_size[0]}"]
        if self.bias is None:
            parts.append("bias=False")
        if self.activation is not None:
            parts.append(f"activation={self.activation!r}")
        return ", ".join(parts)


class GatedShortConv(torch.nn.Module):
    """The gated short convolution of LFM2 and LFM3: ``out_proj(C ⊙ act(conv(B ⊙ x)))``, with B, C and x the thirds of ``in_proj``.

    The parameters have the names and shapes of transformers' ``Lfm2ShortConv``, so checkpoints of either load into the other:
    ``in_proj.weight`` (3 * dim, dim), ``conv.weight`` (dim, 1, kernel_size) and ``out_proj.weight`` (dim, dim). What lies between
    the projections is one launch in forward and one in backward.

    ``conv`` holds parameters, and is never called itself: hooks that are registered on it do not run. What PyTorch makes its weight with
    works: parametrizations, and the hooks of ``torch.nn.utils.prune``, ``weight_norm`` and ``spectral_norm``. Hooks of the block and of
    the projections run.

    Parameters
    ----------
    dim : int
    kernel_size : int, 1 to 256
    bias : bool
        Whether both projections and the convolution have a bias.
    activation : None, "silu" or "swish"
        Applied to the convolution, before C.
    order : str
        The order of the thirds: each of the letters "B", "C" and "x" once.
    round_products : bool
        As in `causeway.causal_conv1d_gated`.
    device, dtype : as for ``torch.nn.Linear``

    Examples
    --------
    >>> block = causeway.nn.GatedShortConv(64, 3)
    >>> y = block(torch.randn(2, 128, 64))                    # (batch, seqlen, dim)

    Decoding goes on where a prompt has ended:

    >>> with torch.no_grad():
    ...     y, state = block(torch.randn(2, 128, 64), return_state=True)
    ...     for _ in range(10):
    ...         y = block.step(torch.randn(2, 1, 64), state)  # changes state
    """

    def __init__(
        self,
        dim,
        kernel_size,
        *,
        bias=False,
        activation=None,
        order="BCx",
        round_products=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        dim = integer("dim", dim, 1)
        if not isinstance(order, str) or sorted(order) != ["B", "C", "x"]:
            raise ValueError(f'order is {order!r}: expected the letters "B", "C" and "x", each once')
        round_products, bias = flag("round_products", round_products), flag("bias", bias)
        where = {"device": device, "dtype": dtype}
        self.in_proj = torch.nn.Linear(dim, 3 * dim, bias=bias, **where)
        self.conv = CausalConv1d(dim, kernel_size, bias=bias, activation=activation, **where)
        self.out_proj = torch.nn.Linear(dim, dim, bias=bias, **where)
        self.order, self.round_products = order, round_products

    def forward(self, hidden, state=None, *, seq_idx=None, cu_seqlens=None, return_state=False):
        """The block's output for hidden (batch, seqlen, dim), from a state on if one is given.

        Returns y, of hidden's shape, or ``(y, state)`` with ``return_state``: the last kernel_size-1 positions of B ⊙ x, for `step`
        or a further call. seq_idx and cu_seqlens are those of `causeway.causal_conv1d_fn`.
        """
        if type(return_state) is not bool:
            return_state = flag("return_state", return_state)
        conv = self.conv
        _expect_positions("hidden", hidden, _ROWS, self._channels())
        result = _with_state(
            "initial_states",
            causal_conv1d_gated_packed,
            self.in_proj(hidden).transpose(1, 2),
            conv._filters(),
            conv.bias,
            seq_idx,
            state,
            return_state,
            conv.activation,
            order=self.order,
            cu_seqlens=cu_seqlens,
            round_products=self.round_products,
        )
        y, *states = result if return_state else (result,)
        y = self.out_proj(y.transpose(1, 2))
        return (y, *states) if return_state else y

    def step(self, hidden, state, *, cache_seqlens=None, conv_state_indices=None):
        """One new position hidden (batch, dim), or several (batch, n, dim); changes state. No gradients, those of the projections
        included: the result has no graph, whether gradients are enabled or not. To train through a position, call the block.

        The other arguments are those of `causeway.causal_conv1d_update`.
        """
        _expect_positions("hidden", hidden, _STEPS, self._channels())
        conv, packed = self.conv, self.in_proj(hidden)
        y = _with_state(
            "conv_state",
            causal_conv1d_gated_update,
            *parts(packed.transpose(1, 2) if packed.ndim == 3 else packed, self.order),
            state,
            conv._filters(),
            conv.bias,
            conv.activation,
            cache_seqlens,
            conv_state_indices,
            round_products=self.round_products,
        )
        # Autograd has nothing of what comes before, and would give the last projection a gradient alone.
        return self.out_proj(y.transpose(1, 2) if y.ndim == 3 else y).detach()

    def new_state(self, batch, *, device=None, dtype=None):
        """The state before any position: zeros (batch, dim, kernel_size-1), of the weights' device and dtype."""
        return self.conv.new_state(batch, device=device, dtype=dtype)

    def _channels(self):
        """What the first projection takes, unless it is another module now, which does not say."""
        return getattr(self.in_proj, "in_features", None)

    reset_state = staticmethod(CausalConv1d.reset_state)

    def extra_repr(self):
        """For ``print``."""
        words = [f"order={self.order!r}"] if self.order != "BCx" else []
        return ", ".join(words + ["round_products=True"] * bool(self.round_products))


class QKVShortConv(torch.nn.Module):
    """Query, key and value of a gated delta net from one projection: short convolution, SiLU, and L2 norms of the heads of q and k.

    The weight, ``conv.weight`` (channels, 1, kernel_size) over the channels of q, k and v, has the shape of the ``conv1d.weight`` of
    transformers' Qwen3.5 and Qwen3-Next. (The projection of the latter goes by groups of heads, and has to be put in this order first.)
    Hooks that are registered on ``conv`` do not run, as in `GatedShortConv`; register them on this module.

    Parameters
    ----------
    sizes : (int, int, int)
        Channels of q, k and v.
    head_dim : int, or one each for q, k and v
    kernel_size : int, 1 to 256
    l2norm, scale, eps, activation : as in `causeway.causal_conv1d_qkv`
    bias : bool
    device, dtype : as for ``torch.nn.Conv1d``

    Examples
    --------
    >>> conv = causeway.nn.QKVShortConv((64, 64, 128), 32, 4)
    >>> q, k, v = conv(torch.randn(2, 128, 256))              # (batch, seqlen, channels)
    >>> v.shape
    torch.Size([2, 128, 4, 32])

    Decoding goes on where a prompt has ended:

    >>> with torch.no_grad():
    ...     (q, k, v), state = conv(torch.randn(2, 128, 256), return_state=True)
    ...     q, k, v = conv.step(torch.randn(2, 1, 256), state)  # changes state
    """

    def __init__(
        self,
        sizes,
        head_dim,
        kernel_size,
        *,
        l2norm=("q", "k"),
        scale=1.0,
        eps=1e-6,
        activation="silu",
        bias=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self.sizes = three_sizes(sizes)
        options = options_of(head_dim, l2norm, scale, eps, activation)
        for at, (size, (dim, _)) in enumerate(zip(self.sizes, options)):
            if size % dim:
                raise ValueError(expected_heads(at, size, dim, True))
        self.conv = CausalConv1d(sum(sizes), kernel_size, bias=bias, activation=activation, device=device, dtype=dtype)
        self.options = {"sizes": self.sizes, "head_dim": head_dim, "l2norm": tuple(l2norm), "scale": scale, "eps": eps}

    def forward(self, packed, state=None, *, seq_idx=None, cu_seqlens=None, return_state=False):
        """q, k and v, each (batch, seqlen, heads, head_dim), of packed (batch, seqlen, channels), from a state on if one is given.

        With ``return_state``, ``((q, k, v), state)``: the last kernel_size-1 positions of packed, for `step` or a further call.
        """
        if type(return_state) is not bool:
            return_state = flag("return_state", return_state)
        conv = self.conv
        _expect_positions("packed", packed, _ROWS, conv.in_channels)
        return _with_state(
            "initial_states",
            causal_conv1d_qkv,
            packed.transpose(1, 2),
            conv._filters(),
            conv.bias,
            seq_idx,
            state,
            return_state,
            activation=conv.activation,
            cu_seqlens=cu_seqlens,
            **self.options,
        )

    def step(self, packed, state, *, cache_seqlens=None, conv_state_indices=None):
        """q, k and v of a new position packed (batch, channels), or of several (batch, n, channels); changes state. No gradients.

        The other arguments are those of `causeway.causal_conv1d_update`.
        """
        conv = self.conv
        _expect_positions("packed", packed, _STEPS, conv.in_channels)
        return _with_state(
            "conv_state",
            causal_conv1d_qkv_update,
            packed.transpose(1, 2) if packed.ndim == 3 else packed,
            state,
            conv._filters(),
            conv.bias,
            activation=conv.activation,
            cache_seqlens=cache_seqlens,
            conv_state_indices=conv_state_indices,
            **self.options,
        )

    def new_state(self, batch, *, device=None, dtype=None):
        """The state before any position: zeros (batch, channels, kernel_size-1), of the weights' device and dtype."""
        return self.conv.new_state(batch, device=device, dtype=dtype)

    reset_state = staticmethod(CausalConv1d.reset_state)

    def extra_repr(self):
        """For ``print``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
