"""Eager calls of parts of packed tensors, without views of PyTorch's: these would take the host longer than everything else does."""

import torch

from causeway import _native
from causeway._torch.eager import is_dynamo_compiling


# What the extension raises for arguments.
_REFUSED = TypeError, ValueError, NotImplementedError, RuntimeError


def _after(count, place):
    """The place of a part, so many tensors further on."""
    return (place[0] + count, *place[1:]) if type(place) is tuple else place + count


def _described(operation, option, places):
    """A call: where each input is read, and each output written."""
    return option, *([places.get(tensor.name) for tensor in tensors] for tensors in (operation.inputs, operation.outputs))


def cached(function, *arguments):
    """What a function with a cache gives; None for arguments that cannot be looked up, or that it refuses, as whoever is asked next does."""
    try:
        return function(*arguments)
    except (TypeError, ValueError, NotImplementedError):
        return None


class PackedCalls:
    """One to three calls of a convolution, launched together, with one result each.

    A call is its option and, by the names of the operation's tensors, the parts that they are. A part of the tensors that a call is given is
    the number of one; or that, an axis, an index and the sizes of the parts of that axis, or how many equal ones it has. A result is
    ``"new"``, like x, or ``("heads", head_dim)``.

    `gradients` is called where the backward pass needs the dispatcher, with what was given and the gradients of the results.
    """

    def __init__(self, name, calls, gradients):
        forward, backward = _native.causal_conv1d_forward, _native.causal_conv1d_backward
        backward_calls = []
        for index, (option, places) in enumerate(calls):
            dy = index if places["y"] == "new" else (index, "heads")
            known = {name: _after(len(calls), place) for name, place in places.items() if name != "y"}
            outputs = {f"d{name}": place for name, place in places.items()}
            backward_calls.append(_described(backward, option, {**known, **outputs, "dy": dy}))
        described = [_described(forward, option, places) for option, places in calls]
        kernels = _native.Packed(forward, described, (backward, backward_calls))

        def of_kernels(ctx, *given):
            # Read once: checkpointing without reentrance refuses a second read.
            saved = ctx.saved_tensors
            if not is_dynamo_compiling() and (found := kernels.backward(saved, given)) is not None:
                return found
            return gradients(saved, given)

        # Errors and graphs of PyTorch's show its name.
        function = type(name, (torch.autograd.Function,), {
            "forward": staticmethod(kernels.forward), "backward": staticmethod(of_kernels),
        })  # fmt: skip
        # `Function.apply` less its checks for torch.func, which a direct call is not under.
        self._record, self._apply = kernels.record, super(torch.autograd.Function, function).apply

    def __call__(self, inputs, is_cast=False):
        """The results; None for a call that needs the dispatcher, or that only other functions have words for."""
        try:
            found = self._record(inputs, is_cast)
            # How many inputs take part: PyTorch takes time for each argument.
            return self._apply(*inputs[:found]) if type(found) is int else found
        except _REFUSED:
            # What is wrong is named by the function that is called with these arguments, not by those of its parts.
            return None


class PackedSteps:
    """The same of updates, which have no gradients."""

    def __init__(self, calls):
        update = _native.causal_conv1d_update
        self._record = _native.Packed(update, [_described(update, option, places) for option, places in calls]).record

    def __call__(self, inputs, is_cast=False):
        """As `PackedCalls.__call__`."""
        try:
            found = self._record(inputs, is_cast)
            return None if type(found) is int else found
        except _REFUSED:
            return None
