"""Sequence parallelism: every rank of a process group holds one slice of the sequence.

A convolution of width w reads w-1 positions to the left, so each rank needs the last w-1 positions before its slice (a
*halo*), and nothing else. The halo is the initial state of an ordinary call, and the final state of the rank before; its gradient
travels back:

    rank 0   [ initial_states | x_0 ]
    rank 1           [ end of x_0 | x_1 ]              forward: halos go right
    rank 2                   [ end of x_1 | x_2 ]      backward: their gradients go left

Each call sends (batch, dim, w-1) elements to one neighbour, whatever the length. The kernel of a large slice does not wait for
them: while they travel, it computes without the halo, and then the first w-1 outputs are computed again, or, in backward, the
last w-1 gradients of x. A small slice waits: two launches more would take the host longer than the halo travels. So does one of
fewer than 2 (w-1) positions, which may have to pass on a part of its halo.

Between GPUs of one machine, messages go through memory that both see; elsewhere, through the process group.
"""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from causeway import causal_conv1d_fn as _convolve
from causeway import _native
from causeway._activation import is_silu
from causeway._torch import peer_memory
from causeway._torch.eager import autocast_dtype, cast, expect_tensors, is_direct, require_one_device
from causeway._torch.tables import Table

__all__ = ["causal_conv1d_fn"]

_forward, _backward = _native.causal_conv1d_forward.run, _native.causal_conv1d_backward.run
_TABLE = Table(_native.causal_conv1d_forward)

# Stands for the index of the first position that follows, where a rank has initial states and no position. Padding is -1 on its way.
_NEXT_INDEX = -2


# Bytes of x from which a slice computes while its halo travels: where a pass over x takes a GPU longer than the launches and
# messages of a step take the host.
_OVERLAP_BYTES = 2**29

# What has been sent and may not have left yet, with its memory.
_pending = []


class _Ring:
    """This rank's neighbours, by their ranks in the group."""

    def __init__(self, group):
        if group is None:
            # None if there is no default group, which get_rank says.
            group = dist.group.WORLD or dist.get_rank()
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(f"group is {group!r}: expected a process group that this process is a rank of")
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.previous = self.rank - 1 if self.rank > 0 else None
        self.next = self.rank + 1 if self.rank + 1 < self.size else None
        # Memory that the neighbours reach, if there is such: see `prepare`.
        self.rooms = None

    def prepare(self, device, *tensors):
        """Makes room for messages of tensors of these sizes and dtypes in memory that the neighbours reach, if there is such."""
        self.rooms = peer_memory.rooms(self.group, device, peer_memory.size(*tensors))

    # Other messages go through the group's own methods: the functions of torch.distributed check again what is known here, which takes
    # the host as long as the message.

    def send(self, rank, *tensors):
        """Starts to send a message; its tensors are kept until they have left."""
        if self.rooms is not None:
            self.rooms.send(rank, *tensors)
            return
        _pending[:] = [(work, kept) for work, kept in _pending if not work.is_completed()]
        for tensor in tensors:
            tensor = tensor.contiguous()
            _pending.append((self.group.send([tensor], rank, 0), tensor))

    def receive(self, rank, *tensors):
        """Starts to receive a message into dense tensors; a function waits for it, in the order of the current stream, and gives them."""
        if self.rooms is not None:
            return lambda: (self.rooms.receive(rank, *tensors), tensors)[1]
        # In the order in which they are sent.
        works = [self.group.recv([tensor], rank, 0) for tensor in tensors]
        return lambda: ([work.wait() for work in works], tensors)[1]

    def lengths(self, x):
        """The length of every rank's slice."""
        mine = torch.tensor([x.shape[-1]], device=x.device)
        lengths = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(lengths, mine, group=self.group)
        return torch.cat(lengths).tolist()


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


class _Weights:
    """What every call of a slice shares, and the kernels with it."""

    def __init__(self, weight, bias, silu):
        self.weight, self.bias, self.silu = weight, bias, silu

    def forward(self, x, states=None, seq_idx=None, cu_seqlens=None, residual=None, wants_final=False, y=...):
        """y, and final states if they are wanted."""
        inputs = x, self.weight, self.bias, states, seq_idx, cu_seqlens, residual
        result = _forward(inputs, self.silu, (y, ... if wants_final else None))
        return result if wants_final else (result, None)

    def backward(
        self, x, dy, states=None, seq_idx=None, cu_seqlens=None, dfinal_states=None, dx=..., sums_dtype=None
    ):
        """The gradients of x, weight, bias and states; those of the parameters in a dtype of their own."""
        inputs = x, self.weight, self.bias, dy, states, seq_idx, cu_seqlens, dfinal_states
        sums = ..., ...
        if sums_dtype is not None:
            like = self.weight, self.bias
            sums = [None if t is None else torch.empty_like(t, dtype=sums_dtype) for t in like]
        return _backward(inputs, self.silu, (dx, *sums, ...))[:4]


class _Part:
    """The call of one rank, and how it is joined to those of its neighbours.

    Its first sequence, or each of its rows, `continues` one of the rank before; the last one goes on at the next rank unless it is
    `finished` here. `first` and `last` are the lengths that these have on this rank, `rows` the sequences of a packed batch that
    have a part here.
    """

    def __init__(self, ring, x, count, seq_idx=None, cu_seqlens=None, packed=None):
        self.ring, self.count, self.seq_idx, self.cu_seqlens = ring, count, seq_idx, None
        self.rows = None if packed is None else packed.rows
        self.continues, self.finished = ring.previous is not None, ring.next is None
        self.first = self.last = x.shape[-1]
        self.halo_shape = x.shape[0], x.shape[1], count
        # Without a position, a packed batch is a row that hands on what it gets.
        if self.rows:
            ends = packed.boundaries
            self.cu_seqlens = torch.tensor(ends, dtype=cu_seqlens.dtype, device=x.device)
            self.continues, self.finished = packed.continues, len(self.rows) - 1 in packed.finished
            self.first, self.last = ends[1], ends[-1] - ends[-2]

    def is_long(self):
        """Whether what is computed again at one end of the slice does not concern the other, nor a sequence between."""
        least = 2 * self.count
        return (not self.continues or self.first >= least) and (self.finished or self.last >= least)

    def waits(self, x):
        """Whether a long slice waits for its halo. With indices, halo and slice could only be joined by a copy."""
        return self.seq_idx is None and x.nbytes < _OVERLAP_BYTES

    def receive_halo(self, x):
        """Starts to receive the halo and its indices; the first rank has none."""
        if self.ring.previous is None:
            return lambda: (None, None)
        halo = x.new_empty(self.halo_shape)
        if self.seq_idx is None:
            received = self.ring.receive(self.ring.previous, halo)
            return lambda: (*received(), None)
        received = self.ring.receive(self.ring.previous, halo, self.seq_idx.new_empty(x.shape[0], self.count))
        if not x.shape[-1]:
            return received

        def with_known_indices():
            halo, index = received()
            return halo, torch.where(index == _NEXT_INDEX, self.seq_idx[:, :1], index)

        return with_known_indices

    def send_tail(self, tail, index):
        """Sends the next rank its halo."""
        if self.ring.next is not None:
            self.ring.send(self.ring.next, tail, *([] if self.seq_idx is None else [index]))

    def own_states(self, x, given):
        """The initial states that were given for what has a part here."""
        if given is None or self.rows is None:
            return given
        return given[self.rows] if self.rows else None

    def states(self, x, halo, given):
        """Initial states of the call."""
        own = self.own_states(x, given)
        if not self.continues:
            return own
        if self.cu_seqlens is None:
            return halo
        others = x.new_zeros(len(self.rows) - 1, *halo.shape[1:]) if own is None else own[1:]
        return torch.cat([halo, others])

    def joined(self, halo, index, x, other):
        """The halo and x as one sequence, its indices, and another tensor with zeros in front."""
        if not x.shape[-1]:
            # Before the first position of all, any index will do.
            index = torch.where(index == _NEXT_INDEX, 0, index)
        indices = torch.cat([index, self.seq_idx[:, : x.shape[-1]]], -1)
        if other is not None:
            other = torch.cat([torch.zeros_like(halo), other], -1)
        return torch.cat([halo, x], -1), indices, other

    def forward(self, weights, x, given, residual, wants_final):
        """y, final states, the halo and its indices."""
        count = self.count
        if not self.is_long():
            return self.forward_behind(weights, x, given, residual, *self.receive_halo(x)())
        # Nobody reads a tail behind the end of a last sequence, however short.
        tail = x[..., -count:] if x.shape[-1] >= count else x.new_zeros(self.halo_shape)
        # Messages of a group may follow each other on one stream: what arrives must not hold back what leaves.
        self.send_tail(tail, None if self.seq_idx is None else self.seq_idx[:, -count:].clamp(min=-1))
        received = self.receive_halo(x)
        if self.waits(x):
            halo, index = received()
            states = self.states(x, halo, given)
            return *weights.forward(x, states, None, self.cu_seqlens, residual, wants_final), halo, index
        # What lacks the halo here is computed again.
        states = None if self.continues and self.cu_seqlens is None else self.own_states(x, given)
        y, final_states = weights.forward(x, states, self.seq_idx, self.cu_seqlens, residual, wants_final)
        halo, index = received()
        if self.continues:
            head, added = x[..., :count], None if residual is None else residual[..., :count]
            if self.seq_idx is None:
                weights.forward(head, halo, None, None, added, y=y[..., :count])
            else:
                head, indices, added = self.joined(halo, index, head, added)
                y[..., :count] = weights.forward(head, None, indices, None, added)[0][..., count:]
        return y, final_states, halo, index

    def forward_behind(self, weights, x, given, residual, halo, index):
        """As `forward`, where the call waits for the halo."""
        if self.seq_idx is None:
            states = self.states(x, halo, given)
            y, final_states = weights.forward(x, states, None, self.cu_seqlens, residual, True)
            self.send_tail(final_states if self.cu_seqlens is None else final_states[-1:], None)
            return y, final_states, halo, index
        if halo is not None:
            whole, indices, added = self.joined(halo, index, x, residual)
            y, final_states = weights.forward(whole, None, indices, None, added, True)
            y = torch.empty_like(x).copy_(y[..., self.count :])
        else:
            y, final_states = weights.forward(x, given, self.seq_idx, None, residual, True)
            # Initial states carry the index of the first position.
            none = self.seq_idx.new_full((x.shape[0], 1), _NEXT_INDEX)
            first = self.seq_idx[:, :1].clamp(min=-1) if x.shape[-1] else none
            index = first.expand(-1, self.count)
        indices = torch.cat([index, self.seq_idx.clamp(min=-1)], -1)
        self.send_tail(final_states, indices[:, indices.shape[1] - self.count :])
        return y, final_states, halo, index

    def backward(self, weights, x, given, halo, index, dy, dfinal_states, exchanges):
        """The gradients of x, weight, bias and given states; `exchanges` says whether those of halos travel."""
        count = self.count
        if not self.is_long():
            dtail = self.receive_gradient(x, exchanges)()
            *gradients, dstates, dhalo = self.backward_behind(weights, x, given, halo, index, dy, dfinal_states, dtail)
            self.send_gradient(dhalo, x, exchanges)
            return *gradients, self.gradient_of_given(dstates, given)

        states, head = self.states(x, halo, given), None
        if self.continues:
            head = self.backward_of_head(weights, x, halo, index, dy)
            if self.seq_idx is not None:
                # Initial states carry the first position's index.
                states = torch.where((index == self.seq_idx[:, :1])[:, None], halo, 0)
        self.send_gradient(None if head is None else head[3], x, exchanges)
        received = self.receive_gradient(x, exchanges)
        if self.waits(x):
            dfinal_states = self.joined_gradients(x, dfinal_states, received())
            *gradients, dstates = weights.backward(x, dy, states, None, self.cu_seqlens, dfinal_states)
            return *gradients, self.gradient_of_given(dstates, given)
        dx, dweight, dbias, dstates = weights.backward(
            x, dy, states, self.seq_idx, self.cu_seqlens, dfinal_states
        )
        if head is not None and self.seq_idx is not None:
            # What positions of other indices have given the first outputs.
            first = x[..., :count], dy[..., :count], states, self.seq_idx[:, :count]
            seen = weights.backward(*first, sums_dtype=_dtype_of_sums(x))
            for gradient, whole, part in zip((dx[..., :count], dweight, dbias), head, seen):
                if gradient is not None:
                    # Equal ones may be infinite.
                    gradient += torch.where(whole == part, 0, whole - part).to(gradient.dtype)
        dtail = received()
        if dtail is not None and not self.finished:
            if self.seq_idx is None:
                tail = x[..., -count:], dy[..., -count:], x[..., -2 * count : -count], None, None, dtail
                weights.backward(*tail, dx=dx[..., -count:])
            else:
                # Initial states have no indices of their own.
                last = slice(-2 * count, None)
                tail = x[..., last], dy[..., last], None, self.seq_idx[:, last], None, dtail
                dx[..., -count:] = weights.backward(*tail)[0][..., count:]
        return dx, dweight, dbias, self.gradient_of_given(dstates, given)

    def backward_of_head(self, weights, x, halo, index, dy):
        """The first outputs' share of the gradients of x there, of weight and bias, and all of the halo's."""
        count = self.count
        head, dhead = x[..., :count], dy[..., :count]
        if self.seq_idx is None:
            return weights.backward(head, dhead, halo)
        head, indices, dhead = self.joined(halo, index, head, dhead)
        dx, dweight, dbias, _ = weights.backward(head, dhead, None, indices, sums_dtype=_dtype_of_sums(x))
        return dx[..., count:], dweight, dbias, dx[..., :count]

    def backward_behind(self, weights, x, given, halo, index, dy, dfinal_states, dtail):
        """As `backward`, where the call waits for the gradient of its final states; the gradients of its states and of the halo."""
        dfinal_states = self.joined_gradients(x, dfinal_states, dtail)
        if self.seq_idx is None or halo is None:
            states = self.states(x, halo, given)
            *gradients, dstates = weights.backward(x, dy, states, self.seq_idx, self.cu_seqlens, dfinal_states)
            return *gradients, dstates, dstates[: len(halo)] if self.continues else None
        whole, indices, dwhole = self.joined(halo, index, x, dy)
        dx, *gradients, _ = weights.backward(whole, dwhole, None, indices, None, dfinal_states)
        return dx[..., self.count :], *gradients, None, dx[..., : self.count]

    def joined_gradients(self, x, dfinal_states, dtail):
        """The gradients of the call's final states, of which the next rank has sent the last one."""
        if dtail is None or self.finished:
            return dfinal_states
        if self.cu_seqlens is None:
            return dtail
        if dfinal_states is None:
            dfinal_states = x.new_zeros(len(self.rows), *dtail.shape[1:])
        return torch.cat([dfinal_states[:-1], dtail])

    def receive_gradient(self, x, exchanges):
        """Starts to receive the gradient of the tail; the last rank has none."""
        if not exchanges or self.ring.next is None:
            return lambda: None
        received = self.ring.receive(self.ring.next, x.new_empty(self.halo_shape))
        return lambda: received()[0]

    def send_gradient(self, dhalo, x, exchanges):
        """Sends the rank before the gradient of the halo that came from there, be it read or not."""
        if exchanges and self.ring.previous is not None:
            self.ring.send(self.ring.previous, x.new_zeros(self.halo_shape) if dhalo is None else dhalo)

    def gradient_of_given(self, dstates, given):
        """The gradient of the initial states that were given, zero for those that are not read here."""
        if given is None:
            return None
        if self.rows is None and not self.continues:
            return dstates
        gradient = torch.zeros_like(given)
        if self.rows:
            own = slice(1 if self.continues else 0, None)
            gradient[self.rows[own]] = dstates[own]
        return gradient


def _dtype_of_sums(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _Convolution(torch.autograd.Function):
    """The call of one rank."""

    @staticmethod
    def forward(ctx, part, silu, wants_final, x, weight, bias, given, residual):
        weights = _Weights(weight, bias, silu)
        y, final_states, halo, index = part.forward(weights, x, given, residual, wants_final)
        ctx.part, ctx.silu = part, silu
        ctx.save_for_backward(x, weight, bias, given, halo, index)
        ctx.set_materialize_grads(False)
        return y, final_states

    @staticmethod
    def backward(ctx, dy, dfinal_states):
        # What refuses second derivatives takes the host as long as a kernel.
        found = _gradients if not torch.is_grad_enabled() else once_differentiable(_gradients)
        return found(ctx, dy, dfinal_states)


def _gradients(ctx, dy, dfinal_states):
    """The gradients of the arguments of `_Convolution`."""
    x, weight, bias, given, halo, index = ctx.saved_tensors
    exchanges = ctx.needs_input_grad[3] or ctx.needs_input_grad[6]
    dy = torch.zeros_like(x) if dy is None else dy
    weights = _Weights(weight, bias, ctx.silu)
    gradients = ctx.part.backward(weights, x, given, halo, index, dy, dfinal_states, exchanges)
    return None, None, None, *gradients, dy if ctx.needs_input_grad[7] else None


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
        Its values are read on the host, which waits for a GPU.
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
    inputs = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual
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
    return _over_ranks(ring, inputs, is_silu(activation), return_final_states)


# Nothing here is of use to a compiler: messages are not traced.
@torch.compiler.disable
def _over_ranks(ring, inputs, silu, return_final_states):
    if not is_direct(*inputs):
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
    _native.causal_conv1d_forward.empty(inputs, (x, None))
    if weight.shape[1] == 1:
        # Every position is on its own.
        y = _convolve(x, weight, bias, seq_idx, activation="silu" if silu else None, residual=residual)
        rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        return (y, x.new_zeros(rows, x.shape[1], 0)) if return_final_states else y
    count = weight.shape[1] - 1
    message = [((*x.shape[:2], count), x.dtype)]
    ring.prepare(x.device, *message, *([] if seq_idx is None else [((x.shape[0], count), seq_idx.dtype)]))
    packed, ends = None, None
    if cu_seqlens is not None:
        ends = cu_seqlens.tolist()
        packed = _Slice(ring.lengths(x), ring.rank, ends)
    part = _Part(ring, x, count, seq_idx, cu_seqlens, packed)
    wants_final = return_final_states and (packed is not None or ring.next is None)
    y, final_states = _Convolution.apply(part, silu, wants_final, x, weight, bias, given, residual)
    if not return_final_states:
        return y
    if packed is None:
        # Only the last rank sees the end.
        return y, x.new_zeros(part.halo_shape) if ring.next is not None else final_states
    states = x.new_zeros(len(ends) - 1, *part.halo_shape[1:])
    for rows, values in (
        ([part.rows[at] for at in packed.finished], final_states[packed.finished] if packed.finished else None),
        (packed.empty, None if given is None else given[packed.empty]),
    ):
        if rows and values is not None:
            states = states.index_put((torch.tensor(rows, device=x.device),), values)
    return y, states
