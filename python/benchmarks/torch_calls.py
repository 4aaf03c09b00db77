"""What a call from PyTorch costs: host time of one call, and the time of a training step, beside plain PyTorch.

    python torch_calls.py [--device cuda] [--json FILE] [--check]

Host time is what Python waits for before it goes on: many calls of tensors so small that the device is never behind, by
the clock of the host, the median of several rounds. Every round has all calls in turn, so that what else a machine does
meets them alike; "more" is the median of what Causeway takes more than nothing in a round. Step times are the device's own
(events on a GPU), the median.

--check ends with status 1 where a call costs more than it may: an update more than `x * 2`, or forward and backward in one
thread 15 us more than a function that does nothing.
"""

import argparse
import json
import platform
import statistics
import sys
import time

import causeway
import torch
import torch.nn.functional as F


def synchronize(device):
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def host_microseconds(calls, device, repeats=200, rounds=25):
    """Host times of each call, one for each round, by name."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            # The first ones find cold caches.
            for _ in range(20):
                call()
            synchronize(device)
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - start) / repeats * 1e6)
    return times


def plain(x, weight, bias):
    """The convolution in PyTorch's own operations."""
    y = F.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=weight.shape[0])
    return F.silu(y[..., : x.shape[-1]])


class Nothing(torch.autograd.Function):
    """Allocates what a convolution allocates, and computes nothing: what PyTorch itself asks for a call from Python."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, dy):
        return tuple(torch.empty_like(saved) for saved in ctx.saved_tensors)


class Multiplication(torch.autograd.Function):
    """As `Nothing`, with one operation of PyTorch's each way: the least that a function with a kernel takes."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        _, weight, bias = ctx.saved_tensors
        return dy * 2, torch.empty_like(weight), torch.empty_like(bias)


# What two runs of one call differ by, as a part of it.
NOISE = 0.03


def too_slow(hosts, more):
    """What costs more than it may, a sentence each."""
    ours, _, _, elementwise = hosts["update"]
    if ours > elementwise * (1 + NOISE):
        yield f"update takes {ours:.1f} us: expected x * 2's {elementwise:.1f} at most"
    if (both := more["both, autograd in this thread"]) > 15:
        yield f"forward and backward take {both:.1f} us more than nothing: expected 15 at most"


COLUMNS = "Causeway", "F.conv1d", "nothing", "x * 2"


def host_costs(device):
    """Microseconds per call, by name, in the order of `COLUMNS`; and what Causeway takes more than nothing.

    Both are medians. The second is one of differences within a round, since a machine may be slow for seconds.
    """
    x, weight, bias = torch.randn(1, 64, 64), torch.randn(64, 4), torch.randn(64)
    x, weight, bias = (t.to(device) for t in (x, weight, bias))
    state, dy = torch.zeros(1, 64, 3, device=device), torch.ones_like(x)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    packed = weight[:, None].contiguous()
    packed_leaves = [leaves[0], packed.clone().requires_grad_(), leaves[2]]

    def causal(*args):
        return causeway.causal_conv1d_fn(*args, activation="silu")

    def conv1d(x, weight, bias):
        return F.conv1d(x, weight, bias, padding=3, groups=64)

    def gradients(function, args):
        return torch.autograd.grad(function(*args), args, dy)

    def in_this_thread(function, args):
        with torch.autograd.set_multithreading_enabled(False):
            return gradients(function, args)

    def cut(*args):
        return conv1d(*args)[..., :64]

    rows = {
        "forward, no gradient": (
            lambda: causal(x, weight, bias),
            lambda: conv1d(x, packed, bias),
            lambda: torch.empty_like(x),
            lambda: x * 2,
        ),
        "forward, for a gradient": (
            lambda: causal(*leaves),
            lambda: conv1d(*packed_leaves),
            lambda: Nothing.apply(*leaves),
            lambda: Multiplication.apply(*leaves),
        ),
        "forward and backward": (
            lambda: gradients(causal, leaves),
            lambda: gradients(cut, packed_leaves),
            lambda: gradients(Nothing.apply, leaves),
            lambda: gradients(Multiplication.apply, leaves),
        ),
        "both, autograd in this thread": (
            lambda: in_this_thread(causal, leaves),
            lambda: in_this_thread(cut, packed_leaves),
            lambda: in_this_thread(Nothing.apply, leaves),
            lambda: in_this_thread(Multiplication.apply, leaves),
        ),
        "update": (
            lambda: causeway.causal_conv1d_update(x[..., 0], state, weight, bias, "silu"),
            None,
            lambda: torch.empty_like(x[..., 0]),
            lambda: x[..., 0] * 2,
        ),
    }
    calls = {(name, at): call for name, row in rows.items() for at, call in enumerate(row) if call}
    times = host_microseconds(calls, device)
    medians = {call: statistics.median(found) for call, found in times.items()}
    hosts = {name: [medians.get((name, at)) for at in range(len(row))] for name, row in rows.items()}
    ours, nothing = 0, COLUMNS.index("nothing")
    pairs = {name: zip(times[name, ours], times[name, nothing]) for name in rows}
    return hosts, {name: statistics.median(a - b for a, b in pair) for name, pair in pairs.items()}


class Block(torch.nn.Module):
    """The parts of a Mamba-2 block around its convolution: projection, convolution, gate, norm, projection."""

    def __init__(self, dim, convolve):
        super().__init__()
        self.inner = torch.nn.Linear(dim, 4 * dim, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(2 * dim, 4) / 2)
        self.bias = torch.nn.Parameter(torch.zeros(2 * dim))
        self.norm = torch.nn.RMSNorm(2 * dim)
        self.outer = torch.nn.Linear(2 * dim, dim, bias=False)
        self.convolve = convolve

    def forward(self, x):
        """(batch, seqlen, dim) to the same."""
        gate, inner = self.inner(x).chunk(2, dim=-1)
        inner = self.convolve(inner.transpose(1, 2), self.weight, self.bias).transpose(1, 2)
        return x + self.outer(self.norm(inner * F.silu(gate)))


def step_milliseconds(block, x, device, steps):
    """Median time of forward and backward."""
    times = []
    for at in range(steps + 3):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
        else:
            clock = time.perf_counter()
        block(x).sum().backward()
        if device == "cuda":
            end.record()
            end.synchronize()
            elapsed = start.elapsed_time(end)
        else:
            elapsed = (time.perf_counter() - clock) * 1e3
        block.zero_grad()
        if at >= 3:
            times.append(elapsed)
    return statistics.median(times)


def step_times(device, batch, dim, seqlen, steps):
    """Milliseconds per step, by name."""
    dtype = torch.bfloat16
    x = torch.randn(batch, seqlen, dim, device=device, dtype=dtype)
    fn = lambda *args: causeway.causal_conv1d_fn(*args, activation="silu")  # noqa: E731
    times = {}
    for name, convolve, compiles in [
        ("plain PyTorch", plain, False),
        ("Causeway", fn, False),
        ("plain PyTorch, compiled", plain, True),
        ("Causeway, compiled", fn, True),
    ]:
        torch.manual_seed(0)
        block = Block(dim, convolve).to(device, dtype)
        times[name] = step_milliseconds(torch.compile(block) if compiles else block, x, device, steps)
    return times


def main():
    """Prints both tables, and saves them if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--json", help="file to save the figures to")
    parser.add_argument("--check", action="store_true", help="fail where a call costs more than it may")
    arguments = parser.parse_args()
    device = arguments.device
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(
        f"causeway {causeway.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {name}\n"
    )
    hosts, more = host_costs(device)
    print(f"{'host time of a call':<30}", *(name.rjust(12) for name in (*COLUMNS, "more")))
    for row, times in hosts.items():
        times = *times, more[row]
        print(f"{row:<30}", *("-".rjust(12) if time is None else f"{time:>9.1f} us" for time in times))
    shape = dict(batch=4, dim=2048, seqlen=4096) if device == "cuda" else dict(batch=1, dim=256, seqlen=512)
    steps = step_times(device, **shape, steps=20 if device == "cuda" else 5)
    size = " x ".join(f"{key} {value}" for key, value in shape.items())
    print(f"\n{f'step of a block, bf16, {size}':<60}")
    for row, milliseconds in steps.items():
        print(f"{row:<30} {milliseconds:>9.3f} ms")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {
                    "device": name,
                    "torch": torch.__version__,
                    "host_us": {row: dict(zip(COLUMNS, times)) for row, times in hosts.items()},
                    "more_than_nothing_us": more,
                    "step_ms": steps,
                },
                file,
                indent=1,
            )
    if arguments.check and (complaints := list(too_slow(hosts, more))):
        sys.exit("\n".join(["", *complaints]))


if __name__ == "__main__":
    main()
