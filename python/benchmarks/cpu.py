"""What users of PyTorch and NumPy get on a processor: calls through the public functions, in turns with PyTorch's own operations.

    python python/benchmarks/cpu.py [--threads 2] [--shape BATCH,DIM,SEQLEN ... | --drawn SEED] [--json FILE]

Every call allocates its results, on both sides. Causeway's of 32 MiB and more reuse the memory of the call before; "new" gives that back
to the system first, which is in its time. A figure is the median time of a call, over rounds of all calls in
turn. The copy is one of x into fresh memory, which is prepared as that of results is. PyTorch's convolution is `F.silu(F.conv1d(...))`, its step of
decoding `torch.cat`, a product and a sum, with the state copied back, and its products are `torch.mm`; "both" of a product are its two
gradients.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import time

import causeway
import torch
import torch.nn.functional as F
from causeway import _native

# batch, dim, seqlen
SHAPES = (8, 2048, 1024), (2, 1536, 512), (1, 2048, 64), (1, 2048, 16), (1, 64, 64), (8, 2048, 1), (1, 2048, 1)
# batch, dim
STEPS = (1, 2048), (8, 2048), (64, 2048), (8, 5376)
# rows, columns, reduction
PRODUCTS = (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1000, 777, 333), (64, 4096, 4096), (8, 4096, 4096), (1, 4096, 4096)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Bytes of results whose memory is kept for the next ones.
LARGE = 32 << 20
# Seconds that a call is repeated for in a round, and rounds.
TURN, ROUNDS = 0.02, 5


def milliseconds(calls):
    """Median time of each call, by name."""
    times, repeats = {name: [] for name in calls}, {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(1000, int(TURN / (time.perf_counter() - start))))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            # The first one finds what others have left in the caches.
            call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name] * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def convolution(shape, layout, dtype):
    """Milliseconds of forward, of forward and backward, and of a copy."""
    batch, dim, seqlen = shape

    def draw():
        if layout == "channel-first":
            return torch.randn(shape).to(dtype)
        return torch.randn(batch, seqlen, dim).to(dtype).transpose(1, 2)

    x, dy, weight, bias = draw(), draw(), torch.randn(dim, 4).to(dtype), torch.randn(dim).to(dtype)
    leaves = tuple(t.detach().requires_grad_() for t in (x, weight, bias))

    def ours(x, weight, bias):
        return causeway.causal_conv1d_fn(x, weight, bias, activation="silu")

    def theirs(x, weight, bias):
        return F.silu(F.conv1d(x, weight[:, None], bias, padding=3, groups=dim)[..., :seqlen])

    def step(function):
        return lambda: torch.autograd.grad(function(*leaves), leaves, dy)

    def copy():
        return _native.prefer_large_pages(torch.empty_like(x)).copy_(x)

    with torch.no_grad():
        found = milliseconds(
            {
                "copy": copy,
                "forward": lambda: ours(x, weight, bias),
                "torch_forward": lambda: theirs(x, weight, bias),
            }
        )
    found |= milliseconds({"both": step(ours), "torch_both": step(theirs)})
    if x.nbytes >= LARGE:

        def anew(call):
            return lambda: (causeway.empty_cache(), call())

        with torch.no_grad():
            found |= milliseconds({"new_forward": anew(lambda: ours(x, weight, bias))})
        found |= milliseconds({"new_both": anew(step(ours))})
    if dtype != torch.bfloat16:
        arrays = [t.numpy() for t in (x, weight, bias)]
        found |= {"numpy_forward": milliseconds({"numpy": lambda: ours(*arrays)})["numpy"]}
    return found


def decoding(batch, dim, dtype):
    """Milliseconds of one position for each batch entry."""
    x, state = torch.randn(batch, dim).to(dtype), torch.zeros(batch, dim, 3, dtype=dtype)
    weight, bias = torch.randn(dim, 4).to(dtype), torch.randn(dim).to(dtype)

    def theirs():
        window = torch.cat([state, x[..., None]], -1)
        state.copy_(window[..., 1:])
        return F.silu((window * weight).sum(-1) + bias)

    with torch.no_grad():
        return milliseconds(
            {
                "forward": lambda: causeway.causal_conv1d_update(x, state, weight, bias, "silu"),
                "torch_forward": theirs,
            }
        )


def product(rows, columns, reduction, dtype, linear):
    """Milliseconds of a product, and of both of its gradients. `linear`: the right operand is the weight of a linear layer, transposed."""
    a, b, grad = (torch.randn(shape).to(dtype) for shape in ((rows, reduction), (reduction, columns), (rows, columns)))
    b = b.t().contiguous().t() if linear else b
    return milliseconds(
        {
            "forward": lambda: causeway.gemm(a, b),
            "torch_forward": lambda: torch.mm(a, b),
            "both": lambda: causeway.gemm_grad_ab(grad, a, b),
            "torch_both": lambda: (torch.mm(grad, b.t()), torch.mm(a.t(), grad)),
        }
    )


def drawn(seed):
    """Eight shapes and twelve products whose sizes are drawn log-uniformly, up to 16 million elements and 4 billion multiply-adds."""
    numbers = random.Random(seed)
    size = lambda least, most: round(least * (most / least) ** numbers.random())  # noqa: E731
    shapes, products = [], []
    while len(shapes) < 8:
        shape = size(1, 64), size(16, 8192), size(1, 8192)
        shapes += [shape] if math.prod(shape) <= 1 << 24 else []
    while len(products) < 12:
        product = size(1, 4096), size(16, 8192), size(16, 8192)
        products += [product] if math.prod(product) <= 1 << 32 else []
    return shapes, products


def line(path, start):
    """What a file of the system says behind the start of a line."""
    try:
        with open(path) as file:
            return next((text[len(start) :].strip(" \t:\n") for text in file if text.startswith(start)), "")
    except OSError:
        return ""


def row_of(name, found):
    """A line of the table."""
    times = lambda ours, theirs: (  # noqa: E731
        f"{found[ours]:>9.4f} {found[theirs] / found[ours]:>7.1f}" if ours in found else " " * 17
    )
    copy = f"{found['forward'] / found['copy']:>7.2f}" if "copy" in found else " " * 7
    numpy = f"{found['numpy_forward']:>9.4f}" if "numpy_forward" in found else ""
    new = "".join(f"{found[key]:>9.4f} " for key in ("new_forward", "new_both") if key in found)
    return f"{name:<44} {times('forward', 'torch_forward')} {copy} {times('both', 'torch_both')} {numpy:>9} {new}"


def main():
    """Prints the table, and saves it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both sides")
    parser.add_argument("--shape", action="append", help="batch,dim,seqlen; those of the table without it")
    parser.add_argument("--drawn", type=int, metavar="SEED", help="shapes and products that are drawn at random, instead of the table's")
    parser.add_argument("--json", help="file to save the figures to")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    about = {
        "processor": line("/proc/cpuinfo", "model name") or platform.machine(),
        "threads": arguments.threads,
        "system": platform.release(),
        "large_pages": line("/sys/kernel/mm/transparent_hugepage/enabled", ""),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "causeway": causeway.__version__,
        "torch": torch.__version__,
    }
    print(*(f"{key} {value}" for key, value in about.items()), sep=", ")
    print(f"\n{'milliseconds; × is PyTorch by Causeway':<44} {'forward':>9} {'×':>7} {'by copy':>7} {'both':>9} {'×':>7} {'in NumPy':>9} {'new':>9} {'both':>9}")
    rows = {}
    shapes = [tuple(map(int, shape.split(","))) for shape in arguments.shape or ()]
    products = () if shapes else PRODUCTS
    if arguments.drawn is not None:
        about["drawn"] = arguments.drawn
        shapes, products = drawn(arguments.drawn)
    for shape in shapes or SHAPES:
        for layout in ("channel-first", "channel-last"):
            for dtype in DTYPES:
                name = "{}x{}x{}-{}-{}".format(*shape, layout, dtype)
                rows[name] = convolution(shape, layout, DTYPES[dtype])
                print(row_of(name, rows[name]), flush=True)
    for step in () if shapes else STEPS:
        for dtype in DTYPES:
            name = "update-{}x{}-{}".format(*step, dtype)
            rows[name] = decoding(*step, DTYPES[dtype])
            print(row_of(name, rows[name]), flush=True)
    for sizes in products:
        # PyTorch's product in f16 is a hundred times slower: one row shows it.
        for dtype in ("bfloat16", "float16") if sizes == PRODUCTS[0] else ("bfloat16",):
            for kind in ("product", "linear"):
                name = "{}-{}x{}x{}-{}".format(kind, *sizes, dtype)
                rows[name] = product(*sizes, DTYPES[dtype], kind == "linear")
                print(row_of(name, rows[name]), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(about | {"ms": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
