"""Second derivatives, which there are none of: they are refused in the name of the call that was differentiated."""

import contextlib
import threading

from causeway._torch.eager import is_compiling


class _Now(threading.local):
    """What this thread calls."""

    call = None


_now = _Now()


class _MadeBy:
    def __init__(self, call):
        self.call = call

    def __enter__(self):
        self.before, _now.call = _now.call, self.call

    def __exit__(self, *_):
        _now.call = self.before


def made_by(call):
    """In a `with` statement: operators that are called meanwhile are parts of a call of this name. Compilers have no second derivatives."""
    return contextlib.nullcontext() if is_compiling() else _MadeBy(call)


def current_call():
    """The name that `made_by` was given; None outside of it."""
    return _now.call


def call_of(operator, arguments):
    """The name of the call that an operator with these arguments is made by. A call that is one operator shows itself by them."""
    if _now.call is not None:
        return _now.call
    if operator.value("head_dim", arguments):
        return "causal_conv1d_qkv"
    has_gate = any(operator.value(gate, arguments) is not None for gate in ("B", "C"))
    return "causal_conv1d_gated" if has_gate else "causal_conv1d_fn"


def refuse(call):
    """Raises the error for a gradient of a gradient."""
    raise NotImplementedError(
        f"{call} cannot be differentiated twice: its backward kernel has no gradient; use "
        f"{_INSTEAD.get(call, 'plain PyTorch')} where second derivatives are needed"
    )


_INSTEAD = {
    "causal_conv1d_fn": "causeway.causal_conv1d_ref or plain PyTorch",
    "causal_conv1d_gated": "products with the gates around causeway.causal_conv1d_ref",
    "causal_conv1d_gated_packed": "products with the gates around causeway.causal_conv1d_ref",
    "causal_conv1d_qkv": "causeway.causal_conv1d_ref, and norms in plain PyTorch after it,",
    "causeway.parallel.causal_conv1d_fn": "causeway.causal_conv1d_ref of the whole sequence",
}
