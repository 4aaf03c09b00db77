"""The call of one rank on its slice of a sequence, and how it is joined to those of its neighbours; see `causeway.parallel`.

    Alone       of width 1, where no slice needs another
    Rows        rows that go on from rank to rank, where the slice waits for the halo, an initial state of it
    Ahead       the same where the slice does not wait: what the halo changes is corrected
    Indexed     rows with `seq_idx`: the halo has indices, which may differ from that of the first position
    Sequences   packed sequences without states: a packed batch on every rank, and the halo has their numbers as indices
    Packed      packed sequences that have states each

Nothing here reads a value of a tensor: the host would wait for the GPU. What depends on boundaries or indices is for the device to
choose, and the host knows no more than the length of its own slice.
"""

import torch
from torch.nn.functional import pad

from causeway import _native
from causeway._torch.slice_prefix import SlicePrefix

_forward, _backward = _native.causal_conv1d_forward.run, _native.causal_conv1d_backward.run

# Stands for the index of the first position that follows, where a rank has initial states and no position. Padding is -1 on its way.
_NEXT_INDEX = -2

# Bytes of x from which a slice computes while messages travel: where a pass over x takes a GPU longer than the launches and
# messages of a step take the host. Kernels without states are a few percent faster, too.
OVERLAP_BYTES = 2**29


class Weights:
    """What every call of a slice shares, and the kernels with it."""

    def __init__(self, weight, bias, silu):
        self.weight, self.bias, self.silu = weight, bias, silu

    def forward(self, x, states=None, seq_idx=None, cu_seqlens=None, residual=None, wants_final=False, y=...):
        """y, in memory of its own or in a given tensor, and final states if they are wanted."""
        inputs = x, self.weight, self.bias, states, seq_idx, cu_seqlens, residual
        result = _forward(inputs, self.silu, (y, ... if wants_final else None))
        return result if wants_final else (result, None)

    def backward(self, x, dy, states=None, seq_idx=None, cu_seqlens=None, dfinal_states=None):
        """The gradients of x, weight, bias and states."""
        inputs = x, self.weight, self.bias, dy, states, seq_idx, cu_seqlens, dfinal_states
        return _backward(inputs, self.silu)[:4]

    def exact(self):
        """The same, with gradients of weight and bias as exact as they are summed."""
        if self.weight.dtype in (torch.float32, torch.float64):
            return self
        return Weights(self.weight.float(), None if self.bias is None else self.bias.float(), self.silu)


def _first(tensor, count):
    return None if tensor is None else tensor[..., :count]


def _last(tensor, count):
    return None if tensor is None else tensor[..., -count:]


# Indices and boundaries are not among what autograd saves, and checks for changes, between the passes.
def _version(tensor):
    return None if tensor.is_inference() else tensor._version


def _require_unchanged(name, tensor, version):
    if version is not None and tensor._version != version:
        raise RuntimeError(f"{name} has been changed in place since the forward pass: give each call a tensor of its own")


class Rows:
    """Rows that go on from rank to rank: the state before this slice is the halo.

    `indices` tell the packed sequences of the one row apart, by a number that rises. `closed` tells the positions of the halo that do not
    belong to the sequence of this slice's first one.
    """

    def __init__(self, ring, x, count, indices=None, closed=None):
        self.ring, self.count, self.indices, self.closed = ring, count, indices, closed
        self.halo = (x.shape[0], x.shape[1], count), x.dtype
        # Whether what is computed again at one end of the slice does not concern the other, and the halo is not passed on.
        self.is_long = x.shape[-1] >= 2 * count

    def forward(self, weights, x, y, given, residual, wants_final):
        """y, for which there is memory, final states, and what backward has to know of the halo, two tensors or None."""
        if self.is_long:
            # Messages of a group may follow each other on one stream: what arrives must not hold back what leaves.
            self.send_tail(_last(x, self.count))
        received = self.receive_halo(self.halo)
        states = given if received is None else self.open(received())
        y, final = weights.forward(x, states, self.indices, None, residual, wants_final or not self.is_long, y)
        if not self.is_long:
            self.send_tail(final)
        return y, final, states, None

    def backward(self, weights, x, given, states, _, dy, dfinal, exchanges):
        """The gradients of x, weight, bias and given states; `exchanges` says whether those of halos travel."""
        sends = exchanges and self.ring.previous is not None
        if sends and self.is_long and not self.sent_gradient(weights, x, dy, states):
            first = [_first(tensor, self.count) for tensor in (x, dy, self.indices)]
            self.send_gradient(self.open(weights.backward(*first[:2], states, first[2])[3]))
        received = self.receive_gradient(exchanges)
        dfinal = dfinal if received is None else received()
        *gradients, dstates = weights.backward(x, dy, states, self.indices, None, dfinal)
        if sends and not self.is_long:
            self.send_gradient(self.open(dstates))
        return *gradients, self.of_given(dstates, given)

    def open(self, halo):
        """What belongs to the same sequence on both sides of the border, of a halo or of its gradient."""
        return halo if self.closed is None else torch.where(self.closed, 0, halo)

    def of_given(self, dstates, given):
        """The gradient of the initial states that were given, which only the first rank reads."""
        if given is None or self.ring.previous is None:
            return None if given is None else dstates
        return torch.zeros_like(given)

    def receive_halo(self, *message):
        """Starts to receive the halo; None on the first rank, which has none."""
        return None if self.ring.previous is None else self.ring.receive(self.ring.previous, *message)

    def send_tail(self, *message):
        """Sends the next rank its halo."""
        if self.ring.next is not None:
            self.ring.send(self.ring.next, *message)

    def receive_gradient(self, exchanges):
        """Starts to receive the gradient of the tail; None on the last rank, which has none."""
        return self.ring.receive(self.ring.next, self.halo) if exchanges and self.ring.next is not None else None

    def sent_gradient(self, weights, x, dy, states):
        """Sends the gradient of the halo in one launch, which computes it; False where that cannot be."""
        buffers = self.ring.buffers
        inputs = x, weights.weight, weights.bias, dy, states, self.indices, None
        return buffers is not None and buffers.send_halo_gradient(self.ring.previous, inputs, weights.silu)

    def send_gradient(self, dhalo):
        """Sends the rank before the gradient of the halo that came from there."""
        self.ring.send(self.ring.previous, dhalo)


class Alone:
    """Of width 1: every position is on its own, and nothing has to be sent. States have no column."""

    def __init__(self, x, seq_idx, boundaries):
        self.indices = seq_idx
        self.version = None if seq_idx is None else _version(seq_idx)
        self.boundaries = None if boundaries is None else boundaries.clamp(0, x.shape[-1])

    def forward(self, weights, x, y, given, residual, wants_final):
        """As that of `Rows`."""
        return *weights.forward(x, given, self.indices, self.boundaries, residual, wants_final, y), None, None

    def backward(self, weights, x, given, halo, index, dy, dfinal, exchanges):
        """As that of `Rows`."""
        _require_unchanged("seq_idx", self.indices, self.version)
        return weights.backward(x, dy, given, self.indices, self.boundaries, dfinal)


class Ahead(Rows):
    """Rows of a slice that is computed without its halo, and then its first positions again: by kernels of their own on GPUs that see each
    other's memory, elsewhere as a row with the halo in front."""

    # Of a slice that is a packed batch of its own.
    boundaries = None

    def forward(self, weights, x, y, given, residual, wants_final):
        self.send_tail(*self.tail(x))
        received = self.receive_halo(*self.message())
        states = given if received is None else None
        y, final = weights.forward(x, states, self.indices, self.boundaries, residual, wants_final, y)
        if received is None:
            return y, final, states, None
        halo, index = self.arrived(received)
        self.prefix(weights, x, halo, index).forward(residual, y)
        return y, final, halo, index

    def backward(self, weights, x, given, halo, index, dy, dfinal, exchanges):
        if self.ring.previous is None:
            *gradients, dstates = self.with_tail(weights, x, dy, halo, dfinal, exchanges)
            return *gradients, self.of_given(dstates, given)
        prefix = self.prefix(weights, x, halo, index)
        prefix.backward(dy, exchanges)
        *gradients, _ = self.with_tail(weights, x, dy, None, dfinal, exchanges)
        prefix.correct(gradients)
        return *gradients, self.of_given(None, given)

    def with_tail(self, weights, x, dy, states, dfinal, exchanges):
        """The gradients of the slice's call, with that of its tail, which the next rank sends."""
        received = self.receive_gradient(exchanges)
        if received is not None and self.waits(x):
            dfinal, received = received(), None
        gradients = weights.backward(x, dy, states, self.indices, self.boundaries, dfinal)
        if received is None:
            return gradients
        # The gradients of x that lacked that of the tail are computed again. Positions before those of the window concern none of them.
        tail = [_last(tensor, 2 * self.count) for tensor in (x, dy)]
        again = weights.backward(*tail, None, self.indices_of_tail(), None, received())[0]
        _last(gradients[0], self.count).copy_(_last(again, self.count))
        return gradients

    def message(self):
        """Sizes and dtypes of what arrives: the halo, and its indices if they come with it."""
        return (self.halo,)

    def tail(self, x):
        """What is sent to the next rank as its halo."""
        return (_last(x, self.count),)

    def arrived(self, received):
        """The halo, and what `prefix` has to know of indices."""
        halo = received()
        return halo, halo.new_zeros(halo.shape[0], 3 * self.count, dtype=torch.int32)

    def prefix(self, weights, x, halo, index):
        """The first positions; `index` has the indices of the halo, and then theirs."""
        return SlicePrefix(self.ring, weights, x, halo, index[:, self.count :], index[:, : self.count])

    def waits(self, x):
        """Whether the slice's backward pass waits for the gradient of the tail."""
        return False

    def indices_of_tail(self):
        """Those of the last 2 (width-1) positions, if there are some."""
        return None


def of_rows(ring, x, count):
    """Rows without indices."""
    is_ahead = x.shape[-1] >= 2 * count and x.nbytes >= OVERLAP_BYTES
    return (Ahead if is_ahead else Rows)(ring, x, count)


class Indexed(Ahead):
    """Rows with `seq_idx`. An index may come back after another one, so that several positions, of different indices, see the halo."""

    def __init__(self, ring, x, count, seq_idx, has_states):
        super().__init__(ring, x, count, seq_idx)
        self.halo_indices = (x.shape[0], count), seq_idx.dtype
        # Zeros before the first position of all may have any index.
        self.has_states = has_states
        self.version = _version(seq_idx)

    def forward(self, weights, x, y, given, residual, wants_final):
        way = super().forward if self.is_long else self.forward_waiting
        return way(weights, x, y, given, residual, wants_final)

    def backward(self, weights, x, given, halo, index, dy, dfinal, exchanges):
        _require_unchanged("seq_idx", self.indices, self.version)
        is_waiting = not self.is_long and self.ring.previous is not None
        way = self.backward_waiting if is_waiting else super().backward
        return way(weights, x, given, halo, index, dy, dfinal, exchanges)

    def message(self):
        return self.halo, self.halo_indices

    def tail(self, x):
        return _last(x, self.count), self.on_its_way(_last(self.indices, self.count))

    def arrived(self, received):
        halo, index = received()
        return halo, self.known(index, 2 * self.count)

    def prefix(self, weights, x, halo, index):
        return SlicePrefix(self.ring, weights, x, halo, self.indices, index)

    def waits(self, x):
        # Final states have an index, so that the gradient of the tail is theirs.
        return not self.is_long or x.nbytes < OVERLAP_BYTES

    def indices_of_tail(self):
        return _last(self.indices, 2 * self.count)

    def forward_waiting(self, weights, x, place, given, residual, wants_final):
        """As `forward`, of a slice that waits for the halo, of which it may have to pass on a part."""
        count, length = self.count, x.shape[-1]
        received = self.receive_halo(*self.message())
        if received is None:
            joined = given
            y, final = weights.forward(x, given, self.indices, None, residual, True, place)
            # Initial states carry the index of the first position.
            unknown = self.indices.new_full((x.shape[0], count), _NEXT_INDEX)
            index = torch.cat([self.indices[:, :1].expand(-1, count), self.indices], -1) if length else unknown
        else:
            halo, unknown = received()
            joined, index = torch.cat([halo, x], -1), torch.cat([self.known(unknown, length), self.indices], -1)
            added = None if residual is None else pad(residual, (count, 0))
            y, final = weights.forward(joined, None, index, None, added, True)
            y = place.copy_(y[..., count:])
        self.send_tail(final, self.on_its_way(_last(index, count)) if length else unknown)
        return y, final, joined, index

    def backward_waiting(self, weights, x, given, joined, index, dy, dfinal, exchanges):
        """As `backward`, of a slice that waits for the gradient of its tail."""
        received = self.receive_gradient(exchanges)
        dfinal = dfinal if received is None else received()
        dx, *parameters, _ = weights.backward(joined, pad(dy, (self.count, 0)), None, index, None, dfinal)
        if exchanges:
            self.send_gradient(_first(dx, self.count))
        return dx[..., self.count :], *parameters, self.of_given(None, given)

    def known(self, index, length):
        """The indices of a halo; initial states before the first position of all have that of the first position."""
        return torch.where(index == _NEXT_INDEX, self.indices[:, :1] if length else 0, index) if self.has_states else index

    def on_its_way(self, index):
        """Indices as the next rank gets them. Only initial states, which it knows of, are there to be told apart from padding."""
        return index.clamp(min=-1) if self.has_states else index


class Sequences(Ahead):
    """Packed sequences without states. Those that go on from the rank before, or to the next one, are told apart at the ends of the slice,
    by numbers that rise."""

    def __init__(self, ring, x, count, starts):
        super().__init__(ring, x, count)
        # On the first rank the caller's own tensor.
        self.starts, self.version, self.length = starts, _version(starts), x.shape[-1]
        # Kernels of GPUs clamp boundaries as they read them.
        self.boundaries = starts if starts.is_cuda else starts.clamp(0, self.length)

    def backward(self, *call):
        _require_unchanged("cu_seqlens", self.starts, self.version)
        return super().backward(*call)

    def arrived(self, received):
        index = numbers(self.starts, -self.count, 2 * self.count)
        return received(), index

    def indices_of_tail(self):
        return numbers(self.starts, self.length - 2 * self.count, self.length)


def numbers(starts, first, end):
    """The numbers of the sequences of some positions, (1, end - first), as indices."""
    positions = torch.arange(first, end, dtype=starts.dtype, device=starts.device)
    return torch.searchsorted(starts, positions, right=True, out_int32=True)[None]


def of_sequences(ring, x, count, starts):
    """A packed batch without states, by boundaries as `boundaries_here` gives them."""
    length = x.shape[-1]
    if not length:
        return Rows(ring, x, count)
    # As of rows, a small slice waits, unless there are kernels for what the halo changes.
    if length >= 2 * count and (ring.buffers is not None or x.nbytes >= OVERLAP_BYTES):
        return Sequences(ring, x, count, starts)
    indices = numbers(starts, -count, length)
    return Rows(ring, x, count, indices[:, count:], indices[:, :count] != indices[:, count : count + 1])


class Packed(Rows):
    """Packed sequences with a row of states each, all of them on every rank: those that have no part here are empty."""

    def __init__(self, ring, x, count, boundaries):
        super().__init__(ring, x, count)
        self.length = x.shape[-1]
        self.boundaries, ends = boundaries.clamp(0, self.length), boundaries[1:]
        self.ends_elsewhere = (ends > self.length) | (ends <= 0 if ring.previous is not None else ends < 0)
        self.ends_elsewhere = self.ends_elsewhere[:, None, None]
        if self.length:
            # The sequences of the first and of the last position; within bounds, whatever the boundaries are.
            most = ends.shape[0] - 1
            self.first = torch.searchsorted(ends, 0, right=True).clamp(max=most).view(1)
            self.last = torch.searchsorted(ends, self.length).clamp(max=most).view(1)
            self.closed = ends.index_select(0, self.last) <= self.length
            self.begins_here = boundaries.index_select(0, self.first) >= 0

    def forward(self, weights, x, y, given, residual, wants_final):
        count = self.count
        if self.is_long:
            window = (self.boundaries - (self.length - count)).clamp(min=0)
            final = weights.forward(_last(x, count), given, None, window, None, True)[1]
            self.send_tail(self.open(final.index_select(0, self.last)))
        received = self.receive_halo(self.halo)
        states = halo = given
        if received is not None and not self.length:
            halo = received()
        elif received is not None:
            if states is None:
                states = x.new_zeros(len(self.ends_elsewhere), *self.halo[0][1:])
            own = states.index_select(0, self.first)
            halo = torch.where(self.begins_here, own, received())
            states = states.index_copy(0, self.first, halo)
        wants = wants_final or not self.is_long
        y, final = weights.forward(x, states, None, self.boundaries, residual, wants, y)
        if not self.length:
            self.send_tail(x.new_zeros(self.halo[0]) if received is None else halo)
        elif not self.is_long:
            self.send_tail(self.open(final.index_select(0, self.last)))
        return y, torch.where(self.ends_elsewhere, 0, final) if wants_final else None, states, None

    def backward(self, weights, x, given, states, _, dy, dfinal, exchanges):
        count, sends = self.count, exchanges and self.ring.previous is not None
        if dfinal is not None:
            dfinal = torch.where(self.ends_elsewhere, 0, dfinal)
        if sends and self.is_long:
            # A sequence that ends among these positions may have a part of the halo in its final state.
            first = _first(x, count), _first(dy, count), states, None, self.boundaries.clamp(max=count), dfinal
            self.send_gradient(weights.backward(*first)[3].index_select(0, self.first))
        received = self.receive_gradient(exchanges)
        dtail = None if received is None else received()
        if dtail is not None and self.length:
            if dfinal is None:
                dfinal = x.new_zeros(len(self.ends_elsewhere), *self.halo[0][1:])
            own = dfinal.index_select(0, self.last)
            dfinal = dfinal.index_copy(0, self.last, torch.where(self.closed, own, dtail))
        *gradients, dstates = weights.backward(x, dy, states, None, self.boundaries, dfinal)
        if sends and not self.length:
            self.send_gradient(x.new_zeros(self.halo[0]) if dtail is None else dtail)
        elif sends and not self.is_long:
            self.send_gradient(dstates.index_select(0, self.first))
        return *gradients, self.of_given(dstates, given)

    def of_given(self, dstates, given):
        if given is None or self.ring.previous is None or not self.length:
            return None if given is None else dstates
        # A sequence that began on a rank before has its gradient there.
        own = torch.where(self.begins_here, dstates.index_select(0, self.first), 0)
        return dstates.index_copy(0, self.first, own)


def boundaries_here(ring, x, cu_seqlens):
    """cu_seqlens, counted from the beginning of this rank's slice."""
    # Values on a GPU are not checked, as in a call on one device.
    is_read = cu_seqlens.is_cpu
    lengths = ring.lengths(x) if is_read or ring.size > 2 else None
    if is_read:
        ends, total = cu_seqlens.tolist(), int(lengths.sum())
        if ends[0] != 0 or ends[-1] != total or any(a > b for a, b in zip(ends, ends[1:])):
            raise ValueError(f"cu_seqlens is {ends}: expected boundaries that rise from 0 to {total}, all slices together")
    if len(cu_seqlens) == 1 and x.shape[-1]:
        raise ValueError(f"cu_seqlens has one boundary: expected a sequence at least, of the {x.shape[-1]} positions here")
    if ring.previous is None:
        return cu_seqlens
    if ring.size == 2:
        # The last slice ends where the last sequence does.
        return (cu_seqlens - cu_seqlens[-1:]).add_(x.shape[-1])
    return cu_seqlens - lengths[: ring.rank].sum()
