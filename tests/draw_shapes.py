#!/usr/bin/env python3
"""Draws shapes that nobody has tuned for, as a suite for `causeway bench`.

    draw_shapes.py conv1d|conv1d-update|gemm|classes [--seed N] [--count N] [--ragged] > drawn.toml
    causeway bench --suite drawn.toml --device cuda --save drawn.json
    draw_shapes.py summary drawn.json...

Convolutions: x of 1 to 256 MB in 16 bits, dim 64 to 8,192 and seqlen 16 to 65,536, log-uniform, one of four no multiple of 8, both
layouts, width 3 or 4, with SiLU; ragged: all of them no multiple of 8. Classes: --count convolutions of each class that has an aim of its own, and
of powers of two alone. Decode updates: 1 to 512 entries and 64 to 8,192 channels, both layouts, width 3 or 4. Products: each of M, N, K 16 to
32,768, log-uniform, multiples of 8, at most 2 GB of tensors and 10 TFLOP. A summary gives the geometric mean and the worst ratio to the floor (of products: of cuBLASLt) by pass and class.
"""

import argparse
import json
import math
import random
import statistics


def log_uniform(draw, low, high, step):
    """A multiple of step."""
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)


def convolution(draw, ragged):
    """One row of a suite."""
    while True:
        step = 1 if ragged or draw.random() < 0.25 else 8
        dim, seqlen = log_uniform(draw, 64, 8192, step), log_uniform(draw, 16, 65536, step)
        if not ragged and draw.random() < 0.25:
            dim = 2 ** round(math.log2(dim))
        batch = round(math.exp(draw.uniform(math.log(2**19), math.log(2**27))) / (dim * seqlen))
        if 1 <= batch <= 4096:
            layout = draw.choice(["channel-first", "channel-last"])
            if ragged and (dim if layout == "channel-last" else seqlen) % 8 == 0:
                continue
            return {"shape": [batch, dim, seqlen], "layout": layout, "width": draw.choice([3, 4])}


def sized(draw, dims, seqlens, elements, step=8):
    """A shape with so many elements."""
    while True:
        dim, seqlen = log_uniform(draw, *dims, step), log_uniform(draw, *seqlens, step)
        batch = round(log_uniform(draw, *elements, 1) / (dim * seqlen))
        if 1 <= batch <= 1024:
            return [batch, dim, seqlen]


def powers_of_two(draw, dims, seqlens, elements):
    """A shape of powers of two alone, from exponents, with the exponent of its elements in a range: what people often take, and draws of
    multiples of 8 hardly ever give."""
    while True:
        dim, seqlen = draw.randint(*dims), draw.randint(*seqlens)
        batch = draw.randint(*elements) - dim - seqlen
        if 0 <= batch <= 8:
            return [2**batch, 2**dim, 2**seqlen]


LARGE = (30e6, 120e6)  # elements: 60 MB and more in 16 bits
CLASSES = {
    "large": lambda draw: {"shape": sized(draw, (256, 8192), (512, 16384), LARGE)},
    "power-of-two": lambda draw: {
        "shape": sized(draw, (dim := 2 ** draw.randint(8, 13), dim), (512, 8192), LARGE),
        "layout": "channel-last",
    },
    # One sequence.
    "a-thousand-rows": lambda draw: {
        "shape": [1, log_uniform(draw, 3000, 9000, 8), log_uniform(draw, 700, 1400, 8)],
        "layout": "channel-last",
    },
    "ragged": lambda draw: {"shape": [n | 1 for n in sized(draw, (500, 8000), (500, 8000), (8e6, 60e6), 2)]},
    "many-short": lambda draw: {
        "shape": [log_uniform(draw, 200, 900, 1), log_uniform(draw, 512, 4096, 8), log_uniform(draw, 32, 128, 8)]
    },
    "one-long": lambda draw: {
        "shape": [1, log_uniform(draw, 16, 256, 8), log_uniform(draw, 2e5, 1e6, 8)],
        "layout": "channel-first",
    },
    "width-3": lambda draw: {"shape": sized(draw, (256, 8192), (512, 16384), LARGE), "width": 3},
    "all-powers-of-two": lambda draw: {"shape": powers_of_two(draw, (3, 13), (6, 20), (21, 27))},
    "under-1-mb": lambda draw: {"shape": sized(draw, (64, 2048), (16, 2048), (60e3, 500e3)), "layout": "channel-last"},
}


def product(draw, _ragged):
    """One row of a suite."""
    while True:
        m, n, k = (log_uniform(draw, 16, 32768, 8) for _ in range(3))
        if 2 * (m * k + k * n + m * n) <= 2e9 and 2 * m * n * k <= 1e13:
            return {"shape": [m, n, k], "layout": "row-major", "algorithm": "fast"}


def update(draw, _ragged):
    """One row of a suite."""
    shape = [log_uniform(draw, 1, 512, 1), log_uniform(draw, 64, 8192, 8)]
    return {"shape": shape, "layout": draw.choice(["channel-first", "channel-last"]), "width": draw.choice([3, 4])}


ROWS = {"conv1d": convolution, "conv1d-update": update, "gemm": product}


def rows(kind, draw, count, ragged):
    """Names of rows, and what is drawn for them."""
    for at in range(count):
        if kind != "classes":
            yield f"drawn-{at}", ROWS[kind](draw, ragged)
            continue
        for name, row in CLASSES.items():
            layout = draw.choice(["channel-first", "channel-last"])
            yield f"{name}-{at}", {"layout": layout, "width": 4} | row(draw)


def suite(kind, seed, count, ragged):
    """The text of a suite."""
    draw = random.Random(seed)
    yield f'name = "drawn-{kind}-{seed}"\nabout = "Shapes drawn with seed {seed}"\n'
    for name, drawn in rows(kind, draw, count, ragged):
        row = {"name": name, "dtype": "bf16", **drawn}
        if kind != "gemm":
            row |= {"activation": "silu", "bias": True}
        table = "conv1d" if kind == "classes" else kind
        yield f"[[{table}]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in row.items())


def classes(row):
    """The classes that a row of a run belongs to."""
    yield "all"
    if "operations" in row:
        m, n, k = row["shape"]
        tiles = -(-m // 128) * -(-n // 128)
        if tiles <= 100 and k >= 2048:
            yield "100 tiles of 128 or fewer, K of 2,048 or more"
        if 132 < tiles <= 264:
            yield "133 to 264 tiles of 128"
        if min(m, n) <= 128:
            yield "M or N of 128 or less"
        return
    for name in CLASSES:
        if row["case"].startswith(f"{name}-"):
            yield f"{name}, {row['layout']}"
            return
    yield row["layout"]
    if row["call"] == "update":
        return
    batch, dim, seqlen = row["shape"]
    if dim % 8 or seqlen % 8:
        yield f"{row['layout']}, dim or seqlen no multiple of 8"
    elif 2 * batch * dim * seqlen >= 60e6:
        power = ", dim a power of two" if row["layout"] == "channel-last" and dim & (dim - 1) == 0 else ""
        yield f"{row['layout']}, 60 MB or more{power}"


def summary(files):
    """A table: of each class and call, how many rows, the geometric mean and the worst of time / floor."""
    ratios = {}
    for file in files:
        with open(file) as run:
            for row in json.load(run)["rows"]:
                for name in classes(row):
                    ratios.setdefault((name, row["call"]), []).append((row["ratio"], row["case"], row["shape"]))
    for (name, call), found in sorted(ratios.items()):
        mean = statistics.geometric_mean(ratio for ratio, _, _ in found)
        ratio, case, shape = max(found)
        print(f"{name:48} {call:12} {len(found):4} rows  {mean:.3f}  worst {ratio:.3f} ({case}, {shape})")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "action", choices=[*ROWS, "classes", "summary"], help="draw a suite of these, or summarise saved runs"
    )
    parser.add_argument("files", nargs="*", help="saved runs")
    parser.add_argument("--seed", type=int, default=1, help="of the rows that are drawn")
    parser.add_argument("--count", type=int, default=40, help="rows to draw, of each class where classes are drawn")
    parser.add_argument("--ragged", action="store_true", help="rows of convolutions that are no multiple of 8 elements")
    options = parser.parse_args()
    if options.action == "summary":
        summary(options.files)
    else:
        print("\n".join(suite(options.action, options.seed, options.count, options.ragged)))


if __name__ == "__main__":
    main()
