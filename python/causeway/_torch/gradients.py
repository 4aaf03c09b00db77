"""Which gradient of the convolution is found where, as the tables of the operation and of its backward operation say."""

import torch

from causeway import _native
from causeway._torch.tables import pick, picker

# The gradient of what is added to a result is that of the result.
_ADDED = {"residual": "dy"}


class Gradients:
    """The gradients of a function with these arguments, inputs of the convolution among others, and with so many of its results.

    d and a name is the gradient of what has that name: of an input, a result of the backward operation; of a result, an input of it.
    """

    def __init__(self, names, count):
        forward, backward = _native.causal_conv1d_forward, _native.causal_conv1d_backward
        reads = [argument.name for argument in backward.inputs]
        given = [f"d{result.name}" for result in forward.outputs[:count]]
        saved = [at for at, name in enumerate(names) if name in reads]
        self._saved, self._saved_places = picker(saved, len(names)), saved
        # What the backward operation reads, among what was saved and the gradients of the results. Its last inputs may be missing.
        found = [*(names[at] for at in saved), *given]
        places = [found.index(name) if name in found else len(found) for name in reads]
        while places[-1] == len(found):
            places.pop()
        self._input_places = tuple(places)
        # The gradients among its results.
        found = [result.name for result in backward.outputs]
        places = [found.index(f"d{name}") if f"d{name}" in found else len(found) for name in names]
        self._result_places = tuple(places)
        self._added = [(at, given.index(_ADDED[name])) for at, name in enumerate(names) if name in _ADDED]

    def save(self, ctx, arguments):
        """Keeps what the backward operation reads, and where something was added to a result."""
        ctx.save_for_backward(*self._saved(arguments))
        if self._added:
            ctx.added = [(at, result) for at, result in self._added if arguments[at] is not None]

    def of(self, ctx, saved, given, backward, option):
        """The gradient of each argument, from what was saved and those of the results, in words that compilers can follow; `backward` is
        called as the extension's operations are."""
        if given[0] is None:
            given = torch.zeros_like(saved[0]), *given[1:]
        results = backward(pick(self._input_places, saved + given), option)
        gradients = pick(self._result_places, results)
        if self._added:
            for at, result in ctx.added:
                gradients = *gradients[:at], given[result], *gradients[at + 1 :]
        return gradients

    def recorded(self, option):
        """Both passes of calls with this option, around their kernels."""
        operations = _native.causal_conv1d_forward, _native.causal_conv1d_backward
        return _native.Recorded(
            operations, option, (self._saved_places, self._input_places, self._result_places), self._added
        )
