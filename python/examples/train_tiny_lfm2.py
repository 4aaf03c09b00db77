"""Trains a small LFM2-like language model twice, with Causeway's gated convolution and with plain PyTorch's, and compares the two.

    python train_tiny_lfm2.py [--device cuda] [--steps 120] [--plot loss.svg]

As train_tiny_mamba.py, with the blocks of LFM2 and LFM3: a gated short convolution, `out(C * conv(B * x))` with B, C and x the thirds
of one projection, and a feed-forward part. Causeway computes both gates and the convolution in one launch, and all of their
gradients in another; separate operations of PyTorch's do the same otherwise. Both runs start from the same weights and see the
same bytes, and their losses must stay together.
"""

import torch
import torch.nn.functional as F
from causeway.nn import GatedShortConv
from train_tiny_mamba import compare


class PlainShortConv(GatedShortConv):
    """The same block from PyTorch's own operations."""

    def forward(self, hidden):
        """(batch, seqlen, dim) to the same."""
        B, C, x = self.in_proj(hidden).transpose(1, 2).chunk(3, dim=1)
        conv = self.conv
        y = F.conv1d(B * x, conv.weight, conv.bias, padding=conv.kernel_size[0] - 1, groups=conv.groups)
        return self.out_proj((C * y[..., : x.shape[-1]]).transpose(1, 2))


class Block(torch.nn.Module):
    """A gated short convolution and a feed-forward part, each with a norm before it and a residual around it."""

    def __init__(self, dim, short_conv):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(dim) for _ in range(2))
        self.conv = short_conv(dim, 3)
        self.inner = torch.nn.Linear(dim, 4 * dim, bias=False)
        self.outer = torch.nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        """(batch, seqlen, dim) to the same."""
        x = x + self.conv(self.norms[0](x))
        gate, inner = self.inner(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.outer(F.silu(gate) * inner)


if __name__ == "__main__":
    blocks = {"Causeway": GatedShortConv, "PyTorch": PlainShortConv}
    compare(__doc__.splitlines()[0], {name: lambda dim, c=c: Block(dim, c) for name, c in blocks.items()})
