"""Messages between neighbouring ranks of one machine, through memory that both of their GPUs see.

A rank has room for one message from each neighbour. The sender writes into the receiver's room and signals; the receiver makes what it
needs of the message, and signals back that the room is free:

    sender      wait until the room is free │ copy │ signal "ready"
    receiver                                         wait for "ready" │ use │ signal "free"

Each step is work on the current stream, so that the host waits for nothing, and a message costs it a fraction of what NCCL's send and
receive do. The memory and the signals are those of `torch.distributed._symmetric_memory`.
"""

import hashlib
import math
import os
import socket

import torch
import torch.distributed as dist

# Channels of signals between two ranks.
_READY, _FREE = 0, 1
# What another rank may take, as with NCCL, before the GPU's program ends with an error.
_TIMEOUT_MS = 600_000
# Where a tensor of a message may begin.
_ALIGNMENT = 16
_LEAST_CAPACITY = 2**20
# By the name of a group: the group, and its rooms or None. Names come again when a group has been destroyed.
_known = {}


def rooms(group, device, nbytes):
    """The rooms of a group's ranks, for messages of so many bytes; None if they have to send in another way. All ranks call, with the
    same number."""
    if device.type != "cuda":
        return None
    known, found = _known.get(group.group_name, (None, None))
    is_known = known is group
    # A graph that is captured has what was made before.
    if torch.cuda.is_current_stream_capturing():
        return found if is_known else None
    if not is_known or (found is not None and found.capacity < nbytes):
        found = _make(group, device, nbytes)
        _known[group.group_name] = group, found
    return found


def size(*tensors):
    """The bytes of a message of tensors with these sizes and dtypes."""
    return sum(_aligned(math.prod(sizes) * dtype.itemsize) for sizes, dtype in tensors)


def _aligned(nbytes):
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _make(group, device, nbytes):
    memory = _symmetric_memory()
    # NCCL's group says that others have GPUs, too.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    mine = [_number(_machine()), _number(uuid), memory is not None]
    facts = _gather(group, device, mine)
    machines, devices, able = zip(*facts)
    if len(set(machines)) > 1 or len(set(devices)) < len(devices) or not all(able):
        return None
    made = None
    # What was sent through smaller rooms has arrived.
    torch.cuda.synchronize(device)
    try:
        made = Rooms(memory, group, device, nbytes)
    except (RuntimeError, TypeError, AttributeError):
        pass
    # One that cannot, as without access between GPUs, is enough for none to try.
    return made if all(able for (able,) in _gather(group, device, [made is not None])) else None


def _symmetric_memory():
    if os.environ.get("CAUSEWAY_PEER_MEMORY", "1") == "0":
        return None
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


class Rooms:
    """This rank's rooms, and its ways into its neighbours'. The first half of each rank's memory is for messages from the rank before,
    the second for those from the next."""

    def __init__(self, memory, group, device, nbytes):
        self.rank, self.device = group.rank(), device
        # Larger messages need new rooms, which all ranks have to wait for.
        self.capacity = max(_LEAST_CAPACITY, 1 << (nbytes - 1).bit_length())
        self.memory = memory.empty(2 * self.capacity, dtype=torch.uint8, device=device)
        self.handle = memory.rendezvous(self.memory, group)
        self.places = {}
        # The stream of the last message, and its address.
        self.stream, self.address = None, None
        for rank in (self.rank - 1, self.rank + 1):
            if 0 <= rank < group.size():
                self.handle.put_signal(rank, _FREE, _TIMEOUT_MS)

    def send(self, rank, *tensors):
        """Sends a neighbour a message."""
        self._follow()
        self.handle.wait_signal(rank, _FREE, _TIMEOUT_MS)
        described = tuple([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])
        for tensor, place in zip(tensors, self._places(rank, self.rank, described)):
            place.copy_(tensor)
        self.handle.put_signal(rank, _READY, _TIMEOUT_MS)

    def receive(self, rank, use, *tensors):
        """What a function makes of a neighbour's message, of tensors of these sizes and dtypes, before the room is free again."""
        self._follow()
        self.handle.wait_signal(rank, _READY, _TIMEOUT_MS)
        found = use(*self._places(self.rank, rank, tensors))
        self.handle.put_signal(rank, _FREE, _TIMEOUT_MS)
        return found

    def _places(self, at, sender, tensors):
        """Where the tensors of a message, of these sizes and dtypes, lie in the memory of rank `at`."""
        key = at, sender, tensors
        places = self.places.get(key)
        if places is None:
            places, start = [], self.capacity if sender > at else 0
            for sizes, dtype in tensors:
                places.append(self.handle.get_buffer(at, sizes, dtype, start // dtype.itemsize))
                start += size((sizes, dtype))
            self.places[key] = places
        return places

    def _follow(self):
        """Signals have no names: messages of several streams go in the order in which the host sends them."""
        address = torch._C._cuda_getCurrentRawStream(self.device.index)
        if address == self.address:
            return
        stream = torch.cuda.current_stream(self.device)
        # A graph that is captured cannot wait for what is outside of it.
        if self.stream is not None and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self.stream)
        self.stream, self.address = stream, address
