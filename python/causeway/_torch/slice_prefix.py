"""The first positions of a slice of a sequence whose rows have indices, after the halo.

The slice is computed without its halo, and what that changes is corrected: by kernels of their own on GPUs that see each other's memory
(kernels/causal_conv1d_forward_halo.cuh, causal_conv1d_backward_halo.cuh), elsewhere by calls for a short row that begins with the halo.
"""

import torch
from torch.nn.functional import pad

from causeway import _native

# Widths that there are no kernels for.
_TOO_WIDE = 9


class SlicePrefix:
    """`indices` are those of x, of 2 (width-1) positions at least, `index` are the halo's."""

    def __init__(self, ring, weights, x, halo, indices, index):
        self.ring, self.weights, self.count = ring, weights, halo.shape[-1]
        self.x, self.halo, self.indices, self.index = x, halo, indices, index
        self.has_kernels = ring.buffers is not None and weights.weight.shape[-1] < _TOO_WIDE

    def inputs(self, other):
        """What kernels read: `other` is residual in forward, dy in backward."""
        return self.x, self.weights.weight, self.weights.bias, other, self.halo, self.indices, self.index

    def forward(self, residual, y):
        """Computes the first width-1 outputs again."""
        if self.has_kernels:
            _native.forward_halo(self.inputs(residual), self.weights.silu, y)
            return
        count = self.count
        row, index = self.joined()
        added = None if residual is None else pad(residual[..., :count], (count, count))
        again = self.weights.forward(row, None, index, None, added)[0]
        y[..., :count].copy_(again[..., count : 2 * count])

    def backward(self, dy, sends):
        """Sends the rank before the gradient of the halo, if it waits for it."""
        self.dy = dy
        if self.has_kernels:
            if sends:
                self.ring.buffers.send_halo_gradient(self.ring.previous, self.inputs(dy), self.weights.silu)
            return
        row, index = self.joined()
        dy = pad(dy[..., : 2 * self.count], (self.count, 0))
        self.drow, *self.more, _ = self.weights.exact().backward(row, dy, None, index)
        if sends:
            self.ring.send(self.ring.previous, self.drow[..., : self.count])

    def correct(self, gradients):
        """Corrects those of x, weight and bias that were computed without the halo; after `backward`."""
        if self.has_kernels:
            _native.backward_halo(self.inputs(self.dy), self.weights.silu, gradients)
            return
        count, (dx, *parameters) = self.count, gradients
        dx[..., :count].copy_(self.drow[..., count : 2 * count])
        # What the first outputs have given without the halo is taken out, and what they give with it put in.
        first = [tensor[..., : 2 * count] for tensor in (self.x, self.dy, self.indices)]
        _, *less, _ = self.weights.exact().backward(*first[:2], None, first[2])
        for gradient, more, less in zip(parameters, self.more, less):
            if gradient is not None:
                # Equal ones may be infinite.
                gradient += torch.where(more == less, 0, more - less)

    def joined(self):
        """The halo and the first positions as one row, and its indices."""
        first = 2 * self.count
        return torch.cat([self.halo, self.x[..., :first]], -1), torch.cat([self.index, self.indices[:, :first]], -1)
