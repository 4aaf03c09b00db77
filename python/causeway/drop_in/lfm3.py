"""LFM3 of `transformers` with Causeway's convolution.

Its width is 7, which the kernels that transformers looks for do not serve, so its module has the convolution in plain
PyTorch and asks for no package. These functions take the place of that module's own.
"""

import importlib

from torch import cat

import causeway
from causeway._torch.eager import needs_gradient
from causeway.drop_in import Removable

MODULE = "transformers.models.lfm3.modeling_lfm3"


def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, seq_idx=None, **kwargs):
    """The convolution of a prompt or a packed batch. The keywords of the model's other parts mean nothing here."""
    return causeway.causal_conv1d_fn(hidden_states, weight, bias, seq_idx, activation=activation)


def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
    """One step of decoding, with the cache's state changed in place."""
    if hidden_states.ndim == 3 and needs_gradient(hidden_states, conv_state, weight, bias):
        # An update keeps nothing for a gradient.
        columns, before = conv_state.shape[-1], weight.shape[-1] - 1
        initial_states = conv_state[..., columns - before :].to(hidden_states.dtype, copy=True)
        y = causeway.causal_conv1d_fn(hidden_states, weight, bias, None, initial_states, activation=activation)
        # With its graph, as the module's own function has it: a later step may be trained through the cache.
        conv_state.copy_(cat([conv_state, hidden_states.to(conv_state.dtype)], -1)[..., -columns:])
        return y
    return causeway.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


class Replaced(Removable):
    """What `install` has done. `remove` undoes it, and so does the end of a ``with`` block."""

    def __init__(self, module, functions):
        missing = [name for name in functions if not callable(getattr(module, name, None))]
        if missing:
            raise RuntimeError(
                f"{module.__name__} has no {' and no '.join(missing)}: expected that of transformers 5.23; another "
                "version may take causal_conv1d by itself, see causeway.install_causal_conv1d"
            )
        self._module, self._functions = module, functions
        self._before = {name: getattr(module, name) for name in functions}
        vars(module).update(functions)

    def remove(self):
        """Gives the module its own functions back. A second time does nothing."""
        for name, function in self._functions.items():
            if getattr(self._module, name) is function:
                setattr(self._module, name, self._before[name])


def install():
    """See `causeway.install_lfm3`."""
    functions = {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": causal_conv1d_update}
    return Replaced(importlib.import_module(MODULE), functions)
