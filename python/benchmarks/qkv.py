"""Query, key and value of a gated delta net beside separate operations: forward, a step with gradients, and decoding.

    python qkv.py [--device cuda] [--sizes 2048,2048,4096] [--head-dim 128] [--shape BATCH,SEQLEN …] [--decode BATCH …] [--json FILE]

Times are medians in microseconds: of the device, of a graph of calls that is replayed, and of the host, which puts calls on a stream
and waits for none; on a CPU, of calls. Every round has all rows in turn. The floor is a copy that moves as many bytes as x, its
results and gradients have. Results are compared before they are timed.
"""

import argparse
import json
import statistics
import time

import causeway
import torch
import torch.nn.functional as F

# Calls of a graph, and of a measurement of the host.
CALLS = 16


def of_device(row):
    """A function that gives microseconds of the device for a call, without those of the host."""
    for _ in range(3):
        row()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            row()

    def measured():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / CALLS * 1e3

    return measured


def of_host(row):
    """The same of the host."""

    def measured():
        clock = time.perf_counter()
        for _ in range(CALLS):
            row()
        elapsed = (time.perf_counter() - clock) / CALLS * 1e6
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return elapsed

    return measured


def medians(rows, clock, rounds):
    """Median of each row, by name."""
    clocks = {name: clock(row) for name, row in rows.items()}
    times = {name: [] for name in rows}
    for at in range(rounds + 2):
        for name, measured in clocks.items():
            times[name].append(measured())
    return {name: round(statistics.median(found[2:]), 3) for name, found in times.items()}


class Layer:
    """The convolution of one layer, in several ways."""

    def __init__(self, sizes, head_dim, dtype, device):
        self.sizes, self.head_dim = sizes, head_dim
        self.weight = torch.randn(sum(sizes), 4, device=device, dtype=dtype).mul_(0.5).requires_grad_()

    def together(self, x):
        """One launch."""
        return causeway.causal_conv1d_qkv(x, self.weight, sizes=self.sizes, head_dim=self.head_dim)

    def apart(self, x):
        """A launch each."""
        results = []
        for at, (part, weight) in enumerate(zip(x.split(self.sizes, 1), self.weight.split(self.sizes))):
            sizes = [0, 0, 0]
            sizes[at] = part.shape[1]
            results.append(causeway.causal_conv1d_qkv(part, weight, sizes=sizes, head_dim=self.head_dim)[at])
        return results

    def normalized(self, y):
        """q, k and v of what the convolution gives, (…, channels), with operations of PyTorch's."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in y.split(self.sizes, -1))
        q, k = (u * torch.rsqrt(u.float().square().sum(-1, keepdim=True) + 1e-6).to(u.dtype) for u in (q, k))
        return q, k, v

    def separate(self, x):
        """Causeway's convolution, then PyTorch."""
        return self.normalized(causeway.causal_conv1d_fn(x, self.weight, activation="silu").transpose(1, 2))

    def plain(self, x):
        """PyTorch alone."""
        y = F.conv1d(x, self.weight[:, None], padding=3, groups=self.weight.shape[0])[..., : x.shape[2]]
        return self.normalized(F.silu(y).transpose(1, 2))

    def step(self, x, state):
        """One launch."""
        return causeway.causal_conv1d_qkv_update(x, state, self.weight, sizes=self.sizes, head_dim=self.head_dim)

    def step_apart(self, x, state):
        """Causeway's update, then PyTorch."""
        return self.normalized(causeway.causal_conv1d_update(x, state, self.weight, activation="silu"))

    def step_by_forward(self, x, state):
        """Forward from a state, which is copied."""
        x = x[..., None]
        results = causeway.causal_conv1d_qkv(
            x, self.weight, None, None, state[..., -3:], sizes=self.sizes, head_dim=self.head_dim
        )
        state.copy_(torch.cat((state, x), -1)[..., -state.shape[-1] :])
        return results


def agree(ways):
    """Raises an error unless all results agree."""
    first, *others = ([u.float().flatten() for u in found] for found in ways)
    for other in others:
        for one, another in zip(first, other):
            torch.testing.assert_close(one, another, atol=2e-2, rtol=2e-2)


def sequences(layer, shape, dtype, device):
    """Rows of forward and of a step with gradients."""
    batch, seqlen = shape
    projection = torch.randn(batch, seqlen, sum(layer.sizes), device=device, dtype=dtype)
    x = projection.transpose(1, 2)
    leaf = x.detach().requires_grad_()
    ways = {"together": layer.together, "apart": layer.apart, "separate": layer.separate, "PyTorch": layer.plain}
    with torch.no_grad():
        agree(way(x) for way in ways.values())
    dys = [torch.randn_like(y) for y in layer.together(x)]
    gradients = [torch.autograd.grad(way(leaf), (leaf, layer.weight), dys) for way in (layer.together, layer.apart)]
    agree(((dx,) for dx, _ in gradients))

    def forward(way):
        def row():
            with torch.no_grad():
                return way(x)

        return row

    def step(way):
        return lambda: torch.autograd.grad(way(leaf), (leaf, layer.weight), dys)

    def copy(count):
        source = torch.empty(count * projection.numel() // 2, device=device, dtype=dtype)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return {
        "forward": {"floor": copy(2), **{name: forward(way) for name, way in ways.items()}},
        "forward and backward": {"floor": copy(5), **{name: step(way) for name, way in ways.items()}},
    }


def decoding(layer, batch, dtype, device):
    """Rows of one new position."""
    x = torch.randn(batch, sum(layer.sizes), device=device, dtype=dtype)
    state = torch.randn(batch, sum(layer.sizes), 4, device=device, dtype=dtype)
    ways = {"together": layer.step, "update, then PyTorch": layer.step_apart, "forward and a copy": layer.step_by_forward}
    with torch.no_grad():
        agree(way(x, state.clone()) for way in ways.values())

    def row(way):
        def call():
            with torch.no_grad():
                way(x, state)

        return call

    return {"decode": {name: row(way) for name, way in ways.items()}}


def main():
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--dtype", default="bfloat16", help="PyTorch's name of one")
    parser.add_argument("--sizes", default="2048,2048,4096", help="channels of q, k and v")
    parser.add_argument("--head-dim", type=int, default=128, help="channels of a head")
    parser.add_argument("--shape", nargs="*", default=["4,4096", "1,512"], help="batch,seqlen of each")
    parser.add_argument("--decode", nargs="*", type=int, default=[1, 64, 256], help="batches of steps of decoding")
    parser.add_argument("--rounds", type=int, default=20, help="turns of all ways, of which a figure is the median")
    parser.add_argument("--json", help="file to save the figures to")
    arguments = parser.parse_args()
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    numbers = lambda text: tuple(int(number) for number in text.split(","))  # noqa: E731
    torch.manual_seed(0)
    layer = Layer(numbers(arguments.sizes), arguments.head_dim, dtype, device)
    tables = {f"{shape}": lambda shape=shape: sequences(layer, numbers(shape), dtype, device) for shape in arguments.shape}
    tables |= {f"{batch}": lambda batch=batch: decoding(layer, batch, dtype, device) for batch in arguments.decode}
    clocks = {"host": of_host} | ({"device": of_device} if device == "cuda" else {})
    found = {}
    for place, make in tables.items():
        for name, rows in make().items():
            for kind, clock in clocks.items():
                times = found[f"{name} {place} {kind}"] = medians(rows, clock, arguments.rounds)
                print(f"{name} {place} {kind}: " + ", ".join(f"{row} {time}" for row, time in times.items()), flush=True)
    if arguments.json:
        where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        about = {"device": where, "torch": torch.__version__, "causeway": causeway.__version__, "microseconds": found}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(vars(arguments) | about, file, indent=1)


if __name__ == "__main__":
    main()
