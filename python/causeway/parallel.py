"""Sequence parallelism: every rank of a process group holds one slice of the sequence.

A convolution of width w reads w-1 positions to the left, so each rank needs the last w-1 positions before its slice (a
*halo*), and nothing else. The halo is the initial state of an ordinary call, and the final state of the rank before; its gradient
travels back:

    rank 0   [ initial_states | x_0 ]
    rank 1           [ end of x_0 | x_1 ]              forward: halos go right
    rank 2                   [ end of x_1 | x_2 ]      backward: their gradients go left

Each call sends (batch, dim, w-1) elements to one neighbour, whatever the length. Between GPUs of one machine, messages go through
memory that both see, by one launch on either side; elsewhere, through the process group.

The kernel of a large slice does not wait for them: while they travel, it computes without the halo, and then the first w-1 outputs
are computed again, or, in backward, the gradients of the w-1 positions at either end. A small slice waits: the launches would take the host
longer than the halo travels. So do one of fewer than 2 (w-1) positions, which may have to pass on a part of its halo, and packed
sequences with states of their own.

With `seq_idx`, the halo brings its indices, and the first outputs are computed again in every slice: they see the halo wherever
its indices are theirs. The sequences of `cu_seqlens` are told apart at the ends of a slice by numbers that rise, as indices, which the
device makes of the boundaries; those that have states are a packed batch on every rank, most of them empty. The host reads neither.
"""

import torch

from causeway import causal_conv1d_fn as _convolve
from causeway import _native
from causeway._activation import is_silu
from causeway._flag import flag
from causeway._torch import slices
from causeway._torch.eager import autocast_dtype, cast, expect_tensors, is_compiling, is_direct, require_one_device, resolved
from causeway._torch.ring import Ring as _Ring
from causeway._torch.tables import Table
from causeway._torch.twice import refuse

__all__ = ["causal_conv1d_fn"]


def __dir__():
    """The public names."""
    return __all__


_NAME = "causeway.parallel.causal_conv1d_fn"
_TABLE = Table(_native.causal_conv1d_forward)


class ParallelCausalConv1d(torch.autograd.Function):
    """The call of one rank."""

    @staticmethod
    def forward(ctx, part, places, silu, wants_final, x, weight, bias, given, residual):
        weights = slices.Weights(weight, bias, silu)
        y, final_states, halo, index = part.forward(weights, x, *places, given, residual, wants_final)
        ctx.part, ctx.silu = part, silu
        ctx.save_for_backward(x, weight, bias, given, halo, index)
        ctx.set_materialize_grads(False)
        return y, final_states

    @staticmethod
    def backward(ctx, dy, dfinal_states):
        # What refuses second derivatives takes the host as long as a kernel.
        found = _Gradients.apply if torch.is_grad_enabled() else _gradients
        return found(ctx, dy, dfinal_states, *ctx.saved_tensors)


class _Gradients(torch.autograd.Function):
    """The backward pass where its results may be differentiated, which depend on the tensors that it reads."""

    @staticmethod
    def forward(ctx, call, dy, dfinal_states, *saved):
        return _gradients(call, dy, dfinal_states, *saved)

    @staticmethod
    def backward(ctx, *gradients):
        """Always an error."""
        refuse(_NAME)


# Without the checks for torch.func: a direct call is not inside of it.
_apply = super(torch.autograd.Function, ParallelCausalConv1d).apply


def _gradients(ctx, dy, dfinal_states, x, weight, bias, given, halo, index):
    """The gradients of the arguments of `ParallelCausalConv1d`."""
    *_, x_needs_grad, _, _, given_needs_grad, residual_needs_grad = ctx.needs_input_grad
    exchanges = x_needs_grad or given_needs_grad
    dy = torch.zeros_like(x) if dy is None else resolved(dy)
    weights = slices.Weights(weight, bias, ctx.silu)
    gradients = ctx.part.backward(weights, x, given, halo, index, dy, resolved(dfinal_states), exchanges)
    return None, None, None, None, *gradients, dy if residual_needs_grad else None


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    activation=None,
    *,
    cu_seqlens=None,
    residual=None,
    group=None,
):
    """`causeway.causal_conv1d_fn` of a sequence that is cut along seqlen over the ranks of a process group.

    Parameters
    ----------
    x : (batch, dim, seqlen of this rank)
        Slices follow each other in the order of the ranks, and need not be equally long.
    weight, bias, activation : as for `causeway.causal_conv1d_fn`, the same on every rank
        Their gradients are those of this rank's slice: sum them over the ranks, as data parallelism does.
    seq_idx, residual : of this rank's slice
    initial_states : (batch, dim, width-1), on every rank, or on none
        Before the whole sequence. With cu_seqlens, (n, dim, width-1), before every sequence. Its gradient is on the rank
        where the sequence begins, and zero elsewhere. It requires a gradient on all ranks or on none.
    cu_seqlens : (n+1,), the boundaries in the whole sequence, the same on every rank
        Those on a CPU are checked. On a GPU they are not read back: they end with the length of all slices together.
    return_final_states : bool
        Return ``(y, final_states)``. A sequence's final states are on the rank where it ends, and zero elsewhere: their
        sum over the ranks is the whole. Zeros have no graph, so y takes part in the loss of every rank, if only times 0.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them by default. Every rank calls, forward and backward alike,
        and x requires a gradient on all of them or on none.

    Returns
    -------
    y of this rank's slice, or ``(y, final_states)``.

    Raises
    ------
    As `causeway.causal_conv1d_fn`; NotImplementedError for seq_idx together with cu_seqlens, and for tensors of other classes. An
    error that not all ranks have leaves the others waiting: the group is of no use then.

    Examples
    --------
    >>> part = x.tensor_split(world_size, dim=2)[rank].contiguous().requires_grad_()
    >>> y = causeway.parallel.causal_conv1d_fn(part, weight, bias, activation="silu", group=group)
    """
    if type(return_final_states) is not bool:
        return_final_states = flag("return_final_states", return_final_states)
    inputs = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual
    is_there = x is not None and weight is not None
    is_plain = is_there and not is_compiling() and _native.bypasses_dispatcher(inputs, True)
    if not is_plain:
        expect_tensors(_TABLE, *inputs)
    ring = _Ring(group)
    if ring.size == 1:
        return _convolve(
            x,
            weight,
            bias,
            seq_idx,
            initial_states,
            return_final_states,
            None,
            activation,
            cu_seqlens=cu_seqlens,
            residual=residual,
        )
    return _over_ranks(ring, inputs, is_plain, is_silu(activation), return_final_states)


# Nothing of it is of use to a compiler: messages are not traced.
@torch.compiler.disable
def _over_ranks(ring, inputs, is_plain, silu, return_final_states):
    if not is_plain and not is_direct(*inputs):
        raise NotImplementedError(
            "the convolution over ranks takes plain tensors, outside of torch.func, dispatch modes and forward-mode gradients"
        )
    x, weight, bias, given, seq_idx, cu_seqlens, residual = inputs
    if cu_seqlens is not None and seq_idx is not None:
        raise NotImplementedError(
            "seq_idx and cu_seqlens cannot be given together across ranks: use one of them"
        )
    if (dtype := autocast_dtype(x)) is not None:
        x, given, residual = (cast(tensor, dtype) for tensor in (x, given, residual))
    # What one device's call raises for shapes, dtypes and devices, all ranks raise before one waits for another.
    inputs = x, weight, bias, given, seq_idx, cu_seqlens, residual
    require_one_device({name: tensor for name, tensor in zip(_TABLE.names, inputs) if tensor is not None})
    y = _native.causal_conv1d_forward.empty(inputs, (..., None))
    count, has_states = weight.shape[1] - 1, given is not None
    if count:
        message = [((*x.shape[:2], count), x.dtype)]
        ring.prepare(x.device, *message, *([] if seq_idx is None else [((x.shape[0], count), seq_idx.dtype)]))
    here = None if cu_seqlens is None else slices.boundaries_here(ring, x, cu_seqlens)
    if not count:
        part = slices.Alone(x, seq_idx, here)
    elif cu_seqlens is not None:
        if has_states or return_final_states:
            part = slices.Packed(ring, x, count, here)
        else:
            part = slices.of_sequences(ring, x, count, here)
    elif seq_idx is not None:
        part = slices.Indexed(ring, x, count, seq_idx, has_states)
    else:
        part = slices.of_rows(ring, x, count)
    # Only the last rank sees the end of a row.
    wants_final = return_final_states and (cu_seqlens is not None or ring.next is None)
    # What the graph keeps must not hold y, which holds the graph.
    y, final_states = _apply(part, [y], silu, wants_final, x, weight, bias, given, residual)
    if not return_final_states:
        return y
    return y, final_states if wants_final else x.new_zeros(x.shape[0], x.shape[1], count)
