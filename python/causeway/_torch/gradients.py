"""Which gradient of the convolution is found where, as the tables of the operation and of its backward operation say."""

import torch

from causeway import _native
from causeway._torch.tables import pick, picker

# The gradient of what is added to a result is that of the result.
_ADDED = {"residual": "dy"}

_backward = _native.causal_conv1d_backward.run


class Gradients:
    """The gradients of a function with these arguments, inputs of the convolution among others, and with so many of its results.

    d and a name is the gradient of what has that name: of an input, a result of the backward operation; of a result, an input of it.
    """

    def __init__(self, names, count):
        forward, backward = _native.causal_conv1d_forward, _native.causal_conv1d_backward
        reads = [argument.name for argument in backward.inputs]
        given = [f"d{result.name}" for result in forward.outputs[:count]]
        saved = [at for at, name in enumerate(names) if name in reads]
        self._saved = picker(saved, len(names))
        # What the backward operation reads, among what was saved and the gradients of the results. Its last inputs may be missing.
        found = [*(names[at] for at in saved), *given]
        places = [found.index(name) if name in found else len(found) for name in reads]
        while places[-1] == len(found):
            places.pop()
        self._inputs, self._input_places = picker(places, len(found)), tuple(places)
        # The gradients among its results.
        found = [result.name for result in backward.outputs]
        places = [found.index(f"d{name}") if f"d{name}" in found else len(found) for name in names]
        self._results, self._result_places = picker(places, len(found)), tuple(places)
        self._added = [(at, given.index(_ADDED[name])) for at, name in enumerate(names) if name in _ADDED]

    def save(self, ctx, arguments):
        """Keeps what the backward operation reads, and where something was added to a result."""
        ctx.save_for_backward(*self._saved(arguments))
        if self._added:
            ctx.added = [(at, result) for at, result in self._added if arguments[at] is not None]

    def of(self, ctx, given, backward, option):
        """The gradient of each argument, from those of the results, in words that compilers can follow; `backward` is called as the
        extension's operations are."""
        saved, given = self._found(ctx, given)
        results = backward(pick(self._input_places, saved + given), option)
        return self._with_added(ctx, given, pick(self._result_places, results))

    def computed(self, ctx, given, option):
        """The same from the kernels, in a backward pass that nobody watches."""
        saved, given = self._found(ctx, given)
        return self._with_added(ctx, given, self._results(_backward(self._inputs(saved + given), option)))

    def _found(self, ctx, given):
        saved = ctx.saved_tensors
        return saved, (torch.zeros_like(saved[0]), *given[1:]) if given[0] is None else given

    def _with_added(self, ctx, given, gradients):
        if self._added:
            for at, result in ctx.added:
                gradients = *gradients[:at], given[result], *gradients[at + 1 :]
        return gradients
