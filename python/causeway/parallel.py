"""Sequence parallelism: every rank of a process group holds one slice of the sequence.

A convolution of width w reads w-1 positions to the left, so each rank needs the last w-1 positions before its slice (a
*halo*), and nothing else. The halo is the initial state of an ordinary call; its gradient, which is the gradient of that
state, travels back:

    rank 0   [ initial_states | x_0 ]
    rank 1           [ end of x_0 | x_1 ]              forward: halos go right
    rank 2                   [ end of x_1 | x_2 ]      backward: their gradients go left

Each call sends (batch, dim, w-1) elements to one neighbour, whatever the length. All ranks compute at the same time,
unless a slice is shorter than w-1: it passes on a part of the halo that it got, and waits for it.
"""

import torch
import torch.distributed as dist

from causeway import causal_conv1d_fn as _convolve

__all__ = ["causal_conv1d_fn"]


# What has been sent and may not have left yet, with its memory.
_pending = []


class _Send(torch.autograd.Function):
    """Sends a tensor to the next rank, and gets its gradient from there. The result is a token without elements.

    `anchor` requires a gradient on either every rank or none, so that both ends of a message agree on whether its
    gradient comes back.
    """

    @staticmethod
    def forward(ctx, tensor, anchor, ring):
        ctx.ring, ctx.shape, ctx.like = ring, tensor.shape, tensor.new_empty(0)
        ring.send(tensor.detach().contiguous(), ring.next)
        return tensor.new_empty(0)

    @staticmethod
    def backward(ctx, token):
        gradient = ctx.like.new_empty(ctx.shape)
        ctx.ring.receive(gradient, ctx.ring.next)
        return gradient, None, None


class _Receive(torch.autograd.Function):
    """Gets a tensor from the rank before, and sends its gradient there."""

    @staticmethod
    def forward(ctx, anchor, like, ring):
        ctx.ring = ring
        halo = like.new_empty(like.shape)
        ring.receive(halo, ring.previous)
        return halo

    @staticmethod
    def backward(ctx, gradient):
        ctx.ring.send(gradient.contiguous(), ctx.ring.previous)
        return None, None, None


class _After(torch.autograd.Function):
    """y, once a token is there: so that the token's backward pass runs."""

    @staticmethod
    def forward(ctx, y, token):
        return y.view_as(y)

    @staticmethod
    def backward(ctx, dy):
        return dy, dy.new_empty(0)


class _Ring:
    """This rank's neighbours."""

    def __init__(self, group):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        neighbour = lambda rank: dist.get_global_rank(group or dist.group.WORLD, rank)  # noqa: E731
        self.previous = neighbour(self.rank - 1) if self.rank > 0 else None
        self.next = neighbour(self.rank + 1) if self.rank + 1 < self.size else None

    def send(self, tensor, rank):
        """Starts to send; the tensor is kept until it has left."""
        _pending[:] = [(work, kept) for work, kept in _pending if not work.is_completed()]
        _pending.append((dist.isend(tensor, rank, group=self.group), tensor))

    def receive(self, tensor, rank):
        """Receives, in the order of the current stream."""
        dist.irecv(tensor, rank, group=self.group).wait()

    def lengths(self, x):
        """The length of every rank's slice."""
        mine = torch.tensor([x.shape[-1]], device=x.device)
        lengths = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(lengths, mine, group=self.group)
        return [int(length) for length in lengths]


class _Slice:
    """The sequences of a packed batch that have a part on this rank."""

    def __init__(self, lengths, rank, ends):
        self.start, total = sum(lengths[:rank]), sum(lengths)
        self.end = self.start + lengths[rank]
        if ends[0] != 0 or ends[-1] != total or any(a > b for a, b in zip(ends, ends[1:])):
            raise ValueError(
                f"cu_seqlens is {ends}: expected boundaries that rise from 0 to {total}, all slices together"
            )
        parts = [
            (row, max(a, self.start), min(b, self.end))
            for row, (a, b) in enumerate(zip(ends, ends[1:]))
            if max(a, self.start) < min(b, self.end)
        ]
        self.rows = [row for row, _, _ in parts]
        self.boundaries = [0] + [b - self.start for _, _, b in parts]
        # Whether the first sequence began on a rank before, and which ones end here.
        self.continues = bool(parts) and ends[self.rows[0]] < self.start
        self.finished = [at for at, row in enumerate(self.rows) if ends[row + 1] <= self.end]
        last = rank + 1 == len(lengths)
        self.empty = [
            row
            for row, (a, b) in enumerate(zip(ends, ends[1:]))
            if a == b and (self.start <= a < self.end or (last and a == total))
        ]


def _tail(before, x, count):
    """The last columns of [before, x]."""
    if x.shape[-1] >= count:
        return x[..., x.shape[-1] - count :]
    return torch.cat([before[..., before.shape[-1] - (count - x.shape[-1]) :], x], dim=-1)


def _exchange(ring, anchor, own_state, tail_of, waits):
    """(halo, token): sends this rank's tail and receives the halo, first whichever needs no waiting."""
    token = None
    if ring.next is not None and not waits:
        token = _Send.apply(tail_of(None), anchor, ring)
    halo = own_state if ring.previous is None else _Receive.apply(anchor, own_state, ring)
    if ring.next is not None and waits:
        token = _Send.apply(tail_of(halo), anchor, ring)
    return halo, token


def _anchor(x, initial_states):
    """What requires a gradient if x or initial_states does."""
    return initial_states if initial_states is not None and initial_states.requires_grad else x


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
        where the sequence begins, and zero elsewhere.
    cu_seqlens : (n+1,), the boundaries in the whole sequence, the same on every rank
        Its values are read on the host, which waits for a GPU.
    return_final_states : bool
        Return ``(y, final_states)``. A sequence's final states are on the rank where it ends, and zero elsewhere: their
        sum over the ranks is the whole.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them by default. Every rank calls, forward and backward alike,
        and x requires a gradient on all of them or on none.

    Returns
    -------
    y of this rank's slice, or ``(y, final_states)``.

    Raises
    ------
    As `causeway.causal_conv1d_fn`; NotImplementedError for seq_idx together with cu_seqlens.

    Examples
    --------
    >>> part = x.tensor_split(world_size, dim=2)[rank].contiguous().requires_grad_()
    >>> y = causeway.parallel.causal_conv1d_fn(part, weight, bias, activation="silu", group=group)
    """
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
    if x.dim() != 3 or weight.dim() != 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}: expected (batch, dim, seqlen) and "
            "(dim, width)"
        )
    if cu_seqlens is not None and seq_idx is not None:
        raise NotImplementedError(
            "seq_idx and cu_seqlens cannot be given together across ranks: use one of them"
        )
    call = _packed if cu_seqlens is not None else _indexed if seq_idx is not None else _plain
    index = cu_seqlens if cu_seqlens is not None else seq_idx
    y, final_states, token = call(ring, x, weight, bias, index, initial_states, activation, residual)
    if token is not None:
        y = _After.apply(y, token)
    if initial_states is not None and initial_states.requires_grad:
        # Where none of them is read, their gradient is zero and not None, for a sum over the ranks.
        y = _After.apply(y, initial_states[..., :0].flatten())
    return (y, final_states) if return_final_states else y


def _zeros(x, weight, rows):
    return x.new_zeros(rows, x.shape[1], weight.shape[1] - 1)


def _plain(ring, x, weight, bias, _, initial_states, activation, residual):
    count = weight.shape[1] - 1
    state = _zeros(x, weight, x.shape[0]) if initial_states is None else initial_states
    waits = x.shape[-1] < count
    halo, token = _exchange(
        ring, _anchor(x, initial_states), state, lambda halo: _tail(halo, x, count), waits
    )
    y, final_states = _convolve(x, weight, bias, None, halo, True, None, activation, residual=residual)
    # Only the last rank sees the end.
    return y, final_states if ring.next is None else torch.zeros_like(final_states), token


def _indexed(ring, x, weight, bias, seq_idx, initial_states, activation, residual):
    """The halo has indices of its own, so it is a part of the sequence, whose outputs are dropped."""
    count = weight.shape[1] - 1
    waits = x.shape[-1] < count
    state = _zeros(x, weight, x.shape[0]) if initial_states is None else initial_states
    halo, token = _exchange(
        ring, _anchor(x, initial_states), state, lambda halo: _tail(halo, x, count), waits
    )
    # Initial states carry the index of the first position; without a position, any will do.
    first = seq_idx[:, :1] if seq_idx.shape[1] else seq_idx.new_zeros(seq_idx.shape[0], 1)
    index = first.expand(-1, count).contiguous()
    if not waits and ring.next is not None:
        ring.send(_tail(None, seq_idx, count).contiguous(), ring.next)
    if ring.previous is not None:
        index = torch.empty_like(index)
        ring.receive(index, ring.previous)
    if waits and ring.next is not None:
        ring.send(_tail(index, seq_idx, count).contiguous(), ring.next)
    y, final_states = _convolve(
        torch.cat([halo, x], dim=-1),
        weight,
        bias,
        torch.cat([index, seq_idx], dim=-1),
        None,
        True,
        None,
        activation,
    )
    y = y[..., count:] if residual is None else y[..., count:] + residual
    return y, final_states if ring.next is None else torch.zeros_like(final_states), token


def _packed(ring, x, weight, bias, cu_seqlens, initial_states, activation, residual):
    count = weight.shape[1] - 1
    ends = cu_seqlens.tolist()
    part = _Slice(ring.lengths(x), ring.rank, ends)
    given = _zeros(x, weight, len(ends) - 1) if initial_states is None else initial_states
    own = given[part.rows]
    last = x[..., part.boundaries[-2] :] if part.rows else x
    # The last sequence is cut out of a longer one on the left, or nothing of any sequence is here.
    only = not part.rows or (part.continues and len(part.rows) == 1)
    waits = only and last.shape[-1] < count
    before = lambda halo: halo if only else own[-1:]  # noqa: E731
    halo, token = _exchange(
        ring,
        _anchor(x, initial_states),
        _zeros(x, weight, 1),
        lambda halo: _tail(before(halo), last, count),
        waits,
    )
    states = torch.cat([halo, own[1:]]) if part.continues else own
    final_states = torch.zeros_like(given)
    if part.rows:
        boundaries = torch.tensor(part.boundaries, dtype=cu_seqlens.dtype, device=x.device)
        y, ended = _convolve(
            x, weight, bias, None, states, True, None, activation, cu_seqlens=boundaries, residual=residual
        )
        rows = [part.rows[at] for at in part.finished]
        final_states = final_states.index_put(
            (torch.tensor(rows, dtype=torch.long, device=x.device),), ended[part.finished]
        )
    else:
        # Without a position, for the gradients of weight and bias, which are zero.
        y = _convolve(x, weight, bias, activation=activation, residual=residual)
    if part.empty:
        rows = torch.tensor(part.empty, dtype=torch.long, device=x.device)
        final_states = final_states.index_put((rows,), given[rows])
    if ring.previous is not None and not part.continues:
        # No sequence here reads the halo, whose sender waits for a gradient all the same.
        y = _After.apply(y, halo[..., :0].flatten())
    return y, final_states, token
