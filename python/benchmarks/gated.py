"""The gated convolution of LFM2 beside separate operations: the convolution alone, and a block with both projections.

    python gated.py [--device cuda] [--shape BATCH,SEQLEN,DIM] [--width 3] [--json FILE]

Times are medians in milliseconds, by the device's own clock (events on a GPU) around a few calls in a row, as steps of training follow
each other; every round has all rows in turn. The floor is a copy
that moves as many bytes as the tensors of the call have: 4 of x's size in forward, 11 in a step of forward and backward.
"""

import argparse
import json
import statistics
import time

import causeway
import torch
import torch.nn.functional as F


# Calls that are timed together, as many as make the start of the first one little of them: the host is ahead of the device from the second
# one on, if it can be.
TOGETHER = 32


def milliseconds(rows, device, rounds):
    """Median time of each row, by name."""
    times = {name: [] for name in rows}
    for at in range(rounds + 3):
        for name, row in rows.items():
            if device == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(TOGETHER):
                    row()
                end.record()
                end.synchronize()
                elapsed = start.elapsed_time(end) / TOGETHER
            else:
                clock = time.perf_counter()
                row()
                elapsed = (time.perf_counter() - clock) * 1e3
            # The first ones compile kernels and warm the allocator.
            if at >= 3:
                times[name].append(elapsed)
    return {name: statistics.median(found) for name, found in times.items()}


def separate(packed, weight):
    """Three operations, the convolution being Causeway's."""
    B, C, x = packed.chunk(3, 1)
    return C * causeway.causal_conv1d_fn(B * x, weight)


def plain(packed, weight):
    """PyTorch's own operations."""
    B, C, x = packed.chunk(3, 1)
    y = F.conv1d(B * x, weight[:, None], padding=weight.shape[1] - 1, groups=weight.shape[0])
    return C * y[..., : x.shape[2]]


def fused(packed, weight):
    """One launch."""
    return causeway.causal_conv1d_gated_packed(packed, weight, order="BCx")


def views(packed, weight):
    """One launch, with a gradient that autograd joins."""
    B, C, x = packed.chunk(3, 1)
    return causeway.causal_conv1d_gated(B, x, C, weight)


WAYS = {"plain PyTorch": plain, "separate, Causeway's convolution": separate, "gated, three views": views, "gated, packed": fused}


class Block(torch.nn.Module):
    """LFM2's short convolution with its projections."""

    def __init__(self, dim, width, convolve):
        super().__init__()
        self.in_proj = torch.nn.Linear(dim, 3 * dim, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(dim, width) / 2)
        self.out_proj = torch.nn.Linear(dim, dim, bias=False)
        self.convolve = convolve

    def forward(self, hidden):
        """(batch, seqlen, dim) to the same."""
        return self.out_proj(self.convolve(self.in_proj(hidden).transpose(1, 2), self.weight).transpose(1, 2))


def measure(device, shape, width, dtype, rounds):
    """Milliseconds of every row, by table and name."""
    batch, seqlen, dim = shape
    projection = torch.randn(batch, seqlen, 3 * dim, device=device, dtype=dtype)
    packed = projection.transpose(1, 2)
    leaf = packed.detach().requires_grad_()
    weight = torch.randn(dim, width, device=device, dtype=dtype).requires_grad_()
    dy = torch.randn(batch, seqlen, dim, device=device, dtype=dtype).transpose(1, 2)

    def copy(count):
        source = torch.empty(batch * seqlen * dim * count // 2, device=device, dtype=dtype)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def forward(way):
        def row():
            with torch.no_grad():
                way(packed, weight)

        return row

    def step(way):
        return lambda: torch.autograd.grad(way(leaf, weight), (leaf, weight), dy)

    tables = {
        "forward": {"floor": copy(4), **{name: forward(way) for name, way in WAYS.items()}},
        "forward and backward": {"floor": copy(11), **{name: step(way) for name, way in WAYS.items()}},
    }
    hidden = torch.randn(batch, seqlen, dim, device=device, dtype=dtype)

    def step_of(block):
        def row():
            block(hidden).backward(dy.transpose(1, 2))
            block.zero_grad()

        return row

    blocks = {}
    for name, way in WAYS.items():
        torch.manual_seed(0)
        block = Block(dim, width, way).to(device, dtype)
        blocks[name] = step_of(block)
        if device == "cuda":
            blocks[f"{name}, compiled"] = step_of(torch.compile(block))
    tables["block, forward and backward"] = blocks
    return {name: milliseconds(rows, device, rounds) for name, rows in tables.items()}


def main():
    """Prints the tables, and saves them if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--shape", help="batch,seqlen,dim; without it 4,4096,2048 on a GPU and 2,1024,512 on a CPU")
    parser.add_argument("--width", type=int, default=3, help="taps of the convolution")
    parser.add_argument("--dtype", default="bfloat16", help="PyTorch's name of one")
    parser.add_argument("--rounds", type=int, default=20, help="turns of all ways, of which a figure is the median")
    parser.add_argument("--json", help="file to save the figures to")
    arguments = parser.parse_args()
    default = "4,4096,2048" if arguments.device == "cuda" else "2,1024,512"
    shape = tuple(map(int, (arguments.shape or default).split(",")))
    tables = measure(arguments.device, shape, arguments.width, getattr(torch, arguments.dtype), arguments.rounds)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    print(f"causeway {causeway.__version__}, torch {torch.__version__}, {name}; {arguments.dtype}, width {arguments.width},")
    print("batch {}, seqlen {}, dim {}".format(*shape))
    for table, rows in tables.items():
        base = rows.get("floor")
        print(f"\n{table:<44} {'ms':>9}" + (" × floor" if base else ""))
        for row, found in rows.items():
            print(f"{row:<44} {found:>9.3f}" + (f" {found / base:>7.2f}" if base else ""))
    if arguments.json:
        with open(arguments.json, "w") as file:
            what = {"device": name, "torch": torch.__version__, "shape": shape, "width": arguments.width}
            json.dump(what | {"dtype": arguments.dtype, "ms": tables}, file, indent=1)


if __name__ == "__main__":
    main()
