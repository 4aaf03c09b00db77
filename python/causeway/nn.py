"""Modules of PyTorch's."""

import torch

from causeway import causal_conv1d_fn, causal_conv1d_update
from causeway._activation import is_silu
from causeway._integer import integer

__all__ = ["CausalConv1d"]


def _name_of(argument):
    """Which argument of CausalConv1d one without a name was meant for."""
    return "bias" if isinstance(argument, bool) else "activation"


class CausalConv1d(torch.nn.Conv1d):
    """A causal depthwise convolution with the parameters of ``torch.nn.Conv1d``, and a step for decoding.

    Output position t reads the input positions t-(kernel_size-1) to t. The parameters have the names and shapes of
    ``Conv1d(channels, channels, kernel_size, groups=channels)``, weight ``(channels, 1, kernel_size)`` and bias
    ``(channels,)``, so checkpoints of either load into the other.

    Parameters
    ----------
    channels : int
    kernel_size : int, 1 to 256, or a tuple of one
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
            raise TypeError(
                f"CausalConv1d has {others[0]!r} as its third argument: expected channels and kernel_size alone, and "
                f"the others by name; pass {_name_of(others[0])}={others[0]!r}"
            )
        channels = integer("channels", channels, 1)
        # As torch.nn.Conv1d keeps it, and so as it comes from one.
        if isinstance(kernel_size, tuple) and len(kernel_size) == 1:
            (kernel_size,) = kernel_size
        kernel_size = integer("kernel_size", kernel_size, 1, 256)
        is_silu(activation)
        super().__init__(
            channels, channels, kernel_size, groups=channels, bias=bias, device=device, dtype=dtype
        )
        self.activation = activation

    def forward(self, x, state=None, *, seq_idx=None, cu_seqlens=None, residual=None, return_state=False):
        """The convolution of x (batch, channels, seqlen), from a state on if one is given.

        Returns y, or ``(y, state)`` with ``return_state``: the last kernel_size-1 positions, for `step` or a further
        call. The other arguments are those of `causeway.causal_conv1d_fn`.
        """
        return causal_conv1d_fn(
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
        weight = self.weight.squeeze(1)
        return causal_conv1d_update(
            x, state, weight, self.bias, self.activation, cache_seqlens, conv_state_indices
        )

    def new_state(self, batch, *, device=None, dtype=None):
        """The state before any position: zeros (batch, channels, kernel_size-1), of the weight's device and dtype."""
        shape = (integer("batch", batch, 0), self.in_channels, self.kernel_size[0] - 1)
        return self.weight.new_zeros(shape, device=device, dtype=dtype).detach()

    @staticmethod
    def reset_state(state, rows=None):
        """Puts a state, or some of its rows, back to before any position, in place."""
        if rows is None:
            state.zero_()
        else:
            state[rows] = 0
        return state

    def extra_repr(self):
        """For ``print``."""
        parts = [f"{self.in_channels}, kernel_size={self.kernel_size[0]}"]
        if self.bias is None:
            parts.append("bias=False")
        if self.activation is not None:
            parts.append(f"activation={self.activation!r}")
        return ", ".join(parts)
