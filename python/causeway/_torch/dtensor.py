"""How the operations split over a device mesh: strategies for `torch.distributed.tensor.DTensor`.

Channels do not mix and neither do batches, so either axis of x may be sharded: channels together with weight's rows, a
batch with a weight that every rank has whole, whose gradient is then a sum over the ranks. A sharded sequence has to
pass positions from rank to rank, which `causeway.parallel` does.

PyTorch asks for a strategy per mesh axis. Loaded when the first DTensor comes: it imports torch.distributed.
"""

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

try:
    from torch.distributed.tensor.experimental import register_sharding
except ImportError as error:
    raise NotImplementedError(
        "x is a DTensor, and this PyTorch cannot be told how an operator is sharded: expected one with "
        "torch.distributed.tensor.experimental.register_sharding; call with x.to_local() instead"
    ) from error

from causeway._torch import operators

# Placements of a mesh axis. For each kind of argument: whole, by channels, by batch.
_WHOLE, _CHANNELS, _BATCH = range(3)
_ACTIVATIONS = (Replicate(), Shard(1), Shard(0))
_PARAMETERS = (Replicate(), Shard(0), Replicate())
_INDICES = (Replicate(), Replicate(), Shard(0))
_GRADIENTS = (Replicate(), Shard(0), Partial())


def _rows(kinds, tensors, how):
    """The placements of some tensors, None for those that are not there."""
    return [None if tensor is None else kind[how] for kind, tensor in zip(kinds, tensors)]


def _ways(cu_seqlens):
    """A packed batch is one sequence to its rank, since boundaries count all of its positions."""
    return (_WHOLE, _CHANNELS) if cu_seqlens is not None else (_WHOLE, _CHANNELS, _BATCH)


def _present(kind, is_there, how):
    """An output without elements, which stands for one that was not asked for, is the same on every rank."""
    return kind[how] if is_there else Replicate()


@register_sharding(operators.forward)
def _forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states):
    kinds = _ACTIVATIONS, _PARAMETERS, _PARAMETERS, _ACTIVATIONS, _INDICES, _INDICES, _ACTIVATIONS
    tensors = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual
    return [
        (
            [_ACTIVATIONS[how], _present(_ACTIVATIONS, wants_states, how)],
            [*_rows(kinds, tensors, how), None, None],
        )
        for how in _ways(cu_seqlens)
    ]


@register_sharding(operators.backward)
def _backward(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu):
    kinds = (
        _ACTIVATIONS, _PARAMETERS, _PARAMETERS, _ACTIVATIONS, _ACTIVATIONS, _INDICES, _INDICES, _ACTIVATIONS,
    )  # fmt: skip
    tensors = x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states
    return [
        (
            [
                _ACTIVATIONS[how],
                _GRADIENTS[how],
                _present(_GRADIENTS, bias is not None, how),
                _present(_ACTIVATIONS, initial_states is not None, how),
            ],
            [*_rows(kinds, tensors, how), None],
        )
        for how in _ways(cu_seqlens)
    ]


@register_sharding(operators.varlen_states)
def _varlen_states(x, cu_seqlens, state_len):
    whole = ([Replicate()], [Replicate(), Replicate(), None])
    return [whole, ([Shard(1)], [Shard(1), Replicate(), None])]


@register_sharding(operators.gemm)
def _gemm(a, b, algorithm):
    # Not along K: partial sums would be rounded to 16 bits before they are added.
    whole = ([Replicate()], [Replicate(), Replicate(), None])
    return [whole, ([Shard(0)], [Shard(0), Replicate(), None]), ([Shard(1)], [Replicate(), Shard(1), None])]


def replicated(tensor, x):
    """Plain indices beside a DTensor are those of every rank."""
    if tensor is None or isinstance(tensor, DTensor) or not isinstance(x, DTensor):
        return tensor
    whole = [Replicate()] * x.device_mesh.ndim
    return DTensor.from_local(tensor, x.device_mesh, whole, run_check=False)


def _how(placement, has_indices):
    """The way of a mesh axis that a state's placement fixes, since it is changed where it lies."""
    if placement == Replicate():
        return _WHOLE
    if placement == Shard(1):
        return _CHANNELS
    if placement == Shard(0) and not has_indices:
        return _BATCH
    rows = ", or conv_state_indices to be None for a state sharded by rows" if placement == Shard(0) else ""
    raise ValueError(f"conv_state has placement {placement}: expected Replicate(), Shard(1) or Shard(0){rows}")


def update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices):
    """`operators.update` of each rank's part, with everything brought to where conv_state's parts are."""
    if not isinstance(conv_state, DTensor):
        raise TypeError("conv_state is a torch.Tensor beside a DTensor: expected a DTensor, as it is changed in place")
    mesh = conv_state.device_mesh
    ways = [_how(placement, conv_state_indices is not None) for placement in conv_state.placements]

    def local(tensor, kind):
        if tensor is None:
            return None
        return replicated(tensor, conv_state).redistribute(mesh, [kind[how] for how in ways]).to_local()

    out = operators.update(
        local(x, _ACTIVATIONS),
        conv_state.to_local(),
        local(weight, _PARAMETERS),
        local(bias, _PARAMETERS),
        silu,
        local(cache_seqlens, _INDICES),
        local(conv_state_indices, _INDICES),
    )
    placements = [_ACTIVATIONS[how] for how in ways]
    return DTensor.from_local(out, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())
