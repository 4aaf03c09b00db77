"""Messages between neighbouring ranks of one machine, through memory that both of their GPUs see.

A rank has buffers for messages from each neighbour, one for each tensor of a message. A launch of the sender's waits until the buffer is
free, fills it, and says so; a launch of the receiver's waits for that, takes the tensor out, and says that the buffer is free again
(kernels/message.cuh). Both are work on the current stream, so that the host waits for nothing, and a message costs it a fraction of
what NCCL's send and receive do. The memory is that of `torch.distributed._symmetric_memory`.
"""

import hashlib
import logging
import math
import os
import socket

import torch
import torch.distributed as dist

from causeway import _native

_log = logging.getLogger("causeway.parallel")

# Bytes of a tensor that buffers are made for at least.
_LEAST_CAPACITY = 2**20
# Tensors of a message, at most.
_TENSORS = 2
# By the name of a group: the group, and its buffers or None. Names come again when a group has been destroyed.
_known = {}


def buffers(group, device, nbytes):
    """The buffers of a group's ranks, for tensors of at most so many bytes; None if they have to send in another way. All ranks call, with
    the same number."""
    if device.type != "cuda":
        return None
    known, found = _known.get(group.group_name, (None, None))
    if known is not group:
        found = None
    elif found is None or (found.capacity >= nbytes and found.device == device):
        return found
    # A graph that is captured has what was made before.
    if torch.cuda.is_current_stream_capturing():
        return None
    former, found = found, _make(group, device, nbytes)
    if found is not None:
        # Graphs that were captured go on using it.
        found.former = former
    _known[group.group_name] = group, found
    return found


def size(sizes, dtype):
    """The bytes of a tensor of these sizes and dtype."""
    return math.prod(sizes) * dtype.itemsize


def _make(group, device, nbytes):
    made, reason = _try(group, device, nbytes)
    way = "memory that both GPUs see" if made is not None else f"the process group: {reason}"
    _log.info("rank %d of %d sends its messages through %s", group.rank(), group.size(), way)
    return made


def _try(group, device, nbytes):
    """Buffers, or None and the reason."""
    memory = _symmetric_memory()
    # NCCL's group says that others have GPUs, too.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    mine = [_number(_machine()), _number(uuid), memory is not None]
    facts = _gather(group, device, mine)
    machines, devices, able = zip(*facts)
    if len(set(machines)) > 1:
        return None, "ranks are on several machines"
    if len(set(devices)) < len(devices):
        return None, "ranks share a GPU"
    if not all(able):
        return None, "CAUSEWAY_PEER_MEMORY is 0, or PyTorch has no symmetric memory"
    made, reason = None, "another rank's GPU cannot reach its neighbour's memory"
    # What was sent through smaller buffers has arrived.
    torch.cuda.synchronize(device)
    try:
        made = Buffers(memory, group, device, nbytes)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = str(error)
    # One that cannot, as without access between GPUs, is enough for none to try.
    every = all(able for (able,) in _gather(group, device, [made is not None]))
    return (made if every else None), reason


def _symmetric_memory():
    asked = os.environ.get("CAUSEWAY_PEER_MEMORY") or "1"
    if asked == "0":
        return None
    if asked != "1":
        _log.warning("CAUSEWAY_PEER_MEMORY is %r: expected 0 or 1; taken as 1", asked)
    try:
        import torch.distributed._symmetric_memory as memory
    except ImportError:
        return None
    return memory if hasattr(memory, "rendezvous") and hasattr(memory, "empty") else None


def _machine():
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return socket.gethostname() + file.read()
    except OSError:
        return socket.gethostname()


def _number(text):
    """A number of 63 bits for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _gather(group, device, values):
    """The numbers of every rank."""
    mine = torch.tensor([values], dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(every, mine, group=group)
    return torch.cat(every).tolist()


class Buffers:
    """This rank's buffers, and its ways into its neighbours'."""

    def __init__(self, memory, group, device, nbytes):
        self.device = device
        # Larger messages need new buffers, which all ranks have to wait for.
        self.capacity = max(_LEAST_CAPACITY, 1 << (nbytes - 1).bit_length())
        step = _native.MESSAGE_FLAG_BYTES + self.capacity
        self.memory = memory.empty(2 * _TENSORS * step, dtype=torch.uint8, device=device)
        # No buffer has a message. `_make` gathers what every rank has made before anyone sends.
        self.memory.zero_()
        self.handle = memory.rendezvous(self.memory, group)
        rank, starts = group.rank(), self.handle.buffer_ptrs
        if starts[rank] != self.memory.data_ptr():
            raise RuntimeError("a tensor of symmetric memory does not begin where its memory does")
        # By the neighbour: where what is sent to it goes, and where what it sends comes. Messages from the rank before have the
        # first half of a rank's memory, those from the next the second.
        self.outgoing, self.incoming = {}, {}
        for other in (rank - 1, rank + 1):
            if 0 <= other < group.size():
                half = _TENSORS * step
                outgoing = starts[other] + (half if rank > other else 0)
                incoming = starts[rank] + (half if other > rank else 0)
                self.outgoing[other] = [outgoing + at * step for at in range(_TENSORS)]
                self.incoming[other] = [incoming + at * step for at in range(_TENSORS)]
        # The stream of the last message, and its address.
        self.stream, self.address = None, None

    def send(self, rank, *tensors):
        """Sends a neighbour a message."""
        self._follow()
        for tensor, buffer in zip(tensors, self.outgoing[rank]):
            _native.send(tensor, buffer)

    def send_halo_gradient(self, rank, inputs, silu):
        """Sends a neighbour the gradient of a halo, computed on its way; see `_native.send_halo_gradient`."""
        self._follow()
        return _native.send_halo_gradient(inputs, silu, self.outgoing[rank][0])

    def receive(self, rank, *tensors):
        """A neighbour's message, of tensors of these sizes and dtypes."""
        self._follow()
        made = [torch.empty(sizes, dtype=dtype, device=self.device) for sizes, dtype in tensors]
        for tensor, buffer in zip(made, self.incoming[rank]):
            _native.receive(tensor, buffer)
        return made

    def _follow(self):
        """Messages have no names: those of several streams go in the order in which the host sends them."""
        address = torch._C._cuda_getCurrentRawStream(self.device.index)
        if address == self.address:
            return
        stream = torch.cuda.current_stream(self.device)
        # A graph that is captured cannot wait for what is outside of it.
        if self.stream is not None and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self.stream)
        self.stream, self.address = stream, address
