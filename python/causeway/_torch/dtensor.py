"""How the operations split over a device mesh: strategies for `torch.distributed.tensor.DTensor`.

Channels do not mix and neither do batches, so either axis of x may be sharded: channels together with weight's rows, a
batch with a weight that every rank has whole, whose gradient is then a sum over the ranks. A sharded sequence has to
pass positions from rank to rank, which `causeway.parallel` does.

PyTorch asks for a strategy per mesh axis. Loaded when the first DTensor comes: it imports torch.distributed.
"""

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

try:
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    _kept_calls = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
except (AttributeError, ImportError) as error:
    raise NotImplementedError(
        "x is a DTensor, and this PyTorch cannot be told how an operator is sharded: expected one with "
        "torch.distributed.tensor.experimental.register_sharding; call with x.to_local() instead"
    ) from error

from causeway import _native
from causeway._torch import operators

# Ways of a mesh axis: everything whole, by channels, by batch.
_WHOLE, _CHANNELS, _BATCH = None, "dim", "batch"


def _placement(tensor, way):
    """Where a tensor of the table lies: by the axis that is split, if it has it; else whole, or as parts of a sum that is a result."""
    if way in tensor.axes:
        return Shard(tensor.axes.index(way))
    return Partial() if way == _BATCH and tensor.role == "output" else Replicate()


def _strategies(operator):
    """What PyTorch asks of an operator: for each way, the placements of its results and of its arguments."""

    def strategies(*values):
        arguments = list(zip(operator.arguments, values))
        # A packed batch is one sequence to its rank, since boundaries count all of its positions.
        is_packed = any(a.name == "cu_seqlens" and value is not None for a, value in arguments)
        found = []
        for way in (_WHOLE, _CHANNELS) if is_packed else (_WHOLE, _CHANNELS, _BATCH):
            # An output without elements, which stands for one that was not asked for, is the same on every rank.
            results = [
                _placement(result, way) if is_there else Replicate()
                for result, is_there in zip(operator.results, operator.there(values))
            ]
            found.append((results, [
                None if a.tensor is None or value is None else _placement(a.tensor, way)
                for a, value in arguments
            ]))  # fmt: skip
        return found

    return strategies


register_sharding(operators.forward.overload)(_strategies(operators.forward))
register_sharding(operators.backward.overload)(_strategies(operators.backward))


@register_sharding(operators.varlen_states)
def _varlen_states(x, cu_seqlens, state_len):
    whole = ([Replicate()], [Replicate(), Replicate(), None])
    return [whole, ([Shard(1)], [Shard(1), Replicate(), None])]


@register_sharding(operators.gemm.overload)
def _gemm(a, b, algorithm):
    # Not along K: partial sums would be rounded to 16 bits before they are added.
    whole = ([Replicate()], [Replicate(), Replicate(), None])
    return [whole, ([Shard(0)], [Shard(0), Replicate(), None]), ([Shard(1)], [Replicate(), Shard(1), None])]


def _keep_apart():
    """PyTorch keeps what it has found for a call, and tells calls apart by tensors and by what stands behind the first int, if there is one. A
    call with final states is not the same as one without, nor one with a bias the same as one with a residual: all arguments count."""
    for overload in (operators.forward.overload, operators.backward.overload, operators.varlen_states, operators.gemm.overload):
        _kept_calls[overload] = RuntimeSchemaInfo(0, needs_pytree=True)


_keep_apart()


def replicated(tensor, x):
    """Plain indices beside a DTensor are those of every rank."""
    if tensor is None or isinstance(tensor, DTensor) or not isinstance(x, DTensor):
        return tensor
    whole = [Replicate()] * x.device_mesh.ndim
    return DTensor.from_local(tensor, x.device_mesh, whole, run_check=False)


def require_distributed(table, inputs, final_states_out=None):
    """Beside a DTensor, all but indices are. A plain tensor could be a rank's part, or whole."""
    given = *zip(table.names, inputs, table.is_index), ("final_states_out", final_states_out, False)
    for name, tensor, is_index in given:
        if tensor is not None and not isinstance(tensor, DTensor) and not is_index:
            raise TypeError(
                f"{name} is a torch.Tensor, but others are DTensors: expected a DTensor; pass "
                f"DTensor.from_local({name}, mesh, placements)"
            )


def _way(placement, has_indices):
    """The way of a mesh axis that a state's placement fixes, since it is changed where it lies."""
    if placement == Replicate():
        return _WHOLE
    if placement == Shard(1):
        return _CHANNELS
    if placement == Shard(0) and not has_indices:
        return _BATCH
    rows = ", or conv_state_indices to be None for a state sharded by rows" if placement == Shard(0) else ""
    raise ValueError(f"conv_state has placement {placement}: expected Replicate(), Shard(1) or Shard(0){rows}")


def update(inputs, option, conv_state):
    """The operator `update` of each rank's part, with everything brought to where conv_state's parts are."""
    if not isinstance(conv_state, DTensor):
        raise TypeError("conv_state is a torch.Tensor, but others are DTensors: expected a DTensor, as it is changed in place")
    mesh, x, tensors = conv_state.device_mesh, inputs[0], _native.causal_conv1d_update.inputs
    has_indices = any(t is not None and a.name == "conv_state_indices" for t, a in zip(inputs, tensors))
    ways = [_way(placement, has_indices) for placement in conv_state.placements]

    def local(tensor, argument):
        if tensor is None:
            return None
        placements = [_placement(argument, way) for way in ways]
        return replicated(tensor, conv_state).redistribute(mesh, placements).to_local()

    parts = tuple(map(local, inputs, tensors))
    out = operators.update(parts, option, (conv_state.to_local(),))
    placements = [_placement(tensors[0], way) for way in ways]
    return DTensor.from_local(out, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())
