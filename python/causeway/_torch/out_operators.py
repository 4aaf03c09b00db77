"""The kernels with all outputs given, as operators that say what they write: `causeway.kernels` under a compiler.

Eager calls of plain tensors go to the extension straight. Everything that wants to see a call before it runs gets one of
these instead, whose schema marks what is changed in place; fake and meta tensors have no values to change.
"""

import torch

from causeway import _native
from causeway._torch import eager
from causeway._torch.eager import expect_tensors, is_compiling, require_one_device
from causeway._torch.operators import define

_increment_version = torch.autograd.graph.increment_version


def is_watched(*tensors):
    """True for tensors of PyTorch's, the first of which is x, in a call that somebody wants to see."""
    if is_compiling():
        return True
    return isinstance(tensors[0], torch.Tensor) and not eager.is_direct(*tensors)


def _writes(kernel, *written):
    """A kernel that tells autograd which of its arguments have changed."""

    def call(*arguments):
        kernel(*arguments)
        for at in written:
            tensor = arguments[at]
            if tensor is not None and not tensor.is_inference():
                _increment_version(tensor)

    return call


def _fake(schema):
    """What a call without values does: it checks that the tensors could meet in a kernel."""
    names = [argument.split()[-1] for argument in schema[schema.index("(") + 1 : schema.rindex(") ->")].split(", ")]

    def check(x, *others):
        tensors = {name: value for name, value in zip(names[1:], others) if isinstance(value, torch.Tensor)}
        require_one_device(x, **tensors)

    return check


def _define(schema, kernel, *written):
    return define(schema, _writes(kernel, *written), _fake(schema))


_INPUTS = "Tensor? initial_states, Tensor? seq_idx, Tensor? cu_seqlens"
forward = _define(
    f"causal_conv1d_forward_out(Tensor x, Tensor weight, Tensor? bias, {_INPUTS}, Tensor? residual, bool silu, "
    "Tensor(a!) y, Tensor(b!)? final_states) -> ()",
    _native.causal_conv1d_forward,
    8,
    9,
)
backward = _define(
    f"causal_conv1d_backward_out(Tensor x, Tensor weight, Tensor? bias, Tensor dy, {_INPUTS}, Tensor? dfinal_states, "
    "bool silu, Tensor(a!) dx, Tensor(b!) dweight, Tensor(c!)? dbias, Tensor(d!)? dinitial_states) -> ()",
    _native.causal_conv1d_backward,
    9,
    10,
    11,
    12,
)
update = _define(
    "causal_conv1d_update_out(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias, bool silu, "
    "Tensor? cache_seqlens, Tensor? conv_state_indices, Tensor(b!) out) -> ()",
    _native.causal_conv1d_update,
    1,
    7,
)
varlen_states = _define(
    "causal_conv1d_varlen_states_out(Tensor x, Tensor cu_seqlens, Tensor(a!) states) -> ()",
    _native.causal_conv1d_varlen_states,
    2,
)
