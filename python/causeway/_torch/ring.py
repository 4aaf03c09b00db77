"""Messages between the ranks of a process group that hold neighbouring slices of a sequence.

Between GPUs of one machine, messages go through memory that both see; elsewhere, through the process group.
"""

import weakref

import torch
import torch.distributed as dist

from causeway._torch import peer_memory

# By group: what has been sent and may not have left yet, with its memory, the oldest first. A message that is kept keeps gloo's
# connections and threads, so none outlives its group.
_pending = weakref.WeakKeyDictionary()
# Tensors of a group that are kept at most. Gloo says of no message that it has left, before somebody waits for it.
_MOST_PENDING = 16


class Ring:
    """This rank's neighbours, by their ranks in the group."""

    def __init__(self, group):
        if group is None:
            group = dist.group.WORLD
            if group is None:
                default = "there is no default process group: call torch.distributed.init_process_group first"
                raise ValueError(f"group is None, and {default}, or pass group=")
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(f"group is {group!r}: expected a process group that this process is a rank of")
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.previous = self.rank - 1 if self.rank > 0 else None
        self.next = self.rank + 1 if self.rank + 1 < self.size else None
        # Memory that the neighbours reach, if there is such: see `prepare`.
        self.buffers = None

    def prepare(self, device, *tensors):
        """Makes buffers for messages of tensors of these sizes and dtypes in memory that the neighbours reach, if there is such."""
        self.device = device
        self.buffers = peer_memory.buffers(self.group, device, max(peer_memory.size(*tensor) for tensor in tensors))

    # Other messages go through the group's own methods: the functions of torch.distributed check again what is known here, which takes
    # the host as long as the message.

    def send(self, rank, *tensors):
        """Starts to send a message; its tensors are kept until they have left."""
        if self.buffers is not None:
            self.buffers.send(rank, *tensors)
            return
        pending = [(work, kept) for work, kept in _pending.get(self.group, ()) if not work.is_completed()]
        _pending[self.group] = pending
        for tensor in tensors:
            # What is sent may become a result, whose graph would be kept, and with it the group.
            tensor = tensor.detach().contiguous()
            pending.append((self.group.send([tensor], rank, 0), tensor))
        while len(pending) > _MOST_PENDING:
            # It is received in a call that this rank has made already, so the other one gets there.
            work, _ = pending.pop(0)
            work.wait()

    def receive(self, rank, *tensors):
        """Starts to receive a message of tensors of these sizes and dtypes. A function waits for it, in the order of the current stream,
        and gives them: the first alone if there is no other."""
        if self.buffers is not None:
            return lambda: _alone(self.buffers.receive(rank, *tensors))
        made = [torch.empty(sizes, dtype=dtype, device=self.device) for sizes, dtype in tensors]
        # In the order in which they are sent.
        works = [self.group.recv([tensor], rank, 0) for tensor in made]
        return lambda: ([work.wait() for work in works], _alone(made))[1]

    def lengths(self, x):
        """The length of every rank's slice, on x's device."""
        mine = x.new_full((1,), x.shape[-1], dtype=torch.int64)
        every = mine.new_empty(self.size)
        dist.all_gather(list(every.split(1)), mine, group=self.group)
        return every


def _alone(tensors):
    return tensors[0] if len(tensors) == 1 else tensors
